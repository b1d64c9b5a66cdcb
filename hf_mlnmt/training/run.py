"""A whole training from a recipe: tokenizers, data, model, training, averaging, scores. Stopped, it goes on."""

from __future__ import annotations

import shlex
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from rich.console import Console
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation import Results, read_results
from hf_mlnmt.made_from import Changes
from hf_mlnmt.model_folder import RESULTS
from hf_mlnmt.recipe.checks import check_budget
from hf_mlnmt.recipe.reading import Recipe, read_recipe
from hf_mlnmt.recipe.schema import saved_steps
from hf_mlnmt.training import checkpoints, folder
from hf_mlnmt.training.arguments import (
    computes_bfloat16,
    higher_is_better,
    remark,
    schedule,
    tracking_in,
    training_arguments,
)
from hf_mlnmt.training.callbacks import (
    DrawCurves,
    EarlyStopping,
    Interrupted,
    LogBeforeSaving,
    ShowProgress,
    StopOnSignal,
    WriteMetrics,
    sigterm_interrupts,
)
from hf_mlnmt.training.dev import DevSet
from hf_mlnmt.training.dry_run import report as dry_run_report
from hf_mlnmt.training.folder import digest_of_tests, made_from
from hf_mlnmt.training.preflight import check_before, doubts_about_rows
from hf_mlnmt.training.preparation import Preparation
from hf_mlnmt.training.scoring import Scoring, best_and_average, facts_of, score_texts, table_of
from hf_mlnmt.training.tasks import Batches, lasting_parameters
from hf_mlnmt.training.trainer import TranslationTrainer
from hf_mlnmt.zoo.records import record_path


def is_done(checkpoint: Path, trainer: TranslationTrainer, early: EarlyStopping | None) -> bool:
    """Whether a training that has come to this checkpoint is at its end."""
    state = checkpoints.read_state(checkpoint)
    stopped = early is not None and early.should_stop(state["log_history"])
    return stopped or state["global_step"] >= trainer.steps()[0]


def check(checkpoint: Path, trainer: TranslationTrainer, recipe: Recipe, early: EarlyStopping | None) -> None:
    """Refuse to go on from a checkpoint that this training could not have made, or could not end with.

    Raises: UserError for another number of processes, a budget that is spent, or too few checkpoints to average.
    """
    before = checkpoints.read_state(checkpoint)["meter"].get("processes", 1)
    if before != trainer.args.world_size:
        raise UserError(
            f"{checkpoint}: made by {before} process(es), now there are {trainer.args.world_size}. Steps would "
            f"mean other batches: start with {before} again, or choose another --output."
        )
    done, steps = checkpoints.step_of(checkpoint), trainer.steps()[0]
    if done > steps:
        raise UserError(
            f"{checkpoint}: {done:,} steps are done, and the budget is now {steps:,}: a training cannot be shortened. "
            "Raise the budget, or choose another --output."
        )
    if is_done(checkpoint, trainer, early):
        kept, wanted = kept_steps(checkpoint.parent, trainer, recipe), recipe.checkpoints.average
        if len(kept) < min(wanted, len([step for step in saved_steps(recipe, steps) if step <= done])):
            raise UserError(
                f"{checkpoint.parent}: checkpoints.average is {wanted}, but this run has kept {len(kept)}: "
                f"{', '.join(map(str, kept))}. Lower it; checkpoints.keep says beforehand how many are kept."
            )


