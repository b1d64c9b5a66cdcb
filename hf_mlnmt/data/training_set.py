"""Training sets: they return a task's examples, the examples' lengths on each side, and the choice for each epoch.

`Corpora` are several encoded corpora as one; which pairs an epoch shows follows from weights or a temperature, as a
pure function of (seed, epoch). `at_ratios` shows parallel and synthetic pairs at a ratio 1:r.

Reference of the ratio: the thesis on monolingual data, 4.4.4 and table 4.30. Both kinds are seen equally often: r
synthetic pairs are taken for each parallel one, and the parallel part is repeated r times. With 230,000 parallel pairs
and r = 2 an epoch shows 460,000 synthetic ones, each once, and 230,000 parallel ones, each twice.

Departs: where r is no whole number, the text does not say which parallel pairs are repeated. Here they go round: with
r = 0.5 one half of them comes in one epoch and the other half in the next, with r = 1.5 all once and so again (`draw`).
Which synthetic pairs are taken is drawn by the seed, once for all epochs.

Draws here are functions of a seed (`mixed`, `scattered`, `shuffled`), the same in every process, and any part is
computed without the others: a part of an epoch of a large corpus needs memory for that part alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.corpus import CorpusSpec
from hf_mlnmt.data.encoded import Encoded, Examples, Lengths, interleaved

LARGE = 1 << 21  # a range of this size or above is never permuted as a whole (`Scattered`)
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, splitmix64's step
_DRAWN = 6  # `Drawn` draws from shuffled copy number 6 on; `draw` with the same seed begins with copy 0


def mixed(values: np.ndarray | np.uint64) -> np.ndarray:
    """Hashes each value to 64 bits, the same in all processes, that look random: splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        state = np.atleast_1d(values) + np.uint64(GOLDEN)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


def scattered(places: np.ndarray, size: int, draws: np.random.Generator) -> np.ndarray:
    """Returns the numbers to which a random permutation of range(size) maps `places`, int64; computes only these.

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
    """A sequence of int64 numbers, indexed by arrays or slices: an array, or an object that computes the items."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: Any) -> Any: ...


class Scattered(Indices):
    """Numbers `first` to `first + count` of an endless row of copies of range(size), copy i permuted by (seed, i).

    They are computed when indexed, not held in memory.
    """

    def __init__(self, size: int, seed: int, first: int, count: int) -> None:
        self.size, self.seed, self.first, self.count = size, seed, first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, places: Any) -> np.ndarray:
        copies, within = np.divmod(self.first + as_places(places, self.count), self.size)
        if self.count == self.size and self.first % self.size == 0:  # exactly one whole copy: its order does not matter
            return within
        for copy in np.unique(copies).tolist():
            inside = copies == copy
            within[inside] = scattered(within[inside], self.size, np.random.default_rng([self.seed, copy]))
        return within


def shuffled(size: int, seed: int, first: int, count: int) -> Indices:
    """Returns the numbers `first` to `first + count` of an endless row of copies of range(size), copy i shuffled by
    (seed, i): as a sorted array, or from a size of LARGE on as `Scattered`."""
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
    """Returns the indices, int64, of the elements that an array of numbers, a slice or a mask selects in a
    sequence of `count` elements."""
    if isinstance(indices, slice):
        return np.arange(*indices.indices(count))
    indices = np.asarray(indices)
    return np.flatnonzero(indices) if indices.dtype == bool else indices


class TrainingSet(Protocol):
    """Examples of one task: pairs, or sentences of one language.

    Item i is what the task's objective collates: {"input_ids": (source,), "labels": (target,)} of a pair,
    {"input_ids": (length,)} of a sentence; arrays of ids that end with </s>. A class with this base defines `__len__`
    and one of `__getitem__` and `gather`.

    source_lengths, target_lengths: int arrays (len(self),) or `Lengths`, subwords with </s>; of sentences of one
        language both are the sentence's length.
    """

    source_lengths: np.ndarray | Lengths
    target_lengths: np.ndarray | Lengths

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.gather(np.array([index]))[0]

    def gather(self, indices: np.ndarray) -> Sequence[dict[str, np.ndarray]]:
        """Returns the examples at `indices`. Overriding methods may return `Examples`, which objectives pad at once."""
        return [self[index] for index in indices.tolist()]

    @property
    def distinct(self) -> int:
        """Returns how many different examples there are: items i and i + distinct are versions of one."""
        return len(self)

    def choose(self, epoch: int) -> Indices | None:
        """Returns None: an epoch shows all items once. Overriding methods return the indices of the epoch's items;
        all epochs are of nearly equal total length."""
        return None

    def describe(self) -> str:
        """Returns the number of examples in words, for a log."""
        return f"{self.distinct:,} examples"


