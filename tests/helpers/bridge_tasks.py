"""A model of the attention bridge."""

from __future__ import annotations

from typing import Any

import torch
from helpers.training_helpers import VOCABULARY
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt import config_for


def bridge_model(system: str = "bridge-rnn") -> Any:
    """Tiny, float64, without dropout."""
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "bridge_heads": 3, "bridge_width": 8}
    languages = {"source_languages": ["de", "en", "fr"], "target_languages": ["en", "fr"]}
    tokens = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    config = config_for(system, "tiny", **sizes, **languages, **tokens, dropout=0.0)
    return AutoModelForSeq2SeqLM.from_config(config).double()
