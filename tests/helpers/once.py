"""Folders that both processes of a test run share, and what of them the chosen tests need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Path:
    """Returns a folder of this name, made by `make` in the process that asks first. It is for reading."""
    root = factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / name
    whole = folder.with_name(f"{name}.whole")
    with FileLock(f"{folder}.lock"):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder


def asked_for(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """Returns the values of a parameter in those tests with this fixture that were chosen, by a mark or by name."""
    users = [item for item in request.session.items if request.fixturename in getattr(item, "fixturenames", ())]
    return list(dict.fromkeys(item.callspec.params[parameter] for item in users))
