"""Reads pairs from tables (tsv, csv with quotes, with or without a header), and tuples of lines from parallel files."""

from __future__ import annotations

import csv
import logging
import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.data.filters import FilterReport, Pair
from hf_mlnmt.data.formats import format_of
from hf_mlnmt.data.lines import REMEDY, checked_blocks, checked_lines, reason_of

log = logging.getLogger(__name__)
SIDES = ("source", "target")
BLANK, _OF_WIDTH = "blank line", "another number of columns"
_OF_ROWS = "A tab or separator inside a text needs quotes around it, and the name .csv."
_HEADERS = [("source", "target"), ("src", "tgt"), ("src", "trg")]


def read_table(spec: Any, path: Path, report: FilterReport) -> Iterator[Pair]:
    """Yields the pairs of a .tsv or .csv file, as its `spec` says. Raises: UserError for a bad row or column."""
    columns = [(spec.columns or {"source": 1, "target": 2})[side] for side in SIDES]
    numbers = [column - 1 for column in columns] if all(isinstance(column, int) for column in columns) else None
    if numbers and min(numbers) < 0:
        raise UserError(f"{path}: columns are counted from 1, so {columns} cannot be; 1 is the first.")
    # The number of columns that each row must have; 0: as many as the first row has.
    width = 2 if spec.columns is None and spec.bad_lines == "drop" else 0
    may_look_quoted, is_first = format_of(path) != ".csv", True
    for number, cells, problem in rows(spec, path):
        where = f"{path}, line {number}"
        if not any(cells) and not problem and len(cells) < 2:
            report.drop(BLANK)
            continue
        if numbers is None:
            numbers, width = [_position(str(column), cells, where) for column in columns], len(cells)
            continue
        named = _header(cells, spec, where) if is_first and spec.columns is None else None
        is_first = False
        if named:
            numbers, width = named, len(cells)
            continue
        if not width and not problem:
            width = _width(cells, numbers, spec, where)
        uneven = "" if problem or len(cells) == width else f"{_OF_WIDTH} ({len(cells)} columns, {width} expected)"
        if problem or uneven:
            refuse(problem or uneven, where, "\t".join(cells), spec, report, f" {_OF_ROWS}" if uneven else "")
            continue
        pair = cells[numbers[0]], cells[numbers[1]]
        if may_look_quoted and (quoted := next(filter(_looks_quoted, pair), None)):
            may_look_quoted = False  # the warning is given once for a file
            said = "%s: a field looks quoted, as spreadsheets write it, and is read as it stands: %.60s. Name the file "
            log.warning(said + ".csv to read what is between the quotes (tabs may separate fields).", where, quoted)
        yield pair


def _width(cells: list[str], numbers: list[int], spec: Any, where: str) -> int:
    """Returns a table's number of columns, from its first row. UserError for more than two if none are named."""
    if spec.columns is None and len(cells) > 2:
        filled = [number for number, cell in enumerate(cells, 1) if cell]
        source, target = filled[-2:] if len(filled) > 1 else (1, 2)
        raise UserError(
            f"{where}: {len(cells)} columns, and which are the pair is not said. Name them, as in columns: "
            f"{{source: {source}, target: {target}}}. {_OF_ROWS}"
        )
    return max(len(cells), *(column + 1 for column in numbers))


def rows(spec: Any, path: Path) -> Iterator[tuple[int, list[str], str | None]]:
    """Yields for each row of a file (number of its first line, its cells, what is wrong with its lines or None)."""
    lines = checked_lines(path, None if spec.bad_lines == "drop" else REMEDY, form="any")
    if format_of(path) != ".csv":
        for number, (line, problem) in enumerate(lines, start=1):
            yield number, line.split("\t"), problem
        return
    separator, number, ahead = (
        separator_of(path),
        1,
        deque[tuple[str, str | None]](),
    )  # ahead: the lines after the first one of a broken row, which are read again
    taken: list[tuple[str, str | None]] = []

    def take() -> Iterator[str]:
        while each := ahead.popleft() if ahead else next(lines, None):
            taken.append(each)
            yield f"{each[0]}\n"

    while True:
        taken.clear()
        try:
            row, broken = next(csv.reader(take(), delimiter=separator, strict=True)), None
            cells = [cell.replace("\n", " ") for cell in row]
        except StopIteration:
            return
        except csv.Error as error:  # without a closing quote, the row has taken all lines up to the next one
            cells, broken = [taken[0][0]], f"broken quoting ({error})"
            ahead.extendleft(reversed(taken[1:]))
            del taken[1:]
        yield number, cells, next((problem for _, problem in taken if problem), broken)
        number += len(taken)


