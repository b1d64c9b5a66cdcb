"""Sweeps: many trainings from one command, planned, queued and gone on with.

A plan has every recipe with every combination of values and every seed, each with a folder of its own. The queue runs
several at a time. Whatever ends it, the same call goes on: the folder is all that a sweep remembers (docs/sweeps.md).
"""

from __future__ import annotations

import math
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.common.model_folder import RESULTS
from hf_mlnmt.recipe.reading import Recipe, find_recipe, parse_yaml, read_recipe
from hf_mlnmt.training import checkpoints, folder
from hf_mlnmt.training.callbacks import SIGNALS, handled

MOST = 10_000  # values of a range; more is a slip of the pen
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER}))?")


@dataclass(frozen=True, eq=False)
class Job:
    """A training of a sweep: a recipe, the values of the point, a seed, and all keys that are replaced (`settings`)."""

    name: str
    path: Path
    stem: str
    seed: int
    point: Mapping[str, Any]
    settings: tuple[str, ...] = ()

    def recipe(self) -> Recipe:
        """Reads and checks the recipe. Raises: UserError."""
        return read_recipe(self.path, self.settings, self.seed)


def plan(
    recipes: Sequence[str | Path],
    over: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    order: str = "values",
    systems: Sequence[str] = (),
) -> list[Job]:
    """Returns all runs, in the order in which they are started.

    Args:
        over: "key.sub=values" of read_values; several are combined, all with all.
        seeds: of each point; None: the recipe's own.
        settings: "key.sub=value" for all runs.
        systems: what is trained in each recipe (zoo/records.py); none: the recipe's own.
        order: "values" does every seed of a point before the next point, "seeds" every point with the first seed first.
    """
    if order not in ("values", "seeds"):
        raise UserError(f"--order {order}: expected values or seeds.")
    axes = _axes(over)
    files = [find_recipe(recipe, system) for recipe in recipes for system in systems or (None,)]
    stems = [read_recipe(path, [*own, *settings]).stem for path, own in files]
    _check_once(stems, "recipe")
    _check_once([str(seed) for seed in seeds or ()], "seed")
    points = [dict(zip(axes, values)) for values in product(*axes.values())]
    jobs = [
        _job(path, stem, point, seed, [*own, *settings])
        for (path, own), stem in zip(files, stems, strict=True)
        for point in points
        for seed in seeds or [None]  # type: ignore[list-item]
    ]
    _check_once([job.name for job in jobs], "run")
    if order == "seeds" and seeds:
        jobs.sort(key=lambda job: list(seeds).index(job.seed))
    return jobs


def _job(path: Path, stem: str, point: dict[str, Any], seed: int | None, settings: Sequence[str]) -> Job:
    everything = (*settings, *(f"{key}={as_yaml(value)}" for key, value in point.items()))
    recipe = read_recipe(path, everything, seed)
    if recipe.rounds is not None:
        raise UserError(f"{path}: has rounds, which a sweep does not train. Train this recipe by itself.")
    parts = [stem]
    last_parts = [key.rsplit(".", 1)[-1] for key in point]
    for (key, value), last in zip(point.items(), last_parts):
        shown = re.sub(r"[^\w.+-]+", "-", as_yaml(value)).strip("-") or "none"
        parts.append(f"{last if last_parts.count(last) == 1 else key}-{shown}")
    return Job(".".join([*parts, f"seed{recipe.seed}"]), path, stem, recipe.seed, point, everything)


def _axes(over: Sequence[str]) -> dict[str, list[Any]]:
    """Returns {key: its values}."""
    axes: dict[str, list[Any]] = {}
    for text in over:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UserError(f"--over {text}: expected KEY=VALUES, as in --over model.settings.kernel_size=2..8.")
        if key == "seed":
            raise UserError(f"--over {text}: seeds have an option of their own, --seeds 1,2,3.")
        if key in axes:
            raise UserError(f"--over {key}: is given twice; give all its values at once.")
        axes[key] = read_values(values, f"--over {text}")
    return axes


def read_values(text: str, where: str = "values") -> list[Any]:
    """Reads 2..8 (whole numbers, both ends included), 0.1..0.5..0.1 (with a step), a,b,c, [1],[1,2] and mixtures.

    Values are read as YAML. Raises: UserError for none, broken ones, and a value twice.
    """
    try:
        read = parse_yaml(f"[{text}]")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: {text!r} is not valid YAML ({error}).") from error
    values: list[Any] = []
    for value in read:
        if isinstance(value, str) and (match := _RANGE.fullmatch(value)):
            values += _range(match, where)
        elif isinstance(value, str) and re.fullmatch(_NUMBER, value):
            values.append(float(value))  # 1e-3, which YAML 1.1 takes for text
        else:
            values.append(value)
    if not values:
        raise UserError(f"{where}: no values. Expected a range such as 2..8, or values such as 2,4,8.")
    _check_once([as_yaml(value) for value in values], f"{where}: value")
    return values


def _range(match: re.Match[str], where: str) -> list[Any]:
    whole = all(part is None or re.fullmatch(r"[+-]?\d+", part) for part in match.groups())
    if match[3] is None and not whole:
        raise UserError(f"{where}: {match[0]} needs a step, as in {match[0]}..0.1.")
    low, high, step = (float(part) for part in (match[1], match[2], match[3] or "1"))
    if step <= 0 or high < low:
        raise UserError(f"{where}: {match[0]} holds no number; expected LOW..HIGH with a step above 0.")
    count = math.floor((high - low) / step + 1e-9) + 1
    if count > MOST:
        raise UserError(f"{where}: {match[0]} holds {count:,} numbers; at most {MOST:,}.")
    if whole:
        return [int(match[1]) + number * int(match[3] or 1) for number in range(count)]
    return [float(f"{low + number * step:.12g}") for number in range(count)]


def as_yaml(value: Any) -> str:
    """Returns a value in one line, as `--set` reads it back."""
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()


def _check_once(names: Sequence[str], what: str) -> None:
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise UserError(f"{what} {twice}: is there twice.")


@dataclass(frozen=True)
class State:
    """`step`: of the last checkpoint of a run that has begun; `message`: of one that failed."""

    kind: Literal["finished", "failed", "begun", "new"]
    step: int | None = None
    message: str = ""

    def __str__(self) -> str:
        if self.kind == "begun":
            return f"begun, step {self.step:,}" if self.step else "begun"
        return f"failed: {self.message.splitlines()[0]}" if self.kind == "failed" and self.message else self.kind


def state_of(root: Path, job: Job) -> State:
    """Returns the state of a run. Raises: UserError when its folder holds another training than this job."""
    output = root / job.name
    folder.check_output(output)
    changed = folder.compare(output, job.recipe())
    if (output / RESULTS).is_file() and not changed:
        return State("finished")
    saved = checkpoints.checkpoints(output / "checkpoints")
    step = checkpoints.step_of(saved[-1]) if saved else None
    if failure := read_json(failed_path(root, job), {"message": str}):
        return State("failed", step, failure["message"])
    return State("begun" if output.is_dir() else "new", step)


def failed_path(root: Path, job: Job) -> Path:
    """Returns where the message of a run that failed is kept."""
    return root / "failed" / f"{job.name}.json"


def last_words(log: Path) -> str:
    """Returns the error at the end of a log; without one its last lines."""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines() if log.is_file() else []
    at = next((number for number in range(len(lines) - 1, -1, -1) if lines[number].startswith("error:")), None)
    words = [lines[at].removeprefix("error:").strip(), *lines[at + 1 :]] if at is not None else lines[-5:]
    return "\n".join(words).strip() or "its log is empty"


# The queue

LOOK_AFTER = 0.1  # seconds
HANDLED = (*SIGNALS, signal.SIGHUP) if hasattr(signal, "SIGHUP") else SIGNALS  # Windows has none


@dataclass
class Queue:
    """The jobs of a sweep.

    Args:
        start: starts the training of a job, what it says going into a file; it ends by SIGTERM with its state saved.
        tell: hears a line at every start and end.
        watch: is given the states at the beginning and at every start and end.
        retry: start failed runs again.
    """

    root: Path
    start: Callable[[Job, Path], subprocess.Popen]
    at_a_time: int = 1
    tell: Callable[[str], None] = print
    watch: Callable[[Mapping[str, State]], None] = lambda states: None
    retry: bool = True
    signum: int | None = None

    def run(self, jobs: Sequence[Job]) -> dict[str, State]:
        """Trains the jobs that are not finished and returns the state of each. A signal (`signum`) lets the trainings
        save their state; a second one ends them."""
        states = {job.name: state_of(self.root, job) for job in jobs}
        done = ("finished",) if self.retry else ("finished", "failed")
        waiting = [job for job in jobs if states[job.name].kind not in done]
        running: dict[Job, tuple[subprocess.Popen, float]] = {}

        def receive(signum: int, frame: Any) -> None:
            second, self.signum = self.signum is not None, signum
            for process, _ in [*running.values()]:
                process.kill() if second else process.terminate()

        def say(job: Job, what: str) -> None:
            self.tell(f"{jobs.index(job) + 1}/{len(jobs)} {job.name}: {what}")
            self.watch(states)

        self.watch(states)
        with handled(HANDLED, receive):
            try:
                while (waiting and self.signum is None) or running:
                    while waiting and len(running) < self.at_a_time and self.signum is None:
                        job = waiting.pop(0)
                        before = states[job.name]
                        running[job] = self._begin(job), time.monotonic()
                        if self.signum is not None:  # the signal came during the start
                            running[job][0].terminate()
                        again = f", from step {before.step:,}" if before.step else ""
                        say(job, "started" if before.kind == "new" else f"started again{again}")
                    for job, (process, since) in [*running.items()]:
                        if process.poll() is not None:
                            del running[job]
                            what = self._ended(job, process.returncode, time.monotonic() - since)
                            states[job.name] = state_of(self.root, job)
                            say(job, what)
                    time.sleep(LOOK_AFTER)
            finally:
                for process, _ in running.values():  # an error of our own came first
                    process.terminate()
        return states

    def _begin(self, job: Job) -> subprocess.Popen:
        failed_path(self.root, job).unlink(missing_ok=True)
        log = self._log(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        return self.start(job, log)

    def _ended(self, job: Job, code: int, seconds: float) -> str:
        """Returns how a training ended in words; of one that failed, its message is kept."""
        if code == 0 and (self.root / job.name / RESULTS).is_file():
            return f"finished after {duration(seconds)}"
        if self.signum is not None and code in (128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM):
            return "stopped, its state is saved"
        memory = " The system does that when memory runs out." if -code == signal.SIGKILL else ""
        by_signal = f"ended by {signal.Signals(-code).name}.{memory}" if code < 0 else ""
        message = by_signal or last_words(self._log(job))
        write_json(failed_path(self.root, job), {"run": job.name, "exit_code": code, "message": message})
        return f"failed: {message}"

    def _log(self, job: Job) -> Path:
        return self.root / "logs" / f"{job.name}.log"


def duration(seconds: float) -> str:
    """Returns "2 h 5 min", "12 min" or "40 s"."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if seconds >= 60 else f"{seconds:.0f} s"
