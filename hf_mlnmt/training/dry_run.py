"""`--dry-run`: sizes, batches and an estimate of time and memory from a few real steps."""

from __future__ import annotations

import resource
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_mlnmt.training.arguments import precision, schedule
from hf_mlnmt.training.batching import batch_statistics

if TYPE_CHECKING:
    from hf_mlnmt.training.recipe import Recipe
    from hf_mlnmt.training.trainer import TranslationTrainer

STEPS = 6


def report(recipe: Recipe, trainer: TranslationTrainer) -> str:
    """Lines of text: data, parameters, steps, batches and padding, estimated time and memory."""
    data, args, sampler = trainer.train_dataset, trainer.args, trainer.sampler()
    figures = batch_statistics(sampler, data.source_lengths, data.target_lengths)
    steps, steps_per_epoch = trainer.steps()
    tokens_per_step = figures.target_tokens / steps_per_epoch
    seconds_per_token, memory = _measure(trainer)
    seconds = steps * tokens_per_step * seconds_per_token
    parameters = trainer.model.num_parameters()
    cycles = schedule(recipe).ends(steps)
    evaluations = len({*range(recipe.evaluation.every, steps, recipe.evaluation.every), steps, *cycles})
    state = parameters * 16 / 2**20  # weights, gradients and Adam's two moments, float32
    lines = {
        "training pairs": f"{data.pairs:,}{_changes(recipe)}",
        "tokens per epoch": f"{figures.source_tokens:,} source, {figures.target_tokens:,} target (subwords with </s>)",
        "development pairs": f"{len(trainer.dev_set.dataset):,}" if trainer.dev_set else "none",
        "parameters": f"{parameters:,} ({type(trainer.model).__name__})",
        "batches per epoch": f"{figures.batches:,} of {figures.target_tokens_per_batch:,.0f} target tokens on average, "
        f"{figures.sentences / figures.batches:.1f} sentences",
        "padding": f"{figures.source_padding:.1%} source, {figures.target_padding:.1%} target",
        "steps": f"{steps:,} ({steps / steps_per_epoch:.2f} epochs, {steps_per_epoch:,} steps each; "
        f"{args.gradient_accumulation_steps} batch(es) x {args.world_size} process(es) a step)"
        + (f", {len(cycles)} cycles of the learning rate" if cycles else ""),
        "speed": f"{1 / seconds_per_token:,.0f} target tokens/s, {1 / seconds_per_token / tokens_per_step:.2f} steps/s "
        f"(measured: {STEPS} batches on {args.device} in {precision(args)})",
        "time": f"about {_duration(seconds)} of training, and {evaluations} evaluations of the development set",
        "memory": f"about {memory:,.0f} MiB in all, of which {state:,.0f} MiB weights, gradients and optimizer state",
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())


def _changes(recipe: Recipe) -> str:
    """What is done to the pairs as they are trained on."""
    turning, rate, first = recipe.data.bidirectional_epochs, recipe.data.bpe_dropout, recipe.data.bpe_dropout_epochs
    text = f", the first {turning} epoch(s) in both directions" if turning else ""
    if rate:
        text += f", BPE-dropout {rate:g}" + (f" in the first {first} epoch(s)" if first else "")
    return text


def _measure(trainer: TranslationTrainer) -> tuple[float, float]:
    """Seconds per target token over a few batches, and peak memory in MiB. The weights stay as they are."""
    sampler, model, device = trainer.sampler(), trainer.model, trainer.args.device
    batches = sampler.batches(0)
    cells = [len(batch) * int(trainer.train_dataset.target_lengths[batch].max()) for batch in batches]
    largest = batches[int(np.argmax(cells))]
    model.train()
    trainer.create_optimizer()
    assert trainer.optimizer is not None
    for group in trainer.optimizer.param_groups:
        group["lr"] = 0.0
    _step(trainer, largest)  # memory is at its peak here, and everything is warm
    before, tokens = time.perf_counter(), 0
    for batch in batches[:STEPS]:
        tokens += _step(trainer, batch)
    if device.type == "cuda":
        torch.cuda.synchronize()
        memory = torch.cuda.max_memory_allocated() / 2**20
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        memory = peak / (2**20 if sys.platform == "darwin" else 2**10)
    return (time.perf_counter() - before) / tokens / trainer.args.world_size, memory


def _step(trainer: TranslationTrainer, batch: np.ndarray) -> int:
    """One forward, backward and update of rate 0; the number of target tokens."""
    assert trainer.optimizer is not None
    examples = [trainer.train_dataset[i] for i in batch.tolist()]
    inputs = trainer._prepare_inputs(trainer.objective.collate(examples))
    with trainer.accelerator.autocast():
        loss, _ = trainer.objective.loss(trainer.model, inputs)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return int(trainer.train_dataset.target_lengths[batch].sum())


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
