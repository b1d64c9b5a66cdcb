"""A whole training from a recipe: tokenizers, data, model, training, averaging, scores. Stopped, it goes on."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from rich.console import Console
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation import Results, read_results, score_tables
from hf_mlnmt.training import checkpoints, finishing, folder
from hf_mlnmt.training.arguments import computes_bfloat16, higher_is_better, precision, schedule, training_arguments
from hf_mlnmt.training.callbacks import EarlyStopping, Interrupted, ShowProgress, StopOnSignal
from hf_mlnmt.training.dry_run import report as dry_run_report
from hf_mlnmt.training.objectives import Translation
from hf_mlnmt.training.preparation import Preparation, RawPairs
from hf_mlnmt.training.recipe import Recipe, read_recipe
from hf_mlnmt.training.trainer import Batches, TranslationTrainer
from hf_mlnmt.zoo.records import record_path


def run_recipe(
    recipe: Recipe | str | Path,
    data: str | Path = ".",
    output: str | Path | None = None,
    settings: list[str] | tuple[str, ...] = (),
    seed: int | None = None,
    dry_run: bool = False,
    console: Console | None = None,
    command: str | None = None,
) -> Results | None:
    """Train a model as a recipe says, score it, and leave complete model folders.

    Everything goes into `output` (default: runs/<recipe>, with `seed` if it is given): tokenizer/, data/,
    checkpoints/, best/, average/ (model folders), translations/, results.json (of the average). Started again with the
    same arguments after any interruption it goes on where it was, to the same weights bit for bit on a CPU.

    Args:
        recipe: a Recipe, the path of its YAML, or the name of a record.
        data: folder that the recipe's paths are relative to.
        settings: "key.sub=value" strings that replace keys of the recipe.
        dry_run: only print sizes, batches and estimates; nothing is left behind; returns None.

    Raises:
        UserError: for anything the user can mend; Interrupted after a signal, when the state is saved.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(record_path("training", recipe), settings, seed)
    elif settings or seed is not None:
        raise TypeError("settings and seed are for recipes given as a path; a Recipe is changed by dataclasses.replace")
    named = recipe.stem if seed is None else f"{recipe.stem}.seed{seed}"
    run = Run(recipe, Path(data), Path(output or Path("runs") / named), console or Console(stderr=True))
    run.command = command or _command(run.processes.num_processes)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if dry_run:
        with tempfile.TemporaryDirectory() as nowhere:
            run.output = Path(nowhere)
            run.dry()
        return None
    main = run.processes.is_main_process
    with folder.alone(run.output) if main else nullcontext(), _sigterm_interrupts():
        return run.go()


def _command(processes: int) -> str:
    """What a user types to get this run, however its processes were started."""
    name = Path(sys.argv[0]).name
    words = ["hf-mlnmt" if name == "__main__.py" else name, *sys.argv[1:]]
    return shlex.join([*words, *(["--processes", str(processes)] if processes > 1 else [])])


