"""A decoder's step for the beams of a search, written out from its modules' weights, for the baseline and each family.

The table STEPS says which step computes which model.

Decoding on a CPU takes many small operations; called one by one, on (sentences x beams, d_model), they take less time
than through the modules, and less again in compiled code, which computes the sublayers that it knows (native.py).
Products with weights that lie transposed in memory take up to a half less time for a few rows; such copies are kept
(matmul_backends.py), but for a single row large weights are read as they lie. Where oneDNN is the faster one
(matmul_backends.py)
it has copies of its own, adds what is to be added in the same pass, and leaves no large weight to compiled code.

A family's step overrides `begin` and `after_self_attention` if its layers take more than the baseline's, `attend_self`
and `attend_source` for an attention of its own; one that is not in `attentions` is called as a module. Where a product
is added to something, as in every residual connection, `onto` is that, and the product is computed on top of it.
Equations are those of attention.py, layers.py and of each family's file in modeling/.

In extended cross-attention the state before every beam's one position is known, so a step needs no scan. Query
(sentences, heads, beams, d_h), `before` and the state that comes back (sentences, heads, beams, width of the state).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hf_mlnmt.common.matmul_backends import kept, packed, takes_few
from hf_mlnmt.modeling.aggregation import AggregationDecoderLayer, AggregationForConditionalGeneration
from hf_mlnmt.modeling.attention import CrossAttention, SelfAttention, split_heads
from hf_mlnmt.modeling.attention_scan import gate_step, weight_step
from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration, BridgeModel
from hf_mlnmt.modeling.dual_context import DualContextAttention, DualContextForConditionalGeneration
from hf_mlnmt.modeling.extended_cross_attention import (
    ExtendedCrossAttentionForConditionalGeneration,
    ExtendedDecoder,
    ExtendedDecoderLayer,
    WordEmbeddingAttention,
)
from hf_mlnmt.modeling.layers import DecoderLayer, FeedForward
from hf_mlnmt.modeling.multi_layer_attention import (
    MultiLayerAttention,
    MultiLayerAttentionForConditionalGeneration,
    StackedLinear,
)
from hf_mlnmt.modeling.multi_level_supervision import (
    FusionDecoderLayer,
    MultiLevelSupervisionForConditionalGeneration,
    MultiLevelSupervisionModel,
)
from hf_mlnmt.modeling.recurrent_attention import (
    KeyValueContextAttention,
    PreviousContextAttention,
    PreviousWeightAttention,
)
from hf_mlnmt.modeling.ssru import SSRU, SSRUForConditionalGeneration
from hf_mlnmt.modeling.transformer import Decoder, TransformerForConditionalGeneration, TransformerModel
from hf_mlnmt.search.cache import BeamRecurrentCacheLayer, HeadMatrices
from hf_mlnmt.search.cpu.int8 import Int8Linear, compiled
from hf_mlnmt.search.cpu.native import (
    FEED_FORWARD,
    RELU,
    SELF_ATTENTION,
    SMALL,
    SOURCE_ATTENTION,
    STATE,
    SWISH,
    TRANSPOSED,
    NativeUnits,
    library,
    transposed,
)

ACTIVATIONS: dict[type, int] = {nn.ReLU: RELU, nn.SiLU: SWISH}  # that search.c knows
ONEDNN: dict[type, str] = {nn.ReLU: "relu", nn.SiLU: "swish"}  # that it computes with a product
MANY_ROWS = 64  # with larger weights from here on PyTorch's products take less time


class AdditiveMask:
    """A mask that is added to the energies: (sentences, 1, width or 1, slots), 0 or the least number."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.repeated: dict[int, Tensor] = {}

    def of_heads(self, heads: int) -> Tensor:
        """Repeats it for each head, (sentences x heads, width or 1, slots): once for all layers that read it."""
        if heads not in self.repeated:
            self.repeated[heads] = self.tensor.expand(-1, heads, -1, -1).flatten(0, 1)
        return self.repeated[heads]


def attention_contexts(query: Tensor, source: HeadMatrices, mask: AdditiveMask, scaling: float) -> Tensor:
    """Computes equation 1: query (sentences, heads, width, d_h) -> (sentences, heads, width, value's width)."""
    return weighted_values(attention_energies(query, source, mask, scaling).softmax(-1), source)


