"""Studies (the answer to a question about several systems: rows, a summary, figures), and drawing of their figures.

A study is written as JSON with its settings, as csv of the same rows, and as png and svg of its figures at a paper's
column width: heat maps, curves, bars, and points with intervals.

Colours are those of Okabe and Ito 2008, which colour-blind people can distinguish; series also differ in marker and
line style. Heat maps have viridis, whose lightness rises evenly, and numbers in the cells where there is room.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from textwrap import wrap
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_path, file_name, write_json, write_text
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.results import versions

COLUMN, PAGE = 3.35, 6.9
"""Widths in inches: one column of a two-column paper, and both."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
STYLE: dict[str, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize", "figure.titlesize", "axes.labelsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7),
    "axes.linewidth": 0.6,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon", "figure.autolayout"), False),
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "svg.hashsalt": "hf_mlnmt",  # fixed ids, so that drawing a figure again writes the same file
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Panel:
    """A heat map: `values` (rows, columns), None for an empty cell, and names of rows and columns."""

    title: str
    values: Sequence[Sequence[float | None]]
    rows: Sequence[str]
    columns: Sequence[str]


def heat_maps(
    panels: Sequence[Panel],
    row_label: str,
    column_label: str,
    label: str,
    numbers: bool = True,
    low: float | None = None,
) -> Any:
    """Draws heat maps in rows as wide as the page, with one colour scale; returns the figure.

    numbers: write the values into the cells. low: lower end of the scale; None: the smallest value.
    """
    values = [value for panel in panels for row in panel.values for value in row if value is not None]
    least, most = (min(values) if low is None else low), max(values)
    widest, highest = max(len(p.columns) for p in panels), max(len(p.rows) for p in panels)
    cell, margin = (0.34, 0.45) if numbers else (0.16, 0.75)
    across = max(1, min(len(panels), int((PAGE - 0.7) // (widest * cell + margin))))
    down = ceil(len(panels) / across)
    width = max(COLUMN, across * (widest * cell + margin) + 0.7)
    with style():
        figure = new_figure(width, down * (highest * (0.24 if numbers else cell) + (0.7 if numbers else 1.0)))
        axes = figure.subplots(down, across, squeeze=False).flatten()
        for axis, panel in zip(axes, panels):
            grid = [[float("nan") if value is None else value for value in row] for row in panel.values]
            image = axis.imshow(grid, vmin=least, vmax=most, cmap="viridis", aspect="auto")
            axis.set_title(panel.title)
            axis.set_xticks(range(len(panel.columns)), panel.columns, rotation=0 if numbers else 90)
            axis.set_yticks(range(len(panel.rows)), panel.rows)
            axis.tick_params(length=0)
            axis.spines[:].set_visible(False)
            if numbers:
                _write_numbers(axis, panel, least, most)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        figure.supxlabel(column_label, fontsize=8)
        figure.supylabel(row_label, fontsize=8)
        figure.suptitle(label)  # beside the colour bar this label would be cut off
        figure.colorbar(image, ax=axes.tolist(), pad=0.02, aspect=25)
    return figure


def _write_numbers(axis: Any, panel: Panel, least: float, most: float) -> None:
    digits = 1 if most >= 2 else 2
    for y, row in enumerate(panel.values):
        for x, value in enumerate(row):
            if value is not None:
                colour = "white" if value - least < 0.6 * (most - least) else "black"
                axis.text(x, y, f"{value:.{digits}f}", ha="center", va="center", fontsize=6, color=colour)


def curves(panels: Mapping[str, Mapping[str, Mapping[int, float]]], x_label: str, y_label: str) -> Any:
    """Draws {panel's title: {series: {x: y}}} as lines over whole numbers, panels side by side with the same y axis."""
    series = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    with style():
        legend = 0.17 * ceil(len(series) / 2)
        figure = new_figure(COLUMN if len(panels) == 1 else PAGE, 2.2 + legend)
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True).flatten()
        for axis, (title, lines) in zip(axes, panels.items()):
            for name, points in lines.items():
                axis.plot(list(points), list(points.values()), label=name, **look(series.index(name)))
            axis.set_title(title)
            axis.set_xlabel(x_label)
            axis.set_xticks(sorted({x for points in lines.values() for x in points}))
            axis.grid(axis="y")
        axes[0].set_ylabel(y_label)
        low, high = axes[0].get_ylim()
        axes[0].set_ylim(min(0.0, low), high + 0.03 * (high - min(0.0, low)))  # room for whole markers at the top
        handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels())}
        columns = min(2 if len(panels) == 1 else 4, len(series))
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns)
    return figure


