"""A step of the baseline's decoder for the beams of a search, written out from its modules' weights.

Decoding on a CPU takes many small operations; called one by one, on (sentences x beams, d_model), they take less time
than through the modules; less again in compiled code, which computes the sublayers that it knows (native.py). So
do products with small weights that lie transposed in memory (for a few rows, up to a half less), which are kept as long
as the search; for large ones a search is too short to earn the copy.

A family's step overrides `begin` and `after_self_attention` if its layers take more than the baseline's, `attend_self`
and `attend_source` for an attention of its own; one that is not in `attentions` is called as a module. Where a product
is added to something, as in every residual connection, `onto` is that, and the product is computed on top of it.
Equations are those of attention.py and layers.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hf_mlnmt.modeling.attention import CrossAttention, SelfAttention
from hf_mlnmt.modeling.layers import FeedForward
from hf_mlnmt.search.cache import HeadMatrices
from hf_mlnmt.search.int8 import Int8Linear, compiled
from hf_mlnmt.search.kept_weights import kept
from hf_mlnmt.search.native import (
    FEED_FORWARD,
    RELU,
    SELF_ATTENTION,
    SMALL,
    SOURCE_ATTENTION,
    SWISH,
    NativeUnits,
    transposed,
)
from hf_mlnmt.search.native_library import library
from hf_mlnmt.search.products import AdditiveMask, attend, attention_contexts

ACTIVATIONS: dict[type, int] = {nn.ReLU: RELU, nn.SiLU: SWISH}  # that search.c knows
MANY_ROWS = 64  # with larger weights from here on PyTorch's products take less time


class StepContext(NamedTuple):
    """What the layers of a step share."""

    width: int  # beams
    cache: Any
    history_mask: AdditiveMask  # which slots of the target each beam sees
    memories: dict[Any, Tensor]  # of every attention over the source, what it reads (sentences, source, ...)
    source_mask: AdditiveMask
    features: Tensor | None  # of the source, what else the encoder handed on
    extras: dict[str, Tensor]  # what a family's layers take besides, from `begin`


class ByRows:
    """Sublayers in compiled code for few rows, in PyTorch's operations for many."""

    def __init__(self, native: NativeUnits):
        self.native = native
        self.written_out: list[Callable] = []

    def __call__(self, states: Tensor, context: StepContext) -> Tensor:
        if len(states) < MANY_ROWS:
            return self.native(states, context)
        for part in self.written_out:
            states = part(states, context)
        return states


