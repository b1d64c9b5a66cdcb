"""Tasks, of which a training is a list: each a training set, an objective and a share of the batches.

preparation.py makes them of a recipe's `tasks`. A batch is of one task; the losses of a step's batches are added up,
each divided by its own task's items (trainer.py).

Which task comes when follows from the shares, which hold exactly, and from the seed (`TaskSchedule`). `task_sampler`
says which examples are in the batches of a process, and in which order; `task_loader` loads and collates them.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import TrainingArguments

from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.data.encoded import Examples, Rows
from hf_mlnmt.data.training_set import TrainingSet
from hf_mlnmt.recipe.schema import Batches
from hf_mlnmt.training.adapters import is_of_adapter
from hf_mlnmt.training.batching import Buckets, TokenBatchSampler
from hf_mlnmt.training.objectives import IGNORED, SHOWN, Batch, Example, Objective, gathered

HEADS = "objective_heads"  # module of a model in training that holds the objectives' heads


@dataclass(frozen=True)
class Task:
    """A training set with an objective and a share of the batches.

    share: of the batches, in relation to the other tasks' shares; 0 leaves the task out. name: letters, digits and
    single '-'. languages: for people to read: {"source": "en", "target": "de"}, or {"text": "de"}.
    """

    data: TrainingSet = field(repr=False)
    objective: Objective = field(repr=False)
    share: float = 1
    name: str = "translation"
    languages: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Describes the task in a line: its languages, and how many examples it has."""
        return ": ".join(filter(None, ["-".join(self.languages.values()), self.data.describe()]))


def active(tasks: Task | Sequence[Task]) -> list[Task]:
    """Returns the tasks with a share above 0. Raises: UserError without any, or when two have the same name."""
    with_share = [task for task in ([tasks] if isinstance(tasks, Task) else tasks) if task.share]
    if not with_share:
        raise UserError("no task has a share above 0: there is nothing to train.")
    names = [task.name for task in with_share]
    if len(set(names)) < len(names):
        raise UserError(f"tasks: {', '.join(names)}: every task needs a name of its own.")
    return with_share


def check_needs(name: str, objective: Objective, model: nn.Module) -> None:
    """Raises UserError for a model that the objective of the task `name` cannot train."""
    for need in objective.needs:
        if not need.met(model):
            raise UserError(
                f"task '{name}': the objective {type(objective).__name__} needs {need.what}, which "
                f"{type(model).__name__} has not. Take another model, or leave this task out."
            )


def attach_heads(model: nn.Module, tasks: Sequence[Task]) -> None:
    """Adds the objectives' heads to the model, as its module HEADS, for training; finished models are without them."""
    heads: dict[str, nn.Module] = {}
    for task in tasks:
        head = task.objective.head
        if head is not None and not any(head is other for other in heads.values()):
            heads[f"{task.name}-head"] = head
    if heads:
        model.add_module(HEADS, nn.ModuleDict(heads))


def is_head(name: str) -> bool:
    """Returns whether this is the name of a head's parameter, in the model in training."""
    return name.startswith(f"{HEADS}.")


def lasting_parameters(model: nn.Module) -> int:
    """Counts the parameters that the finished model has, without heads, its adapter merged."""
    lasting = (parameter for name, parameter in model.named_parameters() if not (is_head(name) or is_of_adapter(name)))
    return sum(parameter.numel() for parameter in lasting)


ORDER = 4  # added to the seed: the order of the tasks is drawn independently of all else