def bars(panels: Mapping[str, Sequence[tuple[str, float, str]]], y_label: str, changes: bool = False) -> Any:
    """Draws {panel's title: [(name, value, sign)]} as horizontal bars; value and sign (†, ‡) are written at each end.

    changes: write a plus before positive values.
    """
    number = "+.2f" if changes else ".2f"
    count = sum(len(entries) for entries in panels.values())
    with style():
        figure = new_figure(COLUMN, 0.6 + 0.21 * count + 0.3 * len(panels))
        heights = [len(entries) + 0.5 for entries in panels.values()]
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights).flatten()
        for axis, (title, entries) in zip(axes, panels.items()):
            places = range(len(entries))
            drawn = axis.barh(places, [value for _, value, _ in entries], color=COLOURS[0], height=0.65)
            axis.bar_label(drawn, [f"{value:{number}}{sign}" for _, value, sign in entries], padding=2, fontsize=6)
            axis.set_yticks(places, [name for name, _, _ in entries])
            axis.invert_yaxis()
            axis.axvline(0, color="black", linewidth=0.6)
            axis.margins(x=0.25)
            axis.set_title(title)
        axes[-1].set_xlabel(y_label)
    return figure


Interval = tuple[float | None, float | None, float | None]


def points(
    panels: Mapping[str, Mapping[str, Sequence[Interval]]],
    names: Sequence[str],
    x_label: str,
    y_label: str,
    levels: tuple[str, Sequence[float]] | None = None,
) -> Any:
    """Draws {panel's title: {series: [(value, low, high) of each name]}} as points with intervals from low to high;
    panels one below the other, the series of a name side by side.

    levels: a label, and for each of `names` a value to compare with, drawn as a grey dash.
    """
    series = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    step = min(0.8 / len(series), 0.22)
    with style():
        letters = sum(max(map(len, name.split("\n"))) + 1 for name in names)
        width = COLUMN if len(names) * len(series) <= 20 and letters * 0.055 < COLUMN - 0.5 else PAGE
        figure = new_figure(width, (2.2 if len(panels) == 1 else 1.9) * len(panels) + 0.5)
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True).flatten()
        for axis, (title, lines) in zip(axes, panels.items()):
            for name, values in lines.items():
                number = series.index(name)
                shift = (number - (len(series) - 1) / 2) * step
                places = [x + shift for x, (value, _, _) in enumerate(values) if value is not None]
                known = [(value, low, high) for value, low, high in values if value is not None]
                below = [0.0 if low is None else max(value - low, 0.0) for value, low, _ in known]
                above = [0.0 if high is None else max(high - value, 0.0) for value, _, high in known]
                how = {**look(number), "linestyle": "none", "elinewidth": 0.8, "capsize": 1.5}
                axis.errorbar(places, [value for value, _, _ in known], yerr=[below, above], label=name, **how)
            if levels is not None:
                axis.plot(range(len(names)), levels[1], "_", color="#777777", markersize=14, label=levels[0], zorder=1)
            axis.set_xticks(range(len(names)), names)
            axis.set_xlim(-0.5, len(names) - 0.5)
            axis.set_title(title)
            axis.set_ylabel(y_label)
            axis.grid(axis="y")
        axes[-1].set_xlabel(x_label)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2 if width == COLUMN else 4)
    return figure


def caption(figure: Any, note: str) -> None:
    """Writes a note above a figure, wrapped to its width, and increases the figure's height by the note's lines."""
    width, height = figure.get_size_inches()
    lines = wrap(note, int(20 * width))
    figure.set_size_inches(width, height + 0.12 * len(lines))
    figure.suptitle("\n".join([*filter(None, [figure.get_suptitle()]), *lines]), fontsize=7)


