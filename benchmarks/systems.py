"""Every system of the zoo beside the baseline, in one run: parameters, training steps/s, decoding tokens/s, as ratios.

    python benchmarks/systems.py --shape small --threads 1

Each system takes its turn right after the baseline, A B A C A D ..., and its ratio is to the turn before; the median
is printed beside the ratio of the arithmetic (floating-point operations in the matrix products of a step: a guide, not
a bound, since products differ in speed and a step has other work) and the papers' own ratio (their GPU, their code:
studies/published_scores.yaml). Random weights and sentences; all systems do the same steps on the same batches. Turns
are short, because a busy machine changes its speed within seconds. At the base shape a model is built anew for every
turn: all together do not fit into memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from common import machine, parse, require_green_tests
from rich.console import Console

import hf_mlnmt
from hf_mlnmt.analysis.cost import Turn, Work, beside_baseline, decoding, operations, training
from hf_mlnmt.common.files import write_json
from hf_mlnmt.common.memory import keep_memory
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.reports.parameters import parameters_of_config
from hf_mlnmt.zoo.systems import find_system, list_systems

sys.path.append(str(Path(__file__).resolve().parents[1] / "studies"))
from papers import decoding_ratio, training_ratio

BASELINE = "transformer"


def work_of(options: argparse.Namespace) -> Work:
    """What each turn does."""
    names = ("vocabulary", "tokens", "length", "batch", "beams", "steps", "rounds", "device")
    return Work(**{name: getattr(options, name) for name in names})


def measure(turn: Callable[..., Turn], options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Of each system its rate, and its ratio to the baseline's."""
    work = work_of(options)
    turns = {
        name: turn(hf_mlnmt.config_for(name, options.shape, vocab_size=options.vocabulary), work)
        for name in options.systems
    }
    baseline = turn(hf_mlnmt.config_for(BASELINE, options.shape, vocab_size=options.vocabulary), work)
    return beside_baseline(baseline, turns, work.rounds, lambda text: print(text, file=sys.stderr))


def report(options: argparse.Namespace, trained: dict, decoded: dict) -> list[dict]:
    """A row for each system; the papers' ratios beside ours, by names of their own."""
    work, systems = work_of(options), [BASELINE, *options.systems]
    configs = {name: hf_mlnmt.config_for(name, options.shape, vocab_size=options.vocabulary) for name in systems}
    whole = operations(configs[BASELINE], work)
    sizes = {name: parameters_of_config(config)["total"] for name, config in configs.items()}
    return [
        {
            "system": system,
            "parameters": sizes[system],
            "parameters_ratio": sizes[system] / sizes[BASELINE],
            "training_steps_per_second": trained[system][0],
            "training_ratio": trained[system][1],
            "training_ratio_of_the_arithmetic": whole / operations(configs[system], work),
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
    parser.add_argument("--no-tests", action="store_true", help="do not run the tests of what is measured first")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON here too")
    quick = "--shape tiny --systems ms-1 --vocabulary 100 --tokens 64 --length 4 --batch 2 --steps 1 --rounds 1"
    options = parse(parser, f"{quick} --no-tests")
    options.systems = list(dict.fromkeys(options.systems))
    for system in options.systems:
        find_system(system)
    if not options.no_tests:
        require_green_tests()
    torch.set_num_threads(options.threads)
    if options.device == "cpu":
        keep_memory()  # as our trainer does
    trained, decoded = (measure(turn, options) for turn in (training, decoding))
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
