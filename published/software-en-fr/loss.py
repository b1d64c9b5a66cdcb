"""Label-smoothed cross-entropy: the training loss of every model.

Reference: Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7; thesis on joint attention, s. 3.3.

(1) loss = sum over target positions of  lse(z) - (1 - eps) z_y - eps mean_v z_v,   z = h E^T + b

That is (1 - eps) times the negative log-likelihood plus eps times the cross-entropy with the uniform distribution
(as Trainer's LabelSmoother).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .linear import faster, project


def head_cross_entropy(
    head: nn.Module, states: Tensor, labels: Tensor, label_smoothing: float = 0.0, logits: Tensor | None = None
) -> Tensor:
    """Computes the loss, equation 1, of states (..., d_model) and labels (...) by the output projection `head`;
    `logits` are used instead of states where they are given for every position."""
    if logits is not None and logits.shape[:-1] == labels.shape:
        return cross_entropy(logits, labels, label_smoothing)
    total = faster("head_cross_entropy", head, states, labels, label_smoothing)
    return cross_entropy(project(head, states), labels, label_smoothing) if total is None else total


def logits_of(head: nn.Module, states: Tensor, logits_to_keep: int | Tensor = 0) -> Tensor:
    """Computes logits of states (batch, time, d_model). `logits_to_keep`: for how many of the last positions (0: for
    all), or a tensor of positions."""
    kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
    return project(head, states[:, kept])


def divisor(labels: Tensor, items: int | Tensor | None) -> int | Tensor:
    """Returns a summed loss's divisor, at least 1: `items`, or for None the number of labels other than -100."""
    items = (labels != -100).sum() if items is None else items
    return items.clamp(min=1) if isinstance(items, Tensor) else max(items, 1)


def following_labels(labels: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Returns labels (batch, time) shifted left by one, so that the label of each position of a causal model is the
    next token; -100 at the end, and where the mask (batch, time) is 0."""
    if labels is None:
        return None
    following = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    if mask is None or mask.shape != labels.shape:
        return following
    return torch.where(mask == 0, -100, following)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Computes the loss, equation 1, from logits (..., vocabulary), summed over positions whose label is not -100."""
    real = labels != -100
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    target = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    loss = logits.logsumexp(-1) - (1.0 - label_smoothing) * target
    if label_smoothing:
        loss = loss - label_smoothing * logits.mean(-1)
    return torch.where(real, loss, 0.0).sum()
