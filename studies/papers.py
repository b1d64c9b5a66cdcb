"""What the papers print: read from published_scores.yaml and published_tables.yaml, to stand beside our own numbers.

What they print of masking and probing is in published_analyses.yaml, which docs/studies/analysis.md repeats.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.zoo.records import BASELINE
from hf_mlnmt.zoo.systems import SYSTEMS

# Table 3.4 of the thesis on joint attention: systems that read the top n encoder layers, <system>-top-<n>.
READERS = ("s-agg", "iter-s-agg", "c-agg", "iter-c-agg", "m-00", "m-01", "m-10", "m-11")
LAYERS_READ = (2, 3, 4, 5, 6)
# Where speeds are printed; the first that has a system's is taken.
_TIMED = ("iwslt-envi", "wmt14-ende")


class Reported(NamedTuple):
    """What a paper prints of a system or method on a setup; None where it prints nothing."""

    bleu: float | None = None
    """On the setup's first test set."""
    parameters: float | None = None
    """In millions."""
    steps_per_second: float | None = None
    """Training."""
    tokens_per_second: float | None = None
    """Decoding."""
    ter: float | None = None
    """On the setup's first test set."""
    dev_bleu: float | None = None
    dev_ter: float | None = None

    @property
    def is_scored(self) -> bool:
        """Whether a score is printed."""
        return self.bleu is not None or self.dev_bleu is not None


class Printed(NamedTuple):
    """A table of a paper: rows are lines, cells are parted by two spaces or more, the first line names the columns."""

    title: str
    source: str
    text: str

    def table(self) -> Table:
        """All columns but the first hold numbers."""
        head, *rows = [re.split(r"\s{2,}", line.strip()) for line in self.text.strip().splitlines()]
        return Table([head[0], *map(Number, head[1:])], rows)


@cache
def scores() -> dict[str, dict[str, Reported]]:
    """{setup: {system or method: what is printed of it}}, in the order of the file."""
    found: dict[str, dict[str, Reported]] = {}
    for block in _read("published_scores.yaml"):
        of_setup = found.setdefault(block["setup"], {})
        for name, numbers in block["rows"].items():
            of_setup[name] = Reported(**dict(zip(block["columns"], numbers, strict=True)))
    return found


@cache
def printed_tables() -> dict[str, Printed]:
    """The papers' other tables, by the names that pages call them."""
    read = _read("published_tables.yaml")
    tables = {name: Printed(one["title"], one["source"], one["table"]) for name, one in read.items()}
    return {"layers-read": _layers_read(), **tables}


def _layers_read() -> Printed:
    """The numbers of systems that read their top n layers, beside one another."""
    rows = [["system", *(f"n = {layers}" for layers in LAYERS_READ)]]
    for name in READERS:
        printed = [scores()["wmt14-ende"][f"{name}-top-{layers}"] for layers in LAYERS_READ]
        cells = [f"{one.parameters:.1f} {one.steps_per_second:.2f} {one.bleu:.2f}" for one in printed]
        rows.append([SYSTEMS[name].title, *cells])
    title = "Layers that are read: parameters (million), training steps a second, BLEU on newstest2014"
    return Printed(title, "T1, table 3.4", "\n".join("  ".join(row) for row in rows))


def reported_of(system: str) -> dict[str, Reported]:
    """What the papers print of a system, by setup."""
    return {setup: rows[system] for setup, rows in scores().items() if system in rows}


def reported(record: str) -> Reported | None:
    """What the papers report for a record "<system or method>.<setup>"; None where they print no score of it."""
    system, _, setup = record.partition(".")
    found = scores().get(setup, {}).get(system)
    return found if found and found.is_scored else None


def papers_numbers(record: str) -> tuple[Reported, Reported] | None:
    """The same, and beside it the papers' baseline on that setup."""
    own, base = reported(record), reported(f"{BASELINE}.{record.partition('.')[2]}")
    return (own, base) if own and base else None


def training_ratio(system: str) -> float | None:
    """The papers' training speed of a system over that of their baseline of the same shape; None where not printed."""
    return _ratio(system, "steps_per_second")


def decoding_ratio(system: str) -> float | None:
    """The papers' decoding speed of a system over that of their baseline; None where not printed."""
    return _ratio(system, "tokens_per_second")


def _ratio(system: str, speed: str) -> float | None:
    for setup in _TIMED:
        own, base = (getattr(scores()[setup].get(name), speed, None) for name in (system, BASELINE))
        if own and base:
            return float(own / base)
    return None


def _read(name: str) -> Any:
    return yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))
