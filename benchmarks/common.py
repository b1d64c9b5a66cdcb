"""What the benchmarks share: the tests must be green first, contestants take turns, medians and ratios are printed."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from hf_mlnmt.reports import turns
from hf_mlnmt.reports.turns import Measure, machine
from hf_mlnmt.table import Number, Table

__all__ = ["Measure", "machine", "print_ratios", "require_green_tests", "take_turns"]

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


def take_turns(contestants: dict[str, Callable[[], Measure]], rounds: int) -> dict[str, list[float]]:
    """The same as of the package, told on standard error."""
    return turns.take_turns(contestants, rounds, lambda text: print(text, file=sys.stderr))


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
