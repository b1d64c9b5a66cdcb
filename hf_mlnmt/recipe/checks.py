"""Checks of a recipe by itself: its values, then rules between its keys (`CHECKS`, in order).

They run whenever a recipe is read, and again before a training, where training/preflight.py also checks data, model,
weights and machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_mlnmt.common.errors import UserError, naming, suggest
from hf_mlnmt.common.keys import build
from hf_mlnmt.recipe.schema import (
    LICENCES,
    OBJECTIVES,
    NamedObjective,
    Recipe,
    dev_names,
    measured,
    reads_text,
    saved_steps,
)


def check_recipe(recipe: Recipe) -> None:
    """Runs all CHECKS. Raises: UserError naming the key, for a recipe that cannot be trained."""
    for check in CHECKS:
        check(recipe)


def check_values(recipe: Recipe) -> None:
    """Checks every value again as when a recipe is read, for a recipe that was changed in Python."""
    build(Recipe, recipe.to_dict(), str(recipe.path))


# Rules between keys


def check_tasks(recipe: Recipe) -> None:
    """Checks that there is either data.train or tasks, that objectives are known, and that there is a dev set."""
    where = recipe.path
    if (recipe.data.train is None) == (recipe.tasks is None):
        raise UserError(
            f"{where}: give either data.train, for one task, or tasks (tasks: {{name: {{data: ...}}}}), or directions."
        )
    for name, section in (recipe.tasks or {}).items():
        read_objective(section.objective, str(where), ("tasks", name, "objective"))
    read_objective(recipe.objective, str(where), ("objective",))
    if recipe.tasks is not None and recipe.objective != "translation":
        raise UserError(f"{where}: objective is of data.train; with tasks each has its own (tasks.NAME.objective).")
    if reads_text(recipe.objective) and recipe.data.bpe_dropout:
        raise UserError(f"{where}: data.bpe_dropout is for pairs; this objective reads text of one language.")
    if sum(recipe.augment.shares) and all(reads_text(each.objective) for each in recipe.sections().values()):
        raise UserError(f"{where}: augment: is for pairs, and no objective reads some here. Leave it out.")
    if sum(recipe.augment.shares) and recipe.data.memory:
        raise UserError(f"{where}: augment: changes pairs without matches. Leave augment or data.memory out.")
    if not recipe.sections():
        raise UserError(f"{where}: tasks: none has a share above 0, so there is nothing to train.")
    if not dev_names(recipe):
        raise UserError(f"{where}: data.dev is missing: give it, or a dev set to one of the tasks (tasks.NAME.dev).")


def read_objective(value: str | dict[str, Any], file: str, at: tuple[str, ...]) -> NamedObjective:
    """Reads the key `objective`: a name, or {name: ..., setting: ...}. Raises: UserError naming file and field."""
    settings = {"name": value} if isinstance(value, str) else dict(value)
    name, where = settings.pop("name", None), f"{file}: {'.'.join(at)}"
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise UserError(
            f"{where}: there is no objective {name!r}{suggest(str(name), OBJECTIVES)}. Give one of "
            f"{', '.join(OBJECTIVES)}; with settings of its own as {{name: ..., setting: ...}}."
        )
    key = OBJECTIVES[name]
    return NamedObjective(name, key, build(key.settings, settings, file, at))


def check_fusion(recipe: Recipe) -> None:
    """Checks that no key beside model.fuse says what the model is, or which weights it begins with."""
    model, where = recipe.model, recipe.path
    if model.fuse is None:
        return
    others = {"record": model.record, "system": model.system, "settings": model.settings}
    if other := next((name for name, value in others.items() if value), None):
        raise UserError(
            f"{where}: model.{other} beside model.fuse: what is fused says what the model is. Leave it out."
        )
    if recipe.init_from is not None:
        raise UserError(f"{where}: init_from beside model.fuse: what is fused has weights. Leave one of them out.")


def check_begun(recipe: Recipe) -> None:
    """Checks that a recipe with adapter, keep, freeze or evaluation.before begins with one whole trained model."""
    begun, model = recipe.init_from, recipe.model
    whole = isinstance(begun, str) or (begun is not None and list(begun) == ["all"])
    asked = {"adapter": recipe.adapter, "keep": recipe.keep, "evaluation.before": recipe.evaluation.before}
    asked["freeze"] = recipe.freeze is not None
    for key, told in asked.items():
        if told and (not whole or model.fuse or model.add_to):
            raise UserError(
                f"{recipe.path}: {key}: it is of one trained model: name that in init_from, without parts, model.fuse "
                f"and model.add_to, or leave {key} out."
            )


def check_choices(recipe: Recipe) -> None:
    """Checks that there is one budget and one model, and that evaluation.best is measured."""
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


def check_bpe_dropout(recipe: Recipe) -> None:
    """Checks that data.bpe_dropout has a BPE tokenizer."""
    tokenizer = recipe.tokenizer
    if recipe.data.bpe_dropout and tokenizer.path is None and tokenizer.kind != "bpe":
        raise UserError(
            f"{recipe.path}: data.bpe_dropout leaves out merges of BPE, and this tokenizer is {tokenizer.kind}: train "
            "a BPE one (tokenizer.kind: bpe), or leave data.bpe_dropout out."
        )


def check_schedule(recipe: Recipe) -> None:
    """Checks that the cycles of schedule.restarts fit in the budget, and are not combined with early stopping."""
    where, schedule = recipe.path, recipe.schedule
    if recipe.budget.steps is not None:
        with naming(f"{where}: schedule"):
            schedule.ends(recipe.budget.steps)
    if schedule.restarts and recipe.evaluation.patience:
        raise UserError(
            f"{where}: evaluation.patience is {recipe.evaluation.patience} and schedule.restarts {schedule.restarts}: "
            "dev scores fall after each restart, so that the training would be stopped; leave one of them out."
        )


CHECKS = (check_values, check_tasks, check_fusion, check_begun, check_choices, check_bpe_dropout, check_schedule)


def check_budget(recipe: Recipe, steps: int) -> Iterator[str]:
    """Yields warnings about keys that do not fit a training of `steps`. Raises: UserError where cycles do not fit."""
    with naming(f"{recipe.path}: schedule"):
        saved = len(saved_steps(recipe, steps))
    if recipe.schedule.warmup >= steps:
        yield (
            f"schedule.warmup is {recipe.schedule.warmup:,} steps but the training has {steps:,}: the learning rate "
            "never reaches optimizer.learning_rate. Lower schedule.warmup."
        )
    if recipe.checkpoints.average > saved:
        yield (
            f"checkpoints.average is {recipe.checkpoints.average}, but this training saves {saved}: that many are "
            "averaged. Lower evaluation.every, or checkpoints.average."
        )
    licence = recipe.data.licence
    if licence is not None and licence.lower() not in LICENCES:
        yield (
            f"data.licence '{licence}' is not a licence's identifier on the Hub{suggest(licence.lower(), LICENCES)}: "
            "model cards will show it as it is."
        )