class Drawn(TrainingSet):
    """A part of `Corpora` with `count` random items of `encoded`, in their order there if it has fewer than LARGE.

    With the same seed a smaller count draws some of what a larger one draws.
    """

    def __init__(self, encoded: Encoded, count: int, seed: int) -> None:
        self.encoded, self.indices = encoded, shuffled(len(encoded), seed, _DRAWN * len(encoded), count)
        self.unit, self.report, self.meta = encoded.unit, encoded.report, encoded.meta
        self.source_lengths, self.target_lengths = Lengths(self, 0), Lengths(self, -1)

    def __len__(self) -> int:
        return len(self.indices)

    def lengths(self, number: int, indices: Any) -> np.ndarray:
        """Returns how many subwords the items at `indices` have on a side (number 0: source, -1: target), int32."""
        return self.encoded.lengths(number, self.indices[indices])

    def gather(self, indices: np.ndarray) -> Examples:
        return self.encoded.gather(self.indices[indices])


def epoch_counts(sizes: Sequence[int], weights: Sequence[float] | None, temperature: float | None) -> list[int]:
    """Returns how many pairs of each corpus an epoch shows. Raises: UserError for weights beside a temperature.

    weights: how often each pair is shown an epoch: 1 once, 2 twice, 0.5 every other epoch. All 1 is plain joining.
    temperature: shares proportional to size ** (1 / temperature), as many in all as there are pairs: 1 is plain
        joining, more evens out (5 is usual for many languages).
    """
    if weights is None:
        weights = [1.0] * len(sizes)
    if temperature is None:
        return [max(1, round(size * weight)) for size, weight in zip(sizes, weights, strict=True)]
    if any(weight != 1 for weight in weights):
        raise UserError("mixture: give either weights or a temperature, not both.")
    scaled = np.array(sizes, float) ** (1 / temperature)
    return [max(1, round(share)) for share in scaled / scaled.sum() * sum(sizes)]


def draw(size: int, count: int, seed: int, epoch: int) -> Indices:
    """Returns the indices of the `count` pairs, of `size`, that an epoch shows: int64, sorted if `size` is below LARGE.

    Epoch e takes places e * count to (e + 1) * count in an endless row of shuffled copies of the corpus, so that every
    pair comes before any comes again, also across epochs.
    """
    return shuffled(size, seed, epoch * count, count)


class _Joined(Indices):
    """Indices of several parts, one after the other; those of each part count from where it begins in `starts`."""

    def __init__(self, parts: Sequence[Indices], starts: np.ndarray) -> None:
        self.parts, self.starts, self.bounds = parts, starts, np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def __getitem__(self, places: Any) -> np.ndarray:
        places = as_places(places, len(self))
        found = np.empty(len(places), np.int64)
        for part, inside, within in _by_part(places, self.bounds):
            found[inside] = self.starts[part] + self.parts[part][within]
        return found


