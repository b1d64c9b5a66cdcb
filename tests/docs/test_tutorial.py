"""docs/tutorial.md from its first block to its last, in one folder, as a reader would; with few lines, in few steps."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import IO

import pytest
from helpers.docs import ROOT, SIZES, blocks, commands
from typer.testing import CliRunner

from hf_mlnmt.cli import app

PAGE = ROOT / "docs" / "tutorial.md"
FEWER = {"20_000": "400", "500": "20", "501": "21"}  # numbers of the page: those of the test
SMALL = {
    "budget.steps": 4,
    "evaluation.every": 2,
    "checkpoints.average": 2,
    "schedule.warmup": 1,
    "schedule.restarts": 0,
}
SMALL |= {"decoding.max_new_tokens": 8, "tokenizer.vocab_size": 400}
SMALL |= {f"model.settings.{key}": size for key, size in SIZES.items()}


def drawn(to: Path | IO[str]) -> None:
    """What a figure is saved as: nothing, which is sooner done."""
    if isinstance(to, Path):
        to.write_bytes(b"")


@pytest.mark.usefixtures("quick", "one_thread")
def test_every_block_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hf_mlnmt.training.callbacks.DrawCurves.draw", lambda *ignored: None)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, to, **how: drawn(to))
    Path("published").symlink_to(ROOT / "published")
    scope: dict = {}
    for block in blocks(PAGE, "python", "bash"):
        text = re.sub(r"\b(20_000|500|501)\b", lambda match: FEWER[match[1]], block.text)
        if block.language == "python":
            exec(compile(text, f"{PAGE.name}, line {block.line}", "exec"), scope)
        elif "hf-mlnmt" not in text:
            subprocess.run(["bash", "-ec", text], check=True)
        else:
            said = ""
            for one in commands(block):
                if one.words[0] == "echo":
                    said = f"{one.words[1]}\n"
                    continue
                assert one.words[0] == "hf-mlnmt"
                small = [f"--set={key}={value}" for key, value in SMALL.items() if one.words[1] == "train"]
                small += ["--trials=10", "--bootstrap=10"] * (one.words[1] == "compare")
                done = CliRunner().invoke(app, [*one.words[1:], *small], input=said)
                assert done.exit_code == 0, (one, done.output, done.exception)
    assert 'msgstr "Die Datei konnte nicht geöffnet werden."' in Path("de.po").read_text("utf-8")
    lines = {name: len(Path(name).read_text("utf-8").splitlines()) for name in ("train.en", "test.out.de", "greedy.de")}
    assert lines == {"train.en": 380, "test.out.de": 20, "greedy.de": 20}
    for made in ("runs/first/average", "scores.json", "comparison/README.md", "comparison.html", "my-model/README.md"):
        assert Path(made).exists(), made
    assert capsys.readouterr().out
