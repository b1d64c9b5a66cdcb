"""`hf-mlnmt train --processes 2`: the command starts itself as two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from helpers.tiny_run import write_corpus, write_recipe

from hf_mlnmt.cli.processes import without_processes


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["train", "a.yaml", "--processes", "2", "--seed", "2"], ["train", "a.yaml", "--seed", "2"]),
        (["train", "-p", "2", "a.yaml"], ["train", "a.yaml"]),
        (["train", "--processes=4", "a.yaml"], ["train", "a.yaml"]),
        (["train", "a.yaml", "--set", "batch.tokens=2"], ["train", "a.yaml", "--set", "batch.tokens=2"]),
    ],
)
def test_the_children_do_not_start_children(arguments: list[str], kept: list[str]):
    assert without_processes(arguments) == kept


def test_two_processes_train_one_model(tmp_path):
    data, recipe = write_corpus(tmp_path / "data"), tmp_path / "recipe.yaml"
    write_recipe(recipe, budget={"steps": 4})
    command = [sys.executable, "-m", "hf_mlnmt", "train", str(recipe), "--data", str(data), "--processes", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [*command, "--output", str(tmp_path / "run")], capture_output=True, text=True, timeout=300, env=environment
    )
    assert run.returncode == 0, run.stderr[-3000:]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["budget"]["processes"] == 2

    missing = subprocess.run([*command, "--set", "bugdet.steps=4"], capture_output=True, text=True, env=environment)
    assert missing.returncode != 0
    assert "did you mean 'budget'" in missing.stderr
