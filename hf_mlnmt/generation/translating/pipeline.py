"""TranslationPipeline: texts in, translations out, for our models and Marian, M2M100/NLLB, mBART and T5.

1. Texts are cut at line ends, with split="sentences" (the default of `hf-mlnmt translate`) also into sentences;
   pieces that are too long for the model are cut further (segments.py).
2. Pieces are encoded, with the prefix that tells the model the languages (directions.py).
3. Batches of pieces, the longest first, are searched by model.generate() (batches.py). With `mbr` or `rerank` the best
   of the candidates is chosen (choosing/).
4. Ids are decoded to text, with confidences if asked for (confidence.py), and pieces are joined (call.py).

call.py runs all stages, searching.py stages 3 and 4 of one batch; options.py has the options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from hf_mlnmt.common.errors import OptionError, UserError, suggest
from hf_mlnmt.common.languages import direction_of, same_language
from hf_mlnmt.common.made_from import digest, sha256_of_files
from hf_mlnmt.common.model_folder import MODEL_FILES, fetch_small_files
from hf_mlnmt.data.directions import has_modules, language_codes
from hf_mlnmt.generation.choosing.minimum_risk import MinimumRisk
from hf_mlnmt.generation.choosing.reranking import Reranker, given_translations
from hf_mlnmt.generation.translating.batches import arguments_of_texts, rows_by_text
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.generation.translating.hypotheses import Scored
from hf_mlnmt.generation.translating.loading import Parts, load, parts_in_memory
from hf_mlnmt.generation.translating.options import OF_TEXTS, DecodingOptions, forced_first, of_texts
from hf_mlnmt.memory.index import TranslationMemory
from hf_mlnmt.search.hypotheses import normalized

NAMES = ("source_language", "target_language")
USUAL = DecodingOptions()


class TranslationPipeline:
    """A loaded model that translates texts.

    >>> translate = TranslationPipeline.from_pretrained("runs/multi30k/average")
    >>> translate(["A man rides a bicycle."], num_beams=5)
    ['Ein Mann fährt Fahrrad.']
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, name: str = "", memory: TranslationMemory | None = None
    ) -> None:
        """Makes a pipeline of a model in memory, also quantised or with an adapter, and its tokenizer, or of `Parts`.

        memory: a translation memory that all calls use, unless their options name another.

        Raises: UserError where model or tokenizer is missing, or their vocabularies do not fit.
        """
        self.name, self.memory = name, memory
        self._choosers: dict[Any, Any] = {}
        self.parts = model if isinstance(model, Parts) else parts_in_memory(model, tokenizer)

    def chooser(self, options: DecodingOptions) -> MinimumRisk | Reranker | None:
        """Returns the object that chooses among a sentence's candidates, loaded once; None without mbr and rerank."""
        device = str(self.model.device)
        key: tuple[Any, ...]
        make: Callable[[], MinimumRisk | Reranker]
        if options.mbr:
            utility, language = options.utility or "chrf", options.target_language
            key, make = (utility, language), partial(MinimumRisk, utility, device, language)
        elif options.rerank:
            source, target = direction_of(self.name) or (None, None)  # as recorded in the folder, if options tell none
            languages = options.source_language or source, options.target_language or target
            content: Any = options.rerank
            key, make = (digest(content), *languages), partial(Reranker, content, self.name, device, languages)
        else:
            return None
        if key not in self._choosers:
            self._choosers[key] = make()
        return self._choosers[key]

    def memory_of(self, options: DecodingOptions) -> TranslationMemory | None:
        """Returns a call's memory, opened once; None without one, with `alternatives`, or for other languages."""
        given = options.memory or self.memory
        if given is None or options.alternatives:
            return None
        told = direction_of(self.name) or (None, None)
        pair = options.source_language or told[0], options.target_language or told[1]
        if isinstance(given, TranslationMemory):
            memory = given.between(*pair)
            same = all(code is None or same_language(code, own) for code, own in zip(pair, memory.languages))
            return memory if same else None
        files = [given] if isinstance(given, str | Path) else given
        key = (*map(str, files), *pair)
        if key not in self._choosers:
            self._choosers[key] = TranslationMemory(*files).between(*pair)
        return self._choosers[key]

    @property
    def model(self) -> Any:
        """Returns the model that translates."""
        return self.parts.model

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        device: str | None = None,
        dtype: str = "auto",
        *,
        fast: bool = True,
        memory: TranslationMemory | None = None,
        **options: Any,
    ) -> TranslationPipeline:
        """Loads a model from a local folder or a Hub name; options: from_pretrained's (revision...).

        Args:
            device: default: a GPU where there is one, but the CPU for int8.
            dtype: auto (as saved), float32, bfloat16, float16; int8: the weights of linear layers rounded.
            fast: convert MarianMTModel, M2M100, NLLB, BART and mBART to this package's baseline, as by import_model,
                with the same outputs and a faster generate(); search with T5 and MADLAD by the fast loop.
            memory: as of the constructor.

        Raises: UserError when the model cannot be loaded.
        """
        return cls(load(str(name), device, dtype, fast=fast, **options), None, str(name), memory)

    @property
    def languages(self) -> list[str]:
        """Returns the codes that source_language and target_language may be; none for a model of one pair."""
        return list(self.model.config.languages) if has_modules(self.model) else language_codes(self.parts.source)

    def __call__(self, texts: str | Iterable[str], decoding: DecodingOptions = USUAL, **options: Any) -> Any:
        """Translates one text or many; options are fields of DecodingOptions (or `decoding`), others go to generate().

        Returns a string for each text, in the order of the texts (one string for one string); an empty text has an
        empty translation. With `num_return_sequences=n`, `alignments`, `confidence` or `alternatives`: a list of
        Hypothesis for each text instead, best first (of one Hypothesis unless n or `alternatives` says more).

        `target_prefix`, `force_phrases`, `bad_phrases`, `source_language` and `target_language` may be lists with an
        entry for each text; texts of one language pair are translated together. Arguments of generate() with a row for
        each text (`decoder_input_ids`) have the rows in the texts' order.

        Raises: UserError for texts or options that are not allowed, and for lists of another length than `texts`.
        """
        if isinstance(texts, str):
            return self([texts], decoding, **options)[0]
        texts, decoding = list(_checked(texts)), decoding.with_keywords(options)
        if any(isinstance(getattr(decoding, name), list | tuple) for name in NAMES):
            return self._by_pairs(texts, decoding)
        for name in rows_by_text(given := {**decoding.generate, **of_texts(decoding)}):
            if (rows := len(given[name])) != len(texts):
                raise OptionError(f"{name}: {rows} rows for {len(texts)} texts: give one row for each text.")
        return list(self._groups([texts], decoding, len(texts)))

    def score(
        self, texts: Sequence[str], translations: Sequence[str], decoding: DecodingOptions = USUAL, **options: Any
    ) -> list[Scored]:
        """Scores a given translation of each text, uncut, as a search would score it.

        options: languages, prefix, length_penalty and length_normalization.
        Raises: UserError for fewer or more translations than texts, texts longer than the model reads, a fused model.
        """
        texts, translations = list(_checked(texts)), list(_checked(translations))
        if len(texts) != len(translations):
            raise UserError(f"{len(translations)} translations of {len(texts)} texts: give one for each.")
        if getattr(self.model, "logits_are_scores", False):
            raise UserError(f"{self.name or 'the model'}: a fused model's scores are no probabilities of given texts.")
        decoding = decoding.with_keywords(options)
        pair = (None, None) if decoding.prefix else (decoding.source_language, decoding.target_language)
        way, given = given_translations(self.parts, self.name, pair, decoding.prefix)
        penalty, forced = decoding.penalty(self.model, way), int(forced_first(self.model, way))
        found = []
        for text, (ids, logs, total) in zip(translations, given(texts, translations, "score"), strict=True):
            tokens = tuple(self.parts.target.convert_ids_to_tokens(ids))
            score = normalized(total, penalty, len(ids) + forced)
            found.append(Scored(text, score, total, len(ids), tokens=tokens, token_log_probabilities=tuple(logs)))
        return found

    def _by_pairs(self, texts: list[str], decoding: DecodingOptions) -> list[Any]:
        """Translates each text between its own two languages; returns the results in the order of the texts."""
        codes: list[Any] = []
        for name in NAMES:
            side = getattr(decoding, name)
            codes.append(side if isinstance(side, list | tuple) else [side] * len(texts))
            if len(codes[-1]) != len(texts):
                raise UserError(f"{name}: {len(side)} codes for {len(texts)} texts: give one for each, or one for all.")
        groups: dict[tuple[Any, ...], list[int]] = {}
        for number, pair in enumerate(zip(*codes)):
            groups.setdefault(pair, []).append(number)
        results: list[Any] = [None] * len(texts)
        for (source, target), numbers in groups.items():
            rows = arguments_of_texts({**decoding.generate, **of_texts(decoding)}, numbers)
            own = {name: rows.pop(name) for name in OF_TEXTS}
            of_pair = replace(decoding, source_language=source, target_language=target, **own, generate=rows)
            translated = self._groups([[texts[number] for number in numbers]], of_pair, len(numbers))
            for number, result in zip(numbers, translated, strict=True):
                results[number] = result
        return results

    def stream(self, texts: Iterable[str], window: int = 2048, **options: Any) -> Iterator[Any]:
        """Translates an iterable of any length in windows of `window` texts; yields the results in order.

        With `window=1` each translation is yielded before the next text is read. Larger windows fill batches better,
        and on a GPU the next window is read during the search of a window.
        """
        iterator = iter(_checked(texts))
        groups = iter(lambda: list(islice(iterator, window)), [])
        return self._groups(groups, USUAL.with_keywords(options), read_ahead=window > 1)

    def _groups(
        self,
        groups: Iterable[Sequence[str]],
        options: DecodingOptions,
        total: int | None = None,
        read_ahead: bool = False,
    ) -> Iterator[Any]:
        count = 0
        with progress_bar(total, options.progress) as update:
            call = TranslationCall(self, options)
            for _, texts, results in call.translate_groups(groups, update, read_ahead=read_ahead):
                count += len(texts)
                yield from results if options.in_lists else (best[0].text for best in results)
        for name, given in of_texts(options).items():
            if isinstance(given, list | tuple) and len(given) != count:
                raise OptionError(f"{name}: {len(given)} given for {count} texts: give one for each text.")


