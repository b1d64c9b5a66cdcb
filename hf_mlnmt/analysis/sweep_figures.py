"""Figures of sweeps: a score over the values of a key, and systems below one another; means and spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hf_mlnmt.analysis.figures import COLOURS, COLUMN, PAGE, look, new_figure, style


class Spread(NamedTuple):
    """Scores of the seeds of one point, their mean, and their standard deviation (None of one seed)."""

    mean: float
    deviation: float | None
    scores: Sequence[float]


def value_curves(panels: Mapping[str, Mapping[str, Mapping[float, Spread]]], x_label: str, y_label: str) -> Any:
    """{panel's title: {series: {x: Spread}}}: means joined by lines, bars of one standard deviation, seeds as dots."""
    series = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    with style():
        legend = 0.17 * len(series) if len(series) > 1 else 0
        figure = new_figure(COLUMN if len(panels) == 1 else PAGE, 2.2 + legend)
        axes = figure.subplots(1, len(panels), squeeze=False).flatten()
        for axis, (title, lines) in zip(axes, panels.items()):
            for name, points in lines.items():
                places, spreads = list(points), list(points.values())
                how = look(series.index(name))
                bars = [spread.deviation or 0.0 for spread in spreads]
                axis.errorbar(places, [spread.mean for spread in spreads], yerr=bars, label=name, capsize=2, **how)
                for place, spread in zip(places, spreads):
                    if len(spread.scores) > 1:
                        axis.plot([place] * len(spread.scores), spread.scores, ".", color=how["color"], markersize=3)
            axis.set_title(title)
            axis.set_xlabel(x_label)
            values = sorted({x for points in lines.values() for x in points})
            axis.set_xticks(values, [f"{value:g}" for value in values])
            axis.grid(axis="y")
        axes[0].set_ylabel(y_label)
        if len(series) > 1:
            handles, names = axes[0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside lower center", ncols=1)
    return figure


def spread_rows(panels: Mapping[str, Mapping[str, Spread]], x_label: str) -> Any:
    """{panel's title: {name: Spread}}: a row for each name, panels side by side: seeds as dots, mean and deviation."""
    names = list(dict.fromkeys(name for rows in panels.values() for name in rows))
    with style():
        longest = max(map(len, names))
        figure = new_figure(max(COLUMN, min(PAGE, 0.065 * longest + 2.4 * len(panels))), 0.8 + 0.19 * len(names))
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True).flatten()
        for axis, (title, rows) in zip(axes, panels.items()):
            for name, spread in rows.items():
                place = names.index(name)
                axis.plot(spread.scores, [place] * len(spread.scores), ".", color=COLOURS[5], markersize=5)
                bar = spread.deviation or 0.0
                axis.errorbar([spread.mean], [place], xerr=[bar], fmt="o", color=COLOURS[0], capsize=2)
            axis.set_yticks(range(len(names)), names)
            axis.set_title(title)
            axis.set_xlabel(x_label)
            axis.grid(axis="x")
        axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure
