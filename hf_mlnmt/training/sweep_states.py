"""What became of the runs of a sweep: read from its folder, which is all that a sweep remembers.

<folder>/<run>/             what `hf-mlnmt train` makes; finished when results.json is there
<folder>/logs/<run>.log     what the training said, of all its starts
<folder>/failed/<run>.json  the message of a run that failed; gone when it is started again
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_mlnmt.errors import UserError
from hf_mlnmt.files import write_json
from hf_mlnmt.model_folder import RESULTS
from hf_mlnmt.training import checkpoints, folder
from hf_mlnmt.training.sweep_plan import Job

LOGS, FAILED = "logs", "failed"
Kind = Literal["finished", "failed", "begun", "new"]


@dataclass(frozen=True)
class State:
    """`step`: of the last checkpoint of a run that has begun; `message`: of one that failed."""

    kind: Kind
    step: int | None = None
    message: str = ""

    def __str__(self) -> str:
        if self.kind == "begun":
            return f"begun, step {self.step:,}" if self.step else "begun"
        return f"failed: {self.message.splitlines()[0]}" if self.kind == "failed" and self.message else self.kind


def run_folder(root: Path, job: Job) -> Path:
    """The folder of a run."""
    return root / job.name


def log_path(root: Path, job: Job) -> Path:
    """What its training says."""
    return root / LOGS / f"{job.name}.log"


def state_of(root: Path, job: Job) -> State:
    """Of one run. UserError when its folder holds another training than this job."""
    output = run_folder(root, job)
    folder.check_output(output)
    changed = folder.compare(output, job.recipe())
    if (output / RESULTS).is_file() and not changed:
        return State("finished")
    saved = checkpoints.checkpoints(output / "checkpoints")
    step = int(saved[-1].name.rsplit("-", 1)[-1]) if saved else None
    failure = _failed_path(root, job)
    if failure.is_file():
        return State("failed", step, _message(failure))
    return State("begun" if output.is_dir() else "new", step)


def note_failure(root: Path, job: Job, code: int, message: str) -> None:
    """Keep what a run ended with."""
    write_json(_failed_path(root, job), {"run": job.name, "exit_code": code, "message": message})


def forget_failure(root: Path, job: Job) -> None:
    """It is being tried again."""
    _failed_path(root, job).unlink(missing_ok=True)


def last_words(log: Path) -> str:
    """The error at the end of a log; without one its last lines."""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines() if log.is_file() else []
    at = next((number for number in range(len(lines) - 1, -1, -1) if lines[number].startswith("error:")), None)
    words = [lines[at].removeprefix("error:").strip(), *lines[at + 1 :]] if at is not None else lines[-5:]
    return "\n".join(words).strip() or "it said nothing"


def _failed_path(root: Path, job: Job) -> Path:
    return root / FAILED / f"{job.name}.json"


def _message(path: Path) -> str:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        return str(content["message"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path}: not what a sweep writes ({error}). Delete it, and the run is tried again.") from error
