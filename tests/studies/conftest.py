"""How the files of studies/ are imported: it is a folder of programs, no package."""

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))


@pytest.fixture(scope="module")
def study_module(request):
    """The program that the test file names as STUDY."""
    return importlib.import_module(request.module.STUDY)
