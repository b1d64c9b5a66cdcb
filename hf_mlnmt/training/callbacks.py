"""Callbacks: checkpoints at signals and at the ends of cycles, early stopping, progress, metrics, curves.

metrics.jsonl holds what a training logs and scores, a JSON object a line, as it goes; curves.png is drawn from it.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_mlnmt.common.files import write_text
from hf_mlnmt.common.model_folder import CURVES
from hf_mlnmt.training.dev import DevSet
from hf_mlnmt.training.processes import largest
from hf_mlnmt.training.schedules import Schedule

# SIGUSR1 is what Slurm is asked to send before a job's time is over; Windows has none.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
SIGNALS = (*ENDING, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """A signal, `signum`, ended the run after the state was saved."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum


@contextmanager
def handled(signums: Iterable[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Gives these signals to `handler` within the block, if this is the main thread; ignored ones stay ignored."""
    in_main = threading.current_thread() is threading.main_thread()
    # Who let a signal be ignored, as nohup does SIGHUP, means it.
    taken = [signum for signum in signums if in_main and signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, handler) for signum in taken}
    try:
        yield
    finally:
        for signum, its_own in before.items():
            signal.signal(signum, its_own)


def sigterm_interrupts() -> AbstractContextManager[None]:
    """Returns a block in which SIGTERM and SIGUSR1 end the run as Ctrl-C does; files are written aside."""

    def interrupt(signum: int, frame: Any) -> None:
        name = signal.Signals(signum).name
        raise Interrupted(signum, f"{name}: stopped; what was finished is kept. The same command goes on from there.")

    return handled(ENDING, interrupt)


class StopOnSignal(TrainerCallback):
    """A checkpoint and the end after the step in which SIGTERM, SIGUSR1 or Ctrl-C came to one of the processes, which
    all hear of it; an evaluation is cut short. The same again: at once."""

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}

    def listening(self) -> AbstractContextManager[None]:
        """Returns a block around the training in which the signals are this callback's."""
        self._before = {signum: signal.getsignal(signum) for signum in SIGNALS}
        return handled(SIGNALS, self._receive)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if signum := largest(self.signum):
            self.signum = signum
            control.should_save = args.save_strategy != "no"
            control.should_training_stop = True

    def _receive(self, signum: int, frame: Any) -> None:
        self.signum = signum
        # Only this one's: torchrun answers Ctrl-C, which the processes get too, with a SIGTERM to each.
        signal.signal(signum, self._before[signum])


class Done(Exception):
    """A training is at its end before a first step."""


class FinishEvaluation(TrainerCallback):
    """The evaluation that a signal cut short before the last start, by `finish`, if it `is_due`. Comes last."""

    def __init__(self, is_due: Callable[[], bool], finish: Callable[[], None]) -> None:
        self.is_due, self.finish = is_due, finish

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.is_due():
            self.finish()
            if control.should_training_stop or state.global_step >= state.max_steps:
                raise Done


class SaveEndsOfCycles(TrainerCallback):
    """Evaluations and checkpoints where a cycle of the learning rate ends."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step in self.schedule.ends(state.max_steps):
            control.should_evaluate |= args.eval_strategy != "no"
            control.should_save |= args.save_strategy != "no"


class EarlyStopping(TrainerCallback):
    """The end of a training whose `metric` has not been better for `patience` recorded evaluations."""

    def __init__(self, metric: str, higher_is_better: bool, patience: int) -> None:
        self.key, self.higher, self.patience = f"eval_{metric}", higher_is_better, patience

    def should_stop(self, history: list[dict[str, float]]) -> bool:
        """Returns whether the recorded evaluations say so."""
        sign = 1 if self.higher else -1
        values = [sign * entry[self.key] for entry in history if self.key in entry]
        return bool(values) and len(values) - 1 - values.index(max(values)) >= self.patience

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.should_stop(state.log_history):
            control.should_training_stop = True


class _Bar(Progress):
    """A bar, with `texts` below it, a line each."""

    def __init__(self, *columns: Any, texts: Mapping[str, str], **options: Any) -> None:
        self.texts = texts
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterator[Any]:
        yield from super().get_renderables()
        yield from (Text(text, no_wrap=True, overflow="ellipsis") for text in self.texts.values() if text)


class ShowProgress(TrainerCallback):
    """A bar with speed and dev score below it on a terminal; elsewhere a line at each log and evaluation."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self._texts = {"train": "", "dev": ""}

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not self.console.is_terminal:
            return
        steps = (TextColumn("training"), BarColumn(20), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self.bar = _Bar(*steps, *times, texts=self._texts, console=self.console)
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
            rate = f", learning rate {logs['learning_rate']:.2e}"
            self._show("train", f"loss {logs['loss']:.3f}{speed}", state, rate)
        elif "eval_loss" in logs:
            scores = {key.removeprefix("eval_"): value for key, value in logs.items() if key.startswith("eval_")}
            scores["loss"] = round(scores["loss"], 3)
            means = [key for key in scores if key.startswith("mean_")]
            shown = list(scores) if len(scores) <= SHOWN else [*[*scores][: SHOWN // 2], *means]
            text = ", ".join(f"{key} {scores[key]:.4g}" for key in shown)
            more = f", and {len(scores) - len(shown)} more in {METRICS}" if len(shown) < len(scores) else ""
            self._show("dev", f"dev {text}{more}", state)

    def close(self) -> None:
        """Removes the bar, at the end and after an exception."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _show(self, kind: str, text: str, state: TrainerState, more: str = "") -> None:
        self._texts[kind] = text
        if self.bar is None or kind == "dev":
            total = f"/{state.max_steps}" if state.max_steps > 0 else ""
            self.console.print(f"step {state.global_step}{total}: {text}{more}", highlight=False)


METRICS = "metrics.jsonl"
SHOWN = 40  # scores of an evaluation, in the line on the screen
SAMPLES = 3
DRAW_AFTER = 120.0  # seconds between two drawings, which take about half a second each


def lines_until(path: Path, step: int) -> list[str]:
    """Returns a metrics file's lines of the steps up to this one, without the line that a killed process wrote half."""
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
    """A log before each checkpoint, or the mean loss since the last log would be lost with the process. Comes last."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_log |= control.should_save


class WriteMetrics(TrainerCallback):
    """The metrics file: each log and each evaluation, with a few translations of `dev_set`, which `tell` hears too.

    A training that goes on from a checkpoint first takes the lines after it away: every step is in the file once.
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
        """Returns source, reference and output of the chosen sentences, as last translated; none if nothing was."""
        dev = self.dev_set
        if not dev.translations:
            return []
        texts = {"source": dev.sources or [], "reference": dev.references, "output": dev.translations}
        return [{name: lines[i] for name, lines in texts.items() if lines} for i in self.chosen]


class DrawCurves(TrainerCallback):
    """The curves in curves.png: at the end, a signal's too, and now and then at an evaluation, the clock `paused`."""

    def __init__(
        self, folder: Path, warn: Callable[[str], None], paused: Callable[[], AbstractContextManager] = nullcontext
    ) -> None:
        self.folder, self.warn, self.paused = folder, warn, paused
        self._last = time.monotonic()
        self._said = ""

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero and time.monotonic() - self._last > DRAW_AFTER:
            self.draw()

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.draw()

    def draw(self) -> None:
        """Draws the curves. If that fails, a warning says so, once for each reason, and the training goes on."""
        try:
            from hf_mlnmt.evaluation.curves import draw

            with self.paused():
                draw(self.folder, self.folder / CURVES)
        except Exception as error:
            if str(error) != self._said:
                self._said = str(error)
                self.warn(f"{CURVES} was not drawn: {error}")
        self._last = time.monotonic()