def save(figure: Any, folder: str | Path, stem: str) -> list[Path]:
    """Writes `stem`.png (300 dots an inch) and `stem`.svg; returns their paths."""
    files: dict[str, Any] = {"png": {"dpi": 300}, "svg": {"metadata": {"Date": None}}}
    with style(), _laid_out(figure):
        for kind, options in files.items():
            with atomic_path(Path(folder) / f"{stem}.{kind}") as temporary:
                figure.savefig(temporary, format=kind, **options)
    return [Path(folder) / f"{stem}.{kind}" for kind in files]


@contextmanager
def _laid_out(figure: Any) -> Iterator[None]:
    """Context manager that computes a figure's layout once, so that saving several files does not compute it again."""
    engine = figure.get_layout_engine()
    engine.execute(figure)
    figure.set_layout_engine(None)
    yield
    figure.set_layout_engine(engine)


def svg_text(figure: Any) -> str:
    """Returns a figure as an <svg> element for an HTML page, with black replaced by the page's text colour."""
    text = io.StringIO()
    with style(), _laid_out(figure):
        about = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=about)
    _, tag, rest = text.getvalue().partition("<svg ")
    plain = re.sub(r'\bxmlns(:\w+)?="[^"]*"|(?<=<g) id="[^"]*"', "", rest)  # ids of two figures may be equal
    return f'{tag}role="img" {plain}'.replace("#000000", "currentColor").strip()


def look(number: int) -> dict[str, Any]:
    """Returns matplotlib's options for colour, marker and line style of series `number`."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number % len(LINES)],
    }


def style() -> Any:
    """Returns a context manager that sets matplotlib's options to STYLE. Raises: UserError without matplotlib."""
    return _matplotlib().rc_context(STYLE)


def new_figure(width: float, height: float) -> Any:
    """Makes an empty figure, in inches. Raises: UserError without matplotlib."""
    return _matplotlib().figure.Figure(figsize=(width, height), layout="constrained")


def _matplotlib() -> Any:
    try:
        import matplotlib.figure  # not pyplot, which needs a display and keeps figures
    except ImportError as error:
        raise UserError("figures need matplotlib: pip install 'hf-mlnmt[analysis]'") from error
    except ValueError as error:  # the variable MPLBACKEND or the file matplotlibrc has a bad value
        raise UserError(f"matplotlib: {error}. Unset MPLBACKEND, or mend matplotlibrc.") from error
    return matplotlib


SCHEMA = "hf_mlnmt.analysis/1"


def write_rows(
    folder: str | Path, stem: str, what: str, rows: Sequence[dict[str, Any]], settings: dict[str, Any], **more: Any
) -> list[Path]:
    """Writes `stem`.json (rows, settings, versions) and `stem`.csv (rows) without rounding; returns the paths."""
    content = {"schema": SCHEMA, "what": what, "settings": settings, "versions": versions(), **more, "rows": list(rows)}
    json_path = write_json(Path(folder) / f"{stem}.json", content)
    return [json_path, write_text(Path(folder) / f"{stem}.csv", to_csv(rows))]


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Returns rows as csv with a column for each key of any row, in the order of first use; None as an empty cell."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def rows_table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Makes a table of rows for the terminal, with numbers of four significant digits."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    numbers = {name for name in names if all(isinstance(row.get(name, 0), (int, float)) for row in rows)}
    columns = [Number(name) if name in numbers else name for name in names]
    return Table(columns, [[_cell(row.get(name)) for name in names] for row in rows], title)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass
class Study:
    """The answer to a question about several systems: numbers, figures and texts, which `write` saves.

    stem: name of the files. rows: all numbers. summary: a few numbers for the terminal. figures: {stem of a file:
    figure}. texts: {file name: text}. note: explains sample, intervals and marks; written above each figure.
    """

    stem: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def of(self, test: str) -> Study:
        """Returns the study with a test set's name added to the names of its rows' and figures' files."""
        figures = {f"{stem}.{file_name(test)}": figure for stem, figure in self.figures.items()}
        return replace(self, stem=f"{self.stem}.{file_name(test)}", figures=figures)

    def write(self, folder: str | Path, settings: dict[str, Any]) -> list[Path]:
        """Writes JSON, csv, png, svg and text files; returns their paths."""
        paths = write_rows(folder, self.stem, self.stem, self.rows, settings)
        for stem, figure in self.figures.items():
            caption(figure, self.note)
            paths += save(figure, folder, stem)
        return paths + [write_text(Path(folder) / name, text) for name, text in self.texts.items()]
