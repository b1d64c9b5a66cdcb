"""Draws training curves of runs from their metrics.jsonl: losses, dev scores, learning rate and speed.

Colours are those of figures.py, which colour-blind people can distinguish; runs differ in their markers too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_path, misfit
from hf_mlnmt.evaluation.figures import COLOURS, MARKERS, Study, new_figure

FILE = "metrics.jsonl"
SPEED = "target_tokens_per_second"
LABELS = {"loss": "loss per token", "learning_rate": "learning rate", SPEED: "target tokens / s"}
LABELS |= {"eval_bleu": "dev BLEU", "eval_chrf": "dev chrF", "eval_ter": "dev TER"}
AXES = {"step": "optimizer step", "epoch": "epoch"}
DIFFER = (
    "training: mean since the point before, with dropout, and label smoothing where it is used\n"
    "development: without dropout and smoothing"
)
INSIDE = 3  # largest number of runs for which the legend is inside of the first panel

Series = tuple[list[float], list[float]]  # numbers of steps or epochs, and the values there
Metrics = Sequence[Mapping[str, Any]]
"""The lines of a run's metrics.jsonl."""
Look = tuple[str, Metrics, dict[str, Any]]
"""A run's name, its metrics, and matplotlib's options for its thick line."""


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """Reads the lines of a run's metrics.jsonl, except a last line that is not written to its end. Raises: UserError
    for a missing or empty file, or a broken line."""
    path = Path(run) / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}). Give folders that `hf-mlnmt train` made.") from error
    metrics = []
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            if not line.endswith("\n"):
                break  # the training is writing this line, or was killed while it wrote
            raise UserError(f"{path}, line {number}: not a JSON object ({error}).") from error
        if problem := misfit(content, {"step": float, "samples?": list, ...: (None, float)}):
            raise UserError(f"{path}, line {number}: {problem}")
        metrics.append(content)
    if not metrics:
        raise UserError(f"{path}: nothing is logged yet. Wait for the first line, or lower the recipe's logging.every.")
    return metrics


def series(metrics: Metrics, key: str, over: str = "step") -> Series:
    """Returns the steps (or epochs, by `over`) at which the value `key` was logged, and the values."""
    points = [(line[over], line[key]) for line in metrics if line.get(key) is not None and line.get(over) is not None]
    return [where for where, _ in points], [value for _, value in points]


def draw(run: str | Path, path: Path) -> Path:
    """Draws a run's curves over optimizer steps (`figure`), writes the figure to `path`, and returns `path`. Raises:
    UserError without matplotlib or metrics."""
    with atomic_path(path) as temporary:
        figure({Path(run).name: read_metrics(run)}).savefig(temporary, format=path.suffix[1:], dpi=120)
    return path


def curves_study(runs: Mapping[str, Metrics], over: str = "step") -> Study:
    """Returns a study with all numbers that the runs logged as rows, the figure, and a summary of each run.

    over: "step" or "epoch", the figure's x axis. Raises: UserError for another value of `over`.
    """
    if over not in AXES:
        raise UserError(f"curves over {over!r}: expected {' or '.join(AXES)}.")
    rows = [
        {"run": name, **{key: line[key] for key in line if key != "samples"}} for name in runs for line in runs[name]
    ]
    summary = [_summary(name, lines) for name, lines in runs.items()]
    return Study("curves", rows, summary, {"curves": figure(runs, over)})


def _summary(name: str, lines: Metrics) -> dict[str, Any]:
    """Returns a run's last step, its last losses, and the best of each dev score with its step."""
    row: dict[str, Any] = {"run": name, "step": max(line["step"] for line in lines)}
    for key in ("loss", "eval_loss"):
        _, values = series(lines, key)
        row["training loss" if key == "loss" else "dev loss"] = values[-1] if values else None
    for key in dev_scores([lines]):
        steps, values = series(lines, key)
        if values:
            best = (min if key == "eval_ter" else max)(range(len(values)), key=values.__getitem__)
            row[f"best {label(key)}"] = f"{values[best]:.2f} at {steps[best]:,}"
    return row


