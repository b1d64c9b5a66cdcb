"""A whole training from a recipe to model folders with their scores, in stages; interrupted, it goes on.

`train_one` calls the stages in this order. Each takes what those before it returned, and leaves files in the run's
folder, from which a later start goes on.

| stage | needs | leaves |
| --- | --- | --- |
| `check` | the recipe, and the recipe of the last start | recipe.yaml |
| `prepare` | the corpora | tokenizer/, data/ |
| `last_checkpoint`, `build` | tokenizers, encoded data | no file; they return model, tasks and trainer |
| `train` | the trainer | checkpoints/, metrics.jsonl, curves.png |
| `average` | the checkpoints | best/, average/: model folders |
| `score` | both models, the test sets | translations/, results.json |

folder.py says which changes are allowed. A recipe with `rounds` is several trainings, one after the other, that
translate for one another (`train_in_rounds`; rounds.py).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from accelerate import PartialState
from rich.console import Console
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging

from hf_mlnmt.common import matmul_backends
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import file_name, read_json, size_and_crc, write_json, write_text
from hf_mlnmt.common.made_from import Changes, MadeFrom, digest
from hf_mlnmt.common.model_folder import GENERATION_CONFIG, RESULTS, WEIGHTS, auto_class_of, load_model, read_part
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.corpus import MANIFEST, RawPairs, digest_of_texts
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.evaluation import Results, read_results, score_protocols, versions
from hf_mlnmt.evaluation.perplexity import perplexity
from hf_mlnmt.evaluation.scores import TITLES, with_arrow
from hf_mlnmt.generation.synthetic.back_translation import Watcher
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.recipe.checks import check_budget
from hf_mlnmt.recipe.reading import Recipe, find_recipe, read_recipe
from hf_mlnmt.recipe.schema import saved_steps
from hf_mlnmt.training import arguments, callbacks, checkpoints, folder
from hf_mlnmt.training.adapters import parameters_of_adapter, save_config
from hf_mlnmt.training.arguments import Schedule
from hf_mlnmt.training.dev import Alone, DevSet
from hf_mlnmt.training.dry_run import report as dry_run_report
from hf_mlnmt.training.init_from import local_folder, read_sources
from hf_mlnmt.training.preflight import check_before, check_lengths
from hf_mlnmt.training.preparation import ACCOUNT, Preparation, measured_by
from hf_mlnmt.training.processes import check_same, common, join_group, main_first, of_main, together
from hf_mlnmt.training.quantisation_aware import SENTENCES, RoundedProducts, calibrate
from hf_mlnmt.training.rounds import PlannedRound, read_rounds, translate_kept, with_kept
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
    watcher: Watcher | None = None,
    system: str | None = None,
    check: bool = False,
) -> Results | dict[str, Results] | None:
    """Trains a model as a recipe says, scores it, and leaves complete model folders.

    Started again with the same arguments after any interruption it goes on where it was, to the same weights bit for
    bit on a CPU; with changes that folder.py allows, only what changed is done again.

    Args:
        recipe: a Recipe, the path of its YAML, or the name of a setup; system: of that setup (recipe/reading.py).
        data: folder that the recipe's paths are relative to. output: default: runs/<recipe>, with a given `seed`.
        settings: "key.sub=value" strings that replace keys of the recipe.
        dry_run: only print sizes, batches and estimates; nothing is left behind.
        watcher: called with the progress of encoding and of translations between rounds; default: prints messages only.
        check: read all text, and all that is encoded, to see whether it changed; else sizes and times of files tell.

    Returns: the Results of the average, with rounds {round: Results}; None after a dry run, and on other processes.

    Raises: UserError for anything the user can mend; Interrupted after a signal, when the state is saved.
    """
    arguments.check_launcher()
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
    processes = join_group(recipe.arguments.get("ddp_timeout"))
    output = Path(output or Path("runs") / named)
    progress = watcher and watcher.progress if processes.is_main_process else None
    run = Run(recipe, Path(data), output, console or Console(stderr=True), processes, check, progress)
    if recipe.rounds is None:
        return train_in_folder(run, dry_run)
    if path is None:
        raise TypeError("a recipe with rounds is given as its path: each has keys of its own")
    return train_in_rounds(run, read_rounds(path, settings, seed), dry_run, watcher)


@dataclass(frozen=True)
class Run:
    """A training as it was asked for. The paths of its recipe are relative to `data`; all it makes is in `output`."""

    recipe: Recipe
    data: Path
    output: Path
    console: Console
    processes: PartialState
    check: bool = False
    progress: Any = None  # progress(done, total) is called while a corpus is encoded

    @property
    def is_main(self) -> bool:
        """Returns whether this is the main process, which alone writes and prints."""
        return self.processes.is_main_process

    @functools.cached_property
    def preparation(self) -> Preparation:
        """Returns the object that makes the training's parts."""
        return Preparation(self.recipe, self.data, self.output, self.tell, self.progress, self.check)

    @property
    def saved(self) -> Path:
        """Returns the folder of the checkpoints."""
        return self.output / "checkpoints"

    @property
    def command(self) -> str:
        """Returns the command line that starts this run, however its processes were started."""
        name, number = Path(sys.argv[0]).name, self.processes.num_processes
        words = ["hf-mlnmt" if name == "__main__.py" else name, *sys.argv[1:]]
        if name == "default_worker.py":  # Ray's worker: sys.argv holds addresses of the cluster
            words = ["hf-mlnmt", "train", str(self.recipe.path)]
        return shlex.join([*words, *(["--processes", str(number)] if number > 1 else [])])

    def tell(self, text: str, style: str | None = None) -> None:
        """Prints a line for the user, from one process only."""
        if self.is_main:
            self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Prints a warning for the user, in yellow, from one process only."""
        self.tell(text, "yellow")


def train_in_folder(run: Run, dry_run: bool) -> Results | None:
    """Runs `train_one`, with the run's folder locked, or `dry_run_of_one`, without."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    with arguments.tracking_in(run.output):
        if run.is_main:
            folder.check_output(run.output)
        if run.recipe.keep is not None:
            run = _keeping(run, dry_run)
        if dry_run:
            dry_run_of_one(run)
            return None
        alone = folder.alone(run.output) if run.is_main else nullcontext()
        with alone, callbacks.sigterm_interrupts():
            return train_one(run)