def _by_part(indices: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields each part that has some of the indices: its number, a mask of these, their places in the part."""
    numbers = np.searchsorted(starts, indices, side="right") - 1
    for part in np.flatnonzero(np.bincount(numbers)).tolist():
        inside = numbers == part
        yield part, inside, indices[inside] - starts[part]


class Corpora(TrainingSet):
    """A training set of encoded corpora of one kind, concatenated: item starts[k] + i is item i of corpus number k.

    With weights or a temperature an epoch shows what `draw` chooses of each corpus, otherwise everything once.
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
        self.source_lengths, self.target_lengths = self.parts[0].source_lengths, self.parts[0].target_lengths
        if len(self.parts) > 1:
            self.source_lengths, self.target_lengths = Lengths(self, 0), Lengths(self, -1)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def lengths(self, number: int, indices: Any) -> np.ndarray:
        """Returns how many subwords the items at `indices` have on a side (number 0: source, -1: target), int32."""
        indices = as_places(indices, len(self))
        found = np.empty(len(indices), np.int32)
        for part, inside, within in _by_part(indices, self.starts):
            lengths = self.parts[part].source_lengths, self.parts[part].target_lengths
            found[inside] = lengths[number][within]
        return found

    def gather(self, indices: np.ndarray) -> Examples:
        if len(self.parts) == 1:
            return self.parts[0].gather(indices)
        parts: list[Examples] = []
        which = np.empty(len(indices), np.int64)
        for part, inside, within in _by_part(indices, self.starts):
            which[inside] = len(parts)
            parts.append(self.parts[part].gather(within))
        return interleaved(parts, which)

    def choose(self, epoch: int) -> Indices | None:
        """Returns the indices of the items that an epoch shows, int64, or None if it shows every item once."""
        if self.counts == self.sizes:
            return None
        rows = enumerate(zip(self.sizes, self.counts))
        drawn = [draw(size, count, self.seed + 1000 * i, epoch) for i, (size, count) in rows]
        chosen = _Joined(drawn, self.starts)
        return chosen if any(isinstance(part, Scattered) for part in drawn) else chosen[:]

    def describe(self) -> str:
        """Returns the numbers of pairs (or sentences), corpora, and pairs that an epoch shows, in words for a log."""
        several = f" of {len(self.parts)} corpora" if len(self.parts) > 1 else ""
        epoch = "" if self.counts == self.sizes else f", of which an epoch shows {sum(self.counts):,}"
        return f"{len(self):,} {self.parts[0].unit}{several}{epoch}"


def check_ratios(specs: Sequence[CorpusSpec], temperature: float | None) -> None:
    """Raises: UserError for ratios beside a temperature or a weight, or without a parallel corpus."""
    if all(spec.ratio is None for spec in specs):
        return
    if temperature is not None or any(spec.weight != 1 for spec in specs):
        other = "temperature" if temperature is not None else "weight"
        raise UserError(f"ratio and {other} both say how often pairs are seen: leave one of them out.")
    if all(spec.synthetic for spec in specs):
        raise UserError("ratio: there is no parallel corpus beside the synthetic one: so many pairs to each of what?")


def at_ratios(
    parts: Sequence[Encoded], specs: Sequence[CorpusSpec], seed: int
) -> tuple[list[Encoded | Drawn], list[float]]:
    """Returns the corpora to train on, synthetic ones cut down to their ratios, and how often an epoch shows each pair.

    Several ratios add up: at 1 and 2 the parallel part is seen three times.

    Raises: UserError with the numbers when a synthetic corpus has too few pairs, or a ratio asks for none.
    """
    if all(spec.ratio is None for spec in specs):
        return list(parts), [spec.weight for spec in specs]
    total = sum(spec.ratio or 0 for spec in specs)
    sizes = [len(part) for part, spec in zip(parts, specs) if not spec.synthetic]
    # How many parallel pairs an epoch shows, rounded as in `epoch_counts`.
    epoch = sum(max(1, round(size * total)) for size in sizes)
    chosen: list[Encoded | Drawn] = []
    before, taken = 0.0, 0
    for part, spec in zip(parts, specs, strict=True):
        if spec.ratio is None:
            chosen.append(part)
            continue
        before += spec.ratio
        count = round(epoch * before / total) - taken
        taken += count
        if count == 0:
            raise UserError(
                f"{spec}: ratio {spec.ratio:g} to {sum(sizes):,} parallel pairs rounds to no synthetic pair. Raise "
                "ratio, or leave this corpus out."
            )
        if count > len(part):
            raise UserError(
                f"{spec}: ratio {spec.ratio:g} needs {count:,} synthetic pairs to {sum(sizes):,} parallel ones, and "
                f"{len(part):,} are left after the filters: enough for {len(part) / sum(sizes):.4g} at most. Lower "
                "ratio, or translate more text."
            )
        chosen.append(Drawn(part, count, seed))
    return chosen, [spec.weight if spec.synthetic else total for spec in specs]
