"""The zoo's table of contents: canonical system names, shapes, and the config that each name stands for."""

from __future__ import annotations

from typing import Any

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.modeling import TransformerConfig

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"layers": 4, "d_model": 128, "attention_heads": 4, "ffn_dim": 256},
    "small": {"layers": 4, "d_model": 256, "attention_heads": 4, "ffn_dim": 1024},
    "base": {"layers": 6, "d_model": 512, "attention_heads": 8, "ffn_dim": 2048},
}

# Canonical name -> config class and the fields that make the system what it is.
SYSTEMS: dict[str, tuple[type[TransformerConfig], dict[str, Any]]] = {
    "transformer": (TransformerConfig, {}),
}


def list_systems() -> list[str]:
    """The canonical names of all systems, in the order of the documentation."""
    return list(SYSTEMS)


def config_for(system: str, shape: str = "base", **overrides: Any) -> TransformerConfig:
    """The config of a system at a shape.

    Args:
        system: a canonical name, see `list_systems()`.
        shape: "tiny" (4+4 layers, d=128, 4 heads, d_ff=256), "small" (4+4, 256, 4, 1024) or "base" (6+6, 512, 8, 2048).
        overrides: config fields that replace the shape's and the system's.

    Raises: UserError for an unknown system, shape or field.
    """
    if system not in SYSTEMS:
        raise UserError(f"system '{system}' is unknown{suggest(system, SYSTEMS)}; known: {', '.join(SYSTEMS)}")
    if shape not in SHAPES:
        raise UserError(f"shape '{shape}' is unknown{suggest(shape, SHAPES)}; known: {', '.join(SHAPES)}")
    config_class, fields = SYSTEMS[system]
    known = set(config_class.__dataclass_fields__)
    for name in overrides:
        if name not in known:
            raise UserError(f"{config_class.__name__} has no field '{name}'{suggest(name, known)}")
    size = SHAPES[shape]
    per_side = ("layers", "attention_heads", "ffn_dim")
    sides = {f"{side}_{name}": size[name] for side in ("encoder", "decoder") for name in per_side}
    return config_class(**{"d_model": size["d_model"], **sides, **fields, **overrides})
