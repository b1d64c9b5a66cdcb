"""Slow reference of the dual contextual module: the thesis's equations 5.4 to 5.7, one position at a time.

Written from the paper: loops over sentences, positions, heads and window positions, in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-5  # of the layer norms


@dataclass
class Weights:
    """Matrices as in r W: W^r (f d, 2d), W_q, W_k, W_v of both units (d, d), W_z (2d, d); and the biases."""

    convolution: Tensor
    convolution_bias: Tensor
    local_norm: tuple[Tensor, Tensor]  # scale and shift
    local_unit: dict[str, tuple[Tensor, Tensor]]  # "q", "k", "v" -> matrix, bias
    global_unit: dict[str, tuple[Tensor, Tensor]]
    output: Tensor
    output_bias: Tensor
    norm: tuple[Tensor, Tensor]


def layer_norm(vector: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    centred = vector - vector.sum() / len(vector)
    return scale * centred / (centred.pow(2).sum() / len(vector) + EPSILON).sqrt() + shift


def glu(vector: Tensor) -> Tensor:
    half = len(vector) // 2
    return vector[:half] / (1 + (-vector[half:]).exp())


def local_context(r: Tensor, real: list[bool], weights: Weights, kernel: int, causal: bool) -> list[Tensor]:
    """Equation 5.4 for one sentence (time, d)."""
    before = kernel - 1 if causal else kernel // 2
    result = []
    for t in range(len(r)):
        window = []
        for place in range(t - before, t - before + kernel):
            inside = 0 <= place < len(r) and real[place]
            window.append(r[place] if inside else torch.zeros_like(r[t]))
        gated = glu(torch.cat(window) @ weights.convolution + weights.convolution_bias)
        result.append(layer_norm(gated + r[t], *weights.local_norm))
    return result


def feature_interaction(
    a: list[Tensor], b: list[Tensor], real: list[bool], unit: dict[str, tuple[Tensor, Tensor]], heads: int, causal: bool
) -> tuple[list[Tensor], Tensor]:
    """FI of equation 5.5: its output per position, and the weights (heads, time, time)."""
    width, length = len(a[0]), len(a)
    size = width // heads
    maps = torch.zeros(heads, length, length, dtype=torch.float64)
    project = {name: (lambda x, m=matrix, c=bias: x @ m + c) for name, (matrix, bias) in unit.items()}
    outputs = []
    for t in range(length):
        parts = []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            places = [j for j in range(length) if real[j] and (j <= t or not causal)]
            query = project["q"](a[t])[part]
            powers = [(query @ project["k"](b[j])[part] / math.sqrt(size)).exp() for j in places]
            context = torch.zeros(size, dtype=torch.float64)
            for power, j in zip(powers, places, strict=True):
                alpha = power / sum(powers)
                maps[h, t, j] = alpha.detach()
                context = context + alpha * project["v"](b[j])[part]
            parts.append(context)
        outputs.append(torch.cat(parts))
    return outputs, maps


def dual_context(
    r: Tensor, real: Tensor, weights: Weights, heads: int, kernel: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """z_f (batch, time, d), and the attention weights (batch, 2, heads, time, time), local before global.

    r: (batch, time, d); real: (batch, time), False is padding; causal: the decoder's form.
    """
    outputs, maps = [], []
    for sentence, flags in zip(r, real.tolist(), strict=True):
        places = list(sentence)
        local = local_context(sentence, flags, weights, kernel, causal)
        h_l, map_l = feature_interaction(places, local, flags, weights.local_unit, heads, causal)  # (5.5)
        h_g, map_g = feature_interaction(places, places, flags, weights.global_unit, heads, causal)
        rows = []
        for t in range(len(sentence)):
            z = torch.cat([h_l[t], h_g[t]]) @ weights.output + weights.output_bias  # (5.6)
            rows.append(layer_norm(z + sentence[t], *weights.norm))  # (5.7)
        outputs.append(torch.stack(rows))
        maps.append(torch.stack([map_l, map_g]))
    return torch.stack(outputs), torch.stack(maps)
