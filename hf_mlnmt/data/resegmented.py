"""Training pairs whose words are cut anew in every epoch by BPE-dropout (data/bpe_dropout.py)."""

from __future__ import annotations

import random
from array import array

import numpy as np

from hf_mlnmt.data.bpe_dropout import BPEDropout
from hf_mlnmt.data.corpora import Corpora
from hf_mlnmt.data.training_set import TrainingSet

CUTS = 16  # segmentations drawn of every distinct word; an epoch picks one of them for each place the word stands at
VARIANTS = 32  # of the whole corpus; epochs beyond see the first again


class Resegmented(TrainingSet):
    """The pairs of `corpora` as they are, then again in so many other segmentations, as training asks of a data set.

    Item i + k * len(corpora), k from 1, is item i in its k-th segmentation. `choose` (epoch -> indices) takes what
    `corpora` would show, in segmentation 1 + epoch % variants as long as epoch < `epochs`, later as it is; a pair that
    would be too long so is shown as it is.
    Everything follows from the arguments: nothing is drawn while training. Held in memory: a number for every word of
    the text, lengths of every variant, and the segmentations of the distinct words.

    Args:
        corpora: encoded pairs.
        source, target: how to cut either side; the same object for a joint vocabulary.
        epochs: how many epochs use it; all when None.
        seed: of all draws.
        max_length: subwords that either side may have at most.
        variants: of the whole corpus; the fewer of this and `epochs`.
    """

    def __init__(
        self,
        corpora: Corpora,
        source: BPEDropout,
        target: BPEDropout,
        epochs: int | None = None,
        seed: int = 1,
        max_length: int | None = None,
        variants: int = VARIANTS,
    ) -> None:
        self.corpora, self.epochs, self.max_length = corpora, epochs, max_length
        self.parts, self.rate = corpora.parts, source.rate
        self.variants = variants if epochs is None else max(1, min(variants, epochs))
        tables: dict[int, _Words] = {}
        self._sides = {}
        for number, (side, cutter) in enumerate((("input_ids", source), ("labels", target))):
            words = tables.setdefault(id(cutter), _Words(cutter, random.Random(seed)))
            self._sides[side] = _Side(corpora, side, words, seed + 1_000_003 * number)
        lengths = [self._lengths(side) for side in ("input_ids", "labels")]
        self.source_lengths = np.concatenate([corpora.source_lengths, *lengths[0]])
        self.target_lengths = np.concatenate([corpora.target_lengths, *lengths[1]])

    def _lengths(self, side: str) -> list[np.ndarray]:
        return [self._sides[side].lengths(variant) for variant in range(1, self.variants + 1)]

    def __len__(self) -> int:
        return len(self.corpora) * (1 + self.variants)

    @property
    def distinct(self) -> int:
        """Pairs, however they are cut."""
        return len(self.corpora)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        variant, index = divmod(int(index), len(self.corpora))
        if not variant:
            return self.corpora[index]
        return {side: words.sentence(index, variant) for side, words in self._sides.items()}

    def choose(self, epoch: int) -> np.ndarray:
        """Indices that make up an epoch: int64, as many as `corpora` has in it."""
        drawn = self.corpora.choose(epoch)
        chosen = np.arange(len(self.corpora)) if drawn is None else drawn
        if self.epochs is not None and epoch >= self.epochs:
            return chosen
        cut = chosen + len(self.corpora) * (1 + epoch % self.variants)
        if self.max_length is None:
            return cut
        longest = np.maximum(self.source_lengths[cut], self.target_lengths[cut])
        return np.where(longest > self.max_length, chosen, cut)

    def describe(self) -> str:
        """The pairs, and how often merges are left out."""
        first = "" if self.epochs is None else f" in the first {self.epochs} epoch(s)"
        return f"{self.corpora.describe()}, BPE-dropout {self.rate:g}{first}"


class _Words:
    """The distinct words of a vocabulary's texts, and `CUTS` segmentations of each."""

    def __init__(self, cutter: BPEDropout, rng: random.Random) -> None:
        self.cutter, self.rng = cutter, rng
        self.numbers: dict[tuple[int, ...], int] = {}
        self._pieces, self._starts = array("i"), array("q", [0])
        self.pieces, self.starts = np.zeros(0, np.int32), np.zeros(1, np.int64)

    def number(self, word: tuple[int, ...]) -> int:
        """Which word it is; a new one is cut."""
        found = self.numbers.get(word)
        if found is None:
            found = self.numbers[word] = len(self.numbers)
            for _ in range(CUTS):
                self._pieces.extend(self.cutter.cut(word, self.rng))
                self._starts.append(len(self._pieces))
        return found

    def finish(self) -> None:
        """Make the lists arrays: cut c of word w is pieces[starts[CUTS * w + c] : starts[CUTS * w + c + 1]]."""
        self.pieces, self.starts = np.array(self._pieces, np.int32), np.array(self._starts, np.int64)


class _Side:
    """One side of the pairs as numbers of words, and any variant of it."""

    def __init__(self, corpora: Corpora, side: str, words: _Words, seed: int) -> None:
        numbers, bounds = array("i"), array("q", [0])
        for i in range(len(corpora)):
            numbers.extend(words.number(word) for word in words.cutter.words(corpora[i][side].tolist()))
            bounds.append(len(numbers))
        words.finish()
        self.words, self.seed = words, seed
        self.numbers, self.bounds = np.array(numbers, np.int64), np.array(bounds, np.int64)

    def _cuts(self, first: int, last: int, variant: int) -> np.ndarray:
        """Which cut every place from `first` to `last` of the text gets, as rows of `starts`."""
        places = np.arange(first, last, dtype=np.uint64)
        return CUTS * self.numbers[first:last] + (_hash(places, self.seed, variant) % np.uint64(CUTS)).astype(np.int64)

    def sentence(self, index: int, variant: int) -> np.ndarray:
        """Ids of a sentence in a variant: int32 (subwords,)."""
        starts, pieces = self.words.starts, self.words.pieces
        cuts = self._cuts(int(self.bounds[index]), int(self.bounds[index + 1]), variant)
        return np.concatenate([pieces[starts[cut] : starts[cut + 1]] for cut in cuts])

    def lengths(self, variant: int) -> np.ndarray:
        """Subwords of every sentence in a variant: int32 (pairs,)."""
        cuts = self._cuts(0, len(self.numbers), variant)
        ends = np.concatenate([[0], np.cumsum(self.words.starts[cuts + 1] - self.words.starts[cuts])])
        return np.diff(ends[self.bounds]).astype(np.int32)


def _hash(places: np.ndarray, seed: int, variant: int) -> np.ndarray:
    """A number for every place that looks random and is the same in every process: splitmix64's finish."""
    mixed = places + np.uint64((seed * 0x9E3779B97F4A7C15 + variant * 0xD1B54A32D192ED03) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
