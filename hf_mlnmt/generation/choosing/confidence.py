"""Confidences, 0 to 1, of a translation and of its words, calibrated on a development set.

References: Zadrozny and Elkan 2002, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates"
(isotonic regression); Platt 1999, "Probabilistic Outputs for Support Vector Machines".

(1) of a translation:  the chrF, 0 to 1, that translations of its score had on the development set: isotonic regression
    on s, the mean ln P of its subwords, its end counted; linear between the knots
(2) of a word:  1 / (1 + exp(-(a m + b))),  m the least ln P of its subwords, fitted to whether the reference has it

It is kept in the model's generation_config.json under "confidence"; calibrating.py fits it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from hf_mlnmt.common.errors import UserError

KEY = "confidence"
FEWEST = 100  # sentences of a development set
KNOTS = 20


@dataclass(frozen=True)
class Calibration:
    """Equations 1 and 2 of a model: ascending knots of the isotonic regression; a and b; the number of sentences that
    they were fitted to."""

    scores: list[float]
    values: list[float]
    word: list[float]
    sentences: int

    @classmethod
    def of(cls, generation_config: Any) -> Calibration | None:
        """Returns a model's calibration, or None. Raises: UserError for one that is damaged."""
        given = getattr(generation_config, KEY, None)
        if given is None:
            return None
        try:
            known = cls(**{field.name: given[field.name] for field in fields(cls)})
            numbers = [*known.scores, *known.values, *known.word]
            good = len(known.scores) == len(known.values) > 0 and len(known.word) == 2
            if not (good and all(map(math.isfinite, numbers)) and known.scores == sorted(known.scores)):
                raise ValueError("knots")
        except (KeyError, TypeError, ValueError) as error:
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


def calibrate(scores: Sequence[float], qualities: Sequence[float], words: Sequence[tuple[float, bool]]) -> Calibration:
    """Fits equations 1 and 2.

    Args:
        scores: of the translations of a development set. qualities: their sentence chrF, 0 to 1.
        words: of all their words the least ln P of a subword, and whether the reference has the word.
    Raises: UserError for fewer than 100 translations.
    """
    try:
        from sklearn.isotonic import IsotonicRegression
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise UserError("a calibration needs scikit-learn: pip install 'hf-mlnmt[analysis]'.") from error
    if len(scores) < FEWEST:
        raise UserError(f"{len(scores)} translations are too few to calibrate by: give {FEWEST} sentences or more.")
    steps = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores, qualities)
    places = np.quantile(scores, np.linspace(0, 1, KNOTS))
    knots = np.unique(np.round(places, 4))
    least, right = np.array([least for least, _ in words])[:, None], np.array([right for _, right in words])
    a, b = 0.0, 20.0 if right.all() else -20.0
    if right.any() and not right.all():
        line = LogisticRegression().fit(least, right)
        a, b = float(line.coef_[0, 0]), float(line.intercept_[0])
    return Calibration(
        knots.tolist(),
        np.round(steps.predict(knots), 4).tolist(),
        [round(a, 4), round(b, 4)],
        len(scores),
    )
