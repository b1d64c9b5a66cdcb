"""Which step computes which model, and whether it computes what the model's own modules do."""

import inspect
from typing import Any

import torch
from torch import nn

from hf_mlnmt.modeling.aggregation import AggregationForConditionalGeneration
from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration
from hf_mlnmt.modeling.dual_context import DualContextForConditionalGeneration
from hf_mlnmt.modeling.extended_cross_attention import ExtendedCrossAttentionForConditionalGeneration
from hf_mlnmt.modeling.layers import DecoderLayer
from hf_mlnmt.modeling.multi_layer_attention import MultiLayerAttentionForConditionalGeneration
from hf_mlnmt.modeling.multi_level_supervision import MultiLevelSupervisionForConditionalGeneration
from hf_mlnmt.modeling.transformer import Decoder, TransformerForConditionalGeneration, TransformerModel
from hf_mlnmt.search.steps.aggregation import AggregationStep
from hf_mlnmt.search.steps.baseline import DecoderStep
from hf_mlnmt.search.steps.bridge import BridgeStep
from hf_mlnmt.search.steps.dual_context import DualContextStep
from hf_mlnmt.search.steps.extended_cross_attention import ExtendedCrossAttentionStep
from hf_mlnmt.search.steps.multi_layer_attention import MultiLayerAttentionStep
from hf_mlnmt.search.steps.multi_level_supervision import MultiLevelSupervisionStep

# A class and those derived from it, unless they are named themselves.
STEPS: dict[type, type[DecoderStep]] = {
    TransformerForConditionalGeneration: DecoderStep,
    AggregationForConditionalGeneration: AggregationStep,
    BridgeForConditionalGeneration: BridgeStep,
    DualContextForConditionalGeneration: DualContextStep,
    ExtendedCrossAttentionForConditionalGeneration: ExtendedCrossAttentionStep,
    MultiLayerAttentionForConditionalGeneration: MultiLayerAttentionStep,
    MultiLevelSupervisionForConditionalGeneration: MultiLevelSupervisionStep,
}


def entry_of_class(model: Any, table: dict[type, Any]) -> Any:
    """What the table says of the nearest of the classes that the model's is derived from, or None."""
    return next((table[base] for base in type(model).__mro__ if base in table), None)


def find_step(model: Any) -> type[DecoderStep] | None:
    """The step made for the model's class, if the methods of all parts are those that it computes; else None.

    A class that overrides one of them is called as modules: its own file need not know of a search.
    """
    step = entry_of_class(model, STEPS)
    if step is None:
        return None
    parts: list[tuple[Any, Any]] = [(model, TransformerForConditionalGeneration), (model.model, TransformerModel)]
    for decoder in step.decoders(model.model):
        parts += [(decoder, Decoder), *((layer, DecoderLayer) for layer in decoder.layers)]
    return step if _methods_are_known(step, parts) and not _is_hooked(step, model) else None


def write_out(step: type[DecoderStep] | None, model: Any) -> DecoderStep | None:
    """The step, if using the modules' weights is calling them: no dropout, autocast, adapter or int8; else None."""
    if step is None or model.training or torch.is_autocast_enabled("cpu"):
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
    return step(model) if type(model.model.decoder.embed_tokens) is nn.Embedding else None


def _methods_are_known(step: type[DecoderStep], parts: list[tuple[Any, Any]]) -> bool:
    """Whether the methods of each part are those of the baseline's class beside it, or of the step's family."""
    for name in ("forward", "decode", "extend", "attend_self", "attend_source"):
        for part, plain in parts:
            classes = [x for x in (plain, *step.family) if hasattr(x, name)]
            # Unwrapped, because Transformers wraps the forward of every subclass of its layers anew.
            known = {inspect.unwrap(getattr(x, name)) for x in classes}
            if hasattr(plain, name) and inspect.unwrap(getattr(type(part), name)) not in known:
                return False
    return True


def _is_hooked(step: type[DecoderStep], model: Any) -> bool:
    """Whether calling a module does something besides its `forward`."""
    modules = [module for decoder in step.decoders(model.model) for module in decoder.modules()] + [model.lm_head]
    return any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in modules)
