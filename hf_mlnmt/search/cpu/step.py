"""One decoder step in compiled code for all beams of a batch, and the families of models that the search knows.

`CompiledStep.of` builds the step of a decoder whose sublayers search.c computes: the baseline's attentions and
feed-forward layers, and SSRU. The modules of any other decoder are called (transformer.py), which is right and slower.
The equations are those of attention.py, layers.py and ssru.py in modeling/.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hf_mlnmt.common.matmul_backends import kept, packed, takes_few
from hf_mlnmt.modeling.aggregation import AggregationDecoderLayer, AggregationForConditionalGeneration
from hf_mlnmt.modeling.attention import CrossAttention, SelfAttention
from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration, BridgeModel
from hf_mlnmt.modeling.extended_cross_attention import (
    ExtendedCrossAttentionForConditionalGeneration,
    ExtendedDecoder,
    ExtendedDecoderLayer,
)
from hf_mlnmt.modeling.layers import DecoderLayer, FeedForward
from hf_mlnmt.modeling.multi_level_supervision import (
    FusionDecoderLayer,
    MultiLevelSupervisionForConditionalGeneration,
    MultiLevelSupervisionModel,
)
from hf_mlnmt.modeling.ssru import SSRU
from hf_mlnmt.modeling.transformer import Decoder, TransformerForConditionalGeneration, TransformerModel
from hf_mlnmt.search.cache import BeamRecurrentCacheLayer
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
from hf_mlnmt.search.decoder import read_source

ACTIVATIONS: dict[type, int] = {nn.ReLU: RELU, nn.SiLU: SWISH}  # activations of search.c -> their numbers
LINEARS = (nn.Linear, Int8Linear)  # linear layers whose weights compiled code reads; adapters have other classes


def sources_of_decoder(model: Any, outputs: Any) -> list[tuple[Any, Tensor]]:
    """Returns (attention over the source, memory that it reads (sentences, source, ...)) of every decoder layer."""
    memory = outputs.last_hidden_state if outputs.memory is None else outputs.memory
    return [(layer.source_attn, memory) for layer in model.decoder.layers]


def sources_of_aggregation(model: Any, outputs: Any) -> list[tuple[Any, Tensor]]:
    """Returns (attention over the source, memory that it reads) of each decoder layer of a model of aggregation.py; in
    Transparent, whose memory has a dimension of layers, each decoder layer reads its own part."""
    if outputs.memory.dim() == 3:
        return sources_of_decoder(model, outputs)
    return [(layer.source_attn, layer.memory_of(outputs.memory)) for layer in model.decoder.layers]


class Family(NamedTuple):
    """A family of models: the classes, beside the baseline's, whose methods the search relies on, and a function that
    returns the attentions over the source with what they read."""

    classes: tuple[type, ...] = ()
    sources: Callable[[Any, Any], list[tuple[Any, Tensor]]] = sources_of_decoder


# Class -> family; it also holds for subclasses without an entry of their own (dual_context.py, ssru.py ...).
FAMILIES: dict[type, Family] = {
    TransformerForConditionalGeneration: Family(),
    AggregationForConditionalGeneration: Family((AggregationDecoderLayer,), sources_of_aggregation),
    BridgeForConditionalGeneration: Family((BridgeForConditionalGeneration, BridgeModel)),
    ExtendedCrossAttentionForConditionalGeneration: Family((ExtendedDecoder, ExtendedDecoderLayer)),
    MultiLevelSupervisionForConditionalGeneration: Family((MultiLevelSupervisionModel, FusionDecoderLayer)),
}


def entry_of_class(model: Any, table: dict[type, Any]) -> Any:
    """Returns the table's entry for the model's class or its nearest base class; None if there is no entry."""
    return next((table[base] for base in type(model).__mro__ if base in table), None)


def find_family(model: Any) -> Family | None:
    """Returns the family of the model's class; None if a module overrides a method that the search relies on.

    So a class that overrides such a method needs no change here: its modules are called.
    """
    family = entry_of_class(model, FAMILIES)
    decoders = [] if family is None else decoders_of(model.model)
    if family is None or not all(isinstance(decoder, Decoder) for decoder in decoders):
        return None
    parts: list[tuple[Any, Any]] = [(model, TransformerForConditionalGeneration), (model.model, TransformerModel)]
    for decoder in decoders:
        parts += [(decoder, Decoder), *((layer, DecoderLayer) for layer in decoder.layers)]
    for name in ("forward", "decode", "extend", "attend_self", "attend_source"):
        for part, plain in parts:
            # Compare unwrapped methods: Transformers wraps the forward of each subclass of its layers anew.
            kinds = [kind for kind in (plain, *family.classes) if hasattr(kind, name)]
            methods = {inspect.unwrap(getattr(kind, name)) for kind in kinds}
            if hasattr(plain, name) and inspect.unwrap(getattr(type(part), name)) not in methods:
                return None
    called = [model.lm_head, *(module for decoder in decoders for module in decoder.modules())]
    return None if any("forward" in vars(module) for module in called) else family


def decoders_of(model: Any) -> list[Any]:
    """Returns the decoders that run in a search: the main one, and with information fusion the auxiliary ones."""
    fused = getattr(model.config, "information_fusion", False)
    return [model.decoder, *(model.auxiliary_decoders if fused else ())]


class CompiledStep:
    """Computes the logits of one new position of every beam: embeddings, all layers in compiled code, projection."""

    def __init__(self, model: Any, family: Family, units: NativeUnits):
        self.model, self.decoder, self.projection = model.model, model.model.decoder, model.lm_head
        self.units, self.functions, self.sources = units, units.functions, family.sources
        self.layouts: dict[nn.Module, Tensor] = {}  # module -> weight in oneDNN's layout
        self.logits_memory: Tensor | None = None

    @classmethod
    def of(cls, model: Any, family: Family | None, large: int = TRANSPOSED) -> CompiledStep | None:
        """Builds the step, or returns None if the modules have dropout, autocast, adapters or hooks, or if search.c
        does not support a sublayer.

        large: the memory layout of large weights, TRANSPOSED, PACKED or AS_IT_LIES.
        """
        if family is None or model.training or torch.is_autocast_enabled("cpu") or hasattr(model, "_hf_hook"):
            return None
        decoder = model.model.decoder
        functions = library(decoder.embed_tokens.weight.dtype)
        if functions is None or len(decoders_of(model.model)) > 1 or type(model.lm_head) not in LINEARS:
            return None
        if type(decoder.embed_tokens) is not nn.Embedding:
            return None
        if not {type(decoder.layer_norm), type(decoder.embedding_norm)} <= {nn.LayerNorm, nn.Identity}:
            return None
        units = NativeUnits(functions, large)
        for layer in decoder.layers:
            sublayers = (
                (layer.self_attn_sublayer, layer.self_attn),
                (layer.source_attn_sublayer, layer.source_attn),
                (layer.feed_forward_sublayer, layer.feed_forward),
            )
            if not all(add_sublayer(units, *each, decoder.embed_tokens.weight.dtype) for each in sublayers):
                return None
        return cls(model, family, units)

    def __call__(self, tokens: Tensor, position: int, cache: Any, history_mask: Tensor, source_mask: Tensor) -> Tensor:
        """Computes logits (sentences, width, vocabulary), in memory that the next call overwrites.

        Args:
            tokens: (sentences, width).
            position: in the target, of all tokens.
            cache: a `BeamCache`. history_mask, source_mask: added to energies, (sentences, 1, width or 1, slots).
        """
        decoder = self.decoder
        states = torch.embedding(decoder.embed_tokens.weight, tokens.flatten())  # (sentences x width, d_model)
        here = decoder.positions(1, position)
        states = norm(decoder.embedding_norm, torch.add(here.to(states.dtype), states, alpha=decoder.embed_scale))
        states = self.units(states, tokens.shape[1], cache, history_mask, source_mask)
        return self.score(norm(decoder.layer_norm, states)).view(*tokens.shape, -1)

    def prepare_first(self, cache: Any, outputs: Any) -> None:
        """Fills the cache before the first token: the source's keys and values, and empty states or buffers."""
        read_source(self.sources(self.model, outputs), cache)
        for layer in self.decoder.layers:
            source = cache.source_layers[layer.source_attn.layer_idx]
            slot = cache.target_layers[layer.self_attn.layer_idx]
            if isinstance(slot, BeamRecurrentCacheLayer):
                slot.states = source.keys.new_zeros(len(source.keys), 1, 1, self.decoder.embed_tokens.embedding_dim)
            else:
                slot.storage.begin(source.keys, source.values)

    def score(self, states: Tensor) -> Tensor:
        """Computes logits (sentences x width, vocabulary), if possible in the memory of the last step's: when freed, so
        much memory returns to the system, and allocating it again costs time for each page."""
        module, rows = self.projection, len(states)
        if type(module) is Int8Linear:
            return module(states)
        if (product := packed(module, states, layouts=self.layouts)) is not None:
            return product
        # A single row is multiplied by a large weight as it lies, without a transposed copy.
        lies = rows == 1 and module.weight.numel() > SMALL
        weight = module.weight.t() if lies else kept(module, "transposed", transposed)
        size = rows * module.out_features
        if self.logits_memory is None or self.logits_memory.numel() < size:
            self.logits_memory = states.new_empty(size)
        memory = self.logits_memory[:size].view(rows, -1)
        if module.bias is None:
            return torch.mm(states, weight, out=memory)
        return torch.addmm(module.bias, states, weight, out=memory)


