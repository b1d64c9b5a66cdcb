"""Draws of which any part is computed without the others, the same ones in every process."""

from __future__ import annotations

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, splitmix64's step


def mixed(values: np.ndarray | np.uint64) -> np.ndarray:
    """Returns 64 bits each that look random and are the same in all processes: splitmix64 (Steele, Lea, Flood 2014)."""
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
