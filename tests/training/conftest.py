"""Fixtures for the tests of training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_run import run, write_corpus, write_recipe
from training_helpers import Pairs


@pytest.fixture
def pairs() -> Pairs:
    """60 pairs of 2 to 12 tokens."""
    return Pairs()


@pytest.fixture(scope="module")
def one_thread():
    """As in the subprocesses: sums in another order would differ in the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The corpus of tiny_run."""
    return write_corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(one_thread, data, tmp_path_factory):
    """The folder of a run that nothing interrupted, its recipe, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    recipe = write_recipe(folder / "recipe.yaml")
    text = run(recipe, data, folder / "run")
    return folder / "run", recipe, text
