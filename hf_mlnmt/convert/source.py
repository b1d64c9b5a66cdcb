"""What the reader of each format hands over: everything that an imported model is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers.activations import ACT2FN

from hf_mlnmt.convert.account import Account
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.modeling import TransformerConfig


@dataclass
class Source:
    """A checkpoint that has been read.

    `original`: the model itself, where its own code is at hand to compare with. `dtype`: the name of the type that the
    weights are kept in. `notes`: what the reader of import.json should know.
    """

    format: str
    config: TransformerConfig
    account: Account
    tokenizers: Tokenizers
    generation_config: Any
    original: Any = None
    dtype: str = "float32"
    notes: list[str] = field(default_factory=list)


def baseline_config(source: str, **fields: Any) -> TransformerConfig:
    """The baseline's config. Raises: UserError that names `source` and the field that makes no model."""
    if fields["activation_function"] not in ACT2FN:
        raise UserError(f"{source}: the activation {fields['activation_function']} is none that Transformers knows.")
    try:
        return TransformerConfig(**fields)
    except (StrictDataclassError, ValueError, TypeError) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[-1].strip()
        raise UserError(f"{source}: its settings make no model: {reason}") from error
