"""Slow reference of extended cross-attention: the thesis's equations 5.1-5.8, one target position after the other.

Written from the thesis, chapter 5: loops over sentences, target positions, heads and source positions, in float64.
Matrices are as printed, W x with W (out, in); weights of a head are the rows of that head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Weights:
    """W_q^1, W_k, W_v, W_o (d, d) with biases; what a member adds, None where it does not."""

    query: Tensor
    key: Tensor  # (d, d), or (d, 2d) over [h ; f~]
    value: Tensor
    output: Tensor
    query_bias: Tensor
    key_bias: Tensor
    value_bias: Tensor
    output_bias: Tensor
    query_words: Tensor | None = None  # of e~, (d, d)
    query_extra: Tensor | None = None  # W_q^2: (heads, d_h, d_h), (d, d) if full, or (heads, d_h, 1)
    attention: Tensor | None = None  # W_att (d, d)
    context: Tensor | None = None  # W_ctx: (heads, d, d_h), or (d, d) if full


def softmax(scores: list[Tensor]) -> list[Tensor]:
    """Of a list of numbers."""
    largest = max(float(score.detach()) for score in scores)
    powers = [(score - largest).exp() for score in scores]
    return [power / sum(powers) for power in powers]


def fertility(state: Tensor, v: Tensor, maximum: float) -> Tensor:
    """phi_j = phi_max sigmoid(v^T h_j)."""
    return maximum / (1 + torch.exp(-(v @ state)))


def attention(
    member: str,
    target: Tensor,
    source: Tensor,
    source_real: Tensor,
    target_real: Tensor,
    weights: Weights,
    heads: int,
    source_words: Tensor | None = None,
    target_words: Tensor | None = None,
    fertilities: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What the layer returns (batch, target, d), and its weights over the source (batch, heads, target, source).

    target: s (batch, target, d); source: h (batch, source, d); *_real: False is padding; *_words: f~ and e~, the shapes
    of h and s; fertilities: phi (batch, source). A padding position of the target leaves what the next one remembers.
    """
    batch, steps, width = target.shape
    size, places = width // heads, source.shape[1]
    maps = torch.zeros(batch, heads, steps, places, dtype=torch.float64)
    outputs = []
    for b in range(batch):
        visible = [j for j in range(places) if source_real[b, j]]
        state = {j: source[b, j] for j in visible}
        if source_words is not None:
            state = {j: torch.cat([state[j], source_words[b, j]]) for j in visible}
        keys = {j: weights.key @ state[j] + weights.key_bias for j in visible}
        values = {j: weights.value @ state[j] + weights.value_bias for j in visible}
        context = torch.zeros(width, dtype=torch.float64)  # c_0 = 0
        last = [{j: torch.zeros((), dtype=torch.float64) for j in visible} for _ in range(heads)]
        total = [dict(row) for row in last]
        for i in range(steps):
            query = weights.query @ target[b, i] + weights.query_bias
            if target_words is not None:
                query = query + weights.query_words @ target_words[b, i]
            contexts, alphas = [], []
            for m in range(heads):
                part = slice(m * size, (m + 1) * size)
                scores = []
                for j in visible:
                    q = query[part]
                    if member == "previous-context-head":  # (5.5)
                        q = q + weights.query_extra[m] @ context[part]
                    elif member == "previous-context-full":
                        q = q + weights.query_extra[part] @ (weights.attention @ context)
                    elif member == "previous-weight":  # (5.6)
                        q = q + weights.query_extra[m] @ last[m][j].view(1)
                    elif member == "accumulated-weight":  # (5.7)
                        q = q + weights.query_extra[m] @ total[m][j].view(1)
                    elif member == "fertility":
                        q = q + weights.query_extra[m] @ (total[m][j] / fertilities[b, j]).view(1)
                    scores.append(keys[j][part] @ q / math.sqrt(size))  # (5.1)
                read = [values[j][part] for j in visible]
                if member.startswith("key-value"):  # (5.8)
                    if member == "key-value-full":
                        new = weights.context @ (weights.attention @ context)
                    else:
                        new = weights.context[m] @ context[part]
                    key = (weights.key @ new + weights.key_bias)[part]
                    scores.append(key @ query[part] / math.sqrt(size))
                    read.append((weights.value @ new + weights.value_bias)[part])
                alpha = softmax(scores)  # (5.2)
                contexts.append(sum(a * v for a, v in zip(alpha, read, strict=True)))  # (5.3)
                alphas.append(dict(zip(visible, alpha)))
                for j in visible:
                    maps[b, m, i, j] = alphas[m][j].detach()
            new_context = torch.cat(contexts)
            outputs.append(weights.output @ new_context + weights.output_bias)
            if target_real[b, i]:
                context, last = new_context, alphas
                total = [{j: row[j] + alpha[j] for j in visible} for row, alpha in zip(total, alphas)]
    return torch.stack(outputs).view(batch, steps, width), maps
