"""The results of a sweep: every run's scores, means and standard deviations over seeds, as rows, table and figures."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hf_mlnmt.analysis import figures
from hf_mlnmt.analysis.figures import COLOURS, COLUMN, PAGE, look, new_figure, style
from hf_mlnmt.analysis.study import write_rows
from hf_mlnmt.evaluation.results import read_results
from hf_mlnmt.evaluation.scores import with_arrow
from hf_mlnmt.files import read_json
from hf_mlnmt.model_folder import RESULTS
from hf_mlnmt.reports.comparison_page import mean_text
from hf_mlnmt.reports.tables import scores_of
from hf_mlnmt.table import Number, Table
from hf_mlnmt.training.sweep import Job, State, as_yaml


class Spread(NamedTuple):
    """Scores of the seeds of one point, their mean, and their standard deviation (None of one seed)."""

    mean: float
    deviation: float | None
    scores: Sequence[float]


def value_curves(panels: Mapping[str, Mapping[str, Mapping[float, Spread]]], x_label: str, y_label: str) -> Any:
    """Draws {panel: {series: {x: Spread}}}: means joined by lines, bars of one standard deviation, seeds as dots."""
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
    """Draws {panel: {name: Spread}}: a row for each name, panels side by side; seeds as dots, mean and deviation."""
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


STEM = "sweep"
Column = tuple[str, str, str]  # test set, protocol, metric


@dataclass
class Group:
    """The runs of one point: the same in all but the seed."""

    name: str
    stem: str
    point: Mapping[str, Any]
    runs: int = 0
    parameters: int | None = None
    scores: dict[Column, list[float]] = field(default_factory=dict)

    @property
    def spreads(self) -> dict[Column, Spread]:
        """Returns mean, deviation and scores of what is scored."""
        return {
            column: Spread(statistics.fmean(scores), statistics.stdev(scores) if len(scores) > 1 else None, scores)
            for column, scores in self.scores.items()
        }


@dataclass
class Sweep:
    """The runs of a sweep and what is known of them."""

    jobs: Sequence[Job]
    states: Mapping[str, State]
    results: Mapping[str, Mapping[str, Any]]
    """results.json of those that are finished."""

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each run and score; one without a score for each run that is not finished."""
        rows = []
        for job in self.jobs:
            state = self.states[job.name]
            common = {"run": job.name, "recipe": job.stem, **job.point, "seed": job.seed, "state": state.kind}
            results = self.results.get(job.name)
            if results is None:
                rows.append({**common, "message": state.message or None})
                continue
            budget = results.get("budget") or {}
            common |= {"parameters": results.get("parameters"), "steps": budget.get("steps")}
            common |= {"cpu_minutes": budget.get("cpu_minutes"), "steps_per_second": results.get("steps_per_second")}
            kept = ("test_set", "protocol", "metric", "score")
            scored = [{key: getattr(score, key) for key in kept} for score in scores_of([results])]
            rows += [{**common, **score} for score in scored or [{}]]
        return rows

    def groups(self) -> list[Group]:
        """Returns the runs by recipe and point, in the order of the jobs."""
        groups: dict[str, Group] = {}
        stems = {job.stem for job in self.jobs}
        for job in self.jobs:
            name = _point_name(job.stem, stems, job.point)
            group = groups.setdefault(name, Group(name, job.stem, job.point))
            group.runs += 1
            if results := self.results.get(job.name):
                group.parameters = results.get("parameters")
                for score in scores_of([results]):
                    group.scores.setdefault((score.test_set, score.protocol, score.metric), []).append(score.score)
        return list(groups.values())


def _point_name(stem: str, stems: Collection[str], point: Mapping[str, Any]) -> str:
    """Returns the point's values, behind its recipe where there are several or no values; without a common setup."""
    values = [f"{key.rsplit('.', 1)[-1]} {as_yaml(value)}" for key, value in point.items()]
    if len(stems) > 1 and len({each.partition(".")[2] for each in stems}) == 1:
        stem = stem.partition(".")[0]
    return ", ".join([*([stem] if len(stems) > 1 or not values else []), *values])


def read_sweep(root: str | Path, jobs: Sequence[Job], states: Mapping[str, State]) -> Sweep:
    """Reads a sweep with the results of its finished runs. UserError for a results file that is none."""
    paths = {job.name: Path(root) / job.name / RESULTS for job in jobs if states[job.name].kind == "finished"}
    for path in paths.values():
        read_results(path)
    return Sweep(jobs, states, {name: read_json(path) for name, path in paths.items()})


def columns_of(groups: Sequence[Group], metric: str = "BLEU") -> list[Column]:
    """Returns test sets with their first protocol that has the metric."""
    columns: dict[str, Column] = {}
    for column in (column for group in groups for column in group.scores if column[2] == metric):
        columns.setdefault(column[0], column)
    return list(columns.values())


def sweep_table(sweep: Sweep) -> Table:
    """Makes a row for each point: finished runs, parameters, mean and standard deviation of BLEU on each test set."""
    groups = sweep.groups()
    scored = columns_of(groups)
    rows = []
    for group in groups:
        cells = [mean_text(group.scores[column]) if column in group.scores else "" for column in scored]
        done = max(map(len, group.scores.values()), default=0)
        size = f"{group.parameters / 1e6:.2f} M" if group.parameters else ""
        rows.append([group.name, f"{done} of {group.runs}", size, *cells])
    heads = [f"{test}\n{with_arrow(metric)} {protocol}" for test, protocol, metric in scored]
    columns = ["", *map(Number, ["runs", "parameters", *heads])]
    return Table(columns, rows, "sweep", "Mean ± standard deviation over seeds, of the runs that are finished.")


def write_sweep(sweep: Sweep, root: str | Path, settings: Mapping[str, Any]) -> list[Path]:
    """Writes sweep.json (rows and means) and sweep.csv; with a run that is finished, sweep.png and sweep.svg."""
    groups, means, keys = sweep.groups(), [], ("test_set", "protocol", "metric")
    for group in groups:
        scores = [{**dict(zip(keys, column)), **spread._asdict()} for column, spread in group.spreads.items()]
        about = {"name": group.name, "recipe": group.stem, "point": group.point, "runs": group.runs}
        means.append({**about, "parameters": group.parameters, "scores": scores})
    paths = write_rows(root, STEM, STEM, sweep.rows(), dict(settings), means=means)
    if columns_of(groups):
        paths += figures.save(sweep_figure(groups), root, STEM)
    return paths


def sweep_figure(groups: Sequence[Group]) -> Any:
    """Draws BLEU over the first key whose values are numbers, a line for each of the rest; else a row a point."""
    scored = columns_of(groups)
    key = _numeric_key(groups)
    label = f"BLEU, {scored[0][1]}"
    stems = {group.stem for group in groups}
    rows: dict[str, dict[str, Spread]] = {}
    lines: dict[str, dict[str, dict[float, Spread]]] = {}
    places = [(group, column, group.spreads[column]) for column in scored for group in groups if column in group.scores]
    for group, (test, *_), spread in places:
        rows.setdefault(test, {})[group.name] = spread
        if key is not None:
            rest = {name: value for name, value in group.point.items() if name != key}
            series = lines.setdefault(test, {}).setdefault(_point_name(group.stem, stems, rest), {})
            series[float(group.point[key])] = spread
    return spread_rows(rows, label) if key is None else value_curves(lines, key, label)


def _numeric_key(groups: Sequence[Group]) -> str | None:
    for key in groups[0].point:
        values = [group.point[key] for group in groups]
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if numbers and len(set(values)) > 1:
            return key
    return None
