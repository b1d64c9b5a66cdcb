"""TranslationPipeline: texts in, translations out, for our models and Marian, M2M100/NLLB, mBART and T5.

1. A text is cut at line ends, with split="sentences" (the verb's default) into sentences, and what is too long to fit
   (segments.py).
2. The pieces get what a direction puts before them (directions.py) and are encoded.
3. Batches, the longest pieces first, go through model.generate() (batches.py). With `mbr` or `rerank` the best of the
   candidates is chosen (choosing/).
4. Ids become text, with confidences if they are asked for (confidence.py); pieces are joined (call.py).

call.py goes through the stages, searching.py does 3 and 4 for one batch; the options are one object (options.py).
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
from hf_mlnmt.common.languages import direction_of
from hf_mlnmt.common.made_from import digest, sha256_of_files
from hf_mlnmt.common.model_folder import MODEL_FILES, fetch_small_files
from hf_mlnmt.data.directions import has_modules, language_codes
from hf_mlnmt.generation.choosing.minimum_risk import MinimumRisk
from hf_mlnmt.generation.choosing.reranking import Reranker, given_translations
from hf_mlnmt.generation.translating.batches import arguments_of_texts, rows_by_text
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.generation.translating.hypotheses import Hypothesis, Scored
from hf_mlnmt.generation.translating.loading import Parts, load, parts_in_memory
from hf_mlnmt.generation.translating.options import OF_TEXTS, DecodingOptions, forced_first, of_texts
from hf_mlnmt.search.hypotheses import normalized

NAMES = ("source_language", "target_language")
USUAL = DecodingOptions()
COLUMN = "text"


class TranslationPipeline:
    """A loaded model that translates texts.

    >>> translate = TranslationPipeline.from_pretrained("runs/multi30k/average")
    >>> translate(["A man rides a bicycle."], num_beams=5)
    ['Ein Mann fährt Fahrrad.']
    """

    def __init__(self, model: Any, tokenizer: Any = None, name: str = "") -> None:
        """Takes a model (with an adapter, quantised) and its tokenizer in memory, or the `Parts` of a system.

        Raises: UserError where one of the two is missing, or they do not belong together.
        """
        self.name = name
        self._choosers: dict[Any, Any] = {}
        self.parts = model if isinstance(model, Parts) else parts_in_memory(model, tokenizer)

    def chooser(self, options: DecodingOptions) -> MinimumRisk | Reranker | None:
        """Returns the chooser among a sentence's candidates, loaded once; None: the search's best is taken."""
        device = str(self.model.device)
        key: tuple[Any, ...]
        make: Callable[[], MinimumRisk | Reranker]
        if options.mbr:
            utility, language = options.utility or "chrf", options.target_language
            key, make = (utility, language), partial(MinimumRisk, utility, device, language)
        elif options.rerank:
            source, target = direction_of(self.name) or (None, None)  # of a model that is not told them
            languages = options.source_language or source, options.target_language or target
            content: Any = options.rerank
            key, make = (digest(content), *languages), partial(Reranker, content, self.name, device, languages)
        else:
            return None
        if key not in self._choosers:
            self._choosers[key] = make()
        return self._choosers[key]

    @property
    def model(self) -> Any:
        """Returns the model that translates; another one may be put in its place."""
        return self.parts.model

    @model.setter
    def model(self, model: Any) -> None:
        self.parts = self.parts._replace(model=model)

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        device: str | None = None,
        dtype: str = "auto",
        *,
        fast: bool = True,
        **options: Any,
    ) -> TranslationPipeline:
        """Loads a local folder or a Hub name; `options` go to Transformers (revision, trust_remote_code...).

        Args:
            device: default: a GPU where there is one, but a CPU for int8.
            dtype: auto (as saved), float32, bfloat16, float16; int8: the weights of linear layers rounded.
            fast: a MarianMTModel, M2M100, NLLB, BART or mBART becomes this package's baseline, as by import_model, with
                the same outputs, and T5 and MADLAD are searched by the fast loop; False leaves it as it is.

        Raises: UserError when it cannot be loaded.
        """
        return cls(load(str(name), device, dtype, fast=fast, **options), None, str(name))

    @property
    def languages(self) -> list[str]:
        """Returns the codes that source_language and target_language may be; none for a model of one pair."""
        return list(self.model.config.languages) if has_modules(self.model) else language_codes(self.parts.source)

    def __call__(self, texts: str | Iterable[str], decoding: DecodingOptions = USUAL, **options: Any) -> Any:
        """Translates one text or many; options are fields of DecodingOptions (or `decoding`), others go to generate().

        Returns a string for each text (one string for one string). With `num_return_sequences=n`, a list of n
        Hypothesis for each text instead, best first; with `alignments=True` too (of one, unless n is given). Empty
        texts stay empty; order is kept.

        `target_prefix` may be a list, one for each text, and so may `source_language` and `target_language`: texts of
        one pair are translated together. What generate() takes a row of for each text (`decoder_input_ids`), has the
        rows in the texts' order.
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
        """Scores a given translation of each text, taken whole, as a search would score it.

        options: languages, length_penalty and length_normalization.
        Raises: UserError for other numbers of texts, and texts longer than the model reads.
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
        """Translates each text between its own two languages, in order."""
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
        """Translates without holding everything in memory: results come in order, after every `window` texts.

        `window=1` gives each translation before the next text is read; larger windows fill batches better, and on a GPU
        the next one is read while it translates.
        """
        iterator = iter(_checked(texts))
        groups = iter(lambda: list(islice(iterator, window)), [])
        return self._groups(groups, USUAL.with_keywords(options), read_ahead=window > 1)

    def translate_lines(
        self,
        texts: Sequence[str],
        first_line: int = 1,
        update: Callable[[int], Any] = lambda done: None,
        decoding: DecodingOptions = USUAL,
        **options: Any,
    ) -> list[Hypothesis]:
        """Returns the best hypothesis of each text; they are lines `first_line` and so on of something longer.

        With `draws="text"` and a seed a line's draws are the same however the lines are cut up into calls. `update` is
        called with the number of texts done. Scores and log probabilities are 0 unless num_return_sequences=1 is
        given: they cost a pass through the model.
        """
        call = TranslationCall(self, decoding.with_keywords(options), first_line)
        return [best[0] for best in call.translate(texts, first_line, update)]

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
    """A function that adds a column of translations to batches of columns, {name: list or numpy array}, for `datasets`
    and Ray Data.

    >>> dataset.map(Translate("runs/demo/average", num_beams=5), batched=True)
    >>> dataset.map_batches(Translate, fn_constructor_args=["runs/demo/average"], concurrency=4)

    The model is loaded at the first batch, once a process. A pickled Translate holds no model, only its name, the
    options and a digest of the model's files, by which `datasets` knows whether it did this before.

    Args:
        model: a folder or a Hub name.
        column: of the texts; None: "text", or the only column of texts.
        into: the new column, which may be `column` itself. A text for each text, or with num_return_sequences the list
            of its translations, best first. Empty texts stay empty, None stays None.
        device, dtype, revision, trust_remote_code: as in TranslationPipeline.from_pretrained.
        options: the fields of DecodingOptions, others go to generate().

    Raises: UserError for options that cannot be, and later for a model or a batch that cannot be read.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        column: str | None = None,
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
        """Returns the batch and its translations."""
        column = self._column(batch)
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

    def _column(self, batch: Mapping[str, Any]) -> str:
        if self.column is not None and self.column not in batch:
            near = suggest(self.column, batch)
            raise UserError(f"column: the batch has no {self.column!r}{near}; it has {', '.join(batch)}.")
        if self.column is not None or COLUMN in batch:
            return self.column or COLUMN
        of_texts = [name for name in batch if all(text is None or isinstance(text, str) for text in batch[name])]
        if len(of_texts) != 1:
            raise UserError(f"column: say which one holds the texts; the batch has {', '.join(batch) or 'none'}.")
        return of_texts[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "content": self.content}

    @cached_property
    def content(self) -> str:
        """Returns a digest of the model's files in a folder, or the commit of what a name on the Hub means."""
        folder = fetch_small_files(self.model, revision=self.loading.get("revision"))
        return digest(sha256_of_files(folder, MODEL_FILES)) if Path(self.model).is_dir() else folder.name


@lru_cache(maxsize=4)
def _loaded(model: str, content: str, **loading: Any) -> TranslationPipeline:
    return TranslationPipeline.from_pretrained(model, **loading)


def _checked(texts: Any) -> Iterable[str]:
    """Returns the texts. Raises: UserError for what is neither a text nor several."""
    if isinstance(texts, Mapping | bytes) or not isinstance(texts, Iterable):
        raise UserError(f"texts: give a string or several, not an object of type {type(texts).__name__}.")
    return [texts] if isinstance(texts, str) else texts


@contextmanager
def progress_bar(total: int | None, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Context manager: a bar on standard error, if that is a terminal; yields a function that advances it."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        yield partial(bar.advance, bar.add_task("", total=total))
