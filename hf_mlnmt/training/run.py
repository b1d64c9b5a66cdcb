"""A whole training from a recipe, in stages: check, data, model, train, average, score. Stopped, it goes on.

`train_one` is all stages in their order; each takes what those before it returned. A recipe with `rounds` is several
trainings, one after the other, that translate for one another (`train_in_rounds`; rounds.py).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator, PartialState
from rich.console import Console
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging

from hf_mlnmt import products
from hf_mlnmt.data.synthetic import MANIFEST
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation import Results, read_results, score_protocols, versions
from hf_mlnmt.evaluation.perplexity import perplexity
from hf_mlnmt.evaluation.scores import with_arrow
from hf_mlnmt.files import file_name, read_json, write_json, write_text
from hf_mlnmt.generation.back_translation import Watcher
from hf_mlnmt.made_from import Changes, MadeFrom, digest
from hf_mlnmt.model_folder import RESULTS, WEIGHTS, auto_class_of, load_model
from hf_mlnmt.recipe.checks import check_budget
from hf_mlnmt.recipe.reading import Recipe, find_recipe, read_recipe
from hf_mlnmt.recipe.schema import saved_steps
from hf_mlnmt.table import Number, Table
from hf_mlnmt.training import checkpoints, folder
from hf_mlnmt.training.arguments import (
    check_launcher,
    computes_bfloat16,
    higher_is_better,
    is_compiled,
    precision,
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
from hf_mlnmt.training.objectives import Objective
from hf_mlnmt.training.preflight import check_before, check_lengths, doubts_about_rows
from hf_mlnmt.training.preparation import EncodedSet, Preparation, RawPairs, measured_by
from hf_mlnmt.training.processes import check_all, main_first, meet, of_main
from hf_mlnmt.training.rounds import Rounds, read_rounds
from hf_mlnmt.training.tasks import lasting_parameters
from hf_mlnmt.training.trainer import TranslationTrainer


@folder.each_said_once()
def run_recipe(
    recipe: Recipe | str | Path,
    data: str | Path = ".",
    output: str | Path | None = None,
    settings: list[str] | tuple[str, ...] = (),
    seed: int | None = None,
    dry_run: bool = False,
    console: Console | None = None,
    command: str | None = None,
    watcher: Watcher | None = None,
    system: str | None = None,
) -> Results | dict[str, Results] | None:
    """Train a model as a recipe says, score it, and leave complete model folders.

    Everything goes into `output` (default: runs/<recipe>, with `seed` if it is given): tokenizer/, data/,
    checkpoints/, metrics.jsonl, curves.png, best/, average/ (model folders), translations/, results.json (of the
    average). Started again with the same arguments after any interruption it goes on where it was, to the same weights
    bit for bit on a CPU; with changes that folder.py allows, only what changed is done again. Of a recipe with rounds
    `output` has such a folder for each round, and what was translated for it in <round>.synthetic/.

    Args:
        recipe: a Recipe, the path of its YAML, or the name of a setup.
        system: what is trained in a setup (recipe/reading.py); unless given, its baseline.
        data: folder that the recipe's paths are relative to.
        settings: "key.sub=value" strings that replace keys of the recipe.
        dry_run: only print sizes, batches and estimates; nothing is left behind.
        watcher: is told how translations between rounds go; default: the console is, without progress.

    Returns: the Results of the average, or, of a recipe with rounds, {round: Results}; None after a dry run, and on
        other processes than the main one.

    Raises:
        UserError: for anything the user can mend; Interrupted after a signal, when the state is saved.
    """
    check_launcher()
    path = None
    if not isinstance(recipe, Recipe):
        path, own = find_recipe(recipe, system)
        settings = [*own, *settings]
        recipe = read_recipe(path, settings, seed)
    elif settings or seed is not None or system is not None:
        raise TypeError(
            "settings, seed and system are for recipes given as a path; a Recipe is changed by dataclasses.replace"
        )
    named = recipe.stem if seed is None else f"{recipe.stem}.seed{seed}"
    processes = PartialState(cpu=not torch.accelerator.is_available())
    run = Run(
        recipe,
        Path(data),
        Path(output or Path("runs") / named),
        console or Console(stderr=True),
        processes,
        command or _command(processes.num_processes),
    )
    if recipe.rounds is None:
        return train_in_folder(run, dry_run)
    if path is None:
        raise TypeError("a recipe with rounds is given as its path: each round reads it with keys of its own")
    return train_in_rounds(run, read_rounds(path, settings, seed), dry_run, watcher)


def _command(processes: int) -> str:
    """What a user types to get this run, however its processes were started."""
    name = Path(sys.argv[0]).name
    words = ["hf-mlnmt" if name == "__main__.py" else name, *sys.argv[1:]]
    return shlex.join([*words, *(["--processes", str(processes)] if processes > 1 else [])])


@dataclass(frozen=True)
class Run:
    """What a training is given. All else is what its stages return.

    data: the folder that the recipe's paths are relative to. output: the run's folder.
    command: what a user types to get this run.
    """

    recipe: Recipe
    data: Path
    output: Path
    console: Console
    processes: PartialState
    command: str

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.processes.is_main_process

    @property
    def saved(self) -> Path:
        """The folder of the checkpoints."""
        return self.output / "checkpoints"

    def tell(self, text: str, style: str | None = None) -> None:
        """A line for the user, from one process only."""
        if self.is_main:
            self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A warning for the user, in yellow, from one process only."""
        self.tell(text, "yellow")

    def warn_of(self, warnings: Iterable[str]) -> None:
        """The same of each; other processes do not look for them."""
        if self.is_main:
            for warning in warnings:
                self.warn(warning)


