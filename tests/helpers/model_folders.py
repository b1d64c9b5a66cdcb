"""A small model folder as training leaves it, and its results file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt import TransformerConfig, TransformerForConditionalGeneration
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer

WORDS = "a the man woman dog child ball house street green red old sees takes rides plays with in on under"
_DRAW = random.Random(1)
SENTENCES = [" ".join(_DRAW.choices(WORDS.split(), k=8)).capitalize() + "." for _ in range(200)]
HOME = "/home/somebody/data"


def small_model(vocabulary: int, target_vocabulary: int | None = None) -> Any:
    torch.manual_seed(1)
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 16}
    config = TransformerConfig(
        vocab_size=vocabulary,
        decoder_vocab_size=target_vocabulary,
        share_encoder_decoder_embeddings=target_vocabulary is None,
        d_model=16,
        max_position_embeddings=64,
        **sides,
    )
    model = TransformerForConditionalGeneration(config)
    for parameter in model.parameters():  # outputs must depend on everything
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


def pollute(folder: Path) -> None:
    """What Trainer leaves: use_cache off, and every default of generate()."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "use_cache": False}))
    generation = json.loads((folder / "generation_config.json").read_text())
    generation |= {"max_length": 20, "top_k": 50, "temperature": 1.0, "num_beams": 2, "length_penalty": 1.1}
    (folder / "generation_config.json").write_text(json.dumps(generation))


def write_model(folder: Path, **tokenizer: Any) -> Path:
    trained = train_tokenizer(SENTENCES, vocab_size=300, **tokenizer)
    small_model(len(trained)).save_pretrained(folder)
    save_tokenizers(folder, trained)
    pollute(folder)
    return folder


def some_results(**changes: Any) -> dict[str, Any]:
    """A results file as training writes it, absolute paths in it and a few odd numbers to look for."""

    def scores(bleu: float, protocol: str) -> dict[str, Any]:
        signature = f"nrefs:1|tok:{protocol}"
        return {
            "BLEU": {"score": bleu, "signature": signature, "ci": [bleu - 1.0625, bleu + 1.0625]},
            "TER": {"score": 41.4375, "signature": signature, "ci": None},
        }

    corpus = {"files": {"source": "train.en.gz", "target": "train.de.gz"}}
    return {
        "schema": "hf_mlnmt.results/1",
        "system": "transformer.test",
        "data": {
            "name": "Toy captions",
            "licence": "CC-BY-4.0",
            "train": [{"corpus": corpus, "read": 1234, "kept": 1201, "dropped": {"empty side": 33}}],
        },
        "seed": 7,
        "budget": {"steps": 4321, "seconds": 98.7, "device": "cpu"},
        "command": f"hf-mlnmt train recipe.yaml --data {HOME}/toy --output /srv/runs/first",
        "versions": {"torch": "2.13.0"},
        "parameters": None,
        "steps_per_second": 6.543,
        "decoding": {"beams": 2, "length_penalty": 1.1, "length_normalization": "generate"},
        "languages": {"source": "en", "target": "de"},
        "scores": {"test": {"cased": scores(31.2345, "13a"), "classic": scores(37.6789, "moses-de")}},
        **changes,
    }
