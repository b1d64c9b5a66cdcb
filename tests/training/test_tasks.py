"""Several tasks in one training: the loss of a step, what it changes, logs, resuming, heads, what models must have."""

from __future__ import annotations

import math
import threading
from collections import Counter

import pytest
import torch
from helpers.toy_tasks import Changed, Probe, Text, Tokens, by_hand, toy_tasks, toy_trainer
from helpers.training_helpers import Pairs, arguments, dev_set, tiny_model
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt import UserError
from hf_mlnmt.common.files import read_json
from hf_mlnmt.training import Batches, DevSet, NonFiniteLoss, Task, Translation, TranslationTrainer
from hf_mlnmt.training.arguments import Schedule
from hf_mlnmt.training.checkpoints import write_model
from hf_mlnmt.training.tasks import Ahead, lasting_parameters

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ["translation", "tokens", "probe"]


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_training_is_the_definition(tmp_path, accumulation):
    """Each task's losses are divided by that task's items of the step, and added up."""
    settings = {"gradient_accumulation_steps": accumulation, "max_grad_norm": 0.0, "max_steps": 7}
    trained = []
    for hand in (False, True):
        tasks = toy_tasks()
        for task in tasks[1:]:
            task.objective.head.double()
        trainer = toy_trainer(tmp_path, tasks, tiny_model(dropout=0.0).double(), **settings)
        if hand:
            by_hand(trainer, trainer.sampler(), 7)
        else:
            trainer.train()
        trained.append(weights(trainer.model))
    mixed = [len({number for number, _ in trainer.sampler().members(step)}) for step in range(7)]
    assert (max(mixed) > 1) == (accumulation > 1)
    for name in trained[0]:
        torch.testing.assert_close(trained[0][name], trained[1][name], rtol=1e-9, atol=1e-12, msg=name)


def test_a_step_moves_what_its_task_uses_alone(tmp_path):
    """No weight decay either, and none of the momentum of Adam."""
    trainer = toy_trainer(tmp_path, toy_tasks(), max_steps=12)
    trainer.add_callback(changed := Changed(trainer.model))
    trainer.train()
    used = {"translation": lambda name: "heads" not in name, "probe": lambda name: "probe-head" in name}
    used["tokens"] = lambda name: "tokens-head" in name or "encoder" in name or "embed_tokens" in name
    for step, names in enumerate(changed.steps):
        ((number, _),) = trainer.sampler().members(step)
        assert names == sorted(filter(used[NAMES[number]], weights(trainer.model))), f"{step}: {NAMES[number]}"
    assert len({number for step in range(12) for number, _ in trainer.sampler().members(step)}) == 3


def test_steps_of_other_size_end_with_as_many_epochs(tmp_path):
    """A training of two batches a step goes on with three: the batches that are left make fewer steps, and the learning
    rate comes down to zero at the last of these."""
    settings = {"save_strategy": "steps", "save_steps": 5, "max_steps": -1, "num_train_epochs": 3}
    first = toy_trainer(tmp_path, toy_tasks()[:1], gradient_accumulation_steps=2, **settings)
    first.schedule = Schedule("cosine")
    first.train()
    total = first.sampler().samplers[0].total
    trainer = toy_trainer(tmp_path, toy_tasks()[:1], tiny_model(), gradient_accumulation_steps=3, **settings)
    trainer.schedule = Schedule("cosine")
    trainer.go_on_in_data(tmp_path / "checkpoint-5")
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert trainer.steps()[0] == trainer.state.global_step == 5 + math.ceil((3 * total - 10) / 3)
    assert {*trainer.lr_scheduler.get_last_lr()} == {0.0}
    seen = trainer.sampler().reached(trainer.state.global_step)["batches"][0]
    assert 3 * total <= seen < 3 * total + 3
    assert read_json(tmp_path / f"checkpoint-{trainer.state.global_step}" / "meter.json")["group"] == 2


@pytest.mark.parametrize("stop", [5, 7])
def test_resumed_is_uninterrupted_bit_for_bit(tmp_path, stop):
    settings = {"gradient_accumulation_steps": 3, "save_strategy": "steps", "save_steps": stop, "max_steps": 13}
    whole = toy_trainer(tmp_path / "whole", toy_tasks(), **settings)
    assert stop * 3 % whole.sampler().schedule.length != 0, "inside a cycle"
    whole.train()
    again = toy_trainer(tmp_path / "again", [
        Task(task.data, objective, task.share, task.name)
        for task, objective in zip(toy_tasks(), [Translation(0, 0.1), Tokens(50), Probe(60)])
    ], tiny_model(seed=9), **settings)  # fmt: skip
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{stop}"))
    assert again.state.global_step == 13
    for name, tensor in weights(whole.model).items():
        assert torch.equal(tensor, weights(again.model)[name]), name
    assert again.meter.tokens == whole.meter.tokens


