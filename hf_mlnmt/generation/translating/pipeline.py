"""TranslationPipeline: texts in, translations out, for our models and Marian, M2M100/NLLB, mBART and T5.

1. A text is cut at line ends, with split="sentences" (the verb's default) into sentences, and what is too long to fit
   (segments.py).
2. The pieces get what a direction puts before them and are encoded (directions.py).
3. Batches, the longest pieces first, go through model.generate() (batches.py), or CTranslate2 where it is asked for by
   name (ctranslate2.py). With `mbr` the best of the samples is chosen (minimum_risk.py).
4. Ids become text, with confidences if they are asked for (confidence.py); pieces are joined (`together`).

Draws with `draws="text"` follow from (seed, text, piece, position) alone, whatever batch a text is in.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice, repeat
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    LogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hf_mlnmt.common.errors import OptionError, UserError, suggest
from hf_mlnmt.common.languages import direction_of
from hf_mlnmt.common.made_from import digest
from hf_mlnmt.data.placeholders import Kept, Part, replaced
from hf_mlnmt.data.shuffling import mixed
from hf_mlnmt.data.tokenizer import EXPECTS, decode, own_copy
from hf_mlnmt.data.words import is_unspaced, is_visible
from hf_mlnmt.generation.choosing.confidence import Calibration
from hf_mlnmt.generation.choosing.minimum_risk import MinimumRisk
from hf_mlnmt.generation.choosing.reranking import Reranker, coverage_of, given_translations
from hf_mlnmt.generation.constraints.lexical_constraints import (
    Asked,
    Demand,
    ForbiddenPhrases,
    NextWords,
    PrefixProcessor,
    Terms,
    WholeParts,
    as_word,
    constraints_of,
    is_met,
    phrases_of,
    spelling_of,
    times_in,
)
from hf_mlnmt.generation.constraints.linked import KeptPart, Linked, filled
from hf_mlnmt.generation.translating.alignments import (
    Link,
    SourceAttention,
    joined,
    word_links,
    words_of_source,
    words_of_target,
)
from hf_mlnmt.generation.translating.batches import (
    Generated,
    arguments_of_texts,
    attention_over_source,
    batches_by_tokens,
    generate,
    generate_joined,
    log_probabilities_of,
    pad,
    rows_by_text,
    runs_alone,
    sentences_that_fit,
)
from hf_mlnmt.generation.translating.ctranslate2 import CTranslate2Search, installed
from hf_mlnmt.generation.translating.directions import (
    TextEncoder,
    code_tokens,
    direction,
    has_modules,
    language_codes,
    pair_of,
    source_limit,
)
from hf_mlnmt.generation.translating.loading import Parts, load, parts_in_memory
from hf_mlnmt.generation.translating.options import (
    FEATURES_OF_FUSED,
    OF_TEXTS,
    DecodingOptions,
    forced_first,
    longest_translation,
)
from hf_mlnmt.generation.translating.segments import Piece, join, sentences_of, split_lines
from hf_mlnmt.modeling.releases import PREFIX_BY_ROW
from hf_mlnmt.search.rules import Abandon, Constraints, Drafts, TopNSigma
from hf_mlnmt.zoo.systems import positions_of

logger = logging.getLogger(__name__)
ENGINES = ("torch", "ctranslate2")
LOOKED_AT = 50  # translations of a call whose scores say whether the texts are far from what the model knows
NAMES = ("source_language", "target_language")
USUAL = DecodingOptions()
LONGEST_WORD = 24  # tokens
# Options of a search for translations that one for words does not have.
OF_BEAMS = ("recombine", "num_beam_groups", "diversity_penalty", "min_new_tokens", "max_length")
PART = 128  # texts that are cut and encoded in one go beside a search


class TextDraws(LogitsProcessor):
    """Draws of the next tokens, each by its row's own number in [0, 1); greedy search then has nothing to choose.

    The token is the first one at which the cumulated probabilities pass the number (inversion): one number is drawn a
    token, not one for each entry of the vocabulary. The chosen token's score is infinite.

    places: (number of the text, number of the piece in it) of each row.
    """

    def __init__(
        self,
        seed: int,
        places: Sequence[tuple[int, int]],
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> None:
        numbers = np.array(places, np.uint64).reshape(-1, 2)
        self.keys = mixed(mixed(mixed(np.uint64(seed)) + numbers[:, 0]) + numbers[:, 1])  # (rows,)
        self.warpers = LogitsProcessorList()
        if temperature is not None and temperature != 1:
            self.warpers.append(TemperatureLogitsWarper(temperature))
        if top_k:
            self.warpers.append(TopKLogitsWarper(top_k))
        if top_p is not None and top_p < 1:
            self.warpers.append(TopPLogitsWarper(top_p))

    def __call__(self, input_ids: Any, scores: Any) -> Tensor:
        """Returns scores (rows, vocabulary), those of the drawn tokens infinite; input_ids: (rows, length)."""
        sums = self.warpers(input_ids, scores).softmax(dim=-1).to(torch.float64).cumsum(dim=-1)  # (rows, vocabulary)
        numbers = torch.from_numpy(unit_interval(self.keys, input_ids.shape[1])).to(sums.device)  # (rows,)
        tokens = torch.searchsorted(sums, numbers.unsqueeze(-1) * sums[:, -1:], right=True)  # (rows, 1)
        return scores.scatter(1, tokens.clamp(max=scores.shape[1] - 1), torch.inf)

    def keep_rows(self, rows: Tensor) -> None:
        """Keeps these rows alone: sentences that have ended leave the search."""
        self.keys = self.keys[rows.cpu().numpy()]


def unit_interval(keys: np.ndarray, position: int) -> np.ndarray:
    """Returns a number in [0, 1) for each key at a position of its text: float64 (keys,), of 53 bits."""
    return (mixed(keys + np.uint64(position)) >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True)
class Hypothesis:
    """A translation of an n-best list.

    `log_probability`: natural logarithm, summed over `length` subwords (end-of-sentence counted); for a fused model
    with sequence-level normalization the sum of its scores. `score`: that, divided by the length normalisation.
    `finished`: it ended by itself, not at the length limit. `alignment`, where it was asked for: (word of the source,
    word of the translation), counted from 0, ascending. `confidence`, of the translation, and `word_confidences`, of
    each of its words, where they were asked for: 0 to 1.
    """

    text: str
    score: float
    log_probability: float
    length: int
    finished: bool = True
    alignment: tuple[Link, ...] | None = None
    confidence: float | None = None
    word_confidences: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Alternative(Hypothesis):
    """The translation with one of the likeliest next words behind a prefix, and the word's probability there.

    `word` is whole: the prefix's last one, completed, unless white space ends it; "" where the translation ends. In a
    script without spaces it is a token's characters.
    """

    word: str = ""
    probability: float = 0.0


@dataclass(frozen=True)
class Scored(Hypothesis):
    """A translation that was given, with its tokens, the end among them, and ln P of each."""

    tokens: tuple[str, ...] = ()
    token_log_probabilities: tuple[float, ...] = ()


@dataclass(frozen=True)
class Candidate(Hypothesis):
    """A hypothesis with the values of a reranker's features (reranking.py)."""

    features: tuple[float, ...] = ()