class DecoderStep:
    """The decoder's layers and the output projection for one new position of every beam."""

    # A family's classes whose methods a step computes, beside those of the baseline.
    family: tuple[type[Any], ...] = ()
    # Attentions that are written out, and the names of the modules whose weights are then used without calling them.
    attentions: dict[type[Any], tuple[str, ...]] = {
        SelfAttention: ("qkv_proj", "out_proj"),
        CrossAttention: ("q_proj", "out_proj"),
    }
    linears: tuple[type[Any], ...] = (nn.Linear, Int8Linear)  # what those modules are, unless they are adapters

    @staticmethod
    def decoders(model: Any) -> list[Any]:
        """The decoders that run in a search, from the model without the output projection."""
        return [model.decoder]

    @classmethod
    def weights_of(cls, layer: Any) -> list[nn.Module]:
        """The modules of a layer whose weights are used without calling them."""
        found = [layer.feed_forward.fc1, layer.feed_forward.fc2]
        for attention in (layer.self_attn, layer.source_attn):
            products = [getattr(attention, name) for name in cls.attentions.get(type(attention), ())]
            found += [product for product in products if product is not None]
        return found

    @classmethod
    def sources(cls, model: Any, outputs: Any) -> list[tuple[Any, Tensor]]:
        """Every attention over the source, and what it reads of the encoder's output (sentences, source, ...)."""
        memory = outputs.last_hidden_state if outputs.memory is None else outputs.memory
        return [(layer.source_attn, memory) for layer in model.decoder.layers]

    def __init__(self, model: Any):
        self.model, self.decoder, self.projection = model.model, model.model.decoder, model.lm_head
        self.factors: dict[Any, tuple[Tensor, Tensor | None]] = {}  # transposed weights, and biases
        self.norms: dict[nn.Module, tuple[Any, ...]] = {}  # what layer_norm takes; nothing for an identity
        self.logits_memory: Tensor | None = None
        self.functions = library(self.decoder.embed_tokens.weight.dtype)
        # Of each decoder, what is done, one after the other.
        self.plans = {decoder: self.plan(decoder) for decoder in self.decoders(self.model)}

    def __call__(self, tokens: Tensor, position: int, context: StepContext) -> Tensor:
        """tokens (sentences, width) at `position` -> logits (sentences, width, vocabulary), until the next call."""
        decoder = self.decoder
        states = torch.embedding(decoder.embed_tokens.weight, tokens.flatten())  # (sentences x width, d_model)
        here = decoder.positions(1, position).to(states.dtype)
        states = self.norm(decoder.embedding_norm, torch.add(here, states, alpha=decoder.embed_scale))
        extras = self.begin(states, context)
        states = self.run(decoder, states.clone() if extras else states, context._replace(extras=extras))
        logits = self.score(states)  # (sentences x width, vocabulary)
        return logits.view(*tokens.shape, -1)

    def begin(self, embeds: Tensor, context: StepContext) -> dict[str, Tensor]:
        """What the layers take besides, from the embedding output (sentences x width, d_model)."""
        return {}

    def after_self_attention(self, layer: Any) -> Callable | None:
        """What a layer does between its two attentions, as a function of states and context; None: nothing."""
        return None

    def prepare_first(self, cache: Any) -> bool:
        """Make the cache ready for a first token here, if compiled code computes the whole decoder; else False."""
        parts = self.plans[self.decoder]
        if len(self.plans) > 1 or len(parts) > 1 or not isinstance(parts[0], NativeUnits | ByRows):
            return False
        for layer in self.decoder.layers:
            source = cache.source_layers[layer.source_attn.layer_idx]
            cache.target_layers[layer.self_attn.layer_idx].lazy_initialization(source.keys, source.values)
        return True

    def run(self, decoder: Any, states: Tensor, context: StepContext) -> Tensor:
        """All layers of a decoder: (sentences x width, d_model) -> the same; `states` may be written over."""
        for part in self.plans[decoder]:
            states = part(states, context)
        return self.norm(decoder.layer_norm, states)

    def plan(self, decoder: Any) -> list[Callable]:
        """The layers as functions of states and context; sublayers of search.c that follow each other are one."""
        parts: list[Callable] = []
        for layer in decoder.layers:
            for sublayer, compute, module in (
                (layer.self_attn_sublayer, self.attend_self, layer.self_attn),
                (layer.source_attn_sublayer, self.attend_source, layer.source_attn),
                (layer.feed_forward_sublayer, self.feed_forward, layer.feed_forward),
            ):
                if module is layer.source_attn and (between := self.after_self_attention(layer)) is not None:
                    parts.append(between)
                unit, written_out = self.unit(sublayer, module), partial(self.residual, sublayer, compute, module)
                if unit is None:
                    parts.append(written_out)
                    continue
                last = parts[-1] if parts else None
                if not isinstance(last, ByRows):
                    last = ByRows(NativeUnits(self.functions))
                    parts.append(last)
                last.native.add(sublayer, *unit)
                last.written_out.append(written_out)
        return [part.native if isinstance(part, ByRows) and self.is_small(part) else part for part in parts]

    @staticmethod
    def is_small(part: ByRows) -> bool:
        """Whether compiled code is the faster one for any number of rows."""
        return part.native.largest <= SMALL

    def unit(self, sublayer: Any, module: Any) -> tuple[Any, ...] | None:
        """What search.c needs to compute this sublayer, or None if it cannot."""
        found: tuple[Any, ...]
        if type(module) is FeedForward and type(module.activation) in ACTIVATIONS:
            found = FEED_FORWARD, module.fc1, module.fc2, 1, 1.0, 0, ACTIVATIONS[type(module.activation)]
        elif type(module) in (SelfAttention, CrossAttention):
            kind = SELF_ATTENTION if type(module) is SelfAttention else SOURCE_ATTENTION
            products = (getattr(module, name) for name in self.attentions[type(module)])
            found = kind, *products, module.heads, module.scaling, module.layer_idx
        else:
            return None
        if self.functions is None or type(sublayer.layer_norm) is not nn.LayerNorm:
            return None
        parts = (*found[1:3], sublayer.layer_norm)
        if any(type(part) is Int8Linear and compiled(part) is None for part in parts):
            return None
        numbers = {x.dtype for part in parts for x in part.parameters()}
        return found if numbers == {self.decoder.embed_tokens.weight.dtype} else None

    def residual(self, sublayer: Any, compute: Callable, module: Any, states: Tensor, context: StepContext) -> Tensor:
        """Equation 3; `compute(module, context, states, onto)` adds what it computes to `onto`."""
        if sublayer.pre:
            return compute(module, context, self.norm(sublayer.layer_norm, states), states)
        return self.norm(sublayer.layer_norm, compute(module, context, states, states))

    def attend_self(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        """Self-attention (sentences x width, d_model), over the slots of the cache that the mask shows."""
        if type(module) is not SelfAttention:
            return self.call(module, context, states, onto, context.history_mask.tensor)
        projected = self.linear(module.qkv_proj, states)
        heads = projected.view(-1, context.width, 3, module.heads, states.shape[1] // module.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        slot = context.cache.target_layers[module.layer_idx]
        slot.update(key, value)
        return self.attend(module, query, slot.matrices, context.history_mask, onto)

    def attend_source(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        """Attention over the source (sentences x width, d_model)."""
        if type(module) is not CrossAttention:
            source = context.memories[module], context.source_mask.tensor
            return self.call(partial(module, **context.extras), context, states, onto, *source)
        query = self.linear(module.q_proj, states)
        query = query.view(-1, context.width, module.heads, states.shape[1] // module.heads).transpose(1, 2)
        source = context.cache.source_layers[module.layer_idx].matrices
        return self.attend(module, query, source, context.source_mask, onto)

    def call(self, module: Callable, context: StepContext, states: Tensor, onto: Tensor, *inputs: Tensor) -> Tensor:
        """Call an attention for which no step is written out."""
        states = states.view(-1, context.width, states.shape[1])
        output = module(states, *inputs, cache=context.cache, attention_function=attend)[0]
        return onto + output.flatten(0, 1)

    def attend(self, module: Any, query: Tensor, source: HeadMatrices, mask: AdditiveMask, onto: Tensor) -> Tensor:
        """Equations 1 and 2: query (sentences, heads, width, d_h) -> (sentences x width, d_model)."""
        return self.project(module, attention_contexts(query, source, mask, module.scaling), onto)

    def project(self, module: Any, contexts: Tensor, onto: Tensor) -> Tensor:
        """Equation 2: contexts (sentences, heads, width, d_h) -> (sentences x width, d_model)."""
        return self.linear(module.out_proj, contexts.transpose(1, 2).reshape(onto.shape[0], -1), onto)

    def feed_forward(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        """Equation 4."""
        inner = self.linear(module.fc1, states)
        inner = inner.relu_() if type(module.activation) is nn.ReLU else module.activation(inner)
        return self.linear(module.fc2, inner, onto)

    def linear(self, module: Any, states: Tensor, onto: Tensor | None = None) -> Tensor:
        """The module's product, added to `onto`."""
        if type(module) is Int8Linear:
            return module(states) if onto is None else onto + module(states)
        weight, bias = self.factor(module, len(states))
        if bias is not None:
            product = torch.addmm(bias, states, weight)
            return product if onto is None else product.add_(onto)
        return torch.mm(states, weight) if onto is None else torch.addmm(onto, states, weight)

    def factor(self, module: Any, rows: int) -> tuple[Tensor, Tensor | None]:
        """The module's weight, transposed, and its bias. Where that pays for so many rows, it lies so in memory."""
        key = module, rows > 1 or module.weight.numel() <= SMALL
        found = self.factors.get(key)
        if found is None:
            weight = kept(module, "transposed", transposed) if key[1] else module.weight.t()
            found = self.factors[key] = weight, module.bias
        return found

    def score(self, states: Tensor) -> Tensor:
        """The output projection, (sentences x width, vocabulary), in the memory of the last step's.

        So large a piece is handed back to the system when it is free, and each of its pages costs time when it is
        asked for again.
        """
        if type(self.projection) is Int8Linear:
            return self.projection(states)
        weight, bias = self.factor(self.projection, len(states))
        size = states.shape[0] * weight.shape[1]
        if self.logits_memory is None or self.logits_memory.numel() < size:
            self.logits_memory = states.new_empty(size)
        logits = self.logits_memory[:size].view(-1, weight.shape[1])
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