def _keeping(run: Run, dry_run: bool) -> Run:
    """Translates the text of `keep`, but not in a dry run or a begun run; returns the run with the task of `keep`."""
    with together():
        # once a run has begun, its init_from may be gone
        if run.is_main and not dry_run and not folder.has_begun(run.output):
            watcher = Watcher(run.tell, run.progress) if run.progress else Watcher(run.tell)
            translate_kept(run.recipe, run.data, run.output, watcher)
    recipe = with_kept(run.recipe, run.output)
    if recipe is run.recipe:
        run.tell("keep: its text is still to be translated: what follows is without it.")
    return dataclasses.replace(run, recipe=recipe)


def train_one(run: Run) -> Results | None:
    """Runs one training from its recipe to its scores; returns the results on the main process, None on others."""
    changes = check(run)
    if changes is None:
        run.tell(f"{run.output} is finished, and nothing changed since. Choose another --output for another run.")
        return read_results(run.output / RESULTS) if run.is_main else None
    prepare(run)
    checkpoint = last_checkpoint(run)
    training = build(run, checkpoint, accumulated(run, changes, checkpoint))
    if checkpoint is not None:
        _check_checkpoint(checkpoint, run, training)
    if run.is_main:
        folder.keep_recipe(run.output, run.recipe, run.command, amended=bool(changes))
    train(run, training, checkpoint)
    return score(run, training, average(run, training)) if run.is_main else None


def dry_run_of_one(run: Run) -> None:
    """Checks everything and prints sizes, batches and an estimate of time and memory; leaves no file behind."""
    with tempfile.TemporaryDirectory() as output:
        with together():
            if run.is_main:
                folder.compare(run.output, run.recipe)
            run = dataclasses.replace(run, output=Path(output))
            preparation = run.preparation
            for warning in check_before(preparation, run.processes.num_processes) if run.is_main else ():
                run.warn(warning)
        prepare(run)
        training = build(run, None, run.recipe.batch.accumulate)
        preparation.initialise(training.trainer.model)
        run.tell(dry_run_report(run.recipe, training.trainer))


