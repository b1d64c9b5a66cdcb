"""A fused model folder as `hf-mlnmt model fuse` leaves it, small; its members beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from helpers.model_folders import SENTENCES, small_model
from transformers import GPT2Config, GPT2LMHeadModel

from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer
from hf_mlnmt.generation.translating.fusing import fuse_folders


def gpt2(vocabulary: int) -> Any:
    torch.manual_seed(3)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": 3, "eos_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **sizes))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return model


def write_members(folder: Path) -> tuple[Path, Path]:
    """`folder`-tm and `folder`-lm, with one tokenizer."""
    tokenizer = train_tokenizer(SENTENCES, vocab_size=300)
    names = folder.with_name(f"{folder.name}-tm"), folder.with_name(f"{folder.name}-lm")
    for name, model in zip(names, (small_model(len(tokenizer)), gpt2(len(tokenizer)))):
        model.save_pretrained(name)
        save_tokenizers(name, tokenizer)
    return names


def write_fused(folder: Path, **settings: Any) -> Path:
    """Made of the members that are written beside it."""
    return fuse_folders(write_members(folder), folder, lambda text: None, **settings)
