"""Multi-head attention of the baseline: `SelfAttention`, `CrossAttention`, and their common computation, `attend`.

Reference: Vaswani et al. 2017, "Attention Is All You Need", equation 1; thesis on joint attention, section 2.3.2.

(1) head_h = softmax(Q_h K_h^T / sqrt(d_h)) V_h        (2) output = concat(head_1 .. head_H) W_o

Projections of the same input share one matrix (`qkv_proj`, `kv_proj`): fewer and larger products.
Departs: no bias in the four projections unless `attention_bias` (the parameter counts of the papers fit that).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .linear import faster, is_asynchronous, project


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """Computes equation 1 by plain operations; the only implementation that also returns the weights.

    Shapes: query (batch, heads, target, d_h); key, value (batch, heads, source, d_h); additive mask
    (batch, 1, target or 1, source). Returns (batch, target, heads, d_h) and weights (batch, heads, target, source).
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    weights = nn.functional.dropout(weights.to(value.dtype), p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2), weights


def causal_mask(config, states: Tensor, attention_mask: Tensor | None, cache: Cache | None = None) -> Tensor | None:
    """Returns the mask that lets each position attend to itself and to earlier real positions; None where nothing is
    padding: then the flag `is_causal` of the attention is enough. Whether an attention_mask on a GPU has padding is not
    checked, as Python would wait for the GPU.

    Shapes: states (batch, time, d_model); attention_mask (batch, past + time), 0 at padding.
    """
    own = attention_mask is None and cache is None and config._attn_implementation == "sdpa"
    if own and states.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # while a CUDA graph is captured, Transformers would make a mask, which slows attention
    known = attention_mask is None or not is_asynchronous(states)
    return create_causal_mask(config, states, attention_mask, cache, allow_is_causal_skip=known)


def source_mask(config, states: Tensor, attention_mask: Tensor | None, memory: Tensor | None = None) -> Tensor | None:
    """Returns the mask that lets every position attend to all real positions of `memory` (None: of `states`); None
    where nothing is padding. Whether an attention_mask on a GPU has padding is not checked."""
    known = attention_mask is None or not is_asynchronous(states)
    return create_bidirectional_mask(
        config, states, attention_mask, encoder_hidden_states=memory, allow_is_bidirectional_skip=known
    )


def split_heads(states: Tensor, heads: int) -> Tensor:
    """Splits (batch, time, heads * d_h) into (batch, heads, time, d_h)."""
    return states.unflatten(-1, (heads, -1)).transpose(1, 2)


class Attention(nn.Module):
    """The base of every attention: holds sizes and output projection, and calls eager, SDPA or flash attention."""

    def __init__(self, config, heads: int, layer_idx: int = 0, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.heads = heads
        self.layer_idx = layer_idx  # index of the layer's keys and values in the cache
        self.is_causal = is_causal  # SDPA and flash read it where there is no mask; False in cross-attention
        self.scaling = (config.d_model // heads) ** -0.5
        self.out_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        attention_function: Callable | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes equation 1 by `attention_function`, or by the implementation that the config names.

        Returns (batch, target, heads * d_h) and the weights, or None.
        """
        interface = attention_function or ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention
        )
        dropout = self.config.attention_dropout if self.training else 0.0
        if self.training and attention_function is None and self.config._attn_implementation == "sdpa":
            causal = kwargs.get("is_causal")
            causal = mask is None and query.shape[2] > 1 and (self.is_causal if causal is None else causal)
            output = faster("short_attention", query, key, value, mask, self.scaling, dropout, causal)
            if output is not None:
                return output, None
        interface = faster("prepared_attention", interface, query) or interface
        output, weights = interface(self, query, key, value, mask, dropout=dropout, scaling=self.scaling, **kwargs)
        return output.reshape(*output.shape[:2], -1), weights

    def in_groups(self, weights: Tensor, value: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        """Returns output and weights (batch, groups, heads, time, keys) of several attentions computed in one call. The
        output is computed again from the weights, so that these get a gradient."""
        weights = weights.unflatten(1, (groups, self.heads))
        return torch.matmul(weights.flatten(1, 2), value).transpose(1, 2).flatten(2), weights


class SelfAttention(Attention):
    """Self-attention; in the decoder `is_causal` is True, and a cache, where given, stores keys and values."""

    def __init__(self, config, heads: int, layer_idx: int = 0, is_causal: bool = False):
        super().__init__(config, heads, layer_idx, is_causal)
        self.qkv_proj = nn.Linear(config.d_model, 3 * config.d_model, bias=config.attention_bias)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, cache: Cache | None = None, **kwargs
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from each position of hidden_states (batch, time, d_model) to all that the mask shows, those in the
        cache included; returns the same shape and, if eager, weights (batch, heads, time, keys), else None."""
        states = project(self.qkv_proj, hidden_states)
        query, key, value = (split_heads(x, self.heads) for x in states.chunk(3, dim=-1))
        if cache is not None:
            cache = getattr(cache, "self_attention_cache", cache)
            key, value = cache.update(key, value, self.layer_idx)
        output, weights = self.attend(query, key, value, attention_mask, **kwargs)
        return project(self.out_proj, output), weights


class CrossAttention(Attention):
    """Attention from target to source, whose keys and values are projected once per sentence, then cached."""

    def __init__(self, config, heads: int, layer_idx: int = 0):
        super().__init__(config, heads, layer_idx, is_causal=False)
        self.q_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.kv_proj: nn.Module = nn.Linear(config.d_model, 2 * config.d_model, bias=config.attention_bias)

    def forward(
        self,
        hidden_states: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from hidden_states (batch, target, d_model) to memory (batch, source, d_model); returns the shape of
        hidden_states and, if eager, weights (batch, heads, target, source), else None."""
        query = split_heads(project(self.q_proj, hidden_states), self.heads)
        key, value = cached_source(cache, self.layer_idx, self.project_source, memory)
        output, weights = self.attend(query, key, value, attention_mask, **kwargs)
        return project(self.out_proj, output), weights

    def project_source(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values of the source, each (batch, heads, source, d_h)."""
        key, value = (split_heads(x, self.heads) for x in project(self.kv_proj, memory).chunk(2, dim=-1))
        return key, value


def cached_source(
    cache: EncoderDecoderCache | None, slot: int, project: Callable, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the source's keys and values: those in the cache's slot, or `project(memory)`, which it stores there."""
    if cache is None:
        return project(memory)
    if cache.is_updated.get(slot):
        layer: Any = cache.cross_attention_cache.layers[slot]
        return layer.keys, layer.values
    key, value = cache.cross_attention_cache.update(*project(memory), slot)
    cache.is_updated[slot] = True
    return key, value
