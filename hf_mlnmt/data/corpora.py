"""Several encoded corpora as one data set, and which of its pairs make up each epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hf_mlnmt.data.encoded import EncodedPairs
from hf_mlnmt.data.mixture import draw, epoch_counts


class Corpora:
    """Encoded corpora one after the other: item i is a pair of the corpus in whose range i falls.

    source_lengths and target_lengths are int32 arrays (pairs,). `choose` is what `TokenBatchSampler` takes: epoch ->
    indices (with weights or a temperature, see data/mixture.py), or None when every epoch is every pair once.
    """

    def __init__(
        self,
        parts: Sequence[EncodedPairs],
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
        self.choose: Callable[[int], np.ndarray] | None = self._choose if self.counts != self.sizes else None

    def __len__(self) -> int:
        return self.pairs

    @property
    def pairs(self) -> int:
        """How many there are."""
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        part = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.parts[part][index - int(self.starts[part])]

    def _choose(self, epoch: int) -> np.ndarray:
        rows = enumerate(zip(self.sizes, self.counts))
        drawn = [draw(size, count, self.seed + 1000 * i, epoch) for i, (size, count) in rows]
        return np.concatenate([start + indices for start, indices in zip(self.starts, drawn)])