def test_without_a_share_a_task_is_as_if_it_were_not(tmp_path):
    plain = toy_trainer(tmp_path / "plain", toy_tasks()[:1])
    with_others = toy_trainer(tmp_path / "others", toy_tasks((3, 0, 0)))
    for trainer in (plain, with_others):
        trainer.train()
    assert plain.state.log_history[0]["loss"] == with_others.state.log_history[0]["loss"]
    assert weights(plain.model).keys() == weights(with_others.model).keys()
    for name, tensor in weights(plain.model).items():
        assert torch.equal(tensor, weights(with_others.model)[name]), name


def test_losses_are_logged_under_the_tasks_names(tmp_path):
    settings = {"learning_rate": 0.0, "max_steps": 8, "logging_steps": 4}
    trainer = toy_trainer(tmp_path, toy_tasks(), tiny_model(dropout=0.0), **settings)
    trainer.train()
    for line, steps in zip(trainer.state.log_history, (range(4), range(4, 8))):
        by_task: dict[str, list[float]] = {}
        for number, indices in (batch for step in steps for batch in trainer.sampler().members(step)):
            task = trainer.tasks[number]
            batch = task.objective.collate([task.data[index] for index in indices])
            by_task.setdefault(task.name, []).append(task.objective.loss(trainer.model.eval(), batch)[0].item())
        for name, values in by_task.items():
            assert line[f"loss_{name}"] == pytest.approx(sum(values) / len(values), rel=1e-5)
        assert {key for key in line if key.startswith("loss_")} == {f"loss_{name}" for name in by_task}


def test_parts_stand_after_the_tasks_name(tmp_path):
    class Two(Translation):
        def loss(self, model, batch, num_items_in_batch=None):
            loss, _ = super().loss(model, batch, num_items_in_batch)
            return 1.5 * loss, {"main": loss, "extra": 0.5 * loss}

    tasks = [Task(Pairs(), Two(0), 1, "en-de"), Task(Pairs(30, 4), Translation(0), 1, "de-en")]
    trainer = toy_trainer(tmp_path, tasks, max_steps=2, logging_steps=2)
    trainer.train()
    line = trainer.state.log_history[0]
    assert {key for key in line if key.startswith("loss_")} == {
        "loss_en-de", "loss_en-de_main", "loss_en-de_extra", "loss_de-en",
    }  # fmt: skip
    assert line["loss_en-de"] == pytest.approx(1.5 * line["loss_en-de_main"], rel=1e-6)
    assert line["loss"] == pytest.approx((line["loss_en-de"] + line["loss_de-en"]) / 2, rel=1e-6)


def test_a_head_is_trained_saved_and_left_behind(tmp_path):
    tasks = toy_tasks((1, 1, 0))
    before = tasks[1].objective.head.weight.detach().clone()
    trainer = toy_trainer(tmp_path, tasks, max_steps=4, save_strategy="steps", save_steps=2)
    trainer.train()
    assert not torch.equal(before, tasks[1].objective.head.weight)
    saved = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert torch.equal(saved["objective_heads.tokens-head.weight"], tasks[1].objective.head.weight)
    assert lasting_parameters(trainer.model) == tiny_model().num_parameters()
    checkpoints = [tmp_path / "checkpoint-2", tmp_path / "checkpoint-4"]
    for weights_of in (checkpoints, checkpoints[1:]):
        folder = write_model(tmp_path / "finished", checkpoints[1], weights_of)
        model, told = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
        assert not told["unexpected_keys"]
        assert not told["missing_keys"]
        assert weights(model).keys() == weights(tiny_model()).keys()


