"""Costs of systems relative to a baseline: parameters, operations, memory, speed of training and of decoding.

Weights and sentences are random, sentences the same for all. For speed the systems run in turns A B A C A B A C ..., A
the baseline, and each ratio is to the baseline's turn immediately before.
"""

import os
import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from hf_mlnmt.common.matmul_backends import record
from hf_mlnmt.evaluation import figures
from hf_mlnmt.evaluation.figures import Study
from hf_mlnmt.reports.parameters import parameters_of_config
from hf_mlnmt.training import Translation

Turn = Callable[[], float]
"""A function that does some work and returns its speed: tokens, sentences or steps per second."""


def beside_baseline(
    baseline: Turn, others: Mapping[str, Turn], rounds: int, tell: Callable[[str], Any]
) -> dict[str, tuple[float, float]]:
    """Measures each of `others` `rounds` times, each time after a turn of the baseline; returns {name: (median speed,
    median ratio of the speed to that of the baseline's turn immediately before)}.

    tell: is called with a line of text after each turn. A first round, the warm-up, does not count.
    """
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in others}
    for number in range(rounds + 1):
        for name, turn in others.items():
            base, own = baseline(), turn()
            tell(f"{f'round {number}' if number else 'warm-up'}: baseline {base:,.1f}/s, {name} {own:,.1f}/s")
            if number:
                pairs[name].append((base, own))
    return {
        name: (statistics.median(own for _, own in rates), statistics.median(own / base for base, own in rates))
        for name, rates in pairs.items()
    }


def machine() -> str:
    """Returns processor, threads, versions and present load of the machine as text, for records of measurements."""
    import psutil
    import transformers

    device = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    now = record()
    return (
        f"{device}{now['processor']}, {now['threads']} threads of {os.cpu_count()}, torch {now['torch']} "
        f"(oneDNN: {' '.join(now['onednn']) or 'none'}), "
        f"transformers {transformers.__version__}, load {psutil.getloadavg()[0]:.1f}"
    )


MEASURES = {
    "parameters": "parameters",
    "operations_per_token": "operations",
    "peak_memory": "memory",
    "training_steps_per_second": "training",
    "decoding_tokens_per_second": "decoding",
}
"""Field of a row -> name of the measure; the ratio to the baseline's is in the field `<name>_ratio`."""


@dataclass(frozen=True)
class Work:
    """Sizes of a turn: training, `steps` steps of `tokens` target tokens; decoding, `batch` sentences by `beams` beams.

    vocabulary: size. length: tokens of a sentence. rounds: measured turns of each system.
    """

    vocabulary: int = 8000
    tokens: int = 1024
    length: int = 20
    batch: int = 32
    beams: int = 1
    steps: int = 2
    rounds: int = 5
    device: str = "cpu"


def build(config: Any, device: str) -> Any:
    """Makes the model of a config on the device, with random weights drawn with seed 1."""
    from transformers import AutoModelForSeq2SeqLM

    torch.manual_seed(1)
    return AutoModelForSeq2SeqLM.from_config(config).to(device)


