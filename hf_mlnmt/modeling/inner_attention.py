"""Inner attention: a sentence of any length as k weighted sums of its states, and the penalty on sums that are alike.

Reference: the paper on the attention bridge (bridge.py), section 2.2; Lin et al. 2017, "A Structured Self-Attentive
Sentence Embedding". Equation numbers are the first's.

(8) A = softmax over the positions of W_2 ReLU(W_1 H^T)      (9) M = A H      (10) ||A A^T - I||_F^2, for each sentence

H (source, d_h), W_1 (d_w, d_h), W_2 (k, d_w), A (k, source), M (k, d_h). Padding has weight 0 in A.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AttentionBridge(nn.Module):
    """Equations 8 and 9, for states of width d_h, with `heads` k and `inner` d_w; the paper prints no biases."""

    def __init__(self, width: int, inner: int, heads: int, bias: bool = False):
        super().__init__()
        self.inner_proj = nn.Linear(width, inner, bias=bias)  # W_1
        self.head_proj = nn.Linear(inner, heads, bias=bias)  # W_2

    def forward(self, states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """H (batch, source, d_h), mask (batch, source), 0 at padding -> M (batch, k, d_h) and A (batch, k, source)."""
        scores = self.head_proj(torch.relu(self.inner_proj(states))).transpose(1, 2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if mask is not None:
            scores = scores.masked_fill((mask == 0).unsqueeze(1), torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        return torch.matmul(weights.to(states.dtype), states), weights


def redundancy(weights: Tensor) -> Tensor:
    """Equation 10's penalty of each sentence: A (batch, k, source) -> (batch,).

    Where k is greater than the number n of a sentence's positions it cannot be less than k - n: A A^T has rank n.
    """
    excess = torch.matmul(weights, weights.transpose(1, 2)) - torch.eye(weights.shape[1]).to(weights)
    return excess.square().sum((1, 2))