def test_one_head_of_two_tasks_is_one_part(tmp_path):
    shared = Tokens()
    tasks = [Task(Text(), shared, 1, "a"), Task(Text(30, 8), shared, 1, "b")]
    trainer = toy_trainer(tmp_path, tasks, max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    heads = [name for name in load_file(tmp_path / "checkpoint-2" / "model.safetensors") if "heads" in name]
    assert heads == ["objective_heads.a-head.bias", "objective_heads.a-head.weight"]


def test_a_model_without_what_an_objective_needs_is_refused(tmp_path):
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=40, bos_token_id=3, eos_token_id=1)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(UserError, match=r"task 'en-de': the objective Translation needs an encoder .*GPT2"):
        toy_trainer(tmp_path, [Task(Pairs(), Translation(0), 1, "en-de")], model)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (lambda: [Task(Pairs(), Translation(0), 0)], "no task has a share above 0"),
        (lambda: [Task(Pairs(), Translation(0))] * 2, "every task needs a name of its own"),
        (lambda: [Task(Pairs(), Translation(0)), Task(Text(1), Tokens(), 1, "few")], "task 'few': 1 sentence"),
    ],
)
def test_bad_tasks(tmp_path, tasks, message):
    with pytest.raises(UserError, match=message):
        toy_trainer(tmp_path, tasks(), gradient_accumulation_steps=2).sampler()


def test_the_batch_of_a_broken_loss_is_named_with_its_task(tmp_path):
    class Broken(Tokens):
        def loss(self, model, batch, num_items_in_batch=None):
            loss, parts = super().loss(model, batch, num_items_in_batch)
            return loss * float("nan"), parts

    tasks = [Task(Pairs(), Translation(0)), Task(Text(), Broken(), 1, "tokens")]
    trainer = toy_trainer(tmp_path, tasks)
    step = next(step for step in range(9) if trainer.sampler().members(step)[0][0] == 1)
    ((_, sentences),) = trainer.sampler().members(step)
    with pytest.raises(NonFiniteLoss) as caught:
        trainer.train()
    assert f"step {step + 1}, batch 1 of 1: the loss is nan" in str(caught.value)
    assert f"(positions in the training set of task 'tokens', from 0): {sentences}." in str(caught.value)


def test_unused_parameters_are_looked_for_where_there_are_several_tasks(tmp_path):
    """Over several processes, that is; and whoever knows better says so."""
    for shares, told, expected in (((1, 0, 0), None, False), ((1, 1, 0), None, True), ((1, 1, 1), False, False)):
        trainer = toy_trainer(tmp_path, toy_tasks(shares), ddp_find_unused_parameters=told)
        assert trainer.args.ddp_find_unused_parameters is expected
        assert trainer.accelerator.ddp_handler.find_unused_parameters is expected


def test_development_sets_are_a_list(tmp_path):
    objective = Tokens()
    tasks = [Task(Pairs(), Translation(0)), Task(Text(), objective, 1, "tokens")]
    sets = [dev_set(), DevSet(Text(9, 3), objective=objective, name="tokens")]
    settings = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 2, "metric_for_best_model": "tokens_loss"}
    trainer = TranslationTrainer(tiny_model(), arguments(tmp_path, **settings), tasks, Batches(60), dev_sets=sets)
    trainer.train()
    scores = trainer.evaluate()
    kept = {f"eval_{name}" for name in ("loss", "perplexity", "bleu", "tokens_loss", "tokens_perplexity")}
    assert kept <= scores.keys()
    batch = objective.collate([sets[1].dataset[index] for index in range(9)])
    assert scores["eval_tokens_loss"] == pytest.approx(objective.loss(trainer.model.eval(), batch)[0].item(), rel=1e-5)
    assert trainer.state.best_metric == pytest.approx(scores["eval_tokens_loss"])


def test_workers_give_the_same_batches(tmp_path):
    seen = []
    for workers in (0, 1):
        trainer = toy_trainer(tmp_path, toy_tasks(), dataloader_num_workers=workers)
        loader = trainer.get_train_dataloader()
        seen.append([(batch["task"], batch["input_ids"].tolist()) for batch in loader])
    assert seen[0] == seen[1]
    assert Counter(task for task, _ in seen[0]) == {"translation": 6, "tokens": 3, "probe": 3}


def test_batches_made_ahead_come_in_order_and_an_error_at_its_place():
    made = []

    def batches():
        for number in range(5):
            made.append(number)
            if number == 3:
                raise ValueError("the fourth is broken")
            yield number

    ahead = Ahead(batches(), torch.device("cpu"))
    assert next(ahead) == 0
    ahead._thread.submit(int).result()
    assert made == [0, 1, 2], "two wait"
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ValueError, match="the fourth"):
        next(ahead)
    with pytest.raises(StopIteration):
        next(ahead)
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
