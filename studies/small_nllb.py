"""A small NLLB of four languages, trained by stock Transformers on Multi30k: what pretrained models are tried on here.

    python studies/small_nllb.py DIR FOLDER [--steps 2000]

Real classes and the real layout: a BPE vocabulary behind <s> <pad> </s> <unk>, all 202 codes of NLLB behind it, then
<mask>; `M2M100ForConditionalGeneration`, tied tables, sines that count from 2, a forced first token.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    DataCollatorForSeq2Seq,
    M2M100Config,
    M2M100ForConditionalGeneration,
    NllbTokenizer,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

CODES = {"en": "eng_Latn", "de": "deu_Latn", "fr": "fra_Latn", "cs": "ces_Latn"}
LEFT_OUT = ("fr", "cs")  # both ways: a direction to fine-tune for
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]


def read(folder: Path, name: str) -> list[str]:
    """Returns the lines of a packed file."""
    with gzip.open(folder / name, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def tokenizer_of(texts: list[str], entries: int) -> NllbTokenizer:
    """Trains the vocabulary."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=entries, special_tokens=SPECIALS, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    model = json.loads(backend.to_str())["model"]
    merges: Any = [tuple(merge) for merge in model["merges"]]
    codes = sorted(FAIRSEQ_LANGUAGE_CODES)
    return NllbTokenizer(vocab=model["vocab"], merges=merges, extra_special_tokens=codes, model_max_length=128)


def main() -> None:
    """Trains and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    asked = parser.parse_args()
    torch.manual_seed(1)
    texts = {code: read(asked.data, f"train.{code}.gz") for code in CODES}
    tokenizer = tokenizer_of([line for lines in texts.values() for line in lines], 8000)
    encoded = {}
    for code, lines in texts.items():
        tokenizer.src_lang = CODES[code]
        encoded[code] = tokenizer(lines)["input_ids"]  # the code, the subwords, </s>: of either side
    directions = [pair for pair in permutations(CODES, 2) if {*pair} != {*LEFT_OUT}]
    pairs = [
        {"input_ids": source, "labels": target}
        for first, second in directions
        for source, target in zip(encoded[first], encoded[second], strict=True)
    ]
    random.Random(1).shuffle(pairs)
    sides: dict[str, Any] = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"layers": 2, "attention_heads": 4, "ffn_dim": 512, "layerdrop": 0.0}.items()
    }
    config = M2M100Config(
        vocab_size=len(tokenizer), d_model=128, max_position_embeddings=128, dropout=0.1, attention_dropout=0.0, **sides
    )
    model = M2M100ForConditionalGeneration(config)
    model.generation_config.max_length = 128
    arguments = Seq2SeqTrainingArguments(
        str(asked.output / "training"),
        max_steps=asked.steps,
        per_device_train_batch_size=64,
        learning_rate=2e-3,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=400,
        train_sampling_strategy="group_by_length",
        save_steps=500,
        save_total_limit=1,
        logging_steps=100,
        report_to="none",
        seed=1,
    )
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=pairs, data_collator=collator, processing_class=tokenizer)
    saved = list((asked.output / "training").glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=bool(saved))
    model.save_pretrained(asked.output / "model")
    tokenizer.save_pretrained(asked.output / "model")


if __name__ == "__main__":
    main()
