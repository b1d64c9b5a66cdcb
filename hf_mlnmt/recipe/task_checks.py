"""What a recipe says of tasks, development sets and where weights come from: checked before anything is read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.modeling.fusion import check_scales
from hf_mlnmt.training.objective_making import OBJECTIVES, read_objective
from hf_mlnmt.training.rotation import Rotation
from hf_mlnmt.training.tasks import NAME

if TYPE_CHECKING:
    from hf_mlnmt.recipe.schema import Recipe, TaskSection

MAIN_DEV = "dev"  # the name of the development set data.dev
PARTS = ("encoder", "decoder", "embeddings", "all")  # of init_from


def check_tasks(recipe: Recipe) -> None:
    """The keys `tasks`, `objective`, `data.train`, `data.dev` and `init_from`.

    Raises: UserError naming the field.
    """
    where = recipe.path
    if (recipe.data.train is None) == (recipe.tasks is None):
        raise UserError(
            f"{where}: give either data.train, for one task, or tasks (tasks: {{name: {{data: ...}}}}), or directions."
        )
    for name, section in (recipe.tasks or {}).items():
        _check_section(recipe, name, section)
    _check_objective(recipe)
    active = recipe.sections()
    if not active:
        raise UserError(f"{where}: tasks: none has a share above 0, so there is nothing to train.")
    try:
        Rotation([section.share for section in active.values()], recipe.seed)
    except UserError as error:
        raise UserError(f"{where}: tasks: {error}") from error
    if not dev_names(recipe):
        raise UserError(f"{where}: data.dev is missing: give it, or a dev set to one of the tasks (tasks.NAME.dev).")
    _check_fusion(recipe)
    if isinstance(recipe.init_from, dict):
        for part in recipe.init_from:
            if part not in PARTS:
                raise UserError(f"{where}: init_from.{part}: not one of {', '.join(PARTS)}{suggest(part, PARTS)}.")
        if not recipe.init_from:
            raise UserError(f"{where}: init_from: give a folder or a Hub name, or {{part: folder}}.")


def _check_objective(recipe: Recipe) -> None:
    """The objective of data.train, and what is done to pairs alone."""
    where = recipe.path
    objective = read_objective(recipe.objective, str(where), ("objective",))
    if recipe.tasks is not None and recipe.objective != "translation":
        raise UserError(f"{where}: objective is of data.train; with tasks each has its own (tasks.NAME.objective).")
    if objective.entry.kind.reads == "text" and recipe.data.bpe_dropout:
        raise UserError(f"{where}: data.bpe_dropout is for pairs; this objective reads text of one language.")


def _check_fusion(recipe: Recipe) -> None:
    """A fused model is finished, and has no label smoothing."""
    model, where = recipe.model, recipe.path
    names = [section.objective for section in recipe.sections().values()]
    named = [name if isinstance(name, str) else str(name.get("name")) for name in names]
    fused = model.fuse is not None or any(name.startswith("fusion-") for name in named)
    if fused and recipe.label_smoothing:
        raise UserError(
            f"{where}: label_smoothing is {recipe.label_smoothing}: it is not defined for a fused model; set "
            "label_smoothing: 0."
        )
    if model.fuse is None:
        return
    others = {"record": model.record, "system": model.system, "settings": model.settings}
    if other := next((name for name, value in others.items() if value), None):
        raise UserError(
            f"{where}: model.{other} beside model.fuse: what is fused says what the model is. Leave it out."
        )
    if recipe.init_from is not None:
        raise UserError(f"{where}: init_from beside model.fuse: what is fused has weights. Leave one of them out.")
    if not model.fuse.translation:
        raise UserError(f"{where}: model.fuse.translation: give at least one model.")
    try:
        check_scales(model.fuse.alpha, model.fuse.beta, model.fuse.normalization)
    except ValueError as error:
        raise UserError(f"{where}: model.fuse: {error}.") from error


def _check_section(recipe: Recipe, name: str, section: TaskSection) -> None:
    where = f"{recipe.path}: tasks.{name}"
    if not NAME.fullmatch(name) or name == MAIN_DEV:
        raise UserError(
            f"{where}: a task's name has letters, digits and single '-' between them, as en-de; "
            f"and '{MAIN_DEV}' is the name of data.dev."
        )
    if not 0 <= section.share < math.inf:
        raise UserError(f"{where}.share must be a number from 0, not {section.share}; 0 leaves the task out.")
    read_objective(section.objective, str(recipe.path), ("tasks", name, "objective"))
    if section.data == []:
        raise UserError(f"{where}.data: give a corpus, or a list of them.")


def dev_names(recipe: Recipe) -> list[str]:
    """The development sets in order; the first one's numbers stand without its name."""
    own = [name for name, section in (recipe.tasks or {}).items() if section.share and section.dev is not None]
    return [MAIN_DEV] * (recipe.data.dev is not None) + own


def measured(recipe: Recipe) -> set[str]:
    """What evaluation.best can name: loss, bleu, ..., and of further development sets <name>_loss, ..."""
    found: set[str] = set()
    for number, name in enumerate(dev_names(recipe)):
        metrics = ["loss", "perplexity", *(recipe.evaluation.metrics if translates(recipe, name) else [])]
        found |= {f"{name}_{metric}" if number else metric for metric in metrics}
    if sum(translates(recipe, name) for name in dev_names(recipe)) > 1:
        found |= {f"mean_{metric}" for metric in ("loss", *recipe.evaluation.metrics)}
    return found


def translates(recipe: Recipe, dev_name: str) -> bool:
    """Whether a development set is translated and scored."""
    own = recipe.objective if recipe.tasks is None else "translation"
    objective = (recipe.tasks or {})[dev_name].objective if dev_name != MAIN_DEV else own
    name = objective if isinstance(objective, str) else objective.get("name")
    return name in OBJECTIVES and OBJECTIVES[name].kind.translates