class Run:
    """One run and its folder."""

    def __init__(self, recipe: Recipe, data: Path, output: Path, console: Console) -> None:
        self.recipe, self.data, self.output, self.console = recipe, data, output, console
        self.processes = PartialState(cpu=not torch.accelerator.is_available())
        self.command = ""

    def tell(self, text: str) -> None:
        """A line for the user, from one process only."""
        if self.processes.is_main_process:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """The same, to be seen."""
        if self.processes.is_main_process:
            self.console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def go(self) -> Results | None:
        """The whole job; the results, on the main process."""
        if self.processes.is_main_process:
            folder.claim(self.output, self.recipe, self.command)
        if (self.output / "results.json").is_file():
            self.tell(f"{self.output} is finished; delete results.json to score it again, or choose another --output.")
            return read_results(self.output / "results.json")
        preparation = self._preparation()
        trainer = self._trainer(preparation)
        self._train(trainer)
        steps, best = self._finished(trainer)
        if not self.processes.is_main_process:
            return None
        saved, generation = self.output / "checkpoints", trainer.model.generation_config
        folders = finishing.best_and_average(saved, steps, best, self.output, generation)
        return self._score(folders, steps, best, preparation.test_sets(), trainer)

    def dry(self) -> None:
        """Print what would be done and an estimate of what it would cost."""
        preparation = self._preparation()
        self.tell(dry_run_report(self.recipe, self._trainer(preparation)))

    # Before

    def _preparation(self) -> Preparation:
        """Tokenizers and data are made by one process while the others wait, then read by all."""
        preparation = Preparation(self.recipe, self.data, self.output, self.tell)
        with self.processes.main_process_first():
            self.tokenizers = preparation.tokenizers()
            self.training_data = preparation.training_data(self.tokenizers)
            self.dev_set = preparation.dev_set(self.tokenizers)
        if self.processes.is_main_process:
            folder.check_data(self.output, [part.meta["fingerprint"] for part in self.training_data.parts])
        return preparation

    def _trainer(self, preparation: Preparation) -> TranslationTrainer:
        recipe, batch = self.recipe, self.recipe.batch
        arguments = training_arguments(recipe, self.output)
        if arguments.bf16 and not computes_bfloat16(arguments.use_cpu):
            self.warn(
                "precision.dtype is bf16, but this machine has no instructions for bfloat16 and emulates it, slowly. "
                "Set precision.dtype to float32, or to auto, which chooses."
            )
        model = preparation.model(self.tokenizers)
        self.early = None
        callbacks: list[Any] = [ShowProgress(self.console), stop := StopOnSignal()]
        if recipe.evaluation.patience:
            settings = recipe.evaluation
            self.early = EarlyStopping(settings.best, higher_is_better(recipe), settings.patience or 1)
            callbacks.append(self.early)
        trainer = TranslationTrainer(
            model,
            arguments,
            self.training_data,
            Translation(model.config.pad_token_id, recipe.label_smoothing),
            Batches(batch.tokens, batch.side, batch.max_sentences, self.training_data.choose),
            schedule(recipe),
            self.dev_set,
            save_extras=self.tokenizers.save,
            callbacks=callbacks,
        )
        trainer.remove_callback(PrinterCallback)
        self._check_budget(trainer)
        self.stop, self.progress = stop, callbacks[0]
        return trainer

    def _check_budget(self, trainer: TranslationTrainer) -> None:
        """What is to fit in the training, now that the length of an epoch is known."""
        turning, (steps, steps_per_epoch) = self.recipe.data.bidirectional_epochs, trainer.steps()
        try:
            schedule(self.recipe).ends(steps)
        except UserError as error:
            raise UserError(f"{self.recipe.path}: schedule: {error}") from error
        epochs = steps / steps_per_epoch
        if turning and turning >= epochs:
            raise UserError(
                f"{self.recipe.path}: data.bidirectional_epochs is {turning} but the budget is {epochs:.4g} epochs: "
                "leave most of them for the recipe's own direction (both for a third of them is a good beginning)."
            )

    # Training

    def _train(self, trainer: TranslationTrainer) -> None:
        """Train from the last good checkpoint, or from the start, to the end."""
        saved = self.output / "checkpoints"
        if self.processes.is_main_process:
            checkpoints.remove_leftovers(saved)
        checkpoint = checkpoints.last_good(saved, self.warn)
        self.processes.wait_for_everyone()
        if checkpoint is not None:
            self._check_processes(trainer, checkpoint)
            if self._is_done(trainer, checkpoint):
                return
            self.tell(f"going on from {checkpoint}")
        parameters = trainer.model.num_parameters()
        self.tell(f"{type(trainer.model).__name__}: {parameters:,} parameters, training on {trainer.args.device}")
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        finally:
            self.progress.close()
            self.stop.release()
        if self.stop.signum is not None:
            name = signal.Signals(self.stop.signum).name
            raise Interrupted(
                self.stop.signum,
                f"{name}: stopped at step {trainer.state.global_step}; the state is saved in {saved}. The same "
                "command goes on from there.",
            )

    def _check_processes(self, trainer: TranslationTrainer, checkpoint: Path) -> None:
        before = finishing.read_state(checkpoint)["meter"].get("processes", 1)
        if before != trainer.args.world_size:
            raise UserError(
                f"{checkpoint}: made by {before} process(es), now there are {trainer.args.world_size}. Steps would "
                f"mean other batches: start with {before} again, or choose another --output."
            )

    def _is_done(self, trainer: TranslationTrainer, checkpoint: Path) -> bool:
        state = finishing.read_state(checkpoint)
        stopped = self.early is not None and self.early.should_stop(state["log_history"])
        return stopped or state["global_step"] >= state["max_steps"]

    def _finished(self, trainer: TranslationTrainer) -> tuple[list[int], int | None]:
        """The steps to average and the best step, of a training that is at its end."""
        saved = checkpoints.checkpoints(self.output / "checkpoints")
        state = finishing.read_state(saved[-1])
        trainer.state.max_steps, trainer.state.save_steps = state["max_steps"], self.recipe.evaluation.every
        steps = trainer.scheduled([checkpoints.step_of(path) for path in saved])
        self.state = state
        return steps[-self.recipe.checkpoints.average :], state["best_global_step"]

    # After

    def _score(
        self, folders: dict[str, Path], steps: list[int], best: int | None, tests: list[RawPairs], trainer: Any
    ) -> Results:
        """Scores of both models on all test sets; results.json beside each and, of the average, in the run's folder."""
        facts = self._facts(trainer)
        made_of = {"best": [best or steps[-1]], "average": steps}
        for name, model in folders.items():
            scores = finishing.score_model(model, tests, self.recipe, self.tell)
            model_facts = {**facts, "checkpoints": made_of[name]}
            results = finishing.write_results(model / "results.json", self.recipe.stem, model_facts, scores)
            for test, by_protocol in scores.items():
                self.tell(f"\n{name} ({model}) on {test}")
                for table in score_tables(by_protocol):  # type: ignore[arg-type]
                    self.console.print(table)
        results.write(self.output / "results.json")
        return results

    def _facts(self, trainer: TranslationTrainer) -> dict[str, Any]:
        meter, steps = self.state["meter"], self.state["global_step"]
        seconds = max(meter["seconds"], 1e-9)
        history = [entry for entry in self.state["log_history"] if "eval_loss" in entry]
        return {
            "data": {"name": self.recipe.data.name, "licence": self.recipe.data.licence, **self._data_sizes()},
            "seed": self.recipe.seed,
            "budget": {
                "steps": steps,
                "epochs": round(self.state["epoch"], 3),
                "seconds": round(meter["seconds"], 1),
                # The meter is the main process's; the others do as much.
                "cpu_minutes": round(meter["cpu_seconds"] * trainer.args.world_size / 60, 2),
                "target_tokens": meter["tokens"],
                "processes": trainer.args.world_size,
                "device": str(trainer.args.device),
                "precision": precision(trainer.args),
            },
            "command": self.command,
            "parameters": trainer.model.num_parameters(),
            "steps_per_second": round(steps / seconds, 3),
            "target_tokens_per_second": round(meter["tokens"] / seconds, 1),
            "decoding": self.recipe.to_dict()["decoding"],
            "languages": self.recipe.to_dict()["languages"],
            "dev": history,
            "recipe": self.recipe.to_dict(),
        }

    def _data_sizes(self) -> dict[str, Any]:
        reports = [part.report.to_dict() for part in self.training_data.parts]
        corpora = self.recipe.data.train if isinstance(self.recipe.data.train, list) else [self.recipe.data.train]
        return {"train": [{"corpus": corpus, **report} for corpus, report in zip(corpora, reports)]}


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Outside the training loop SIGTERM ends the run as Ctrl-C does; whatever is being written is written aside."""

    def interrupt(signum: int, frame: Any) -> None:
        raise Interrupted(signum, "SIGTERM: stopped; what was finished is kept. The same command goes on from there.")

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
