"""Batches for decoding: token sequences sorted by length, cut by a budget of tokens, padded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def batches_by_tokens(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices in batches of at most `batch_tokens` with padding (one sequence at least), longest first.

    The longest come first so that a batch too large for the memory shows at once, not after an hour.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= batch_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def pad(sequences: Sequence[Sequence[int]], pad_token_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(batch, longest) token ids, padded on the right, and the attention mask."""
    longest = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(sequences), longest), pad_token_id)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    return ids.to(device), mask.to(device)
