"""Every script of benchmarks/ runs, and the commands that are written down for it are commands."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from helpers import fresh

ROOT = Path(__file__).resolve().parents[1]
FILES = {path.stem: path for path in sorted((ROOT / "benchmarks").glob("*.py"))}
SCRIPTS = [name for name, path in FILES.items() if re.search(r"^def main\(", path.read_text("utf-8"), re.MULTILINE)]
WRITTEN = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *FILES.values()]  # where commands are
OPTIONAL = {"ctranslate2", "fastapi", "pymarian"}  # what benchmarks need beside the package
SECONDS = 300  # at most, of one script


def run(script: str, *options: str) -> str:
    """What the script prints. It fails the test by its status, and skips it where a package is not installed."""
    done = fresh.package("-c", fresh.FORKING, str(FILES[script]), *options, cwd=ROOT, seconds=SECONDS)
    missing = re.search(r"^ModuleNotFoundError: No module named '(\w+)'", done.stderr, re.MULTILINE)
    if missing and missing[1] in OPTIONAL:
        pytest.skip(f"{missing[1]} is not installed")
    assert not done.returncode, f"{script}.py: status {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def times_of_files() -> dict[Path, int]:
    """When what a benchmark may write by default was written."""
    return {
        path: path.stat().st_mtime_ns
        for room in ("benchmarks/results", "docs", "docs/studies")
        for path in (ROOT / room).iterdir()
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_runs(script, tmp_path):
    before, output, text = times_of_files(), tmp_path / "numbers.json", FILES[script].read_text("utf-8")
    options = ["--output", str(output)] if '"--output"' in text else []
    if '"--marian"' in text and importlib.util.find_spec("pymarian"):
        options += ["--marian", sys.executable]
    assert run(script, "--quick", *options).strip()
    assert not options or json.loads(output.read_text("utf-8"))
    assert times_of_files() == before


def test_costs_of_what_a_search_is_asked_for(tmp_path):
    run("decode", "--quick", "--costs", "--systems", "", "--families", "", "--output", str(tmp_path / "costs.json"))
    (row,) = json.loads((tmp_path / "costs.json").read_text("utf-8"))["rows"]
    assert len(row["times"]) == 6
    assert min(row["times"].values()) > 0


def test_quick_writes_no_file_by_itself():
    """Of the script that has a file and a page by default."""
    before = times_of_files()
    run("base_shape", "--quick", "--lengths", "forced", "--engines", "ours")
    assert times_of_files() == before


HELP = """
import runpy, sys
for script in sys.argv[1:]:
    sys.path[0], sys.argv = script.rpartition("/")[0], [script, "--help"]
    print("\\f", script, sep="")
    try:
        runpy.run_path(script, run_name="__main__")
    except (ModuleNotFoundError, SystemExit) as ended:
        print(ended)
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """What each script prints that is asked for its options, of one process."""
    done = fresh.package("-c", HELP, *(str(FILES[script]) for script in SCRIPTS), cwd=ROOT, seconds=SECONDS)
    assert not done.returncode, done.stderr[-3000:]
    pages = (page.partition("\n") for page in done.stdout.split("\f")[1:])
    return {Path(file).stem: text for file, _, text in pages}


@pytest.mark.parametrize("script", SCRIPTS)
def test_written_commands_have_options_that_exist(script, helps):
    commands = [one for path in WRITTEN for one in re.findall(rf"\b{script}\.py( [^`\n]*)", path.read_text("utf-8"))]
    wanted = {option for command in commands for option in re.findall(r"--[a-z][\w-]*", command)}
    if any(f"No module named '{name}'" in helps[script] for name in OPTIONAL):
        pytest.skip("what it needs is not installed")
    known = helps[script].partition("\noptions:\n")[2]
    assert wanted <= set(re.findall(r"--[a-z][\w-]*", known))


def test_files_that_benchmarks_name_exist():
    for path in FILES.values():
        for name in re.findall(r"\b(?:benchmarks|docs|hf_mlnmt|tests|training)/[\w./-]*\w", path.read_text("utf-8")):
            assert (ROOT / name).exists(), f"{path.name}: {name}"
