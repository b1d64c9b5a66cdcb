"""What training asks of a data set: examples, their lengths on each side, and which of them make up an epoch."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class TrainingSet(Protocol):
    """Examples of one task: pairs, or sentences of one language.

    Item i is what the task's objective collates: {"input_ids": (source,), "labels": (target,)} of a pair,
    {"input_ids": (length,)} of a sentence; arrays of ids that end with </s>. A class that names this one as its base
    inherits the methods that have an answer here.

    source_lengths, target_lengths: int arrays (len(self),), subwords with </s>; of sentences of one language both are
        the sentence's length.
    """

    source_lengths: np.ndarray
    target_lengths: np.ndarray

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, np.ndarray]: ...

    @property
    def distinct(self) -> int:
        """How many different examples there are: items i and i + distinct are the same one, shown in another way."""
        return len(self)

    def choose(self, epoch: int) -> np.ndarray | None:
        """The indices that make up an epoch: int64, of nearly equal total length in every epoch. None: all, once."""
        return None

    def describe(self) -> str:
        """How many examples of what, and what is done to them; for a log."""
        return f"{self.distinct:,} examples"