def batches(work: Work) -> list[dict[str, Tensor]]:
    """Returns random batches, one for each step of a turn, of different lengths, each of about `tokens` tokens."""
    draw, objective, made = np.random.default_rng(1), Translation(0, label_smoothing=0.1), []
    for length in (0.6 + 0.8 * (np.arange(work.steps) + 0.5) / work.steps) * work.length:
        size = max(1, work.tokens // round(length))
        ids = [draw.integers(5, work.vocabulary, round(length), dtype=np.int32) for _ in range(2 * size)]
        pairs = [{"input_ids": source, "labels": target} for source, target in zip(ids[::2], ids[1::2])]
        made.append({name: tensor.to(work.device) for name, tensor in objective.collate(pairs).items()})
    return made


def train(model: Any, optimizer: Any, inputs: Sequence[dict[str, Tensor]]) -> None:
    """Trains the model: an optimizer step on every batch."""
    objective = Translation(0, label_smoothing=0.1)
    for batch in inputs:
        loss, _ = objective.loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def training(config: Any, work: Work) -> Turn:
    """Returns a `Turn`: it trains a new model on every batch to warm up, measures the time of a second step on every
    batch, and returns steps per second."""
    inputs = batches(work)

    def turn() -> float:
        model, optimizer = _trained(config, work, inputs)
        start = _now(work)
        train(model, optimizer, inputs)
        return work.steps / (_now(work) - start)

    return turn


def _trained(config: Any, work: Work, inputs: Sequence[dict[str, Tensor]]) -> tuple[Any, Any]:
    """Returns a new model and its optimizer after a step on every batch."""
    model = build(config, work.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    train(model, optimizer, inputs)
    return model, optimizer


def decoding(config: Any, work: Work) -> Turn:
    """Returns a `Turn`: it generates three tokens a sentence with a new model to warm up, measures the time to generate
    `length` tokens a sentence, and returns tokens per second."""
    ids = torch.randint(5, work.vocabulary, (work.batch, work.length), generator=torch.manual_seed(1))
    inputs = {"input_ids": ids.to(work.device), "attention_mask": torch.ones_like(ids).to(work.device)}

    @torch.inference_mode()
    def turn() -> float:
        model = build(config, work.device).eval()
        for length in (3, work.length):
            start = _now(work)
            exact = {"min_new_tokens": length, "max_new_tokens": length, "do_sample": False}
            model.generate(**inputs, num_beams=work.beams, **exact)
        return work.batch * work.length / (_now(work) - start)

    return turn


def _now(work: Work) -> float:
    """Waits until the device has finished its work, and returns the time in seconds."""
    if work.device != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def operations(config: Any, work: Work) -> int:
    """Counts the floating-point operations of the matrix products of a training step, without the recurrent scans."""
    model = build(config, work.device).train()
    model.set_attn_implementation("eager")  # the counter counts no operations inside a CPU's fused attention
    with FlopCounterMode(display=False) as counter:
        Translation(0, label_smoothing=0.1).loss(model, batches(work)[0])[0].backward()
    return int(counter.get_total_flops())


class LiveBytes(TorchDispatchMode):
    """Context manager that counts the bytes of all tensors that exist, `before` and those that operations inside of it
    return; `peak` is the largest count."""

    def __init__(self, before: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()
        for tensor in before:
            self._count(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if (key := storage.data_ptr()) and key not in self._known:
            self._known.add(key)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key, storage.nbytes()).atexit = False

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def peak_memory(config: Any, work: Work) -> int:
    """Returns the peak bytes of a second training step: weights, gradients, Adam's moments and activations.

    On a GPU by the allocator's count; on a CPU of the tensors that operations return, without their working memory.
    """
    inputs = batches(work)[:1]
    parts = _trained(config, work, inputs)
    if work.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        train(*parts, inputs)
        return int(torch.cuda.max_memory_allocated())
    model, optimizer = parts
    moments = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    held = [*model.parameters(), *model.buffers(), *moments, *inputs[0].values()]
    with LiveBytes([tensor.detach() for tensor in held]) as counter:
        train(model, optimizer, inputs)
    return counter.peak


def cost_study(configs: Mapping[str, Any], work: Work, tell: Callable[[str], Any]) -> Study:
    """Measures the costs of each system and their ratios to those of the first, the baseline; a row for each system.

    tell: is called with a line of text after each turn.
    """
    baseline = next(iter(configs))
    tokens = int((batches(work)[0]["labels"] != -100).sum())
    speeds = []
    for turn in (training, decoding):
        turns = {name: turn(config, work) for name, config in configs.items()}
        speeds.append(beside_baseline(turns[baseline], turns, work.rounds, tell))
    study = Study("cost")
    for name, config in configs.items():
        row: dict[str, Any] = {"system": name, "parameters": parameters_of_config(config)["total"]}
        row["operations_per_token"] = operations(config, work) / tokens
        row["peak_memory"] = peak_memory(config, work)
        for field, of_systems in zip(list(MEASURES)[3:], speeds, strict=True):
            row[field], row[f"{MEASURES[field]}_ratio"] = of_systems[name]
        first = study.rows[0] if study.rows else row
        for field in list(MEASURES)[:3]:
            row[f"{MEASURES[field]}_ratio"] = row[field] / first[field]
        study.rows.append({**row, "baseline": baseline, "machine": machine(), **asdict(work)})
    study.summary = [_summary(row) for row in study.rows]
    names = list(MEASURES.values())
    values = {row["system"]: [(row[f"{name}_ratio"], None, None) for name in names] for row in study.rows}
    directed = [f"{name} {'↓' if place < 3 else '↑'}" for place, name in enumerate(names)]
    better = "↓ lower is better, ↑ higher is better"
    study.figures["cost"] = figures.points({"": values}, directed, better, f"times {baseline}'s")
    study.note = (
        f"Random weights and sentences. Operations, memory: of a training step of {work.tokens:,} target tokens. "
        f"Training: steps/s; decoding: tokens/s, {work.batch} sentences, beams: {work.beams}; "
        f"medians of {work.rounds} turns on a {'CPU' if work.device == 'cpu' else 'GPU'}."
    )
    return study


def _summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns each cost as text, with its ratio to the baseline's in brackets."""
    return {
        "system": row["system"],
        "parameters": f"{row['parameters']:,} ({row['parameters_ratio']:.2f})",
        "Mflop/token": f"{row['operations_per_token'] / 1e6:.1f} ({row['operations_ratio']:.2f})",
        "MiB": f"{row['peak_memory'] / 2**20:.0f} ({row['memory_ratio']:.2f})",
        "steps/s": f"{row['training_steps_per_second']:.2f} ({row['training_ratio']:.2f})",
        "tokens/s": f"{row['decoding_tokens_per_second']:,.0f} ({row['decoding_ratio']:.2f})",
    }
