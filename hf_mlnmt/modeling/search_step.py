"""A step of a decoder for the beams of a search, written out from its modules' weights.

Decoding on a CPU takes many small operations; called one by one, on (sentences x beams, d_model), they take less time
than through the modules; less again in compiled code, which computes the sublayers that it knows (search_native.py). So
do products with small weights that lie transposed in memory (for a few rows, up to a half less), which are kept as long
as the search; for large ones a search is too short to earn the copy.

`TransformerForConditionalGeneration.decoder_step` says for which models this computes what their modules do. A family
overrides `DecoderStep.begin` and `DecoderStep.between` if its layers take more than the baseline's, `attend_self` and
`attend_source` for an attention of its own; one that is not `written` out is called as a module. Where a product is
added to something, as in every residual connection, `onto` is that, and the product is computed on top of it. Equations
are those of attention.py and layers.py; search_batch.py says what a step is given.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .attention import CrossAttention, SelfAttention, cached_source
from .beam_cache import Rows
from .layers import FeedForward
from .search_native import CROSS, FEED_FORWARD, OWN, NativeUnits, library

SMALL = 2**18  # numbers in a weight; its copy is earned back within 10 to 30 steps


class Mask:
    """An additive mask (sentences, 1, width or 1, slots)."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.rows: dict[int, Tensor] = {}

    def of_heads(self, heads: int) -> Tensor:
        """Repeated for each head, (sentences x heads, width or 1, slots): once for all layers that read it."""
        if heads not in self.rows:
            self.rows[heads] = self.tensor.expand(-1, heads, -1, -1).flatten(0, 1)
        return self.rows[heads]


