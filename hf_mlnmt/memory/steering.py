"""Steers a search by the translations of similar texts: rewards hypotheses with their n-grams of 1 to 4 subwords.

A token gets reward x weight added to its log-probability for each n-gram of a translation that it completes, of several
matches the best one's. Where a hypothesis stands follows from its last three tokens: they are looked up in one sorted
table of all beginnings of n-grams, for all rows at once, and the tokens behind them lie in rows of equal length. So a
step is some twenty operations on tensors, in every loop that takes logits processors, beams in any order. A token that
a hypothesis has as often as a match's translation gets no more: else a rewarded phrase would be said again and again.

Reference: Zhang et al. 2018, "Guiding Neural Machine Translation with Retrieved Translation Pieces"; here the words of
the match's translation that stand for other words of the source are taken out before (lexicon.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

LONGEST = 4  # most subwords of an n-gram
_NONE = np.iinfo(np.int64).max  # the greatest key of the table: it has no tokens, and no hypothesis has this key
# Tokens that follow each other in a match's translation, and their reward.
Pieces = Sequence[tuple[Sequence[int], float]]


class Steering(LogitsProcessor):
    """Logits processor that rewards n-grams of the sentences' matches.

    Args:
        sentences: the pieces of each sentence; an end token may be the last of a piece.
        weight: added to the log-probability for an n-gram of an exact match.
        ends: end tokens, which are rewarded only at the end of longer n-grams.
    """

    def __init__(self, sentences: Sequence[Pieces], weight: float, ends: Sequence[int] = ()) -> None:
        flat = [(row, ids, reward) for row, pieces in enumerate(sentences) for ids, reward in pieces if len(ids)]
        lengths = np.array([len(ids) for _, ids, _ in flat], np.int64)
        tokens = np.array([token for _, ids, _ in flat for token in ids], np.int64)
        row_of, rewards = (np.repeat(np.array([one[k] for one in flat], t), lengths) for k, t in ((0, int), (2, float)))
        # index of each token in its piece
        places = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        known, numbers = np.unique(tokens, return_inverse=True)
        self.base = len(known) + 1
        # token -> its number among the matches' tokens, from 1; 0 for all others
        self.numbers = torch.zeros(int(known.max(initial=0)) + 2, dtype=torch.long)
        self.numbers[torch.from_numpy(known)] = torch.arange(1, len(known) + 1)
        pieces = np.repeat(np.arange(len(flat)), lengths)
        said, times = np.unique(row_of * self.base + numbers, return_inverse=True)
        each, often = np.unique(pieces * len(tokens) + times, return_counts=True)
        limits = np.zeros(len(said), np.int64)
        np.maximum.at(limits, each % max(1, len(tokens)), often)
        values, keys = (numbers + 1, rewards * weight, limits[times]), list[np.ndarray]()
        ended = np.isin(tokens, list(ends))
        for size in range(LONGEST):
            key = row_of * LONGEST + size
            for back in range(LONGEST - 1, 0, -1):
                key = key * self.base + (np.roll(numbers, back) + 1) * (back <= size)
            keys.append(np.where(places >= size, key, -1) if size else np.where(ended, -1, row_of))
        self.first = _table(keys[0], tokens, values, np.arange(len(sentences)))[1:]
        tiled = [np.tile(part, LONGEST - 1) for part in (tokens, *values)]
        self.keys, *self.following = _table(np.concatenate(keys[1:]), tiled[0], tiled[1:], [_NONE])
        self.rows, self.begun = torch.arange(len(sentences)), False

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns the scores (rows, vocabulary), with rewards added in place; input_ids: (rows, length)."""
        if not self.begun:
            self.begun, times = True, len(input_ids) // len(self.rows)
            parts = self.numbers, self.keys, self.rows.repeat_interleave(times)
            self.numbers, self.keys, self.rows = (part.to(scores.device) for part in parts)
            self.following, self.first = (
                [part.to(scores.device) for part in table] for table in (self.following, self.first)
            )
        so_far = self.numbers[input_ids.clamp(max=len(self.numbers) - 1)]  # numbers of the tokens: (rows, length)
        last = so_far[:, 1 - LONGEST :]
        keys, power, behind = [], self.base ** (LONGEST - 1), torch.zeros_like(self.rows)
        for size in range(1, last.shape[1] + 1):
            behind = behind + last[:, -size] * self.base ** (size - 1)
            keys.append((self.rows * LONGEST + size) * power + behind)
        asked = torch.stack(keys, 1)  # keys of the last 1, 2 and 3 tokens: (rows, up to 3)
        places = torch.searchsorted(self.keys, asked)
        places = torch.where(self.keys[places] == asked, places, len(self.keys) - 1)
        tokens, numbers, rewards, limits = (
            torch.cat([first[self.rows], following[places].flatten(1)], 1)  # (rows, tokens to reward)
            for first, following in zip(self.first, self.following)
        )
        counts = so_far.new_zeros(len(so_far), self.base).scatter_add_(1, so_far, torch.ones_like(so_far))
        rewards = torch.where(counts.gather(1, numbers) < limits, rewards, 0)
        return scores.scatter_add_(1, tokens, rewards.to(scores.dtype))

    def keep_rows(self, rows: Tensor) -> None:
        """Removes the state of all rows but these; the search calls this when it drops finished sentences."""
        self.rows = self.rows[rows]


def _table(keys: np.ndarray, tokens: np.ndarray, values: Sequence[np.ndarray], others: Any) -> list[Tensor]:
    """Returns sorted keys, and for each its tokens (keys, most), their numbers, largest rewards and limits (`values`);
    where a key has fewer, token 0 gets nothing. Keys of -1 are left out, `others` are there without tokens."""
    order = np.lexsort((-values[1], tokens, keys))
    keys, tokens = keys[order], tokens[order]
    new = np.append(True, (keys[1:] != keys[:-1]) | (tokens[1:] != tokens[:-1]))[: len(keys)] & (keys >= 0)
    keys = keys[new]
    there = np.union1d(keys, others)
    rows, starts = np.searchsorted(there, keys), np.searchsorted(keys, there)
    columns = np.arange(len(keys)) - starts[rows]
    found = [torch.from_numpy(there)]
    for part in (tokens[new], *(value[order][new] for value in values)):
        table = np.zeros((len(there), int(columns.max(initial=0)) + 1), part.dtype)
        table[rows, columns] = part
        found.append(torch.from_numpy(table))
    return found
