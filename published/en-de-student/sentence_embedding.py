"""Sentence embeddings: a whole source as one vector, made by a translation model.

| pooling | of the attention bridge (bridge.py): M (k, d) | of any other model: the encoder's states (n, d) |
| --- | --- | --- |
| "flat" | M row by row, k d numbers | - |
| "mean" | the mean of M's rows, d numbers | the mean over real positions, d numbers |
| a number r | row r of M, d numbers | - |
"""

from __future__ import annotations

import torch
from torch import Tensor


def pooled_rows(memory: Tensor, pooling: str | int) -> Tensor:
    """Pools M (batch, k, d) to (batch, k d) or (batch, d). Raises: ValueError for another pooling."""
    if pooling == "flat":
        return memory.flatten(1)
    if pooling == "mean":
        return memory.mean(1)
    if isinstance(pooling, int) and not isinstance(pooling, bool) and 0 <= pooling < memory.shape[1]:
        return memory[:, pooling]
    raise ValueError(f"pooling={pooling!r}: give flat, mean, or a row's number from 0 to {memory.shape[1] - 1}")


def pooled_states(states: Tensor, mask: Tensor | None, pooling: str | int) -> Tensor:
    """Pools states (batch, source, d), mask (batch, source), to (batch, d). Raises: ValueError but for "mean"."""
    if pooling != "mean":
        raise ValueError(f"pooling={pooling!r}: a model without an attention bridge has the mean of its states alone")
    if mask is None:
        return states.mean(1)
    real = mask.unsqueeze(-1).to(states.dtype)
    return torch.where(real > 0, states, 0.0).sum(1) / real.sum(1).clamp(min=1)
