"""precision.compile: what each value asks for, and a machine without a compiler."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
import torch
from helpers import training_helpers
from helpers.contract import members
from helpers.tiny_run import run_in, write_recipe
from helpers.training_helpers import Pairs, tiny_model
from safetensors.torch import load_file

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.recipe.reading import read_recipe
from hf_mlnmt.training import Batches, Task, Translation, arguments, trainer


@pytest.fixture
def recipe(tmp_path):
    def make(asked, **budget):
        return read_recipe(write_recipe(tmp_path / "r.yaml", precision={"compile": asked}, budget=budget))

    return make


@pytest.mark.parametrize(
    ("asked", "on_cpu", "compiled"),
    [(False, True, False), (True, True, True), (True, False, True), ("auto", True, False), ("auto", False, False)],
)
def test_values(asked, on_cpu, compiled, recipe, monkeypatch):
    monkeypatch.setattr(arguments.shutil, "which", lambda name: f"/bin/{name}")
    assert arguments.is_compiled(recipe(asked, steps=10**6), on_cpu) is compiled
    assert arguments.remark(recipe(asked, steps=10**6), on_cpu) is None


def test_without_a_compiler_it_stays_off_and_that_is_said(recipe, monkeypatch):
    monkeypatch.setattr(arguments.shutil, "which", lambda name: None)
    asked = recipe(True, steps=5)
    assert arguments.is_compiled(asked, on_cpu=True) is False
    assert "no C++ compiler" in arguments.remark(asked, on_cpu=True)
    assert arguments.is_compiled(asked, on_cpu=False) is True, "an accelerator does not ask for one"
    assert arguments.remark(recipe(False, steps=5), on_cpu=True) is None


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are compiled, by a compiler that leaves them as they are."""
    made = []
    monkeypatch.setattr(trainer, "COMPILER", lambda graph, _: made.append(graph) or graph.forward)
    torch._dynamo.reset()
    yield made
    torch._dynamo.reset()


@pytest.mark.parametrize("compiler", [True, False])
def test_a_recipe_compiles_the_layers(compiler, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr("hf_mlnmt.training.arguments.is_compiled", lambda recipe, on_cpu: compiler)
    monkeypatch.setattr(trainer, "compiled_layers", lambda model: compiled.append(model) or nullcontext())
    run_in(tmp_path, dry_run=True, precision={"compile": True})
    assert bool(compiled) is compiler


def batch_of(rows, source, target):
    ids, labels = torch.randint(5, 22, (rows, source)), torch.randint(5, 22, (rows, target))
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize(("system", "expected"), [("transformer", 2), ("rnn", 0)])
def test_few_graphs_for_many_shapes_with_the_same_gradients(system, expected, graphs):
    """Layers of a class share a graph; those of LSTMs stay as they are."""
    torch.manual_seed(0)
    member = next(member for member in members() if member.system == system)
    model = member.model(dtype=torch.float32, encoder_layers=4, decoder_layers=4, dropout=0.0).train()
    shapes = itertools.product((2, 3, 7), (5, 11, 13), (4, 9, 12))
    batches = [batch_of(*shape) for shape in itertools.islice(shapes, 0, 27 if system == "transformer" else 8, 2)]

    def gradients():
        losses = [model(**batch, loss_only=True).loss for batch in batches]
        return losses, [torch.autograd.grad(loss, model.parameters(), materialize_grads=True) for loss in losses]

    eager, names = gradients(), list(model.state_dict())
    with trainer.compiled_layers(model):
        torch.testing.assert_close(gradients(), eager, rtol=1e-4, atol=1e-6)
        assert list(model.state_dict()) == names
        assert len(graphs) == expected
        model.eval()
        gradients()
    assert len(graphs) == expected, "evaluation compiles nothing"
    assert not any(module._compiled_call_impl for module in model.modules())


def test_a_compiled_training_ends_with_the_same_weights(graphs, tmp_path):
    weights = []
    for compiled in (False, True):
        model = tiny_model(dropout=0.0)
        task, settings = Task(Pairs(), Translation(0, 0.1)), {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
        made = trainer.TranslationTrainer(
            model,
            training_helpers.arguments(tmp_path / str(compiled), **settings),
            task,
            Batches(60),
            compiled=compiled,
        )
        made.train()
        weights.append(load_file(tmp_path / str(compiled) / "checkpoint-3" / "model.safetensors"))
    assert 2 <= len(graphs) <= 8, "a layer may have a mask or none"
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-3, atol=1e-5)


def test_another_value_is_refused(recipe):
    with pytest.raises(UserError, match="is not one of False, True, auto"):
        recipe("always", steps=5)
