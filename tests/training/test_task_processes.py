"""Tasks over two processes: the same task at the same place, the sums of the definition, nothing unused is moved."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.bridge_tasks import PAIRS, bridge_model, bridge_tasks
from helpers.bridge_tasks import SETTINGS as BRIDGE
from helpers.processes import two_processes
from helpers.text_tasks import STEPS, model_of, trainer_of
from helpers.toy_tasks import SETTINGS, assert_by_hand, sampler_of, toy_tasks, toy_trainer
from helpers.training_helpers import tiny_model
from safetensors.torch import load_file
from transformers import TrainerCallback


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> SimpleNamespace:
    """A training of the toy tasks by two processes, and the batches that it is to see."""
    folder = tmp_path_factory.mktemp("two")
    two_processes("tests/helpers/toy_tasks.py", str(folder))
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    log = json.loads((folder / "log.json").read_text())
    sampler = sampler_of(toy_tasks())
    return SimpleNamespace(ranks=ranks, weights=load_file(folder / "weights.safetensors"), log=log, sampler=sampler)


def test_two_processes_are_the_definition(two, tmp_path):
    tasks = toy_tasks()
    for task in tasks[1:]:
        task.objective.head.double()
    trainer = toy_trainer(tmp_path, tasks, tiny_model(dropout=0.0).double(), **SETTINGS)
    assert_by_hand(two.weights, trainer, two.sampler, SETTINGS["max_steps"])


def test_a_step_moves_what_its_tasks_use_alone(two):
    names = {"translation": lambda name: "heads" not in name, "probe": lambda name: "probe-head" in name}
    names["tokens"] = lambda name: "tokens-head" in name or "encoder" in name or "embed_tokens" in name
    seen = set()
    for step, changed in enumerate(two.ranks[0]["changed"]):
        tasks = {["translation", "tokens", "probe"][number] for number, _ in two.sampler.members(step)}
        seen.add(frozenset(tasks))
        assert changed == sorted(name for name in two.weights if any(names[task](name) for task in tasks)), step
    assert len(seen) >= 3, "the test needs steps of different tasks"
    assert two.ranks[0]["changed"] == two.ranks[1]["changed"]


def test_processes_do_not_draw_the_same_dropout(two):
    first, second = (rank["drawn"] for rank in two.ranks)
    assert len(first) == len(second) >= 4
    assert first != second


def test_losses_are_logged_by_task(two):
    for step, line in enumerate(entry for entry in two.log if "loss" in entry):
        tasks = {["translation", "tokens", "probe"][number] for number, _ in two.sampler.members(step)}
        assert {name for name in line if name.startswith("loss_")} == {f"loss_{task}" for task in tasks}
        assert line["loss"] == pytest.approx(sum(line[f"loss_{task}"] for task in tasks), rel=1e-6)


# Objectives on text, and those of fused models


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A folder with the weights of each training by two processes."""
    folder = tmp_path_factory.mktemp("texts")
    two_processes("tests/helpers/text_tasks.py", str(folder))
    return folder


@pytest.mark.parametrize("kind", STEPS)
def test_text_objectives_are_the_definition(kind, texts, tmp_path):
    """What is drawn follows from the task's epoch and the sentence, whichever process has it."""
    weights, trainer = load_file(texts / f"{kind}.safetensors"), trainer_of(kind, tmp_path)
    sampler = sampler_of(trainer.tasks)
    if kind == "text":
        last = STEPS[kind] * sampler.accumulation
        assert min(sampler.epochs(last)[1:]) > 1, "the test needs second epochs, with other draws"
    assert_by_hand(weights, trainer, sampler, STEPS[kind])


@pytest.mark.parametrize("kind", ["n-best", "trellis"])
def test_the_language_model_stands_still_and_the_translation_model_moves(kind, texts):
    weights = load_file(texts / f"{kind}.safetensors")
    for name, before in model_of(kind).named_parameters():
        assert torch.equal(weights[name], before) == name.startswith("language_"), name


# The attention bridge, its penalty among the losses


def test_the_bridge_is_the_definition(tmp_path):
    two_processes("tests/helpers/bridge_tasks.py", str(tmp_path))
    tasks = bridge_tasks()
    sampler = sampler_of(tasks)
    weights = load_file(tmp_path / "weights.safetensors")
    trainer = toy_trainer(tmp_path / "alone", tasks, bridge_model(), **BRIDGE)
    assert_by_hand(weights, trainer, sampler, BRIDGE["max_steps"])
    steps, other = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert steps == other
    log = [line for line in json.loads((tmp_path / "log.json").read_text()) if "loss" in line]
    for step, (changed, line) in enumerate(zip(steps, log, strict=True)):
        pairs = {PAIRS[number] for number, _ in sampler.members(step)}
        modules = {"bridge", *(f"encoders.of_{source}" for source, _ in pairs)}
        modules |= {f"decoders.of_{target}" for _, target in pairs}
        assert changed == sorted(name for name in weights if any(f".{one}." in name for one in modules)), step
        parts = {f"loss_{a}-{b}_{part}" for a, b in pairs for part in ("translation", "penalty")}
        assert parts <= line.keys()
        assert line["loss"] == pytest.approx(sum(line[part] for part in parts), rel=1e-6)
    assert len({str(changed) for changed in steps}) >= 3, "the test needs steps of different pairs"


def test_gradients_are_of_the_modules_of_the_batch(tmp_path):
    """What takes memory beside the weights in a step: as much as in a model of that pair alone."""
    tasks, seen = bridge_tasks(), []

    class Gradients(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            seen.append(sum(x.grad.numel() for x in model.parameters() if x.grad is not None))

    model = bridge_model()
    alone = {sum(x.numel() for x in model.pair(*pair).parameters()) for pair in PAIRS}
    trainer = toy_trainer(tmp_path, tasks, model, **{**BRIDGE, "gradient_accumulation_steps": 1})
    trainer.add_callback(Gradients())
    trainer.train()
    assert len(seen) == BRIDGE["max_steps"]
    assert set(seen) <= alone
