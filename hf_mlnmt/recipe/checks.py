"""Values of a recipe that are refused, and unlikely ones that are warned of: checks beyond the types."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.recipe.task_checks import measured
from hf_mlnmt.training.schedules import Schedule

if TYPE_CHECKING:
    from hf_mlnmt.recipe.schema import Recipe


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both allowed unless they are said to be `above` and `below`."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def problem(self, value: float) -> str | None:
        """What the value must be and is not, or None."""
        if not math.isfinite(value):
            return "must be a finite number"
        low = f"{'above' if self.above else 'at least'} {self.low:g}"
        if value < self.low or (self.above and value == self.low):
            return f"must be {low}" + (f" and below {self.high:g}" if self.below else "")
        if value > self.high or (self.below and value == self.high):
            return f"must be {low} and below {self.high:g}" if self.below else f"must be at most {self.high:,}"
        return None


SHARE = Range(0, 1, below=True)
COUNT = Range(0, 10**9, above=True)

# Upper ends are far beyond any use: a number above them is a slip of the hand, and would fill the memory or the disk.
RANGES = {
    "seed": Range(0, 2**31 - 1),
    "label_smoothing": SHARE,
    "data.max_length": Range(0, 100_000, above=True),
    "data.temperature": Range(0, 1000, above=True),
    "data.bpe_dropout": SHARE,
    "tokenizer.vocab_size": Range(0, 10**6, above=True),
    "batch.tokens": Range(0, 10**7, above=True),
    "batch.accumulate": Range(0, 10**5, above=True),
    "batch.max_sentences": Range(0, 10**6, above=True),
    "optimizer.learning_rate": Range(0, 1000, above=True),
    "optimizer.betas": SHARE,
    "optimizer.eps": Range(0, 1),
    "optimizer.weight_decay": Range(0, 100),
    "optimizer.clip": Range(0, 10**6),
    "schedule.warmup": Range(0, 10**9),
    "schedule.floor": Range(0, 1),
    "schedule.factor": Range(0, 1, above=True),
    "schedule.patience": COUNT,
    "schedule.threshold": SHARE,
    "schedule.restart_factor": Range(0, 1, above=True),
    "budget.steps": COUNT,
    "budget.epochs": Range(0, 10**6, above=True),
    "evaluation.every": COUNT,
    "evaluation.beams": Range(0, 100, above=True),
    "evaluation.patience": COUNT,
    "checkpoints.keep": Range(0, 1000, above=True),
    "checkpoints.average": Range(0, 1000, above=True),
    "decoding.beams": Range(0, 100, above=True),
    "decoding.length_penalty": Range(-100, 100),
    "decoding.max_new_tokens": Range(0, 100_000, above=True),
    "logging.every": COUNT,
    # Fields of a model's config; what they need of one another it checks itself.
    "model.settings.d_model": Range(0, 65_536, above=True),
    "model.settings.encoder_layers": Range(0, 1000, above=True),
    "model.settings.decoder_layers": Range(0, 1000, above=True),
    "model.settings.encoder_ffn_dim": Range(0, 10**6, above=True),
    "model.settings.decoder_ffn_dim": Range(0, 10**6, above=True),
    "model.settings.max_position_embeddings": Range(0, 10**6, above=True),
    # Fields of Seq2SeqTrainingArguments.
    "arguments.dataloader_num_workers": Range(0, 1000),
}

# Fields of Seq2SeqTrainingArguments that a key of the recipe sets: under `arguments` they would undo it, or do nothing.
SAID_BY_KEYS = {
    "--output": "output_dir",
    "starting the same command again": "resume_from_checkpoint",
    "label_smoothing": "label_smoothing_factor",
    "seed": "seed data_seed",
    "batch.tokens": "per_device_train_batch_size group_by_length train_sampling_strategy",
    "batch.accumulate": "gradient_accumulation_steps",
    "optimizer": "learning_rate adam_beta1 adam_beta2 adam_epsilon weight_decay max_grad_norm",
    "schedule": "lr_scheduler_type warmup_steps warmup_ratio",
    "budget": "max_steps num_train_epochs",
    "evaluation.every": "eval_steps eval_strategy save_steps save_strategy",
    "evaluation.best": "metric_for_best_model greater_is_better",
    "checkpoints.keep": "save_total_limit",
    "precision.dtype": "bf16 fp16",
    "precision": "torch_compile gradient_checkpointing activation_checkpointing",
    "logging.every": "logging_steps",
    "logging.trackers": "report_to",
}

# Names that become names of files: letters, digits, and some signs between them.
FILE_NAME = re.compile(r"\w[\w.+-]{0,99}")
LANGUAGE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*")

# Identifiers of the Hub for the licences that corpora have.
LICENCES: tuple[str, ...] = (
    "apache-2.0",
    "mit",
    "bsd-3-clause",
    "cc0-1.0",
    "gpl-3.0",
    "odc-by",
    "odbl",
    "pddl",
    "unlicense",
    "other",
)
LICENCES += tuple(f"cc-by{kind}-{version}" for kind in ("", "-sa", "-nc", "-nd", "-nc-sa", "-nc-nd") for version in
                  ("2.0", "2.5", "3.0", "4.0"))  # fmt: skip


def check(recipe: Recipe) -> None:
    """Refuse values that cannot be.

    Raises: UserError naming the key.
    """
    _check_numbers(recipe)
    _check_names(recipe)
    _check_choices(recipe)
    _check_bpe_dropout(recipe)
    _check_schedule(recipe)
    _check_arguments(recipe)


def doubts(recipe: Recipe, steps: int, saved: int) -> list[str]:
    """What a training of so many steps, which saves so many checkpoints to average, does and is hardly meant to."""
    found = []
    if recipe.schedule.warmup >= steps:
        found.append(
            f"schedule.warmup is {recipe.schedule.warmup:,} steps but the training has {steps:,}: the learning rate "
            "never reaches optimizer.learning_rate. Lower schedule.warmup."
        )
    if recipe.checkpoints.average > saved:
        found.append(
            f"checkpoints.average is {recipe.checkpoints.average}, but this training saves {saved}: that many are "
            "averaged. Lower evaluation.every, or checkpoints.average."
        )
    licence = recipe.data.licence
    if licence is not None and licence.lower() not in LICENCES:
        found.append(
            f"data.licence '{licence}' is not a licence's identifier on the Hub{suggest(licence.lower(), LICENCES)}: "
            "model cards will show it as it is."
        )
    return found


def _numbers(value: Any, at: str = "") -> Iterator[tuple[str, float]]:
    """Every number of nested mappings and lists with its key; those of a list have the list's."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _numbers(inner, at)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield at, value


