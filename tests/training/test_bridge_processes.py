"""The attention bridge over two processes: the right sums, penalty among them, and no module moves that is unused."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.bridge_tasks import PAIRS, SETTINGS, bridge_model, bridge_tasks
from helpers.processes import two_processes
from helpers.toy_tasks import by_hand, sampler_of, toy_trainer
from safetensors.torch import load_file
from transformers import TrainerCallback


def test_two_processes_are_the_definition(tmp_path):
    two_processes("tests/helpers/bridge_tasks.py", str(tmp_path))
    tasks = bridge_tasks()
    sampler = sampler_of(tasks)
    weights = load_file(tmp_path / "weights.safetensors")
    trainer = toy_trainer(tmp_path / "alone", tasks, bridge_model(), **SETTINGS)
    expected = dict(by_hand(trainer, sampler, SETTINGS["max_steps"]).named_parameters())
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        # float64; Adam divides by a gradient's size, so that where it is nearly 0 rounding counts
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=1e-6, atol=1e-8, msg=name)
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
    trainer = toy_trainer(tmp_path, tasks, model, **{**SETTINGS, "gradient_accumulation_steps": 1})
    trainer.add_callback(Gradients())
    trainer.train()
    assert len(seen) == SETTINGS["max_steps"]
    assert set(seen) <= alone