class Translate:
    """Callable for `datasets` and Ray Data that adds a column of translations to a batch, {column: list or array}.

    >>> dataset.map(Translate("runs/demo/average", num_beams=5), batched=True)
    >>> dataset.map_batches(Translate, fn_constructor_args=["runs/demo/average"], concurrency=4)

    The model is loaded at the first batch, once in each process. A pickled Translate holds no model, only its name, the
    options and a digest of the model's files, from which `datasets` computes the fingerprint of its cache.

    Args:
        model: a folder or a Hub name.
        column: name of the column of texts.
        into: name of the new column, which may be `column` itself: a string for each text, or with num_return_sequences
            a list of translations, best first; an empty text has an empty one, None has None.
        device, dtype, revision, trust_remote_code: as in TranslationPipeline.from_pretrained.
        options: fields of DecodingOptions; all others go to generate().

    Raises: UserError for bad options, and at the first batch for a model or a batch that cannot be read.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        column: str = "text",
        into: str = "translation",
        device: str | None = None,
        dtype: str = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> None:
        self.model, self.column, self.into = str(model), column, into
        self.options = DecodingOptions().with_keywords(options)
        self.loading: dict[str, Any] = {"device": device, "dtype": dtype}
        self.loading |= {"revision": revision} if revision else {}
        self.loading |= {"trust_remote_code": True} if trust_remote_code else {}

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the batch with the column of translations."""
        column = self.column
        if column not in batch:
            near = suggest(column, batch)
            raise UserError(f"column: the batch has no {column!r}{near}; it has {', '.join(batch)}.")
        if self.into in batch and self.into != column:
            raise UserError(f"into: the batch has a column {self.into!r} already. Give the translations another name.")
        texts = list(batch[column])
        for number, text in enumerate(texts):
            if not (text is None or isinstance(text, str)):
                raise UserError(
                    f"column {column!r}, row {number} of a batch: {text!r} is no text. Give texts, or None."
                )
        numbers = [number for number, text in enumerate(texts) if text is not None]
        pipeline = _loaded(self.model, self.content, **self.loading)
        results = pipeline([str(texts[number]) for number in numbers], self.options)
        translations: list[Any] = [None] * len(texts)
        for number, result in zip(numbers, results, strict=True):
            translations[number] = result if isinstance(result, str) else [each.text for each in result]
        return {**batch, self.into: translations}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "content": self.content}

    @cached_property
    def content(self) -> str:
        """Returns a digest of the model's files if it is a folder, or the commit of a model on the Hub."""
        folder = fetch_small_files(self.model, revision=self.loading.get("revision"))
        return digest(sha256_of_files(folder, MODEL_FILES)) if Path(self.model).is_dir() else folder.name


@lru_cache(maxsize=4)
def _loaded(model: str, content: str, **loading: Any) -> TranslationPipeline:
    return TranslationPipeline.from_pretrained(model, **loading)


def _checked(texts: Any) -> Iterable[str]:
    """Returns an iterable of texts, of one string too. Raises: UserError for an object of another type."""
    if isinstance(texts, Mapping | bytes) or not isinstance(texts, Iterable):
        raise UserError(f"texts: give a string or several, not an object of type {type(texts).__name__}.")
    return [texts] if isinstance(texts, str) else texts


@contextmanager
def progress_bar(total: int | None, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Context manager that shows a progress bar on standard error, if that is a terminal and `shown`; yields a function
    that advances the bar by a number of texts."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        yield partial(bar.advance, bar.add_task("", total=total))
