"""Slow reference of multi-layer multi-head attention: the thesis's equations 3.7-3.11, one number at a time.

Written from the paper: loops over sentences, target positions, heads, layers and source positions, in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Weights:
    """W_q^i, W_k^i, W_v^i for each layer i, each (d, d) as in s W, and W_o; biases likewise."""

    query: list[Tensor]
    key: list[Tensor]
    value: list[Tensor]
    output: Tensor
    query_bias: list[Tensor]
    key_bias: list[Tensor]
    value_bias: list[Tensor]
    output_bias: Tensor


def softmax(scores: list[Tensor]) -> list[Tensor]:
    """Of a list of numbers."""
    largest = max(float(score.detach()) for score in scores)
    powers = [(score - largest).exp() for score in scores]
    return [power / sum(powers) for power in powers]


def multi_layer_attention(
    target: Tensor, features: list[Tensor], real: Tensor, weights: Weights, heads: int, u0: int, u1: int
) -> tuple[Tensor, Tensor]:
    """O (batch, target, d), and the attention weights (batch, n, heads, target, source), equal for all i if u0 = 0.

    target: s (batch, target, d); features: f^1 .. f^n (batch, source, d); real: (batch, source), False is padding.
    """
    batch, steps, width = target.shape
    size = width // heads
    maps = torch.zeros(batch, len(features), heads, steps, features[0].shape[1], dtype=torch.float64)
    outputs = []
    for b in range(batch):
        places = [j for j in range(features[0].shape[1]) if real[b, j]]
        for t in range(steps):
            contexts: list[list[Tensor]] = [[] for _ in features]
            for h in range(heads):
                part = slice(h * size, (h + 1) * size)
                scores = []  # (3.7)
                for i, feature in enumerate(features):
                    query = (target[b, t] @ weights.query[i] + weights.query_bias[i])[part]
                    keys = [(feature[b, j] @ weights.key[i] + weights.key_bias[i])[part] for j in places]
                    scores.append([query @ key / math.sqrt(size) for key in keys])
                joint = softmax([sum(column) for column in zip(*scores, strict=True)])
                for i, feature in enumerate(features):
                    alpha = softmax(scores[i]) if u0 == 1 else joint  # (3.8), (3.9)
                    context = torch.zeros(size, dtype=torch.float64)
                    for weight, j in zip(alpha, places, strict=True):
                        context = context + weight * (feature[b, j] @ weights.value[i] + weights.value_bias[i])[part]
                        maps[b, i, h, t, j] = weight.detach()
                    contexts[i].append(context)
            whole = [torch.cat(parts) for parts in contexts]  # c^i, the heads side by side (3.10)
            combined = torch.cat(whole) if u1 == 0 else sum(whole[1:], start=whole[0])  # (3.11)
            outputs.append(combined @ weights.output + weights.output_bias)
    return torch.stack(outputs).view(batch, steps, width), maps
