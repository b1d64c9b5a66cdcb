"""Two processes by `accelerate launch` on the CPU do what one process does with two accumulated batches."""

from __future__ import annotations

import json
import shutil
import socket

import pytest
import torch
import yaml
from helpers.processes import launch, two_processes
from helpers.tiny_run import write_corpus, write_recipe
from safetensors.torch import load_file

from hf_mlnmt.training import run_recipe

CODE = "import typer; from hf_mlnmt.cli.train import train; typer.run(train)"


def test_two_processes_equal_two_accumulated_batches(tmp_path):
    data, recipe = write_corpus(tmp_path / "data"), tmp_path / "recipe.yaml"
    write_recipe(recipe, budget={"steps": 8}, logging={"every": 1})
    content = yaml.safe_load(recipe.read_text())
    content["model"]["settings"]["dropout"] = 0.0  # each process draws its own
    recipe.write_text(yaml.safe_dump(content))
    launch(CODE, str(recipe), "--data", str(data), "--output", str(tmp_path / "two"))
    run_recipe(recipe, data, tmp_path / "one", ["batch.accumulate=2"])

    two, one = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("two", "one"))
    assert two["budget"]["processes"] == 2
    assert two["budget"]["steps"] == one["budget"]["steps"] == 8
    assert two["budget"]["target_tokens"] == one["budget"]["target_tokens"]
    for left, right in zip(two["dev"], one["dev"], strict=True):
        assert left["eval_loss"] == pytest.approx(right["eval_loss"], rel=1e-4)
        assert left["eval_bleu"] == pytest.approx(right["eval_bleu"], rel=1e-4)

    last = "checkpoints/checkpoint-8"
    histories = [
        json.loads((tmp_path / name / last / "trainer_state.json").read_text())["log_history"]
        for name in ("two", "one")
    ]
    losses, others = ([entry["loss"] for entry in history if "loss" in entry] for history in histories)
    assert len(losses) == 8
    assert losses == pytest.approx(others, rel=1e-4)
    weights = [load_file(tmp_path / name / last / "model.safetensors") for name in ("two", "one")]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=1e-3, atol=1e-5, msg=name)
    assert {path.name for path in (tmp_path / "two" / last).glob("rng*")} == {"rng_state_0.pth", "rng_state_1.pth"}


APART = """
import os, sys
from hf_mlnmt.cli import main

sys.argv[sys.argv.index("--output") + 1] += os.environ["RANK"]
main()
"""


def test_machines_without_a_common_folder_train_and_go_on_from_one_checkpoint_or_not_at_all(tmp_path):
    """Two processes, each with an output folder of its own."""
    data, recipe, script = write_corpus(tmp_path / "data"), tmp_path / "recipe.yaml", tmp_path / "apart.py"
    write_recipe(recipe, schedule={"name": "inverse_sqrt", "warmup": 3})
    script.write_text(APART)
    arguments = [str(script), "train", str(recipe), "--data", str(data), "--output", str(tmp_path / "run"), "--set"]
    two_processes(*arguments, "budget.steps=4")
    first, second = tmp_path / "run0", tmp_path / "run1"
    assert json.loads((first / "results.json").read_text())["budget"]["steps"] == 4
    assert {path.name for path in (first / "checkpoints" / "checkpoint-4").glob("rng*")} == {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }
    assert not list((second / "checkpoints").glob("*")), "nothing half-written is left"

    for said in two_processes(*arguments, "budget.steps=8", code=1):
        assert f"process 1 on {socket.gethostname()}: complete.json is missing" in said
        assert "(it has no checkpoint)" in said
        assert "copy it from the first machine" in said
        assert "Traceback" not in said
    shutil.copytree(first / "checkpoints", second / "checkpoints", dirs_exist_ok=True)
    two_processes(*arguments, "budget.steps=8")
    assert json.loads((first / "results.json").read_text())["budget"]["steps"] == 8


LONG = """
import time
from datetime import timedelta

import torch
from accelerate import PartialState

from hf_mlnmt.training.processes import main_first, of_all, of_main

state = PartialState(cpu=True)
torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=1), torch.distributed.group.WORLD)
with main_first():
    if state.is_main_process:
        time.sleep(2)
assert of_main(state.process_index) == 0
assert of_all(state.process_index) == [0, 1]
state.destroy_process_group()
"""


def test_a_preparation_may_take_longer_than_the_group_waits(tmp_path):
    (tmp_path / "long.py").write_text(LONG)
    two_processes(str(tmp_path / "long.py"))
