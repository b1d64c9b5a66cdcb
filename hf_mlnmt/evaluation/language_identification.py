"""Which of a few languages a sentence is in: naive Bayes over character n-grams, trained on the corpus itself.

Reference: Cavnar and Trenkle 1994, "N-Gram-Based Text Categorization", for the features; multinomial naive Bayes.
For translations in the wrong language: only the languages of the corpus are told apart, and the accuracy on sentences
that it was not trained on belongs beside every number that comes from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

import numpy as np

from hf_mlnmt.errors import UserError

BUCKETS = 2**16
ORDERS = (1, 2, 3, 4)
SMOOTHING = 0.1  # added to every count


def features(text: str) -> np.ndarray:
    """Numbers of the n-grams of a text, hashed, int64 (n-grams,); spaces at both ends are letters too."""
    letters = f" {' '.join(text.lower().split())} "
    grams = (letters[i : i + n] for n in ORDERS for i in range(len(letters) - n + 1))
    return np.fromiter((crc32(gram.encode()) % BUCKETS for gram in grams), np.int64)


class LanguageClassifier:
    """Make it with sentences of every language: {"de": [...], "en": [...]}."""

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        """Raises: UserError for a language without sentences."""
        if empty := [language for language, lines in texts.items() if not any(line.strip() for line in lines)]:
            raise UserError(f"language '{empty[0]}': there is no sentence to learn it from.")
        self.languages = list(texts)
        rows = [np.full(BUCKETS, SMOOTHING) for _ in texts]
        for row, lines in zip(rows, texts.values()):
            for line in lines:
                np.add.at(row, features(line), 1.0)
        counts = np.stack(rows)
        self.log_probabilities = np.log(counts / counts.sum(1, keepdims=True))  # (languages, buckets)

    def __call__(self, text: str) -> str | None:
        """The likeliest language; None for an empty text."""
        if not text.strip():
            return None
        return self.languages[int(self.log_probabilities[:, features(text)].sum(1).argmax())]

    def accuracy(self, texts: Mapping[str, Sequence[str]]) -> float:
        """The share of sentences whose language it finds; empty ones are left out."""
        pairs = [(language, line) for language, lines in texts.items() for line in lines if line.strip()]
        return sum(self(line) == language for language, line in pairs) / max(1, len(pairs))
