"""Confidences: how sure a model is of a translation and of its words, 0 to 1, calibrated on a development set.

References: Zadrozny and Elkan 2002, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates"
(isotonic regression); Platt 1999, "Probabilistic Outputs for Support Vector Machines".

(1) of a translation:  the chrF, 0 to 1, that translations of its score had on the development set: isotonic regression
    on s, the mean ln P of its subwords, its end counted; linear between the knots
(2) of a word:  1 / (1 + exp(-(a m + b))),  m the least ln P of its subwords, fitted to whether the reference has it
(3) far:  s is below the score that one in a hundred translations of the development set is below

It is kept in the model's generation_config.json under "confidence"; calibrating.py fits it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hf_mlnmt.common.errors import UserError

KEY = "confidence"


@dataclass(frozen=True)
class Calibration:
    """Equations 1 to 3 of a model: ascending knots of the isotonic regression; a and b; far; the median score; and how
    many sentences it was made from."""

    scores: list[float]
    values: list[float]
    word: list[float]
    far: float
    usual: float
    sentences: int

    @classmethod
    def of(cls, generation_config: Any) -> Calibration | None:
        """Returns a model's calibration, or None. Raises: UserError for one that is damaged."""
        given = getattr(generation_config, KEY, None)
        if given is None:
            return None
        try:
            known = cls(**given)
            numbers = [*known.scores, *known.values, *known.word, known.far, known.usual]
            good = len(known.scores) == len(known.values) > 0 and len(known.word) == 2
            if not (good and all(map(math.isfinite, numbers)) and known.scores == sorted(known.scores)):
                raise ValueError("knots")
        except (TypeError, ValueError) as error:
            raise UserError(
                f"generation_config.json: '{KEY}' is no calibration. Make it again: hf-mlnmt model calibrate."
            ) from error
        return known

    def to_dict(self) -> dict[str, Any]:
        """Returns it as it is kept."""
        return asdict(self)

    def of_translation(self, score: float) -> float:
        """Returns equation 1."""
        return float(np.interp(score, self.scores, self.values))

    def of_word(self, least: float) -> float:
        """Returns equation 2."""
        a, b = self.word
        return 1 / (1 + math.exp(min(700.0, -(a * least + b))))