def train_in_folder(run: Run, dry_run: bool) -> Results | None:
    """`train_one` or `dry_run_of_one`, alone in the run's folder, with errors of the system in words."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    with folder.explained(run.output), tracking_in(run.output):
        if run.is_main:
            folder.check_output(run.output)
        if dry_run:
            dry_run_of_one(run)
            return None
        with folder.alone(run.output) if run.is_main else nullcontext(), sigterm_interrupts():
            return train_one(run)


def train_one(run: Run) -> Results | None:
    """One training from its recipe to its scores; the results, on the main process."""
    preparation = Preparation(run.recipe, run.data, run.output, run.tell)
    start = check(run, preparation)
    if start.finished:
        run.tell(f"{run.output} is finished, and nothing changed since. Choose another --output for another run.")
        return read_results(run.output / RESULTS)
    data = make_data(run, preparation)
    training = make_model(run, preparation, data)
    checkpoint = last_checkpoint(run, training)
    if run.is_main:
        folder.keep_recipe(run.output, run.recipe, run.command, amended=bool(start.changes))
    train(run, preparation, data, training, checkpoint)
    if not run.is_main:
        return None
    trained = end_of_training(run, training)
    models = average(run, training, trained)
    return score(run, preparation, data, training, trained, models)


_OF_THE_HUB = ("push_to_hub", "hub_")  # arguments by which a trainer makes a repository when it is made


def dry_run_of_one(run: Run) -> None:
    """Check everything; print what would be done and an estimate of what it would cost; leave nothing."""
    if run.is_main:
        folder.compare(run.output, run.recipe)
    with folder.temporary() as output:
        arguments = {name: value for name, value in run.recipe.arguments.items() if not name.startswith(_OF_THE_HUB)}
        run = dataclasses.replace(run, output=output, recipe=dataclasses.replace(run.recipe, arguments=arguments))
        preparation = Preparation(run.recipe, run.data, run.output, run.tell)
        run.warn_of(check_before(preparation, run.processes.num_processes))
        data = make_data(run, preparation)
        training = make_model(run, preparation, data)
        preparation.initialise(training.trainer.model, data.tokenizers)
        run.tell(dry_run_report(run.recipe, training.trainer))


# Check


@dataclass(frozen=True)
class Start:
    """What a run's folder says of it: whether nothing is to be done, and which keys changed since the last start.

    The other processes know only the first.
    """

    finished: bool
    changes: Changes


def check(run: Run, preparation: Preparation) -> Start:
    """Compare with the last start; if there is something to do, check everything that can be known beforehand."""
    finished, changes = False, {}
    meet()
    if run.is_main:
        changes = folder.compare(run.output, run.recipe)
        if changes:
            run.tell(f"{run.output}: changed since the last start: {', '.join(changes)}")
        finished = folder.is_finished(run.output, changes, preparation.test_sets)
        if not finished:
            run.warn_of(check_before(preparation, run.processes.num_processes))
            folder.clean(run.output)
            folder.keep_recipe(run.output, run.recipe, run.command)
    return Start(of_main(finished), changes)


# Data


@dataclass(frozen=True)
class Data:
    """What is trained on and scored while training; `training_sets` by the names of their tasks."""

    tokenizers: Tokenizers
    training_sets: Mapping[str, EncodedSet]
    dev_sets: Sequence[DevSet]


def make_data(run: Run, preparation: Preparation) -> Data:
    """Tokenizers and data are made by one process while the others wait, then read by all."""
    with main_first():
        tokenizers = preparation.tokenizers()
        data = Data(tokenizers, preparation.training_sets(tokenizers), preparation.dev_sets(tokenizers))
    if run.is_main:
        folder.check_data(run.output, preparation.fingerprints(data.training_sets))
    return data


# Model


@dataclass(frozen=True)
class Training:
    """The trainer, which holds the model and its tasks, and the callbacks that are asked something afterwards."""

    trainer: TranslationTrainer
    progress: ShowProgress
    stop: StopOnSignal
    early: EarlyStopping | None


def make_model(run: Run, preparation: Preparation, data: Data) -> Training:
    """The model with new weights, its tasks, and the trainer around them."""
    recipe = run.recipe
    arguments = training_arguments(recipe, run.output)
    if arguments.bf16 and not computes_bfloat16(arguments.use_cpu):
        run.warn(
            "precision.dtype is bf16, but this machine has no instructions for bfloat16 and emulates it, slowly. "
            "Set precision.dtype to float32, or to auto, which chooses."
        )
    if line := remark(recipe, arguments.use_cpu):
        run.warn(line)
    model = preparation.model(data.tokenizers)
    tasks = preparation.tasks(model, data.tokenizers, data.training_sets)
    if model.config.is_encoder_decoder and model.can_generate():  # longer sentences are translated in parts
        generation: Any = model.generation_config
        generation.max_source_tokens = max(int(task.data.source_lengths.max()) for task in tasks)
    dev_sets = measured_by(tasks, data.dev_sets)
    check_lengths(preparation, model.config, preparation.read_whole(data.tokenizers, data.dev_sets))
    trainer = TranslationTrainer(
        model,
        arguments,
        tasks,
        recipe.batch,
        schedule(recipe),
        dev_sets,
        save_extras=data.tokenizers.save,
        compiled=is_compiled(recipe, arguments.use_cpu),
    )
    trainer.remove_callback(PrinterCallback)
    progress, stop, patience = ShowProgress(run.console), StopOnSignal(), recipe.evaluation.patience
    early = EarlyStopping(recipe.evaluation.best, higher_is_better(recipe), patience) if patience else None
    shown = next((each for each in dev_sets if each.references), dev_sets[0])
    metrics = WriteMetrics(run.output, shown, recipe.seed, run.tell)
    curves = DrawCurves(run.output, run.warn, trainer.meter.paused)
    for callback in (progress, stop, metrics, curves, *filter(None, [early])):
        trainer.add_callback(callback)
    trainer.add_callback(LogBeforeSaving())  # the last, so that it sees who wants a checkpoint
    for warning in [*check_budget(recipe, trainer.steps()[0]), *doubts_about_rows(model.config, tasks)]:
        run.warn(warning)
    return Training(trainer, progress, stop, early)


# Train


def last_checkpoint(run: Run, training: Training) -> Path | None:
    """Where training goes on; the same on every process, as the main one finds it.

    Raises: UserError for a checkpoint that this training could not have made, or could not end with, and on all
    processes where one of them has not got it.
    """
    found = None
    if run.is_main:
        checkpoints.remove_leftovers(run.saved)
        found = checkpoints.last_good(run.saved, run.warn)
    name, manifest = of_main((found.name, checkpoints.manifest_of(found)) if found else ("", ""))
    if not name:
        return None
    checkpoint = run.saved / name

    def problem() -> str | None:
        if run.is_main or not (wrong := checkpoints.what_is_wrong(checkpoint)):
            same = checkpoints.manifest_of(checkpoint) == manifest
            return None if same else f"its {name} is another one, of other weights"
        there = ", ".join(path.name for path in checkpoints.checkpoints(run.saved)) or "no checkpoint"
        return f"{wrong} (it has {there})"

    check_all(checkpoint, problem)
    _check_checkpoint(checkpoint, run, training)
    return checkpoint


def _check_checkpoint(checkpoint: Path, run: Run, training: Training) -> None:
    """Refuse another number of processes, a budget that is spent, too few checkpoints to average, a model alone."""
    now = training.trainer.args.world_size
    before = checkpoints.read_state(checkpoint)["meter"].get("processes", 1)
    if before != now:
        raise UserError(
            f"{checkpoint}: made by {before} process(es), now there are {now}. Steps would "
            f"mean other batches: start with {before} again, or choose another --output."
        )
    done, steps = checkpoints.step_of(checkpoint), training.trainer.steps()[0]
    if done > steps:
        raise UserError(
            f"{checkpoint}: {done:,} steps are done, and the budget is now {steps:,}: a training cannot be shortened. "
            "Raise the budget, or choose another --output."
        )
    if is_done(checkpoint, training):
        kept, wanted = _kept_steps(run, training), run.recipe.checkpoints.average
        if len(kept) < min(wanted, len([step for step in saved_steps(run.recipe, steps) if step <= done])):
            raise UserError(
                f"{checkpoint.parent}: checkpoints.average is {wanted}, but this run has kept {len(kept)}: "
                f"{', '.join(map(str, kept))}. Lower it; checkpoints.keep says beforehand how many are kept."
            )
    elif training.trainer.args.save_only_model:
        raise UserError(
            f"{checkpoint}: holds the model alone (arguments: save_only_model), and a training cannot go on from it: "
            "optimizer and warm-up would begin anew. Leave the argument out and choose another --output; to begin with "
            "these weights, name the folder in model.init_from."
        )


def is_done(checkpoint: Path, training: Training) -> bool:
    """Whether a training that has come to this checkpoint is at its end."""
    state = checkpoints.read_state(checkpoint)
    stopped = training.early is not None and training.early.should_stop(state["log_history"])
    return stopped or state["global_step"] >= training.trainer.steps()[0]


def train(run: Run, preparation: Preparation, data: Data, training: Training, checkpoint: Path | None) -> None:
    """Train from the last good checkpoint, or from the start, to the end. Raises: Interrupted after a signal."""
    trainer, stop = training.trainer, training.stop
    if checkpoint is not None:
        if is_done(checkpoint, training):
            return
        run.tell(f"going on from {checkpoint}")
    else:
        preparation.initialise(trainer.model, data.tokenizers)
    parameters = lasting_parameters(trainer.model)
    run.tell(f"{type(trainer.model).__name__}: {parameters:,} parameters, training on {trainer.args.device}")
    kinds = kinds_of_products(run, checkpoint is not None) if trainer.args.device.type == "cpu" else frozenset()
    try:
        with products.using(kinds):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        training.progress.close()
        stop.release()
    if stop.signum is not None:
        name = signal.Signals(stop.signum).name
        raise Interrupted(
            stop.signum,
            f"{name}: stopped at step {trainer.state.global_step}; the state is saved in {run.saved}. The same "
            "command goes on from there.",
        )


def kinds_of_products(run: Run, goes_on: bool) -> frozenset[str]:
    """What oneDNN computes in this run (products.py): as it began, or the last digits of its numbers would be others.

    A run of before there was a choice has none. Warns on a processor, or with a choice of the user's, that is another.
    """
    path = run.output / folder.PRODUCTS
    if run.is_main and not goes_on:
        write_json(path, products.record())
    run.processes.wait_for_everyone()
    began = read_json(path, {"onednn": [str], "processor": str}) or {"onednn": []}
    with products.using(frozenset(began["onednn"])):
        now = products.record()
        if changed := [name for name, value in began.items() if now.get(name) != value]:
            listed = ", ".join(f"{name} {began[name]} -> {now.get(name)}" for name in changed)
            run.warn(f"{path}: the run began with other products, and its last digits will be others: {listed}")
    return frozenset(began["onednn"])


@dataclass(frozen=True)
class Trained:
    """What a training has come to: its last state, the steps to average, and the step with the best dev score."""

    state: Mapping[str, Any]
    steps: Sequence[int]
    best: int

    def averaged(self) -> dict[str, list[int]]:
        """The steps whose weights are averaged in each of the models that are left."""
        return {"best": [self.best], "average": list(self.steps)}


def end_of_training(run: Run, training: Training) -> Trained:
    """What is in the checkpoints of a training that is at its end."""
    state = checkpoints.read_state(checkpoints.checkpoints(run.saved)[-1])
    steps = _kept_steps(run, training)[-run.recipe.checkpoints.average :]
    return Trained(state, steps, state["best_global_step"] or steps[-1])


def _kept_steps(run: Run, training: Training) -> list[int]:
    """Steps of the saved checkpoints that count for the average."""
    trainer = training.trainer
    trainer.state.max_steps, trainer.state.save_steps = trainer.steps()[0], run.recipe.evaluation.every
    return trainer.scheduled([checkpoints.step_of(path) for path in checkpoints.checkpoints(run.saved)])


# Average, score


def average(run: Run, training: Training, trained: Trained) -> dict[str, Path]:
    """Write the best and the average model as complete folders, unless they are there as they would be; by their names.

    Raises: UserError for a checkpoint that is not whole.
    """
    generation = getattr(training.trainer.model, "generation_config", None)
    saved_at = {step: run.saved / f"checkpoint-{step}" for step in [*trained.steps, trained.best]}
    for path in saved_at.values():
        if problem := checkpoints.what_is_wrong(path):
            raise UserError(f"{path}: {problem}. Delete this folder and run the same command again: it is made anew.")
    made, models = folder.made_from(run.output), {}
    for name, steps in trained.averaged().items():
        weights_of, models[name] = [saved_at[step] for step in steps], run.output / name
        product, made_of = f"model/{name}", folder.digest_of_model(weights_of, generation)
        if not (models[name] / WEIGHTS).is_file() or not made.same(product, made_of):
            checkpoints.write_model(models[name], weights_of[-1], weights_of, generation)
            made.note(product, made_of)
    return models


def score(
    run: Run, preparation: Preparation, data: Data, training: Training, trained: Trained, models: Mapping[str, Path]
) -> Results:
    """Scores of both models on all test sets; results.json beside each and, of the average, in the run's folder."""
    tests = preparation.test_sets()
    facts = _facts(run, trained.state, training.trainer, preparation.reports(data.training_sets))
    if account := preparation.account():
        facts["init_from"] = account
    made, steps = folder.made_from(run.output), trained.averaged()
    scoring = Scoring(run.output, made, run.tell)
    pairs, texts = [test for test in tests if test.references], [test for test in tests if not test.references]
    results = {
        name: scoring.score(model, pairs, run.recipe.stem, {**facts, "checkpoints": steps[name]})
        for name, model in models.items()
    }
    if texts:
        objective, tokenizers = training.trainer.tasks[0].objective, data.tokenizers
        encode = functools.partial(preparation.encoded_test, tokenizers=tokenizers)
        run.console.print(score_texts(models, results, objective, tokenizers, texts, encode))
    made.note("tests", folder.digest_of_tests(tests))
    results["average"].write(run.output / RESULTS)
    if pairs:
        run.console.print(table_of(results))
    run.tell(f"models: {models['average']} and {models['best']}; results, curves and translations lie beside them")
    return results["average"]


