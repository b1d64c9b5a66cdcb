"""What the papers print of systems and methods (papers.py), as tables: for docs/studies/published.md and for cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from papers import papers_numbers, reported, scores

from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.reports.tables import MISSING

SCORES = {"BLEU": "bleu", "TER": "ter", "dev BLEU": "dev_bleu", "dev TER": "dev_ter"}
COLUMNS = {**SCORES, "parameters (million)": "parameters", "training steps a second": "steps_per_second"}
"""The fields of `Reported`, as tables call them."""


def setup_tables(ours: Mapping[str, str]) -> dict[str, Table]:
    """{setup: published BLEU, parameters and speed of its systems, and ours beside them}, of setups that papers score.

    ours: {record: our score as text}; a column of its own, where a system was trained. What a paper
    prints of no system of a setup has no column; how many layers are read has a table of its own.
    """
    tables = {}
    for setup, rows in scores().items():
        if names := [name for name, row in rows.items() if row.is_scored and "-top-" not in name]:
            tables[setup] = _setup_table(setup, names, ours)
    return tables


def _setup_table(setup: str, names: Sequence[str], ours: Mapping[str, str]) -> Table:
    printed = [row for name in names if (row := reported(f"{name}.{setup}"))]
    columns = {title: [getattr(row, field) for row in printed] for title, field in COLUMNS.items()}
    columns = {title: values for title, values in columns.items() if any(value is not None for value in values)}
    cells = [[f"`{name}`" for name in names], *map(numbers, columns.values())]
    heads = [Number(f"published {title}" if title in SCORES else title) for title in columns]
    if trained := any(f"{name}.{setup}" in ours for name in names):
        cells.append([ours.get(f"{name}.{setup}", "not trained") for name in names])
    return Table(
        ["system", *heads, *(["ours, cased BLEU"] if trained else [])], list(map(list, zip(*cells, strict=True)))
    )


def papers_table(record: str) -> Table | None:
    """What the papers report of a record's system and of their baseline; None where they report nothing."""
    if (found := papers_numbers(record)) is None:
        return None
    own, baseline = found
    pairs = {name: (getattr(own, key), getattr(baseline, key)) for name, key in COLUMNS.items()}
    rows = [[name, *numbers(pair, MISSING)] for name, pair in pairs.items() if pair[0] is not None]
    return Table(["in the paper", "this system", "its baseline"], rows)


def numbers(values: Sequence[float | None], missing: str = "") -> list[str]:
    """With as many digits behind the point as the longest of them needs, one at least."""
    digits = [len(f"{value:.10g}".partition(".")[2]) for value in values if value is not None]
    return [missing if value is None else f"{value:.{max([1, *digits])}f}" for value in values]