def _check_numbers(recipe: Recipe) -> None:
    anything = Range(-math.inf, math.inf)
    for key, value in _numbers(recipe.to_dict()):
        if problem := RANGES.get(key, anything).problem(value):
            raise UserError(f"{recipe.path}: {key} {problem}, not {value}.")


def _check_arguments(recipe: Recipe) -> None:
    for key, names in SAID_BY_KEYS.items():
        for name in names.split():
            if name in recipe.arguments:
                raise UserError(f"{recipe.path}: arguments.{name}: this is what {key} says. Set that in its place.")


def _check_names(recipe: Recipe) -> None:
    for name in recipe.data.test:
        if not FILE_NAME.fullmatch(name):
            raise UserError(
                f"{recipe.path}: data.test: the name {name!r} is that of files too: letters, digits and _ . + - are "
                "expected, a letter or digit first, 100 characters at most. The files of a test set are named under it."
            )
    for side, language in dataclasses.asdict(recipe.languages).items():
        if not LANGUAGE.fullmatch(language):
            raise UserError(
                f"{recipe.path}: languages.{side}: expected a language's code, such as de or pt-BR, not {language!r}."
            )


def _check_choices(recipe: Recipe) -> None:
    """What must be chosen, and what must go together."""
    where, budget, model = recipe.path, recipe.budget, recipe.model
    if (budget.steps is None) == (budget.epochs is None):
        raise UserError(f"{where}: budget: give either steps or epochs.")
    if model.record and model.system:
        raise UserError(f"{where}: model: give either record or system with shape, not both.")
    known = measured(recipe)
    if recipe.evaluation.best not in known:
        raise UserError(
            f"{where}: evaluation.best is '{recipe.evaluation.best}', which is not measured: use one of "
            f"{', '.join(sorted(known))}, or add it to evaluation.metrics."
        )
    if recipe.checkpoints.average > recipe.checkpoints.keep:
        raise UserError(
            f"{where}: checkpoints.average is {recipe.checkpoints.average} but only {recipe.checkpoints.keep} are "
            "kept: raise checkpoints.keep."
        )


def _check_bpe_dropout(recipe: Recipe) -> None:
    where, data, tokenizer = recipe.path, recipe.data, recipe.tokenizer
    if data.bpe_dropout and tokenizer.path is None and tokenizer.kind != "bpe":
        raise UserError(
            f"{where}: data.bpe_dropout leaves out merges of BPE, and this tokenizer is {tokenizer.kind}: train a BPE "
            "one (tokenizer.kind: bpe), or leave data.bpe_dropout out."
        )
    first = data.bpe_dropout_epochs
    if first is not None and (first < 1 or not data.bpe_dropout):
        raise UserError(
            f"{where}: data.bpe_dropout_epochs is {first}: it must be 1 or more, and says for how many first epochs "
            "data.bpe_dropout is used: set that too (0.1 is usual), or leave both out."
        )


def _check_schedule(recipe: Recipe) -> None:
    where = recipe.path
    try:
        schedule = Schedule(**dataclasses.asdict(recipe.schedule))
        if recipe.budget.steps is not None:
            schedule.ends(recipe.budget.steps)
    except UserError as error:
        raise UserError(f"{where}: schedule: {error}") from error
    if schedule.restarts and recipe.evaluation.patience:
        raise UserError(
            f"{where}: evaluation.patience is {recipe.evaluation.patience} and schedule.restarts {schedule.restarts}: "
            "dev scores fall after each restart, so that the training would be stopped; leave one of them out."
        )
