"""Which task comes when: shares that hold exactly, in an order that follows from the seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from hf_mlnmt.recipe.checks import whole_numbers
from hf_mlnmt.training.batching import TokenBatchSampler

ORDER = 4  # beside the seed, so that the order of the tasks is drawn apart from what else is drawn by it


class Rotation:
    """The order of tasks, batch by batch: in each cycle every task has as many places as its share says.

    The places of a cycle are shuffled anew in every cycle; which task is where is a pure function of (seed, place).

    Args:
        shares: of each task, above 0; only their ratios count. 1 and 0.5 make a cycle of three places.
        seed: of the order.

    Raises:
        UserError: when the shares need a cycle of more than 1,000 places.
    """

    def __init__(self, shares: Sequence[float], seed: int) -> None:
        self.counts, self.seed = whole_numbers(shares), seed
        self.length = sum(self.counts)
        self._tasks = np.repeat(np.arange(len(self.counts)), self.counts)
        self._latest: tuple[int, np.ndarray] = (-1, self._tasks)  # a cycle and its order

    def cycle(self, number: int) -> np.ndarray:
        """The tasks of a cycle in order, by number: int64 (length,)."""
        if self._latest[0] != number:
            order = np.random.default_rng([self.seed, number, ORDER]).permutation(self.length)
            self._latest = number, self._tasks[order]
        return self._latest[1]

    def at(self, place: int) -> tuple[int, int]:
        """The task at a place (from 0), and how many places before it were that task's."""
        number, within = divmod(place, self.length)
        tasks = self.cycle(number)
        task = int(tasks[within])
        return task, number * self.counts[task] + int((tasks[:within] == task).sum())


def seed_of(seed: int, number: int) -> int:
    """The seed of the task with this number; of the first it is `seed` itself."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) if number else seed


class TaskBatchSampler(Sampler[list[tuple[int, int, int]]]):
    """The batches of one process over all tasks: lists of (number of the task, index of the example, epoch).

    The epoch is the task's own.

    A batch is of one task, and all processes are at the same task at the same time. Each task goes through its own
    epochs, one batch of its sampler after the other (a batch a process at each of the task's places). An epoch of the
    training is one of the first task's, made longer until it ends with a whole cycle and a whole optimizer step.

    Args:
        samplers: of each task, for the same processes and accumulation.
        rotation: which task comes when.
    """

    def __init__(self, samplers: Sequence[TokenBatchSampler], rotation: Rotation) -> None:
        self.samplers, self.rotation, self.epoch = list(samplers), rotation, 0
        self.accumulation, self.rank = samplers[0].accumulation, samplers[0].rank
        cycles = math.ceil(len(samplers[0]) / rotation.counts[0])
        together = self.accumulation // math.gcd(self.accumulation, rotation.length)  # cycles that end with a step
        self.total = math.ceil(cycles / together) * together * rotation.length

    def __len__(self) -> int:
        """Batches of this process in one epoch of the training."""
        return self.total

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        for place in range(self.epoch * self.total, (self.epoch + 1) * self.total):
            task, batches = self.at(place)
            epoch = self.rotation.at(place)[1] // len(self.samplers[task])
            yield [(task, index, epoch) for index in batches[self.rank]]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration yields."""
        self.epoch = epoch

    def at(self, place: int) -> tuple[int, list[list[int]]]:
        """The task at a place, and the example indices that each process has there."""
        task, count = self.rotation.at(place)
        return task, self.samplers[task].at(count)

    def members(self, step: int) -> list[tuple[int, list[int]]]:
        """Task and example indices of each batch of optimizer step `step` (from 0), over all processes."""
        places = range(step * self.accumulation, (step + 1) * self.accumulation)
        return [(task, batch) for task, batches in map(self.at, places) for batch in batches]

    def epochs(self, places: int) -> list[float]:
        """How many epochs of its own each task goes through in so many places from the start."""
        cycles, rest = divmod(places, self.rotation.length)
        last = self.rotation.cycle(cycles)[:rest]
        shown = [cycles * count + int((last == task).sum()) for task, count in enumerate(self.rotation.counts)]
        return [count / len(sampler) for count, sampler in zip(shown, self.samplers)]
