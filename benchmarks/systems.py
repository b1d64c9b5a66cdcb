"""Every system of the zoo beside the baseline, in one run: parameters, training steps/s, decoding tokens/s, as ratios.

    python benchmarks/systems.py --shape small --threads 1

Each system takes its turn right after the baseline, A B A C A D ..., and its ratio is to the turn before; the median
is printed beside the ratio of the arithmetic (floating-point operations in the matrix products of a step: a guide, not
a bound, since products differ in speed and a step has other work) and the papers' own ratio (their GPU, their code:
hf_mlnmt/zoo/entries). Random weights and sentences; all systems do the same steps on the same batches. Turns are
short, because a busy machine changes its speed within seconds. At the base shape a model is built anew for every turn:
all together do not fit into memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Measure, machine, require_green_tests, take_turns
from rich.console import Console
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt.files import write_json
from hf_mlnmt.memory import keep_memory
from hf_mlnmt.reports.parameters import parameters_of_config
from hf_mlnmt.table import Number, Table
from hf_mlnmt.training import Translation
from hf_mlnmt.zoo.papers import decoding_ratio, training_ratio
from hf_mlnmt.zoo.systems import find_system, list_systems

BASELINE = "transformer"


def build(system: str, options: argparse.Namespace) -> Any:
    """The model with seeded weights."""
    torch.manual_seed(1)
    config = hf_mlnmt.config_for(system, options.shape, vocab_size=options.vocabulary)
    return AutoModelForSeq2SeqLM.from_config(config).to(options.device)


def sentences(options: argparse.Namespace) -> list[list[dict[str, np.ndarray]]]:
    """A batch for each step of a turn, of as many pairs as fit into `tokens`; their lengths are `length` on average."""
    draw = np.random.default_rng(1)
    batches = []
    for length in (0.6 + 0.8 * (np.arange(options.steps) + 0.5) / options.steps) * options.length:
        size = max(1, options.tokens // round(length))
        ids = [draw.integers(5, options.vocabulary, round(length), dtype=np.int32) for _ in range(2 * size)]
        batches.append([{"input_ids": source, "labels": target} for source, target in zip(ids[::2], ids[1::2])])
    return batches


def training(system: str, options: argparse.Namespace) -> Callable[[], Measure]:
    """One turn: an optimizer step on every batch; a new model has done a turn before."""
    objective = Translation(0, label_smoothing=0.1)
    batches = [objective.collate(batch) for batch in sentences(options)]
    inputs = [{name: tensor.to(options.device) for name, tensor in batch.items()} for batch in batches]
    kept: list[tuple] = []

    def steps(model: Any, optimizer: Any) -> None:
        for batch in inputs:
            loss, _ = objective.loss(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    def make() -> tuple:
        model = build(system, options).train()
        parts = model, torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
        steps(*parts)
        return parts

    def run() -> Measure:
        parts = kept[0] if kept else make()
        start = now(options)
        steps(*parts)
        measure = Measure(options.steps, now(options) - start)
        if options.shape != "base" and not kept:
            kept.append(parts)
        return measure

    return run


def decoding(system: str, options: argparse.Namespace) -> Callable[[], Measure]:
    """One turn: one batch, exactly `length` tokens for every sentence; a new model has made three before."""
    ids = torch.randint(5, options.vocabulary, (options.batch, options.length), generator=torch.manual_seed(1))
    inputs = {"input_ids": ids.to(options.device), "attention_mask": torch.ones_like(ids).to(options.device)}
    exact = {"min_new_tokens": options.length, "max_new_tokens": options.length, "do_sample": False}
    kept: list[Any] = []

    @torch.inference_mode()
    def run() -> Measure:
        model = kept[0] if kept else build(system, options).eval()
        if not kept:
            model.generate(**inputs, num_beams=options.beams, **{**exact, "min_new_tokens": 3, "max_new_tokens": 3})
        start = now(options)
        model.generate(**inputs, num_beams=options.beams, **exact)
        measure = Measure(options.batch * options.length, now(options) - start)
        if options.shape != "base" and not kept:
            kept.append(model)
        return measure

    return run


def now(options: argparse.Namespace) -> float:
    """The time, when the device has done what it was told."""
    if options.device != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def beside_baseline(
    turn: Callable[[str, argparse.Namespace], Callable[[], Measure]], options: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Of each system the median rate, and the median of its ratios to the baseline's turn before it."""
    baseline = turn(BASELINE, options)
    runs: dict[str, Callable[[], Measure]] = {}
    for system in options.systems:
        runs[f"baseline before {system}"] = baseline
        runs[system] = turn(system, options)
    rates = take_turns(runs, options.rounds)
    found = {}
    for system in options.systems:
        pairs = zip(rates[system], rates[f"baseline before {system}"], strict=True)
        found[system] = statistics.median(rates[system]), statistics.median(own / base for own, base in pairs)
    return found


