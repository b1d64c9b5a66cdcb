"""What the reader of each format hands over: everything that an imported model is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hf_mlnmt.convert.account import Account
from hf_mlnmt.data.tokenizer import Tokenizers
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
