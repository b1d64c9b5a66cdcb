"""TranslationTrainer: the loss of a step, resuming, evaluation, what it refuses."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from helpers.training_helpers import Pairs, arguments, dev_set, make, tiny_marian, tiny_model
from transformers import Seq2SeqTrainingArguments

from hf_mlnmt import UserError
from hf_mlnmt.data.training_set import Corpora
from hf_mlnmt.training import Batches, Schedule, Task, TokenBatchSampler, Translation, TranslationTrainer
from hf_mlnmt.training import trainer as trainer_module
from hf_mlnmt.training.dev import metric
from hf_mlnmt.training.trainer import NonFiniteLoss


def weights(model) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


@pytest.mark.parametrize("build", [tiny_model, tiny_marian])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_step_is_the_gradient_of_the_mean_over_all_its_target_tokens(tmp_path, build, accumulation):
    settings = {
        "optim": "sgd",
        "learning_rate": 1.0,
        "max_grad_norm": 0.0,
        "max_steps": 1,
        "lr_scheduler_type": "constant",
    }
    trainer = make(tmp_path, build(dropout=0.0), gradient_accumulation_steps=accumulation, **settings)
    expected = build(dropout=0.0)
    trainer.train()

    task = trainer.tasks[0]
    members = [index for _, batch in trainer.sampler().members(0) for index in batch]
    everything = task.objective.collate([task.data[index] for index in members])
    loss, _ = Translation(0, 0.1).loss(expected.train(), everything)
    loss.backward()
    for (name, parameter), trained in zip(expected.named_parameters(), trainer.model.parameters()):
        if parameter.grad is not None:
            torch.testing.assert_close(trained, parameter - parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_memory_is_kept_on_a_cpu(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(trainer_module, "keep_memory", lambda: calls.append(1))
    make(tmp_path, max_steps=1).train()
    assert calls == [1]


def test_logged_loss_does_not_depend_on_how_a_step_is_cut(tmp_path):
    settings = {"learning_rate": 0.0, "logging_steps": 1, "max_steps": 1}
    for accumulation in (1, 2, 3):
        trainer = make(tmp_path, tiny_model(dropout=0.0), gradient_accumulation_steps=accumulation, **settings)
        trainer.train()
        task, group = trainer.tasks[0], trainer.sampler().members(0)
        batch = task.objective.collate([task.data[i] for _, members in group for i in members])
        assert trainer.state.log_history[0]["loss"] == pytest.approx(
            task.objective.loss(trainer.model, batch)[0].item(), rel=1e-4
        )


@pytest.mark.parametrize(
    ("stop", "schedule"), [(3, Schedule("cosine", 2)), (6, Schedule("newbob", 1, factor=0.5, patience=1)), (9, None)]
)
def test_resumed_is_uninterrupted_bit_for_bit(tmp_path, stop, schedule):
    # 3 is inside an epoch, 6 between two, 9 inside the second
    assert len(make(tmp_path / "count").sampler()) == 6
    settings = {
        "save_strategy": "steps",
        "save_steps": stop,
        "eval_strategy": "steps",
        "eval_steps": stop,
        "max_steps": 14,
    }
    whole = make(tmp_path / "whole", dev=dev_set(), schedule=copy.deepcopy(schedule), **settings)
    whole.train()
    again = make(tmp_path / "again", tiny_model(seed=9), dev=dev_set(), schedule=copy.deepcopy(schedule), **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{stop}"))
    assert again.state.global_step == 14
    assert_equal(weights(whole.model), weights(again.model))
    assert whole.state.log_history[-2]["eval_loss"] == again.state.log_history[-2]["eval_loss"]
    assert again.meter.tokens == whole.meter.tokens


def test_newbob_hears_the_dev_loss(tmp_path):
    class Stalled:
        dataset, objective = Pairs(5), None

        def evaluate(self, model, accelerator):
            return {"loss": 1.0}

    settings = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "learning_rate": 0.008, "max_steps": 8}
    trainer = make(tmp_path, dev=Stalled(), schedule=Schedule("newbob", factor=0.5, patience=1), **settings)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    # the rate of the step after an evaluation is set before it: a reduction takes effect one step later
    assert rates == pytest.approx([0.008] * 5 + [0.004] * 2 + [0.002])


def test_evaluation_scores_translations_and_leaves_no_trace(tmp_path):
    model = tiny_model()
    before = model.generation_config.to_dict()
    trainer = make(tmp_path, model, dev_set(("bleu", "chrf")))
    scores = trainer.evaluate(num_beams=2)
    assert {"eval_loss", "eval_perplexity", "eval_bleu", "eval_chrf"} <= scores.keys()
    assert model.generation_config.to_dict() == before
    assert model.config.use_cache is True
    dev = trainer.dev_sets[0]
    batch = trainer.tasks[0].objective.collate(dev.dataset.examples)
    assert scores["eval_loss"] == pytest.approx(model.eval()(**batch).loss.item(), rel=1e-5)
    assert scores["eval_perplexity"] == pytest.approx(np.exp(scores["eval_loss"]))
    # every sentence's own output, in order
    outputs = []
    for example in dev.dataset.examples:
        source = torch.from_numpy(example["input_ids"]).long()[None]
        limit = min(12, 2 * source.shape[1] + 10)
        outputs += dev.decode(model.generate(source, num_beams=2, max_new_tokens=limit).tolist())
    assert dev.translations == outputs


def test_saved_configs_are_clean(tmp_path):
    trainer = make(tmp_path, dev=dev_set(), save_strategy="steps", save_steps=6, eval_strategy="steps", eval_steps=6)
    trainer.train()
    config, generation = (
        json.loads((tmp_path / "checkpoint-6" / name).read_text()) for name in ("config.json", "generation_config.json")
    )
    assert config["use_cache"] is True
    assert not {"max_length", "top_k", "num_beams"} & generation.keys()
    assert not list((tmp_path / "checkpoint-6").glob("*.bin"))


def test_the_stock_label_smoothing_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"auxiliary decoders.*label_smoothing=0.1"):
        make(tmp_path, label_smoothing_factor=0.1)


def test_named_losses_are_logged(tmp_path):
    class Two(Translation):
        def loss(self, model, batch, num_items_in_batch=None):
            loss, _ = super().loss(model, batch, num_items_in_batch)
            return 1.5 * loss, {"main": loss, "extra": 0.5 * loss}

    trainer = make(tmp_path, objective=Two(0, 0.1), gradient_accumulation_steps=2, max_steps=4)
    trainer.train()
    for entry in trainer.state.log_history[:2]:
        assert entry["loss_main"] == pytest.approx(2 * entry["loss_extra"])
        assert entry["loss"] == pytest.approx(1.5 * entry["loss_main"], rel=1e-5)
        assert entry["target_tokens_per_second"] > 0


class NanAt(Translation):
    """A loss that is not a number at one call."""

    calls = 0
    bad = 5

    def loss(self, model, batch, num_items_in_batch=None):
        loss, parts = super().loss(model, batch, num_items_in_batch)
        self.calls += 1
        return (loss * float("nan") if self.calls == self.bad else loss), parts


def test_nan_stops_and_names_step_and_sentences(tmp_path):
    trainer = make(
        tmp_path, objective=NanAt(0, 0.1), gradient_accumulation_steps=2, save_strategy="steps", save_steps=100
    )  # the fifth batch is the first of the third step
    with pytest.raises(NonFiniteLoss) as caught:
        trainer.train()
    _, sentences = trainer.sampler().members(2)[0]
    assert "step 3, batch 1 of 2: the loss is nan" in str(caught.value)
    assert f"(positions in the training set, from 0): {sentences}." in str(caught.value)
    assert "the last checkpoint is good and is kept" in str(caught.value)
    assert not list(tmp_path.glob("checkpoint-*")), "nothing broken is saved"


class ShownAnew(Corpora):
    """Every pair twice; an epoch shows the second of them."""

    distinct = 60

    def choose(self, epoch: int) -> np.ndarray:
        return np.arange(self.distinct, len(self))


def test_nan_among_pairs_shown_in_another_way_names_the_pairs(tmp_path):
    data = ShownAnew([Pairs(), Pairs()])
    trainer = TranslationTrainer(tiny_model(), arguments(tmp_path), Task(data, NanAt(0, 0.1)), Batches(60))
    with pytest.raises(NonFiniteLoss) as caught:
        trainer.train()
    ((_, members),) = trainer.sampler().members(4)
    assert min(members) >= data.distinct
    assert f"from 0): {[index - data.distinct for index in members]}." in str(caught.value)


def test_broken_weights_are_never_saved(tmp_path):
    """A gradient that is not a number at the step after which a checkpoint is due; the losses were finite."""
    trainer = make(tmp_path, save_strategy="steps", save_steps=2)
    nan = float("nan")
    trainer.model.lm_head.weight.register_hook(lambda g: g * nan if trainer.state.global_step == 1 else g)
    with pytest.raises(NonFiniteLoss, match="step 2, batch 1 of 1: the weights are not finite after it"):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


def test_batches_follow_the_sampler(tmp_path):
    trainer = make(tmp_path)
    sampler = TokenBatchSampler(Pairs().source_lengths, Pairs().target_lengths, 60, seed=3)
    seen = []
    objective = trainer.tasks[0].objective
    collate = objective.collate
    for number, example in enumerate(trainer.tasks[0].data.examples):
        example["number"] = number

    def spy(examples):
        seen.append([example["number"] for example in examples])
        return collate(examples)

    objective.collate = spy
    trainer.args.max_steps = 11
    trainer.train()
    expected = [batch for step in range(11) for batch in sampler.following(step)]
    assert seen[:11] == expected


def test_bf16_trains(tmp_path):
    trainer = make(tmp_path, bf16=True, max_steps=2)
    trainer.train()
    assert trainer.model.lm_head.weight.dtype == torch.float32
    assert np.isfinite(trainer.state.log_history[0]["loss"])


def test_arguments_are_stock(tmp_path):
    assert type(make(tmp_path).args) is Seq2SeqTrainingArguments


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_metrics_of_lower_cased_output_look_past_case(name):
    references = ["Der Mann sieht das Haus am See.", "Die Frau liest ein Buch im Park."]
    lowered = [reference.lower() for reference in references]
    best = metric(name)(references, references)[name]
    assert metric(name, lowercase=True)(lowered, references)[name] == pytest.approx(best)
    if name != "ter":  # which never looks at case
        assert metric(name)(lowered, references)[name] < best - 10
