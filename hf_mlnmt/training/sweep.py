"""Sweeps: many trainings by one command, planned, run in a queue, continued after an interruption; a table of scores.

A plan has every recipe with every combination of values and every seed, each with a folder of its own. The queue runs
several at a time. Whatever ends it, the same call continues: all that a sweep knows is in its folder (docs/sweeps.md).
"""

from __future__ import annotations

import csv
import io
import math
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.common.files import write_text
from hf_mlnmt.common.model_folder import RESULTS
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation import read_results
from hf_mlnmt.recipe.reading import Recipe, find_recipe, parse_yaml, read_recipe
from hf_mlnmt.training import folder
from hf_mlnmt.training.callbacks import SIGNALS, handled
from hf_mlnmt.training.dry_run import duration
from hf_mlnmt.training.preflight import check_before, model
from hf_mlnmt.training.preparation import Preparation

MOST = 10_000  # most values of a range; more are taken for a mistake
LOOK_AFTER = 0.1  # seconds between two looks at the processes
HANDLED = (*SIGNALS, signal.SIGHUP) if hasattr(signal, "SIGHUP") else SIGNALS  # Windows has no SIGHUP


@dataclass(frozen=True, eq=False)
class Job:
    """A training of a sweep: its recipe, combination of values (`point`), seed, and all replaced keys (`settings`)."""

    name: str
    path: Path
    point: str
    seed: int
    settings: tuple[str, ...] = ()

    def recipe(self) -> Recipe:
        """Reads and checks the recipe. Raises: UserError."""
        return read_recipe(self.path, self.settings, self.seed)


def plan(
    recipes: Sequence[str | Path],
    over: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    systems: Sequence[str] = (),
) -> list[Job]:
    """Plans a run for each recipe, system, combination of values and seed; returns them in the order of their start.

    over: "key.sub=values" of `read_values`, combined all with all. seeds, systems: None or none: the recipe's own.
    settings: "key.sub=value" for all runs. Raises: UserError for a wrong recipe or --over, and for a run given twice.
    """
    axes: dict[str, list[Any]] = {}
    for text in over:
        key, equals, values = text.partition("=")
        if not equals or not key:
            raise UserError(f"--over {text}: expected KEY=VALUES, as in --over model.settings.kernel_size=2..8.")
        if key == "seed" or key in axes:
            raise UserError(f"--over {text}: give all values of a key at once, and seeds by --seeds 1,2,3.")
        axes[key] = read_values(values, f"--over {text}")
    jobs: list[Job] = []
    for path, own in (find_recipe(recipe, system) for recipe in recipes for system in systems or (None,)):
        for point_values in product(*axes.values()):
            point = {key: as_yaml(value) for key, value in zip(axes, point_values)}
            everything = (*own, *settings, *(f"{key}={value}" for key, value in point.items()))
            for seed in seeds or (None,):
                recipe = read_recipe(path, everything, seed)
                if recipe.rounds is not None:
                    raise UserError(f"{path}: has rounds, which a sweep does not train. Train this recipe by itself.")
                shown = [recipe.stem, *(f"{key.rpartition('.')[2]}-{value}" for key, value in point.items())]
                name = re.sub(r"[^\w.+-]+", "-", ".".join(shown))
                jobs.append(Job(f"{name}.seed{recipe.seed}", path, name, recipe.seed, everything))
    names = [job.name for job in jobs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"run {twice}: is there twice.")
    return jobs


def read_values(text: str, where: str = "values") -> list[Any]:
    """Reads 2..8 (whole numbers, both ends included), a,b,c, [1],[1,2] and mixtures, each value as YAML.

    Raises: UserError for no values, and broken ones.
    """
    try:
        read = parse_yaml(f"[{text}]")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: {text!r} is not valid YAML ({error}).") from error
    values: list[Any] = []
    for value in read:
        if isinstance(value, str) and (match := re.fullmatch(r"(-?\d+)\.\.(-?\d+)", value)):
            low, high = map(int, match.groups())
            if not low <= high < low + MOST:
                raise UserError(f"{where}: {value}: expected LOW..HIGH, of at most {MOST:,} whole numbers.")
            values += range(low, high + 1)
        else:
            values.append(value)
    if not values:
        raise UserError(f"{where}: no values. Expected a range such as 2..8, or values such as 2,4,8.")
    return values


def as_yaml(value: Any) -> str:
    """Returns a value in one line, as `--set` reads it back."""
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()


def check_points(jobs: Sequence[Job], data: Path, warn: Callable[[str], None] | None = None) -> None:
    """Runs the checks before a training for each combination of values; calls `warn` with warnings. UserError names it.

    Without `warn` checks only the recipe and, if its tokenizer is still to be trained, the model.
    """
    points = {job.point: job for job in reversed(jobs)}  # a job for each combination: no check needs the seed
    for job in reversed(points.values()):
        with naming(job.name), tempfile.TemporaryDirectory() as output:
            preparation = Preparation(job.recipe(), data, Path(output), lambda text: None)
            if warn:
                for warning in check_before(preparation):
                    warn(f"{job.name}: {warning}")
            elif preparation.trains_tokenizer:
                model(preparation)


