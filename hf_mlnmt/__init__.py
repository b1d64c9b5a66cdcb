"""hf_mlnmt: neural machine translation models for Transformers. Importing it registers them with the Auto classes."""

from hf_mlnmt.errors import UserError
from hf_mlnmt.modeling import TransformerConfig, TransformerForConditionalGeneration, TransformerModel
from hf_mlnmt.zoo.systems import config_for, list_systems

__version__ = "0.1.0"

__all__ = [
    "TransformerConfig",
    "TransformerForConditionalGeneration",
    "TransformerModel",
    "UserError",
    "config_for",
    "list_systems",
]
