"""Training curves from metrics.jsonl."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.evaluation.curves import DIFFER, curves_study, dev_scores, draw, figure, in_words, read_metrics, series
from hf_mlnmt.evaluation.figures import COLOURS

pytest.importorskip("matplotlib")


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
    assert dev_scores([metrics]) == ["eval_bleu"]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture(run, tmp_path, suffix, start):
    path = draw(run, tmp_path / f"curves{suffix}")
    assert path.read_bytes().startswith(start)


def test_what_several_runs_show(run, tmp_path):
    """Names in the legend, colours of one palette, a panel for each score; an SVG keeps it as text."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure(dict.fromkeys(("baseline", "other"), read_metrics(run))).savefig(tmp_path / "two.svg")
    text = (tmp_path / "two.svg").read_text()
    for word in ("baseline, training", "other, development", "loss per token", "dev BLEU", "learning rate"):
        assert f">{word}<" in text
    assert "perplexity" not in text
    assert all(colour.lower() in text for colour in COLOURS[:2])
    assert COLOURS[2].lower() not in text


def test_curves_in_words():
    """What a card says of the picture: the loss and the scores, means where there are several sets."""
    dev = [
        {"step": 9, "eval_loss": 3.0, "eval_bleu": 1.0, "eval_x": 1.0},
        {"step": 1200, "eval_loss": 2.0, "eval_bleu": 2.5},
    ]
    changes = "dev loss 3.00 at step 9, 2.00 at step 1,200; dev BLEU 1.00 at step 9, 2.50 at step 1,200"
    assert in_words(dev) == f"Training curves over optimizer steps; {changes}"
    several = [
        {**line, "eval_de_loss": 5.0, "eval_mean_loss": 4.0, "eval_mean_bleu": 7.0, "eval_de_bleu": 8.0} for line in dev
    ]
    assert "dev loss 4.00 at step 9" in in_words(several)
    assert in_words(several).endswith(
        "dev BLEU 7.00 at step 9, 7.00 at step 1,200; each the mean of all development sets"
    )
    assert in_words([]) == "Training curves over optimizer steps"


def test_what_a_loss_is_made_of_is_said():
    """The one that is logged is a sum over tasks or decoders; and training's is not what the dev loss is."""
    parts = {"loss_de": 4.0, "loss_de_translation": 4.0, "loss_fr": 5.0, "loss_fr_translation": 5.0}
    loss = figure(
        {"many": [{"step": 1, "loss": 9.0, "learning_rate": 0.1, **parts}, {"step": 1, "eval_loss": 2.0}]}
    ).axes[0]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training, mean of 2 tasks", "development"]
    assert loss.get_title("left") == DIFFER
    alone = figure({"one": [{"step": 1, "loss": 9.0, "learning_rate": 0.1, "loss_translation": 9.0}]}).axes[0]
    assert alone.get_legend().get_texts()[0].get_text() == "training"
    assert [line.get_ydata().tolist() for line in loss.lines] == [[4.5], [2.0]]
    auxiliary = {"loss": 9.0, "loss_translation": 4.0, "loss_auxiliary_1": 5.0}
    assert figure({"ms-1": [{"step": 1, **auxiliary}]}).axes[0].lines[0].get_ydata().tolist() == [4.0]


def test_a_score_of_many_sets_is_one_panel():
    """A line for each, and a thick one for their mean: else a model of twelve directions has sixteen panels."""
    scores = {"eval_loss": 3.0, "eval_de-en_loss": 2.0, "eval_mean_loss": 2.5}
    scores |= {"eval_bleu": 20.0, "eval_de-en_bleu": 21.0, "eval_mean_bleu": 20.5, "eval_exact_match": 7.0}
    lines = [{"step": step, "learning_rate": 0.1, **scores} for step in (1, 2)]
    loss, bleu, match, rate = figure({"one": lines}).axes
    assert [line.get_ydata().tolist()[0] for line in (*loss.lines, *bleu.lines)] == [2.5, 20.5]
    assert [bleu.get_title("left"), match.get_title("left")] == ["the mean of all sets", ""]
    assert [axis.get_ylabel() for axis in (bleu, match, rate)] == ["dev BLEU", "dev exact_match", "learning rate"]
    assert len(figure({"one": lines, "two": lines}).axes[1].lines) == 2