class TaskSchedule:
    """The order of tasks, batch by batch: in each cycle every task has as many places as its share says.

    The places of a cycle are shuffled anew in every cycle; which task is where is a pure function of (seed, place).
    Shares of 1 and 0.5 make a cycle of three places. Shares that hold exactly only over more than 1,000 places have
    cycles of 1,000, or of as many as there are tasks, in which a task has the whole number of places below or above its
    share (systematic sampling): tasks lie side by side on a line, each as long as its places, and a mark at every whole
    distance gives the task under it a place. The marks of every cycle begin elsewhere, by the golden ratio, so that
    shares hold over the cycles.

    counts: the number of places of each task in a cycle, in the mean over all cycles.
    """

    def __init__(self, shares: Sequence[float], seed: int) -> None:
        exact, self.seed = whole_numbers(shares), seed
        total = sum(exact)
        self.length = total if total <= LONGEST else max(LONGEST, len(shares))
        ends = [0, *itertools.accumulate(exact)]
        # end of each task on the line, in units of 2 ** -32
        self._ends = np.array([(end * self.length << _BITS) // total for end in ends])
        self.counts = (np.diff(self._ends) / 2**_BITS).tolist()
        self._latest: tuple[int, np.ndarray, np.ndarray] = (-1, self._ends, self._ends)

    def cycle(self, number: int) -> np.ndarray:
        """Returns the tasks of a cycle in order, by number: int64 (length,)."""
        return self._cycle(number)[0]

    def _cycle(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tasks of a cycle in order, and how many places of the cycles before it were each task's."""
        if self._latest[0] != number:
            order = np.random.default_rng([self.seed, number, ORDER]).permutation(self.length)
            counts = np.diff((self._ends + _mark(number)) >> _BITS)
            marks = np.sort(_mark(np.arange(number)))
            whole, rest = self._ends >> _BITS, self._ends % 2**_BITS
            before = np.diff(number * whole + number - np.searchsorted(marks, 2**_BITS - rest))
            self._latest = number, np.repeat(np.arange(len(counts)), counts)[order], before
        return self._latest[1:]

    def seen(self, places: int) -> list[int]:
        """Counts how many of the first `places` of the schedule are each task's."""
        number, within = divmod(places, self.length)
        tasks, before = self._cycle(number)
        return (before + np.bincount(tasks[:within], minlength=len(before))).tolist()  # type: ignore[no-any-return]

    def at(self, place: int) -> tuple[int, int]:
        """Returns the task at a place of the schedule (from 0), and how many places before it were that task's."""
        number, within = divmod(place, self.length)
        tasks, before = self._cycle(number)
        task = int(tasks[within])
        return task, int(before[task]) + int((tasks[:within] == task).sum())


LONGEST = 1000  # most places of a cycle whose shares hold exactly
_BITS = 32  # bits after the point of a position on the line of a cycle


def _mark(cycle: Any) -> Any:
    """Returns where the marks of a cycle begin: the fractional part of cycle / golden ratio, in units of 2 ** -32."""
    return cycle * 2654435769 % 2**_BITS


def whole_numbers(shares: Sequence[float]) -> list[int]:
    """Returns the smallest whole numbers in the ratio of the shares."""
    exact = [Fraction(str(share)) for share in shares]
    common = math.lcm(*(share.denominator for share in exact))
    counts = [int(share * common) for share in exact]
    divisor = math.gcd(*counts)
    return [count // divisor for count in counts]


def seed_of(seed: int, number: int) -> int:
    """Returns the seed of the task with this number; the first task has `seed` itself."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) if number else seed


class TaskBatchSampler(Sampler[tuple[int, list[int], int]]):
    """The batches of one process over all tasks: the task's number, indices of its examples, the task's epoch.

    A batch is of one task, and all processes are at the same task at the same time. Each task goes through its own
    epochs, one batch of its sampler after the other (a batch a process at each of the task's places). An epoch of the
    training is one of the first task's, made longer until it ends with a whole cycle and a whole optimizer step.
    """

    def __init__(self, samplers: Sequence[TokenBatchSampler], schedule: TaskSchedule) -> None:
        self.samplers, self.schedule, self.epoch = list(samplers), schedule, 0
        self.accumulation, self.rank = samplers[0].accumulation, samplers[0].rank
        cycles = math.ceil(len(samplers[0]) / schedule.counts[0])
        # the fewest cycles after which a step ends too
        together = self.accumulation // math.gcd(self.accumulation, schedule.length)
        self.total = math.ceil(cycles / together) * together * schedule.length
        self.begin_at(0, 0, [0] * len(self.samplers))

    def begin_at(self, step: int, places: int, batches: Sequence[int]) -> None:
        """Makes the sampler continue at `step` of a training that may have had another number of processes so far.

        places: how many of the schedule each process had passed. batches: how many of each task all processes had seen.
        """
        self.start = step * self.accumulation
        self.shift = places - self.start
        world = self.samplers[0].world_size
        self.before = [seen - count * world for seen, count in zip(batches, self.schedule.seen(places))]

    def reached(self, step: int) -> dict[str, Any]:
        """Returns the arguments `places` and `batches` of `begin_at` for a training that continues at `step`."""
        places = step * self.accumulation + self.shift
        firsts = [self._first(task, count) for task, count in enumerate(self.schedule.seen(places))]
        return {"places": places, "batches": firsts}

    def _first(self, task: int, count: int) -> int:
        """Returns the number of the first of the batches that the processes see at the count-th place of a task."""
        return count * self.samplers[task].world_size + self.before[task]

    def __len__(self) -> int:
        """Returns the number of batches of this process in one epoch of the training."""
        return self.total

    def __iter__(self) -> Iterator[tuple[int, list[int], int]]:
        for place in range(self.epoch * self.total, (self.epoch + 1) * self.total):
            if place < self.start:  # Trainer skips these batches: only their number counts
                yield 0, [], 0
                continue
            task, batches = self.at(place)
            number = self._first(*self.schedule.at(place + self.shift)) + self.rank
            epoch = number // self.samplers[task].total
            yield task, batches[self.rank], epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration yields."""
        self.epoch = epoch

    def at(self, place: int) -> tuple[int, list[list[int]]]:
        """Returns the task of batch number `place` (from 0, over all epochs), and each process's example indices."""
        task, count = self.schedule.at(place + self.shift)
        return task, self.samplers[task].following(self._first(task, count))

    def members(self, step: int) -> list[tuple[int, list[int]]]:
        """Returns task and example indices of each batch of step `step` (from 0), over all processes."""
        places = range(step * self.accumulation, (step + 1) * self.accumulation)
        return [(task, batch) for task, batches in map(self.at, places) for batch in batches]

    def epochs(self, places: int) -> list[float]:
        """Returns how many epochs of its own each task goes through in the first `places` of the schedule."""
        return [count / len(sampler) for count, sampler in zip(self.schedule.seen(places), self.samplers)]


TASK = "task"  # the key of a batch that names its task


def task_sampler(
    tasks: Sequence[Task], batches: Batches, args: TrainingArguments, group: int | None = None
) -> TaskBatchSampler:
    """Returns the sampler of this process's batches of all tasks; each task has an equal part of `batches.buckets`.

    group: the batches of a step as the training began (see TokenBatchSampler).
    """
    seed = args.seed if args.data_seed is None else args.data_seed
    samplers = []
    for number, task in enumerate(tasks):
        with naming(f"task '{task.name}'") if len(tasks) > 1 else nullcontext():
            sampler = TokenBatchSampler(
                task.data.source_lengths,
                task.data.target_lengths,
                batches.tokens,
                batches.side,
                seed=seed_of(seed, number),
                world_size=args.world_size,
                rank=args.process_index,
                accumulation=args.gradient_accumulation_steps,
                max_sentences=batches.max_sentences,
                buckets=batches.buckets and max(1, batches.buckets // len(tasks)),
                choose=task.data.choose,
                group=group,
            )
        samplers.append(sampler)
    power = 1 / batches.temperature if batches.temperature else 0
    return TaskBatchSampler(samplers, TaskSchedule([task.share * task.data.distinct**power for task in tasks], seed))


class EpochLoader(DataLoader):
    """A DataLoader that passes the epoch on to its batch sampler, which gives each process its own batches."""

    def set_epoch(self, epoch: int) -> None:
        """Sets the sampler's epoch; called by Trainer."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


def task_loader(tasks: Sequence[Task], sampler: TaskBatchSampler, args: TrainingArguments) -> EpochLoader:
    """Makes the loader of a sampler's batches, in processes of its own if the arguments say so."""
    workers = args.dataloader_num_workers
    return EpochLoader(
        TaskExamples(tasks),
        batch_sampler=sampler,  # type: ignore[arg-type]  # TaskExamples reads a batch (task, indices, epoch)
        collate_fn=Collator(  # type: ignore[arg-type]  # called with what TaskExamples.__getitems__ returns
            [task.name for task in tasks],
            [task.objective.collate for task in tasks],
            [each.buckets for each in sampler.samplers],
        ),
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
    )


class Ahead(Iterator[Any]):
    """Yields the items of an iterator in order; a thread makes the next ones in advance.

    count: the most items that wait. device: where the thread pins memory.
    """

    def __init__(self, iterator: Iterator[Any], device: torch.device, count: int = 2) -> None:
        self.iterator, self.count = iterator, count
        # Without this the thread would use the first GPU, and pin memory for that GPU.
        begin = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, "batches", begin)
        self._waiting: deque[Future] = deque()

    def __next__(self) -> Any:
        while len(self._waiting) <= self.count:
            self._waiting.append(self._thread.submit(next, self.iterator))
        return self._waiting.popleft().result()

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(cancel_futures=True)


class TaskExamples(Dataset):
    """A data set of all tasks' examples: reads the batch (task, indices, epoch) at once, as (task, its examples)."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.sets = [task.data for task in tasks]

    def __len__(self) -> int:
        return sum(map(len, self.sets))

    def __getitems__(self, batch: tuple[int, list[int], int]) -> tuple[int, Sequence[Example]]:
        task, indices, epoch = batch
        return task, shown(self.sets[task], np.array(indices), epoch)


def shown(data: TrainingSet, indices: np.ndarray, epoch: int) -> Examples:
    """Returns the examples at these indices, each with (epoch, index) under SHOWN; reads all at once by `gather`, if
    the data set has that method."""
    gather = getattr(data, "gather", None)
    examples = gathered(gather(indices) if gather else [data[index] for index in indices.tolist()])
    return Examples({**examples.columns, SHOWN: np.stack([np.full_like(indices, epoch), indices], 1)})


@dataclass(frozen=True)
class Collator:
    """The collator of all tasks: makes the batch that the objective wants, pads it to its bucket, names its task."""

    names: list[str]
    collates: list[Callable[[Sequence[Example]], Batch]]
    buckets: list[Buckets | None]

    def __call__(self, batch: tuple[int, Sequence[Example]]) -> dict[str, Any]:
        task, examples = batch
        return {**collate_in(self.buckets[task], self.collates[task], examples), TASK: self.names[task]}


def collate_in(
    buckets: Buckets | None, collate: Callable[[Sequence[Example]], Batch], examples: Sequence[Example]
) -> Batch:
    """Collates examples and pads the batch to a shape of the buckets; rows without an example have no labels."""
    if buckets is None:
        return collate(examples)
    columns = gathered(examples).columns
    # The longest example on each side; of text of one language both are the same.
    source, target = (int(columns.get(side, columns["input_ids"]).lengths.max()) for side in ("input_ids", "labels"))
    rows, source, target = buckets.shape(len(examples), source, target)
    # Dummy examples have the bucket's lengths, so that `collate` pads to them; at least one, which is cut off again.
    batch = collate(filled(columns, {"input_ids": source, "labels": target}, max(1, rows - len(examples))))
    batch = {name: tensor[:rows] for name, tensor in batch.items()}
    batch["labels"][len(examples) :] = IGNORED
    return batch


def filled(columns: Mapping[str, Any], lengths: Mapping[str, int], times: int) -> Examples:
    """Returns examples by column, followed by `times` dummy examples of the given lengths."""

    def more(name: str, rows: Any) -> Any:
        return rows.followed(lengths[name], times) if isinstance(rows, Rows) else np.append(rows, rows[[0] * times], 0)

    return Examples({name: more(name, rows) for name, rows in columns.items()})
