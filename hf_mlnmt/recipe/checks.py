"""Checks of a recipe by itself: its values, then rules between its keys, in order.

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
    """Checks all values and rules between keys. Raises: UserError naming the key, for what cannot be trained."""
    # checks each value again, since Python code may have changed the recipe after it was read
    build(Recipe, recipe.to_dict(), str(recipe.path))
    for name, section in (recipe.tasks or {}).items():
        read_objective(section.objective, str(recipe.path), ("tasks", name, "objective"))
    read_objective(recipe.objective, str(recipe.path), ("objective",))
    for is_broken, message in _rules(recipe):
        if is_broken:
            raise UserError(f"{recipe.path}: {message}")
    if recipe.budget.steps is not None:
        with naming(f"{recipe.path}: schedule"):
            recipe.schedule.ends(recipe.budget.steps)


def _rules(recipe: Recipe) -> Iterator[tuple[Any, str]]:
    """Yields for each rule between keys whether the recipe breaks it, and the message; later ones rely on earlier."""
    data, model, tokenizer, evaluation = recipe.data, recipe.model, recipe.tokenizer, recipe.evaluation
    yield (
        (data.train is None) == (recipe.tasks is None),
        "give either data.train, for one task, or tasks (tasks: {name: {data: ...}}), or directions.",
    )
    yield (
        recipe.tasks is not None and recipe.objective != "translation",
        "objective is of data.train; with tasks each has its own (tasks.NAME.objective).",
    )
    yield (
        reads_text(recipe.objective) and data.bpe_dropout,
        "data.bpe_dropout is for pairs; this objective reads text of one language.",
    )
    yield (
        sum(recipe.augment.shares) and all(reads_text(each.objective) for each in recipe.sections().values()),
        "augment: is for pairs, and no objective reads some here. Leave it out.",
    )
    yield (
        sum(recipe.augment.shares) and data.memory,
        "augment: changes pairs without matches. Leave augment (--set augment={}) or data.memory out.",
    )
    yield not recipe.sections(), "tasks: none has a share above 0, so there is nothing to train."
    yield (not dev_names(recipe), "data.dev is missing: give it, or a dev set to one of the tasks (tasks.NAME.dev).")
    if model.fuse is not None:
        for name in ("record", "system", "settings"):
            yield (
                getattr(model, name),
                f"model.{name} beside model.fuse: what is fused says what the model is. Leave it out.",
            )
        yield recipe.init_from, "init_from beside model.fuse: what is fused has weights. Leave one of them out."
    begun = recipe.init_from
    whole = isinstance(begun, str) or (begun is not None and list(begun) == ["all"])
    asked = {"adapter": recipe.adapter, "keep": recipe.keep, "evaluation.before": evaluation.before}
    for key, told in (asked | {"freeze": recipe.freeze}).items():
        yield (
            told and (not whole or model.fuse or model.add_to),
            f"{key}: it is of one trained model: name that in init_from, without parts, model.fuse and model.add_to, "
            f"or leave {key} out.",
        )
    yield (recipe.budget.steps is None) == (recipe.budget.epochs is None), "budget: give either steps or epochs."
    yield model.record and model.system, "model: give either record or system with shape, not both."
    known = measured(recipe)
    yield (
        evaluation.best not in known,
        f"evaluation.best is '{evaluation.best}', which is not measured: use one of {', '.join(sorted(known))}, or add "
        "it to evaluation.metrics.",
    )
    yield (
        data.bpe_dropout and tokenizer.path is None and tokenizer.kind != "bpe",
        f"data.bpe_dropout leaves out merges of BPE, and this tokenizer is {tokenizer.kind}: train a BPE one "
        "(tokenizer.kind: bpe), or leave data.bpe_dropout out.",
    )
    yield (
        recipe.schedule.restarts and evaluation.patience,
        f"evaluation.patience is {evaluation.patience} and schedule.restarts {recipe.schedule.restarts}: dev scores "
        "fall after each restart, so that the training would be stopped; leave one of them out.",
    )


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


def check_budget(recipe: Recipe, steps: int) -> Iterator[str]:
    """Yields warnings about keys that do not fit a training of `steps`. Raises: UserError where cycles do not fit."""
    with naming(f"{recipe.path}: schedule"):
        saved = len(saved_steps(recipe.schedule, recipe.evaluation.every, steps))
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