def attention_energies(query: Tensor, source: HeadMatrices, mask: AdditiveMask, scaling: float) -> Tensor:
    """Computes what softmax is taken of, (sentences, heads, width, slots); query (sentences, heads, width, d_h)."""
    rows = query.reshape(-1, *query.shape[2:])
    energies = torch.baddbmm(mask.of_heads(query.shape[1]), rows, source.keys, alpha=scaling)
    if energies.dtype != torch.float32:  # a call that changes nothing costs as much as a small operation
        energies = energies.to(torch.promote_types(energies.dtype, torch.float32))
    return energies.view(*query.shape[:3], -1)


def weighted_values(weights: Tensor, source: HeadMatrices) -> Tensor:
    """Sums values by weights (sentences, heads, width, slots): (sentences, heads, width, value's width)."""
    output = torch.bmm(weights.to(source.values.dtype).flatten(0, 1), source.values)
    return output.view(*weights.shape[:3], -1)


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **kwargs):
    """Computes attention for modules that are called in a search on a CPU: shapes as in attention.py."""
    source = HeadMatrices.of(key, value)
    return attention_contexts(query, source, AdditiveMask(mask), scaling).transpose(1, 2), None


class StepContext(NamedTuple):
    """The things that the layers of a step share."""

    width: int  # beams
    cache: Any
    history_mask: AdditiveMask  # which slots of the target each beam sees
    memories: dict[Any, Tensor]  # of every attention over the source, what it reads (sentences, source, ...)
    source_mask: AdditiveMask
    features: Tensor | None  # of the source, what else the encoder handed on
    extras: dict[str, Tensor]  # what a family's layers take besides, from `begin`


