"""What of a recipe may change between two starts of one run, and what would make it another run.

A change is allowed where the run could have come to its present state with the new recipe too: it changes what is done
with the checkpoints, or only what comes after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.recipe.schema import Recipe

# Keys that change neither the weights nor the checkpoints so far, with all keys below them.
FREE = ("logging", "decoding", "data.test", "data.name", "data.licence", "checkpoints.keep", "checkpoints.average")
# Of these, keys whose change leaves a finished run as finished as it was.
WITHOUT_EFFECT = ("logging", "checkpoints.keep")
# Schedules whose learning rate at a step depends on the step where the training ends.
ENDING = ("cosine", "linear")
# Keys that together say how many short cycles such a schedule ends with.
CYCLES = ("budget.steps", "schedule.restarts", "schedule.restart_steps", "schedule.restart_factor")

Changes = dict[str, tuple[Any, Any]]  # key -> (old, new); None where there is no such key


def changes(before: Recipe, now: Recipe) -> Changes:
    """The keys whose values differ; corpora are compared as a whole."""
    return dict(_differences(before.to_dict(), now.to_dict()))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key in [*before, *(key for key in now if key not in before)]:
        old, new, name = before.get(key), now.get(key), f"{at}{key}"
        whole = name in ("data.train", "data.dev") or at == "data.test."
        if isinstance(old, dict) and isinstance(new, dict) and not whole:
            yield from _differences(old, new, f"{name}.")
        elif old != new:
            yield name, (old, new)


def is_below(key: str, names: tuple[str, ...]) -> bool:
    """Whether a key is one of these or lies below it."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def allowed_changes(before: Recipe, now: Recipe, place: str) -> Changes:
    """The keys whose values differ, where none of them makes another training.

    Args:
        before: the recipe that the run began with.
        place: the run's folder, for the message.

    Raises: UserError that shows the conflicting keys, old -> new.
    """
    found = changes(before, now)
    cycles = CYCLES if _differ_in_cycles_alone(before, now) else ()
    conflicts = {
        key: values for key, values in found.items() if key not in cycles and not _is_allowed(key, values, before)
    }
    if not conflicts:
        return found
    listed = "\n".join(f"  {key}: {_short(old)} -> {_short(new)}" for key, (old, new) in conflicts.items())
    reason = ""
    if any(is_below(key, ("budget",)) for key in conflicts) and before.schedule.name in ENDING:
        reason = (
            f"\nThe learning rate of schedule {before.schedule.name} comes down to its end where the budget ends: with "
            "another budget every step would have been another. inverse_sqrt, constant and newbob can go on, and a run "
            "can have more or fewer short cycles at its end: schedule.restarts, with restart_steps more or fewer in "
            "budget.steps for each."
        )
    raise UserError(
        f"{place}: this folder holds a training with other settings (old -> new):\n{listed}{reason}\n"
        "Choose another --output for the new ones, or go back to the old ones. Test sets, decoding, "
        "checkpoints.average and logging may be changed at any time."
    )


def _differ_in_cycles_alone(before: Recipe, now: Recipe) -> bool:
    """Whether the learning rate is the same in every step that both have."""
    old, new = before.schedule, now.schedule
    if before.budget.steps is None or now.budget.steps is None or not old.name == new.name in ENDING:
        return False
    shapes = {(each.restart_steps, each.restart_factor) for each in (old, new) if each.restarts}
    first = before.budget.steps - old.restarts * old.restart_steps
    return len(shapes) < 2 and first == now.budget.steps - new.restarts * new.restart_steps


def _is_allowed(key: str, values: tuple[Any, Any], before: Recipe) -> bool:
    if is_below(key, FREE):
        return True
    if is_below(key, ("budget",)):
        return before.schedule.name not in ENDING
    if key == "evaluation.patience":  # nobody knows whether less patience would have stopped it before
        old, new = values
        return old is not None and (new is None or new >= old)
    return False


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
