"""Slow reference of layer aggregation: the thesis's equations 3.1-3.5 with loops over sentences, positions and layers.

Features are lists f^1 .. f^n of (batch, source, d) tensors, lowest layer first; weights W are written as in f W.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_sum(features: list[Tensor], weights: list[Tensor]) -> Tensor:
    """Equation 3.1."""
    batch, source, width = features[0].shape
    rows = []
    for b in range(batch):
        for j in range(source):
            total = torch.zeros(width, dtype=torch.float64)
            for feature, weight in zip(features, weights, strict=True):
                total = total + feature[b, j] @ weight
            rows.append(total)
    return torch.stack(rows).view(batch, source, width)


def layer_norm(row: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """One position's layer normalisation."""
    mean = sum(row) / len(row)
    variance = sum((x - mean) ** 2 for x in row) / len(row)
    return (row - mean) / (variance + 1e-5).sqrt() * scale + shift


def aggregate(features: list[Tensor], unit: dict[str, Tensor]) -> Tensor:
    """Equation 3.3: LN(FFN(concat(r)) + sum r), FFN(x) = relu(x W_1 + b_1) W_2 + b_2."""
    batch, source, width = features[0].shape
    rows = []
    for b in range(batch):
        for j in range(source):
            together = torch.cat([feature[b, j] for feature in features])
            hidden = together @ unit["w1"] + unit["b1"]
            hidden = torch.where(hidden > 0, hidden, torch.zeros_like(hidden))
            total = hidden @ unit["w2"] + unit["b2"]
            for feature in features:
                total = total + feature[b, j]
            rows.append(layer_norm(total, unit["scale"], unit["shift"]))
    return torch.stack(rows).view(batch, source, width)


def iterative_sum(features: list[Tensor], weights: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Equation 3.2; weights of steps 2 .. n: (W^a of the layer, W^b of the result so far)."""
    result = features[0]
    for feature, pair in zip(features[1:], weights, strict=True):
        result = weighted_sum([feature, result], list(pair))
    return result


def iterative_aggregate(features: list[Tensor], units: list[dict[str, Tensor]]) -> Tensor:
    """Equation 3.5."""
    result = features[0]
    for feature, unit in zip(features[1:], units, strict=True):
        result = aggregate([feature, result], unit)
    return result


def transparent(states: list[Tensor], weights: Tensor, decoder_layer: int) -> Tensor:
    """What decoder layer m reads: sum over i = 0 .. L of w_{i,m} f^i; weights (L + 1, L_d)."""
    total = torch.zeros_like(states[0])
    for i, state in enumerate(states):
        total = total + weights[i, decoder_layer] * state
    return total
