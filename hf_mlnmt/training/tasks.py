"""A training is a list of tasks: a training set, an objective and a share of the batches each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from hf_mlnmt.data.training_set import TrainingSet
from hf_mlnmt.errors import UserError
from hf_mlnmt.recipe.schema import TASK_NAME
from hf_mlnmt.training.objectives import Objective

HEADS = "objective_heads"  # the part of a model in training that holds what the objectives own


@dataclass(frozen=True)
class Task:
    """What is trained on what, and how often.

    Args:
        data: the examples.
        objective: which batch is made of them, and which sum over it is minimised.
        share: of the batches, in relation to the other tasks' shares; 0 leaves the task out.
        name: letters, digits and single '-': in the log, and for a part of the model that the objective owns.
        languages: for people to read: {"source": "en", "target": "de"}, or {"text": "de"}.
    """

    data: TrainingSet = field(repr=False)
    objective: Objective = field(repr=False)
    share: float = 1
    name: str = "translation"
    languages: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not TASK_NAME.fullmatch(self.name):
            raise UserError(f"task '{self.name}': a name has letters, digits and single '-' between them, as en-de.")
        if not 0 <= self.share < math.inf:
            raise UserError(
                f"task '{self.name}': share must be a number from 0, not {self.share}; 0 leaves the task out."
            )

    def describe(self) -> str:
        """One line for the user: the task's languages and how many examples it has."""
        return ": ".join(filter(None, ["-".join(self.languages.values()), self.data.describe()]))


def active(tasks: Task | Sequence[Task]) -> list[Task]:
    """The tasks that have a share.

    Raises: UserError when there is none, or two have the same name.
    """
    found = [task for task in ([tasks] if isinstance(tasks, Task) else tasks) if task.share]
    if not found:
        raise UserError("no task has a share above 0: there is nothing to train.")
    names = [task.name for task in found]
    if len(set(names)) < len(names):
        raise UserError(f"tasks: {', '.join(names)}: every task needs a name of its own.")
    return found


def check_needs(tasks: Sequence[Task], model: nn.Module) -> None:
    """Refuse a model that an objective cannot train.

    Raises: UserError naming the task, the objective and what the model lacks.
    """
    for task in tasks:
        check_needs_of(task.name, task.objective, model)


def check_needs_of(name: str, objective: Objective, model: nn.Module) -> None:
    """The same for one task's objective."""
    for need in objective.needs:
        if not need.met(model):
            raise UserError(
                f"task '{name}': the objective {type(objective).__name__} needs {need.what}, which "
                f"{type(model).__name__} has not. Take another model, or leave this task out."
            )


# Heads: what an objective owns is a part of the model while it is trained, and is left behind at the end.


def attach_heads(model: nn.Module, tasks: Sequence[Task]) -> None:
    """Make the objectives' heads a part of the model: trained, moved and saved in checkpoints with it."""
    heads: dict[str, nn.Module] = {}
    for task in tasks:
        head = task.objective.head
        if head is not None and not any(head is other for other in heads.values()):
            heads[f"{task.name}-head"] = head
    if heads:
        model.add_module(HEADS, nn.ModuleDict(heads))


def is_head(name: str) -> bool:
    """Whether a parameter, by its name in the model in training, is left behind."""
    return name.startswith(f"{HEADS}.")


def lasting_parameters(model: nn.Module) -> int:
    """How many parameters the finished model has."""
    return sum(parameter.numel() for name, parameter in model.named_parameters() if not is_head(name))
