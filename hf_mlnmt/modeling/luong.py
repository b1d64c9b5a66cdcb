"""Luong's attention over the source, with the "general" score, and the attentional state.

Reference: Luong, Pham and Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation"; the paper
on inner attention, equations 6 and 7, whose g this is.

(1) score(s_t, h_i) = s_t^T W_a h_i      (2) a_t = softmax over i      (3) c_t = sum_i a_ti h_i
(4) attentional state = tanh(W_c [c_t ; s_t])

W_a h_i is computed once for all source positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .linear import matrix_of
from .loop_products import LoopProduct


class LuongAttention(nn.Module):
    """Equations 1 to 4 for states of width d."""

    def __init__(self, width: int, dropout: float = 0.0):
        """`dropout`: of the weights."""
        super().__init__()
        self.k_proj = nn.Linear(width, width, bias=False)  # W_a
        self.out_proj = nn.Linear(2 * width, width, bias=False)  # W_c
        self.dropout = nn.Dropout(dropout)

    def project_source(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """W_a h_i and h_i, (batch, 1, source, d) each: as keys and values of an attention with one head."""
        return self.k_proj(memory).unsqueeze(1), memory.unsqueeze(1)

    def loop_product(self, like: Tensor, dtype: torch.dtype) -> LoopProduct | None:
        """What multiplies by W_c at every position of a loop that has gradients; None: the layer is called."""
        return LoopProduct(*matrix_of(self.out_proj, like), dtype) if torch.is_grad_enabled() else None

    def forward(
        self,
        states: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        combine: LoopProduct | None = None,
    ) -> tuple[Tensor, Tensor]:
        """s (batch, time, d) -> attentional states (batch, time, d) and weights (batch, 1, time, source).

        Args:
            keys, values: what `project_source` returned.
            mask: (batch, 1, 1, source), added to the scores; None: the whole source is read.
            combine: `loop_product`, or None.
        """
        scores = torch.matmul(states.unsqueeze(1), keys.transpose(2, 3))
        if mask is not None:
            scores = scores + mask
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
        context = torch.matmul(self.dropout(weights) if self.training else weights, values).squeeze(1)
        return torch.tanh((combine or self.out_proj)(torch.cat([context, states], dim=-1))), weights


def additive_mask(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """(batch, source), 0 at padding -> (batch, 1, 1, source), 0 at what is read and a very low number elsewhere."""
    if mask is None:
        return None
    hidden = torch.zeros(mask.shape, dtype=like.dtype, device=mask.device)
    return hidden.masked_fill_(mask == 0, torch.finfo(like.dtype).min)[:, None, None, :]
