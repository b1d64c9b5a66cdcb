"""Transformers' own test mixins: got from the source distribution of the installed release, made importable.

A wheel holds no tests, so the source distribution is fetched once into `.cache/` (HF_MLNMT_SDIST may name an archive
that is already there). It lacks some modules that the mixins import; `_stand_ins` replaces those.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path
from typing import Any

import transformers

CACHE = Path(__file__).resolve().parents[2] / ".cache"
PACKAGE = "transformers_tests"  # the name under which upstream's tests folder is importable here


class Unavailable(Exception):
    """The source distribution is neither at hand nor downloadable."""


def load() -> types.SimpleNamespace:
    """The names `ModelTesterMixin`, `GenerationTesterMixin` (empty) and `ConfigTester`.

    Raises: Unavailable, with what to do.
    """
    folder = CACHE / f"transformers-{transformers.__version__}-tests"
    if not (folder / PACKAGE).is_dir():
        _extract(_archive(), folder)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    for name, content in _stand_ins().items():
        sys.modules.setdefault(name, _module(name, content))
    modeling = importlib.import_module(f"{PACKAGE}.test_modeling_common")
    configuration = importlib.import_module(f"{PACKAGE}.test_configuration_common")
    return types.SimpleNamespace(
        ModelTesterMixin=modeling.ModelTesterMixin,
        GenerationTesterMixin=modeling.GenerationTesterMixin,
        ConfigTester=configuration.ConfigTester,
    )


def introduce(base: type, translation: type, model_type: str):
    """Upstream decides by class name whether to pass labels or to run a test at all: tell it what ours are."""
    from transformers.models.auto import modeling_auto

    modeling_auto.MODEL_MAPPING_NAMES[model_type] = base.__name__
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[model_type] = translation.__name__


def introduce_causal(base: type, head: type, model_type: str):
    """The same of a language model."""
    from transformers.models.auto import modeling_auto

    modeling_auto.MODEL_MAPPING_NAMES[model_type] = base.__name__
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] = head.__name__


def _archive() -> Path:
    version = transformers.__version__
    if given := os.environ.get("HF_MLNMT_SDIST"):
        if not Path(given).is_file():
            raise Unavailable(f"HF_MLNMT_SDIST={given} is not a file")
        return Path(given)
    path = CACHE / f"transformers-{version}.tar.gz"
    if not path.is_file():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "transformers"]
            command += ["--dest", temporary, f"transformers=={version}"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode or not (Path(temporary) / path.name).is_file():
                raise Unavailable(
                    f"no source distribution of transformers {version} (set HF_MLNMT_SDIST to its .tar.gz, or connect "
                    f"to the package registry): {done.stderr.strip()[-300:]}"
                )
            os.replace(Path(temporary) / path.name, path)
    return path


def _extract(archive: Path, folder: Path):
    """The archive's tests/test_*.py as the package PACKAGE in `folder`."""
    prefix = f"transformers-{transformers.__version__}/tests/"
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary, tarfile.open(archive) as tar:
        package = Path(temporary) / "tests" / PACKAGE
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        members = [m for m in tar.getmembers() if m.isfile() and m.name.startswith(prefix)]
        if not members:
            raise Unavailable(f"{archive} is not the source distribution of transformers {transformers.__version__}")
        for member in members:
            (package / Path(member.name).name).write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
        # Several test processes may be here at once: the first one's folder stays.
        with contextlib.suppress(OSError):
            os.rename(package.parent, folder)


def _stand_ins() -> dict[str, dict[str, Any]]:
    """Module name -> what it holds, for the modules that the source distribution or the environment lacks."""
    absent = {
        f"{PACKAGE}.exporters": {},
        f"{PACKAGE}.exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
        f"{PACKAGE}.generation": {},
        f"{PACKAGE}.generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
        f"{PACKAGE}.utils": {},
        f"{PACKAGE}.utils.test_configuration_utils": {"config_common_kwargs": _COMMON_FIELDS},
    }
    return absent | {"parameterized": {"parameterized": _parameterized}}


def _module(name: str, content: dict[str, Any]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # type: ignore[attr-defined]
    module.__dict__.update(content)
    return module


# Every config must keep these when they are given (upstream's own list is not in the source distribution).
_COMMON_FIELDS = {
    "return_dict": False,
    "output_hidden_states": True,
    "output_attentions": True,
    "chunk_size_feed_forward": 5,
    "architectures": ["BertModel"],
    "id2label": {0: "label"},
    "label2id": {"label": 0},
    "problem_type": "regression",
    "dtype": "float16",
}


class _parameterized:
    """The one function of the package of this name that upstream uses: one method per tuple of arguments."""

    @staticmethod
    def expand(cases):
        def decorate(method):
            names = sys._getframe(1).f_locals
            for index, case in enumerate(cases):
                values = case if isinstance(case, tuple) else (case,)
                suffix = f"_{values[0]}" if isinstance(values[0], str) else ""
                names[f"{method.__name__}_{index}{suffix}"] = _bind(method, values)

        return decorate


def _bind(method, values: tuple):
    def test(self):
        return method(self, *values)

    test.__name__ = method.__name__
    return test