def operations(system: str, options: argparse.Namespace) -> int:
    """Floating-point operations in the matrix products of one training step, without those of the recurrent scans."""
    model = build(system, options).train()
    model.set_attn_implementation("eager")  # the counter does not see into a CPU's fused attention
    objective = Translation(0, label_smoothing=0.1)
    batch = {name: tensor.to(options.device) for name, tensor in objective.collate(sentences(options)[0]).items()}
    with FlopCounterMode(display=False) as counter:
        objective.loss(model, batch)[0].backward()
    return counter.get_total_flops()


def report(options: argparse.Namespace, trained: dict, decoded: dict) -> list[dict]:
    """A row for each system; the papers' ratios beside ours, by names of their own."""
    whole = operations(BASELINE, options)
    sizes = {}
    for system in {BASELINE, *options.systems}:
        config = hf_mlnmt.config_for(system, options.shape, vocab_size=options.vocabulary)
        sizes[system] = parameters_of_config(config)["total"]
    return [
        {
            "system": system,
            "parameters": sizes[system],
            "parameters_ratio": sizes[system] / sizes[BASELINE],
            "training_steps_per_second": trained[system][0],
            "training_ratio": trained[system][1],
            "training_ratio_of_the_arithmetic": whole / operations(system, options),
            "training_ratio_of_the_papers": training_ratio(system),
            "decoding_tokens_per_second": decoded[system][0],
            "decoding_ratio": decoded[system][1],
            "decoding_ratio_of_the_papers": decoding_ratio(system),
        }
        for system in options.systems
    ]


def show(rows: list[dict], title: str) -> None:
    """The rows as a table."""
    training = ["training steps/s", "times", "arithmetic", "papers'"]
    columns = ["parameters", "times", *training, "decoding tokens/s", "times", "papers'"]
    lines = []
    for row in rows:
        system, *numbers = row.values()
        forms = ["{:,}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:,.0f}", "{:.2f}", "{:.2f}"]
        cells = ["" if number is None else form.format(number) for form, number in zip(forms, numbers, strict=True)]
        lines.append([system, *cells])
    console = Console(width=140)
    console.print(Table(["system", *map(Number, columns)], lines, title))
    console.print(machine(), style="dim")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small", choices=["tiny", "small", "base"])
    parser.add_argument("--systems", nargs="+", default=list_systems("translation"), help="unless given: all")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=1024, help="target tokens a training step")
    parser.add_argument("--length", type=int, default=20, help="subwords of a sentence")
    parser.add_argument("--batch", type=int, default=32, help="sentences that are decoded at once")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2, help="training steps a turn")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="one round: a look, not a measurement")
    parser.add_argument("--no-tests", action="store_true", help="do not run the tests of what is measured first")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON here too")
    options = parser.parse_args()
    options.systems = list(dict.fromkeys(options.systems))
    for system in options.systems:
        find_system(system)
    if options.quick:
        options.rounds = 1
    if not options.no_tests:
        require_green_tests()
    torch.set_num_threads(options.threads)
    if options.device == "cpu":
        keep_memory()  # as our trainer does
    trained, decoded = beside_baseline(training, options), beside_baseline(decoding, options)
    rows = report(options, trained, decoded)
    title = (
        f"{options.shape} shape, vocabulary {options.vocabulary}, {options.tokens} tokens a training step; decoding "
        f"{options.batch} sentences of {options.length} tokens, beam {options.beams}; medians of {options.rounds}"
    )
    show(rows, title)
    if options.output:
        settings = {name: value for name, value in vars(options).items() if name not in ("output", "systems")}
        write_json(options.output, {"settings": settings, "machine": machine(), "systems": rows})


if __name__ == "__main__":
    main()
