"""Training curves: losses, dev scores and learning rate of one run or several, from their metrics.jsonl, as a picture.

Colours are those of all figures, which colour-blind people tell apart; runs differ in their markers too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.analysis.figures import COLOURS, MARKERS
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_path

SUFFIXES = (".png", ".svg", ".pdf")
FILE = "metrics.jsonl"
LABELS = {"loss": "loss per token", "learning_rate": "learning rate"}
LABELS |= {"eval_bleu": "dev BLEU", "eval_chrf": "dev chrF", "eval_ter": "dev TER"}

Series = tuple[list[float], list[float]]  # steps, values


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, in the order of their steps.

    Raises: UserError when there is none, or a line of it is broken.
    """
    path = Path(run) / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}). Give folders that `hf-mlnmt train` made."
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not a JSON object ({error}).") from error
    return found


def series(metrics: Sequence[dict[str, Any]], key: str) -> Series:
    """The steps at which a value was written, and the values."""
    points = [(line["step"], line[key]) for line in metrics if line.get(key) is not None]
    return [step for step, _ in points], [value for _, value in points]


def draw(runs: Sequence[str | Path], path: str | Path, names: Sequence[str] | None = None) -> Path:
    """Losses on top, below them each dev score and the learning rate, over optimizer steps; returns the path.

    Args:
        runs: folders with a metrics.jsonl.
        path: the picture: .png, .svg or .pdf.
        names: of the runs, for the legend; the folders' own unless given.

    Raises: UserError if matplotlib is missing, the suffix is another, or a run has no metrics.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: a picture's name ends in {', '.join(SUFFIXES)}")
    try:
        from matplotlib.figure import Figure  # no pyplot: no display is needed, no state is left
    except ImportError as error:
        raise UserError("pictures need matplotlib: pip install 'hf-mlnmt[analysis]'") from error
    metrics = {name: read_metrics(run) for name, run in zip(names or _names(runs), runs, strict=True)}
    panels = ["loss", *_scores(metrics.values()), "learning_rate"]
    heights = [2.0, *(1.2 for _ in panels[1:-1]), 0.7]
    figure = Figure(figsize=(7.5, 1.0 + 1.7 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, key in zip(axes, panels):
        _draw_panel(axis, key, metrics)
        axis.grid(alpha=0.3, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("optimizer step")
    axes[-1].xaxis.set_major_formatter("{x:,.0f}")
    figure.align_ylabels(axes)
    if any(axes[0].get_legend_handles_labels()):
        axes[0].legend(frameon=False, fontsize=9, loc="upper right")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=120)
    return path


def _names(runs: Sequence[str | Path]) -> list[str]:
    """The folders' own names, or their paths where two are the same."""
    short = [Path(run).resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]


def _scores(metrics: Any) -> list[str]:
    """Keys of the dev scores, the loss and what is the same thing left out."""
    keys = dict.fromkeys(key for lines in metrics for line in lines for key in line if key.startswith("eval_"))
    return [key for key in keys if not key.endswith(("loss", "perplexity"))]


def _draw_panel(axis: Any, key: str, metrics: dict[str, list[dict[str, Any]]]) -> None:
    for number, (name, lines) in enumerate(metrics.items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        run = f"{name}, " if len(metrics) > 1 else ""
        dev = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.8}
        if key == "loss":
            # The training's is smoothed by label smoothing where that is used, the dev set's never.
            axis.plot(*series(lines, "loss"), color=colour, alpha=0.55, linewidth=1.0, label=f"{run}training")
            axis.plot(*series(lines, "eval_loss"), **dev, label=f"{run}development")
        elif key == "learning_rate":
            axis.plot(*series(lines, key), color=colour, linewidth=1.2)
        else:
            axis.plot(*series(lines, key), **dev)
    axis.set_ylabel(LABELS.get(key, f"dev {key.removeprefix('eval_')}"))
