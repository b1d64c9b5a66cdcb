"""Callbacks: checkpoints at signals and at the ends of cycles, early stopping, progress, metrics, curves.

metrics.jsonl holds what a training logs and scores, a JSON object a line, as it goes; curves.png is drawn from it.
"""

from __future__ import annotations

import json
import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_mlnmt.common.files import write_text
from hf_mlnmt.common.model_folder import CURVES
from hf_mlnmt.training.arguments import Schedule
from hf_mlnmt.training.dev import DevSet
from hf_mlnmt.training.processes import largest

# SIGUSR1 is what Slurm is asked to send before a job's time is over; Windows has none.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
SIGNALS = (*ENDING, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """Raised when a signal (`signum`) ends a run; checkpoints and other finished work are kept."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum


@contextmanager
def handled(signums: Iterable[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Installs `handler` for these signals while a block runs, in the main thread only."""
    in_main = threading.current_thread() is threading.main_thread()
    # A signal that is ignored, as nohup ignores SIGHUP, stays ignored.
    taken = [signum for signum in signums if in_main and signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, handler) for signum in taken}
    try:
        yield
    finally:
        for signum, its_own in before.items():
            signal.signal(signum, its_own)


def sigterm_interrupts() -> AbstractContextManager[None]:
    """Returns a context manager in which SIGTERM and SIGUSR1 raise Interrupted, as Ctrl-C raises KeyboardInterrupt."""

    def interrupt(signum: int, frame: Any) -> None:
        name = signal.Signals(signum).name
        raise Interrupted(signum, f"{name}: stopped; what was finished is kept. The same command goes on from there.")

    return handled(ENDING, interrupt)


class StopOnSignal(TrainerCallback):
    """Saves a checkpoint and ends the training after the step in which SIGTERM, SIGUSR1 or Ctrl-C reached a process; a
    signal within an evaluation acts after the next step. The same signal again ends the process at once."""

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}

    def listening(self) -> AbstractContextManager[None]:
        """Returns a context manager in which this callback handles the signals."""
        self._before = {signum: signal.getsignal(signum) for signum in SIGNALS}
        return handled(SIGNALS, self._receive)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if signum := largest(self.signum):
            self.signum = signum
            control.should_save = args.save_strategy != "no"
            control.should_training_stop = True

    def _receive(self, signum: int, frame: Any) -> None:
        self.signum = signum
        # Restores this signal's handler alone: on Ctrl-C, which every process gets, torchrun also sends each a SIGTERM.
        signal.signal(signum, self._before[signum])