def check(run: Run) -> Changes | None:
    """Checks what can be known before a training; returns the changed keys, or None if the run is finished as it is."""
    finished, changes = False, Changes()
    packages = {name: version for name, version in versions().items() if name != "python"}
    recipe = {f"recipe: {key}": f"{now}" for key, (_, now) in folder.differences({}, run.recipe.to_dict()).items()}
    check_same({**packages, **recipe})
    with together():
        preparation = run.preparation  # raises for a mistake in the recipe, in all processes
        if run.is_main:
            changes = folder.compare(run.output, run.recipe)
            if changes:
                run.tell(f"{run.output}: changed since the last start: {', '.join(changes)}")
            finished = folder.is_finished(run.output, changes, preparation.test_sets)
            if not finished:
                for warning in check_before(preparation, run.processes.num_processes):
                    run.warn(warning)
                folder.clean(run.output)
                folder.keep_recipe(run.output, run.recipe, run.command)
    if of_main(finished):
        return None
    common(run.output / folder.RECIPE)
    return changes


def prepare(run: Run) -> None:
    """Makes tokenizers and data in one process while the others wait, then reads them in all."""
    with main_first():  # accessing the parts makes or reads them
        fingerprints, _ = run.preparation.fingerprints(), run.preparation.dev_sets
    check_same({"the training data or the tokenizer": digest(fingerprints)})
    with together():
        if run.is_main:
            folder.check_data(run.output, fingerprints)


@dataclass(frozen=True)
class Training:
    """The trainer, which holds the model and its tasks, and the callbacks whose state is read after training."""

    trainer: TranslationTrainer
    progress: callbacks.ShowProgress
    stop: callbacks.StopOnSignal
    early: callbacks.EarlyStopping | None

    @property
    def steps(self) -> int:
        """Returns the number of steps of the whole training."""
        return self.trainer.steps()[0]


def accumulated(run: Run, changes: Changes, checkpoint: Path | None) -> int:
    """Returns how many batches each process accumulates, so that a step has as many batches as when the run began.

    Raises: UserError if batch.accumulate was changed to another size of steps.
    """
    told, now = run.recipe.batch.accumulate, run.processes.num_processes
    fitting = told
    with together():
        if run.is_main and checkpoint is not None:
            meter = checkpoints.read_state(checkpoint)["meter"]
            step, before = meter["group"], meter["processes"]
            if told * now != step and "batch.accumulate" in changes:
                raise UserError(
                    f"{checkpoint}: a step sees {step} batches, and batch.accumulate: {told} with {now} process(es) "
                    f"makes {told * now}: it would be another training. Leave the key as it was, or choose another "
                    "--output."
                )
            fitting = told if told * now == step else max(1, round(step / now))
            if now != before:
                seen = fitting * now
                run.warn(
                    f"{checkpoint}: made by {before} process(es), now there are {now}. The data go on at the same "
                    f"place; a step sees {f'{seen} batches, not {step}' if seen != step else 'the same batches'} "
                    f"({fitting} accumulated); dropout is drawn differently."
                )
    return of_main(fitting)


def _save_beside(preparation: Preparation, model: Any, target: Path) -> None:
    """Writes tokenizers, and the config of an adapter, beside a model's weights."""
    preparation.tokenizers.save(target)
    save_config(model, target)


def build(run: Run, checkpoint: Path | None, accumulate: int) -> Training:
    """Makes the model with new weights, its tasks and the trainer, which continues in the data after the checkpoint."""
    recipe, preparation = run.recipe, run.preparation
    recipe = dataclasses.replace(recipe, batch=dataclasses.replace(recipe.batch, accumulate=accumulate))
    args = arguments.training_arguments(recipe, run.output)
    if args.bf16 and not arguments.computes_bfloat16(args.use_cpu):
        run.warn("precision.dtype is bf16, but this machine has no instructions for bfloat16, or slow ones. Say auto.")
    model = preparation.model()
    tasks = preparation.tasks(model)
    if model.config.is_encoder_decoder and model.can_generate():  # max_source_tokens: pipelines split longer sources
        generation: Any = model.generation_config
        if recipe.data.placeholders:
            generation.placeholders = dict(recipe.data.placeholders)  # a pipeline's option `keep` reads these
        generation.max_source_tokens = max(int(task.data.source_lengths.max()) for task in tasks)
    check_lengths(preparation, model.config)
    trainer = TranslationTrainer(
        model,
        args,
        tasks,
        recipe.batch,
        Schedule(**dataclasses.asdict(recipe.schedule)),
        measured_by(tasks, preparation.dev_sets),
        save_extras=partial(_save_beside, preparation, model),
    )
    if checkpoint is not None:
        trainer.go_on_in_data(checkpoint)
    training = _with_callbacks(run, trainer)
    for warning in check_budget(recipe, training.steps):
        run.warn(warning)
    return training


