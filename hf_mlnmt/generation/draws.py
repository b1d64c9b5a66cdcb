"""Sampling whose draws follow from (seed, text, piece, position) alone: whatever batch a text is in, and with whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


class TextDraws(LogitsProcessor):
    """Chooses the next token of each row by that row's own number in [0, 1), and leaves the search nothing to choose.

    The token is the first one at which the cumulated probabilities pass the number (inversion): one number a token, not
    one for each entry of the vocabulary. Give it to greedy search: the chosen token's score is then infinite.

    Args:
        seed: of all draws.
        places: (number of the text, number of the piece in it) of each row.
        temperature, top_k, top_p: as in Transformers; None changes nothing.
    """

    def __init__(
        self,
        seed: int,
        places: Sequence[tuple[int, int]],
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> None:
        numbers = np.array(places, np.uint64).reshape(-1, 2)
        self.keys = mixed(mixed(mixed(np.uint64(seed)) + numbers[:, 0]) + numbers[:, 1])  # (rows,)
        self.warpers: list[Any] = []
        if temperature is not None and temperature != 1:
            self.warpers.append(TemperatureLogitsWarper(temperature))
        if top_k:
            self.warpers.append(TopKLogitsWarper(top_k))
        if top_p is not None and top_p < 1:
            self.warpers.append(TopPLogitsWarper(top_p))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids (rows, length), scores (rows, vocabulary) -> the same, the drawn tokens' scores infinite."""
        chosen = scores
        for warper in self.warpers:
            chosen = warper(input_ids, chosen)
        sums = chosen.softmax(dim=-1).to(torch.float64).cumsum(dim=-1)  # (rows, vocabulary)
        numbers = torch.from_numpy(unit_interval(self.keys, input_ids.shape[1])).to(sums.device)  # (rows,)
        tokens = torch.searchsorted(sums, numbers.unsqueeze(-1) * sums[:, -1:], right=True)  # (rows, 1)
        return scores.scatter(1, tokens.clamp(max=scores.shape[1] - 1), torch.inf)

    def keep_rows(self, rows: Tensor) -> None:
        """Only these rows stay: the search leaves sentences out that have ended."""
        self.keys = self.keys[rows.cpu().numpy()]


def unit_interval(keys: np.ndarray, position: int) -> np.ndarray:
    """A number in [0, 1) for each key at a position of its text: float64 (keys,), of 53 bits."""
    return (mixed(keys + np.uint64(position)) >> np.uint64(11)) * 2.0**-53


def mixed(values: np.ndarray | np.uint64) -> np.ndarray:
    """64 bits each that look random and are the same in every process: splitmix64 (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        state = np.atleast_1d(values) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))
