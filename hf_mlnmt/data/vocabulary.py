"""Whether tokenizers and a model are of one size."""

from __future__ import annotations

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