def state_of(root: Path, job: Job) -> str:
    """Returns "finished", "begun" or "new". Raises: UserError when its folder holds another training than this job."""
    output = root / job.name
    folder.check_output(output)
    changed = folder.compare(output, job.recipe())
    if (output / RESULTS).is_file() and not changed:
        return "finished"
    return "begun" if output.is_dir() else "new"


class Queue:
    """Trains the jobs of a sweep in order, `at_a_time` at once; `signum`: the signal that ended the sweep, or None.

    Args:
        start: starts the training of a job, whose output goes into a file; SIGTERM saves its state and ends it.
        tell: called with a line at every start and end.
        watch: called with the states at the beginning and at every start and end.
    """

    def __init__(
        self,
        root: Path,
        start: Callable[[Job, Path], subprocess.Popen],
        at_a_time: int = 1,
        tell: Callable[[str], None] = print,
        watch: Callable[[Mapping[str, str]], None] = lambda states: None,
    ) -> None:
        self.root, self.start, self.at_a_time, self.tell, self.watch = root, start, at_a_time, tell, watch
        self.signum: int | None = None

    def run(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Trains the jobs that are not finished and returns the state of each. After a signal (`signum`) the trainings
        save their state and end; a second one kills them."""
        states = {job.name: state_of(self.root, job) for job in jobs}
        waiting = [job for job in jobs if states[job.name] != "finished"]
        running: dict[Job, tuple[subprocess.Popen, float]] = {}

        def receive(signum: int, frame: Any) -> None:
            second, self.signum = self.signum is not None, signum
            for process, _ in [*running.values()]:
                process.kill() if second else process.terminate()

        def say(job: Job, what: str) -> None:
            self.tell(f"{jobs.index(job) + 1}/{len(jobs)} {job.name}: {what}")
            self.watch(states)

        self.watch(states)
        (self.root / "logs").mkdir(parents=True, exist_ok=True)
        with handled(HANDLED, receive):
            try:
                while (waiting and self.signum is None) or running:
                    while waiting and len(running) < self.at_a_time and self.signum is None:
                        job = waiting.pop(0)
                        running[job] = self.start(job, self._log(job)), time.monotonic()
                        if self.signum is not None:  # a signal came while the job was started
                            running[job][0].terminate()
                        say(job, "started" if states[job.name] == "new" else "started again")
                    for job, (process, since) in [*running.items()]:
                        if (code := process.poll()) is not None:
                            del running[job]
                            states[job.name] = state_of(self.root, job)
                            what = f"finished after {duration(time.monotonic() - since)}"
                            if states[job.name] != "finished":
                                what = self._problem(job, code)
                                states[job.name] = "failed" if self.signum is None else "begun"
                            say(job, what)
                    time.sleep(LOOK_AFTER)
            finally:
                for process, _ in running.values():  # some still run: an exception ended the loop
                    process.terminate()
        return states

    def _problem(self, job: Job, code: int) -> str:
        if self.signum is not None:
            return "stopped"
        memory = " The system does that when memory runs out." if -code == signal.SIGKILL else ""
        return f"failed: {last_words(self._log(job))}{memory}"

    def _log(self, job: Job) -> Path:
        return self.root / "logs" / f"{job.name}.log"


def last_words(log: Path) -> str:
    """Returns the error at the end of a log; without one its last lines."""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines() if log.is_file() else []
    at = next((number for number in range(len(lines) - 1, -1, -1) if lines[number].startswith("error:")), -5)
    return "\n".join(lines[at:]).removeprefix("error:").strip() or "its log is empty"


def write_table(root: Path, jobs: Sequence[Job], states: Mapping[str, str]) -> Table:
    """Writes sweep.csv, a row for each run, test set, protocol and metric; returns the means over seeds as a table."""
    rows: list[dict[str, Any]] = []
    cells: dict[tuple[str, str], list[float]] = {}  # (point, column) -> the scores of its seeds
    for job in jobs:
        row = {"run": job.name, "point": job.point, "seed": job.seed, "state": states[job.name]}
        if states[job.name] != "finished":
            rows.append(row)
            continue
        for test, protocols in read_results(root / job.name / RESULTS).scores.items():
            for protocol, metrics in protocols.items():
                for metric, entry in metrics.items():
                    named = {"test_set": test, "protocol": protocol, "metric": metric, "score": entry["score"]}
                    rows.append({**row, **named})
                    cells.setdefault((job.point, f"{test}\n{metric} {protocol}"), []).append(entry["score"])
    text = io.StringIO()
    names = ["run", "point", "seed", "state", "test_set", "protocol", "metric", "score"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(root / "sweep.csv", text.getvalue())
    columns = list(dict.fromkeys(column for _, column in cells if "BLEU" in column))
    points = {job.point: sum(other.point == job.point for other in jobs) for job in jobs}
    lines = []
    for point, runs in points.items():
        found = [cells.get((point, column), []) for column in columns]
        done = max(map(len, found), default=0)
        lines.append([point, f"{done} of {runs}", *map(_mean, found)])
    caption = "Mean ± standard deviation over seeds, of the runs that are finished."
    return Table(["", Number("runs"), *map(Number, columns)], lines, "sweep", caption)


def _mean(scores: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.2f}{spread}" if scores else ""
