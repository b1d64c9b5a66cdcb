"""metrics.jsonl: what a training logs and scores, a JSON object a line, as it goes; and curves.png, drawn from it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_mlnmt.files import write_text
from hf_mlnmt.model_folder import CURVES
from hf_mlnmt.training.dev import DevSet

METRICS = "metrics.jsonl"
SAMPLES = 3
DRAW_AFTER = 120.0  # seconds between two drawings, which take about half a second each


def lines_until(path: Path, step: int) -> list[str]:
    """The lines of a metrics file that belong to the steps up to this one; what a killed process wrote half is not."""
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
    """A log at each checkpoint: the mean loss since the last log is not in it, and would be lost with the process."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the callbacks that ask for a checkpoint."""
        control.should_log |= control.should_save


class WriteMetrics(TrainerCallback):
    """Writes each log and each evaluation into the metrics file, evaluations with a few translations.

    A training that goes on from a checkpoint first takes the lines after it away, so that every step is in the file
    once, however often it was interrupted.

    Args:
        dev_set: whose translations are shown; sentences are chosen by `seed` and stay the same.
        tell: hears the translations.
    """

    def __init__(self, folder: Path, dev_set: DevSet, seed: int, tell: Callable[[str], None]) -> None:
        self.path, self.dev_set, self.tell = folder / METRICS, dev_set, tell
        count = len(dev_set.dataset)
        chosen = np.random.default_rng([seed, 7]).choice(count, min(SAMPLES, count), replace=False)
        self.chosen = sorted(chosen.tolist())

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin the file, or leave what belongs to the steps that are done."""
        if state.is_world_process_zero:
            write_text(self.path, "".join(f"{line}\n" for line in lines_until(self.path, state.global_step)))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """One line, of a log of the training or of an evaluation."""
        if not state.is_world_process_zero or not logs or not {"loss", "eval_loss"} & logs.keys():
            return
        numbers = {key: None if _is_no_number(value) else value for key, value in logs.items()}
        line: dict[str, Any] = {"step": state.global_step, "epoch": state.epoch, **numbers}
        if "eval_loss" in logs and (samples := self.samples()):
            line["samples"] = samples
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        for sample in line.get("samples", []):
            self.tell("\n".join(f"  {name:<9}  {text}" for name, text in sample.items()))

    def samples(self) -> list[dict[str, str]]:
        """Source, reference and output of the chosen sentences, as last translated; none if nothing was."""
        dev = self.dev_set
        if not dev.translations:
            return []
        texts = {"source": dev.sources or [], "reference": dev.references, "output": dev.translations}
        return [{name: lines[i] for name, lines in texts.items() if lines} for i in self.chosen]


class DrawCurves(TrainerCallback):
    """Draws curves.png from the metrics file, at the end and now and then after an evaluation.

    `paused`: a context in which the time is not counted as training's.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self.folder, self.warn = folder, warn
        self.paused: Callable[[], AbstractContextManager] = nullcontext
        self._last = time.monotonic()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After an evaluation, if the last drawing is some time ago."""
        if state.is_world_process_zero and time.monotonic() - self._last > DRAW_AFTER:
            self.draw()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draw the curves; called too when a signal ends the training."""
        if state.is_world_process_zero:
            self.draw()

    def draw(self) -> None:
        """Draw the curves. If that fails, a warning says so and the training goes on."""
        try:
            from hf_mlnmt.analysis.curves import draw

            with self.paused():
                draw([self.folder], self.folder / CURVES)
        except Exception as error:
            self.warn(f"{CURVES} was not drawn: {error}")
        self._last = time.monotonic()


def _is_no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
