"""`--dry-run`: sizes, batches and an estimate of time and memory from a few real steps."""

from __future__ import annotations

import operator
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_mlnmt.common.memory import peak_memory
from hf_mlnmt.training.adapters import parameters_of_adapter
from hf_mlnmt.training.arguments import precision
from hf_mlnmt.training.batching import BatchStatistics, TokenBatchSampler, batch_statistics
from hf_mlnmt.training.half_weights import HalfWeights
from hf_mlnmt.training.tasks import Task, TaskBatchSampler, collate_in, lasting_parameters

if TYPE_CHECKING:
    from hf_mlnmt.recipe.schema import Recipe
    from hf_mlnmt.training.trainer import TranslationTrainer

STEPS = 6
MEASURED = 30  # tasks that are measured, at most; further ones are taken to be as fast as their mean


def report(recipe: Recipe, trainer: TranslationTrainer) -> str:
    """Returns lines of text: data, parameters, steps, batches and padding of each task, estimated time and memory."""
    args, sampler = trainer.args, trainer.sampler()
    steps, steps_per_epoch = trainer.steps()
    figures = list(map(batch_statistics, sampler.samplers))
    seconds_per_token, memory = _measure(trainer)
    # A step has on average batches * share batches of each task, each with the task's mean number of target tokens.
    batches = args.gradient_accumulation_steps * args.world_size
    counts = [batches * count / sampler.schedule.length for count in sampler.schedule.counts]
    tokens = [count * figure.target_tokens_per_batch for count, figure in zip(counts, figures)]
    seconds = sum(map(operator.mul, tokens, seconds_per_token))
    cycles, trained = recipe.schedule.ends(steps), parameters_of_adapter(trainer.model)
    evaluations = len({*range(recipe.evaluation.every, steps, recipe.evaluation.every), steps, *cycles})
    # Bytes in float32: 16 for a trained weight, its gradient and Adam's two moments; 4 for a frozen weight.
    state = sum(weight.numel() * (16 if weight.requires_grad else 4) for weight in trainer.model.parameters()) / 2**20
    lines = {
        **_tasks(trainer, sampler, figures, steps),
        "development sets": ", ".join(f"{dev.name} {len(dev.dataset):,}" for dev in trainer.dev_sets) or "none",
        "parameters": f"{lasting_parameters(trainer.model):,} ({type(trainer.model).__name__})"
        + (f", and {trained:,} of the adapter, which alone is trained" if trained else ""),
        "steps": f"{steps:,} ({steps / steps_per_epoch:.2f} epochs, {steps_per_epoch:,} steps each; "
        f"{args.gradient_accumulation_steps} batch(es) x {args.world_size} process(es) a step)"
        + (f", {len(cycles)} cycles of the learning rate" if cycles else ""),
        "speed": f"{sum(tokens) / seconds:,.0f} target tokens/s, {1 / seconds:.2f} steps/s "
        f"(measured: {STEPS} batches on {args.device} in {precision(args)})",
        "time": f"about {duration(steps * seconds)} of training, and {evaluations} evaluations on development sets",
        "memory": f"about {memory:,.0f} MiB in all, of which {state:,.0f} MiB weights, gradients and optimizer state",
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())


def _tasks(
    trainer: TranslationTrainer, sampler: TaskBatchSampler, figures: list[BatchStatistics], steps: int
) -> dict[str, str]:
    """Describes the training set, its tokens, batches and padding; of several tasks each, with shares and epochs."""
    epochs = sampler.epochs(steps * trainer.args.gradient_accumulation_steps)
    lines = [_task(task, figure) for task, figure in zip(trainer.tasks, figures)]
    if len(lines) == 1:
        return lines[0]
    rows = list(zip(trainer.tasks, lines, sampler.schedule.counts, epochs))
    more = {"more tasks": f"{len(rows) - MEASURED:,}"} if len(rows) > MEASURED else {}
    return {
        f"task {task.name}": f"{type(task.objective).__name__}, {line.pop('training set')}; share {count:g} of "
        f"{sampler.schedule.length}, {own:.2f} epochs of its own; "
        + "; ".join(f"{name} {text}" for name, text in line.items())
        for task, line, count, own in rows[:MEASURED]
    } | more


def _task(task: Task, figures: BatchStatistics) -> dict[str, str]:
    return {
        "training set": task.describe(),
        "tokens per epoch": f"{figures.source_tokens:,} source, {figures.target_tokens:,} target (subwords with </s>)",
        "batches per epoch": f"{figures.batches:,} of {figures.target_tokens_per_batch:,.0f} target tokens on average, "
        f"{figures.sentences / figures.batches:.1f} sentences",
        "padding": f"{figures.source_padding:.1%} source, {figures.target_padding:.1%} target",
    }


def _measure(trainer: TranslationTrainer) -> tuple[list[float], float]:
    """Measures seconds per target token of each task over a few batches, and peak memory in MiB; keeps the weights."""
    trainer.model.train()
    trainer.create_optimizer()
    assert trainer.optimizer is not None
    for group in trainer.optimizer.param_groups:
        group["lr"] = 0.0
    samplers = trainer.sampler().samplers
    some = zip(trainer.tasks[:MEASURED], samplers)
    seconds = [_seconds_per_token(trainer, task, sampler) for task, sampler in some]
    seconds += [statistics.mean(seconds)] * (len(samplers) - len(seconds))
    if trainer.args.device.type == "cuda":
        return seconds, torch.cuda.max_memory_allocated() / 2**20
    return seconds, peak_memory() / 2**20


def _seconds_per_token(trainer: TranslationTrainer, task: Task, sampler: TokenBatchSampler) -> float:
    batches = sampler.batches(0)
    cells = [rows * target for rows, _, target in map(sampler.shape, batches)]
    # not timed: the largest batch, for the peak of memory and as a warm-up
    _step(trainer, task, sampler, batches[int(np.argmax(cells))])
    before = time.perf_counter()
    tokens = sum(_step(trainer, task, sampler, batch) for batch in batches[:STEPS])
    if trainer.args.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - before) / tokens / trainer.args.world_size


def _step(trainer: TranslationTrainer, task: Task, sampler: TokenBatchSampler, batch: np.ndarray) -> int:
    """Runs one forward, backward and update with learning rate 0; returns the number of target tokens."""
    assert trainer.optimizer is not None
    examples = [task.data[i] for i in batch.tolist()]
    inputs = trainer._prepare_inputs(collate_in(sampler.buckets, task.objective.collate, examples))
    with trainer.accelerator.autocast(), HalfWeights(trainer.model).cast():
        loss, _ = task.objective.loss(trainer.model, inputs)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return int(task.data.target_lengths[batch].sum())


def duration(seconds: float) -> str:
    """Returns seconds in words: "2 h 5 min", "12 min" or "40 s"."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if seconds >= 60 else f"{seconds:.0f} s"
