"""How a study is imported: studies/ is a folder of programs, no package."""

import importlib
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture(scope="module")
def study_module(request):
    """The program that the test file names as STUDY."""
    sys.path.insert(0, str(STUDIES))
    try:
        yield importlib.import_module(request.module.STUDY)
    finally:
        sys.path.remove(str(STUDIES))
