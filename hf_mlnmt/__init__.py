"""hf_mlnmt: neural machine translation models for Transformers.

Importing it lets the Auto classes know the models, at no cost: neither torch nor Transformers is imported before it is
used (hf_mlnmt/zoo/registration.py).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.zoo.registration import introduce
from hf_mlnmt.zoo.systems import config_for, list_systems

if TYPE_CHECKING:
    from hf_mlnmt.convert.importing import import_model
    from hf_mlnmt.generation.translating.fusing import fuse
    from hf_mlnmt.modeling.configuration import TransformerConfig
    from hf_mlnmt.modeling.transformer import TransformerForConditionalGeneration, TransformerModel
    from hf_mlnmt.search import explain

__version__ = "1.0.0"

__all__ = [
    "TransformerConfig",
    "TransformerForConditionalGeneration",
    "TransformerModel",
    "UserError",
    "config_for",
    "explain",
    "fuse",
    "import_model",
    "list_systems",
]

introduce()


def __getattr__(name: str) -> Any:
    """Imports the baseline's classes, `explain`, `fuse` and `import_model` when they are asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {"import_model": "convert.importing", "explain": "search", "fuse": "generation.translating.fusing"}
    return getattr(import_module(f"{__name__}.{homes.get(name, 'modeling')}"), name)
