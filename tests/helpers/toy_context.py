"""Toys that see one token of the target, or none: for them what a trellis computes is exact."""

from __future__ import annotations

from typing import Any

import torch
from helpers.contract import TINY, redraw
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from hf_mlnmt import TransformerForConditionalGeneration, config_for
from hf_mlnmt.modeling.outputs import TranslationOutput
from hf_mlnmt.modeling.releases import CACHE


class BigramTranslator(TransformerForConditionalGeneration):
    """Logits of the last target token, and of the first source token; `forward` is its own, so it is called."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.of_target = nn.Embedding(config.vocab_size, config.vocab_size)
        self.of_source = nn.Linear(config.d_model, config.vocab_size)

    def forward(self, input_ids=None, attention_mask=None, decoder_input_ids=None, encoder_outputs=None, **kwargs):  # type: ignore[override]
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        source = self.of_source(encoder_outputs.last_hidden_state[:, :1])
        logits: Tensor = self.of_target(decoder_input_ids) + source
        return TranslationOutput(logits=logits, **{CACHE: kwargs.get(CACHE)})


def bigram_translator(vocabulary: int, seed: int = 0, sees: int = 1) -> Any:
    """In float64; `sees` 0: not even the last token."""
    config = config_for("transformer", "tiny", **{**TINY, "vocab_size": vocabulary})
    model = BigramTranslator(config).eval().to(torch.float64)
    redraw(model, seed)
    with torch.no_grad():
        model.of_target.weight.mul_(3.0 * sees)
    return model


def bigram_language_model(vocabulary: int, seed: int = 1, sees: int = 1) -> Any:
    """GPT-2 without layers and without positions."""
    sizes = {"n_embd": 8, "n_layer": 0, "n_head": 2, "n_positions": 64, "bos_token_id": 3, "eos_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **sizes)).eval().to(torch.float64)
    redraw(model, seed, std=1.0)
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
        if not sees:
            model.transformer.ln_f.weight.zero_()
    return model
