"""Finds which words of a match's translation translate words that the text has too, by counts of words in the memory.

A word of a translation belongs to the word of the source with which it is in the same units most often: by Dice's
coefficient, 2 n(both) / (n(one) + n(other)), counted in up to 50,000 to 100,000 units of the memory. A word that is the
same on both sides belongs to that, and what was never seen together to the word at the same place of the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from rapidfuzz.distance import Levenshtein

from hf_mlnmt.data.bilingual import Unit
from hf_mlnmt.memory.matching import HOLE, hashes_of, words, words_in

MOST = 50_000  # a lexicon is counted on this many units to twice as many; on all units of a smaller memory
_NEAR = 0.02  # weight of the distance between two words, in shares of their sentences' lengths


def sampled(units: Iterable[Unit], some: list[tuple[str, str]]) -> Iterator[Unit]:
    """Yields all units; collects in `some` the texts of every n-th one: MOST to 2 * MOST pairs, or all of fewer."""
    every = 1
    for number, unit in enumerate(units):
        if number % every == 0:
            some.append((unit.source, unit.target))
        if len(some) > 2 * MOST:
            some[:], every = some[::2], 2 * every
        yield unit


class Lexicon:
    """Holds Dice's coefficient of pairs of words; sorted keys: hash of the source's << 32 | hash of the target's."""

    def __init__(self, keys: np.ndarray, values: np.ndarray) -> None:
        self.keys, self.values = keys, values

    @classmethod
    def of(cls, units: Iterable[tuple[str, str]]) -> Lexicon:
        """Computes the coefficients of all pairs of words that are together in at least two of these units."""
        pairs, sides = list[np.ndarray](), (list[np.ndarray](), list[np.ndarray]())
        for unit in units:
            one, two = (np.unique(hashes_of(words(text)[:100])).astype(np.uint64) for text in unit)
            pairs.append((one[:, None] << np.uint64(32) | two).ravel())
            sides[0].append(one)
            sides[1].append(two)
        counted = [np.unique(np.concatenate([*side, np.zeros(0, np.uint64)]), return_counts=True) for side in sides]
        found = np.concatenate([*pairs, np.zeros(1, np.uint64)])
        found.sort()
        starts = np.flatnonzero(np.append(True, found[1:] != found[:-1]))
        times = np.diff(np.append(starts, len(found)))
        keys, times = found[starts][times > 1], times[times > 1]
        both = [
            counts[np.searchsorted(known, part)]
            for (known, counts), part in zip(counted, (keys >> np.uint64(32), keys & np.uint64(0xFFFFFFFF)))
        ]
        return cls(keys, (2 * times / (both[0] + both[1])).astype(np.float32))

    @classmethod
    def read(cls, data: bytes) -> Lexicon:
        """Makes a lexicon of the bytes that `write` returned."""
        number = len(data) // 12
        return cls(np.frombuffer(data, np.uint64, number), np.frombuffer(data, np.float32, number, 8 * number))

    def write(self) -> bytes:
        """Returns the lexicon as bytes."""
        return self.keys.tobytes() + self.values.tobytes()

    def fitting(self, asked: Sequence[str], source: str, target: str) -> str:
        """Returns `target`, the translation of a similar `source`, with HOLE instead of each word that translates a
        word of `source` which the text does not have; `asked`: the words of the text."""
        own, places = words(source), words_in(target)
        if not own or not places or len(own) * len(places) > 10_000:
            return target
        theirs = [target[start:end].casefold() for start, end in places]
        shared = np.zeros(len(own), bool)
        for block in Levenshtein.opcodes(own, asked):
            if block.tag == "equal":
                shared[block.src_start : block.src_end] = True
        keys = hashes_of(own).astype(np.uint64)[:, None] << np.uint64(32) | hashes_of(theirs)
        at = np.searchsorted(self.keys, keys).clip(max=max(0, len(self.keys) - 1))
        scores = np.where(self.keys[at] == keys, self.values[at], 0) if len(self.keys) else np.zeros(keys.shape)
        scores = scores + 2 * (np.array(own)[:, None] == np.array(theirs))
        one, two = (np.arange(len(side)) / len(side) for side in (own, theirs))
        scores = scores - _NEAR * abs(one[:, None] - two)
        pieces, end = [], 0
        for (start, stop), source_word in zip(places, scores.argmax(0)):
            pieces += [target[end:start], target[start:stop] if shared[source_word] else HOLE]
            end = stop
        return re.sub(rf"{HOLE}[\s{HOLE}]*", HOLE, "".join([*pieces, target[end:]]))
