"""Families train like the baseline: two processes are two batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import family_run
from helpers.family_run import FAMILIES, trainer
from helpers.processes import two_processes
from safetensors.torch import load_file

pytestmark = pytest.mark.usefixtures("one_thread")  # as in the processes


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """What two processes made of each."""
    folder = tmp_path_factory.mktemp("two")
    two_processes(family_run.__file__, str(folder))
    return folder


@pytest.mark.parametrize("system", FAMILIES)
def test_two_processes_equal_two_accumulated_batches(two, tmp_path, system):
    one = trainer(system, tmp_path, dropout=0.0, logging_steps=1, gradient_accumulation_steps=2)
    start = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    one.train()
    histories = [json.loads((two / f"{system}.json").read_text())["log_history"], one.state.log_history]
    losses, others = ([entry["loss"] for entry in history if "loss" in entry] for history in histories)
    assert len(losses) == 6
    assert losses == pytest.approx(others, rel=1e-4)
    found = load_file(two / f"{system}.safetensors")
    for name, tensor in one.model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-5, msg=name)
        assert not torch.equal(found[name], start[name]), f"{name} was not trained"
