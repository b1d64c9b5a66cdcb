"""Attention distance: how far from a position the attention of a head reaches, in positions.

Reference: Ampomah et al. 2020, "Every Layer Counts", PBML 115, equations 13 and 14 (after Vig and Belinkov 2019);
thesis on joint attention, section 3.5.3.

(13) D_h = sum_x sum_i sum_{j<=i} w_ij (i - j) / sum_x sum_i sum_{j<=i} w_ij          (14) D = mean over heads of D_h

Departs: the sums of (13) leave out j > i, although the encoder attends to both sides. Range "all" takes every real j,
with |i - j|. With `renormalize` the weights of each i sum to 1 over the range, so that every position counts the same;
as printed, a position counts by how much of its attention goes to the left.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_mlnmt.analysis.ranges import Range, weights_in_range


def distance_sums(
    weights: Tensor, real: Tensor, positions: Range = "printed", renormalize: bool = False
) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of (13) over a batch; add them up over the corpus, then divide.

    weights (batch, ..., time, time), such as (batch, heads, time, time); real (batch, time), False at padding.
    Returns two tensors (...), float64.
    """
    chosen = weights_in_range(weights, real, positions, renormalize)
    place = torch.arange(weights.shape[-1], device=weights.device)
    gaps = (place[:, None] - place[None, :]).abs()
    return (chosen * gaps).sum((0, -2, -1)), chosen.sum((0, -2, -1))
