"""One HTML file with everything that `hf-mlnmt compare` found; nothing in it is fetched from anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from hf_mlnmt.evaluation.compare import Comparison
from hf_mlnmt.evaluation.report import TITLES, with_arrow
from hf_mlnmt.evaluation.results import versions
from hf_mlnmt.evaluation.scores import MetricName, ProtocolName
from hf_mlnmt.evaluation.significance import LEGEND
from hf_mlnmt.files import write_text
from hf_mlnmt.reports.compare_extras import Extras
from hf_mlnmt.reports.paths import hide_paths
from hf_mlnmt.reports.svg import Point, attention_map, forest, lines
from hf_mlnmt.table import Number, Table

TEMPLATE = "compare.html.jinja"
FIRST_RUN = "Lengths, outputs and sentences are of the first run of each system."
Curves = Mapping[str, Sequence[Mapping[str, Any]]]
"""Of systems whose run is known the lines of its metrics.jsonl."""
Maps = Mapping[str, Mapping[str, Mapping[str, Any]]]


def write_page(
    path: str | Path,
    comparison: Comparison,
    extras: Extras,
    *,
    title: str,
    curves: Curves | None = None,
    maps: Maps | None = None,
) -> Path:
    """Write the page; returns its path. curves: {system: metrics}; maps: of compare_extras.read_maps."""
    return write_text(path, page(comparison, extras, title=title, curves=curves, maps=maps))


def page(
    comparison: Comparison, extras: Extras, *, title: str, curves: Curves | None = None, maps: Maps | None = None
) -> str:
    """The page as text."""
    return _template().render(
        title=hide_paths(title),
        css=_asset("compare.css"),
        js=_asset("compare.js"),
        data=_embedded(_data(comparison, extras)),
        systems=list(extras.outputs),
        sections=[_section(comparison, protocol) for protocol in comparison.scores],
        lengths=_lengths(extras),
        statistics=_statistics(extras),
        curves=_curves(curves or {}),
        maps={name: _maps(systems) for name, systems in (maps or {}).items()},
        notes=[*extras.notes, *([FIRST_RUN] if comparison.several else [])],
        legend=LEGEND,
        settings=_settings(comparison),
    )


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=True
    )
    return environment.get_template(TEMPLATE)


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _embedded(value: Any) -> str:
    """JSON that can stand inside a <script>: no text in it can end the element or begin a comment."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(comparison: Comparison, extras: Extras) -> dict[str, Any]:
    return {
        "systems": list(extras.outputs),
        "source": list(extras.sources) if extras.sources is not None else None,
        "reference": list(extras.references),
        "outputs": {name: list(outputs) for name, outputs in extras.outputs.items()},
        "chrf": {name: [round(score, 1) for score in scores] for name, scores in extras.chrf.items()},
    }


def _section(comparison: Comparison, protocol: ProtocolName) -> dict[str, Any]:
    """Of one protocol: title, table of scores and tests, a plot for each metric, signatures."""
    systems = comparison.scores[protocol]
    first = next(iter(systems.values()))
    plots = {with_arrow(metric): _forest(comparison, protocol, metric) for metric in first.metrics}
    return {
        "name": protocol,
        "title": TITLES[protocol],
        "table": _scores(comparison, protocol).html(),
        "plots": plots,
        "signatures": {name: metric.signature for name, metric in first.metrics.items()},
        "what": _what(comparison),
    }


def _what(comparison: Comparison) -> str:
    if comparison.several:
        runs = len(next(iter(next(iter(comparison.runs.values())).values())))
        return f"mean of {runs} runs ± standard deviation"
    return "score ± half of its 95 % interval"


def _scores(comparison: Comparison, protocol: ProtocolName) -> Table:
    """A row for each system: of every metric the score, difference, p-values, and the first of them corrected."""
    metrics = list(next(iter(comparison.scores[protocol].values())).metrics)
    names = ["difference", "p", *(["Holm"] if len(comparison.tests[protocol]) > 1 else [])]
    names += ["p boot.", "p Welch"] if comparison.several else ["sacreBLEU p boot.", "sacreBLEU p rand."]
    columns = [Number(name) for metric in metrics for name in (with_arrow(metric), *names)]
    rows = []
    for system, scores in comparison.scores[protocol].items():
        cells = [system]
        for metric in metrics:
            point = _point(comparison, protocol, system, metric)
            half = "" if point.low is None or point.high is None else f" ± {(point.high - point.low) / 2:.2f}"
            tested = system in comparison.tests[protocol]
            cells += [f"{point.value:.2f}{half}"]
            cells += _tests(comparison, protocol, system, metric) if tested else [""] * len(names)
        rows.append([*cells, f"{scores.length_ratio:.3f}", str(scores.empty_outputs)])
    return Table(["system", *columns, Number("length ratio"), Number("empty")], rows)


