"""Runs to compare, and a comparison of them; one for each file of tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.finished_runs import FEW, NAMES, sentences, write_lines, write_run

from hf_mlnmt.reports.comparing import add_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for key in NAMES:
        write_run(folder / key, key)
    write_lines(folder / "data" / "test.en", sentences(0, 0))
    write_lines(folder / "data" / "test.de", sentences(0, 0))
    return folder


@pytest.fixture(scope="module")
def compared(runs, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("results") / "toy"
    add_runs([runs / "base", runs / "a", runs / "b"], output, runs / "data", **FEW)
    return output