class ByRows:
    """Sublayers that are computed by compiled code for few rows, by PyTorch's operations for many."""

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
        """Returns the decoders that run in a search, from the model without the output projection."""
        return [model.decoder]

    @classmethod
    def weights_of(cls, layer: Any) -> list[nn.Module]:
        """Returns the modules of a layer whose weights are used without calling them."""
        modules = [layer.feed_forward.fc1, layer.feed_forward.fc2]
        for attention in (layer.self_attn, layer.source_attn):
            modules += [getattr(attention, name) for name in cls.attentions.get(type(attention), ())]
        return [module for module in modules if module is not None]

    @classmethod
    def sources(cls, model: Any, outputs: Any) -> list[tuple[Any, Tensor]]:
        """Returns every attention over the source, and what it reads of the encoder's (sentences, source, ...)."""
        memory = outputs.last_hidden_state if outputs.memory is None else outputs.memory
        return [(layer.source_attn, memory) for layer in model.decoder.layers]

    def __init__(self, model: Any, large: int = TRANSPOSED):
        """Writes out the model; `large`: how large weights lie in memory where compiled code multiplies them."""
        self.large = large
        self.model, self.decoder, self.projection = model.model, model.model.decoder, model.lm_head
        self.factors: dict[Any, tuple[Tensor, Tensor | None]] = {}  # transposed weights, and biases
        self.layouts: dict[nn.Module, Tensor] = {}  # weights as oneDNN reads them
        self.norms: dict[nn.Module, tuple[Any, ...]] = {}  # what layer_norm takes; nothing for an identity
        self.logits_memory: Tensor | None = None
        self.functions = library(self.decoder.embed_tokens.weight.dtype)
        # Of each decoder, what is done, one after the other.
        self.plans = {decoder: self.plan(decoder) for decoder in self.decoders(self.model)}

    def __call__(self, tokens: Tensor, position: Any, context: StepContext) -> Tensor:
        """Computes logits (sentences, width, vocabulary), until the next call, of tokens at one `position`, or at one
        of each sentence (sentences, 1), or at one of each token (1, width)."""
        return self.score(self.read(tokens, position, context)).view(*tokens.shape, -1)

    def read(self, tokens: Tensor, position: Any, context: Any) -> Tensor:
        """Computes the states (all tokens, d_model) that the output projection takes."""
        decoder = self.decoder
        states = torch.embedding(decoder.embed_tokens.weight, tokens.flatten())  # (sentences x width, d_model)
        if isinstance(position, Tensor):
            here = decoder.positions.at(position.expand(tokens.shape)).flatten(0, 1)
        else:
            here = decoder.positions(1, position)
        here = here.to(states.dtype)
        states = self.norm(decoder.embedding_norm, torch.add(here, states, alpha=decoder.embed_scale))
        extras = self.begin(states, context)
        context = context._replace(extras=extras) if extras else context
        return self.run(decoder, states.clone() if extras else states, context)

    def begin(self, embeds: Tensor, context: StepContext) -> dict[str, Tensor]:
        """Returns what the layers take besides, from the embedding output (sentences x width, d_model)."""
        return {}

    def after_self_attention(self, layer: Any) -> Callable | None:
        """Returns what a layer does between its two attentions, as a function of states and context; None: nothing."""
        return None

    def prepare_first(self, cache: Any, length: int) -> bool:
        """Makes the cache ready for the first tokens here, if no layer has more than the baseline's, or one token with
        SSRU; else False."""
        if not self.has_layers_of((SelfAttention, SSRU) if length == 1 else (SelfAttention,)):
            return False
        for layer in self.decoder.layers:
            source = cache.source_layers[layer.source_attn.layer_idx]
            self.prepare_slot(cache.target_layers[layer.self_attn.layer_idx], source.keys, source.values)
        return True

    def has_layers_of(self, kinds: tuple[type, ...]) -> bool:
        """Tells whether the layers are the baseline's, all self-attentions being of these kinds."""
        layers = self.decoder.layers
        attentions = {(type(layer.self_attn), type(layer.source_attn)) for layer in layers}
        between = any(self.after_self_attention(layer) is not None for layer in layers)
        return len(self.plans) == 1 and attentions <= {(kind, CrossAttention) for kind in kinds} and not between

    def prepare_slot(self, slot: Any, keys: Tensor, values: Tensor) -> None:
        """Makes a slot of the target ready for a first token, from the source's keys and values."""
        slot.lazy_initialization(keys, values)

    def run(self, decoder: Any, states: Tensor, context: StepContext) -> Tensor:
        """Runs all layers of a decoder: (sentences x width, d_model) -> the same; `states` may be written over."""
        for part in self.plans[decoder]:
            states = part(states, context)
        return self.norm(decoder.layer_norm, states)

    def plan(self, decoder: Any) -> list[Callable]:
        """Plans the layers as functions of states and context; sublayers of search.c that follow each other are one."""
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
                    last = ByRows(NativeUnits(self.functions, self.large))
                    parts.append(last)
                last.native.add(sublayer, *unit)
                last.written_out.append(written_out)
        # With small weights alone compiled code is the faster one for any number of rows.
        return [part.native if isinstance(part, ByRows) and part.native.largest <= SMALL else part for part in parts]

    def unit(self, sublayer: Any, module: Any) -> tuple[Any, ...] | None:
        """Returns what search.c needs to compute this sublayer, or None if it cannot."""
        unit: tuple[Any, ...]
        if type(module) is FeedForward and type(module.activation) in ACTIVATIONS:
            unit = FEED_FORWARD, module.fc1, module.fc2, 1, 1.0, 0, ACTIVATIONS[type(module.activation)]
        elif type(module) in (SelfAttention, CrossAttention):
            kind = SELF_ATTENTION if type(module) is SelfAttention else SOURCE_ATTENTION
            products = (getattr(module, name) for name in self.attentions[type(module)])
            unit = kind, *products, module.heads, module.scaling, module.layer_idx, RELU
        elif type(module) is SSRU:
            unit = STATE, module.forget_proj, module.input_proj, 1, 1.0, module.layer_idx, RELU
        else:
            return None
        if self.functions is None or type(sublayer.layer_norm) is not nn.LayerNorm:
            return None
        parts = (*unit[1:3], sublayer.layer_norm)
        if any(type(part) is Int8Linear and compiled(part) is None for part in parts):
            return None
        if self.large == TRANSPOSED and any(takes_few(part) and part.weight.numel() > SMALL for part in unit[1:3]):
            return None
        numbers = {parameter.dtype for part in parts for parameter in part.parameters()}
        return unit if numbers == {self.decoder.embed_tokens.weight.dtype} else None

    def residual(self, sublayer: Any, compute: Callable, module: Any, states: Tensor, context: StepContext) -> Tensor:
        """Computes equation 3; `compute(module, context, states, onto)` adds what it computes to `onto`."""
        if sublayer.pre:
            return compute(module, context, self.norm(sublayer.layer_norm, states), states)
        return self.norm(sublayer.layer_norm, compute(module, context, states, states))

    def attend_self(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        """Computes self-attention (sentences x width, d_model), over the slots of the cache that the mask shows."""
        if type(module) is not SelfAttention:
            return self.call(module, context, states, onto, context.history_mask.tensor)
        projected = self.linear(module.qkv_proj, states)
        heads = projected.view(-1, context.width, 3, module.heads, states.shape[1] // module.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        slot = context.cache.target_layers[module.layer_idx]
        slot.update(key, value)
        return self.attend(module, query, slot.matrices, context.history_mask, onto)

    def attend_source(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        """Computes attention over the source (sentences x width, d_model)."""
        if type(module) is not CrossAttention:
            source = context.memories[module], context.source_mask.tensor
            return self.call(partial(module, **context.extras), context, states, onto, *source)
        query = self.linear(module.q_proj, states)
        query = query.view(-1, context.width, module.heads, states.shape[1] // module.heads).transpose(1, 2)
        source = context.cache.source_layers[module.layer_idx].matrices
        return self.attend(module, query, source, context.source_mask, onto)

    def call(self, module: Callable, context: StepContext, states: Tensor, onto: Tensor, *inputs: Tensor) -> Tensor:
        """Calls an attention for which no step is written out."""
        states = states.view(-1, context.width, states.shape[1])
        output = module(states, *inputs, cache=context.cache, attention_function=attend)[0]
        return onto + output.flatten(0, 1)

    def attend(self, module: Any, query: Tensor, source: HeadMatrices, mask: AdditiveMask, onto: Tensor) -> Tensor:
        """Computes equations 1 and 2: query (sentences, heads, width, d_h) -> (sentences x width, d_model)."""
        return self.project(module, attention_contexts(query, source, mask, module.scaling), onto)

    def project(self, module: Any, contexts: Tensor, onto: Tensor) -> Tensor:
        """Computes equation 2: contexts (sentences, heads, width, d_h) -> (sentences x width, d_model)."""
        return self.linear(module.out_proj, contexts.transpose(1, 2).reshape(onto.shape[0], -1), onto)

    def feed_forward(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        """Computes equation 4, the feed-forward sublayer, of states (sentences x width, d_model) on top of `onto`."""
        inner = None
        if (known := ONEDNN.get(type(module.activation))) is not None and type(module.fc1) is nn.Linear:
            inner = packed(module.fc1, states, known, layouts=self.layouts)
        if inner is None:
            inner = self.linear(module.fc1, states)
            inner = inner.relu_() if type(module.activation) is nn.ReLU else module.activation(inner)
        return self.linear(module.fc2, inner, onto)

    def linear(self, module: Any, states: Tensor, onto: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        """Computes the module's product, added to `onto`; PyTorch's own library in `memory`."""
        if type(module) is Int8Linear:
            return module(states) if onto is None else onto + module(states)
        product = packed(module, states, onto=onto, layouts=self.layouts)
        if product is not None:
            return product
        weight, bias = self.factor(module, len(states))
        if bias is None:
            return torch.mm(states, weight, out=memory) if onto is None else torch.addmm(onto, states, weight)
        product = torch.addmm(bias, states, weight, out=memory)
        return product if onto is None else product.add_(onto)

    def factor(self, module: Any, rows: int) -> tuple[Tensor, Tensor | None]:
        """Returns the transposed weight and the bias. Where that pays for so many rows, it lies so in memory."""
        key = module, rows > 1 or module.weight.numel() <= SMALL
        if key not in self.factors:
            weight = kept(module, "transposed", transposed) if key[1] else module.weight.t()
            self.factors[key] = weight, module.bias
        return self.factors[key]

    def score(self, states: Tensor) -> Tensor:
        """Computes the output projection, (sentences x width, vocabulary), in the memory of the last step's: memory of
        that size goes back to the system when it is free, and to ask for it again costs time for each of its pages."""
        size = len(states) * self.projection.out_features
        if self.logits_memory is None or self.logits_memory.numel() < size:
            self.logits_memory = states.new_empty(size)
        return self.linear(self.projection, states, memory=self.logits_memory[:size].view(len(states), -1))

    def norm(self, module: Any, states: Tensor) -> Tensor:
        """Computes layer norm; or nothing, at the end of a post-norm stack."""
        if module not in self.norms:
            plain = isinstance(module, nn.LayerNorm)
            self.norms[module] = (module.normalized_shape, module.weight, module.bias, module.eps) if plain else ()
        arguments = self.norms[module]
        return torch.layer_norm(states, *arguments) if arguments else states


class AggregationStep(DecoderStep):
    """A step of the family in modeling/aggregation.py: its decoder layers may each read a memory of their own."""

    family = (AggregationDecoderLayer,)

    @classmethod
    def sources(cls, model: Any, outputs: Any) -> list[tuple[Any, Tensor]]:
        if outputs.memory.dim() == 3:
            return super().sources(model, outputs)
        return [(layer.source_attn, layer.memory_of(outputs.memory)) for layer in model.decoder.layers]


class BridgeStep(DecoderStep):
    """The baseline's decoder; the model around it chooses between languages, which is done before a search."""

    family = (BridgeForConditionalGeneration, BridgeModel)


class DualContextStep(DecoderStep):
    """The baseline's step with `DualContextAttention` in place of self-attention."""

    attentions = {
        **DecoderStep.attentions,
        DualContextAttention: ("convolution", "global_proj", "local_proj", "out_proj"),
    }

    def attend_self(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        if type(module) is not DualContextAttention:
            return super().attend_self(module, context, states, onto)
        slot, size = context.cache.target_layers[module.layer_idx], module.width
        window = slot.windows(states.unflatten(0, (-1, context.width)), module.before).flatten(0, 1)
        convolved = nn.functional.glu(self.linear(module.convolution, window))  # (sentences x width, d_model)
        local = self.linear(module.local_proj, module.convolution_norm(convolved + states))  # of (5.4)
        whole = self.linear(module.global_proj, states)
        local_key, local_value = local.unflatten(0, (-1, context.width)).chunk(2, dim=-1)
        query, key, value = whole.unflatten(0, (-1, context.width)).split((2 * size, size, size), -1)
        key, value = torch.cat([local_key, key], dim=-1), torch.cat([local_value, value], dim=-1)
        # (sentences, 2 heads, width, d_h) each
        query, key, value = (split_heads(part, 2 * module.heads) for part in (query, key, value))
        slot.update(key, value)
        return self.attend(module, query, slot.matrices, context.history_mask, onto)  # (5.5), (5.6)


Pair = tuple[Tensor, Tensor]  # contexts, and the state that comes back


def step_context(module: PreviousContextAttention, query: Tensor, context: StepContext, before: Tensor) -> Pair:
    """Computes equation 5.5: contexts, which are the state."""
    source = context.cache.source_layers[module.layer_idx].matrices
    query = query + module.extend_query(before)
    contexts = attention_contexts(query, source, context.source_mask, module.scaling)
    return contexts, contexts


def step_weights(module: PreviousWeightAttention, query: Tensor, context: StepContext, before: Tensor) -> Pair:
    """Computes equations 5.6, 5.7 and fertility: contexts, and the weights or their sum."""
    source, slot = context.cache.source_layers[module.layer_idx], context.cache.target_layers[module.layer_idx]
    coefficient = slot.of_source("coefficient", lambda: module.coefficient(source.keys, context.features))
    energies = attention_energies(query, source.matrices, context.source_mask, module.scaling)
    weights = weight_step(energies, coefficient, before)  # (sentences, heads, beams, source)
    return weighted_values(weights, source.matrices), before + weights if module.accumulate else weights


def step_key_value(module: KeyValueContextAttention, query: Tensor, context: StepContext, before: Tensor) -> Pair:
    """Computes equation 5.8: contexts, which are the state."""
    source, slot = context.cache.source_layers[module.layer_idx], context.cache.target_layers[module.layer_idx]
    energies = attention_energies(query, source.matrices, context.source_mask, module.scaling)
    exact = energies.dtype
    transition, bias = slot.constant(partial(module.transition, query))
    contexts = weighted_values(energies.softmax(-1), source.matrices).to(exact)  # c~
    query = (query * module.scaling).to(exact)
    contexts = gate_step(query, contexts, energies.logsumexp(-1), transition, bias, before.to(exact))[1]
    return contexts, contexts


RECURRENCES: dict[type, Any] = {
    PreviousContextAttention: step_context,
    PreviousWeightAttention: step_weights,
    KeyValueContextAttention: step_key_value,
}


class ExtendedCrossAttentionStep(DecoderStep):
    """The baseline's step with an attention over the source that reads words, or what it did before."""

    family = (ExtendedDecoder, ExtendedDecoderLayer)
    attentions = {
        **DecoderStep.attentions,
        WordEmbeddingAttention: ("q_proj", "word_q_proj", "out_proj"),
        **dict.fromkeys(RECURRENCES, ("q_proj", "out_proj")),
    }

    def begin(self, embeds: Tensor, context: StepContext) -> dict[str, Tensor]:
        if not self.decoder.reads_words:
            return {}
        return {"words": self.decoder.word_norm(embeds).unflatten(0, (-1, context.width))}

    def attend_source(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        if type(module) not in self.attentions:
            return super().attend_source(module, context, states, onto)
        query = self.linear(module.q_proj, states)
        if "words" in context.extras:
            query = self.linear(module.word_q_proj, context.extras["words"].flatten(0, 1), query)
        query = split_heads(query.unflatten(0, (-1, context.width)), module.heads)
        if type(module) not in RECURRENCES:
            source = context.cache.source_layers[module.layer_idx].matrices
            return self.attend(module, query, source, context.source_mask, onto)
        slot = context.cache.target_layers[module.layer_idx]
        before = slot.states_before(context.width)
        contexts, after = RECURRENCES[type(module)](module, query, context, before)
        slot.append_states(after.transpose(1, 2))
        return self.project(module, contexts.to(states.dtype), onto)


class SSRUStep(DecoderStep):
    """The baseline's step with `SSRU` in place of self-attention; the state before every beam's position is known."""

    attentions = {**DecoderStep.attentions, SSRU: ("forget_proj", "input_proj")}

    def attend_self(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        if type(module) is not SSRU:
            return super().attend_self(module, context, states, onto)
        before = context.cache.target_layers[module.layer_idx].count(context.width).view_as(states)
        inputs, forget = self.linear(module.input_proj, states), self.linear(module.forget_proj, states)
        before.copy_(torch.lerp(inputs.to(before.dtype), before, forget.to(before.dtype).sigmoid_()))  # (2)
        return onto + before.relu().to(onto.dtype)

    def prepare_slot(self, slot: Any, keys: Tensor, values: Tensor) -> None:
        if not isinstance(slot, BeamRecurrentCacheLayer):
            super().prepare_slot(slot, keys, values)
            return
        slot.lazy_initialization(keys[:, :1, :1, :1], values[:, :1, :1, :1])  # which count, and nothing else
        slot.states = keys.new_zeros(len(keys), 1, 1, self.decoder.embed_tokens.embedding_dim)


class MultiLayerAttentionStep(DecoderStep):
    """The baseline's step with MLMHA in place of the attention over the source."""

    attentions = {**DecoderStep.attentions, MultiLayerAttention: ("q_proj", "out_proj")}
    linears = (*DecoderStep.linears, StackedLinear)

    def attend_source(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        if type(module) is not MultiLayerAttention:
            return super().attend_source(module, context, states, onto)
        source = context.cache.source_layers[module.layer_idx].matrices
        query = self.linear(module.q_proj, states).view(-1, context.width, module.layers, states.shape[1])
        query = module.place_layers(query)  # (sentences, heads or n heads, width, n d_h or d_h)
        contexts = attention_contexts(query, source, context.source_mask, module.scaling).transpose(1, 2)
        return self.linear(module.out_proj, module.combine(contexts.flatten(2)).flatten(0, 1), onto)  # (3.11)


class MultiLevelSupervisionStep(DecoderStep):
    """The baseline's step of the main decoder; with AIF the auxiliary decoders run before it."""

    family = (MultiLevelSupervisionModel, FusionDecoderLayer)

    @staticmethod
    def decoders(model: Any) -> list[Any]:
        auxiliaries = model.auxiliary_decoders if model.config.information_fusion else ()
        return [model.decoder, *auxiliaries]

    @classmethod
    def weights_of(cls, layer: Any) -> list[nn.Module]:
        fusion = getattr(layer, "fusion", None)  # only the main decoder's layers can have it
        return super().weights_of(layer) + ([] if fusion is None else [fusion])

    @classmethod
    def sources(cls, model: Any, outputs: Any) -> list[tuple[Any, Tensor]]:
        """Returns the main decoder's as the baseline's; every auxiliary decoder reads its encoder layer."""
        pairs = super().sources(model, outputs)
        if model.config.information_fusion:
            for decoder, memory in zip(model.auxiliary_decoders, outputs.features.unbind(2)):
                pairs += [(layer.source_attn, memory) for layer in decoder.layers]
        return pairs

    def begin(self, embeds: Tensor, context: StepContext) -> dict[str, Tensor]:
        if not self.model.config.information_fusion:
            return {}
        states = [self.run(decoder, embeds.clone(), context) for decoder in self.model.auxiliary_decoders]
        return {"auxiliary_states": torch.cat(states, dim=-1)}  # (sentences x width, auxiliaries x d_model)

    def after_self_attention(self, layer: Any) -> Callable | None:
        fusion = getattr(layer, "fusion", None)
        return None if fusion is None else partial(self.fuse, fusion)

    def fuse(self, fusion: nn.Module, states: Tensor, context: StepContext) -> Tensor:
        """Computes equations 4.2 and 4.3."""
        return self.linear(fusion, context.extras["auxiliary_states"], states)


# A class and those derived from it, unless they are named themselves.
STEPS: dict[type, type[DecoderStep]] = {
    TransformerForConditionalGeneration: DecoderStep,
    AggregationForConditionalGeneration: AggregationStep,
    BridgeForConditionalGeneration: BridgeStep,
    DualContextForConditionalGeneration: DualContextStep,
    ExtendedCrossAttentionForConditionalGeneration: ExtendedCrossAttentionStep,
    MultiLayerAttentionForConditionalGeneration: MultiLayerAttentionStep,
    MultiLevelSupervisionForConditionalGeneration: MultiLevelSupervisionStep,
    SSRUForConditionalGeneration: SSRUStep,
}


def entry_of_class(model: Any, table: dict[type, Any]) -> Any:
    """Returns what the table says of the nearest of the classes that the model's is derived from, or None."""
    return next((table[base] for base in type(model).__mro__ if base in table), None)


def find_step(model: Any) -> type[DecoderStep] | None:
    """Finds the step made for the model's class, if the methods of all parts are those that it computes; else None.

    A class that overrides one of them is called as modules: its own file need not know of a search.
    """
    step = entry_of_class(model, STEPS)
    if step is None or not all(isinstance(decoder, Decoder) for decoder in step.decoders(model.model)):
        return None
    parts: list[tuple[Any, Any]] = [(model, TransformerForConditionalGeneration), (model.model, TransformerModel)]
    for decoder in step.decoders(model.model):
        parts += [(decoder, Decoder), *((layer, DecoderLayer) for layer in decoder.layers)]
    called = [model.lm_head, *(module for decoder in step.decoders(model.model) for module in decoder.modules())]
    replaced = any("forward" in vars(module) for module in called)
    return step if _methods_are_known(step, parts) and not replaced else None


def write_out(step: type[DecoderStep] | None, model: Any, large: int = TRANSPOSED) -> DecoderStep | None:
    """Makes the step, if using the modules' weights is calling them: no dropout, autocast or adapter, and no hook of
    Accelerate's that fetches weights when a module is called; else None."""
    if step is None or model.training or torch.is_autocast_enabled("cpu") or hasattr(model, "_hf_hook"):
        return None
    decoders = step.decoders(model.model)
    layers = [layer for decoder in decoders for layer in decoder.layers]
    norms = [norm for decoder in decoders for norm in (decoder.layer_norm, decoder.embedding_norm)]
    for layer in layers:
        sublayers = (layer.self_attn_sublayer, layer.source_attn_sublayer, layer.feed_forward_sublayer)
        norms += [sublayer.layer_norm for sublayer in sublayers]
    linears = [model.lm_head, *(module for layer in layers for module in step.weights_of(layer))]
    if not {type(module) for module in linears} <= set(step.linears):
        return None
    if not {type(norm) for norm in norms} <= {nn.LayerNorm, nn.Identity}:
        return None
    return step(model, large) if type(model.model.decoder.embed_tokens) is nn.Embedding else None


def _methods_are_known(step: type[DecoderStep], parts: list[tuple[Any, Any]]) -> bool:
    """Tells whether the methods of each part are those of the baseline's class beside it, or of the step's family."""
    for name in ("forward", "decode", "extend", "attend_self", "attend_source"):
        for part, plain in parts:
            # Unwrapped, because Transformers wraps the forward of every subclass of its layers anew.
            known = {inspect.unwrap(getattr(kind, name)) for kind in (plain, *step.family) if hasattr(kind, name)}
            if hasattr(plain, name) and inspect.unwrap(getattr(type(part), name)) not in known:
                return False
    return True
