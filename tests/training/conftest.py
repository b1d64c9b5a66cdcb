"""Fixtures for the tests of training."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.once import made_once
from helpers.tiny_run import run, write_corpus, write_recipe
from transformers import PreTrainedTokenizerFast

from hf_mlnmt.data.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def whole(one_thread, tmp_path_factory):
    """The folder of a run that nothing interrupted, its recipe, and what it printed: for reading, and for copies."""

    def train(folder: Path) -> None:
        recipe, data = write_recipe(folder / "recipe.yaml"), write_corpus(folder / "data")
        (folder / "printed").write_text(run(recipe, data, folder / "run", curves=True))

    folder = made_once(tmp_path_factory, "whole", train)
    return folder / "run", folder / "recipe.yaml", (folder / "printed").read_text()


@pytest.fixture(scope="module")
def plain(one_thread, tmp_path_factory):
    """The folder of a run without scores that nothing interrupted, and its recipe."""

    def train(folder: Path) -> None:
        run(write_recipe(folder / "recipe.yaml", scores=False), write_corpus(folder / "data"), folder / "run")

    folder = made_once(tmp_path_factory, "plain", train)
    return folder / "run", folder / "recipe.yaml"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["ba do ki lu me"] * 5, vocab_size=40, byte_fallback=False)
