"""Random draws of which any part is computed without the others, the same ones in every process.

A hash (`mixed`) and a permutation made of it (`scattered`). With them, the windows of an epoch (training/batching.py)
and the choice of an epoch from a large corpus (`shuffled`, for training_set.py) need memory only for the asked part.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

LARGE = 1 << 21  # so many numbers, or more, are not permuted as a whole
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, splitmix64's step


def mixed(values: np.ndarray | np.uint64) -> np.ndarray:
    """Hashes each value to 64 bits, the same in all processes, that look random: splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        state = np.atleast_1d(values) + np.uint64(GOLDEN)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


def scattered(places: np.ndarray, size: int, draws: np.random.Generator) -> np.ndarray:
    """Returns where a drawn permutation of range(size) puts these places: int64, without computing the others.

    A Feistel network permutes numbers of an even count of bits (Luby and Rackoff 1988); what comes out at `size` or
    above goes through it again (Black and Rogaway 2002).
    """
    half = np.uint64(((size - 1).bit_length() + 1) // 2)
    mask, keys = np.uint64((1 << int(half)) - 1), draws.integers(2**63, size=4, dtype=np.uint64)
    values, again = places.astype(np.uint64), slice(None)
    while len(values[again]):
        left, right = values[again] >> half, values[again] & mask
        for key in keys:
            left, right = right, left ^ (mixed(right ^ key) & mask)
        values[again] = (left << half) | right
        again = np.flatnonzero(values >= size)  # type: ignore[assignment]
    return values.astype(np.int64)


class Indices(Protocol):
    """A row of int64 numbers, indexed by arrays or slices: an array, or an object that computes them when asked."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: Any) -> Any: ...


class Scattered(Indices):
    """`count` numbers, from place `first` on, of endless copies of range(size), each permuted by (seed, its number).

    No number is held in memory.
    """

    def __init__(self, size: int, seed: int, first: int, count: int) -> None:
        self.size, self.seed, self.first, self.count = size, seed, first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, places: Any) -> np.ndarray:
        copies, within = np.divmod(self.first + as_places(places, self.count), self.size)
        if self.count == self.size and self.first % self.size == 0:  # a whole copy: its order does not matter
            return within
        for copy in np.unique(copies).tolist():
            inside = copies == copy
            within[inside] = scattered(within[inside], self.size, np.random.default_rng([self.seed, copy]))
        return within


def shuffled(size: int, seed: int, first: int, count: int) -> Indices:
    """Returns `count` numbers, from place `first` on, of an endless row of shuffled copies of range(size), each
    shuffled by (seed, its number): a sorted array, or `Scattered` of a `LARGE` range."""
    if size >= LARGE:
        return Scattered(size, seed, first, count)
    last, parts = first + count, []
    for copy in range(first // size, -(-last // size)):
        start, end = max(first - copy * size, 0), min(last - copy * size, size)
        whole = end - start == size
        order = np.arange(size) if whole else np.random.default_rng([seed, copy]).permutation(size)
        parts.append(order[start:end])
    return np.sort(np.concatenate(parts))


def as_places(indices: Any, count: int) -> np.ndarray:
    """Returns the indices that an array of numbers, a slice or a mask selects in an array of `count`: int64."""
    if isinstance(indices, slice):
        return np.arange(*indices.indices(count))
    indices = np.asarray(indices)
    return np.flatnonzero(indices) if indices.dtype == bool else indices
