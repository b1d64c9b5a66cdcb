"""Plots as SVG text for pages: points with intervals, and lines. Colours are the page's: classes s0 to s6, d0 to d3.

The elements are in svg.jinja. Every mark has a <title>, which a browser shows under the pointer and a reader reads out.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any, NamedTuple

from hf_mlnmt.reports.tables import template

WIDTH = 440  # units, about the pixels of a phone; wider screens scale it
COLOURS, SHAPES = 7, 4
LETTER = 6.2  # units of a letter's width


class Point(NamedTuple):
    """A value, and its interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


def forest(points: Mapping[str, Point], label: str, baseline: str | None = None) -> str:
    """Draws a row for each name, its value with an interval; a line goes through the baseline's."""
    left = min(190.0, LETTER * max(map(len, points)) + 12)
    scale = Scale([end for point in points.values() for end in point if end is not None], left, WIDTH - 14)
    rows = []
    for name, point in points.items():
        told, places = f"{name}: {point.value:.2f}", [scale(end) for end in point if end is not None]
        if point.low is not None and point.high is not None:
            told += f" ({point.low:.2f} to {point.high:.2f})"
        rows.append((_short(name, left), told, *places, *[None] * (3 - len(places))))
    base = scale(points[baseline].value) if baseline is not None and baseline in points else None
    middle, size = round((left + WIDTH - 14) / 2), (20 * len(points) + 40, WIDTH)
    return str(_plots().forest(label, rows, scale.ticks(), base, round(left - 8), middle, *size))


def lines(series: Mapping[str, Mapping[float, float]], label: str, x_label: str, names: Sequence[str] = ()) -> str:
    """Draws a line for each series over numbers, or over the places 0, 1, ... that have `names`."""
    xs = sorted({x for points in series.values() for x in points})
    ys = [y for points in series.values() for y in points.values()]
    if not ys:
        return ""
    height, margin = 250, LETTER * max(map(len, names)) / 2 if names else 14.0
    across = Scale(xs, max(50.0, margin + 4), WIDTH - margin - 4, exact=True)
    up = Scale(ys, height - 46, 26)
    drawn = [
        (
            name,
            f"s{n % COLOURS} d{n // COLOURS % SHAPES}",
            [(across(x), up(y), f"{y:.2f}") for x, y in sorted(line.items())],
        )
        for n, (name, line) in enumerate(series.items())
    ]
    marks = [(across(place), name) for place, name in enumerate(names)] or across.ticks(",")
    return str(_plots().lines(label, x_label, drawn, up.ticks(), marks, height, WIDTH))


class Scale:
    """A scale from numbers to places: their range, widened to round ones unless `exact`, to first and last."""

    def __init__(self, values: Sequence[float], first: float, last: float, exact: bool = False) -> None:
        low, high = min(values), max(values)
        if low == high and not exact:
            low, high = low - 1, high + 1
        self.step = _step(high - low)
        self.low = low if exact else floor(low / self.step) * self.step
        self.high = high if exact else ceil(high / self.step) * self.step
        self.first, self.last = first, last

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.first + share * (self.last - self.first), 1)

    def ticks(self, form: str = "") -> list[tuple[float, str]]:
        """Returns places and texts of round numbers from low to high."""
        first = ceil(self.low / self.step - 1e-9)
        count = floor(self.high / self.step + 1e-9) - first + 1
        numbers = (round((first + number) * self.step, 10) for number in range(count))
        return [(self(number), f"{number:{form}g}") for number in numbers]


def _step(span: float) -> float:
    """Returns 1, 2 or 5 times a power of ten, so that four to nine of them make the span."""
    if span <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(span / 4))
    return next(unit * factor for factor in (5, 2, 1) if unit * factor <= span / 4 * (1 + 1e-9))


def _short(name: str, room: float) -> str:
    letters = int((room - 10) / LETTER)
    return name if len(name) <= letters else f"…{name[-letters + 1 :]}"


def _plots() -> Any:
    """Returns the macros of the template, which escape every text."""
    return template("svg.jinja", autoescape=True).module