class SaveEndsOfCycles(TrainerCallback):
    """Evaluates and saves a checkpoint where a cycle of the learning rate ends."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step in self.schedule.ends(state.max_steps):
            control.should_evaluate |= args.eval_strategy != "no"
            control.should_save |= args.save_strategy != "no"


class EarlyStopping(TrainerCallback):
    """Ends a training whose `metric` has not improved in `patience` recorded evaluations."""

    def __init__(self, metric: str, higher_is_better: bool, patience: int) -> None:
        self.key, self.higher, self.patience = f"eval_{metric}", higher_is_better, patience

    def should_stop(self, history: list[dict[str, float]]) -> bool:
        """Returns whether the best of the recorded evaluations is at least `patience` evaluations old."""
        sign = 1 if self.higher else -1
        values = [sign * entry[self.key] for entry in history if self.key in entry]
        return bool(values) and len(values) - 1 - values.index(max(values)) >= self.patience

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.should_stop(state.log_history):
            control.should_training_stop = True


class ShowProgress(TrainerCallback):
    """Prints a line at each log and evaluation; on a terminal also a bar with the time that is left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not self.console.is_terminal:
            return
        steps = (TextColumn("training"), BarColumn(20), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self.bar = Progress(*steps, *times, console=self.console)
        self.bar.add_task("", total=state.max_steps, completed=state.global_step)
        self.bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=state.global_step)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if "loss" in logs:
            speed = f", {logs['target_tokens_per_second']:,.0f} tokens/s" if "target_tokens_per_second" in logs else ""
            self._show(f"loss {logs['loss']:.3f}{speed}, learning rate {logs['learning_rate']:.2e}", state)
        elif "eval_loss" in logs:
            scores = {key.removeprefix("eval_"): value for key, value in logs.items() if key.startswith("eval_")}
            scores["loss"] = round(scores["loss"], 3)
            means = [key for key in scores if key.startswith("mean_")]
            shown = list(scores) if len(scores) <= SHOWN else [*[*scores][: SHOWN // 2], *means]
            text = ", ".join(f"{key} {scores[key]:.4g}" for key in shown)
            more = f", and {len(scores) - len(shown)} more in {METRICS}" if len(shown) < len(scores) else ""
            self._show(f"dev {text}{more}", state)

    def close(self) -> None:
        """Removes the progress bar, at the end and after an exception."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _show(self, text: str, state: TrainerState) -> None:
        total = f"/{state.max_steps}" if state.max_steps > 0 else ""
        self.console.print(f"step {state.global_step}{total}: {text}", highlight=False)


METRICS = "metrics.jsonl"
SHOWN = 40  # most scores of an evaluation that the printed line shows
SAMPLES = 3


def lines_until(path: Path, step: int) -> list[str]:
    """Returns a metrics file's lines of steps up to `step`; stops at a line that a killed process left unfinished."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            belongs = json.loads(line)["step"] <= step
        except (ValueError, KeyError, TypeError):
            break
        if belongs:
            kept.append(line)
    return kept


class LogBeforeSaving(TrainerCallback):
    """Logs before each checkpoint, which does not hold the mean loss since the last log. Must be the last callback."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_log |= control.should_save


class WriteMetrics(TrainerCallback):
    """Appends each log and evaluation to metrics.jsonl, with a few translations of `dev_set`, which `tell` prints.

    A training that goes on from a checkpoint first deletes the later lines: every step is in the file once.
    """

    def __init__(self, folder: Path, dev_set: DevSet, seed: int, tell: Callable[[str], None]) -> None:
        self.path, self.dev_set, self.tell = folder / METRICS, dev_set, tell
        count = len(dev_set.dataset)
        chosen = np.random.default_rng([seed, 7]).choice(count, min(SAMPLES, count), replace=False)
        self.chosen = sorted(chosen.tolist())

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            write_text(self.path, "".join(f"{line}\n" for line in lines_until(self.path, state.global_step)))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or not {"loss", "eval_loss"} & logs.keys():
            return
        line: dict[str, Any] = {"step": state.global_step, "epoch": state.epoch, **logs}
        line |= {key: None for key, value in logs.items() if isinstance(value, float) and not math.isfinite(value)}
        if "eval_loss" in logs and (samples := self._samples()):
            line["samples"] = samples
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        for sample in line.get("samples", []):
            self.tell("\n".join(f"  {name:<9}  {text}" for name, text in sample.items()))

    def _samples(self) -> list[dict[str, str]]:
        """Returns source, reference and last output of each chosen sentence; [] without translations."""
        dev = self.dev_set
        if not dev.translations:
            return []
        texts = {"source": dev.sources or [], "reference": dev.references, "output": dev.translations}
        return [{name: lines[i] for name, lines in texts.items() if lines} for i in self.chosen]


class DrawCurves(TrainerCallback):
    """Draws curves.png at the end of a training, also after a signal."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self.folder, self.warn = folder, warn

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.draw()

    def draw(self) -> None:
        """Draws the curves; if that fails, only warns."""
        try:
            from hf_mlnmt.evaluation.curves import draw

            draw(self.folder, self.folder / CURVES)
        except Exception as error:
            self.warn(f"{CURVES} was not drawn: {error}")
