"""Decoding at the shapes that people use, with random weights, every engine by turns: for docs/studies/speed.md.

    python benchmarks/base_shape.py --minutes 12 --marian /path/of/a/python/with/pymarian
    python benchmarks/base_shape.py --shapes small --batches 1,32 --beams 1 --engines ours,ctranslate2 --try

Shapes: base (6+6 layers, d_model 512, d_ff 2048), opus (the same as OPUS-MT has it, imported: swish, biases), small,
tiny. Contestants, all with the same weights: Transformers' MarianMTModel with its own loops (stock), our generate()
(ours), the same with dtype int8, CTranslate2 in float32 and in int8, Marian's own engine where `--marian` names a
Python that has pymarian. Every sentence has 20 source tokens. Lengths: forced (20 target tokens, so that all do the
same work) or free (the outputs end at lengths from 3 to 35, 13 in the mean). The encoder counts. Beams end as with
early_stopping=True. Rows come in the order of what matters; one that the minutes do not suffice for is left out and
named. Give the machine to nothing else. The table goes into docs/studies/speed.md, unless you say `--try`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import ROOT, machine, numbers, parse, require_green_tests
from contestants import ENGINES, SHAPES, Contest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hf_mlnmt.common.files import write_json
from hf_mlnmt.common.table import Number, Table

RESULTS = ROOT / "benchmarks" / "results" / "base-shape-cpu.json"
PAGE = ROOT / "docs" / "studies" / "speed.md"
MARKS = "<!-- base_shape.py -->", "<!-- end of base_shape.py -->"
WEIGHTS = {"tiny": 0.05, "small": 0.15, "base": 1.0, "opus": 1.0}  # of a row's time


class Row(NamedTuple):
    """A comparison: what is decoded, and how."""

    lengths: str
    shape: str
    threads: int
    batch: int
    beams: int

    @property
    def cost(self) -> float:
        """About how long it takes, beside the others."""
        return WEIGHTS[self.shape] * (4 + self.batch * (1 + self.beams) / 4) / (1 + 0.6 * (self.threads - 1))


def main() -> None:
    given = read_options()
    if not given.no_tests:
        require_green_tests()
    warnings.filterwarnings("ignore", message=".*quantize.*deprecated.*")
    lists = [listed(given.lengths), listed(given.shapes), *(numbers(x) for x in (given.threads, given.batches))]
    rows = [Row(*found) for found in itertools.product(*lists, numbers(given.beams))]
    engines = [name for name in listed(given.engines) if name != "marian" or given.marian]
    results = measure_all(given, rows, engines)
    found = {"machine": machine(), "vocabulary": given.vocabulary, "engines": engines, "rows": results}
    if given.output:
        write_json(given.output, found)
    table, caption = table_of(found), caption_of(found, len(rows))
    console = Console(width=150)
    console.print(table)
    console.print(caption)
    if given.page:
        write_page(given.page, f"{table.markdown()}\n\n{caption}")


def read_options() -> Any:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="base,small,opus", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--lengths", default="forced,free")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batches", default="1,8,32", help="32 at most")
    parser.add_argument("--beams", default="1,4,6")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--marian", help="a Python that has pymarian")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=5, help="at most, of each row")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes, between its two marks")
    parser.add_argument("--try", dest="trial", action="store_true", help="write neither")
    parser.add_argument("--no-tests", action="store_true", help="do not run the tests of what is measured first")
    quick = "--shapes tiny --threads 1 --batches 1 --beams 1 --vocabulary 300 --rounds 1 --no-tests"
    given = parse(parser, quick)
    if given.trial or given.quick:
        given.page = None
    if given.trial:
        given.output = None
    return given


def listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def measure_all(given: Any, rows: list[Row], engines: list[str]) -> list[dict[str, Any]]:
    """What was measured of each row, within the minutes."""
    end, results, contest = time.monotonic() + 60 * given.minutes, [], None
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with tempfile.TemporaryDirectory() as scratch, Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(rows))
        for number, row in enumerate(rows):
            progress.update(task, description=f"{row.shape} {row.lengths} t{row.threads} b{row.batch} k{row.beams}")
            if contest is None or (contest.shape, contest.forced) != (row.shape, row.lengths == "forced"):
                if contest is not None:
                    contest.close()
                (folder := Path(scratch) / f"{number}").mkdir()
                forced = row.lengths == "forced"
                contest = Contest(row.shape, forced, engines, folder, given.vocabulary, given.marian)
            share = (end - time.monotonic()) * row.cost / sum(other.cost for other in rows[number:])
            if share > 0:
                results.append(measure(contest, row, engines, given.rounds, share))
            progress.advance(task)
        if contest is not None:
            contest.close()
    return results


def measure(contest: Contest, row: Row, engines: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    """Sentences/s of every engine, A B C A B C ..., after a turn each that does not count; at least two rounds."""
    torch.set_num_threads(row.threads)
    turns = {name: contest.turn(name, row.batch, row.beams, row.threads) for name in engines}
    rates: dict[str, list[float]] = {name: [] for name in engines}
    start = time.monotonic()
    for number in range(rounds + 1):
        begun = time.monotonic()
        for name, turn in turns.items():
            rate = turn().rate
            if number:
                rates[name].append(rate)
        now = time.monotonic()
        if number >= 2 and now - start + (now - begun) > seconds:
            break
    ours = contest.outputs.get("ours", [])
    same = {name: sum(map(list.__eq__, ours, found)) for name, found in contest.outputs.items() if name != "ours"}
    lengths = {name: statistics.mean(map(len, found)) for name, found in contest.outputs.items()}
    return {**row._asdict(), "rates": rates, "same_outputs_as_ours": same, "mean_lengths": lengths}


def table_of(found: dict[str, Any]) -> Table:
    """Sentences/s, and ours as ratios to the others of its kind, each taken round by round."""
    engines = found["engines"]
    pairs = [(own, other) for own in ("ours", "int8") for other in engines if is_compared(own, other, engines)]
    names = ["lengths", "shape", *map(Number, ("threads", "batch", "beams", *engines))]
    names += [Number(f"{own} : {other}") for own, other in pairs]
    rows = []
    for row in found["rows"]:
        rates = row["rates"]
        cells = [row["lengths"], row["shape"], *(str(row[name]) for name in ("threads", "batch", "beams"))]
        cells += [shown(statistics.median(rates[name])) for name in engines]
        cells += [f"{ratio(rates[own], rates[other]):.2f}" for own, other in pairs]
        rows.append(cells)
    return Table(names, rows)


def shown(rate: float) -> str:
    """With three digits."""
    return f"{rate:.3g}" if rate < 1000 else f"{float(f'{rate:.3g}'):,.0f}"


def is_compared(own: str, other: str, engines: list[str]) -> bool:
    """float32 with float32 and int8 with int8."""
    others = {"ours": ("stock", "ctranslate2", "marian"), "int8": ("ours", "ctranslate2-int8")}
    return own in engines and other in others[own]


def ratio(own: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(own, other, strict=True))


def caption_of(found: dict[str, Any], wanted: int) -> str:
    """Under the table: where it was measured, what was equal, and what is missing."""
    rows = found["rows"]
    rounds = sorted(len(row["rates"][found["engines"][0]]) for row in rows) or [0]
    lines = [
        f"Sentences/s, medians of {rounds[0]} to {rounds[-1]} interleaved rounds, vocabulary {found['vocabulary']:,}; "
        f"{found['machine']}. 20 source tokens; forced: 20 target tokens."
    ]
    if free := [row["mean_lengths"]["ours"] for row in rows if row["lengths"] == "free" and "ours" in row["rates"]]:
        lines.append(f"Free, in target tokens/s: {min(free):.0f} to {max(free):.0f} tokens in the mean.")
    for name in found["engines"]:
        if name != "ours":
            same = [(row["same_outputs_as_ours"].get(name, 0), row["batch"]) for row in rows]
            lines.append(f"{name}: {sum(a for a, _ in same)} of {sum(b for _, b in same)} outputs as ours.")
    if missing := wanted - len(rows):
        lines.append(f"{missing} rows were left out for want of time.")
    return " ".join(lines)


def write_page(page: Path, text: str) -> None:
    """Put the text between the two marks of a page."""
    before, _, rest = page.read_text().partition(MARKS[0])
    _, found, after = rest.partition(MARKS[1])
    if not found:
        raise SystemExit(f"{page}: no place for the table; it lies between {MARKS[0]} and {MARKS[1]}")
    page.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
