"""Slow reference of the simpler simple recurrent unit: Kim et al. 2019, section 4.3, one number at a time, float64."""

from __future__ import annotations

import torch
from torch import Tensor


def product(matrix: Tensor, vector: Tensor) -> list[Tensor]:
    """W x, with W (outputs, inputs)."""
    return [sum(matrix[o, i] * vector[i] for i in range(len(vector))) for o in range(len(matrix))]


def ssru(x: Tensor, real: Tensor, weight: Tensor, forget_weight: Tensor, forget_bias: Tensor) -> Tensor:
    """h (batch, time, d) from x (batch, time, d); real: (batch, time), False is padding, which no state knows of."""
    result = torch.zeros(x.shape, dtype=torch.float64)
    for sentence in range(x.shape[0]):
        state: list = [torch.zeros((), dtype=torch.float64)] * x.shape[2]
        for t in range(x.shape[1]):
            if not real[sentence, t]:
                continue
            candidate, gates = product(weight, x[sentence, t]), product(forget_weight, x[sentence, t])
            for o in range(x.shape[2]):
                forget = 1 / (1 + torch.exp(-(gates[o] + forget_bias[o])))
                state[o] = forget * state[o] + (1 - forget) * candidate[o]
            result[sentence, t] = torch.stack([c if c > 0 else 0 * c for c in state])
    return result


def layer_norm(vector: Tensor, scale: Tensor, shift: Tensor, epsilon: float = 1e-6) -> Tensor:
    centred = vector - vector.sum() / len(vector)
    return scale * centred / (centred.pow(2).sum() / len(vector) + epsilon).sqrt() + shift
