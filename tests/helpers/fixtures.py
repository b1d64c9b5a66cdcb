"""Fixtures of several folders of tests: corpora, pairs of tokens, a model folder as training leaves it, published."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import fresh
from helpers.model_folders import some_results, write_model
from helpers.once import made_once
from helpers.tiny_run import write_corpus
from helpers.training_helpers import Pairs


@pytest.fixture(scope="session")
def demo() -> dict[str, list[tuple[str, str]]]:
    """A small part of the demo corpus."""
    from hf_mlnmt.demo.grammar import sample_demo_corpus

    return sample_demo_corpus(seed=3, sizes={"train": 2000, "val": 100, "test": 200})


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


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory) -> Path:
    """A run's average/ as training leaves it, polluted."""

    def write(run: Path) -> None:
        folder = write_model(run / "average")
        (folder / "results.json").write_text(json.dumps(some_results()))

    return made_once(tmp_path_factory, "run", write) / "average"


@pytest.fixture(scope="session")
def published(trained_folder, tmp_path_factory) -> Path:
    """The real thing once: built, and loaded again in two fresh processes."""
    from hf_mlnmt.hub.publish import build_folder

    def build(folder: Path) -> None:
        assert build_folder(trained_folder, folder / "toy-en-de", licence="cc-by-4.0").warnings == []

    return made_once(tmp_path_factory, "published", build) / "toy-en-de"


@pytest.fixture
def forks(monkeypatch) -> None:
    """The fresh processes in which a publication is loaded again are forks; those of `published` are not."""
    instead = SimpleNamespace(Popen=fresh.Popen, PIPE=None, DEVNULL=None)
    monkeypatch.setattr("hf_mlnmt.hub.check_reload.subprocess", instead)


@pytest.fixture
def quick(monkeypatch) -> None:
    """Leave out the fresh processes; `published` shows that they work, test_check_reload.py that they refuse."""
    monkeypatch.setattr("hf_mlnmt.hub.publish.check_loading", lambda *arguments: None)