def _facts(
    run: Run, state: Mapping[str, Any], trainer: TranslationTrainer, train: list[dict[str, Any]]
) -> dict[str, Any]:
    """What a results file says of a training; `train` is what was read of each training corpus."""
    recipe, meter, content = run.recipe, state["meter"], run.recipe.to_dict()
    seconds = max(meter["seconds"], 1e-9)
    return {
        "data": {"name": recipe.data.name, "licence": recipe.data.licence, "train": train},
        "seed": recipe.seed,
        "budget": {
            "steps": state["global_step"],
            "epochs": round(state["epoch"], 3),
            "seconds": round(meter["seconds"], 1),
            # The meter is the main process's; the others do as much.
            "cpu_minutes": round(meter["cpu_seconds"] * trainer.args.world_size / 60, 2),
            "target_tokens": meter["tokens"],
            "processes": trainer.args.world_size,
            "device": str(trainer.args.device),
            "precision": precision(trainer.args),
        },
        "command": run.command,
        "parameters": lasting_parameters(trainer.model),
        "steps_per_second": round(state["global_step"] / seconds, 3),
        "target_tokens_per_second": round(meter["tokens"] / seconds, 1),
        "decoding": content["decoding"],
        "languages": content["languages"],
        "dev": [entry for entry in state["log_history"] if "eval_loss" in entry],
        "recipe": content,
    }