def _with_callbacks(run: Run, trainer: TranslationTrainer) -> Training:
    recipe, patience = run.recipe, run.recipe.evaluation.patience
    progress, stop = callbacks.ShowProgress(run.console), callbacks.StopOnSignal()
    better = arguments.higher_is_better(recipe)
    early = callbacks.EarlyStopping(recipe.evaluation.best, better, patience) if patience else None
    shown = next((dev_set for dev_set in trainer.dev_sets if dev_set.references), trainer.dev_sets[0])
    metrics = callbacks.WriteMetrics(run.output, shown, recipe.seed, run.tell)
    curves = callbacks.DrawCurves(run.output, run.warn)
    trainer.remove_callback(PrinterCallback)
    for callback in (progress, stop, metrics, curves, *filter(None, [early])):
        trainer.add_callback(callback)
    # the last callback: it reads whether an earlier one asked for a checkpoint
    trainer.add_callback(callbacks.LogBeforeSaving())
    return Training(trainer, progress, stop, early)


def last_checkpoint(run: Run) -> Path | None:
    """Returns the newest whole checkpoint that the main process finds, or None. UserError if another cannot see it."""
    found = checkpoints.last_good(run.saved, run.warn) if run.is_main else None
    name = of_main(found.name if found else None)
    return common(run.saved / name) if name else None


def _check_checkpoint(checkpoint: Path, run: Run, training: Training) -> None:
    """Refuses a checkpoint beyond the budget, and a finished training with too few checkpoints to average."""
    done, steps = checkpoints.step_of(checkpoint), training.steps
    if done > steps:
        raise UserError(
            f"{checkpoint}: {done:,} steps are done, and the budget is now {steps:,}: a training cannot be shortened. "
            "Raise the budget, or choose another --output."
        )
    if is_done(checkpoint, training):
        kept, wanted = _kept_steps(run, training), run.recipe.checkpoints.average
        if len(kept) < min(wanted, len([step for step in _counted_steps(run, training) if step <= done])):
            raise UserError(
                f"{checkpoint.parent}: checkpoints.average is {wanted}, but this run has kept {len(kept)}: "
                f"{', '.join(map(str, kept))}. Lower it; checkpoints.keep says beforehand how many are kept."
            )


def is_done(checkpoint: Path, training: Training) -> bool:
    """Returns whether a training that has reached this checkpoint is finished: by its steps or by early stopping."""
    state = checkpoints.read_state(checkpoint)
    stopped = training.early is not None and training.early.should_stop(state["log_history"])
    return stopped or state["global_step"] >= training.steps


def train(run: Run, training: Training, checkpoint: Path | None) -> None:
    """Trains from the last good checkpoint, or from the start, to the end. Raises: Interrupted after a signal."""
    trainer = training.trainer
    if checkpoint is not None:
        if is_done(checkpoint, training):
            return
        run.tell(f"going on from {checkpoint}")
    else:
        run.preparation.initialise(trainer.model)
    if run.recipe.precision.int8:
        trainer.rounded = RoundedProducts(trainer.model, alphas(run, trainer, checkpoint is not None))
    parameters = lasting_parameters(trainer.model)
    trained = parameters_of_adapter(trainer.model)
    beside = f" and an adapter of {trained:,}, which alone is trained" if trained else ""
    if run.recipe.freeze:
        frozen = sum(weight.numel() for weight in trainer.model.parameters() if not weight.requires_grad)
        beside += f", of which {frozen:,} are frozen"
    kind = f"{type(trainer.model).__name__}: {parameters:,} parameters{beside}"
    run.tell(f"{kind}, training on {trainer.args.device}")
    kinds = kinds_of_products(run, checkpoint is not None) if trainer.args.device.type == "cpu" else frozenset()
    with matmul_backends.using(kinds), closing(training.progress), training.stop.listening():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if signum := training.stop.signum:
        name = signal.Signals(signum).name
        raise callbacks.Interrupted(
            signum,
            f"{name}: stopped at step {trainer.state.global_step}; the state is saved in {run.saved}. The same "
            "command goes on from there.",
        )


