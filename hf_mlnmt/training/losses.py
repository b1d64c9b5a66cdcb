"""Losses of tasks: computed around the model, divided by each task's own items of the step, logged by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hf_mlnmt.training.loading import split
from hf_mlnmt.training.objectives import Batch
from hf_mlnmt.training.tasks import Task


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
        """Add the loss of one batch and its parts."""
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
