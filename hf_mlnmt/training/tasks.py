"""A training is a list of tasks: a training set, an objective and a share of the batches each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from hf_mlnmt.data.training_set import TrainingSet
from hf_mlnmt.errors import UserError
from hf_mlnmt.training.objectives import Batch, Example, Objective

NAME = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
HEADS = "objective_heads"  # the part of a model in training that holds what the objectives own
TASK = "task"  # the key of a batch that names its task


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
        if not NAME.fullmatch(self.name):
            raise UserError(f"task '{self.name}': a name has letters, digits and single '-' between them, as en-de.")
        if not 0 <= self.share < math.inf:
            raise UserError(
                f"task '{self.name}': share must be a number from 0, not {self.share}; 0 leaves the task out."
            )

    def describe(self) -> str:
        """Its languages and its examples."""
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
        for need in task.objective.needs:
            if not need.met(model):
                raise UserError(
                    f"task '{task.name}': the objective {type(task.objective).__name__} needs {need.what}, which "
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


# Batches


class TaskExamples(Dataset):
    """All tasks' examples: item (number of a task, index) is the task's number and its example."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.sets = [task.data for task in tasks]

    def __len__(self) -> int:
        return sum(map(len, self.sets))

    def __getitem__(self, item: tuple[int, int]) -> tuple[int, Example]:
        task, index = item
        return task, self.sets[task][index]


@dataclass(frozen=True)
class Collator:
    """Examples of one task to the batch that its objective wants, with the task's name under the key "task"."""

    names: list[str]
    collates: list[Callable[[Sequence[Example]], Batch]]

    def __call__(self, items: Sequence[tuple[int, Example]]) -> dict[str, Any]:
        task = items[0][0]
        return {**self.collates[task]([example for _, example in items]), TASK: self.names[task]}


def split(batch: Mapping[str, Any]) -> tuple[str, Batch]:
    """A batch's task and its tensors."""
    return batch[TASK], {name: value for name, value in batch.items() if name != TASK}


# Losses


class TaskLosses(nn.Module):
    """The model inside the objectives: one module, whose forward is a batch's loss.

    Wrappers (for several processes, mixed precision, compilation) are put around this module, so that they see the
    call of every part of the model that an objective calls.
    """

    def __init__(self, model: nn.Module, tasks: Sequence[Task]) -> None:
        super().__init__()
        self.model = model
        self.objectives = {task.name: task.objective for task in tasks}

    def forward(
        self, task: str, batch: Batch, num_items_in_batch: Tensor | int | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a task's batch and its named parts, see `Objective.loss`."""
        return self.objectives[task].loss(self.model, batch, num_items_in_batch)


class NamedLosses:
    """Sums of the losses between two logs, under the names they are logged with.

    The loss of a step is the sum over its tasks of (sum of the task's losses / the task's items of the whole step).
    With one task its parts are named alone; with several each task's loss is, and its parts after it. A mean is over
    the steps that had a batch of the task.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.several = len(tasks) > 1
        self._sums: dict[str, Tensor] = {}
        self._steps: dict[str, set[int]] = {}

    def add(self, task: str, step: int, loss: Tensor, parts: Mapping[str, Tensor]) -> None:
        """Add a batch's."""
        named = {f"loss_{task}_{part}" if self.several else f"loss_{part}": value for part, value in parts.items()}
        if self.several:
            named[f"loss_{task}"] = loss
        for name, value in named.items():
            self._sums[name] = self._sums.get(name, 0) + value.detach()
            self._steps.setdefault(name, set()).add(step)

    def take(self, total: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The means per step since the last call. `total` adds up over the processes."""
        sums, steps = self._sums, self._steps
        self._sums, self._steps = {}, {}
        return {name: total(sums[name]).item() / len(steps[name]) for name in sorted(sums)}


def items_of_step(
    tasks: Iterable[Task], batches: Sequence[Mapping[str, Any]], gather: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Task -> its items in these batches; `gather` adds up over the processes."""
    objectives = {task.name: task.objective for task in tasks}
    counts: dict[str, Tensor] = {}
    for name, batch in map(split, batches):
        items = objectives[name].items(batch)
        counts[name] = counts[name] + items if name in counts else items
    return {name: gather(items) for name, items in counts.items()}