def separator_of(path: Path) -> str:
    """Returns a csv file's separator: of comma, semicolon and tab the first that cuts each of the first 20 rows in two
    cells, else into equally many, else that is in row 1. (csv.Sniffer takes the comma of "Hello, you;Hallo, du".)"""
    head = [line for line, _ in islice(checked_lines(path, None, form="any"), 20)]
    signs = ",;\t"
    try:
        widths = {sign: {len(row) for row in csv.reader(head, delimiter=sign) if any(row)} for sign in signs}
    except csv.Error:  # a field is longer than the csv module allows
        widths = {}
    even = [sign for sign, of_rows in widths.items() if len(of_rows) == 1 and of_rows != {1}]
    even.sort(key=lambda sign: widths[sign] != {2})
    return next(iter(even), next((sign for sign in signs if sign in head[0]), ","))


def _looks_quoted(text: str) -> bool:
    """Returns whether a cell stands in double quotes with doubled ones inside, or its quotes end in another line."""
    inside = text[1:].removesuffix('"').replace('""', "")
    ends = len(text) > 1 and text.endswith('"')
    return text.startswith('"') and '"' not in inside and (not ends or '""' in text[1:-1])


def refuse(problem: str, where: str, example: str, spec: Any, report: FilterReport, more: str = "") -> None:
    """Raises UserError for a row that is no pair; with `bad_lines: drop` counts it in the report instead."""
    if spec.bad_lines != "drop":
        raise UserError(f"{where}: {problem}.{more} {REMEDY}")
    report.drop(reason_of(problem), example)


def _header(cells: list[str], spec: Any, where: str) -> list[int] | None:
    """Returns the sides' columns (from 0) where the first row names them; None where it is a pair.

    Raises: UserError where that cannot be told.
    """
    # Regions are dropped from language codes: en-US becomes en.
    names = [re.sub(r"^([a-z]{2,3})[-_][a-z]{2,4}$", r"\1", cell.strip().lower()) for cell in cells]
    languages = [tuple(spec.languages[side].lower() for side in SIDES)] if spec.languages else []
    for source, target in [*_HEADERS, *languages]:
        if source in names and target in names:
            columns = [names.index(source), names.index(target)]
            read = " and ".join(repr(cells[column]) for column in columns)
            log.warning("%s: is a header; columns %s are read", where, read)
            return columns
    if looks_like_header([cell.strip() for cell in cells]):
        raise UserError(
            f"{where}: looks like a header ({', '.join(cells)}). Name the columns, as in columns: "
            f"{{source: {cells[0]}, target: {cells[1]}}}; if it is a pair, say columns: {{source: 1, target: 2}}."
        )
    return None


def looks_like_header(words: Sequence[str]) -> bool:
    """Returns whether two cells or more are codes or English names of languages ("en", "German"), or names of sides."""
    if sum(0 < len(word) <= 12 for word in words) < 2:  # decides most rows without the slow import below
        return False
    from sacremoses.corpus import NonbreakingPrefixes

    known = {*NonbreakingPrefixes().available_langs}
    anyhow = known.union(*_HEADERS)
    # Codes count in lower case only, because "No" and "Is" may be words of a sentence.
    return sum(word in known or (len(word) > 2 and word.lower() in anyhow) for word in words) >= 2


def _position(column: str, header: list[str], where: str) -> int:
    if column not in header:
        raise UserError(f"{where}: no column '{column}'{suggest(column, header)} in the header: {header}.")
    return header.index(column)


def side_by_side(paths: Sequence[Path], drop: bool, report: FilterReport, remedy: str = REMEDY) -> Iterator[Any]:
    """Yields for every i the tuple of line i of each file; with `drop` leaves out, and counts, tuples with a bad line.

    Raises: UserError for a bad line, and for files of different lengths.
    """
    sides = [checked_blocks(path, None if drop else remedy) for path in paths]
    number, lines = 0, [list[str]() for _ in paths]
    problems: list[str | None] = [None for _ in paths]
    while True:
        for side, blocks in enumerate(sides):
            if not lines[side]:
                lines[side], problems[side] = next(blocks, ([], None))
        together = min(map(len, lines))
        if not together:
            counts = [number + len(own) + sum(len(some) for some, _ in rest) for own, rest in zip(lines, sides)]
            check_together(paths, counts)
            return
        rows = zip(*(own[:together] for own in lines))
        if problem := problems[0] or problems[-1]:
            report.drop(problem, *next(rows))
        else:
            yield from rows
        number, lines = number + together, [own[together:] for own in lines]


def check_together(paths: Sequence[Path], lines: Sequence[int]) -> None:
    """Raises: UserError for files with different numbers of lines."""
    if lines[0] != lines[-1]:
        raise UserError(
            f"{paths[0]} has {lines[0]:,} lines and {paths[-1]} has {lines[-1]:,}: they do not go together line by "
            "line. Check that both are of one corpus and that no tool split lines at other characters."
        )
