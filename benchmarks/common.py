"""What the benchmarks share: options, the tests must be green first, contestants take turns, ratios are printed."""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hf_mlnmt.analysis.cost import machine
from hf_mlnmt.common.table import Number, Table

__all__ = ["Measure", "machine", "numbers", "parse", "print_ratios", "require_green_tests", "short", "take_turns"]

ROOT = Path(__file__).resolve().parents[1]
GUARDS = ["tests/modeling", "tests/training/test_objectives.py", "tests/training/test_batching.py"]


def parse(parser: argparse.ArgumentParser, quick: str) -> argparse.Namespace:
    """The options; `--quick` stands for those of the line `quick`, unless they are given too, and for no --output.

    `{toys}` in that line is the folder of `make_toys`.
    """
    text = "only see that it runs: the smallest sizes, one round, made-up models and data; its numbers mean nothing"
    parser.add_argument("--quick", action="store_true", help=text)
    if "--quick" not in sys.argv:
        return parser.parse_args()
    parser.set_defaults(output=None)
    words = [word.replace("{toys}", make_toys().name) if "{toys}" in word else word for word in quick.split()]
    return parser.parse_args([*words, *sys.argv[1:]])


@functools.cache
def make_toys() -> tempfile.TemporaryDirectory:
    """train.en.gz and train.de.gz, 200 sentences of the demo, and a tiny model with random weights; until the end."""
    import torch

    import hf_mlnmt
    from hf_mlnmt.data import CorpusSpec, read_pairs, save_tokenizers, train_tokenizer
    from hf_mlnmt.demo import write_demo_corpus

    kept = tempfile.TemporaryDirectory()
    folder = write_demo_corpus(kept.name, sizes={"train": 200, "val": 0, "test": 0})
    pairs = read_pairs(CorpusSpec(files={"source": "train.en.gz", "target": "train.de.gz"}), folder)
    tokenizer = train_tokenizer(itertools.chain.from_iterable(pairs), vocab_size=400)
    torch.manual_seed(1)
    sizes = {"vocab_size": len(tokenizer), "encoder_layers": 1, "decoder_layers": 1}
    model = hf_mlnmt.TransformerForConditionalGeneration(hf_mlnmt.config_for("transformer", "tiny", **sizes))
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.1)  # as it is made it says nothing
    model.save_pretrained(folder / "model")
    save_tokenizers(folder / "model", tokenizer)
    return kept


def numbers(text: str) -> list[int]:
    """A list of numbers, as in 1,4,6."""
    return [int(part) for part in text.split(",") if part]


def short(name: str) -> str:
    """The run's name, of the folder of one of its models."""
    path = Path(name).resolve()
    return path.parent.name if path.name in ("average", "best") else path.name


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
    """The result of a turn: `amount` of work (tokens, sentences) in `seconds`."""

    amount: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.amount / self.seconds


def take_turns(contestants: dict[str, Callable[[], Measure]], rounds: int) -> dict[str, list[float]]:
    """Returns rates of every contestant, A B C A B C ..., after one turn each that does not count."""
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
