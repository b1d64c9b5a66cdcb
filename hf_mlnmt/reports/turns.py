"""Speed by turns: contestants run A B A C A B A C ..., and each ratio is to the baseline's turn right before."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measure:
    """One turn of one contestant: `amount` of work (tokens, sentences) in `seconds`."""

    amount: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.amount / self.seconds


Turn = Callable[[], Measure]


def take_turns(contestants: Mapping[str, Turn], rounds: int, tell: Callable[[str], Any]) -> dict[str, list[float]]:
    """Rates of every contestant, A B C A B C ..., after one turn each that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, run in contestants.items():
            rate = run().rate
            tell(f"{'warm-up' if turn == 0 else f'round {turn}'}: {name}: {rate:,.1f}/s")
            if turn:
                rates[name].append(rate)
    return rates


def beside_baseline(
    baseline: Turn, others: Mapping[str, Turn], rounds: int, tell: Callable[[str], Any]
) -> dict[str, tuple[float, float]]:
    """Of each of the others the median rate, and the median of its ratios to the baseline's turn before it."""
    runs: dict[str, Turn] = {}
    for name, run in others.items():
        runs[f"baseline before {name}"] = baseline
        runs[name] = run
    rates = take_turns(runs, rounds, tell)
    found = {}
    for name in others:
        ratios = [own / base for own, base in zip(rates[name], rates[f"baseline before {name}"], strict=True)]
        found[name] = statistics.median(rates[name]), statistics.median(ratios)
    return found


def machine() -> str:
    """Processor, threads and versions, so that a number can be placed."""
    import psutil
    import torch
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return (
        f"{device}, {torch.get_num_threads()} threads of {os.cpu_count()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, load {psutil.getloadavg()[0]:.1f}"
    )
