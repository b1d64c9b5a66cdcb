"""Several tasks over two processes: the same task at the same place, the right sums, nothing moved that is unused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from helpers.processes import two_processes
from helpers.toy_tasks import SETTINGS, by_hand, sampler_of, toy_tasks, toy_trainer
from helpers.training_helpers import tiny_model
from safetensors.torch import load_file


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
    expected = dict(by_hand(trainer, two.sampler, SETTINGS["max_steps"]).named_parameters())
    assert two.weights.keys() == expected.keys()
    for name, tensor in two.weights.items():
        # float64; Adam divides by a gradient's size, so that where it is nearly 0 rounding counts
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=1e-6, atol=1e-8, msg=name)


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
