"""Boxes, so that batches have few shapes: each is filled up to one of them (sentences, source, target length).

A GPU prepares every new shape anew: plans of attention, compiled kernels, graphs, places in memory. `Boxes.fit` chooses
the boxes from the lengths of the data. It begins with a fine grid and takes the box away that costs least, again and
again: a sentence is in the cheapest box that it fits in. `Boxes.pack` makes the batches of an epoch. What does not fill
a batch goes on to the next box that it fits in where that costs less than rows without a sentence.

With k boxes the padding falls as k ** -0.5, and with the spread of the lengths and of their ratio: 64 pad 3 % of
captions and 7 % of news, 128 pad 5 % of news (tests/training/test_shapes.py has these lengths).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_mlnmt.recipe.schema import Side

STEP = 1.06  # of the grid that boxes are chosen from; 1.03 pads as much and takes three times as long

Shape = tuple[int, int, int]
"""Sentences, source length and target length of a batch, padding included."""


@dataclass(frozen=True)
class Boxes:
    """The shapes of a task's batches.

    source, target: (boxes,) int64, the lengths of each, of ascending sums; the last box holds every sentence.
    tokens, side, sentences: a box's sentences times its length on that side are at most `tokens`, and at most so many.
    """

    source: np.ndarray
    target: np.ndarray
    tokens: int
    side: Side
    sentences: int

    @classmethod
    def fit(
        cls, source: np.ndarray, target: np.ndarray, seen: np.ndarray, count: int, tokens: int, side: Side, most: int
    ) -> Boxes:
        """Chooses at most `count` boxes for sentences of these lengths, with little padding of those `seen`."""
        grids = [_grid(int(lengths.max())) for lengths in (source, target)]
        places = [np.searchsorted(grid, lengths[seen]) for grid, lengths in zip(grids, (source, target))]
        last = [np.append(place, len(grid) - 1) for grid, place in zip(grids, places)]  # the box of everything
        cells, counts = np.unique(last[0] * len(grids[1]) + last[1], return_counts=True)
        corners = np.stack([grids[0][cells // len(grids[1])], grids[1][cells % len(grids[1])]], 1)
        kept = corners[_thin(corners, counts, count)]
        kept = kept[np.lexsort((kept[:, 0], kept.sum(1)))]
        return cls(kept[:, 0], kept[:, 1], tokens, side, most)

    def rows(self, tokens: int) -> np.ndarray:
        """Returns the sentences of a batch of `tokens` in each box: (boxes,) int64."""
        longer = np.maximum(self.source, self.target)
        length = {"source": self.source, "target": self.target, "both": longer}[self.side]
        return np.clip(tokens // length, 1, self.sentences)

    def shape(self, sentences: int, source: int, target: int) -> Shape:
        """Returns the cheapest box for so many sentences of at most these lengths; where none fits, these numbers."""
        rows = self.rows(self.tokens)
        cells = rows * (self.source + self.target)
        fits = (self.source >= source) & (self.target >= target) & (rows >= sentences)
        if not fits.any():
            return sentences, source, target
        best = int(np.where(fits, cells, cells.max() + 1).argmin())
        return int(rows[best]), int(self.source[best]), int(self.target[best])

    def pack(
        self, source: np.ndarray, target: np.ndarray, draws: np.random.Generator, tokens: int
    ) -> tuple[np.ndarray, list[int]]:
        """Orders the sentences with these lengths; says where batches begin and end in that order.

        How many batches there are depends on the lengths alone; `draws` decides who is with whom.
        """
        fits = self.source >= np.arange(int(self.source.max()) + 1)[:, None]  # (length, boxes)
        fits_target = self.target >= np.arange(int(self.target.max()) + 1)[:, None]
        lengths, rows = self.source + self.target, self.rows(tokens)
        shuffled = draws.permutation(len(source))
        home = (fits[source[shuffled]] & fits_target[target[shuffled]]).argmax(1)
        pools = [[shuffled[home == box]] for box in range(len(rows))]
        order, bounds = [], [0]
        for box, size in enumerate(rows.tolist()):
            pool = np.concatenate(pools[box])
            if rest := len(pool) % size:
                later = fits[source[pool], box + 1 :] & fits_target[target[pool], box + 1 :]
                following = (
                    np.where(later.any(1), box + 1 + later.argmax(1), -1) if later.size else np.full(len(pool), -1)
                )
                cost = np.where(following < 0, np.inf, lengths[following])
                leaving = np.lexsort((target[pool], source[pool], cost))[:rest]
                if cost[leaving].sum() < size * lengths[box]:
                    for there in np.unique(following[leaving]):
                        pools[there].append(pool[leaving[following[leaving] == there]])
                    pool = np.delete(pool, leaving)
            order.append(draws.permutation(pool))
            bounds += [bounds[-1] + min(start + size, len(pool)) for start in range(0, len(pool), size)]
        return np.concatenate(order), bounds


def _grid(longest: int) -> np.ndarray:
    """Returns lengths up to `longest`: all short ones, then in steps of a twentieth."""
    grid = [1]
    while grid[-1] < longest:
        grid.append(min(longest, max(grid[-1] + 1, int(grid[-1] * STEP))))
    return np.array(grid)


def _thin(corners: np.ndarray, counts: np.ndarray, count: int) -> np.ndarray:
    """Chooses `count` of the corners (n, 2), the last always, so that little padding is added: bool (n,).

    counts: sentences at each corner. A sentence is in the box of the smallest sum of lengths that it fits in.
    """
    lengths, kept = corners.sum(1), np.ones(len(corners), bool)
    best, costs = np.zeros((2, len(corners), 2), np.int64)  # of every corner's sentences the best box and the second

    def choose(places: np.ndarray) -> None:
        boxes = np.flatnonzero(kept)
        inside = (corners[places, None] <= corners[boxes]).all(2)
        cost = np.where(inside, lengths[boxes], 2 * lengths.max())
        two = np.argpartition(cost, range(min(2, len(boxes))), 1)[:, [0, min(1, len(boxes) - 1)]]
        best[places], costs[places] = boxes[two], np.take_along_axis(cost, two, 1)

    for some in np.array_split(np.arange(len(corners)), -(-len(corners) // 500)):
        choose(some)
    for _ in range(len(corners) - count):
        losses = np.bincount(best[:, 0], (costs[:, 1] - costs[:, 0]) * counts, len(corners))
        losses[~kept] = losses[-1] = np.inf
        worst = int(losses.argmin())
        kept[worst] = False
        choose(np.flatnonzero((best == worst).any(1)))
    return kept


def cells(shapes: Sequence[Shape]) -> tuple[int, int]:
    """Counts the tokens of batches of these shapes, padding included: of all sources, of all targets."""
    return sum(rows * source for rows, source, _ in shapes), sum(rows * target for rows, _, target in shapes)
