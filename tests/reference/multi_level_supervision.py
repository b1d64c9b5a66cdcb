"""Slow reference of multi-level supervision: the thesis's equations 4.1 to 4.3, one number at a time.

Written from the paper: loops over sentences, positions, auxiliaries and the vocabulary, in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor


def fuse(hidden: Tensor, features: list[Tensor], weights: list[Tensor]) -> Tensor:
    """(4.2), (4.3): h + sum_i f^i W^i; hidden and each f^i (batch, target, d), each W^i (d, d) as in f W."""
    rows = []
    for b in range(hidden.shape[0]):
        for t in range(hidden.shape[1]):
            z = torch.zeros(hidden.shape[2], dtype=torch.float64)
            for feature, weight in zip(features, weights, strict=True):
                for source, row in zip(feature[b, t], weight, strict=True):
                    z = z + source * row
            rows.append(hidden[b, t] + z)
    return torch.stack(rows).view(hidden.shape)


def loss(states: Tensor, embeddings: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Label-smoothed cross-entropy of one decoder, summed over the positions whose label is not -100."""
    total = torch.zeros((), dtype=torch.float64)
    for b in range(labels.shape[0]):
        for t in range(labels.shape[1]):
            if labels[b, t] == -100:
                continue
            scores = [states[b, t] @ row for row in embeddings]
            normaliser = sum(score.exp() for score in scores).log()
            for word, score in enumerate(scores):
                share = smoothing / len(scores) + (1 - smoothing) * (word == labels[b, t].item())
                total = total - share * (score - normaliser)
    return total


def objective(
    main: Tensor, auxiliaries: list[Tensor], embeddings: Tensor, labels: Tensor, gamma: float, smoothing: float
) -> tuple[Tensor, list[Tensor]]:
    """(4.1), J summed over the target positions, and its parts: L_main, then gamma L_l of each auxiliary."""
    parts = [loss(main, embeddings, labels, smoothing)]
    for states in auxiliaries:
        parts.append(gamma * loss(states, embeddings, labels, smoothing))
    total = torch.zeros((), dtype=torch.float64)
    for part in parts:
        total = total + part
    return total, parts
