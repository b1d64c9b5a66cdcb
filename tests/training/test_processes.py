"""Two processes by `accelerate launch` on the CPU do what one process does with two accumulated batches."""

from __future__ import annotations

import json

import pytest
import torch
import yaml
from helpers.processes import launch
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
    (tmp_path / "train.py").write_text(CODE)
    launch(str(tmp_path / "train.py"), str(recipe), "--data", str(data), "--output", str(tmp_path / "two"))
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
