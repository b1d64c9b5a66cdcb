"""precision.compile: what each value asks for, and a machine without a compiler."""

from __future__ import annotations

import pytest
from helpers.tiny_run import write_recipe

from hf_mlnmt.errors import UserError
from hf_mlnmt.recipe.reading import read_recipe
from hf_mlnmt.training import arguments


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


def test_trainers_are_told(recipe, tmp_path, monkeypatch):
    from hf_mlnmt.training.arguments import training_arguments

    for found, expected in (("/bin/g++", True), (None, False)):
        monkeypatch.setattr(arguments.shutil, "which", lambda name, found=found: found)
        assert training_arguments(recipe(True, steps=5), tmp_path).torch_compile is expected


def test_another_value_is_refused(recipe):
    with pytest.raises(UserError, match="is not one of False, True, auto"):
        recipe("always", steps=5)
