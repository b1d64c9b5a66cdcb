"""Objectives on text, and those of fused models, over two processes: what the definition gives in one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.processes import two_processes
from helpers.text_tasks import STEPS, model_of, trainer_of
from helpers.toy_tasks import by_hand, sampler_of
from safetensors.torch import load_file


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """A folder with the weights of each training by two processes."""
    folder = tmp_path_factory.mktemp("two")
    two_processes("tests/helpers/text_tasks.py", str(folder))
    return folder


@pytest.mark.parametrize("kind", STEPS)
def test_two_processes_are_the_definition(kind, two, tmp_path):
    """What is drawn follows from the task's epoch and the sentence, whichever process has it."""
    weights, trainer = load_file(two / f"{kind}.safetensors"), trainer_of(kind, tmp_path)
    sampler = sampler_of(trainer.tasks)
    if kind == "text":
        last = STEPS[kind] * sampler.accumulation
        assert min(sampler.epochs(last)[1:]) > 1, "the test needs second epochs, with other draws"
    expected = dict(by_hand(trainer, sampler, STEPS[kind]).named_parameters())
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        # float64; Adam divides by a gradient's size, so that where it is nearly 0 rounding counts
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize("kind", ["n-best", "trellis"])
def test_the_language_model_stands_still_and_the_translation_model_moves(kind, two):
    weights = load_file(two / f"{kind}.safetensors")
    for name, before in model_of(kind).named_parameters():
        assert torch.equal(weights[name], before) == name.startswith("language_"), name
