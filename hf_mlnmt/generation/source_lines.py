"""Source texts from files and pipes, one a line; a pipe's lines as they arrive."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.errors import UserError

STANDARD_INPUT = "-"
_CHUNK = 1 << 16
_NUL = "contains a NUL character: not a text file, or not UTF-8."
_REMEDY = "Convert the text to UTF-8, for example with iconv."


def text_groups(inputs: Sequence[str], window: int) -> Iterator[list[str]]:
    """The lines of several inputs one after the other, in groups to be translated together."""
    for name in inputs:
        yield from pipe_groups() if name == STANDARD_INPUT else file_groups(name, window)


def count_texts(inputs: Sequence[str]) -> int | None:
    """Lines of all inputs, for a progress bar; None when standard input is among them."""
    return None if STANDARD_INPUT in inputs else sum(sum(1 for _ in _lines(name)) for name in inputs)


def file_groups(path: str | Path, size: int) -> Iterator[list[str]]:
    """Lines of a plain or .gz file, `size` at a time."""
    lines = _lines(path)
    while group := list(islice(lines, size)):
        yield group


def pipe_groups(stream: Any = None) -> Iterator[list[str]]:
    """Lines of standard input, each time all that have arrived: one from a person, hundreds from a program."""
    source: Any = stream or sys.stdin.buffer
    number, rest = 1, b""
    while chunk := source.read1(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [_text(line, number + i, "standard input") for i, line in enumerate(lines)]
            number += len(lines)
    if rest:
        yield [_text(rest, number, "standard input")]


def _lines(path: str | Path) -> Iterator[str]:
    """A file's lines, as strict as a pipe's: any length (long ones are split), control characters as they are."""
    lines = read_lines(path, max_characters=10**9, keep_controls=True, remedy=_REMEDY)
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise UserError(f"{path}, line {number}: {_NUL}")
        yield line


def _text(line: bytes, number: int, name: str) -> str:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}, line {number}: invalid UTF-8 (byte {line[error.start]:#04x}). {_REMEDY}") from error
    if "\0" in text:
        raise UserError(f"{name}, line {number}: {_NUL}")
    # A byte order mark is no part of the first line.
    return text.removeprefix("\ufeff") if number == 1 else text
