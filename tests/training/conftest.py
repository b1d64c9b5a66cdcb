"""Fixtures for the tests of training."""

from __future__ import annotations

import pytest
from helpers.tiny_run import run, write_recipe
from transformers import PreTrainedTokenizerFast

from hf_mlnmt.data.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def whole(one_thread, data, tmp_path_factory):
    """The folder of a run that nothing interrupted, its recipe, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    recipe = write_recipe(folder / "recipe.yaml")
    text = run(recipe, data, folder / "run", curves=True)
    return folder / "run", recipe, text


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["ba do ki lu me"] * 5, vocab_size=40, byte_fallback=False)
