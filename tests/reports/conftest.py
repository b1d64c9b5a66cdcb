"""Runs to compare, and a comparison of them; one for each file of tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.finished_runs import compare, write_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def compared(runs, tmp_path_factory) -> Path:
    return compare(runs, tmp_path_factory.mktemp("results") / "toy")
