"""Which pairs of positions a statistic of self-attention looks at: real ones, and j <= i or all of them."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Range = Literal["printed", "all"]
"""printed: j <= i, the sums of equations 13 and 15 as they are printed; all: every real position."""
RANGES: tuple[Range, ...] = get_args(Range)


def weights_in_range(weights: Tensor, real: Tensor, positions: Range = "printed", renormalize: bool = False) -> Tensor:
    """Attention weights in float64, zero at padding and outside the range.

    weights (batch, ..., time, time): from position i (row) to position j. real (batch, time): False at padding.
    renormalize: each row is divided by its sum over the range; a row without any weight there stays zero.
    """
    time, middle = weights.shape[-1], [1] * (weights.dim() - 3)
    kept = (real[:, :, None] & real[:, None, :]).view(real.shape[0], *middle, time, time)
    if positions == "printed":
        kept = kept & torch.ones(time, time, dtype=torch.bool, device=weights.device).tril()
    chosen = weights.double().masked_fill(~kept, 0.0)
    if renormalize:
        sums = chosen.sum(-1, keepdim=True)
        chosen = chosen / sums.where(sums > 0, 1.0)
    return chosen
