"""docs/scores.md: every block runs, in the order of the page, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from helpers import fresh

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scores.md"


# The command as installed, without asking for an installation; in forks.
PROLOGUE = """hf-mlnmt() { "$PYTHON" "$FORK" package -c 'from hf_mlnmt.cli import main; main()' "$@"; }\n"""


def test_every_block_runs(tmp_path: Path, monkeypatch, capsys, evaluate_cache) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PYTHON": sys.executable, "FORK": fresh.__file__}
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks].count("python") == 4
    for language, block in blocks:
        if language == "bash":
            shell = ["bash", "-ec", PROLOGUE + block]
            done = subprocess.run(shell, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        else:
            exec(compile(block, str(PAGE), "exec"), {})
    assert "protocol:classic" in capsys.readouterr().out
    assert all((tmp_path / name).is_file() for name in ("results/new.json", "comparison/comparison.json"))
