"""A step of a decoder for the beams of a search, written out from its modules' weights.

Decoding on a CPU takes many small operations; called one by one, on (sentences x beams, d_model), they take less time
than through the modules. So do products with small weights that lie transposed in memory (for a few rows, up to a half
less), which are kept as long as the search; for large ones a search is too short to earn the copy.

`TransformerForConditionalGeneration.decoder_step` says for which models this computes what their modules do. A family
overrides `DecoderStep.begin` and `DecoderStep.between` if its layers take more than the baseline's, `attend_self` and
`attend_source` for an attention of its own; one that is not `written` out is called as a module. Equations are those of
attention.py and layers.py; search_batch.py says what a step is given.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .attention import CrossAttention, SelfAttention, split_heads

SMALL = 2**18  # numbers in a weight; its copy is earned back within 10 to 30 steps


class Place(NamedTuple):
    """What the layers of a step share."""

    width: int  # beams
    cache: Any
    visible: Tensor  # the mask of the target's slots
    memory: Tensor | None  # of the source, for an attention that is called as a module
    source_mask: Tensor
    extras: dict[str, Tensor]  # what a family's layers take besides, from `begin`


class DecoderStep:
    """The decoder's layers and the output projection for one new position of every beam."""

    knows: tuple[type[Any], ...] = ()  # classes of a family whose methods this computes, as it does the baseline's
    written: dict[type[Any], tuple[str, ...]] = {  # attentions that are not called, and the products in them
        SelfAttention: ("qkv_proj", "out_proj"),
        CrossAttention: ("q_proj", "out_proj"),
    }
    linears: tuple[type[Any], ...] = (nn.Linear,)  # what a product is, if it is not an adapter or quantised

    @staticmethod
    def decoders(model: Any) -> list[Any]:
        """The decoders that run in a search, from the model without the output projection."""
        return [model.decoder]

    @classmethod
    def products(cls, layer: Any) -> list[nn.Module]:
        """The modules of a layer whose weights are used without calling them."""
        found = [layer.feed_forward.fc1, layer.feed_forward.fc2]
        for attention in (layer.self_attn, layer.source_attn):
            products = [getattr(attention, name) for name in cls.written.get(type(attention), ())]
            found += [product for product in products if product is not None]
        return found

    @classmethod
    def covers(cls, model: Any) -> bool:
        """Whether calling the modules is using their weights: no hooks, adapters or quantised layers among them."""
        decoders = cls.decoders(model.model)
        layers = [layer for decoder in decoders for layer in decoder.layers]
        norms = [decoder.layer_norm for decoder in decoders]
        for layer in layers:
            sublayers = (layer.self_attn_sublayer, layer.source_attn_sublayer, layer.feed_forward_sublayer)
            norms += [sublayer.layer_norm for sublayer in sublayers]
        linears = [model.lm_head, *(product for layer in layers for product in cls.products(layer))]
        if not {type(module) for module in linears} <= set(cls.linears):
            return False
        if not {type(norm) for norm in norms} <= {nn.LayerNorm, nn.Identity}:
            return False
        if type(model.model.decoder.embed_tokens) is not nn.Embedding:
            return False
        modules = [module for decoder in decoders for module in decoder.modules()] + [model.lm_head]
        return not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in modules)

    def __init__(self, model: Any):
        self.model, self.decoder, self.projection = model.model, model.model.decoder, model.lm_head
        self.factors: dict[nn.Module, tuple[Tensor, Tensor | None]] = {}  # transposed weights, and biases

    def __call__(self, tokens: Tensor, position: int, place: Place) -> Tensor:
        """tokens (sentences, width) at `position` -> logits (sentences, width, vocabulary)."""
        decoder = self.decoder
        states = nn.functional.embedding(tokens.flatten(), decoder.embed_tokens.weight)
        here = decoder.positions(1, position).to(states.dtype)
        states = torch.add(here, states, alpha=decoder.embed_scale)
        place = place._replace(extras=self.begin(states, place))
        logits = self.linear(self.projection, self.run(decoder, states, place))
        return logits.view(*tokens.shape, -1)

    def begin(self, embeds: Tensor, place: Place) -> dict[str, Tensor]:
        """What the layers take besides, from the embedding output (sentences x width, d_model)."""
        return {}

    def between(self, layer: Any, states: Tensor, place: Place) -> Tensor:
        """What a layer does between its two attentions."""
        return states

    def run(self, decoder: Any, states: Tensor, place: Place) -> Tensor:
        """All layers of a decoder: (sentences x width, d_model) -> the same."""
        for layer in decoder.layers:
            states = residual(layer.self_attn_sublayer, states, partial(self.attend_self, layer.self_attn, place))
            states = self.between(layer, states, place)
            attend_source = partial(self.attend_source, layer.source_attn, place)
            states = residual(layer.source_attn_sublayer, states, attend_source)
            states = residual(layer.feed_forward_sublayer, states, partial(self.feed_forward, layer.feed_forward))
        return normed(decoder.layer_norm, states)

    def attend_self(self, module: Any, place: Place, states: Tensor) -> Tensor:
        """Self-attention (sentences x width, d_model), over the slots of the cache that the mask shows."""
        if type(module) is not SelfAttention:
            return self.call(module, place, states, place.visible)
        projected = self.linear(module.qkv_proj, states)
        heads = projected.view(-1, place.width, 3, module.heads, states.shape[1] // module.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        key, value = place.cache.own[module.layer_idx].update(key, value)
        return self.attend(module, query, key, value, place.visible)

    def attend_source(self, module: Any, place: Place, states: Tensor) -> Tensor:
        """Attention over the source (sentences x width, d_model)."""
        if type(module) is not CrossAttention:
            return self.call(partial(module, **place.extras), place, states, place.memory, place.source_mask)
        source = place.cache.source[module.layer_idx]
        query = split_heads(self.linear(module.q_proj, states).unflatten(0, (-1, place.width)), module.heads)
        return self.attend(module, query, source.keys, source.values, place.source_mask)

    def call(self, module: Callable, place: Place, states: Tensor, *inputs: Tensor | None) -> Tensor:
        """An attention of a family's own."""
        states = states.view(-1, place.width, states.shape[1])
        output = module(states, *inputs, past_key_values=place.cache, attention_function=attend)[0]
        return output.flatten(0, 1)

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Equations 1 and 2: query (sentences, heads, width, d_h) -> (sentences x width, d_model)."""
        return self.project(module, mix(query, key, value, mask, module.scaling))

    def project(self, module: Any, contexts: Tensor) -> Tensor:
        """Equation 2: contexts (sentences, heads, width, d_h) -> (sentences x width, d_model)."""
        return self.linear(module.out_proj, contexts.transpose(1, 2).flatten(2).flatten(0, 1))

    def feed_forward(self, module: Any, states: Tensor) -> Tensor:
        """Equation 4."""
        return self.linear(module.fc2, module.activation(self.linear(module.fc1, states)))

    def linear(self, module: Any, states: Tensor) -> Tensor:
        """The module's product."""
        if module not in self.factors:
            weight = module.weight.t()
            self.factors[module] = (weight.contiguous() if weight.numel() <= SMALL else weight, module.bias)
        weight, bias = self.factors[module]
        return torch.mm(states, weight) if bias is None else torch.addmm(bias, states, weight)


def residual(sublayer: Any, states: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Equation 3."""
    if sublayer.pre:
        return states + compute(normed(sublayer.layer_norm, states))
    return normed(sublayer.layer_norm, states + compute(states))


def normed(norm: Any, states: Tensor) -> Tensor:
    """Layer norm; or nothing, at the end of a post-norm stack."""
    if isinstance(norm, nn.Identity):
        return states
    return nn.functional.layer_norm(states, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def mix(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Equation 1: query (sentences, heads, width, d_h) -> (sentences, heads, width, value's width)."""
    return read(energy(query, key, mask, scaling).softmax(-1), value)


def energy(query: Tensor, key: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Query (sentences, heads, width, d_h) -> what softmax is taken of, (sentences, heads, width, slots)."""
    sentences, heads, width, size = query.shape
    scores = torch.bmm(query.reshape(-1, width, size), key.transpose(2, 3).flatten(0, 1))
    scores = torch.add(mask, scores.view(sentences, heads, width, -1), alpha=scaling)
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def read(weights: Tensor, value: Tensor) -> Tensor:
    """Weights (sentences, heads, width, slots) -> (sentences, heads, width, value's width)."""
    output = torch.bmm(weights.to(value.dtype).flatten(0, 1), value.flatten(0, 1))
    return output.view(*weights.shape[:3], -1)


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **kwargs):
    """What modules call for attention in a search on a CPU: shapes as in attention.py."""
    return mix(query, key, value, mask, scaling).transpose(1, 2), None