def figure(runs: Mapping[str, Metrics], over: str = "step") -> Any:
    """Draws the curves of runs {name: lines of metrics.jsonl}, panels one below the other; returns the figure."""
    scores = scores_of_sets(runs.values())
    last = [key for key in ("learning_rate", SPEED) if any(series(lines, key)[0] for lines in runs.values())]
    panels = ["loss", *scores, *last]
    heights = [2.0 if key == "loss" else 0.7 if key in last else 1.2 for key in panels]
    many = len(runs) > INSIDE
    drawn = new_figure(7.5, 1.0 + 1.7 * sum(heights) + (0.1 * len(runs) if many else 0))
    axes = drawn.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    looks: list[Look] = []
    for number, (name, lines) in enumerate(runs.items()):  # no two runs have both colour and marker in common
        marker = MARKERS[(number if len(runs) <= len(COLOURS) else number // len(COLOURS)) % len(MARKERS)]
        look = {"color": COLOURS[number % len(COLOURS)], "marker": marker, "markersize": 4, "linewidth": 1.8}
        looks.append((name, lines, look))
    for axis, key in zip(axes, panels):
        if key == "loss":
            _draw_losses(axis, looks, over)
        elif key in scores:
            _draw_scores(axis, key, scores[key], looks, over)
        else:
            for _, lines, look in looks:
                axis.plot(*series(lines, key, over), color=look["color"], linewidth=1.2)
            axis.set_ylabel(LABELS[key])
            if key == SPEED:
                axis.set_ylim(bottom=0)  # the axis starts at 0: half the speed is half as high
        axis.grid(alpha=0.3, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(AXES[over])
    axes[-1].xaxis.set_major_formatter("{x:,.0f}" if over == "step" else "{x:g}")
    drawn.align_ylabels(axes)
    handles, names = axes[0].get_legend_handles_labels()
    if many:
        drawn.legend(handles, names, loc="outside lower center", frameon=False, fontsize=8, ncols=3)
    elif names:
        axes[0].legend(frameon=False, fontsize=9, loc="upper right")
    return drawn


def _draw_losses(axis: Any, runs: Sequence[Look], over: str) -> None:
    """Draws each run's training loss as a thin line, and its loss on the development sets as a thick line."""
    many = len(runs) > INSIDE
    for name, lines, look in runs:
        training, lines = _training(lines)
        mean = bool(series(lines, "eval_mean_loss")[0])
        dev = "development, mean of all sets" if mean else "development"
        run = f"{name}, " if len(runs) > 1 else ""
        if (points := series(lines, "loss", over))[0]:
            thin = None if many else f"{run}{training}"
            axis.plot(*points, color=look["color"], alpha=0.55, linewidth=1.0, label=thin)
        points = series(lines, "eval_mean_loss" if mean else "eval_loss", over)
        axis.plot(*points, **look, label=name if many else f"{run}{dev}")
    axis.set_title(DIFFER, loc="left", fontsize=8)
    axis.set_ylabel(LABELS["loss"] + "\n(thin: training)" * many)


def _training(lines: Metrics) -> tuple[str, Metrics]:
    """Returns the legend of a run's training loss, and its lines with the loss to draw as "loss".

    With several tasks or auxiliary decoders the logged "loss" is a sum; instead the translation's loss alone is drawn,
    or, without one, the mean of the tasks' losses.
    """
    parts = {key for line in lines for key in line if key.startswith("loss_")}
    whole = sorted(key for key in parts if not any(key.startswith(f"{other}_") for other in parts))
    if len(whole) < 2:
        return "training", lines
    drawn = ["loss_translation"] if "loss_translation" in whole else whole
    values = [[line[key] for key in drawn if line.get(key) is not None] for line in lines]
    lines = [{**line, "loss": sum(each) / len(each) if each else None} for line, each in zip(lines, values)]
    return "training, translation alone" if len(drawn) == 1 else f"training, mean of {len(drawn)} tasks", lines


def _draw_scores(axis: Any, metric: str, sets: Mapping[str, str], runs: Sequence[Look], over: str) -> None:
    """Draws a score of each run as a thick line: the mean of all development sets if it is logged, else the first set.

    sets: {development set: key of metrics.jsonl}.
    """
    for _, lines, look in runs:
        axis.plot(*series(lines, sets.get("mean", sets.get("", next(iter(sets.values())))), over), **look)
    if len(sets) > 1:
        axis.set_title("the mean of all sets" if "mean" in sets else "the first set", loc="left", fontsize=8)
    axis.set_ylabel(label(f"eval_{metric}"))


def dev_scores(metrics: Iterable[Metrics]) -> list[str]:
    """Returns the keys of metrics.jsonl that are scores on development sets: no losses, perplexities or times."""
    keys = dict.fromkeys(key for lines in metrics for line in lines for key in line if key.startswith("eval_"))
    return [key for key in keys if not key.endswith(("loss", "perplexity", "_per_second", "runtime"))]


def scores_of_sets(metrics: Iterable[Metrics]) -> dict[str, dict[str, str]]:
    """Returns {metric: {development set: key of metrics.jsonl}}; the first set is "", the mean of several "mean"."""
    metrics = list(metrics)
    keys = {key for lines in metrics for line in lines for key in line}
    sets = {key[len("eval_") : -len("_loss")] for key in keys if key.startswith("eval_") and key.endswith("_loss")}
    found: dict[str, dict[str, str]] = {}
    for key in dev_scores(metrics):
        name = key.removeprefix("eval_")
        of = next((each for each in sets if name.startswith(f"{each}_")), "")
        found.setdefault(name.removeprefix(f"{of}_"), {})[of] = key
    return found


def in_words(dev: Metrics) -> str:
    """Describes a run's curves in words (for alt texts): first and last loss and scores on the development set."""
    scores = scores_of_sets([dev])
    mean = "mean" in scores.get("bleu", {})
    keys = {"dev loss": "eval_mean_loss" if mean else "eval_loss"}
    keys |= {label(f"eval_{x}"): of.get("mean", of.get("", "")) for x, of in scores.items() if f"eval_{x}" in LABELS}
    changes = []
    for name, key in keys.items():
        steps, values = series(dev, key)
        if len(steps) > 1:
            changes.append(f"{name} {values[0]:.2f} at step {steps[0]:,}, {values[-1]:.2f} at step {steps[-1]:,}")
    of_all = ["each the mean of all development sets"] if changes and mean else []
    return "; ".join(["Training curves over optimizer steps", *changes, *of_all])


def label(key: str) -> str:
    """Returns the label of a key of metrics.jsonl in figures."""
    return LABELS.get(key, f"dev {key.removeprefix('eval_')}")
