"""A trained-looking model folder, and one publication of it that all tests read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hub_toys import some_results, write_model

from hf_mlnmt.hub.publish import build_folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A run's average/ as training leaves it, polluted."""
    folder = write_model(tmp_path_factory.mktemp("run") / "average")
    (folder / "results.json").write_text(json.dumps(some_results()))
    return folder


@pytest.fixture(scope="session")
def published(trained, tmp_path_factory) -> Path:
    """The real thing once: built, and loaded again in two fresh processes."""
    target = tmp_path_factory.mktemp("published") / "toy-en-de"
    assert build_folder(trained, target, licence="cc-by-4.0").warnings == []
    return target


@pytest.fixture
def quick(monkeypatch) -> None:
    """Leave out the fresh processes; `published` shows that they work, test_loading.py that they refuse."""
    monkeypatch.setattr("hf_mlnmt.hub.publish.check_loading", lambda *arguments: None)
