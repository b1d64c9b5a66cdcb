"""Text in and out, line by line: source texts from files and pipes, translations to a file or standard output.

A pipe's lines are taken as they arrive. Translations are plain, n-best lists or JSON.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_path

if TYPE_CHECKING:
    from hf_mlnmt.generation import Hypothesis, TranslationPipeline

STANDARD_INPUT = "-"
_CHUNK = 1 << 16
_NUL = "contains a NUL character: not a text file, or not UTF-8."
_REMEDY = "Convert the text to UTF-8, for example with iconv."


@dataclass(frozen=True)
class Shard:
    """One of `count` parts of a text, for jobs that run apart; `number` counts from 1, as in `split -n l/1/4`.

    A shard is made of whole windows, the groups of lines that are translated together: then the batches are those of
    the whole text, and so is every bit of the translations.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "2/10". Raises: UserError for anything else, and for shards counted from 0."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        number, count = map(int, match.groups()) if match else (0, 0)
        if match and number == 0 < count:
            raise UserError(f"--shard {text}: shards count from 1, so these are 1/{count} to {count}/{count}.")
        if not 1 <= number <= count:
            raise UserError(f"--shard {text}: expected I/N with I from 1 to N, such as 2/10.")
        return cls(number, count)

    def windows(self, lines: int, sizes: Sequence[int]) -> tuple[range, range]:
        """Its part of a text: the numbers of its windows and of its lines, both from 0.

        Args:
            lines: of the whole text; sizes: the lines of each window of the whole text.

        Raises: UserError where there are fewer windows than shards.
        """
        if len(sizes) < self.count:
            raise UserError(
                f"--shard {self}: {lines:,} lines are {len(sizes)} windows of {max(sizes):,}, which cannot be divided "
                f"among {self.count} shards. "
                + (f"Give every shard --window {lines // self.count}." if lines >= self.count else "Take fewer shards.")
            )
        first, end = (len(sizes) * number // self.count for number in (self.number - 1, self.number))
        return range(first, end), range(sum(sizes[:first]), sum(sizes[:end]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def shard_groups(inputs: Sequence[str], window: int, shard: Shard) -> tuple[range, Iterator[list[str]]]:
    """The numbers of a shard's lines, from 0, and the groups that it has of `text_groups`.

    Raises: UserError for standard input, and where there are fewer groups than shards.
    """
    if STANDARD_INPUT in inputs:
        raise UserError("--shard is a part of files, and standard input is none: give the names of files.")
    lines = [sum(1 for _ in _lines(name)) for name in inputs]
    sizes = [min(window, of_file - start) for of_file in lines for start in range(0, of_file, window)]
    windows, numbers = shard.windows(sum(lines), sizes)
    return numbers, islice(text_groups(inputs, window), windows.start, windows.stop)


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


def translate_groups(
    pipeline: TranslationPipeline,
    groups: Iterable[list[str]],
    output: Path | None,
    *,
    jsonl: bool = False,
    scores: bool = False,
    total: int | None = None,
    first: int = 0,
    **options: Any,
) -> None:
    """Translate group by group and write a line (or an n-best list) for each text, flushed after each group.

    output: a file, or None for standard output. jsonl, scores: see `format_result`. total: for the progress bar.
    first: number of the first text, from 0, where the groups begin within something longer.
    options: the fields of DecodingOptions.
    """
    sources: list[str] = []
    plain = not options.get("num_return_sequences")  # no n-best list: the translation alone

    def remembered() -> Iterator[list[str]]:
        for group in groups:
            sources.extend(group)
            yield group

    results = pipeline.stream_groups(remembered(), total=total, first_line=first + 1, **options)
    with opened(output) as stream:
        for number, result in enumerate(results, first):
            print(format_result(number, sources.pop(0), result, jsonl, scores, plain), file=stream)
            if not sources:  # all that was translated together is written
                stream.flush()


@contextmanager
def opened(output: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file (compressed when its name ends in .gz) that appears when everything is written."""
    if output is None:
        yield sys.stdout
        return
    with atomic_path(output) as temporary:
        opener: Any = gzip.open if output.suffix == ".gz" else open
        with opener(temporary, "wt", encoding="utf-8", newline="\n") as stream:
            yield stream


def format_result(
    number: int, source: str, result: str | list[Hypothesis], jsonl: bool, scores: bool, plain: bool = False
) -> str:
    """One text's result as it is written.

    Plain: the translation, or 'number ||| translation ||| score' for each of an n-best list (numbers from 0, as in
    Moses); where there are alignments, ' ||| 0-0 1-2' behind it, as Marian and Moses write them. jsonl: an object with
    source, translation and alignment, with `scores` also score, log_probability and length, and n_best when there is
    more than one.
    """
    if isinstance(result, str):
        return json.dumps({"source": source, "translation": result}, ensure_ascii=False) if jsonl else result
    from hf_mlnmt.generation.alignments import to_pharaoh  # which imports torch, as results have

    links = [None if best.alignment is None else to_pharaoh(best.alignment) for best in result]
    if not jsonl:
        shown = [best.text if plain else f"{number} ||| {best.text} ||| {best.score:.6f}" for best in result]
        return "\n".join(line if link is None else f"{line} ||| {link}" for line, link in zip(shown, links))
    names = ("score", "log_probability", "length")
    records = [
        {
            "translation": best.text,
            **({} if link is None else {"alignment": link}),
            **{name: getattr(best, name) for name in names if scores or len(result) > 1},
        }
        for best, link in zip(result, links)
    ]
    record = {"source": source, **records[0]}
    if not scores:
        record = {name: value for name, value in record.items() if name not in names}
    if len(records) > 1:
        record["n_best"] = records
    return json.dumps(record, ensure_ascii=False)
