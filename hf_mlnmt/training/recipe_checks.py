"""Values of a recipe that cannot be: what the types of its fields do not say."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hf_mlnmt.errors import UserError
from hf_mlnmt.training.schedules import Schedule

if TYPE_CHECKING:
    from hf_mlnmt.training.recipe import Recipe


def check(recipe: Recipe) -> None:
    """What types cannot say."""
    where, budget, model = recipe.path, recipe.budget, recipe.model
    if (budget.steps is None) == (budget.epochs is None):
        raise UserError(f"{where}: budget: give either steps or epochs.")
    if model.record and model.system:
        raise UserError(f"{where}: model: give either record or system with shape, not both.")
    known = {"loss", "perplexity", *recipe.evaluation.metrics}
    if recipe.evaluation.best not in known:
        raise UserError(
            f"{where}: evaluation.best is '{recipe.evaluation.best}', which is not measured: use one of "
            f"{', '.join(sorted(known))}, or add it to evaluation.metrics."
        )
    turning = recipe.data.bidirectional_epochs
    if turning < 0:
        raise UserError(f"{where}: data.bidirectional_epochs must be 0 or more, not {turning}.")
    if turning and recipe.tokenizer.languages:
        raise UserError(
            f"{where}: data.bidirectional_epochs turns sources into targets, and codes of target languages "
            "(tokenizer.languages) would then be those of the source: use one of the two. Several directions are "
            "several corpora in data.train."
        )
    if not 0 <= recipe.data.bpe_dropout < 1:
        raise UserError(f"{where}: data.bpe_dropout must be at least 0 and below 1, not {recipe.data.bpe_dropout}.")
    first = recipe.data.bpe_dropout_epochs
    if first is not None and (first < 1 or not recipe.data.bpe_dropout):
        raise UserError(
            f"{where}: data.bpe_dropout_epochs is {first}: it must be 1 or more, and says for how many first epochs "
            "data.bpe_dropout is used: set that too (0.1 is usual), or leave both out."
        )
    _check_schedule(recipe)
    if not 0 <= recipe.label_smoothing < 1:
        raise UserError(f"{where}: label_smoothing must be at least 0 and below 1, not {recipe.label_smoothing}.")
    positive = {
        "batch.tokens": recipe.batch.tokens,
        "batch.accumulate": recipe.batch.accumulate,
        "budget.steps": 1 if budget.steps is None else budget.steps,
        "budget.epochs": 1 if budget.epochs is None else budget.epochs,
        "optimizer.learning_rate": recipe.optimizer.learning_rate,
        "evaluation.every": recipe.evaluation.every,
        "checkpoints.keep": recipe.checkpoints.keep,
        "checkpoints.average": recipe.checkpoints.average,
        "decoding.beams": recipe.decoding.beams,
        "tokenizer.vocab_size": recipe.tokenizer.vocab_size,
        "data.max_length": recipe.data.max_length,
        "logging.every": recipe.logging.every,
    }
    for name, value in positive.items():
        if value <= 0:
            raise UserError(f"{where}: {name} must be above 0, not {value}.")
    if recipe.checkpoints.average > recipe.checkpoints.keep:
        raise UserError(
            f"{where}: checkpoints.average is {recipe.checkpoints.average} but only {recipe.checkpoints.keep} are "
            "kept: raise checkpoints.keep."
        )
    for name in ("label_smoothing_factor", "output_dir", "resume_from_checkpoint"):
        if name in recipe.arguments:
            raise UserError(f"{where}: arguments.{name}: the recipe's own keys say this (label_smoothing, --output).")


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