class Scoring:
    """Translates and scores the test sets with one model after the other; what is unchanged is not done again.

    Args:
        output: the run's folder, in which the model folders lie; outputs are kept in its translations/.
        tell: hears what is being done.
    """

    def __init__(self, output: Path, made: MadeFrom, tell: Callable[[str], None]) -> None:
        self.output, self.made, self.tell = output, made, tell

    def score(self, model: Path, tests: Sequence[RawPairs], name: str, facts: Mapping[str, Any]) -> Results:
        """Write model/results.json: every test set under both protocols.

        facts: the other fields of `Results`, and further ones for the end of the file.
        """
        file = model / RESULTS
        before = read_results(file) if file.is_file() else None
        known = {field.name for field in dataclasses.fields(Results)}
        extra = {key: value for key, value in facts.items() if key not in known}
        results = Results(name, **{key: value for key, value in facts.items() if key in known}, extra=extra)
        for test in tests:
            outputs = self._outputs(model, test)
            product = f"scores/{test.name}.{model.name}"
            made_of = digest(outputs, test.references, test.language, versions())
            if before is not None and self.made.same(product, made_of) and test.name in before.scores:
                results.scores[test.name] = before.scores[test.name]
                results.outputs[test.name] = before.outputs[test.name]
            else:
                results.add_scores(test.name, score_protocols(outputs, test.references, language=test.language))
            results.write(file)
            self.made.note(product, made_of)
        return results

    def _outputs(self, model: Path, test: RawPairs) -> list[str]:
        """The translations: those of before if nothing that they depend on changed."""
        from hf_mlnmt.generation import TranslationPipeline

        kept = self.output / "translations" / file_name(f"{test.name}.{model.name}.{test.language}")
        made_of = self.made.digests.get(f"model/{model.name}")
        made_of = digest(made_of, test.sources, *test.asked.values(), test.language, versions())
        if kept.is_file():
            outputs = kept.read_text(encoding="utf-8").split("\n")[:-1]
            if self.made.same(f"translations/{kept.name}", digest(made_of, outputs)):
                return outputs
        self.tell(f"translating {test.name} ({len(test.sources)} sentences) with {model}")
        translate = TranslationPipeline.from_pretrained(str(model))
        options = {name: language for name, language in test.asked.items() if language}
        if not options and translate.languages:  # the recipe names no codes, but its tokenizer.path has them
            options = {"target_language": test.language}
        outputs = [" ".join(line.splitlines()) for line in translate(test.sources, **options)]
        write_text(kept, "".join(line + "\n" for line in outputs))
        self.made.note(f"translations/{kept.name}", digest(made_of, outputs))
        return outputs


