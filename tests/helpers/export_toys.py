"""Model folders to export: random weights, large enough that outputs are varied and end at different lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from helpers.docs import ROOT, blocks
from helpers.model_folders import SENTENCES
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt import config_for
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer


def joint_tokenizer() -> Tokenizers:
    return Tokenizers(*[train_tokenizer(SENTENCES, vocab_size=300)] * 2)


def two_tokenizers() -> Tokenizers:
    """Vocabularies of different sizes, and text processing on one side."""
    source, target = (train_tokenizer(SENTENCES, vocab_size=size) for size in (300, 320))
    return Tokenizers(source, target, {"target": TextProcessing("de", moses=True)})


def toy_model(tokenizers: Tokenizers, system: str = "transformer", **fields: Any) -> Any:
    """Different numbers of layers and heads on the two sides; every weight differs from its neighbours."""
    torch.manual_seed(2)
    sizes = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 64, "max_position_embeddings": 64}
    sizes |= {"encoder_layers": 2, "decoder_layers": 1}
    source, target = len(tokenizers.source), len(tokenizers.target)
    config = config_for(
        system,
        "tiny",
        vocab_size=source,
        decoder_vocab_size=target,
        **{**sizes, "share_encoder_decoder_embeddings": tokenizers.joint, **fields},
    )
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:  # three times as much inside: else a tied model says its last token again
            scale = 1 if "embed" in name or "lm_head" in name else 3
            torch.nn.init.normal_(parameter, std=scale * parameter.shape[-1] ** -0.5)
        else:
            parameter.data += 0.1 * torch.randn_like(parameter)
    with torch.no_grad():  # some sentences end before the longest that is tried
        model.lm_head.weight[config.eos_token_id] *= 2.5
    return model


def write_folder(folder: Path, tokenizers: Tokenizers, model: Any) -> Path:
    model.save_pretrained(folder)
    tokenizers.save(folder)
    return folder


def run_page(name: str, capsys: Any) -> None:
    """Runs the Python of docs/export.md that imports `name`, where the exported folders have the page's names."""
    (text,) = [block.text for block in blocks(ROOT / "docs" / "export.md", "python") if name in block.text]
    capsys.readouterr()
    exec(compile(text, "export.md", "exec"), {})
    assert capsys.readouterr().out.startswith("['")
