"""The results of a sweep: every run's scores as rows, and their means over seeds as a table and a figure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_mlnmt.common.files import read_json
from hf_mlnmt.common.model_folder import RESULTS
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation import figures
from hf_mlnmt.evaluation.figures import write_rows
from hf_mlnmt.evaluation.results import read_results
from hf_mlnmt.evaluation.scores import with_arrow
from hf_mlnmt.reports.comparison_page import mean_text
from hf_mlnmt.reports.tables import scores_of
from hf_mlnmt.training.sweep import Job, State, as_yaml

STEM = "sweep"
Column = tuple[str, str, str]  # test set, protocol, metric


@dataclass
class Group:
    """The runs of one point, which differ in the seed alone, and the scores of the finished ones."""

    name: str
    stem: str
    point: Mapping[str, Any]
    runs: int = 0
    parameters: int | None = None
    scores: dict[Column, list[float]] = field(default_factory=dict)

    def spread(self, column: Column) -> dict[str, Any]:
        """Returns mean, standard deviation (None of one seed) and scores of a column."""
        scores = self.scores[column]
        return {
            "mean": statistics.fmean(scores),
            "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
            "scores": scores,
        }


@dataclass
class Sweep:
    """The runs of a sweep: `rows` has one for each score, and one for each run that is not finished."""

    rows: list[dict[str, Any]]
    groups: list[Group]

    @property
    def columns(self) -> list[Column]:
        """Returns the test sets, each with its first protocol that has BLEU."""
        columns: dict[str, Column] = {}
        for column in (column for group in self.groups for column in group.scores if column[2] == "BLEU"):
            columns.setdefault(column[0], column)
        return list(columns.values())


def read_sweep(root: str | Path, jobs: Sequence[Job], states: Mapping[str, State]) -> Sweep:
    """Reads the results of the finished runs of a sweep. UserError for a results file that is none."""
    rows: list[dict[str, Any]] = []
    groups: dict[str, Group] = {}
    stems = {job.stem for job in jobs}
    for job in jobs:
        name, state = _point_name(job, stems), states[job.name]
        group = groups.setdefault(name, Group(name, job.stem, job.point))
        group.runs += 1
        row = {"run": job.name, "recipe": job.stem, **job.point, "seed": job.seed, "state": state.kind}
        if state.kind != "finished":
            rows.append({**row, "message": state.message or None})
            continue
        read_results(path := Path(root) / job.name / RESULTS)
        results = read_json(path)
        budget = results.get("budget") or {}
        row |= {"parameters": results.get("parameters"), "steps": budget.get("steps")}
        row |= {"cpu_minutes": budget.get("cpu_minutes"), "steps_per_second": results.get("steps_per_second")}
        group.parameters = results.get("parameters")
        for score in scores_of([results]):
            column = (score.test_set, score.protocol, score.metric)
            group.scores.setdefault(column, []).append(score.score)
            rows.append({**row, **dict(zip(("test_set", "protocol", "metric"), column)), "score": score.score})
    return Sweep(rows, list(groups.values()))


def _point_name(job: Job, stems: set[str]) -> str:
    """Returns the point's values, behind its recipe where there are several or no values; without a common setup."""
    values = [f"{key.rsplit('.', 1)[-1]} {as_yaml(value)}" for key, value in job.point.items()]
    one_setup = len(stems) > 1 and len({each.partition(".")[2] for each in stems}) == 1
    stem = job.stem.partition(".")[0] if one_setup else job.stem
    return ", ".join([*([stem] if len(stems) > 1 or not values else []), *values])


def sweep_table(sweep: Sweep) -> Table:
    """Makes a row for each point: finished runs, parameters, mean and standard deviation of BLEU on each test set."""
    rows = []
    for group in sweep.groups:
        cells = [mean_text(group.scores[column]) if column in group.scores else "" for column in sweep.columns]
        done = max(map(len, group.scores.values()), default=0)
        size = f"{group.parameters / 1e6:.2f} M" if group.parameters else ""
        rows.append([group.name, f"{done} of {group.runs}", size, *cells])
    heads = [f"{test}\n{with_arrow(metric)} {protocol}" for test, protocol, metric in sweep.columns]
    columns = ["", *map(Number, ["runs", "parameters", *heads])]
    return Table(columns, rows, "sweep", "Mean ± standard deviation over seeds, of the runs that are finished.")


def sweep_figure(sweep: Sweep) -> Any:
    """Draws the mean of BLEU of each point, with one standard deviation to either side; a panel for each test set."""
    panels: dict[str, dict[str, list[figures.Interval]]] = {}
    for column in sweep.columns:
        line: list[figures.Interval] = []
        for group in sweep.groups:
            spread = group.spread(column) if column in group.scores else {"mean": None}
            mean, deviation = spread["mean"], spread.get("deviation")
            line.append((mean, mean - deviation, mean + deviation) if deviation is not None else (mean, None, None))
        panels[column[0]] = {"mean ± standard deviation over seeds": line}
    names = [group.name.replace(", ", "\n") for group in sweep.groups]
    return figures.points(panels, names, "", f"BLEU, {sweep.columns[0][1]}")


def write_sweep(sweep: Sweep, root: str | Path, settings: Mapping[str, Any]) -> list[Path]:
    """Writes sweep.json (rows and means) and sweep.csv; with a run that is finished, sweep.png and sweep.svg."""
    means, keys = [], ("test_set", "protocol", "metric")
    for group in sweep.groups:
        scores = [{**dict(zip(keys, column)), **group.spread(column)} for column in group.scores]
        about = {"name": group.name, "recipe": group.stem, "point": group.point, "runs": group.runs}
        means.append({**about, "parameters": group.parameters, "scores": scores})
    paths = write_rows(root, STEM, STEM, sweep.rows, dict(settings), means=means)
    return paths + (figures.save(sweep_figure(sweep), root, STEM) if sweep.columns else [])
