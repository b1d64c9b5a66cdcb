"""Multi-level supervision in both trainers: every loss is logged in training, and dev losses are the main decoder's."""

from __future__ import annotations

import pytest
import torch
from helpers.stock import stock
from helpers.training_helpers import VOCABULARY, Pairs, dev_set, make, tiny_config
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt.training.objectives import Translation
from hf_mlnmt.zoo.systems import config_for

SHAPE = {key: value for key, value in tiny_config().to_dict().items() if "ffn_dim" in key or "heads" in key}


def supervised(system: str, **fields):
    """A tiny model of the system with three encoder layers."""
    torch.manual_seed(0)
    sizes = {**SHAPE, "d_model": 16, "encoder_layers": 3, "decoder_layers": 1, "vocab_size": VOCABULARY}
    return AutoModelForSeq2SeqLM.from_config(config_for(system, "tiny", **{**sizes, "dropout": 0.0, **fields}))


@pytest.mark.parametrize("system", ["ms-12", "ms-12-aif"])
def test_every_loss_is_logged_and_they_sum_up(tmp_path, system):
    model = supervised(system, auxiliary_weight=0.5)
    trainer = make(tmp_path, model, gradient_accumulation_steps=2, max_steps=4, logging_steps=1)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == 4
    names = ["loss_auxiliary_1", "loss_auxiliary_2", "loss_translation"]
    for entry in entries:
        assert [name for name in entry if name.startswith("loss_")] == names
        assert entry["loss"] == pytest.approx(sum(entry[name] for name in names), rel=1e-5)
        assert len({round(entry[name], 5) for name in names}) == 3
    assert all(entries[-1][name] < entries[0][name] for name in names)
    assert entries[0]["loss_auxiliary_1"] == pytest.approx(0.5 * entries[0]["loss_translation"], rel=0.2)  # its weight


@pytest.mark.parametrize("task", [None, "SEQ_2_SEQ_LM"])
def test_every_loss_counts_with_an_adapter(task):
    """peft wraps the model: the objective still finds that it computes its own loss, and all of its parts."""
    model = supervised("ms-12").train()
    objective = Translation(0, label_smoothing=0.1)
    batch = objective.collate(Pairs(9).examples)
    expected, parts = objective.loss(model, batch)
    adapter = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type=task))  # begins as nothing
    loss, found = objective.loss(adapter, batch)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert {name: part.item() for name, part in found.items()} == pytest.approx(
        {name: part.item() for name, part in parts.items()}, rel=1e-6
    )


@pytest.mark.parametrize("system", ["ms-12", "ms-12-aif"])
def test_our_dev_loss_is_the_main_decoders(tmp_path, system):
    model = supervised(system)
    trainer = make(tmp_path, model, dev_set())
    scores = trainer.evaluate()
    batch = trainer.tasks[0].objective.collate(trainer.dev_sets[0].dataset.examples)
    assert scores["eval_loss"] == pytest.approx(main_loss(model, batch), rel=1e-5)


@pytest.mark.parametrize("system", ["ms-12", "ms-12-aif"])
def test_the_stock_trainers_too(tmp_path, tokenizer, system):
    model = supervised(system)
    trainer = stock(tmp_path, tokenizer, model, per_device_eval_batch_size=6)
    scores = trainer.evaluate()
    batch = trainer.data_collator([{**example} for example in trainer.eval_dataset])
    assert scores["eval_loss"] == pytest.approx(main_loss(model, batch), rel=1e-5)
    # its training loss has the auxiliaries in it
    trainer.args.max_steps, trainer.args.logging_steps, trainer.args.learning_rate = 1, 1, 0.0
    trainer.train()
    assert next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry) > 2 * main_loss(model, batch)


def main_loss(model, batch) -> float:
    """The mean cross-entropy of the main decoder's outputs, from its logits."""
    model.eval()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        shifted = model.prepare_decoder_input_ids_from_labels(batch["labels"])
        logits = model(**inputs, decoder_input_ids=shifted).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()).item()