def kept_steps(saved: Path, trainer: TranslationTrainer, recipe: Recipe) -> list[int]:
    """Steps of the checkpoints in `saved` that count for the average."""
    trainer.state.max_steps, trainer.state.save_steps = trainer.steps()[0], recipe.evaluation.every
    return trainer.scheduled([checkpoints.step_of(path) for path in checkpoints.checkpoints(saved)])


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
    checkpoints/, metrics.jsonl, curves.png, best/, average/ (model folders), translations/, results.json (of the
    average). Started again with the same arguments after any interruption it goes on where it was, to the same weights
    bit for bit on a CPU; with changes that folder.py allows, only what changed is done again.

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
    if recipe.rounds is not None:
        raise UserError(f"{recipe.path}: has rounds, which are trained one after the other: hf-mlnmt train.")
    named = recipe.stem if seed is None else f"{recipe.stem}.seed{seed}"
    run = Run(recipe, Path(data), Path(output or Path("runs") / named), console or Console(stderr=True))
    run.command = command or _command(run.processes.num_processes)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    main = run.processes.is_main_process
    with folder.explained(run.output), tracking_in(run.output):
        if main:
            folder.check_output(run.output)
        if dry_run:
            run.dry()
            return None
        with folder.alone(run.output) if main else nullcontext(), sigterm_interrupts():
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
        self.amended: Changes = {}

    def tell(self, text: str) -> None:
        """A line for the user, from one process only."""
        if self.processes.is_main_process:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A warning for the user, in yellow, from one process only."""
        if self.processes.is_main_process:
            self.console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def go(self) -> Results | None:
        """The whole job; the results, on the main process."""
        preparation = Preparation(self.recipe, self.data, self.output, self.tell)
        if self._is_finished(preparation):
            self.tell(f"{self.output} is finished, and nothing changed since. Choose another --output for another run.")
            return read_results(self.output / RESULTS)
        self._prepare(preparation)
        trainer = self._trainer(preparation)
        checkpoint = self._last_checkpoint(trainer)
        if self.processes.is_main_process:
            folder.keep_recipe(self.output, self.recipe, self.command, amended=bool(self.amended))
        self._train(trainer, checkpoint, preparation)
        steps, best = self._finished(trainer)
        if not self.processes.is_main_process:
            return None
        saved, generation = self.output / "checkpoints", getattr(trainer.model, "generation_config", None)
        folders = best_and_average(saved, steps, best, self.output, generation)
        self.account = {"init_from": account} if (account := preparation.account()) else {}
        return self._score(folders, steps, best, preparation, trainer)

    def dry(self) -> None:
        """Check everything; print what would be done and an estimate of what it would cost; leave nothing."""
        if self.processes.is_main_process:
            folder.compare(self.output, self.recipe)
        with folder.temporary() as self.output:
            preparation = Preparation(self.recipe, self.data, self.output, self.tell)
            self._check(preparation)
            self._prepare(preparation)
            trainer = self._trainer(preparation)
            preparation.initialise(trainer.model, self.tokenizers)
            self.tell(dry_run_report(self.recipe, trainer))

    # Before

    def _is_finished(self, preparation: Preparation) -> bool:
        """Whether nothing is to be done in this folder; the same on every process. Checks everything if something is.

        `amended` are then the keys of the recipe that are other than in an earlier start.
        """
        finished = False
        if self.processes.is_main_process:
            self.amended = folder.compare(self.output, self.recipe)
            if self.amended:
                self.tell(f"{self.output}: changed since the last start: {', '.join(self.amended)}")
            done = (self.output / RESULTS).is_file() and not self.amended
            finished = done and not self._tests_changed(preparation)
            if not finished:
                self._check(preparation)
                folder.clean(self.output)
                folder.keep_recipe(self.output, self.recipe, self.command)
        return broadcast_object_list([finished])[0] if self.processes.num_processes > 1 else finished

    def _tests_changed(self, preparation: Preparation) -> bool:
        now = digest_of_tests(preparation.test_sets())
        return made_from(self.output).digests.get("tests", now) != now

    def _check(self, preparation: Preparation) -> None:
        """Everything that can be known beforehand."""
        if self.processes.is_main_process:
            for warning in check_before(preparation, self.processes.num_processes):
                self.warn(warning)

    def _prepare(self, preparation: Preparation) -> None:
        """Tokenizers and data are made by one process while the others wait, then read by all."""
        with self.processes.main_process_first():
            self.tokenizers = preparation.tokenizers()
            self.training_sets = preparation.training_sets(self.tokenizers)
            self.dev_sets = preparation.dev_sets(self.tokenizers)
        self.reports = preparation.reports(self.training_sets)
        if self.processes.is_main_process:
            folder.check_data(self.output, preparation.fingerprints(self.training_sets))

    def _trainer(self, preparation: Preparation) -> TranslationTrainer:
        recipe, batch = self.recipe, self.recipe.batch
        arguments = training_arguments(recipe, self.output)
        if arguments.bf16 and not computes_bfloat16(arguments.use_cpu):
            self.warn(
                "precision.dtype is bf16, but this machine has no instructions for bfloat16 and emulates it, slowly. "
                "Set precision.dtype to float32, or to auto, which chooses."
            )
        if line := remark(recipe, arguments.use_cpu):
            self.warn(line)
        model = preparation.model(self.tokenizers)
        tasks = preparation.tasks(model, self.tokenizers, self.training_sets)
        preparation.name_losses(self.dev_sets, tasks)
        trainer = TranslationTrainer(
            model,
            arguments,
            tasks,
            Batches(batch.tokens, batch.side, batch.max_sentences),
            schedule(recipe),
            self.dev_sets,
            save_extras=self.tokenizers.save,
            callbacks=self._callbacks(),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(LogBeforeSaving())  # the last, so that it sees who wants a checkpoint
        self.curves.paused = trainer.meter.paused
        for warning in [*check_budget(recipe, trainer.steps()[0]), *doubts_about_rows(model.config, tasks)]:
            self.warn(warning)
        return trainer

    def _shown(self) -> DevSet:
        """The development set whose translations are shown: the first that is translated, if any is."""
        return next((one for one in self.dev_sets if one.references), self.dev_sets[0])

    def _callbacks(self) -> list[Any]:
        settings = self.recipe.evaluation
        self.progress, self.stop, self.early = ShowProgress(self.console), StopOnSignal(), None
        self.curves = DrawCurves(self.output, self.warn)
        metrics = WriteMetrics(self.output, self._shown(), self.recipe.seed, self.tell)
        found: list[Any] = [self.progress, self.stop, metrics, self.curves]
        if settings.patience:
            self.early = EarlyStopping(settings.best, higher_is_better(self.recipe), settings.patience)
            found.append(self.early)
        return found

    # Training

    def _last_checkpoint(self, trainer: TranslationTrainer) -> Path | None:
        """Where training goes on; the same on every process."""
        saved = self.output / "checkpoints"
        if self.processes.is_main_process:
            checkpoints.remove_leftovers(saved)
        checkpoint = checkpoints.last_good(saved, self.warn)
        self.processes.wait_for_everyone()
        if checkpoint is not None:
            check(checkpoint, trainer, self.recipe, self.early)
        return checkpoint

    def _train(self, trainer: TranslationTrainer, checkpoint: Path | None, preparation: Preparation) -> None:
        """Train from the last good checkpoint, or from the start, to the end."""
        saved = self.output / "checkpoints"
        if checkpoint is not None:
            if is_done(checkpoint, trainer, self.early):
                return
            self.tell(f"going on from {checkpoint}")
        else:
            preparation.initialise(trainer.model, self.tokenizers)
        parameters = lasting_parameters(trainer.model)
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

    def _finished(self, trainer: TranslationTrainer) -> tuple[list[int], int | None]:
        """The steps to average and the best step, of a training that is at its end."""
        saved = self.output / "checkpoints"
        self.state = checkpoints.read_state(checkpoints.checkpoints(saved)[-1])
        steps = kept_steps(saved, trainer, self.recipe)
        return steps[-self.recipe.checkpoints.average :], self.state["best_global_step"]

    # After

    def _score(
        self,
        folders: dict[str, Path],
        steps: list[int],
        best: int | None,
        preparation: Preparation,
        trainer: TranslationTrainer,
    ) -> Results:
        """Scores of both models on all test sets; results.json beside each and, of the average, in the run's folder."""
        tests = preparation.test_sets()
        facts = facts_of(self.recipe, self.state, trainer, self.reports, self.command) | self.account
        made = made_from(self.output)
        made_of = {"best": [best or steps[-1]], "average": steps}
        scoring = Scoring(self.output, made, self.tell)
        pairs, texts = [one for one in tests if one.references], [one for one in tests if not one.references]
        results = {
            name: scoring.score(model, pairs, self.recipe.stem, {**facts, "checkpoints": made_of[name]})
            for name, model in folders.items()
        }
        if texts:
            objective = trainer.tasks[0].objective
            self.console.print(
                score_texts(folders, results, objective, self.tokenizers, texts, preparation.encoded_test)
            )
        made.note("tests", digest_of_tests(tests))
        results["average"].write(self.output / RESULTS)
        if pairs:
            self.console.print(table_of(results))
        self.tell(
            f"models: {folders['average']} and {folders['best']}; results, curves and translations lie beside them"
        )
        return results["average"]
