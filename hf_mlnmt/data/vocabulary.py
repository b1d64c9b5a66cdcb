"""Whether tokenizers and a model are of one size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_mlnmt.errors import UserError


def check_vocabulary(name: str, config: Any, source: Any, target: Any) -> None:
    """Raises: UserError when a tokenizer has more entries than the model of this config has embeddings."""
    sides = [(source, config.vocab_size, "source")]
    if target is not source:
        sides.append((target, getattr(config, "decoder_vocab_size", None) or config.vocab_size, "target"))
    for tokenizer, rows, side in sides:
        if len(tokenizer) > rows:
            raise UserError(
                f"{name}: the {side} tokenizer has {len(tokenizer)} entries, the model {rows} embeddings. "
                "They are not of one model: train or download both together."
            )


def check_languages(name: str, config: Any, each: Mapping[str, Any]) -> None:
    """Raises: UserError unless every language of a model has a tokenizer of its own that fits its embeddings."""
    sizes = getattr(config, "vocab_sizes", None)
    if sizes is None:
        raise UserError(
            f"{name}: has a tokenizer for each language, and a model of one vocabulary. They are not of one model: "
            "train or download both together."
        )
    for language in config.languages:
        if language not in each:
            raise UserError(f"{name}: there is no tokenizer of {language}, only of {', '.join(each)}. Copy it there.")
        if len(each[language]) > sizes[language]:
            raise UserError(
                f"{name}: the tokenizer of {language} has {len(each[language])} entries, the model {sizes[language]} "
                "embeddings. They are not of one model: train or download both together."
            )