def alphas(run: Run, trainer: TranslationTrainer, goes_on: bool) -> dict[str, float]:
    """Returns the int8 scales of layers' inputs: calibrated on a development set at first, later read from a file.

    Raises: UserError without a development set of pairs.
    """
    path = run.output / folder.ALPHAS
    if run.is_main and not (goes_on and path.is_file()):
        dev = next((each for each in trainer.dev_sets if each.sources), None)
        if dev is None or dev.sources is None:
            raise UserError("precision.int8: needs a development set of pairs, by which inputs are rounded.")
        parts = Parts(trainer.model, run.preparation.tokenizers)
        write_json(path, calibrate(parts, list(dev.sources)[:SENTENCES]))
    return of_main(read_json(path, {...: float}) if run.is_main else {})


def kinds_of_products(run: Run, goes_on: bool) -> frozenset[str]:
    """Returns the kinds of matrix products that oneDNN computes, as the run began with; warns of another processor."""
    path = run.output / folder.PRODUCTS
    if run.is_main and not goes_on:
        write_json(path, matmul_backends.record())
    # All processes use the first one's kinds; a run that began on a GPU has no such file.
    kept = read_json(path, {"onednn": [str], "processor": str}) if run.is_main else {}
    began = of_main(kept or {"onednn": []})
    with matmul_backends.using(frozenset(began["onednn"])):
        now = matmul_backends.record()
        if changed := [name for name, value in began.items() if now.get(name) != value]:
            listed = ", ".join(f"{name} {began[name]} -> {now.get(name)}" for name in changed)
            run.warn(f"{path}: the run began with other products, and its last digits will be others: {listed}")
    return frozenset(began["onednn"])


def last_state(run: Run) -> dict[str, Any]:
    """Returns the trainer's state in the last checkpoint."""
    return checkpoints.read_state(checkpoints.checkpoints(run.saved)[-1])


def averaged_steps(run: Run, training: Training) -> dict[str, list[int]]:
    """Returns the steps whose weights are averaged in each of the models that a finished training leaves."""
    steps = _kept_steps(run, training)[-run.recipe.checkpoints.average :]
    return {"best": [last_state(run)["best_global_step"] or steps[-1]], "average": steps}


def _kept_steps(run: Run, training: Training) -> list[int]:
    """Returns the steps of the saved checkpoints that count for the average."""
    counted = set(_counted_steps(run, training))
    return [step for step in map(checkpoints.step_of, checkpoints.checkpoints(run.saved)) if step in counted]


def _counted_steps(run: Run, training: Training) -> Sequence[int]:
    return saved_steps(run.recipe.schedule, run.recipe.evaluation.every, training.steps)


def average(run: Run, training: Training) -> dict[str, Path]:
    """Writes the best and the average model as whole folders, unless they are up to date; returns the folders.

    Raises: UserError for a broken checkpoint.
    """
    generation = getattr(training.trainer.model, "generation_config", None)
    weights_of = {
        name: [run.saved / f"checkpoint-{step}" for step in steps]
        for name, steps in averaged_steps(run, training).items()
    }
    for path in dict.fromkeys([*weights_of["average"], *weights_of["best"]]):
        if problem := checkpoints.what_is_wrong(path):
            raise UserError(f"{path}: {problem}. Delete this folder and run the same command again: it is made anew.")
    made, models = folder.made_from(run.output), {name: run.output / name for name in weights_of}
    for name, model in models.items():
        product, made_of = f"model/{name}", folder.digest_of_model(weights_of[name], generation)
        if not (model / WEIGHTS).is_file() or not made.same(product, made_of):
            checkpoints.write_model(model, weights_of[name][-1], weights_of[name], generation)
            made.note(product, made_of)
    return models