def table_of(results: Mapping[str, Results]) -> Table:
    """One row for each model and test set, with the scores of both protocols; signatures are in the results files."""
    scored = dict.fromkeys(
        (protocol, metric)
        for each in results.values()
        for protocols in each.scores.values()
        for protocol, metrics in protocols.items()
        for metric in metrics
    )
    rows = []
    for test in dict.fromkeys(test for each in results.values() for test in each.scores):
        for model, each in results.items():
            scores = each.scores.get(test, {})
            cells = [scores.get(protocol, {}).get(metric, {}).get("score") for protocol, metric in scored]
            rows.append([test, model, *("" if score is None else f"{score:.2f}" for score in cells)])
    numbers = [Number(f"{protocol}\n{with_arrow(metric)}") for protocol, metric in scored]
    return Table(["test set", "model", *numbers], rows, "scores", CAPTION)


CAPTION = (
    "cased: detokenised text as it is, sacreBLEU 13a; classic: lower-cased, Moses-normalised and -tokenised. "
    "95 % intervals and signatures: results.json."
)

COLUMNS = ("per_subword", "per_word", "bits_per_byte", "loss", "per_predicted_token")


def score_texts(
    models: Mapping[str, Path],
    results: Mapping[str, Results],
    objective: Objective,
    tokenizers: Tokenizers,
    tests: Sequence[RawPairs],
    encode: Callable[[str], Any],
) -> Table:
    """Write the key "perplexity" of each model's results.json: test set -> its numbers. Returns them as a table.

    Of a language model perplexity (evaluation/perplexity.py); of others loss and exp(loss) per predicted token.

    Args:
        models, results: of each finished model.
        objective: that they were trained with.
        encode: the encoded test set of a name.
    """
    rows = []
    for name, path in models.items():
        auto_class = auto_class_of(path)
        model = load_model(path, getattr(transformers, auto_class)).eval()
        measured: dict[str, dict[str, float]] = {}
        for test in tests:
            if auto_class == "AutoModelForCausalLM":
                measured[test.name] = perplexity(model, tokenizers, test.sources).to_dict()
            else:
                dev_set = DevSet(encode(test.name), objective=objective.measured())
                loss = dev_set.evaluate(model, Accelerator(cpu=True))["loss"]
                measured[test.name] = {"loss": loss, "per_predicted_token": math.exp(loss)}
            rows.append((test.name, name, measured[test.name]))
        results[name].extra["perplexity"] = measured
        results[name].write(path / RESULTS)
    shown = [column for column in COLUMNS if any(column in numbers for _, _, numbers in rows)]
    cells = [
        [test, name, *(f"{numbers[column]:.3f}" if column in numbers else "" for column in shown)]
        for test, name, numbers in rows
    ]
    header = ["test set", "model", *(Number(column.replace("_", " ")) for column in shown)]
    return Table(header, sorted(cells), "perplexity")