def norm(module: nn.Module, states: Tensor) -> Tensor:
    """Computes a layer norm without calling its module; returns the states unchanged for any other module."""
    if not isinstance(module, nn.LayerNorm):
        return states
    return torch.layer_norm(states, module.normalized_shape, module.weight, module.bias, module.eps)


def add_sublayer(units: NativeUnits, sublayer: Any, module: Any, dtype: torch.dtype) -> bool:
    """Adds a sublayer to the units and returns True; returns False if search.c cannot compute it or PyTorch is
    faster."""
    unit: tuple[Any, ...]
    if type(module) is FeedForward and type(module.activation) in ACTIVATIONS:
        unit = FEED_FORWARD, module.fc1, module.fc2, 1, 1.0, 0, ACTIVATIONS[type(module.activation)]
    elif type(module) is SelfAttention:
        unit = SELF_ATTENTION, module.qkv_proj, module.out_proj, module.heads, module.scaling, module.layer_idx, RELU
    elif type(module) is CrossAttention:
        unit = SOURCE_ATTENTION, module.q_proj, module.out_proj, module.heads, module.scaling, module.layer_idx, RELU
    elif type(module) is SSRU:
        unit = STATE, module.forget_proj, module.input_proj, 1, 1.0, module.layer_idx, RELU
    else:
        return False
    parts = (*unit[1:3], sublayer.layer_norm)
    if type(sublayer.layer_norm) is not nn.LayerNorm or not {type(part) for part in unit[1:3]} <= set(LINEARS):
        return False
    if any(type(part) is Int8Linear and compiled(part) is None for part in parts):
        return False
    large = [part for part in unit[1:3] if type(part) is nn.Linear and part.weight.numel() > SMALL]
    if units.large == TRANSPOSED and large and (not units.functions.gemm or any(map(takes_few, large))):
        return False
    if {parameter.dtype for part in parts for parameter in part.parameters()} != {dtype}:
        return False
    units.add(sublayer, *unit)
    return True