class Place(NamedTuple):
    """What the layers of a step share."""

    width: int  # beams
    cache: Any
    visible: Mask  # of the target's slots
    memory: Tensor | None  # of the source, for an attention that is called as a module
    source_mask: Mask
    extras: dict[str, Tensor]  # what a family's layers take besides, from `begin`
    features: Tensor | None  # of the source, as in EncoderOutput


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
    def computes(cls, parts: list[tuple[Any, Any]]) -> bool:
        """Whether the methods of each part are those of the baseline's class beside it, or of a class it `knows`."""
        for name in ("forward", "decode", "extend", "attend_self", "attend_source"):
            for part, plain in parts:
                classes = [x for x in (plain, *cls.knows) if hasattr(x, name)]
                # Unwrapped, because Transformers wraps the forward of every subclass of its layers anew.
                known = {inspect.unwrap(getattr(x, name)) for x in classes}
                if hasattr(plain, name) and inspect.unwrap(getattr(type(part), name)) not in known:
                    return False
        return True

    @classmethod
    def covers(cls, model: Any) -> bool:
        """Whether calling the modules is using their weights: no dropout, autocast, hook, adapter or int8 in them."""
        if model.training or torch.is_autocast_enabled("cpu"):
            return False
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
        self.norms: dict[nn.Module, tuple[Any, ...]] = {}  # what layer_norm takes; nothing for an identity
        self.room: Tensor | None = None  # the memory of the logits
        self.functions = library(self.projection.weight.dtype)
        # Of each decoder, what is done, one after the other.
        self.plans = {decoder: self.plan(decoder) for decoder in self.decoders(self.model)}

    def __call__(self, tokens: Tensor, position: int, place: Place) -> Tensor:
        """tokens (sentences, width) at `position` -> logits (sentences, width, vocabulary), until the next call."""
        decoder = self.decoder
        states = torch.embedding(decoder.embed_tokens.weight, tokens.flatten())
        here = decoder.positions(1, position).to(states.dtype)
        states = torch.add(here, states, alpha=decoder.embed_scale)
        extras = self.begin(states, place)
        states = self.run(decoder, states.clone() if extras else states, place._replace(extras=extras))
        logits = self.score(states)
        return logits.view(*tokens.shape, -1)

    def begin(self, embeds: Tensor, place: Place) -> dict[str, Tensor]:
        """What the layers take besides, from the embedding output (sentences x width, d_model)."""
        return {}

    def between(self, layer: Any) -> Callable | None:
        """What a layer does between its two attentions, as a function of states and place; None: nothing."""
        return None

    def memory_of(self, layer: Any, memory: Tensor) -> Tensor:
        """What a layer reads of the source."""
        return memory

    def read_source(self, memory: Tensor, cache: Any) -> bool:
        """Make the cache ready for a first step here, if it needs no more than the source's keys and values."""
        parts = self.plans[self.decoder]
        if len(self.plans) > 1 or len(parts) > 1 or not isinstance(parts[0], NativeUnits):
            return False
        for layer in self.decoder.layers:
            source, own = layer.source_attn, cache.own[layer.self_attn.layer_idx]
            own.lazy_initialization(
                *cached_source(cache, source.layer_idx, source.project_source, self.memory_of(layer, memory))
            )
        return True

    def run(self, decoder: Any, states: Tensor, place: Place) -> Tensor:
        """All layers of a decoder: (sentences x width, d_model) -> the same; `states` may be written over."""
        for part in self.plans[decoder]:
            states = part(states, place)
        return self.norm(decoder.layer_norm, states)

    def plan(self, decoder: Any) -> list[Callable]:
        """The layers as functions of states and place; sublayers of search.c that follow each other are one."""
        parts: list[Callable] = []
        for layer in decoder.layers:
            for sublayer, compute, module in (
                (layer.self_attn_sublayer, self.attend_self, layer.self_attn),
                (layer.source_attn_sublayer, self.attend_source, layer.source_attn),
                (layer.feed_forward_sublayer, self.feed_forward, layer.feed_forward),
            ):
                if module is layer.source_attn and (between := self.between(layer)) is not None:
                    parts.append(between)
                unit = self.unit(sublayer, module)
                if unit is None:
                    parts.append(partial(self.residual, sublayer, compute, module))
                    continue
                last = parts[-1] if parts else None
                if not isinstance(last, NativeUnits):
                    last = NativeUnits(self.functions)
                    parts.append(last)
                last.add(sublayer, *unit)
        return parts

    def unit(self, sublayer: Any, module: Any) -> tuple[Any, ...] | None:
        """What search.c needs to compute this sublayer, or None if it cannot."""
        found: tuple[Any, ...]
        if type(module) is FeedForward and type(module.activation) is nn.ReLU:
            found = FEED_FORWARD, module.fc1, module.fc2
        elif type(module) in (SelfAttention, CrossAttention):
            kind = OWN if type(module) is SelfAttention else CROSS
            products = (getattr(module, name) for name in self.written[type(module)])
            found = kind, *products, module.heads, module.scaling, module.layer_idx
        else:
            return None
        if self.functions is None or type(sublayer.layer_norm) is not nn.LayerNorm:
            return None
        _, into, out, *_ = found
        numbers = {x.dtype for part in (into, out, sublayer.layer_norm) for x in part.parameters()}
        small = max(into.weight.numel(), out.weight.numel()) <= SMALL
        return found if small and numbers == {self.projection.weight.dtype} else None

    def residual(self, sublayer: Any, compute: Callable, module: Any, states: Tensor, place: Place) -> Tensor:
        """Equation 3; `compute(module, place, states, onto)` adds what it computes to `onto`."""
        if sublayer.pre:
            return compute(module, place, self.norm(sublayer.layer_norm, states), states)
        return self.norm(sublayer.layer_norm, compute(module, place, states, states))

    def attend_self(self, module: Any, place: Place, states: Tensor, onto: Tensor) -> Tensor:
        """Self-attention (sentences x width, d_model), over the slots of the cache that the mask shows."""
        if type(module) is not SelfAttention:
            return self.call(module, place, states, onto, place.visible.tensor)
        projected = self.linear(module.qkv_proj, states)
        heads = projected.view(-1, place.width, 3, module.heads, states.shape[1] // module.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        slot = place.cache.own[module.layer_idx]
        slot.update(key, value)
        return self.attend(module, query, slot.rows, place.visible, onto)

    def attend_source(self, module: Any, place: Place, states: Tensor, onto: Tensor) -> Tensor:
        """Attention over the source (sentences x width, d_model)."""
        if type(module) is not CrossAttention:
            masked = place.memory, place.source_mask.tensor
            return self.call(partial(module, **place.extras), place, states, onto, *masked)
        query = self.linear(module.q_proj, states)
        query = query.view(-1, place.width, module.heads, states.shape[1] // module.heads).transpose(1, 2)
        return self.attend(module, query, place.cache.source[module.layer_idx].rows, place.source_mask, onto)

    def call(self, module: Callable, place: Place, states: Tensor, onto: Tensor, *inputs: Tensor | None) -> Tensor:
        """An attention of a family's own."""
        states = states.view(-1, place.width, states.shape[1])
        output = module(states, *inputs, past_key_values=place.cache, attention_function=attend)[0]
        return onto + output.flatten(0, 1)

    def attend(self, module: Any, query: Tensor, rows: Rows, mask: Mask, onto: Tensor) -> Tensor:
        """Equations 1 and 2: query (sentences, heads, width, d_h) -> (sentences x width, d_model)."""
        return self.project(module, mix(query, rows, mask, module.scaling), onto)

    def project(self, module: Any, contexts: Tensor, onto: Tensor) -> Tensor:
        """Equation 2: contexts (sentences, heads, width, d_h) -> (sentences x width, d_model)."""
        return self.linear(module.out_proj, contexts.transpose(1, 2).reshape(onto.shape[0], -1), onto)

    def feed_forward(self, module: Any, place: Place, states: Tensor, onto: Tensor) -> Tensor:
        """Equation 4."""
        inner = self.linear(module.fc1, states)
        inner = inner.relu_() if type(module.activation) is nn.ReLU else module.activation(inner)
        return self.linear(module.fc2, inner, onto)

    def linear(self, module: Any, states: Tensor, onto: Tensor | None = None) -> Tensor:
        """The module's product, added to `onto`."""
        weight, bias = self.factor(module)
        if bias is not None:
            product = torch.addmm(bias, states, weight)
            return product if onto is None else product.add_(onto)
        return torch.mm(states, weight) if onto is None else torch.addmm(onto, states, weight)

    def factor(self, module: Any) -> tuple[Tensor, Tensor | None]:
        """The module's weight, transposed, and its bias."""
        found = self.factors.get(module)
        if found is None:
            weight = module.weight.t()
            found = weight.contiguous() if weight.numel() <= SMALL else weight, module.bias
            self.factors[module] = found
        return found

    def score(self, states: Tensor) -> Tensor:
        """The output projection, (sentences x width, vocabulary), in the memory of the last step's.

        So large a piece is handed back to the system when it is free, and each of its pages costs time when it is
        asked for again.
        """
        weight, bias = self.factor(self.projection)
        size = states.shape[0] * weight.shape[1]
        if self.room is None or self.room.numel() < size:
            self.room = states.new_empty(size)
        logits = self.room[:size].view(-1, weight.shape[1])
        if bias is None:
            return torch.mm(states, weight, out=logits)
        return torch.addmm(bias, states, weight, out=logits)

    def norm(self, module: Any, states: Tensor) -> Tensor:
        """Layer norm; or nothing, at the end of a post-norm stack."""
        found = self.norms.get(module)
        if found is None:
            plain = isinstance(module, nn.LayerNorm)
            found = (module.normalized_shape, module.weight, module.bias, module.eps) if plain else ()
            self.norms[module] = found
        return torch.layer_norm(states, *found) if found else states


def mix(query: Tensor, rows: Rows, mask: Mask, scaling: float) -> Tensor:
    """Equation 1: query (sentences, heads, width, d_h) -> (sentences, heads, width, value's width)."""
    weights = energy_rows(query, rows, mask, scaling).softmax(-1)
    if weights.dtype != rows.values.dtype:
        weights = weights.to(rows.values.dtype)
    return torch.bmm(weights, rows.values).view(*query.shape[:3], -1)


def energy(query: Tensor, rows: Rows, mask: Mask, scaling: float) -> Tensor:
    """Query (sentences, heads, width, d_h) -> what softmax is taken of, (sentences, heads, width, slots)."""
    return energy_rows(query, rows, mask, scaling).view(*query.shape[:3], -1)


def energy_rows(query: Tensor, rows: Rows, mask: Mask, scaling: float) -> Tensor:
    """The same as (sentences x heads, width, slots); product, scaling and mask in one operation."""
    _, heads, width, size = query.shape
    query = query.reshape(-1, width, size)
    scores = torch.baddbmm(mask.of_heads(heads), query, rows.keys, alpha=scaling)
    if scores.dtype == torch.float32:  # a call for nothing costs as much as a small operation
        return scores
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def read(weights: Tensor, rows: Rows) -> Tensor:
    """Weights (sentences, heads, width, slots) -> (sentences, heads, width, value's width)."""
    output = torch.bmm(weights.to(rows.values.dtype).flatten(0, 1), rows.values)
    return output.view(*weights.shape[:3], -1)


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **kwargs):
    """What modules call for attention in a search on a CPU: shapes as in attention.py."""
    return mix(query, Rows.of(key, value), Mask(mask), scaling).transpose(1, 2), None
