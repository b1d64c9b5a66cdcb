"""Translations with their scores, and confidences of a calibrated model (beams of a search: search/hypotheses.py)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.alignments import Link, words_of_target
from hf_mlnmt.memory.matching import Match

CONFIDENCE = "confidence"  # the key in generation_config.json that holds the Calibration


@dataclass(frozen=True)
class Hypothesis:
    """A translation of an n-best list.

    `log_probability`: natural logarithm, summed over `length` subwords (end-of-sentence counted); for a fused model
    with sequence-level normalization the sum of its scores. `score`: `log_probability` divided by the length
    normalisation. `finished`: whether the translation ended before the length limit. `alignment`, if asked for: pairs
    (word of the source, word of the translation), counted from 0, ascending. `confidence` of the translation and
    `word_confidences` of each of its words, if asked for: 0 to 1. `origin`, beside a translation memory: "memory 101"
    (the same text between the same neighbours), "memory 100", "fuzzy 87" (steered by a similar text) or "machine";
    `match`: that unit of the memory.
    `warnings`: what is probably wrong (watching.py).
    """

    text: str
    score: float
    log_probability: float
    length: int
    finished: bool = True
    alignment: tuple[Link, ...] | None = None
    confidence: float | None = None
    word_confidences: tuple[float, ...] | None = None
    origin: str | None = None
    match: Match | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Alternative(Hypothesis):
    """A translation that continues a prefix with one of the likeliest next words, and that word's probability.

    `word`: the next word, whole; where no white space ends the prefix, the prefix's last word, completed; "" where the
    translation ends with the prefix; in a script without spaces the characters of one token.
    """

    word: str = ""
    probability: float = 0.0


@dataclass(frozen=True)
class Scored(Hypothesis):
    """A translation that the caller gave to be scored, its tokens (end of sentence included), and ln P of each."""

    tokens: tuple[str, ...] = ()
    token_log_probabilities: tuple[float, ...] = ()


@dataclass(frozen=True)
class Candidate(Hypothesis):
    """A hypothesis with the values of a reranker's features (reranking.py)."""

    features: tuple[float, ...] = ()


def mean(hypothesis: Hypothesis) -> float:
    """Returns the mean ln P of a translation's subwords, end of sentence included."""
    return hypothesis.log_probability / max(1, hypothesis.length)


def least_by_word(tokenizer: Any, ids: Sequence[int], logs: Sequence[float], text: str) -> list[float]:
    """Returns for each word of `text` the least ln P of its subwords; 0 for a word without a subword.

    ids, logs: the subwords of the translation whose text is `text`, and ln P of each.
    """
    least = [0.0] * len(text.split())
    for word, value in zip(words_of_target(tokenizer, ids, text), logs):
        if word is not None:
            least[word] = min(least[word], value)
    return least


@dataclass(frozen=True)
class Calibration:
    """The parameters by which a model's scores become confidences: equations 1 to 3 of choosing/confidence.py.

    scores, values: knots of (1), ascending. word: a and b of (2). sentences: how many sentences these were fitted to.
    document: a and b of (3), and the standard deviation of (3) from the chrF of documents; a calibration that was made
    before there was (3) has m itself, and the deviation 4 (docs/studies/decoding.md measures it).
    """

    scores: list[float]
    values: list[float]
    word: list[float]
    sentences: int
    document: list[float] = field(default_factory=lambda: [100.0, 0.0, 4.0])

    @classmethod
    def of(cls, generation_config: Any) -> Calibration | None:
        """Reads the calibration in a model's generation config; None if there is none. Raises: UserError if damaged."""
        given = getattr(generation_config, CONFIDENCE, None)
        if given is None:
            return None
        try:
            needed = [each.name for each in fields(cls) if each.name in given or each.default_factory is MISSING]
            known = cls(**{name: given[name] for name in needed})
            numbers = [*known.scores, *known.values, *known.word, *known.document]
            good = len(known.scores) == len(known.values) > 0 and (len(known.word), len(known.document)) == (2, 3)
            if not (good and all(map(math.isfinite, numbers)) and known.scores == sorted(known.scores)):
                raise ValueError("knots")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"generation_config.json: '{CONFIDENCE}' is no calibration. Make it again: hf-mlnmt model calibrate."
            ) from error
        return known

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, for JSON."""
        return asdict(self)

    def of_translation(self, score: float) -> float:
        """Returns the confidence of a translation from its mean ln P, by equation 1."""
        return float(np.interp(score, self.scores, self.values))

    def of_word(self, least: float) -> float:
        """Returns the confidence of a word from the least ln P of its subwords, by equation 2."""
        a, b = self.word
        return 1 / (1 + math.exp(min(700.0, -(a * least + b))))


USABLE, HOPELESS = 60.0, 40.0  # chrF from which a document is usable; below which it is better translated anew


class Quality:
    """Projects the chrF of a document from the translations of its texts, each counted by a call of `add`.

    The confidences of the texts, each weighted by the characters of its translation, are averaged (equation 3 of
    choosing/confidence.py); a translation that a memory had counts as sure.
    """

    def __init__(self, calibration: Calibration, translations: Iterable[Hypothesis] = ()) -> None:
        """translations: with log probabilities, which a call computes for lists of hypotheses."""
        self.calibration, self.texts, self.characters, self.sure = calibration, 0, 0, 0.0
        for each in translations:
            self.add(each)

    def add(self, best: Hypothesis) -> None:
        """Counts a text's translation; one without characters changes nothing."""
        self.texts += bool(best.text)
        self.characters += len(best.text)
        self.sure += len(best.text) * (self.calibration.of_translation(mean(best)) if best.length else 1.0)

    @property
    def chrf(self) -> float:
        """Returns the projected chrF, 0 to 100."""
        a, b, _ = self.calibration.document
        return min(max(a * self.sure / max(self.characters, 1) + b, 0.0), 100.0)

    @property
    def verdict(self) -> str:
        """Returns by the projected chrF how good a document is: "usable", "needs work" or "start anew"."""
        return "usable" if self.chrf >= USABLE else "needs work" if self.chrf >= HOPELESS else "start anew"

    def to_dict(self) -> dict[str, Any]:
        """Returns, for JSON, the projected chrF, its deviation, the verdict, the number of texts and the thresholds."""
        found = {"projected_chrf": round(self.chrf, 1), "deviation": self.calibration.document[2]}
        return found | {"verdict": self.verdict, "texts": self.texts, "usable_from": USABLE, "anew_below": HOPELESS}

    def __str__(self) -> str:
        return (
            f"projected chrF {self.chrf:.1f} (+- {self.calibration.document[2]:g}) of {self.texts:,} texts: "
            f"{self.verdict} (usable: from {USABLE:g}, needs work: from {HOPELESS:g}, start anew: below)"
        )


def quality_of(model: Any, translations: Iterable[Hypothesis]) -> Quality | None:
    """Returns the projected quality of a document from its translations; None for a model without a calibration, or
    translations without log probabilities, which calls with `alignments` or `confidence` compute."""
    calibration, given = Calibration.of(model.generation_config), list(translations)
    if calibration is None or any(each.length and not each.log_probability for each in given):
        return None
    return Quality(calibration, given)
