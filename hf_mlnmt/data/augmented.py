"""A training set in which every epoch changes other pairs at random (changes.py): capitals, typos, emoji and more.

Changes work on text, and an encoded corpus holds ids: a drawn pair is decoded when it is read, and if its text gives
the same ids again (tokens of placeholders do not), changed and encoded. All follows from (seed, epoch, pair).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_mlnmt.data.changes import CHANGES, Augment, changed
from hf_mlnmt.data.encoded import Examples, Lengths, Rows, interleaved
from hf_mlnmt.data.filters import Pair
from hf_mlnmt.data.processing import Side
from hf_mlnmt.data.resegmented import Resegmented
from hf_mlnmt.data.tokenizer import Tokenizers, decode
from hf_mlnmt.data.training_set import Corpora, TrainingSet, as_places, mixed

EPOCHS = 1 << 20  # epochs whose changed pairs have indices of their own; epoch EPOCHS uses those of epoch 0 again
_AT_ONCE = 10_000  # pairs
Way = tuple[Tokenizers, dict[str, Side], tuple[str, str]]  # a corpus's tokenizers, its encoders by side, its languages


class Augmented(TrainingSet):
    """A training set of the items of `inner`, then for each epoch of all pairs as that epoch changes them: the changed
    pair is item len(inner) + epoch * distinct + pair.

    A pair stays as it is if a side, changed, had more subwords than twice the longest of the corpora on that side, or
    than `max_length` and that longest.
    ways: for each corpus its tokenizers, encoders of both sides, and languages.
    """

    def __init__(
        self, inner: Corpora | Resegmented, ways: Sequence[Way], settings: Augment, seed: int, max_length: int
    ) -> None:
        self.inner, self.ways, self.settings, self.seed = inner, ways, settings, seed
        self.corpora = inner.corpora if isinstance(inner, Resegmented) else inner
        self.parts, self.bounds = self.corpora.parts, np.cumsum(settings.shares)
        longest = [int(lengths.max()) for lengths in (inner.source_lengths, inner.target_lengths)]
        self.most = [max(own, min(max_length, 2 * own)) for own in longest]
        # Cache: the number of an epoch, and both sides' lengths of its changed pairs (0: not computed yet).
        self._known = -1, np.zeros((2, 0), np.int32)
        self.source_lengths, self.target_lengths = (_Lengths(self, number) for number in (0, -1))

    def __len__(self) -> int:
        return len(self.inner) + EPOCHS * self.distinct

    @property
    def distinct(self) -> int:
        """Returns the number of pairs of the corpora; a pair and its changed versions count once."""
        return len(self.corpora)

    def gather(self, indices: np.ndarray) -> Examples:
        drawn = indices >= len(self.inner)
        parts = [self.inner.gather(indices[~drawn])] if not drawn.all() else []
        parts += [self._changed(indices[drawn])] if drawn.any() else []
        return interleaved(parts, drawn.astype(np.int64))

    def lengths(self, number: int, indices: Any) -> np.ndarray:
        """Returns how many subwords the items at `indices` have on a side (number 0: source, -1: target), int32."""
        indices = as_places(indices, len(self))
        drawn, lengths = indices >= len(self.inner), np.empty(len(indices), np.int32)
        lengths[~drawn] = (self.inner.source_lengths, self.inner.target_lengths)[number][indices[~drawn]]
        some = indices[drawn]
        epochs, pairs = np.divmod(some - len(self.inner), self.distinct)
        for epoch in np.unique(epochs).tolist():
            if self._known[0] != epoch:
                self._known = epoch, np.zeros((2, self.distinct), np.int32)
            new = some[(epochs == epoch) & (self._known[1][0][pairs] == 0)]
            for chunk in np.array_split(new, -(-len(new) // _AT_ONCE) or 1) if len(new) else ():
                columns = self._changed(chunk).columns
                self._known[1][:, (chunk - len(self.inner)) % self.distinct] = [
                    columns[name].lengths for name in ("input_ids", "labels")
                ]
            lengths[np.flatnonzero(drawn)[epochs == epoch]] = self._known[1][number][pairs[epochs == epoch]]
        return lengths

    def choose(self, epoch: int) -> np.ndarray:
        """Returns the indices of an epoch's items, int64: those that `inner` chooses, or their changed versions for
        the pairs that are drawn to be changed."""
        shown = self.inner.choose(epoch)
        indices = np.arange(self.distinct) if shown is None else shown[:]
        pairs, epoch = indices % self.distinct, epoch % EPOCHS
        drawn = self._draws(np.full(len(pairs), epoch), pairs)[1] < len(CHANGES)
        return np.where(drawn, len(self.inner) + epoch * self.distinct + pairs, indices)

    def _draws(self, epochs: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns a random number for each pair in its epoch, uint64, and the place in CHANGES of what it draws."""
        of_epochs = mixed(mixed(np.uint64(self.seed)) + epochs.astype(np.uint64))
        keys = mixed(of_epochs + pairs.astype(np.uint64))
        return keys, np.searchsorted(self.bounds, (keys >> np.uint64(11)) * 2.0**-53, side="right")

    def _changed(self, indices: np.ndarray) -> Examples:
        epochs, pairs = np.divmod(indices - len(self.inner), self.distinct)
        columns, (keys, kinds) = self.corpora.gather(pairs).columns, self._draws(epochs, pairs)
        found = {name: [rows[number] for number in range(len(pairs))] for name, rows in columns.items()}
        numbers = np.searchsorted(self.corpora.starts, pairs, side="right") - 1
        for part in np.unique(numbers).tolist():
            places, (_, sides, languages) = np.flatnonzero(numbers == part), self.ways[part]
            draws = [random.Random(int(key)) for key in keys[places]]
            first, size = int(self.corpora.starts[part]), self.corpora.sizes[part]
            others = np.array([first + draw.randrange(size) for draw in draws])
            others = np.where(kinds[places] == CHANGES.index("sentences"), others, pairs[places])
            read, back = np.unique(np.concatenate([pairs[places], others]), return_inverse=True)
            every = self._texts(read, part)
            texts = [every[number] for number in back]
            how = self.settings.typo_words, self.settings.keyboard
            new = {
                place: changed(CHANGES[kinds[place]], pair, draw, languages, other, *how)
                for place, pair, other, draw in zip(places.tolist(), texts, texts[len(places) :], draws)
                if pair and other
            }
            rows = [Rows(*sides[side](list(own))) for side, own in zip(("source", "target"), zip(*new.values()))]
            for number, place in enumerate(new):
                if all(own.lengths[number] <= most for own, most in zip(rows, self.most)):
                    found["input_ids"][place], found["labels"][place] = rows[0][number], rows[1][number]
        lengths = {name: np.array(list(map(len, rows)), np.int64) for name, rows in found.items()}
        return Examples({name: Rows(np.concatenate(rows), lengths[name]) for name, rows in found.items()})

    def _texts(self, pairs: np.ndarray, part: int) -> list[Pair | None]:
        """Returns the text of pairs of a corpus; None where it does not give the same ids again."""
        tokenizers, sides, _ = self.ways[part]
        columns, texts = self.corpora.gather(pairs).columns, list[list[str | None]]()
        for name, side in (("input_ids", "source"), ("labels", "target")):
            ids = [columns[name][number].tolist() for number in range(len(pairs))]
            own = [sides[side].processing.undo(text) for text in decode(getattr(tokenizers, side), ids)]
            again = Rows(*sides[side](own))
            texts.append([text if again[number].tolist() == ids[number] else None for number, text in enumerate(own)])
        return [(source, target) if source and target else None for source, target in zip(*texts)]

    def describe(self) -> str:
        """Returns a text for a log: what `inner` describes, and the share of pairs that each change is drawn for."""
        shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(CHANGES, self.settings.shares) if share)
        return f"{self.inner.describe()}, changed anew in each epoch: {shares}"


class _Lengths(Lengths):
    def max(self) -> int:
        return self.encoded.most[self.number]