def write(folder: Path, *lines: dict) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_study_has_every_number_and_the_best_score(tmp_path):
    """The best BLEU is the largest, the best TER the smallest, each with its own step; samples stay in the run."""
    lines = [{"step": 2, "epoch": 0.5, "loss": 3.0, "target_tokens_per_second": 70.0}]
    scores = [(4, 10.0, 60.0), (6, 12.0, 55.0), (8, 11.0, 58.0)]
    lines += [{"step": s, "epoch": s / 4, "eval_loss": 9.0 - s, "eval_bleu": b, "eval_ter": t} for s, b, t in scores]
    lines[1]["samples"] = [{"source": "x"}]
    study = curves_study({"one": lines}, "epoch")
    assert study.summary == [
        {
            "run": "one",
            "step": 8,
            "training loss": 3.0,
            "dev loss": 1.0,
            "best dev BLEU": "12.00 at 6",
            "best dev TER": "55.00 at 6",
        }
    ]
    assert [row["step"] for row in study.rows] == [2, 4, 6, 8]
    assert not any("samples" in row for row in study.rows)
    axes = study.figures["curves"].axes
    assert [axis.get_ylabel() for axis in axes] == [
        "loss per token", "dev BLEU", "dev TER", "target tokens / s"
    ]  # fmt: skip
    assert axes[1].lines[0].get_xydata().tolist() == [[1.0, 10.0], [1.5, 12.0], [2.0, 11.0]]
    assert axes[-1].get_xlabel() == "epoch"
    with pytest.raises(UserError, match="expected step or epoch"):
        curves_study({"one": lines}, "hours")


def test_many_runs_are_told_apart(run):
    """27 runs: no two with one colour and one marker, each once in a legend below the panels."""
    metrics = read_metrics(run)
    figure = curves_study({f"run {number}": metrics for number in range(27)}).figures["curves"]
    drawn = [line for line in figure.axes[1].lines if line.get_marker() != "None"]
    assert len({(line.get_color(), line.get_marker()) for line in drawn}) == 27
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"run {number}" for number in range(27)]


def test_the_command(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = CliRunner().invoke(app, ["analyse", "curves", f"first={run}", "second=one", "-o", "out"]).output
    assert "12.00 at 8" in text
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"curves.png", "curves.svg", "curves.csv", "curves.json"}
    table = list(csv.DictReader((tmp_path / "out" / "curves.csv").open()))
    assert [(row["run"], row["step"], row["loss"]) for row in table][:2] == [("first", "5", "3.0"), ("first", "8", "")]
    assert len(table) == 6


def test_a_line_that_is_being_written_is_left_out(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "lo')
    assert [line["step"] for line in read_metrics(run)] == [5, 8, 8]


def test_mistakes(run, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"metrics.jsonl: cannot be read .*Give folders"):
        draw(tmp_path, tmp_path / "x.png")
    for text, message in [
        ('{"step": 1}\nhalf\n', "metrics.jsonl, line 2: not a JSON object"),
        ('{"step": 1}\n[1]\n', "metrics.jsonl, line 2: expected a JSON object"),
        ('{"step": 1}\n{"step": "2"}\n', 'metrics.jsonl, line 2: step: expected a number, not "2"'),
        ('{"step": 1, "loss": "low"}\n', 'metrics.jsonl, line 1: loss: expected a number, not "low"'),
        ('{"step": 1, "eval_bleu": {}}\n', "metrics.jsonl, line 1: eval_bleu: expected a number"),
        ("[" * 100_000 + "\n", "metrics.jsonl, line 1: not a JSON object"),
        ("", "nothing is logged yet"),
    ]:
        (run / "metrics.jsonl").write_text(text)
        with pytest.raises(UserError, match=message):
            read_metrics(run)
    (run / "metrics.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(UserError, match="cannot be read"):
        read_metrics(run)
    write(run, {"step": 1, "loss": 1.0})
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match="pip install"):
        draw(run, tmp_path / "x.png")