def check_engine(engine: str) -> None:
    """Raises UserError for an engine that is unknown or not installed."""
    if engine not in ENGINES:
        raise UserError(f"engine {engine!r}: unknown{suggest(engine, ENGINES)}; known: {', '.join(ENGINES)}.")
    if engine == "ctranslate2" and not installed():
        raise UserError("engine 'ctranslate2' needs CTranslate2: pip install 'hf-mlnmt[export]'.")


class TranslationPipeline:
    """A loaded model that translates texts.

    `engine`: "torch" (generate()) or "ctranslate2" (by its own rules; see ctranslate2.py).

    >>> translate = TranslationPipeline.from_pretrained("runs/multi30k/average")
    >>> translate(["A man rides a bicycle."], num_beams=5)
    ['Ein Mann fährt Fahrrad.']
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, name: str = "", engine: str = "torch", rounded: bool = False
    ) -> None:
        """Takes a model (with an adapter, quantised) and its tokenizer in memory, or the `Parts` of a system.

        `rounded`: CTranslate2 shall round weights to int8, which are in float32.

        Raises: UserError where one of the two is missing, or they do not belong together.
        """
        check_engine(engine)
        self.name, self.engine, self.rounded = name, engine, rounded
        self._choosers: dict[Any, Any] = {}
        self.take(model if isinstance(model, Parts) else parts_in_memory(model, tokenizer))

    def take(self, parts: Parts) -> None:
        """Takes these to translate with from now on."""
        self.parts, self.has_warned = parts, False  # of texts that are far from what the model knows
        self.run_batch: Callable[..., list[list[Generated]]] = partial(generate, parts)
        if self.engine == "ctranslate2":
            self.run_batch = CTranslate2Search(parts, self.rounded, self.name or "the model")

    def minimum_risk(self, options: DecodingOptions, candidates: int) -> MinimumRisk:
        """Returns what chooses by a utility, whose models are loaded and whose command is started once."""
        utility, language = options.utility or "chrf", options.target_language
        made = self._kept(
            (utility, language), lambda: MinimumRisk(utility, device=str(self.model.device), language=language)
        )
        made.check_memory(candidates)
        return made

    def reranker(self, options: DecodingOptions) -> Reranker:
        """Returns what chooses by features, whose models are loaded and whose commands are started once."""
        source, target = direction_of(self.name) or (None, None)  # of a model that is not told them
        languages = options.source_language or source, options.target_language or target
        device = str(self.model.device)
        content: Any = options.rerank
        return self._kept((digest(content), *languages), lambda: Reranker(content, self.name, device, languages))

    def _kept(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._choosers:
            self._choosers[key] = make()
        return self._choosers[key]

    @property
    def model(self) -> Any:
        """Returns the model that translates; another one may be put in its place."""
        return self.parts.model

    @model.setter
    def model(self, model: Any) -> None:
        self.take(self.parts._replace(model=model))

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        device: str | None = None,
        dtype: str = "auto",
        *,
        engine: str = "torch",
        fast: bool = True,
        **options: Any,
    ) -> TranslationPipeline:
        """Loads a local folder or a Hub name; `options` go to Transformers (revision, trust_remote_code...).

        Args:
            device: default: a GPU where there is one, but a CPU for int8.
            dtype: auto (as saved), float32, bfloat16, float16; int8: the weights of linear layers rounded.
            engine: "torch" or "ctranslate2".
            fast: a MarianMTModel, M2M100, NLLB, BART or mBART becomes this package's baseline, as by import_model, with
                the same outputs; False leaves it as it is.

        Raises: UserError when it cannot be loaded, or the engine that is named cannot run it.
        """
        check_engine(engine)
        rounded = dtype == "int8" and engine == "ctranslate2"  # which rounds by itself, on a CPU
        device, dtype = (device or "cpu", "float32") if rounded else (device, dtype)
        return cls(load(str(name), device, dtype, fast=fast, **options), None, str(name), engine, rounded)

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
        """Returns what the model makes of a given translation of each text, taken whole, as a search would score it.

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
            score = total / penalty.divisor(len(ids) + forced)
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


def of_texts(options: DecodingOptions) -> dict[str, Any]:
    """Returns the options that may be a list, one for each text."""
    return {name: getattr(options, name) for name in OF_TEXTS}


def _checked(texts: Any) -> Iterable[str]:
    """Returns the texts. Raises: UserError for what is neither a text nor several."""
    if isinstance(texts, Mapping | bytes) or not isinstance(texts, Iterable):
        raise UserError(f"texts: give a string or several, not an object of type {type(texts).__name__}.")
    return [texts] if isinstance(texts, str) else texts


