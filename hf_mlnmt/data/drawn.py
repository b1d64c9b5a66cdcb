"""Some of the items of encoded data, drawn once: the same in every epoch."""

from __future__ import annotations

import numpy as np

from hf_mlnmt.data.encoded import Encoded

_DRAWN = 6  # beside the seed, so that it is drawn apart from what else is drawn by it


class Drawn:
    """`count` items of `encoded` in its order, with what `Corpora` asks of a part.

    With the same seed a smaller count draws some of what a larger one draws.
    """

    def __init__(self, encoded: Encoded, count: int, seed: int) -> None:
        order = np.random.default_rng([seed, _DRAWN]).permutation(len(encoded))
        self.encoded, self.indices = encoded, np.sort(order[:count])
        self.unit, self.report, self.meta = encoded.unit, encoded.report, encoded.meta
        self.source_lengths = encoded.source_lengths[self.indices]
        self.target_lengths = encoded.target_lengths[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.encoded[int(self.indices[index])]
