"""A generation_config fit to publish: what the model needs and how it was decoded, none of training's leftovers.

Seq2SeqTrainer.evaluate() writes every default of generate() into a model's generation_config, max_length=20 among them:
published, it would cut every translation short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_FORCED = ("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens")
_SEARCH = ("num_beams", "length_penalty", "length_normalization", "early_stopping", "max_new_tokens")
_SCALES = ("alpha", "beta", "recombine")
_LIMITS = ("no_repeat_ngram_size", "repetition_penalty", "renormalize_logits")
KEPT = (*TOKEN_IDS, *_FORCED, *_SEARCH, *_SCALES, *_LIMITS)
"""Every other key of a generation config is left out; so are kept keys that only say generate()'s default."""
_DEFAULTS: dict[str, Any] = {
    "num_beams": 1,
    "length_penalty": 1.0,
    "early_stopping": False,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "renormalize_logits": False,
    "length_normalization": "generate",
}
STOCK_LENGTHS = (20, 21)
"""max_length that nobody chose: Transformers' default, without and with the start token."""


def clean_generation_config(config: GenerationConfig, model_config: Any) -> GenerationConfig:
    """The parts of `config` worth keeping; token ids it lacks come from the model's config.

    `max_new_tokens` is always there: a max_length that somebody chose becomes it, else the model's longest sequence.
    """
    found = {key: getattr(config, key, None) for key in KEPT}
    for key in TOKEN_IDS:
        if found[key] is None:
            found[key] = getattr(model_config, key, None)
    if found["max_new_tokens"] is None:
        found["max_new_tokens"] = _longest(config, model_config)
    kept = {key: value for key, value in found.items() if value is not None and value != _DEFAULTS.get(key)}
    if kept.get("num_beams", 1) == 1:  # these two are for beams; transformers warns of them without
        kept = {key: value for key, value in kept.items() if key not in ("early_stopping", "length_penalty")}
    else:
        kept.setdefault("length_penalty", 1.0)  # the card's first question is answered even by the default
    return GenerationConfig(**kept)


def pollution(content: Mapping[str, Any]) -> list[str]:
    """What a generation_config.json holds that is not for publication, as `key=value`."""
    keys = [key for key in content if key not in (*KEPT, "transformers_version", "_from_model_config")]
    return [f"{key}={content[key]}" for key in keys if content[key] is not None]


def _longest(config: GenerationConfig, model_config: Any) -> int:
    chosen = getattr(config, "max_length", None)
    if chosen is not None and chosen not in STOCK_LENGTHS:
        return chosen - 1  # max_length counts the start token
    return min(256, (getattr(model_config, "max_position_embeddings", None) or 257) - 1)
