"""Reading text line by line, plain or gz, never the whole file, and saying exactly what is wrong with it."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from hf_mlnmt.errors import UserError, suggest

MAX_CHARACTERS = 20_000
# C0 and C1 without tab; U+0085 (next line) comes from Windows files and is white space to Python. Surrogates are halves
# of characters that JSON may hold alone, and UTF-8 and the tokenizers never.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
REMEDY = "Mend the file, or drop such lines with their partners: bad_lines: drop."

Report = Callable[[str, int, str], None]


def read_lines(
    path: str | Path,
    bad: Report | None = None,
    max_characters: int = MAX_CHARACTERS,
    *,
    keep_controls: bool = False,
    remedy: str = REMEDY,
) -> Iterator[str]:
    """Yield the lines of a UTF-8 file (plain or gz, told by its content) without their ends; empty lines included.

    A line ends at \\n or \\r\\n and nowhere else (not at U+2028, as str.splitlines would have it). A byte-order mark is
    removed. Raises UserError for a file that is missing, empty or not to be decompressed, and for a line with invalid
    UTF-8, NUL or another control character, or over `max_characters`: with the line's number. With `bad`, such a line
    is instead reported as bad(reason, line number, text) and yielded, so that its partner keeps its place. With
    `keep_controls`, control characters are allowed. `remedy` ends the message: what the user of this reader can do.
    """
    path = Path(path)
    number = 0
    limit = 4 * max_characters + 2
    with _open(path) as handle:
        for number, (data, whole) in enumerate(_raw_lines(handle, path, limit), start=1):
            text, problem = _decode(data, whole, number, max_characters, keep_controls)
            if problem and bad is None:
                raise UserError(f"{path}, line {number}: {problem}. {remedy}")
            if problem and bad is not None:
                bad(reason_of(problem), number, text)
            yield text
    if number == 0:
        raise UserError(f"{path}: the file is empty. Give a file with one sentence a line.")


def _open(path: Path) -> IO[bytes]:
    if path.is_dir():
        raise UserError(f"{path}: this is a folder; a file is expected.")
    try:
        handle = path.open("rb")
        is_gz = handle.read(2) == b"\x1f\x8b"
        handle.seek(0)
    except FileNotFoundError:
        names = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        where = suggest(path.name, names) or ("" if path.parent.is_dir() else f" (there is no folder {path.parent})")
        raise UserError(f"{path}: no such file{where}. Check the path.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from error
    return gzip.GzipFile(fileobj=handle, mode="rb") if is_gz else handle  # type: ignore[return-value]


def _raw_lines(handle: IO[bytes], path: Path, limit: int) -> Iterator[tuple[bytes, bool]]:
    """Each line's bytes, no more than `limit` of them, and whether that is all of it."""
    try:
        while data := handle.readline(limit):
            whole = data.endswith(b"\n") or len(data) < limit
            rest = data
            while not whole and rest and not rest.endswith(b"\n"):
                rest = handle.readline(1 << 20)
            yield data, whole
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: broken gz file ({error}). Copy or download it again.") from error


def _decode(data: bytes, whole: bool, number: int, max_characters: int, keep_controls: bool) -> tuple[str, str | None]:
    """The line's text and what is wrong with it."""
    if number == 1 and data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "", "this is UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"
    data = data.removesuffix(b"\n").removesuffix(b"\r")
    if number == 1:
        data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        if whole:
            return text, f"invalid UTF-8 (byte {data[error.start]:#04x} at column {error.start + 1})"
    if not whole:
        return text[:max_characters], f"over {max_characters:,} characters"
    return text, None if keep_controls and len(text) <= max_characters else problem_in(text, max_characters)


def note_in(problems: list[str]) -> Report:
    """A `bad` for `read_lines` that appends the reason to a list."""
    return lambda reason, number, text: problems.append(reason)


def problem_in(text: str, max_characters: int = MAX_CHARACTERS) -> str | None:
    """What is wrong with a sentence: too long, or a control character; None when nothing is."""
    if len(text) > max_characters:
        return f"over {max_characters:,} characters"
    if match := _CONTROL.search(text):
        name = "NUL" if match[0] == "\0" else "half of a" if match[0] > "\xff" else "control"
        return f"{name} character (U+{ord(match[0]):04X} at column {match.start() + 1})"
    return None


def reason_of(problem: str) -> str:
    """The problem without the particulars, to count it under."""
    return problem.split(":")[0].split(" (")[0]
