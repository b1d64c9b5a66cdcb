"""metrics.jsonl, sample translations, curves.png, the bar and the table at the end: what a run shows of itself."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from unittest import mock

import pytest
from helpers.tiny_run import killed, run, write_recipe
from rich.console import Console
from transformers import TrainerControl, TrainerState

from hf_mlnmt.training import run_recipe
from hf_mlnmt.training.callbacks import DrawCurves, WriteMetrics, lines_until

pytestmark = pytest.mark.usefixtures("one_thread")
SPEEDS = ("steps_per_second", "target_tokens_per_second")


def metrics(output: Path) -> list[dict]:
    """The lines, without what no two runs have in common."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in SPEEDS} for line in lines]


def test_a_line_for_each_log_and_evaluation(whole):
    """Logs every 5 steps and at each checkpoint, evaluations every 4."""
    lines = metrics(whole[0])
    assert [line["step"] for line in lines if "loss" in line] == [4, 5, 8, 10, 12, 15, 16, 20]
    assert [line["step"] for line in lines if "eval_loss" in line] == [4, 8, 12, 16, 20]
    assert all({"loss", "learning_rate", "grad_norm", "epoch"} <= line.keys() for line in lines if "loss" in line)
    dev = json.loads((whole[0] / "results.json").read_text())["dev"]
    written = [{key: line[key] for key in each} for line, each in zip([x for x in lines if "eval_loss" in x], dev)]
    assert written == dev
    first = json.loads((whole[0] / "metrics.jsonl").read_text().splitlines()[0])
    assert first["target_tokens_per_second"] > 0


def test_every_step_is_in_one_mean(data, plain, tmp_path):
    """The mean loss of a line is over the steps since the line before, whatever was between them."""
    folder, recipe = plain
    run(recipe, data, tmp_path / "run", settings=["logging.every=1"])
    single = {line["step"]: line["loss"] for line in metrics(tmp_path / "run") if "loss" in line}
    assert list(single) == list(range(1, 21))
    before = 0
    for line in (line for line in metrics(folder) if "loss" in line):
        steps = range(before + 1, line["step"] + 1)
        assert line["loss"] == pytest.approx(sum(single[step] for step in steps) / len(steps), rel=1e-5)
        before = line["step"]


def test_a_killed_run_has_the_same_lines(whole, data, tmp_path):
    """What was written after the last checkpoint goes, also a line cut in half, and comes again."""
    folder, recipe, _ = whole
    output = killed(folder, tmp_path / "run", 20, 16)
    lines = (output / "metrics.jsonl").read_text().splitlines(keepends=True)
    (output / "metrics.jsonl").write_text("".join(lines[:-1]) + '{"step": 20, "lo')
    run(recipe, data, output)
    assert metrics(output) == metrics(folder)


def test_three_sentences_are_shown_again_and_again(whole, data, tmp_path):
    folder, _, text = whole
    samples = [line["samples"] for line in metrics(folder) if "samples" in line]
    assert len(samples) == 5
    shown = [(sample["source"], sample["reference"]) for sample in samples[0]]
    assert len(set(shown)) == 3
    assert all([(sample["source"], sample["reference"]) for sample in each] == shown for each in samples)
    pairs = list(zip((data / "val.en").read_text().splitlines(), (data / "val.de").read_text().splitlines()))
    assert set(shown) <= set(pairs)
    for each in samples:
        for sample in each:
            assert f"  source     {sample['source']}\n  reference  {sample['reference']}\n  output" in text
    other = [WriteMetrics(tmp_path, FakeDev(), seed, print).chosen for seed in range(5)]
    assert len({tuple(chosen) for chosen in other}) > 1


class FakeDev:
    """Ten sentences and their translations."""

    dataset = range(10)
    sources = references = translations = [str(number) for number in range(10)]


def log(callback, **logs) -> None:
    state = TrainerState(global_step=3, epoch=0.5, is_world_process_zero=True)
    callback.on_log(None, state, TrainerControl(), logs)


def test_what_is_written(tmp_path):
    """No NaN, which is no JSON; not the summary at the end of a training; characters as they are."""
    dev = FakeDev()
    callback = WriteMetrics(tmp_path, dev, 1, lambda text: None)
    log(callback, loss=1.5, grad_norm=float("nan"))
    log(callback, train_runtime=3.0, train_loss=1.0)
    dev.translations = ["Grüße"] * 10
    log(callback, eval_loss=2.5)
    dev.translations = []
    log(callback, eval_loss=2.5)
    text = (tmp_path / "metrics.jsonl").read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert lines[0] == {"step": 3, "epoch": 0.5, "loss": 1.5, "grad_norm": None}
    assert [list(line) for line in lines[1:]] == [
        ["step", "epoch", "eval_loss", "samples"],
        ["step", "epoch", "eval_loss"],
    ]
    assert "Grüße" in text
    assert lines_until(tmp_path / "metrics.jsonl", 2) == []
    assert len(lines_until(tmp_path / "metrics.jsonl", 3)) == 3
    assert lines_until(tmp_path / "nothing", 3) == []


def test_curves_are_drawn_at_the_end_and_never_stop_a_training(whole, tmp_path):
    assert (whole[0] / "curves.png").read_bytes().startswith(b"\x89PNG")
    said: list[str] = []
    DrawCurves(tmp_path, said.append).on_train_end(None, TrainerState(is_world_process_zero=True), TrainerControl())
    assert "curves.png was not drawn" in said[0]


def test_a_bar_with_the_time_left_on_a_terminal(data, tmp_path):
    """Elsewhere lines: the other tests."""
    text = io.StringIO()
    console = Console(file=text, width=160, force_terminal=True, color_system=None)
    recipe = write_recipe(tmp_path / "recipe.yaml", scores=False, budget={"steps": 6})
    with mock.patch.object(DrawCurves, "draw"):
        run_recipe(recipe, data, tmp_path / "run", console=console)
    assert re.search(r"training .*6/6 0:00:\d\d left 0:00:\d\d", text.getvalue())
