"""What the benchmarks share: the tests must be green first, contestants take turns, medians and ratios are printed."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from rich.console import Console

from hf_mlnmt.table import Number, Table

ROOT = Path(__file__).resolve().parents[1]
GUARDS = ["tests/modeling", "tests/training/test_objectives.py", "tests/training/test_batching.py"]


def require_green_tests() -> None:
    """End the program if the tests of what is measured fail: the speed of wrong code is no number."""
    print("running the tests of what is measured ...", file=sys.stderr)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *GUARDS], cwd=ROOT, capture_output=True, text=True
    )
    if result.returncode:
        sys.exit(f"{result.stdout[-2000:]}\nthe tests are red: no number is printed")


@dataclass(frozen=True)
class Measure:
    """One turn of one contestant: `amount` of work (tokens, sentences) in `seconds`."""

    amount: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.amount / self.seconds


def take_turns(contestants: dict[str, Callable[[], Measure]], rounds: int) -> dict[str, list[float]]:
    """Rates of every contestant, A B C A B C ..., after one turn each that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, run in contestants.items():
            rate = run().rate
            print(f"{'warm-up' if turn == 0 else f'round {turn}'}: {name}: {rate:,.1f}/s", file=sys.stderr)
            if turn:
                rates[name].append(rate)
    return rates


def print_ratios(title: str, unit: str, rates: dict[str, list[float]], baseline: str) -> None:
    """A table of medians, their spread, and the median of the ratios taken round by round."""
    rows = []
    for name, values in rates.items():
        ratio = statistics.median(value / base for value, base in zip(values, rates[baseline], strict=True))
        spread = f"{min(values):,.0f}-{max(values):,.0f}"
        rows.append([name, f"{statistics.median(values):,.0f}", spread, f"{ratio:.2f}"])
    columns = ["", *map(Number, (f"{unit}/s", "lowest-highest", f"times {baseline}"))]
    console = Console(width=110)
    console.print(Table(columns, rows, title))
    console.print(machine(), style="dim")


def machine() -> str:
    """Processor, threads and versions, so that a number can be placed."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return (
        f"{device}, {torch.get_num_threads()} threads of {os.cpu_count()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, load {os.getloadavg()[0]:.1f}"
    )
