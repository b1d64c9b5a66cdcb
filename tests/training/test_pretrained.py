"""Fine-tuned models of Transformers' own classes: the steps of its Seq2SeqTrainer, languages told, the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import foreign_translators as families
from helpers.tiny_run import run, write_recipe
from helpers.toy_translators import SENTENCES
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    MBart50Tokenizer,
    MBartTokenizer,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from hf_mlnmt import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
PAIRS = 24
STEPS = 3
LANGUAGES = {
    "marian": ("en", "fra"),
    "m2m100": ("en", "de"),
    "nllb": ("eng_Latn", "deu_Latn"),
    "mbart": ("en_XX", "de_DE"),
    "mbart50": ("en_XX", "de_DE"),
    "t5": ("en", "de"),
}
IN_FRONT = {"marian": ">>fra<< ", "t5": "translate English to German: "}


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> Path:
    """A folder of each family, and 24 pairs, all of one batch."""
    folder = tmp_path_factory.mktemp("bases")
    spm, pieces = families.sentencepiece_model(folder)
    made = {
        "marian": families.marian(folder, spm, pieces, (">>de<<", ">>fra<<")),
        "m2m100": families.m2m100(folder, spm, pieces),
        "nllb": families.nllb(),
        "mbart": families.mbart(MBartTokenizer, pieces),
        "mbart50": families.mbart(MBart50Tokenizer, pieces),
        "t5": families.t5(pieces),
    }
    for name, (tokenizer, model) in made.items():
        for key in ("encoder_layerdrop", "decoder_layerdrop", "attention_dropout"):
            setattr(model.config, key, 0.0)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for name, first in (("sources", 0), ("targets", PAIRS)):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in SENTENCES[first : first + PAIRS]))
    return folder


def fine_tune(folder: Path, family: str, output: Path, **changes: Any) -> Path:
    source, target = LANGUAGES[family]
    files = {"files": {"source": "sources.txt", "target": "targets.txt"}}
    settings: dict[str, Any] = {
        "languages": {"source": source, "target": target},
        "data": {"train": files, "dev": files, "test": {}, "max_length": 60},
        "init_from": family,
        "model": {},
        "tokenizer": {"path": family},
        "label_smoothing": 0.0,
        "batch": {"tokens": 100_000},
        "optimizer": {"name": "adamw", "learning_rate": 0.01, "eps": 1e-8, "betas": [0.9, 0.98], "clip": 1.0},
        "schedule": {"name": "constant", "warmup": 0},
        "budget": {"steps": STEPS},
        "evaluation": {"every": STEPS},
        "checkpoints": {"keep": 1, "average": 1},
        "logging": {"every": 1},
    }
    run(write_recipe(output.with_suffix(".yaml"), **(settings | changes)), folder, output)
    return output


def stock(folder: Path, family: str, output: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of stock Transformers, which is told the languages as its documentation says."""
    tokenizer = AutoTokenizer.from_pretrained(folder / family)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / family)
    if family == "marian":  # from_pretrained forgets that its sinusoids are fixed, and stock Transformers trains them
        for side in (model.model.encoder, model.model.decoder):
            side.embed_positions.requires_grad_(False)
    if hasattr(tokenizer, "src_lang"):
        tokenizer.src_lang, tokenizer.tgt_lang = LANGUAGES[family]
    sources, targets = ((folder / f"{name}.txt").read_text().splitlines() for name in ("sources", "targets"))
    sources = [IN_FRONT.get(family, "") + text for text in sources]
    rows = tokenizer(sources, text_target=targets)
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=str(output),
            per_device_train_batch_size=PAIRS,
            max_steps=STEPS,
            learning_rate=0.01,
            adam_beta2=0.98,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=[{name: rows[name][number] for name in ("input_ids", "labels")} for number in range(PAIRS)],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model.state_dict()


@pytest.mark.parametrize("family", LANGUAGES)
def test_its_steps_are_those_of_stock_transformers(bases, tmp_path, family):
    losses, weights = stock(bases, family, tmp_path / "stock")
    output = fine_tune(bases, family, tmp_path / "ours")
    logged = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([entry["loss"] for entry in logged if "loss" in entry], losses, rtol=1e-4)
    ours = AutoModelForSeq2SeqLM.from_pretrained(output / "average")
    for name, tensor in ours.state_dict().items():
        if name.endswith("k_proj.bias"):
            continue  # it adds the same to a whole row of scores: its gradient is rounding, which Adam enlarges
        torch.testing.assert_close(tensor, weights[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("family", LANGUAGES)
def test_the_result_is_what_came_in(bases, tmp_path, family):
    """Class, config, tokenizer; and it translates as it was taught, told the same languages."""
    output = fine_tune(bases, family, tmp_path / "run")
    before, after = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (bases / family, output / "average"))
    assert type(after) is type(before)
    left_out = {"dtype", "tokenizers", "transformers_version", "_name_or_path"}
    configs = [{k: v for k, v in model.config.to_dict().items() if k not in left_out} for model in (before, after)]
    assert configs[1] == configs[0]
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (bases / family, output / "average")]
    assert type(tokenizers[1]) is type(tokenizers[0])
    assert tokenizers[1].get_vocab() == tokenizers[0].get_vocab()
    assert tokenizers[1](SENTENCES[:5]).input_ids == tokenizers[0](SENTENCES[:5]).input_ids


@pytest.mark.parametrize(
    ("family", "target", "message"),
    [
        ("nllb", "de", r"target_language: unknown code 'de' \(did you mean 'deu_Latn'\?\)"),
        ("nllb", "fr", r"unknown code 'fr' \(did you mean 'fra_Latn'\?\)"),
        ("m2m100", "deu", r"unknown code 'deu' \(did you mean 'de'\?\)"),
        ("mbart50", "es", r"unknown code 'es' \(did you mean 'es_XX'\?\)"),
        ("mbart50", "de", r"unknown code 'de' \(did you mean 'de_DE'\?\)"),
        ("marian", "fr", r"unknown code 'fr' \(did you mean 'fra'\?\)"),
        ("t5", "fr", "was not taught 'en' to 'fr'; it knows: en_to_de"),
    ],
)
def test_a_code_that_the_model_lacks(bases, tmp_path, family, target, message):
    languages = {"source": LANGUAGES[family][0], "target": target}
    with pytest.raises(UserError, match=message):
        fine_tune(bases, family, tmp_path / "run", languages=languages)
