"""The products of an attention in a step of a search: masks that are added, energies, contexts.

Equation numbers are those of attention.py. Query (sentences, heads, width, d_h): width beams, one position each.
"""

from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.search.cache import HeadMatrices


class AdditiveMask:
    """What is added to the energies: (sentences, 1, width or 1, slots), 0 or the least number."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.repeated: dict[int, Tensor] = {}

    def of_heads(self, heads: int) -> Tensor:
        """Repeated for each head, (sentences x heads, width or 1, slots): once for all layers that read it."""
        if heads not in self.repeated:
            self.repeated[heads] = self.tensor.expand(-1, heads, -1, -1).flatten(0, 1)
        return self.repeated[heads]


def attention_contexts(query: Tensor, source: HeadMatrices, mask: AdditiveMask, scaling: float) -> Tensor:
    """Equation 1: query (sentences, heads, width, d_h) -> (sentences, heads, width, value's width)."""
    weights = _energies(query, source, mask, scaling).softmax(-1)
    if weights.dtype != source.values.dtype:
        weights = weights.to(source.values.dtype)
    return torch.bmm(weights, source.values).view(*query.shape[:3], -1)


def attention_energies(query: Tensor, source: HeadMatrices, mask: AdditiveMask, scaling: float) -> Tensor:
    """Query (sentences, heads, width, d_h) -> what softmax is taken of, (sentences, heads, width, slots)."""
    return _energies(query, source, mask, scaling).view(*query.shape[:3], -1)


def _energies(query: Tensor, source: HeadMatrices, mask: AdditiveMask, scaling: float) -> Tensor:
    """The same as (sentences x heads, width, slots); product, scaling and mask in one operation."""
    _, heads, width, size = query.shape
    query = query.reshape(-1, width, size)
    scores = torch.baddbmm(mask.of_heads(heads), query, source.keys, alpha=scaling)
    if scores.dtype == torch.float32:  # a call that changes nothing costs as much as a small operation
        return scores
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def weighted_values(weights: Tensor, source: HeadMatrices) -> Tensor:
    """Weights (sentences, heads, width, slots) -> (sentences, heads, width, value's width)."""
    output = torch.bmm(weights.to(source.values.dtype).flatten(0, 1), source.values)
    return output.view(*weights.shape[:3], -1)


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **kwargs):
    """What modules call for attention in a search on a CPU: shapes as in attention.py."""
    source = HeadMatrices.of(key, value)
    return attention_contexts(query, source, AdditiveMask(mask), scaling).transpose(1, 2), None