@contextmanager
def progress_bar(total: int | None, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Shows a bar on standard error, where that is a terminal; yields a function that moves it by a number."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        yield partial(bar.advance, bar.add_task("", total=total))


class Input(NamedTuple):
    """A piece of a text that is searched: its ids, the line and the number of the piece in it, its own text, where
    tokens may stand for the parts of the `source` that are `kept`; translations of terms that are `chosen` for all."""

    ids: list[int]
    line: int
    number: int
    text: str
    source: str = ""
    kept: tuple[KeptPart, ...] = ()
    chosen: Mapping[str, list[str]] = MappingProxyType({})
    pieces: int = 1  # that the text is cut into
    begins: Asked | None = None  # in the place of a target_prefix


class CutText(NamedTuple):
    """A text in the pieces that are translated alone; `inputs`: those that have something to translate."""

    line: int
    pieces: list[Piece]
    inputs: list[Input]

    def on_line(self, line: int) -> CutText:
        """Returns the same text as line `line`."""
        return CutText(line, self.pieces, [piece._replace(line=line) for piece in self.inputs])


class TranslationCall:
    """The settings of a call, worked out once: direction, encoder, arguments of generate().

    `translate` does all of it: it cuts texts, searches batches of their pieces (`most` at once), puts texts together.
    """

    def __init__(self, pipeline: TranslationPipeline, options: DecodingOptions, first_line: int = 1):
        self.pipeline, self.first_line, self.options, self.name = pipeline, first_line, options, pipeline.name
        parts, self.run_batch = pipeline.parts, pipeline.run_batch
        # A prefix of the caller's own stands in for the languages.
        languages = (None, None) if options.prefix else (options.source_language, options.target_language)
        if has_modules(parts.model):
            pair = pair_of(parts.model, *languages, self.name)
            named = pair.config.source_languages[0], pair.config.target_languages[0]
            parts, languages = parts.of(*named)._replace(model=pair), (None, None)
            self.run_batch = partial(generate, parts)
        self.parts = parts
        way = direction(parts.model, parts.source, *languages, self.name)
        settings = parts.model.generation_config
        trained = getattr(settings, "max_source_tokens", None) if options.split_long else None
        limit = source_limit(parts.model, parts.source, options.max_source_tokens or trained)
        self.encoder = TextEncoder(parts.tokenizers, way, options.prefix, limit)
        self.arguments = options.generation_arguments(parts.model, way)
        self.longest = longest_translation(parts.model, self.arguments)
        self.searched = self.arguments["num_return_sequences"]  # for each sentence
        self.minimum_risk = pipeline.minimum_risk(options, self.searched) if options.mbr else None
        self.reranker = pipeline.reranker(options) if options.rerank else None
        chosen = self.minimum_risk or self.reranker
        self.count = options.num_return_sequences or 1 if chosen else self.searched
        width = max(self.arguments["num_beams"], self.searched, 2) * (options.alternatives or 1)
        self.most = sentences_that_fit(width, parts.model)
        if options.alternatives and isinstance(self.run_batch, CTranslate2Search):
            raise OptionError("alternatives: the engine ctranslate2 does not know them; leave --engine out.")
        self.penalty = options.penalty(parts.model, way)
        self.skipped = int(forced_first(parts.model, way))
        ends = settings.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])
        self.empty = Hypothesis("", 0.0, 0.0, 0, alignment=() if options.alignments else None)
        # Nobody else calls it, as a thread may.
        self.target = own_copy(parts.target) if self.ahead else parts.target
        self.codes, self.processing = tuple(code_tokens(parts.source)), parts.target_processing
        self.calibration = Calibration.of(settings)
        if options.confidence and self.calibration is None:
            raise OptionError(f"confidence: {self.name or 'the model'} is not calibrated: hf-mlnmt model calibrate.")
        self.keep = Kept(options.keep) if options.keep else None
        known = getattr(settings, "placeholders", None) or {}
        self.placeholders = {pattern: token for token, pattern in known.items()}  # that the model was trained with
        self.put_back: list[int] = []  # numbers of lines
        self.unmet: list[tuple[int, str]] = []  # numbers of lines, terms
        self.quotes = True  # `report` names what a user gave, which a server's log does not
        self.looked_at: list[float] = []  # scores of the first translations
        self.chosen: dict[str, list[str]] = {}  # translations of terms that stay, of all that this call translates
        self.unfinished = 0
        self.typed_codes: list[int] = []  # numbers of lines
        self.of_several: list[int] = []  # numbers of lines
        if (said := parts.source.init_kwargs.get(EXPECTS)) is not None:
            logger.warning("%s expects text that is cut: %s", self.name or "the model", said)
        if settings.do_sample and not options.do_sample:
            logger.warning(
                "the model's generation_config.json says do_sample, which is not done unless a call says so too: "
                "do_sample=True (--sample)"
            )
        asked = options.length_penalty is not None or options.length_normalization is not None
        if asked and self.arguments["num_beams"] == 1 and not options.in_lists:
            logger.warning("length_penalty and length_normalization do nothing with one beam: say num_beams too")

    @cached_property
    def ahead(self) -> bool:
        """Tells whether texts are encoded and results are read beside the search: on a device that computes alone."""
        return runs_alone(self.parts.model) and not isinstance(self.run_batch, CTranslate2Search)

    def translate_groups(
        self,
        groups: Iterable[Sequence[str]],
        update: Callable[[int], Any],
        first_line: int = 1,
        done: int = 0,
        read_ahead: bool = False,
    ) -> Iterator[tuple[int, Sequence[str], list[list[Hypothesis]]]]:
        """Yields the line of each group's first text, the group, and its n-best lists; then warns, as `report`.

        The first `done` texts, whole groups of them, are passed over. read_ahead: where the device computes alone, the
        next group is taken and encoded meanwhile, and results are read while that is searched.
        """
        if self.options.seed is not None:
            torch.manual_seed(self.options.seed)
        numbered = _numbered(groups, first_line, done)
        if read_ahead and self.ahead:
            yield from self._translated(numbered, update, True)
        else:
            yield from ((line, texts, self.translate(texts, line, update)) for line, texts in numbered)
        self.report()

    def translate(self, texts: Sequence[str], first_line: int, update: Callable[[int], Any]) -> list[list[Hypothesis]]:
        """Returns n hypotheses for each text, best first; `update` is called with the number of texts done."""
        ((_, _, results),) = self._translated([(first_line, texts)], update)
        return results

    def _translated(
        self, groups: Iterable[tuple[int, Sequence[str]]], update: Callable[[int], Any], read_ahead: bool = False
    ) -> Iterator[tuple[int, Sequence[str], list[list[Hypothesis]]]]:
        late: Callable[[], Any] | None = None  # reads the results of the group before
        with ThreadPoolExecutor(1) if self.ahead else AtOnce() as beside:
            cut_ahead = ((*group, beside.submit(self._cut_in_parts, *group).result) for group in groups)
            read: Callable[[], Any] | None
            try:
                for line, texts, cut in _one_ahead(cut_ahead) if read_ahead else cut_ahead:
                    results: dict[tuple[int, int], Callable[[], list[Hypothesis]]] = {}  # by line, number of the piece
                    pieces = cut()
                    for count in self._search_all(pieces, results, beside):
                        update(count)
                        if late is not None:
                            read, late = late, None
                            yield read()
                    read, late = late, partial(self._read, line, texts, pieces, results)
                    if not read_ahead:
                        read, late = late, None
                    if read is not None:
                        yield read()
            except (Exception, KeyboardInterrupt):
                if late is not None:  # what was found is not lost
                    yield late()
                raise
            if late is not None:
                yield late()

    def _cut_in_parts(self, first_line: int, texts: Sequence[str]) -> list[CutText]:
        """Returns `cut` of the texts; while a search runs in another thread it pauses after every PART texts."""
        if not self.ahead:
            return self.cut(texts, first_line)
        cut: list[CutText] = []
        for start in range(0, len(texts), PART):
            cut += self.cut(texts[start : start + PART], first_line + start)
            time.sleep(1e-4)
        return cut

    def _search_all(self, cut: Sequence[CutText], results: dict[Any, Any], beside: Any) -> Iterator[int]:
        """Searches all pieces in batches, fills in what returns the hypotheses of each, yields the texts begun."""
        pieces = [piece for text in cut for piece in text.inputs]
        for inputs in self.rounds(pieces, lambda piece: results[piece.line, piece.number]()[0].text, self.chosen):
            lengths = [len(piece.ids) for piece in inputs]
            for batch in batches_by_tokens(lengths, self.options.batch_tokens, self.most, self.ahead):
                chosen = [inputs[i] for i in batch]
                for piece, found in zip(chosen, self.search(chosen, beside=beside), strict=True):
                    results[piece.line, piece.number] = found
                yield sum(piece.number == 0 for piece in chosen)  # texts are counted at their first piece

    def rounds(
        self, pieces: Sequence[Input], translation_of: Callable[[Input], str], chosen: dict[str, list[str]]
    ) -> Iterator[Sequence[Input]]:
        """Yields pieces that can be searched together: all, or with terms_consistent as `Terms.rounds`."""
        if self.options.terms_consistent and self.terms:
            return self.terms.rounds(pieces, translation_of, chosen)
        return iter([pieces])

    def _read(
        self, line: int, texts: Sequence[str], cut: Sequence[CutText], results: Mapping[tuple[int, int], Any]
    ) -> tuple[int, Sequence[str], list[list[Hypothesis]]]:
        found = ({piece.number: results[text.line, piece.number]() for piece in text.inputs} for text in cut)
        return line, texts, [self.together(text, of_text) for text, of_text in zip(cut, found)]

    def cut(self, texts: Sequence[str], first_line: int) -> list[CutText]:
        """Cuts and encodes texts. Raises: UserError for what is no text."""
        sentences = self.options.split == "sentences"
        pieces, ids = self.encoder.segments(texts, self.options.split_long, first_line, sentences)
        places = ((line, *each) for line, of_text in enumerate(pieces, first_line) for each in enumerate(of_text))
        every = [Input(own, line, number, piece.text) for own, (line, number, piece) in zip(ids, places, strict=True)]
        cut, encoded = [], iter(self._with_kept(self.keep, every) if self.keep else every)
        for line, (text, of_text) in enumerate(zip(texts, pieces), first_line):
            if not sentences and any(len(sentences_of(piece)) > 1 for piece in of_text):
                self.of_several.append(line)
            if text.lstrip().startswith(self.codes):
                self.typed_codes.append(line)
            self._check_prefix(line, len(of_text))
            inputs = [next(encoded)._replace(pieces=len(of_text)) for _ in of_text]
            # A piece without a token of its own (stray control characters), or that shows nothing, has no translation.
            searched = [piece for piece in inputs if len(piece.ids) > self.encoder.overhead and is_visible(piece.text)]
            cut.append(CutText(line, of_text, searched))
        return cut

    def _with_kept(self, find: Kept, inputs: list[Input]) -> list[Input]:
        """Returns the pieces with the parts that are kept; tokens stand for those of which the model knows tokens."""
        marked: list[Input] = []
        for piece, parts in zip(inputs, find([piece.text for piece in inputs]), strict=True):
            given = self._of_line("bad_phrases", piece.line)
            bad = [text for each in phrases_of(given, "bad_phrases") for text in each] if given else []
            kept = [part for part in parts if not any(re.search(as_word(text), part.text) for text in bad)]
            if len(kept) < len(parts):
                logger.warning("line %d: a part is not kept, for it has a phrase that must not be there", piece.line)
            if not any(self._of_line(name, piece.line) for name in OF_TEXTS):  # which may name what a token stands for
                kept = [part._replace(token=self._token_of(part, piece.text)) for part in kept]
            marked.append(piece._replace(source=piece.text, text=replaced(piece.text, kept)))
            if marked[-1].text != piece.text:
                (ids,) = self.encoder([marked[-1].text])
                if self.encoder.limit is not None and len(ids) > self.encoder.limit:
                    kept, ids = [part._replace(token="") for part in kept], piece.ids
                marked[-1] = marked[-1]._replace(ids=ids, text=replaced(piece.text, kept))
            marked[-1] = marked[-1]._replace(kept=tuple(self._kept_part(part, piece.text) for part in kept))
        return marked

    def _token_of(self, part: Part, text: str) -> str:
        """Returns the token that the model was trained with for such a part; "" for none, or where the text has it."""
        token = self.placeholders.get(part.pattern, "")
        return "" if token in text or len(part.text.split()) > 1 else token

    def _kept_part(self, part: Part, source: str) -> KeptPart:
        spelling, text = spelling_of(self.parts.target), part.token or part.text
        ids = spelling.inside(text, self.processing, part.start > 0 and not source[part.start - 1].isspace())
        if ids and not part.token:
            text = self.processing.undo(decode(spelling.tokenizer, ids[:1])[0]).strip()
        return KeptPart(part, text, ids)

    def forget_lines(self) -> None:
        """Drops what `report` would say of the lines so far."""
        self.typed_codes.clear()
        self.of_several.clear()
        self.put_back.clear()
        self.encoder.in_parts.clear()

    def report(self) -> None:
        """Warns once about language codes in the text, lines of several sentences, terms, and the length limit."""
        counted = Counter(name for _, name in sorted(self.unmet)).most_common()
        names = [f"{name} ({count})" if count > 1 else name for name, count in counted[:20]]
        names += ["..."] * (len(counted) > 20)
        for lines, what, hint in (
            (
                self.typed_codes,
                "source lines that begin with a language code",
                "a code in the text does not choose the language, target_language does",
            ),
            (
                self.of_several,
                "lines that hold several sentences",
                "a model of single sentences may leave all but one out; split='sentences' (--split sentences) "
                "translates each",
            ),
            (
                self.encoder.in_parts,
                f"lines with a sentence that is longer than the {self.encoder.limit} tokens the model reads at once",
                "it is translated in parts, cut at commas, between words or characters",
            ),
            (
                self.put_back,
                "lines with a part that the search did not keep, or the vocabulary cannot spell",
                "it was put in where the alignment says",
            ),
            (
                sorted(line for line, _ in self.unmet),
                "terms that are not met",
                f"{', '.join(names)}: they cannot be spelt, or found no place, or one behind the sentence only",
            ),
        ):
            if lines:
                logger.warning("%s: %d, the first is line %d; %s", what, len(lines), lines[0], hint)
        if self.calibration is not None and self.looked_at:
            usual = self.calibration.usual
            now = sorted(self.looked_at)[len(self.looked_at) // 2]
            if now < self.calibration.far and not self.pipeline.has_warned:
                self.pipeline.has_warned = True
                logger.warning(
                    "these texts are far from what the model was made for: ln P of a subword is %.2f here and %.2f on "
                    "its development set; the translations may well be nonsense (what it is for, its card says)",
                    now,
                    usual,
                )
        if self.unfinished:
            more = self.longest < (positions_of(self.parts.model.config) or math.inf) - 1
            remedy = "raise max_new_tokens" if more else "the model has no more positions"
            logger.warning(
                "translations that reached the length limit and are cut there: %d; %s", self.unfinished, remedy
            )

    def search(
        self, inputs: Sequence[Input], abandoned: Callable[[], bool] | None = None, beside: Any = None
    ) -> list[Any]:
        """Returns the hypotheses of each piece, best first, of one batch; it is halved where memory does not suffice.

        Args:
            beside: an executor that reads the results; of each piece a function is returned that waits for them.
            abandoned: whether nobody waits for them any more; asked at every step of generate() (on a GPU, before each
                batch), whose search ends with Abandoned then. CTranslate2's does not ask.
        """
        try:
            search = self._alternatives if self.options.alternatives else self._with_terms
            return search(inputs, abandoned, beside)
        except torch.OutOfMemoryError as error:
            if len(inputs) == 1:
                raise UserError(
                    f"out of memory with one input of {len(inputs[0].ids)} tokens: use fewer beams, "
                    "a smaller max_source_tokens, or the CPU."
                ) from error
        logger.warning("out of memory with a batch of %d: going on with half; lower batch_tokens", len(inputs))
        half = len(inputs) // 2
        return self.search(inputs[:half], abandoned, beside) + self.search(inputs[half:], abandoned, beside)

    @cached_property
    def takes_newcomers(self) -> bool:
        """Tells whether pieces can join a search that runs: on a device that computes alone, by `generate` and with
        nothing that is of a piece, or needs a second pass."""
        options, chosen = self.options, self.minimum_risk or self.reranker
        of_pieces = options.alternatives or options.terms or options.draft or any(of_texts(options).values())
        rules = options.draws_by_text or options.do_sample or options.top_n_sigma is not None or options.generate
        more = (
            options.in_lists or options.alignments or self.keep or chosen or self.arguments["num_return_sequences"] > 1
        )
        return self.ahead and not (of_pieces or rules or more or rows_by_text(self.arguments))

    def search_joined(
        self,
        inputs: Sequence[Input],
        room: int,
        abandoned: Callable[[], bool],
        newcomers: Callable[[int], Sequence[Input]],
        ended: Callable[[list[Input], list[list[Hypothesis]]], None],
    ) -> None:
        """Searches pieces, and those that come meanwhile, at most `room` at once, where `takes_newcomers`.

        newcomers: is asked between steps for so many pieces at most. ended: is told what was found of some.
        """
        pieces = list(inputs)

        def more(free: int) -> list[list[int]]:
            pieces.extend(new := newcomers(free))
            return [piece.ids for piece in new]

        def tell(numbers: list[int], rows: list[Generated]) -> None:
            ended([pieces[number] for number in numbers], self._decode([[row] for row in rows]))

        generate_joined(self.parts, [each.ids for each in inputs], self.arguments, abandoned, room, more, tell)

    def _alternatives(self, inputs: Sequence[Input], abandoned: Callable[[], bool] | None, beside: Any) -> list[Any]:
        """Searches for the next words of each piece, then for the translation with each."""
        found = self._next_words(inputs, abandoned)
        with_word = [piece._replace(begins=asked) for piece, words in zip(inputs, found) for _, _, asked in words]
        best = iter(self._with_terms(with_word, abandoned, None) if with_word else [])
        lists = [
            [Alternative(**vars(next(best)[0]), word=word, probability=share) for word, share, _ in words]
            for words in found
        ]
        return lists if beside is None else [partial(list, ranked) for ranked in lists]

    @torch.inference_mode()
    def _next_words(
        self, inputs: Sequence[Input], abandoned: Callable[[], bool] | None
    ) -> list[list[tuple[str, float, Asked]]]:
        """Returns of each piece its likeliest next words, their probabilities, and the prefixes with them.

        A beam search over subwords, twice as wide as words are wanted, that ends where the words do. Subwords that
        spell the same word count together.
        """
        model, spelling, wanted = self.parts.model, spelling_of(self.parts.target), self.options.alternatives or 0
        asked, width = [self._beginning(piece) for piece in inputs], max(2 * wanted, 4)
        given, ends = (asked, self.skipped), [token for token in self.ends if token is not None]
        rules = [PrefixProcessor(spelling, *given, ends), NextWords(spelling, *given, ends)]
        rules[:0] = [*self.options.generate.get("logits_processor", []), *self._forbidden(inputs)]
        numbers = [piece.line - self.first_line for piece in inputs]
        arguments = {
            **{name: value for name, value in self.arguments.items() if name not in OF_BEAMS},
            **{"num_beams": width, "num_return_sequences": width, "length_penalty": 0.0, "early_stopping": "never"},
            "max_new_tokens": min(self.longest, self.skipped + max(len(each.ids) for each in asked) + LONGEST_WORD),
            "logits_processor": LogitsProcessorList(rules),
            "return_dict_in_generate": True,
        }
        if not hasattr(model, "logits_are_scores"):
            arguments["output_scores"] = True  # without which Transformers' loop keeps the sums for itself
        arguments = arguments_of_texts(arguments, numbers)
        if abandoned is not None:
            arguments["stopping_criteria"] = [*self.options.generate.get("stopping_criteria", []), Abandon(abandoned)]
        ids, mask = pad([piece.ids for piece in inputs], self.parts.source.pad_token_id or 0, model.device)
        output = model.generate(input_ids=ids, attention_mask=mask, **arguments)
        rows = output.sequences[:, 1 + self.skipped :].tolist()
        scores = output.sequences_scores.view(len(inputs), width).double().exp().tolist()
        return [
            self._words(each, rows[first * width : (first + 1) * width], scores[first])[:wanted]
            for first, each in enumerate(asked)
        ]

    def _words(
        self, asked: Asked, rows: Sequence[Sequence[int]], shares: Sequence[float]
    ) -> list[tuple[str, float, Asked]]:
        """Returns the words that rows of tokens are behind a prefix, the likeliest first, as `_next_words` does."""
        spelling, words = spelling_of(self.parts.target), dict[str, tuple[float, Asked]]()
        reader = NextWords(spelling, [asked], self.skipped, [])
        for ids, share in zip(rows, shares, strict=True):
            length = next((place for place, token in enumerate(ids) if token in self.ends), None)
            if length is None or length < len(asked.ids) or not share:
                continue  # it is no word yet
            tokens = list(ids[:length])
            spelt = reader.word(asked, spelling.spelt(tokens[len(asked.ids) :])) or ""
            usual = spelling.ids(spelling.spelt(tokens).decode(errors="replace").strip())
            if spelling.spelt(usual).strip() == spelling.spelt(tokens).strip():
                tokens = usual  # as the text of a prefix is read
            word, unspaced = self.processing.undo(spelt), is_unspaced(spelt)
            begins = Asked(tokens, b"" if unspaced else b" ") if spelt else Asked([*tokens, ids[length]], b"")
            before = words.get(word, (0.0, begins))
            words[word] = before[0] + share, before[1]
        total = sum(share for share, _ in words.values()) if asked.rest.strip() else 1.0
        ranked = [(word, share / total, begins) for word, (share, begins) in words.items()]
        return sorted(ranked, key=lambda each: -each[1])

    def _with_terms(self, inputs: Sequence[Input], abandoned: Callable[[], bool] | None, beside: Any) -> list[Any]:
        """Searches with what each input's translation must have where that can be met, else without."""
        asked, chosen = [self._asked(piece) for piece in inputs], self.minimum_risk or self.reranker
        if beside is not None and (any(asked) or self.options.alignments or chosen or self.keep):
            return [partial(list, found) for found in self._with_terms(inputs, abandoned, None)]
        if not any(asked):
            return self._searched(inputs, None, abandoned, beside)
        hypotheses = self._searched(inputs, asked, abandoned)
        if failed := [i for i, ranked in enumerate(hypotheses) if not ranked]:
            for i, ranked in zip(failed, self._searched([inputs[i] for i in failed], None, abandoned), strict=True):
                hypotheses[i] = ranked
        unmet: list[tuple[int, str]] = []
        for piece, demands, ranked in zip(inputs, asked, hypotheses, strict=True):
            terms = {each.name: map(self._shown, each.ids) for each in demands if each.name not in _times(piece)}
            unmet += [(piece.line, name) for name in terms if not is_met(piece.text, ranked[0].text, terms[name])]
        if self.quotes:
            self.unmet += unmet
        elif unmet:
            logger.warning("terms that are not met: %d", len(unmet))
        return hypotheses

    def _shown(self, ids: Sequence[int]) -> str:
        """Returns tokens as a translation shows them."""
        return self.processing.undo(spelling_of(self.parts.target).spelt(ids).decode(errors="replace").strip())

    def _asked(self, piece: Input) -> list[Demand]:
        """Returns what the translation of a piece must have: terms, phrases, parts that are kept and can be spelt."""
        terms = self.terms.of(piece.text, piece.chosen) if self.terms else {}
        demands = {name: Demand(name, ids) for name, ids in {**terms, **self._forced(piece)}.items()}
        spelt = {each.shown: each.ids for each in piece.kept if each.ids}
        return [*demands.values(), *(Demand(shown, ids, _times(piece)[shown]) for shown, ids in spelt.items())]

    def _forced(self, piece: Input) -> dict[str, list[list[int]]]:
        """Returns the phrases that the translation of a piece must have, each with its alternatives' tokens."""
        if not (given := self._of_line("force_phrases", piece.line)):
            return {}
        spelling, phrases = spelling_of(self.parts.target), phrases_of(given, f"force_phrases of line {piece.line}")
        return {
            " or ".join(each): [ids for text in each for ids in spelling.inside(text, self.processing)]
            for each in phrases
        }

    @cached_property
    def terms(self) -> Terms | None:
        """Returns the glossary, if there is one."""
        options = self.options
        if not options.terms:
            return None
        assert isinstance(options.terms, dict)  # DecodingOptions has read the file
        return Terms(options.terms, options.terms_ignore_case, spelling_of(self.parts.target), self.processing)

    def _searched(
        self,
        inputs: Sequence[Input],
        asked: list[list[Demand]] | None,
        abandoned: Callable[[], bool] | None,
        beside: Any = None,
    ) -> list[Any]:
        """Searches one batch for hypotheses that have all that is asked of their input; one without any gets []."""
        options, numbers = self.options, [piece.line - self.first_line for piece in inputs]
        draws = self.searched if PREFIX_BY_ROW and self.arguments["num_beams"] == 1 else 1
        arguments = arguments_of_texts(self.arguments, numbers, draws)
        rules: list[Any] = [*self._prefixes(inputs), *self._forbidden(inputs)]
        if asked is not None:
            rules.append(Constraints([constraints_of(demands) for demands in asked]))
        if any(piece.kept for piece in inputs):
            spelling, counts = spelling_of(self.parts.target), list(map(_times, inputs))
            rules.append(WholeParts(spelling, counts, self.ends, self.skipped, self.longest))
        if options.top_n_sigma is not None:
            rules.append(TopNSigma(options.top_n_sigma))
        if options.draft:
            rules.append(Drafts([self._draft(piece) for piece in inputs]))
        if options.draws_by_text:
            places = [(piece.line, piece.number) for piece in inputs]
            rules.append(TextDraws(options.seed or 0, places, options.temperature, options.top_k, options.top_p))
        if rules:
            others = options.generate.get("logits_processor", [])
            arguments["logits_processor"] = LogitsProcessorList([*others, *rules])
        if abandoned is not None and not isinstance(self.run_batch, CTranslate2Search):
            arguments["stopping_criteria"] = [*options.generate.get("stopping_criteria", []), Abandon(abandoned)]
        ids = [piece.ids for piece in inputs]
        rows = self.run_batch(ids, arguments, self.skipped, options.in_lists or self.reranker is not None)
        for row, demands in zip(rows, asked or [], strict=asked is not None):
            met = [row_ for row_ in row if all(times_in(row_.ids, each.ids) >= each.times for each in demands)]
            # The last one is repeated until there are n again; none is left if none has all terms.
            row[:] = met + met[-1:] * (len(row) - len(met))
        self._look_at(ids, rows, arguments)
        if beside is not None:
            read = beside.submit(self._decode, rows).result
            return [partial(_item, read, number) for number in range(len(rows))]
        hypotheses = self._decode(rows)
        if self.minimum_risk:
            rows, hypotheses = self._of_minimum_risk(self.minimum_risk, inputs, rows, hypotheses)
        if self.reranker:
            rows, hypotheses = self._reranked(self.reranker, inputs, rows, hypotheses, arguments)
        if options.alignments:
            hypotheses = self._aligned(inputs, rows, hypotheses, arguments)
        return self._restored(inputs, rows, hypotheses) if self.keep else hypotheses

    def _restored(
        self, inputs: Sequence[Input], rows: list[list[Generated]], hypotheses: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses with the parts that are kept as the source has them, by the alignment where it is not
        clear where: the same token stands for several, or the translation lacks one."""
        unclear = [
            i
            for i, piece in enumerate(inputs)
            if len({each.part.text for each in piece.kept}) > len(_times(piece))
            or any(filled(piece.source, each.text, piece.kept, ())[1] for each in hypotheses[i])
        ]
        if unclear and not self.options.alignments:
            some, numbers = [inputs[i] for i in unclear], [inputs[i].line - self.first_line for i in unclear]
            arguments = arguments_of_texts(self.arguments, numbers)
            with suppress(UserError):  # of a model whose attention says nothing, by positions
                aligned = self._aligned(some, [rows[i] for i in unclear], [hypotheses[i] for i in unclear], arguments)
                hypotheses = [*hypotheses]
                for i, of_input in zip(unclear, aligned, strict=True):
                    hypotheses[i] = of_input
        return [[self._with_parts(*pair) for pair in zip(repeat(piece), of)] for piece, of in zip(inputs, hypotheses)]

    def _with_parts(self, piece: Input, hypothesis: Hypothesis) -> Hypothesis:
        """Returns a hypothesis with the parts that are kept; those that it lacks are put in by its alignment."""
        if not piece.kept:
            return hypothesis
        text, missing = filled(piece.source, hypothesis.text, piece.kept, hypothesis.alignment or ())
        new = replace(hypothesis, text=text)
        if missing:
            self.put_back.append(piece.line)
            linked, own = Linked(piece.source, text, hypothesis.alignment), {each.part.text for each in piece.kept}
            places = [(each.part.text, each.part.start, each.part.end) for each in piece.kept]
            before = linked.put_back(missing, places, lambda word: [(part, 0, 0) for part in own if part in word])
            sure = hypothesis.word_confidences
            if sure is not None and len(before) == len(linked.target.split()):
                sure = tuple(1.0 if was is None else sure[was] for was in before)
            new = replace(new, text=linked.target, alignment=linked.links, word_confidences=sure)
        return new if self.options.alignments else replace(new, alignment=None)

    def _of_minimum_risk(
        self,
        minimum_risk: MinimumRisk,
        inputs: Sequence[Input],
        rows: list[list[Generated]],
        hypotheses: list[list[Hypothesis]],
    ) -> tuple[list[list[Generated]], list[list[Hypothesis]]]:
        """Chooses among the samples of each input; the score of a hypothesis is its expected utility."""
        chosen = [
            minimum_risk(piece.text, [sample.text for sample in samples], self.count)
            for piece, samples in zip(inputs, hypotheses, strict=True)
        ]
        kept = [[row[place] for place, _ in order] for row, order in zip(rows, chosen, strict=True)]
        scored = [
            [replace(samples[place], score=utility) for place, utility in order]
            for samples, order in zip(hypotheses, chosen, strict=True)
        ]
        return kept, scored

    def _reranked(
        self,
        reranker: Reranker,
        inputs: Sequence[Input],
        rows: list[list[Generated]],
        hypotheses: list[list[Hypothesis]],
        arguments: dict[str, Any],
    ) -> tuple[list[list[Generated]], list[list[Hypothesis]]]:
        """Gives the candidates of each input their features, and chooses among them unless that is done later."""
        own = self._own_features(reranker.names, [piece.ids for piece in inputs], rows, arguments)
        values = reranker.features([piece.text for piece in inputs], hypotheses, own)
        new = [
            [Candidate(**vars(each), features=tuple(row)) for each, row in zip(ranked, of_input.tolist(), strict=True)]
            for ranked, of_input in zip(hypotheses, values, strict=True)
        ]
        if reranker.by_document or reranker.keeps_all:
            return rows, [list(ranked) for ranked in new]
        chosen = [reranker.best(ranked, self.count) for ranked in new]
        kept = [[row[place] for place in places] for row, (places, _) in zip(rows, chosen, strict=True)]
        return kept, [ranked for _, ranked in chosen]

    def _own_features(
        self, names: Sequence[str], ids: list[list[int]], rows: list[list[Generated]], arguments: dict[str, Any]
    ) -> dict[str, list[float]]:
        """Returns the features, of all rows one after the other, for which the model reads each candidate once more."""
        own: dict[str, list[float]] = {}
        if "coverage" in names:
            weights = attention_over_source(self.attention, self.parts, ids, rows, arguments)
            own["coverage"] = [coverage_of(each) for of_input in weights for each in of_input]
        if not {*FEATURES_OF_FUSED} & {*names}:
            return own
        if getattr(self.parts.model.config, "normalization", None) != "sequence":
            named = " and ".join(FEATURES_OF_FUSED)
            raise UserError(f"{named}: of a fused model of sequence-level normalization alone.")
        flat = [each for row in rows for each in row]
        of_flat = [sequence for sequence, row in zip(ids, rows, strict=True) for _ in row]
        alone, both = (
            log_probabilities_of(self.parts, of_flat, flat, {**arguments, "alpha": 1.0, "beta": beta}, self.skipped)
            for beta in (0.0, 1.0)
        )
        return own | dict(zip(FEATURES_OF_FUSED, (alone, [b - a for a, b in zip(alone, both, strict=True)])))

    def _of_line(self, name: str, line: int) -> Any:
        """Returns an option of OF_TEXTS of a line, "" for none. Raises: UserError where there are fewer than lines."""
        given, number = getattr(self.options, name), line - self.first_line
        if given is None or isinstance(given, str):
            return given or ""
        if number >= len(given):
            raise OptionError(f"{name}: {len(given)} given, but there is a text {number + 1}: give one for each.")
        return given[number] or ""

    def _forbidden(self, inputs: Sequence[Input]) -> list[ForbiddenPhrases]:
        """Returns what keeps phrases out of translations."""
        lines = [piece.line for piece in inputs]
        given = [self._of_line("bad_phrases", line) for line in lines] if self.options.bad_phrases else []
        if not any(given):
            return []
        phrases = [
            [text for each in phrases_of(text, f"bad_phrases of line {line}") for text in each] if text else []
            for line, text in zip(lines, given, strict=True)
        ]
        return [ForbiddenPhrases(spelling_of(self.parts.target), phrases, self.ends, self.skipped, self.longest)]

    def _draft(self, piece: Input) -> list[int]:
        """Returns the tokens of a piece's draft: of a text in several pieces, those of its sentence."""
        text = self._of_line("draft", piece.line)
        if piece.pieces > 1:
            sentences = [sentence.text for line in split_lines(text) for sentence in sentences_of(line)]
            text = sentences[piece.number] if piece.number < len(sentences) else ""
        ids = spelling_of(self.parts.target).ids(" ".join(self.processing.apply(text).split()))
        first = self.arguments.get("forced_bos_token_id", self.parts.model.generation_config.forced_bos_token_id)
        return ([first] if self.skipped else []) + ids

    def _check_prefix(self, line: int, pieces: int) -> None:
        """Raises UserError for a prefix of several sentences where these are translated one by one, and for a phrase
        that must be in one of several pieces."""
        if pieces > 1 and self._of_line("force_phrases", line):
            raise OptionError(
                f"force_phrases of line {line}: its {pieces} sentences or parts are translated one by one, and none of "
                "them is named: give a sentence a line, or split='long' (--split long)."
            )
        if pieces > 1 and self.options.alternatives:
            raise OptionError(f"alternatives of line {line}: it has {pieces} sentences or parts: give one of them.")
        prefix = self._of_line("target_prefix", line)
        if (
            prefix
            and isinstance(prefix, str)
            and pieces > 1
            and sum(len(sentences_of(piece)) for piece in split_lines(prefix)) > 1
        ):
            raise OptionError(
                f"target_prefix of line {line}: holds several sentences, and the line's {pieces} sentences "
                "or parts are translated one by one: give what the first one's translation begins with."
            )

    def _beginning(self, piece: Input) -> Asked:
        """Returns how the translation of a piece shall begin; a prefix belongs to the first piece of a text, unless it
        is several, one for each."""
        where, given = f"target_prefix of line {piece.line}", self._of_line("target_prefix", piece.line)
        of_pieces = [given] if isinstance(given, str) else given
        text = of_pieces[piece.number] if piece.number < len(of_pieces) else ""
        asked = piece.begins or spelling_of(self.parts.target).prefix(text, self.processing, where)
        needed = len(asked.ids) + bool(asked.rest)
        if needed + self.skipped >= self.longest and piece.begins is None:
            raise OptionError(f"{where}: takes {needed} tokens and more, of {self.longest}: raise max_new_tokens.")
        return asked

    def _prefixes(self, inputs: Sequence[Input]) -> list[PrefixProcessor]:
        """Returns what makes translations begin as they shall."""
        if self.options.target_prefix is None and not self.options.alternatives:
            return []
        asked = [self._beginning(piece) for piece in inputs]
        ends = [token for token in self.ends if token is not None] if self.options.alternatives else []
        given = spelling_of(self.parts.target), asked, self.skipped, ends
        return [PrefixProcessor(*given)] if any(map(any, asked)) else []

    @cached_property
    def attention(self) -> SourceAttention:
        """Returns the attention that alignments are read off."""
        return SourceAttention(self.parts.model, self.name)

    def _aligned(
        self,
        inputs: Sequence[Input],
        rows: list[list[Generated]],
        hypotheses: list[list[Hypothesis]],
        arguments: dict[str, Any],
    ) -> list[list[Hypothesis]]:
        """Adds alignments to the hypotheses, for which the model reads each translation once more."""
        parts = self.parts
        all_weights = attention_over_source(self.attention, parts, [piece.ids for piece in inputs], rows, arguments)
        aligned = []
        for piece, generated, ranked, of_input in zip(inputs, rows, hypotheses, all_weights, strict=True):
            processed = self.encoder.processing.apply(piece.text)
            source = words_of_source(self.encoder.tokenizer, piece.ids, self.encoder.prefix, processed, piece.text)
            new = []
            for each, hypothesis, weights in zip(generated, ranked, of_input, strict=True):
                ids = [i for i in each.ids[self.skipped :] if i not in self.ends]
                target = words_of_target(parts.target, ids, hypothesis.text)
                links = word_links(weights[self.skipped : self.skipped + len(ids)], source, target)
                new.append(replace(hypothesis, alignment=links))
            aligned.append(new)
        return aligned

    def _decode(self, rows: Sequence[Sequence[Generated]]) -> list[list[Hypothesis]]:
        """Reads the hypotheses of each piece."""
        ids = [generated.ids[self.skipped :] for row in rows for generated in row]
        texts = iter(decode(self.target, [[i for i in each if i not in self.ends] for each in ids]))
        return [[self._hypothesis_of(generated, next(texts)) for generated in row] for row in rows]

    def _hypothesis_of(self, generated: Generated, text: str) -> Hypothesis:
        ids = generated.ids[self.skipped :]
        finished = bool(ids) and ids[-1] in self.ends
        text = self.processing.undo(text).strip()
        found = self._hypothesis(text, generated.log_probability, len(ids), finished)
        if not self.options.confidence or self.calibration is None:
            return found
        kept = [i for i in ids if i not in self.ends]
        least = least_by_word(self.target, kept, generated.of_ids[self.skipped :], text)
        words = tuple(self.calibration.of_word(value) for value in least)
        return replace(found, confidence=self.calibration.of_translation(mean(found)), word_confidences=words)

    def _hypothesis(self, text: str, log_probability: float, length: int, finished: bool) -> Hypothesis:
        score = log_probability / self.penalty.divisor(length + self.skipped)
        return Hypothesis(text, score, log_probability, length, finished)

    def together(self, text: CutText, of_pieces: Mapping[int, list[Hypothesis]]) -> list[Hypothesis]:
        """Returns the n-best of a text from its pieces': the first ones together, the second ones, and so on."""
        if self.reranker and self.reranker.by_document and not self.reranker.keeps_all:
            of_pieces = self.reranker.chosen_in_context({piece.number: piece.text for piece in text.inputs}, of_pieces)
        ranks = [of_pieces.get(number, [self.empty] * self.count) for number in range(len(text.pieces))]
        whole = self._whole(text, ranks) if len(ranks) > 1 else (ranks or [[self.empty] * self.count])[0]
        self.unfinished += sum(not hypothesis.finished for hypothesis in whole)
        return whole

    def _sure(self, new: Hypothesis, ranked: Sequence[Hypothesis]) -> Hypothesis:
        """Returns a text's translation with the confidence of the least sure of its pieces, and those of all words."""
        sure = [piece.confidence for piece in ranked if piece.confidence is not None]
        words = [number for piece in ranked for number in piece.word_confidences or ()]
        return replace(new, confidence=min(sure, default=None), word_confidences=tuple(words))

    def _look_at(self, ids: list[list[int]], rows: list[list[Generated]], arguments: dict[str, Any]) -> None:
        """Notes the scores of the first translations, of a calibrated model whose engine is generate()."""
        best = [(own, row[0]) for own, row in zip(ids, rows) if row][: LOOKED_AT - len(self.looked_at)]
        drawn = self.minimum_risk is not None or self.options.do_sample
        if self.calibration is None or not best or drawn or isinstance(self.run_batch, CTranslate2Search):
            return
        if not self.options.in_lists:
            sources, found = [own for own, _ in best], [generated for _, generated in best]
            logs = log_probabilities_of(self.parts, sources, found, arguments, self.skipped)
            best = [(own, generated._replace(log_probability=total)) for (own, generated), total in zip(best, logs)]
        self.looked_at += [each.log_probability / max(1, len(each.ids) - self.skipped) for _, each in best]

    def _whole(self, text: CutText, ranks: list[list[Hypothesis]]) -> list[Hypothesis]:
        whole = []
        for ranked in zip(*ranks, strict=True):
            joined_text = join([hypothesis.text for hypothesis in ranked], text.pieces)
            length = sum(hypothesis.length for hypothesis in ranked)
            total = sum(hypothesis.log_probability for hypothesis in ranked)
            new = self._hypothesis(joined_text, total, length, all(hypothesis.finished for hypothesis in ranked))
            if self.minimum_risk or self.reranker:  # the scores that the pieces were chosen by
                scores = [hypothesis.score for hypothesis in ranked if hypothesis.length]
                new = replace(new, score=sum(scores) / (max(1, len(scores)) if self.minimum_risk else 1))
            if features := [each.features for each in ranked if isinstance(each, Candidate)]:
                new = Candidate(**vars(new), features=tuple(map(sum, zip(*features))))
            new = replace(new, alignment=_joined(ranked, text.pieces)) if self.options.alignments else new
            whole.append(self._sure(new, ranked) if self.options.confidence else new)
        return sorted(whole, key=lambda hypothesis: -hypothesis.score)


class AtOnce:
    """An executor that does what it is told at once."""

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the function; `result` of what is returned returns what that did."""
        found = function(*arguments)
        return SimpleNamespace(result=lambda: found)


def _times(piece: Input) -> Counter[str]:
    """Returns what stands for the parts of a piece that are kept, and how often."""
    return Counter(each.shown for each in piece.kept)


def _item(read: Callable[[], Sequence[Any]], number: int) -> Any:
    return read()[number]


def _numbered(groups: Iterable[Sequence[str]], first_line: int, done: int) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields the line of each group's first text, and the group, but for the first `done` texts."""
    line = first_line
    for texts in groups:
        line += len(texts)
        if line - first_line > done:
            yield line - len(texts), texts


def _one_ahead(items: Iterable[Any]) -> Iterator[Any]:
    """Yields each item only once the next has been made; where that fails it yields the item first, then raises."""
    before: list[Any] = []
    try:
        for item in items:
            yield from before
            before = [item]
    except Exception:
        yield from before
        raise
    yield from before


def mean(hypothesis: Hypothesis) -> float:
    """Returns the mean ln P of a translation's subwords, its end counted."""
    return hypothesis.log_probability / max(1, hypothesis.length)


def least_by_word(tokenizer: Any, ids: Sequence[int], logs: Sequence[float], text: str) -> list[float]:
    """Returns for each word of a finished translation the least ln P of its subwords, 0 for one without any."""
    least = [0.0] * len(text.split())
    for word, value in zip(words_of_target(tokenizer, ids, text), logs):
        if word is not None:
            least[word] = min(least[word], value)
    return least


def _joined(ranked: Sequence[Hypothesis], pieces: Sequence[Piece]) -> tuple[Link, ...]:
    """Returns the alignment of a text from those of its pieces: words are numbered on."""
    sources = ["".join(piece.text + piece.space for piece in pieces[:i]) for i in range(len(pieces))]
    texts = [hypothesis.text for hypothesis in ranked]
    targets = [join([*texts[:i], ""], pieces[: i + 1]) for i in range(len(pieces))]
    return joined(zip(sources, targets, [hypothesis.alignment or () for hypothesis in ranked]))
