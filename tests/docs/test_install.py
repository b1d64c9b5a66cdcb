"""The lines that install the package, typed in a clone, and the first examples of README and docs behind them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig

from helpers import fresh
from helpers.docs import ROOT, blocks

import hf_mlnmt


def lines(page: str) -> list[str]:
    return next(block.text for block in blocks(ROOT / page, "bash") if "pip install ." in block.text).splitlines()


def test_readme_and_page_say_the_same():
    assert lines("docs/install.md") == lines("README.md")


def test_the_first_examples_run_behind_the_lines(tmp_path):
    """What the package depends on is taken from the environment of the tests: nothing large is installed twice."""
    clone, site = tmp_path / "clone", "$(echo $PWD/.venv/lib/python*/site-packages)"
    subprocess.run(f"git -C {ROOT} archive --prefix=clone/ HEAD | tar -x -C {tmp_path}", shell=True, check=True)
    examples = [blocks(ROOT / page, "python")[0].text for page in ("README.md", "docs/README.md")]
    (clone / "first.py").write_text("\n".join(examples), encoding="utf-8")
    quick = {"pip install .": "python -m pip install --quiet --no-deps .", "m venv": "m venv --without-pip"}
    typed = [line for line in lines("README.md") if "install torch" not in line]
    for what, instead in quick.items():
        assert sum(what in line for line in typed) == 1
        typed = [line.replace(what, instead) for line in typed]
    dependencies = f"echo {sysconfig.get_path('purelib')} > {site}/dependencies.pth"
    tried = ["hf-mlnmt --version", f"PYTHONPATH={site} {sys.executable} {fresh.__file__} torch first.py"]
    script = "\n".join([*typed[:-1], dependencies, typed[-1], *tried])
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean |= {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(["bash", "-ec", script], cwd=clone, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert hf_mlnmt.__version__ in done.stdout
    said = [re.findall(r"# (.+)", example)[-1] for example in examples]
    assert done.stdout.splitlines()[-2:] == said
