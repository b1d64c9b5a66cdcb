"""From tasks to the batches of one process: which examples, in which order, collated by whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset
from transformers import TrainingArguments

from hf_mlnmt.errors import UserError
from hf_mlnmt.training.batching import Side, TokenBatchSampler
from hf_mlnmt.training.objectives import SHOWN, Batch, Example
from hf_mlnmt.training.rotation import Rotation, TaskBatchSampler, seed_of
from hf_mlnmt.training.tasks import Task

TASK = "task"  # the key of a batch that names its task


@dataclass(frozen=True)
class Batches:
    """How sentences are put into batches; see `TokenBatchSampler`."""

    tokens: int = 1024
    side: Side = "target"
    max_sentences: int | None = None


def task_sampler(tasks: Sequence[Task], batches: Batches, args: TrainingArguments) -> TaskBatchSampler:
    """The batches of this process.

    Raises: UserError for a task that has too few examples.
    """
    seed = args.seed if args.data_seed is None else args.data_seed
    samplers = []
    for number, task in enumerate(tasks):
        try:
            samplers.append(_sampler(task, batches, seed_of(seed, number), args))
        except UserError as error:
            raise error if len(tasks) == 1 else UserError(f"task '{task.name}': {error}") from error
    return TaskBatchSampler(samplers, Rotation([task.share for task in tasks], seed))


def _sampler(task: Task, batches: Batches, seed: int, args: TrainingArguments) -> TokenBatchSampler:
    return TokenBatchSampler(
        task.data.source_lengths,
        task.data.target_lengths,
        batches.tokens,
        batches.side,
        seed=seed,
        world_size=args.world_size,
        rank=args.process_index,
        accumulation=args.gradient_accumulation_steps,
        max_sentences=batches.max_sentences,
        choose=task.data.choose,
    )


class EpochLoader(DataLoader):
    """A DataLoader whose batch sampler, already split over the processes, hears which epoch begins."""

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer at the start of each epoch."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


def task_loader(tasks: Sequence[Task], sampler: TaskBatchSampler, args: TrainingArguments) -> EpochLoader:
    """Loads the batches of a sampler, in processes of its own if the arguments say so."""
    workers = args.dataloader_num_workers
    return EpochLoader(
        TaskExamples(tasks),
        batch_sampler=sampler,
        collate_fn=Collator([task.name for task in tasks], [task.objective.collate for task in tasks]),
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
    )


class TaskExamples(Dataset):
    """All tasks' examples: item (number of a task, index, epoch) is the task's number and its example as it is shown
    in that epoch (`SHOWN`)."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.sets = [task.data for task in tasks]

    def __len__(self) -> int:
        return sum(map(len, self.sets))

    def __getitem__(self, item: tuple[int, int, int]) -> tuple[int, Example]:
        task, index, epoch = item
        return task, {**self.sets[task][index], SHOWN: np.array([epoch, index])}


@dataclass(frozen=True)
class Collator:
    """Examples of one task to the batch that its objective wants, with the task's name under the key "task"."""

    names: list[str]
    collates: list[Callable[[Sequence[Example]], Batch]]

    def __call__(self, items: Sequence[tuple[int, Example]]) -> dict[str, Any]:
        task = items[0][0]
        return {**self.collates[task]([example for _, example in items]), TASK: self.names[task]}


def split(batch: Mapping[str, Any]) -> tuple[str, Batch]:
    """The name of a batch's task, and its tensors."""
    return batch[TASK], {name: value for name, value in batch.items() if name != TASK}
