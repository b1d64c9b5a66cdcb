"""Fixtures of several folders of tests: corpora, pairs of tokens, a model folder as training leaves it, published.

The first process of xdist, which runs no test, reads this file too: it imports torch in the fixtures.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from helpers import fresh
from helpers.once import made_once

if TYPE_CHECKING:
    from helpers.training_helpers import Pairs


@pytest.fixture(scope="session")
def demo() -> dict[str, list[tuple[str, str]]]:
    """A small part of the demo corpus."""
    from hf_mlnmt.demo.grammar import sample_demo_corpus

    return sample_demo_corpus(seed=3, sizes={"train": 2000, "val": 100, "test": 200})


@pytest.fixture
def pairs() -> Pairs:
    """60 pairs of 2 to 12 tokens."""
    from helpers.training_helpers import Pairs

    return Pairs()


@pytest.fixture(scope="module")
def one_thread():
    """As in the subprocesses: sums in another order would differ in the last bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The corpus of tiny_run."""
    from helpers.tiny_run import write_corpus

    return write_corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory) -> Path:
    """A run's average/ as training leaves it, polluted."""
    from helpers.model_folders import some_results, write_model

    def write(run: Path) -> None:
        folder = write_model(run / "average")
        (folder / "results.json").write_text(json.dumps(some_results()))

    return made_once(tmp_path_factory, "run", write) / "average"


@pytest.fixture(scope="session")
def published(trained_folder, tmp_path_factory) -> Path:
    """The real thing once: built, and loaded again in two fresh processes, one of which is no fork."""
    from hf_mlnmt.hub.publish import build_folder

    def start(command: list[str], **options: Any) -> Any:
        return (subprocess.Popen if command[-1] == "package" else fresh.Popen)(command, **options)

    def build(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hf_mlnmt.hub.check_reload.subprocess", starting(start))
            assert build_folder(trained_folder, folder / "toy-en-de", licence="cc-by-4.0").warnings == []

    return made_once(tmp_path_factory, "published", build) / "toy-en-de"


def starting(start: Any) -> SimpleNamespace:
    """What check_reload.py takes of `subprocess`."""
    return SimpleNamespace(Popen=start, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)


@pytest.fixture
def forks(monkeypatch) -> None:
    """The fresh processes in which a publication is loaded again are forks; one of `published` is not."""
    monkeypatch.setattr("hf_mlnmt.hub.check_reload.subprocess", starting(fresh.Popen))


@pytest.fixture
def undraw(monkeypatch) -> Callable[[], None]:
    """From its call on figures are made and not drawn, which is most of an analysis' time and needs to be done once."""
    return lambda: monkeypatch.setattr("hf_mlnmt.evaluation.figures.save", lambda *given: [])


@pytest.fixture
def quick(monkeypatch) -> None:
    """Leave out the fresh processes; `published` shows that they work, test_check_reload.py that they refuse."""
    monkeypatch.setattr("hf_mlnmt.hub.publish.check_loading", lambda *arguments: None)
