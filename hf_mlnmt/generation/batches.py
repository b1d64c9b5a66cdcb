"""Batches for decoding: token sequences sorted by length, cut by a budget of tokens, padded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_mlnmt.errors import UserError
from hf_mlnmt.memory import memory_of_machine

GIB = 2**30


def batches_by_tokens(lengths: Sequence[int], batch_tokens: int, most: int | None = None) -> list[list[int]]:
    """Indices in batches of at most `batch_tokens` with padding and `most` sequences (one at least), longest first.

    The longest come first so that a batch too large for the memory shows at once, not after an hour.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size = len(batches[-1]) + 1 if batches else 0
        if batches and size * lengths[batches[-1][0]] <= batch_tokens and (most is None or size <= most):
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def sentences_that_fit(width: int, vocabulary: int, on_cpu: bool) -> int:
    """How many sentences with `width` beams, or draws, each can be searched at once in half of the memory.

    For the scores of all beams, thrice while they are compared, and for the table of what each beam looks back at.

    Raises: UserError if it is not even one.
    """
    of_sentence = 4 * width * (3 * vocabulary + 4 * width)  # bytes
    there = memory_of_machine(on_cpu)
    if of_sentence > there / 2:
        raise UserError(
            f"num_beams, or num_return_sequences, of {width:,}: one sentence alone takes {of_sentence / GIB:,.1f} GiB, "
            f"of {there / GIB:,.1f} that this machine has. Use fewer; 5 to 10 beams are usual."
        )
    return int(there / 2 // of_sentence)


def pad(
    sequences: Sequence[Sequence[int]], pad_token_id: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """(batch, longest) token ids, padded on the right, and the attention mask."""
    longest = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(sequences), longest), pad_token_id)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    return ids.to(device), mask.to(device)