# Rounds


def train_in_rounds(run: Run, rounds: Rounds, dry_run: bool, watcher: Watcher | None) -> dict[str, Results] | None:
    """Every round in its turn; what is finished is passed over, what was interrupted goes on.

    A dry run checks every round and prints what it would cost; of what is not translated yet, without it.
    """
    watcher = watcher or Watcher(run.tell, lambda text: run.warn(f"warning: {text}"))
    for warning in rounds.doubts(run.data):
        run.warn(warning)
    results = {}
    for stage in rounds.stages.values():
        run.tell(f"round {stage.name}: {'-'.join(stage.languages)}", "bold")
        recipe, synthetic = stage.recipe, stage.synthetic(run.output)
        if stage.translation is not None:
            if not dry_run:
                meet()
                if run.is_main:
                    rounds.translate(run.data, run.output, stage, watcher)
                meet()
                manifest = synthetic / MANIFEST
                check_all(manifest, lambda file=manifest: None if file.is_file() else "no such file")
            if (synthetic / MANIFEST).is_file():
                recipe = stage.with_synthetic(synthetic)
            else:
                run.tell(f"{synthetic} is still to be made: what follows is without it.")
        one = dataclasses.replace(run, recipe=recipe, output=run.output / stage.name)
        results[stage.name] = train_in_folder(one, dry_run)
    return {name: each for name, each in results.items() if each is not None} or None