def score(run: Run, training: Training, models: Mapping[str, Path]) -> Results:
    """Scores average and best model on all test sets; writes results.json beside each, returns those of the average.

    With evaluation.before also the model of init_from, whose results are in before/.
    """
    tests, made = run.preparation.test_sets(), folder.made_from(run.output)
    described, steps = _described(run, training.trainer), averaged_steps(run, training)
    pairs, texts = [test for test in tests if test.references], [test for test in tests if not test.references]
    results = {}
    if run.recipe.evaluation.before:
        model = model_before(run, made)
        named = Results(str(model), data=described.data, extra={"languages": described.extra["languages"]})
        results["before"] = score_model(run, made, "before", model, pairs, named)
    for name, model in models.items():
        extra = {**described.extra, "checkpoints": steps[name]}
        own = dataclasses.replace(described, scores={}, outputs={}, extra=extra)
        results[name] = score_model(run, made, name, model, pairs, own)
    for name, model in models.items() if texts else ():
        measured = results[name].extra["perplexity"] = losses(model, run, training, texts)
        results[name].write(model / RESULTS)
        for test, numbers in measured.items():
            shown = (
                f"{number.replace('_', ' ')} {numbers[number]:.3f}" for number in PERPLEXITIES if number in numbers
            )
            run.tell(f"{test}, {name}: {', '.join(shown)}")
    made.note("tests", digest_of_texts(tests))
    results["average"].write(run.output / RESULTS)
    if pairs:
        run.console.print(table_of(results))
    run.tell(f"models: {models['average']} and {models['best']}; results, curves and translations lie beside them")
    return results["average"]


def _described(run: Run, trainer: TranslationTrainer) -> Results:
    """Returns results without scores, which describe the training: data, budget, speed, recipe."""
    recipe, content, state = run.recipe, run.recipe.to_dict(), last_state(run)
    meter, train = state["meter"], run.preparation.reports()
    seconds = max(meter["seconds"], 1e-9)
    account = read_json(run.output / ACCOUNT)
    return Results(
        recipe.stem,
        data={"name": recipe.data.name, "licence": recipe.data.licence, "train": train},
        seed=recipe.seed,
        budget={
            "steps": state["global_step"],
            "epochs": round(state["epoch"], 3),
            "seconds": round(meter["seconds"], 1),
            # The main process's time times the number of processes, each of which takes as long.
            "cpu_minutes": round(meter["cpu_seconds"] * trainer.args.world_size / 60, 2),
            "target_tokens": meter["tokens"],
            "processes": trainer.args.world_size,
            "device": str(trainer.args.device),
            "precision": arguments.precision(trainer.args),
        },
        command=run.command,
        parameters=lasting_parameters(trainer.model),
        steps_per_second=round(state["global_step"] / seconds, 3),
        decoding=content["decoding"],
        extra={
            "target_tokens_per_second": round(meter["tokens"] / seconds, 1),
            "languages": content["languages"],
            "dev": [entry for entry in state["log_history"] if "eval_loss" in entry],
            "recipe": content,
            **({"init_from": account} if account else {}),
        },
    )


def model_before(run: Run, made: MadeFrom) -> Path:
    """Returns the folder of init_from's model; records the digest of its weights in `made`."""
    model = local_folder(read_sources(run.recipe.init_from or {})["all"], run.data)
    weights = [size_and_crc(path) for path in sorted(model.glob("*.safetensors"))]
    made.note("model/before", digest(weights, read_part(model, GENERATION_CONFIG)))
    return model


def score_model(
    run: Run, made: MadeFrom, name: str, model: Path, tests: Sequence[RawPairs], results: Results
) -> Results:
    """Adds the scores of every test set to `results`, and writes them into the folder `name` of the run's folder."""
    for test in tests:
        outputs = _translations(run, made, name, model, test)
        results.add_scores(test.name, score_protocols(outputs, test.references, language=test.language))
    results.write(run.output / name / RESULTS)
    return results


