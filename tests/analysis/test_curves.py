"""Training curves from metrics.jsonl."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hf_mlnmt import UserError
from hf_mlnmt.analysis.curves import _names, _scores, draw, read_metrics, series
from hf_mlnmt.analysis.figures import COLOURS


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / "one"
    folder.mkdir()
    lines = [{"step": 5, "loss": 3.0, "learning_rate": 0.1}, {"step": 8, "loss": None, "learning_rate": 0.2}]
    lines += [{"step": 8, "eval_loss": 2.0, "eval_perplexity": 7.4, "eval_bleu": 12.0, "samples": []}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_series(run):
    metrics = read_metrics(run)
    assert series(metrics, "loss") == ([5], [3.0])
    assert series(metrics, "learning_rate") == ([5, 8], [0.1, 0.2])
    assert series(metrics, "eval_bleu") == ([8], [12.0])
    assert series(metrics, "nothing") == ([], [])
    assert _scores([metrics]) == ["eval_bleu"]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture(run, tmp_path, suffix, start):
    path = draw([run], tmp_path / f"curves{suffix}")
    assert path.read_bytes().startswith(start)


def test_what_several_runs_show(run, tmp_path):
    """Names in the legend, colours of one palette, a panel for each score; an SVG keeps it as text."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        text = draw([run, run], tmp_path / "two.svg", ["baseline", "other"]).read_text()
    for word in ("baseline, training", "other, development", "loss per token", "dev BLEU", "learning rate"):
        assert f">{word}<" in text
    assert "perplexity" not in text
    assert all(colour.lower() in text for colour in COLOURS[:2])
    assert COLOURS[2].lower() not in text


def test_names():
    assert _names(["runs/a", "runs/b"]) == ["a", "b"]
    assert _names(["x/a", "y/a"]) == ["x/a", "y/a"]


def test_mistakes(run, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"metrics.jsonl: cannot be read .*Give folders"):
        draw([tmp_path], tmp_path / "x.png")
    with pytest.raises(UserError, match=r"ends in \.png"):
        draw([run], tmp_path / "x.gif")
    (run / "metrics.jsonl").write_text('{"step": 1}\nhalf')
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2: not a JSON object"):
        read_metrics(run)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match="pip install"):
        draw([run], tmp_path / "x.png")
