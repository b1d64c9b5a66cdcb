"""Several encoded corpora as one data set, and which of its pairs make up each epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_mlnmt.data.drawn import Drawn
from hf_mlnmt.data.encoded import Encoded
from hf_mlnmt.data.mixture import draw, epoch_counts
from hf_mlnmt.data.training_set import TrainingSet


class Corpora(TrainingSet):
    """Encoded corpora of one kind one after the other: item i is of the corpus in whose range i falls.

    source_lengths and target_lengths are int32 arrays (len(self),). With weights or a temperature an epoch shows what
    data/mixture.py draws, otherwise everything once.
    """

    def __init__(
        self,
        parts: Sequence[Encoded | Drawn],
        weights: Sequence[float] | None = None,
        temperature: float | None = None,
        seed: int = 1,
    ) -> None:
        self.parts, self.seed = list(parts), seed
        self.sizes = [len(part) for part in parts]
        self.counts = epoch_counts(self.sizes, weights, temperature)
        self.starts = np.cumsum([0, *self.sizes])
        self.source_lengths = np.concatenate([part.source_lengths for part in parts])
        self.target_lengths = np.concatenate([part.target_lengths for part in parts])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        part = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.parts[part][index - int(self.starts[part])]

    def choose(self, epoch: int) -> np.ndarray | None:
        """As `TrainingSet.choose`."""
        if self.counts == self.sizes:
            return None
        rows = enumerate(zip(self.sizes, self.counts))
        drawn = [draw(size, count, self.seed + 1000 * i, epoch) for i, (size, count) in rows]
        return np.concatenate([start + indices for start, indices in zip(self.starts, drawn)])

    def describe(self) -> str:
        """How many pairs, or sentences, of how many corpora."""
        several = f" of {len(self.parts)} corpora" if len(self.parts) > 1 else ""
        epoch = "" if self.counts == self.sizes else f", of which an epoch shows {sum(self.counts):,}"
        return f"{len(self):,} {self.parts[0].unit}{several}{epoch}"
