"""A queue of trainings, several at a time. Whatever ends it, the same call goes on: sweep_states.py says from where."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_mlnmt.model_folder import RESULTS
from hf_mlnmt.training.sweep_plan import Job
from hf_mlnmt.training.sweep_states import (
    State,
    forget_failure,
    last_words,
    log_path,
    note_failure,
    run_folder,
    state_of,
)

Start = Callable[[Job, Path], subprocess.Popen]
"""Starts the training of a job, what it says going into the file; it ends by SIGTERM with its state saved."""
LOOK_AFTER = 0.1  # seconds
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")


@dataclass
class Progress:
    """How far a sweep is; handed on at every change."""

    jobs: Sequence[Job]
    states: dict[str, State]
    running: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """How long the runs took that ended well in this call, of which nothing was there before."""

    def count(self, kind: str) -> int:
        """Runs in a state, those that are running left out."""
        return sum(state.kind == kind for name, state in self.states.items() if name not in self.running)

    def seconds_left(self, at_a_time: int) -> float | None:
        """An estimate from the runs so far; None before the first has ended."""
        left = len(self.jobs) - self.count("finished") - self.count("failed")
        return left * sum(self.seconds) / len(self.seconds) / at_a_time if self.seconds else None


@dataclass
class Queue:
    """The jobs of a sweep.

    Args:
        root: folder of the sweep.
        start: starts one training.
        at_a_time: how many trainings run side by side.
        tell: hears a line at every start and end.
        watch: called at every change, and after each run that finished.
        retry: start failed runs again.
    """

    root: Path
    start: Start
    at_a_time: int = 1
    tell: Callable[[str], None] = print
    watch: Callable[[Progress], None] = lambda progress: None
    retry: bool = True
    signum: int | None = None

    def run(self, jobs: Sequence[Job]) -> Progress:
        """Train what is not trained. After a signal the trainings save their state, and `signum` says which it was."""
        states = {job.name: state_of(self.root, job) for job in jobs}
        progress = Progress(jobs, states)
        waiting = [job for job in jobs if self._is_due(states[job.name])]
        running: dict[str, tuple[Job, subprocess.Popen, float]] = {}
        self.watch(progress)
        with self._signals():
            try:
                while (waiting and self.signum is None) or running:
                    while waiting and len(running) < self.at_a_time and self.signum is None:
                        job = waiting.pop(0)
                        running[job.name] = (job, self._begin(job, progress), time.monotonic())
                    for job, process, since in [*running.values()]:
                        if process.poll() is not None:
                            del running[job.name]
                            self._end(job, process.returncode, time.monotonic() - since, progress)
                    time.sleep(LOOK_AFTER)
            finally:
                for process in self._processes:  # after an error of our own; else none is left
                    process.terminate()
        return progress

    def _is_due(self, state: State) -> bool:
        return state.kind in ("new", "begun") or (state.kind == "failed" and self.retry)

    def _begin(self, job: Job, progress: Progress) -> subprocess.Popen:
        place = progress.jobs.index(job) + 1
        before = progress.states[job.name]
        again = f" again, from step {before.step:,}" if before.step else " again" if before.kind != "new" else ""
        forget_failure(self.root, job)
        log = log_path(self.root, job)
        log.parent.mkdir(parents=True, exist_ok=True)
        process = self.start(job, log)
        self._processes.append(process)
        if self.signum is not None:  # it came while we were starting
            process.terminate()
        progress.running.append(job.name)
        self.tell(f"{place}/{len(progress.jobs)} {job.name}: started{again}")
        self.watch(progress)
        return process

    def _end(self, job: Job, code: int, seconds: float, progress: Progress) -> None:
        place, before = progress.jobs.index(job) + 1, progress.states[job.name]
        progress.running.remove(job.name)
        if code == 0 and (run_folder(self.root, job) / RESULTS).is_file():
            what = f"finished after {duration(seconds)}"
            progress.seconds += [seconds] if before.kind == "new" else []
        elif self.signum is not None and code in (128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM):
            what = "stopped, its state is saved"
        else:
            message = _by_signal(code) or last_words(log_path(self.root, job))
            note_failure(self.root, job, code, message)
            what = f"failed: {message}"
        progress.states[job.name] = state_of(self.root, job)
        self.tell(f"{place}/{len(progress.jobs)} {job.name}: {what}")
        self.watch(progress)

    # Signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C, SIGTERM and SIGHUP end the trainings in order; a second one ends them at once."""
        self._processes: list[subprocess.Popen] = []
        numbers: list[Any] = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
        if threading.current_thread() is not threading.main_thread():
            numbers = []
        # Who let a signal be ignored, as nohup does SIGHUP, means it.
        numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._receive) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, signum: int, frame: Any) -> None:
        second, self.signum = self.signum is not None, signum
        for process in self._processes:
            process.kill() if second else process.terminate()


def _by_signal(code: int) -> str:
    """What to say of a process that a signal ended and that could say nothing itself."""
    if code >= 0:
        return ""
    memory = " The system does that when memory runs out." if -code == signal.SIGKILL else ""
    return f"ended by {signal.Signals(-code).name}.{memory}"


def duration(seconds: float) -> str:
    """ "2 h 5 min", "12 min", "40 s"."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if seconds >= 60 else f"{seconds:.0f} s"
