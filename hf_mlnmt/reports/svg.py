"""Plots as SVG text for pages: points with intervals, lines, maps. Colours are the page's: classes s0 to s6, m0 to m3.

Every text is escaped; every mark has a <title>, which a browser shows under the pointer and a screen reader reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

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
    ends = [end for point in points.values() for end in point if end is not None]
    scale = Scale(min(ends), max(ends), left, WIDTH - 14)
    height = 20 * len(points) + 40
    parts = []
    for tick in scale.ticks():
        x = scale(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="6" y2="{height - 34}"/>')
        parts.append(f'<text class="tick mid" x="{x:.1f}" y="{height - 20}">{tick:g}</text>')
    middle = (scale.first + scale.last) / 2
    parts.append(f'<text class="label mid" x="{middle:.0f}" y="{height - 4}">{escape(label)}</text>')
    if baseline is not None and baseline in points:
        x = scale(points[baseline].value)
        parts.append(f'<line class="base" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 34}"/>')
    for number, (name, point) in enumerate(points.items()):
        y = 16 + 20 * number
        told = f"{name}: {point.value:.2f}"
        bar = ""
        if point.low is not None and point.high is not None:
            told += f" ({point.low:.2f} to {point.high:.2f})"
            bar = f'<line x1="{scale(point.low):.1f}" x2="{scale(point.high):.1f}" y1="{y}" y2="{y}"/>'
        dot = f'<circle cx="{scale(point.value):.1f}" cy="{y}" r="4"/>'
        parts.append(f'<text class="name" x="{left - 8:.0f}" y="{y + 4}">{escape(_short(name, left))}</text>')
        parts.append(f'<g class="s0">{bar}{dot}<title>{escape(told)}</title></g>')
    return _svg(parts, height, label)


def lines(series: Mapping[str, Mapping[float, float]], label: str, x_label: str, names: Sequence[str] = ()) -> str:
    """Draws a line for each series over numbers, or over the places 0, 1, ... that have `names`."""
    xs = sorted({x for points in series.values() for x in points})
    ys = [y for points in series.values() for y in points.values()]
    if not ys:
        return ""
    height = 250
    margin = LETTER * max(map(len, names)) / 2 if names else 14.0
    across = Scale(xs[0], xs[-1], max(50.0, margin + 4), WIDTH - margin - 4, exact=True)
    up = Scale(min(ys), max(ys), height - 46, 26)
    parts = [f'<text class="label" x="4" y="10">{escape(label)}</text>']
    for tick in up.ticks():
        y = up(tick)
        parts.append(f'<line class="grid" x1="44" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="38" y="{y + 4:.1f}">{tick:g}</text>')
    marks = (
        dict(enumerate(names)) if names else {tick: f"{tick:,g}" for tick in across.ticks() if xs[0] <= tick <= xs[-1]}
    )
    for place, text in marks.items():
        parts.append(f'<text class="tick mid" x="{across(place):.1f}" y="{height - 28}">{escape(text)}</text>')
    parts.append(f'<text class="label mid" x="{WIDTH / 2}" y="{height - 8}">{escape(x_label)}</text>')
    for number, (name, points) in enumerate(series.items()):
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in sorted(points.items()))
        dots = "".join(
            f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3"><title>{escape(name)}: {y:.2f}</title></circle>'
            for x, y in sorted(points.items())
        )
        look = f"s{number % COLOURS} d{number // COLOURS % SHAPES}"
        parts.append(f'<g class="{look}" data-series="{escape(name)}"><polyline points="{path}"/>{dots}</g>')
    return _svg(parts, height, label)


def attention_map(values: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], label: str) -> str:
    """Draws weights 0 to 1 (rows, columns) as squares, the darker the larger."""
    left, top, side = LETTER * max(map(len, rows)) + 10, LETTER * max(map(len, columns)) + 10, 16
    width, height = left + side * len(columns) + 4, top + side * len(rows) + 4
    parts = []
    for number, name in enumerate(columns):
        x = left + side * number + 12
        parts.append(
            f'<text class="tick" transform="translate({x:.1f} {top - 5:.1f}) rotate(-90)">{escape(name)}</text>'
        )
    for y, (name, line) in enumerate(zip(rows, values, strict=True)):
        place = top + side * y
        parts.append(f'<text class="tick end" x="{left - 5:.1f}" y="{place + 12:.1f}">{escape(name)}</text>')
        for x, weight in enumerate(line):
            told = f"{name} to {columns[x]}: {weight:.3f}"
            parts.append(
                f'<rect class="cell" x="{left + side * x:.1f}" y="{place:.1f}" width="{side - 1}" height="{side - 1}" '
                f'fill-opacity="{max(0.0, min(1.0, weight)):.3f}"><title>{escape(told)}</title></rect>'
            )
    return _svg(parts, height, label, width)


class Scale:
    """A scale from numbers to places: low and high, widened to round ones unless `exact`, to first and last."""

    def __init__(self, low: float, high: float, first: float, last: float, exact: bool = False) -> None:
        if low == high and not exact:
            low, high = low - 1, high + 1
        self.step = _step(high - low)
        self.low = low if exact else floor(low / self.step) * self.step
        self.high = high if exact else ceil(high / self.step) * self.step
        self.first, self.last = first, last

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.first + share * (self.last - self.first)

    def ticks(self) -> list[float]:
        """Returns round numbers from low to high."""
        first = ceil(self.low / self.step - 1e-9)
        count = floor(self.high / self.step + 1e-9) - first + 1
        return [round((first + number) * self.step, 10) for number in range(count)]


def _step(span: float) -> float:
    """Returns 1, 2 or 5 times a power of ten, so that four to nine of them make the span."""
    if span <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(span / 4))
    return next(unit * factor for factor in (5, 2, 1) if unit * factor <= span / 4 * (1 + 1e-9))


def _short(name: str, room: float) -> str:
    letters = int((room - 10) / LETTER)
    return name if len(name) <= letters else f"…{name[-letters + 1 :]}"


def _svg(parts: Sequence[str], height: float, label: str, width: float = WIDTH) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width * 1.5:.0f}px"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
