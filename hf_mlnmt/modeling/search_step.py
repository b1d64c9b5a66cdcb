"""A step of the baseline's decoder for the beams of a search, written out from its modules' weights.

Decoding on a CPU takes many small operations; called one by one, on (sentences x beams, d_model), they take less time
than through the modules. `TransformerForConditionalGeneration.plain_decoder` says which decoders this computes.
Equations are those of attention.py and layers.py; search_batch.py says what a step is given.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class PlainStep:
    """The decoder's layers and the output projection for one new position of every beam."""

    def __init__(self, decoder: Any, projection: Any):
        self.decoder, self.projection = decoder, projection

    def __call__(self, tokens: Tensor, position: int, cache: Any, visible: Tensor, source_mask: Tensor) -> Tensor:
        """tokens (sentences, width) at `position` -> logits (sentences, width, vocabulary)."""
        decoder = self.decoder
        states = nn.functional.embedding(tokens.flatten(), decoder.embed_tokens.weight)
        here = decoder.positions(1, position).to(states.dtype)
        states = torch.add(here, states, alpha=decoder.embed_scale)
        for layer, own, source in zip(decoder.layers, cache.own, cache.source):
            step = partial(attend_self, layer.self_attn, width=tokens.shape[1], slots=own, mask=visible)
            states = residual(layer.self_attn_sublayer, states, step)
            step = partial(attend_source, layer.source_attn, source=source, mask=source_mask)
            states = residual(layer.source_attn_sublayer, states, step)
            states = residual(layer.feed_forward_sublayer, states, partial(feed_forward, layer.feed_forward))
        logits = linear(normed(decoder.layer_norm, states), self.projection.weight)
        return logits.view(*tokens.shape, -1)


def residual(sublayer: Any, states: Tensor, compute: Any) -> Tensor:
    """Equation 3."""
    if sublayer.pre:
        return states + compute(normed(sublayer.layer_norm, states))
    return normed(sublayer.layer_norm, states + compute(states))


def normed(norm: Any, states: Tensor) -> Tensor:
    """Layer norm; or nothing, at the end of a post-norm stack."""
    if isinstance(norm, nn.Identity):
        return states
    return nn.functional.layer_norm(states, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def attend_self(module: Any, states: Tensor, width: int, slots: Any, mask: Tensor) -> Tensor:
    """Self-attention (sentences x width, d_model), over the slots of the cache that `mask` shows."""
    projected = linear(states, module.qkv_proj.weight, module.qkv_proj.bias)
    heads = projected.view(-1, width, 3, module.heads, states.shape[1] // module.heads).permute(2, 0, 3, 1, 4)
    query, key, value = heads.unbind(0)
    key, value = slots.update(key, value)
    return attend(module, query, key, value, mask)


def attend_source(module: Any, states: Tensor, source: Any, mask: Tensor) -> Tensor:
    """Attention over the source (sentences x width, d_model)."""
    query = linear(states, module.q_proj.weight, module.q_proj.bias)
    query = query.view(len(source.keys), -1, module.heads, states.shape[1] // module.heads).transpose(1, 2)
    return attend(module, query, source.keys, source.values, mask)


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Equations 1 and 2: query (sentences, heads, width, d_h) -> (sentences x width, d_model)."""
    output = mix(query, key, value, mask, module.scaling).flatten(2).flatten(0, 1)
    return linear(output, module.out_proj.weight, module.out_proj.bias)


def mix(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Equation 1: query (sentences, heads, width, d_h) -> (sentences, width, heads, value's width)."""
    sentences, heads, width, size = query.shape
    scores = torch.bmm(query.reshape(-1, width, size), key.transpose(2, 3).flatten(0, 1))
    scores = torch.add(mask, scores.view(sentences, heads, width, -1), alpha=scaling)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    output = torch.bmm(weights.flatten(0, 1), value.flatten(0, 1))
    return output.view(sentences, heads, width, -1).transpose(1, 2)


def feed_forward(module: Any, states: Tensor) -> Tensor:
    """Equation 4."""
    hidden = module.activation(linear(states, module.fc1.weight, module.fc1.bias))
    return linear(hidden, module.fc2.weight, module.fc2.bias)


def untouched(decoder: Any, projection: Any) -> bool:
    """Whether calling the modules is using their weights: no hooks, adapters or quantised layers among them."""
    linears, norms = [projection], [decoder.layer_norm]
    for layer in decoder.layers:
        own, source, feed = layer.self_attn, layer.source_attn, layer.feed_forward
        linears += [own.qkv_proj, own.out_proj, source.q_proj, source.out_proj, feed.fc1, feed.fc2]
        sublayers = (layer.self_attn_sublayer, layer.source_attn_sublayer, layer.feed_forward_sublayer)
        norms += [sublayer.layer_norm for sublayer in sublayers]
    kinds = {type(module) for module in linears}, {type(module) for module in norms}
    if (
        kinds[0] != {nn.Linear}
        or not kinds[1] <= {nn.LayerNorm, nn.Identity}
        or type(decoder.embed_tokens) is not nn.Embedding
    ):
        return False
    modules = [*decoder.modules(), projection]
    return not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in modules)
