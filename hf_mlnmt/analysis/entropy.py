"""Attention entropy: how widely a head spreads its attention from one position, in nats.

Reference: Ampomah et al. 2020, "Every Layer Counts", PBML 115, equations 15 and 16 (after Ghader and Monz 2017); thesis
on joint attention, section 3.5.3.

(15) E_h(x_i) = - sum_{j<=i} w_ij log w_ij        (16) E(x_i) = mean over heads of E_h(x_i); then the mean over all x_i

Departs: range "all" takes every real j, as in distance.py. (15) has the weights as they are, which over j <= i do not
sum to 1; `renormalize` makes them a distribution, whose entropy is at most log i.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_mlnmt.analysis.ranges import Range, weights_in_range


def entropy_sums(
    weights: Tensor, real: Tensor, positions: Range = "printed", renormalize: bool = False
) -> tuple[Tensor, Tensor]:
    """Sum of (15) over the real positions of a batch, and how many they are; add up over the corpus, then divide.

    weights (batch, ..., time, time), real (batch, time), False at padding. Returns two tensors (...), float64. With
    `renormalize` a position whose weights are all zero in the range has no entropy and is not counted.
    """
    chosen = weights_in_range(weights, real, positions, renormalize)
    entropies = -torch.xlogy(chosen, chosen).sum(-1)  # (batch, ..., time)
    counted = real.view(real.shape[0], *[1] * (weights.dim() - 3), -1).expand(entropies.shape)
    if renormalize:
        counted = counted & (chosen.sum(-1) > 0)
    return entropies.sum((0, -1)), counted.double().sum((0, -1))
