"""The zoo's table of contents: every system's entry by its name, and the config that a name stands for at a shape."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.zoo.entries import (
    aggregation,
    bridge,
    dual_context,
    extended_cross_attention,
    fusion,
    language_model,
    layers_read,
    multi_layer_attention,
    multi_level_supervision,
    transformer,
)
from hf_mlnmt.zoo.entry import Architecture, Kind, System

if TYPE_CHECKING:
    from hf_mlnmt.modeling.configuration import StackConfig

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"layers": 4, "d_model": 128, "attention_heads": 4, "ffn_dim": 256},
    "small": {"layers": 4, "d_model": 256, "attention_heads": 4, "ffn_dim": 1024},
    "base": {"layers": 6, "d_model": 512, "attention_heads": 8, "ffn_dim": 2048},
}
# In the order of the documentation.
_ENTRIES = (
    *transformer.SYSTEMS,
    *aggregation.SYSTEMS,
    *multi_layer_attention.SYSTEMS,
    *multi_level_supervision.SYSTEMS,
    *dual_context.SYSTEMS,
    *extended_cross_attention.SYSTEMS,
    *bridge.SYSTEMS,
    *language_model.SYSTEMS,
)
SYSTEMS: dict[str, System] = {entry.name: entry for entry in _ENTRIES}
VARIANTS: dict[str, System] = {entry.name: entry for entry in (*transformer.VARIANTS, *layers_read.VARIANTS)}
"""Entries that only records have: no names for `config_for`."""


def list_systems(kind: Kind | None = None) -> list[str]:
    """The canonical names of all systems, in the order of the documentation; of the ms-<layers> a selection.

    Args:
        kind: "translation" (AutoModelForSeq2SeqLM) or "language-model" (AutoModelForCausalLM); None: both.
    """
    return [name for name, entry in SYSTEMS.items() if kind in (None, entry.architecture.kind)]


def find_system(name: str) -> System:
    """The entry of a canonical name: a listed one, ms-<layers> or ms-<layers>-aif, or one of these with +enc-dc.

    Raises: UserError naming the nearest.
    """
    if name in SYSTEMS:
        return SYSTEMS[name]
    if name.endswith("+enc-dc"):
        joint = find_system(name.removesuffix("+enc-dc"))
        if joint.architecture.over_dual_context:
            return _over_dual_context(joint, name)
    if supervised := multi_level_supervision.system(name):
        return supervised
    known = list_systems()
    raise UserError(f"system '{name}' is unknown{suggest(name, known)}; known: {', '.join(known)}, ms-<layers>")


def _over_dual_context(joint: System, name: str) -> System:
    """The system over a dual-context encoder, a combination of ours."""
    architecture = joint.architecture.over_dual_context
    assert architecture is not None
    title, clause = f"{joint.title} over Enc-DC", f"{joint.clause}, over a dual-context encoder"
    fields = dual_context.SETUP_FIELDS
    return replace(joint, name=name, architecture=architecture, title=title, clause=clause, setup_fields=fields)


def architectures() -> Iterator[Architecture]:
    """The classes of every system, combinations too, each once; and those of models that are made of others."""
    for architecture in dict.fromkeys(entry.architecture for entry in SYSTEMS.values()):
        yield architecture
        if architecture.over_dual_context:
            yield architecture.over_dual_context
    yield fusion.FUSION


def architecture_of(config: Any) -> Architecture | None:
    """The entry of a config's classes; None for a config of another package."""
    return next((one for one in architectures() if one.model_type == config.model_type), None)


def config_for(system: str, shape: str = "base", **overrides: Any) -> StackConfig:
    """The config of a system at a shape.

    Args:
        system: a canonical name, see `list_systems()`; ms-24 has auxiliaries on layers 2 and 4, ms-24-aif with fusion;
            ms-1+enc-dc, m-10+enc-dc, s-agg+enc-dc and so on have a dual-context encoder.
        shape: "tiny" (4+4 layers, d=128, 4 heads, d_ff=256), "small" (4+4, 256, 4, 1024) or "base" (6+6, 512, 8, 2048);
            of a language model the decoder's.
        overrides: config fields that replace the shape's and the system's.

    Raises: UserError for an unknown system, shape or field.
    """
    return config_of_entry(find_system(system), shape, **overrides)


def config_of_entry(entry: System, shape: str, **overrides: Any) -> StackConfig:
    """The same of an entry, which may be a variant. Raises: UserError for an unknown shape or field."""
    if shape not in SHAPES:
        raise UserError(f"shape '{shape}' is unknown{suggest(shape, SHAPES)}; known: {', '.join(SHAPES)}")
    config_class = entry.architecture.config_class
    known = set(config_class.__dataclass_fields__)
    for name in overrides:
        if name not in known:
            raise UserError(f"{config_class.__name__} has no field '{name}'{suggest(name, known)}")
    size = SHAPES[shape]
    per_side = ("layers", "attention_heads", "ffn_dim")
    sides = {f"{side}_{name}": size[name] for side in ("encoder", "decoder") for name in per_side}
    sides = {name: value for name, value in sides.items() if name in known}
    fields = deepcopy(dict(entry.fields))  # a config may be changed, the entry not
    return config_class(**{"d_model": size["d_model"], **sides, **fields, **overrides})
