"""What Windows lacks, and extras, are not needed to import the package, to start its commands, to lock a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import fresh

import hf_mlnmt
from hf_mlnmt import UserError
from hf_mlnmt.common.files import only_one, write_text

PACKAGE = Path(hf_mlnmt.__file__).parent
# The libraries come first: as they are for Linux, they need it all. Triton is for CUDA on Linux.
ON_WINDOWS = f"""
import importlib, os, pathlib, runpy, signal, sys
import accelerate, datasets, psutil, sacrebleu, torch, transformers.masking_utils, transformers.modeling_utils
sys.modules["fcntl"] = sys.modules["resource"] = None
sys.modules["evaluate"] = sys.modules["ray"] = sys.modules["sentence_transformers"] = None  # of extras
for module, names in {{
    os: ["fork", "getloadavg", "getuid", "nice", "sched_getaffinity", "sysconf", "uname"],
    signal: ["SIGHUP", "SIGKILL"],
}}.items():
    for name in names:
        vars(module).pop(name, None)
package = pathlib.Path({str(PACKAGE)!r})
for path in sorted(package.rglob("*.py")):
    if "triton" not in path.name:
        parts = path.relative_to(package.parent).with_suffix("").parts
        try:
            importlib.import_module(".".join(part for part in parts if part != "__init__"))
        except ModuleNotFoundError as error:
            # Each of these files is a module of the extra's package.
            extras = dict(sentence_embedder="sentence_transformers", hf_metric="evaluate", ray="ray")
            if error.name != extras.get(path.stem):
                raise
from hf_mlnmt.cli import app
from hf_mlnmt.common.memory import memory_of_machine
from hf_mlnmt.analysis.cost import machine
from hf_mlnmt import UserError
from hf_mlnmt.evaluation import load_metric
try:
    load_metric("hf_mlnmt")
except UserError as error:
    assert "pip install 'hf-mlnmt[evaluate]'" in str(error), error
else:
    raise AssertionError("a metric of a package that is not there")
assert memory_of_machine(on_cpu=True) > 0 and machine()
from typer.main import get_command
top = get_command(app).commands
for words in [[x] for x in top] + [[group, x] for group in ("model", "analyse") for x in top[group].commands]:
    sys.argv = ["hf-mlnmt", *words, "--help"]
    try:
        runpy.run_module("hf_mlnmt", run_name="__main__")
    except SystemExit as end:
        assert not end.code, sys.argv
"""
HOLDING = """
import sys
from pathlib import Path
from hf_mlnmt.common.files import only_one, write_text
with only_one(Path(sys.argv[1]), "taken"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_every_file_is_imported_and_every_help_shown_without_what_windows_lacks():
    done = fresh.python("-c", ON_WINDOWS, env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") >= 25


@pytest.mark.parametrize("killed", [False, True])
def test_a_folder_is_for_one_process_until_that_ends(tmp_path: Path, killed: bool):
    """Also a killed one holds nothing afterwards; nor does the file that is left in the folder."""
    folder = tmp_path / "run"
    write_text(folder / ".lock", "")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=r"^mine\?$"), only_one(folder, "mine?"):
        raise AssertionError("two at once")
    if killed:
        holder.kill()
    holder.communicate(timeout=100)
    for _ in range(2):  # and what has ended in this process gives it back
        with only_one(folder, "mine?"), pytest.raises(UserError), only_one(folder, "mine?"):
            raise AssertionError("two at once")