def _translations(run: Run, made: MadeFrom, name: str, model: Path, test: RawPairs) -> list[str]:
    """Returns the translations of a test set: the stored ones, unless something that they depend on changed."""
    from hf_mlnmt.generation import TranslationPipeline

    kept = run.output / "translations" / file_name(f"{test.name}.{name}.{test.language}")
    made_of = made.digests.get(f"model/{name}")
    made_of = digest(made_of, test.sources, *test.asked.values(), test.language, versions())
    if kept.is_file():
        outputs = kept.read_text(encoding="utf-8").split("\n")[:-1]
        if made.same(f"translations/{kept.name}", digest(made_of, outputs)):
            return outputs
    run.tell(f"translating {test.name} ({len(test.sources)} sentences) with {model}")
    translate = TranslationPipeline.from_pretrained(str(model))
    options: dict[str, Any] = {name: language for name, language in test.asked.items() if language}
    if not options and translate.languages:  # the recipe names no codes of languages, but the tokenizer has codes
        options = {"target_language": test.language}
    outputs = [" ".join(line.splitlines()) for line in translate(test.sources, **options)]
    write_text(kept, "".join(line + "\n" for line in outputs))
    made.note(f"translations/{kept.name}", digest(made_of, outputs))
    return outputs


def losses(path: Path, run: Run, training: Training, tests: Sequence[RawPairs]) -> dict[str, dict[str, float]]:
    """Returns {test set: losses and perplexities} of a finished model on text of one language, for results files."""
    auto_class = auto_class_of(path)
    model = load_model(path, getattr(transformers, auto_class)).eval()
    if auto_class == "AutoModelForCausalLM":
        return {test.name: perplexity(model, run.preparation.tokenizers, test.sources).to_dict() for test in tests}
    objective = training.trainer.tasks[0].objective.measured()
    measured = {}
    for test in tests:
        dev_set = DevSet(run.preparation.encoded_test(test.name), objective=objective)
        loss = dev_set.evaluate(model, Alone())["loss"]
        measured[test.name] = {"loss": loss, "per_predicted_token": math.exp(loss)}
    return measured


# Numbers of `losses` that are printed, in this order, where a model has them.
PERPLEXITIES = ("per_subword", "per_word", "bits_per_byte", "loss", "per_predicted_token")


def table_of(results: Mapping[str, Results]) -> Table:
    """Returns a table of the scores, a row for each test set and model; intervals and signatures are in the results."""
    cells = {
        (test, model): {
            f"{protocol}\n{with_arrow(metric)}": f"{value['score']:.2f}"
            for protocol, metrics in each.scores[test].items()
            for metric, value in metrics.items()
        }
        for test in dict.fromkeys(test for each in results.values() for test in each.scores)
        for model, each in results.items()
        if test in each.scores
    }
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    rows = [[*key, *(row.get(column, "") for column in columns)] for key, row in cells.items()]
    return Table(["test set", "model", *map(Number, columns)], rows, "scores", f"{'; '.join(TITLES.values())}.")


def train_in_rounds(
    run: Run, rounds: Mapping[str, PlannedRound], dry_run: bool, watcher: Watcher | None
) -> dict[str, Results] | None:
    """Runs the rounds one after the other; a dry run leaves out corpora that are still to be translated."""
    watcher = watcher or Watcher(run.tell)
    results = {}
    for planned in rounds.values():  # a missing text is reported before the first round
        for path in planned.files(run.data):
            next(read_lines(path), None)
    for planned in rounds.values():
        run.tell(f"round {planned.name}: {'-'.join(planned.languages)}", "bold")
        manifest = planned.synthetic(run.output) / MANIFEST
        if planned.round.translate is not None and not dry_run:
            with together():
                if run.is_main:
                    planned.translate(run.data, run.output, watcher)
        if planned.round.translate is not None and not manifest.is_file():
            run.tell(f"{manifest.parent} is still to be made: what follows is without it.")
        recipe = planned.whole_recipe(run.output)
        if dry_run and recipe.init_from and planned.before and not Path(str(recipe.init_from)).is_dir():
            run.tell(f"{recipe.init_from} is still to be trained.")
            continue
        of_round = dataclasses.replace(run, recipe=recipe, output=run.output / planned.name)
        results[planned.name] = train_in_folder(of_round, dry_run)
    return {name: each for name, each in results.items() if each is not None} or None