def _tests(comparison: Comparison, protocol: ProtocolName, system: str, metric: MetricName) -> list[str]:
    tests = comparison.tests[protocol]
    tested = tests[system][metric]
    p_values = [tested.approximate_randomisation]
    if len(tests) > 1:
        p_values.append(comparison.corrected(protocol, metric)[system])
    if comparison.several:
        p_values += [tested.paired_bootstrap, tested.welch]
    else:
        theirs = comparison.sacrebleu[protocol].results[system][metric]
        # It gives equal outputs its smallest p.
        known = theirs.difference != 0
        p_values += [theirs.paired_bootstrap, theirs.approximate_randomisation] if known else [None, None]
    return [f"{tested.difference:+.2f}{comparison.marks(protocol, metric)[system]}", *map(_p, p_values)]


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _point(comparison: Comparison, protocol: ProtocolName, system: str, metric: MetricName) -> Point:
    """The score with its interval; of several runs the mean, one standard deviation to each side."""
    if comparison.several:
        mean, deviation = comparison.means(protocol, system, metric)
        return Point(mean, *((mean - deviation, mean + deviation) if deviation is not None else ()))
    one = comparison.scores[protocol][system].metrics[metric]
    return Point(one.score, *(one.ci or ()))


def _forest(comparison: Comparison, protocol: ProtocolName, metric: MetricName) -> str:
    points = {name: _point(comparison, protocol, name, metric) for name in comparison.scores[protocol]}
    return forest(points, f"{metric}, {protocol}: {_what(comparison)}", next(iter(points)))


def _lengths(extras: Extras) -> dict[str, Any] | None:
    """Of each metric a plot over the groups and a table with intervals and counts."""
    if not extras.lengths:
        return None
    groups = list(dict.fromkeys(row["source_length"] for row in extras.lengths))
    counts = {row["source_length"]: row["sentences"] for row in extras.lengths}
    names = [f"{group} ({counts[group]})" for group in groups]
    plots, tables = {}, {}
    for metric in dict.fromkeys(row["metric"] for row in extras.lengths):
        rows = [row for row in extras.lengths if row["metric"] == metric]
        series: dict[str, dict[float, float]] = {}
        cells: dict[str, list[str]] = {}
        for row in rows:
            if row["score"] is not None:
                series.setdefault(row["system"], {})[groups.index(row["source_length"])] = row["score"]
            cells.setdefault(row["system"], []).append(_with_interval(row))
        plots[metric] = lines(series, metric, "words of the source (sentences)", names)
        columns = ["system", *map(Number, names)]
        tables[metric] = Table(columns, [[name, *of] for name, of in cells.items()]).html()
    return {"plots": plots, "tables": tables}


def _with_interval(row: Mapping[str, Any]) -> str:
    if row["score"] is None:
        return "–"
    half = "" if row["low"] is None else f" ± {(row['high'] - row['low']) / 2:.1f}"
    return f"{row['score']:.1f}{half}"


def _statistics(extras: Extras) -> str | None:
    if not extras.statistics:
        return None
    kinds = [key for key in extras.statistics[0] if key not in ("system", "length_ratio")]
    columns = ["system", Number("length ratio"), *(Number(f"{kind.replace('_', ' ')} (%)") for kind in kinds)]
    rows = [
        [str(row["system"]), f"{row['length_ratio']:.3f}", *(f"{100 * row[kind]:.2f}" for kind in kinds)]
        for row in extras.statistics
    ]
    return Table(columns, rows).html()


def _curves(curves: Curves) -> dict[str, str]:
    """{what: plot over steps} of dev scores and losses."""
    keys = dict.fromkeys(key for one in curves.values() for line in one for key in line if key.startswith("eval_"))
    wanted = [key for key in keys if not key.endswith(("perplexity", "_per_second", "runtime"))]
    plots = {}
    for key in wanted:
        series = {
            name: {line["step"]: line[key] for line in one if line.get(key) is not None} for name, one in curves.items()
        }
        label = f"dev {key.removeprefix('eval_')}"
        plots[label] = lines({name: points for name, points in series.items() if points}, label, "optimizer step")
    return {label: plot for label, plot in plots.items() if plot}


def _maps(systems: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {
        name: attention_map(one["values"], one["rows"], one["columns"], f"attention of {name}")
        for name, one in systems.items()
    }


def _settings(comparison: Comparison) -> dict[str, str]:
    settings = {"bootstrap": comparison.bootstrap, "trials": comparison.trials, "seed": comparison.seed}
    found = {name: f"{value:,}" for name, value in settings.items()}
    return found | {"versions": ", ".join(f"{name} {number}" for name, number in versions().items())}
