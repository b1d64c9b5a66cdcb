"""Small models, data and training arguments for the tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import MarianConfig, MarianMTModel, Seq2SeqTrainingArguments

from hf_mlnmt import TransformerConfig, TransformerForConditionalGeneration
from hf_mlnmt.data.training_set import TrainingSet
from hf_mlnmt.training import Batches, DevSet, Task, Translation, TranslationTrainer
from hf_mlnmt.training.dev import metric

VOCABULARY = 40


class Pairs(TrainingSet):
    """Random sentence pairs in memory, with what training asks of a data set; the target is the source reversed."""

    def __init__(self, count: int = 60, seed: int = 0, longest: int = 12):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, longest, count)
        bodies = [rng.integers(5, VOCABULARY, length).astype(np.int32) for length in lengths]
        end = np.array([1], np.int32)
        self.examples = [
            {"input_ids": np.append(body, end), "labels": np.append(body[::-1][: 1 + len(body) // 2], end)}
            for body in bodies
        ]
        self.source_lengths = np.array([len(example["input_ids"]) for example in self.examples], np.int32)
        self.target_lengths = np.array([len(example["labels"]) for example in self.examples], np.int32)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.examples[index]


def tiny_config(**overrides: Any) -> TransformerConfig:
    """One layer, 16 wide."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return TransformerConfig(**{"vocab_size": VOCABULARY, "d_model": 16, **sizes, **heads, **overrides})


def tiny_model(seed: int = 0, **overrides: Any) -> TransformerForConditionalGeneration:
    """Our baseline with seeded weights."""
    torch.manual_seed(seed)
    return TransformerForConditionalGeneration(tiny_config(**overrides))


def tiny_marian(seed: int = 0, **overrides: Any) -> MarianMTModel:
    """A model that knows nothing of label smoothing or of num_items_in_batch."""
    torch.manual_seed(seed)
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 3, "decoder_start_token_id": 3}
    fields = tiny_config().to_dict()
    names = ("vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim")
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    same = {name: fields[name] for name in names}
    config = MarianConfig(**{**same, **heads, **tokens, "forced_eos_token_id": None, "dropout": 0.0, **overrides})
    return MarianMTModel(config)


def arguments(folder: Path, **overrides: Any) -> Seq2SeqTrainingArguments:
    """Training arguments for a few quick steps on a CPU."""
    settings = {"max_steps": 6, "learning_rate": 1e-2, "logging_steps": 2, "save_strategy": "no", "seed": 3}
    quiet = {"disable_tqdm": True, "report_to": "none", "use_cpu": True}
    return Seq2SeqTrainingArguments(output_dir=str(folder), **{**settings, **quiet, **overrides})


def make(folder: Path, model=None, dev=None, schedule=None, objective=None, tokens=60, **overrides):
    """A trainer of the tiny model on random pairs."""
    settings = arguments(folder, **overrides)
    objective = objective or Translation(0, 0.1)
    model = model if model is not None else tiny_model()
    return TranslationTrainer(model, settings, Task(Pairs(), objective), Batches(tokens), schedule, dev or ())


def dev_set(metrics=("bleu",)) -> DevSet:
    """12 sentences whose outputs are written as numbers."""

    def decode(rows):
        return [" ".join(str(token) for token in row if token > 4) for row in rows]

    data = Pairs(12, seed=5)
    references = decode([example["labels"].tolist() for example in data.examples])
    return DevSet(data, references, decode, [metric(name) for name in metrics], max_length=12)
