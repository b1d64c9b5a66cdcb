"""The zoo's table of contents: canonical system names, shapes, and the config that each name stands for."""

from __future__ import annotations

import re
from typing import Any

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.modeling import (
    AggregationConfig,
    DualContextAggregationConfig,
    DualContextConfig,
    DualContextMultiLayerConfig,
    DualContextSupervisionConfig,
    ExtendedCrossAttentionConfig,
    MultiLayerAttentionConfig,
    MultiLevelSupervisionConfig,
    TransformerConfig,
)

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"layers": 4, "d_model": 128, "attention_heads": 4, "ffn_dim": 256},
    "small": {"layers": 4, "d_model": 256, "attention_heads": 4, "ffn_dim": 1024},
    "base": {"layers": 6, "d_model": 512, "attention_heads": 8, "ffn_dim": 2048},
}

# Canonical name -> config class and the fields that make the system what it is.
SYSTEMS: dict[str, tuple[type[TransformerConfig], dict[str, Any]]] = {
    "transformer": (TransformerConfig, {}),
    "s-agg": (AggregationConfig, {"aggregation": "S-Agg"}),
    "iter-s-agg": (AggregationConfig, {"aggregation": "Iter-S-Agg"}),
    "c-agg": (AggregationConfig, {"aggregation": "C-Agg"}),
    "iter-c-agg": (AggregationConfig, {"aggregation": "Iter-C-Agg"}),
    "transparent": (AggregationConfig, {"aggregation": "Transparent"}),
    "m-00": (MultiLayerAttentionConfig, {"multi_layer_attention": "M-00"}),
    "m-01": (MultiLayerAttentionConfig, {"multi_layer_attention": "M-01"}),
    "m-10": (MultiLayerAttentionConfig, {"multi_layer_attention": "M-10"}),
    "m-11": (MultiLayerAttentionConfig, {"multi_layer_attention": "M-11"}),
    "ms-1": (MultiLevelSupervisionConfig, {"auxiliary_layers": [1]}),
    "ms-123": (MultiLevelSupervisionConfig, {"auxiliary_layers": [1, 2, 3]}),
    "ms-1-aif": (MultiLevelSupervisionConfig, {"auxiliary_layers": [1], "information_fusion": True}),
    "ms-123-aif": (MultiLevelSupervisionConfig, {"auxiliary_layers": [1, 2, 3], "information_fusion": True}),
    "enc-dc": (DualContextConfig, {"dual_context": "Enc-DC"}),
    "dec-dc": (DualContextConfig, {"dual_context": "Dec-DC"}),
    "full-dc": (DualContextConfig, {"dual_context": "Full-DC"}),
    "source-embedding": (ExtendedCrossAttentionConfig, {"cross_attention": "source-embedding"}),
    "target-embedding": (ExtendedCrossAttentionConfig, {"cross_attention": "target-embedding"}),
    "both-embeddings": (ExtendedCrossAttentionConfig, {"cross_attention": "both-embeddings"}),
    "previous-context-head": (ExtendedCrossAttentionConfig, {"cross_attention": "previous-context-head"}),
    "previous-context-full": (ExtendedCrossAttentionConfig, {"cross_attention": "previous-context-full"}),
    "previous-weight": (ExtendedCrossAttentionConfig, {"cross_attention": "previous-weight"}),
    "accumulated-weight": (ExtendedCrossAttentionConfig, {"cross_attention": "accumulated-weight"}),
    "fertility": (ExtendedCrossAttentionConfig, {"cross_attention": "fertility"}),
    "key-value-head": (ExtendedCrossAttentionConfig, {"cross_attention": "key-value-head"}),
    "key-value-full": (ExtendedCrossAttentionConfig, {"cross_attention": "key-value-full"}),
}

# What <system>+enc-dc stands for: the system over a dual-context encoder.
OVER_DUAL_CONTEXT: dict[type[TransformerConfig], type[TransformerConfig]] = {
    AggregationConfig: DualContextAggregationConfig,
    MultiLayerAttentionConfig: DualContextMultiLayerConfig,
    MultiLevelSupervisionConfig: DualContextSupervisionConfig,
}


def list_systems() -> list[str]:
    """The canonical names of all systems, in the order of the documentation; of the ms-<layers> a selection."""
    return list(SYSTEMS)


def find_system(system: str) -> tuple[type[TransformerConfig], dict[str, Any]]:
    """Config class and fields of a canonical name; ms-<layers> and ms-<layers>-aif for any layers, a digit each."""
    if system in SYSTEMS:
        return SYSTEMS[system]
    if system.endswith("+enc-dc"):
        config_class, fields = find_system(system.removesuffix("+enc-dc"))
        if config_class in OVER_DUAL_CONTEXT:
            return OVER_DUAL_CONTEXT[config_class], fields
    if match := re.fullmatch(r"ms-([1-9]+)(-aif)?", system):
        layers = [int(digit) for digit in match[1]]
        return MultiLevelSupervisionConfig, {"auxiliary_layers": layers, "information_fusion": match[2] is not None}
    raise UserError(f"system '{system}' is unknown{suggest(system, SYSTEMS)}; known: {', '.join(SYSTEMS)}, ms-<layers>")


def config_for(system: str, shape: str = "base", **overrides: Any) -> TransformerConfig:
    """The config of a system at a shape.

    Args:
        system: a canonical name, see `list_systems()`; ms-24 has auxiliaries on layers 2 and 4, ms-24-aif with fusion;
            ms-1+enc-dc, m-10+enc-dc, s-agg+enc-dc and so on have a dual-context encoder.
        shape: "tiny" (4+4 layers, d=128, 4 heads, d_ff=256), "small" (4+4, 256, 4, 1024) or "base" (6+6, 512, 8, 2048).
        overrides: config fields that replace the shape's and the system's.

    Raises: UserError for an unknown system, shape or field.
    """
    config_class, fields = find_system(system)
    if shape not in SHAPES:
        raise UserError(f"shape '{shape}' is unknown{suggest(shape, SHAPES)}; known: {', '.join(SHAPES)}")
    known = set(config_class.__dataclass_fields__)
    for name in overrides:
        if name not in known:
            raise UserError(f"{config_class.__name__} has no field '{name}'{suggest(name, known)}")
    size = SHAPES[shape]
    per_side = ("layers", "attention_heads", "ffn_dim")
    sides = {f"{side}_{name}": size[name] for side in ("encoder", "decoder") for name in per_side}
    return config_class(**{"d_model": size["d_model"], **sides, **fields, **overrides})
