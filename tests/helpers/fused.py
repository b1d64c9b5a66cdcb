"""Fused toys: our models and foreign ones over one small vocabulary, in float64, with weights that say something."""

from __future__ import annotations

from typing import Any

import torch
from helpers.contract import FIELDS, TINY, Member, redraw
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_mlnmt import config_for, fuse


def translator(system: str = "transformer", seed: int = 0, vocabulary: int = 29, **fields: Any) -> Any:
    sizes = {**TINY, **FIELDS.get(system, {}), "vocab_size": vocabulary, **fields}
    return Member(system, "post", sizes).model(seed=seed)


def language_model(vocabulary: int = 29, seed: int = 7, start: int = 2) -> Any:
    """GPT-2, with a start token that is not the translation model's."""
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "bos_token_id": start, "eos_token_id": 1}
    return _drawn(GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **sizes)), seed)


def our_language_model(vocabulary: int = 29, seed: int = 6) -> Any:
    """The baseline's decoder alone."""
    fields = {name: value for name, value in TINY.items() if not name.startswith("encoder")}
    config = config_for("lm", "tiny", **{**fields, "vocab_size": vocabulary})
    return _drawn(AutoModelForCausalLM.from_config(config), seed)


def marian(vocabulary: int = 29, seed: int = 3) -> Any:
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 24}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    config = MarianConfig(vocab_size=vocabulary, d_model=16, max_position_embeddings=64, **sides, **ids)
    return _drawn(MarianMTModel(config), seed)


def t5(vocabulary: int = 29, seed: int = 4) -> Any:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": vocabulary}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return _drawn(T5ForConditionalGeneration(T5Config(**sizes, **ids)), seed)


def _drawn(model: Any, seed: int) -> Any:
    """With large weights; Marian's sines stay: they are not saved."""
    model = model.eval().to(torch.float64)
    sines = {name: one.clone() for name, one in model.state_dict().items() if "embed_positions" in name}
    redraw(model, seed)
    model.load_state_dict(sines, strict=False)
    return model


def fused(*translators: Any, lms: Any = None, **settings: Any) -> Any:
    """One model of ours and a language model, unless told."""
    vocabulary = translators[0].get_output_embeddings().weight.shape[0] if translators else 29
    lms = [language_model(vocabulary)] if lms is None else lms
    return fuse(list(translators) or [translator()], lms, **settings)


def member_logits(model: Any, inputs: dict[str, Any], targets: torch.Tensor) -> list[torch.Tensor]:
    """Of every member alone (batch, target, vocabulary): targets (batch, target) begin with the fused start token."""
    found = []
    starts = model.config.start_token_ids
    for number, one in enumerate([*model.translation_models, *model.language_models]):
        ids = targets.clone()
        ids[:, 0] = starts[number]
        read = {**inputs, "decoder_input_ids": ids} if number < len(model.translation_models) else {"input_ids": ids}
        found.append(one(**read, use_cache=False).logits)
    return found


def exponents(model: Any, alpha: float, beta: float) -> list[float]:
    """Of the members' probabilities in q."""
    config = model.config
    return [alpha * w for w in config.translation_weights] + [beta * w for w in config.language_weights]
