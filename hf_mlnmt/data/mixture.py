"""Mixtures of corpora: which pairs an epoch shows, by weights or temperature, as a pure function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_mlnmt.errors import UserError


def epoch_counts(sizes: Sequence[int], weights: Sequence[float] | None, temperature: float | None) -> list[int]:
    """How many pairs of each corpus an epoch shows.

    weights: how often each pair is shown an epoch: 1 once, 2 twice, 0.5 every other epoch. All 1 is plain joining.
    temperature: shares proportional to size ** (1 / temperature), as many in all as there are pairs: 1 is plain
        joining, more evens out (5 is usual for many languages).
    """
    if any(size == 0 for size in sizes):
        raise UserError(
            f"mixture: corpus {list(sizes).index(0) + 1} of {len(sizes)} has no pairs left; see its filters."
        )
    if weights is None:
        weights = [1.0] * len(sizes)
    if len(weights) != len(sizes) or min(weights) <= 0:
        raise UserError(f"mixture: {len(sizes)} weights above 0 are expected, one a corpus, not {list(weights)}.")
    if temperature is None:
        return [max(1, round(size * weight)) for size, weight in zip(sizes, weights)]
    if temperature <= 0:
        raise UserError(f"mixture: temperature must be above 0, not {temperature}; 1 leaves the corpora's own shares.")
    if any(weight != 1 for weight in weights):
        raise UserError("mixture: give either weights or a temperature, not both.")
    scaled = np.array(sizes, float) ** (1 / temperature)
    return [max(1, round(share)) for share in scaled / scaled.sum() * sum(sizes)]


def draw(size: int, count: int, seed: int, epoch: int) -> np.ndarray:
    """The `count` of `size` pairs that an epoch shows, (count,) int64, sorted.

    Epoch e takes places e * count to (e + 1) * count in an endless row of shuffled copies of the corpus, so that every
    pair comes before any comes again, also across epochs.
    """
    first, last = epoch * count, (epoch + 1) * count
    parts = []
    for copy in range(first // size, -(-last // size)):
        start, end = max(first - copy * size, 0), min(last - copy * size, size)
        whole = end - start == size
        order = np.arange(size) if whole else np.random.default_rng([seed, copy]).permutation(size)
        parts.append(order[start:end])
    return np.sort(np.concatenate(parts))
