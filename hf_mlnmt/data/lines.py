"""Reads text line by line, plain or packed, never the whole file, and reports exactly what is wrong with a line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.data.formats import Form, no_lines

MAX_CHARACTERS = 20_000
# Control characters that are refused: C0 and C1, but for tab and U+0085 (next line), which is white space to Python.
# Surrogates are refused too: these halves of characters occur in JSON, but neither UTF-8 nor tokenizers can have them.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
# The control characters of _CONTROL but \n, as UTF-8 bytes: a search in whole blocks is several times faster.
_CONTROL_BYTES, _CONTROL_PAIR = bytes([*range(9), *range(11, 32), 127]), re.compile(rb"\xc2[\x80-\x84\x86-\x9f]")
_AT_ONCE = 1 << 20  # bytes that count_text reads at once
REMEDY = (
    "Mend the file, or drop such lines with their partners: --bad-lines drop of --pair, in a recipe bad_lines: drop."
)

# First bytes of a file -> how its text is packed, or what the file is if it is not text.
_PACKED = {
    rb"\x1f\x8b": "gz",
    rb"BZh[1-9]1AY&SY": "bz2",
    rb"\xfd7zXZ\x00": "xz",
    rb"\x5d\x00\x00[\x00-\xff]{2}": "lzma",
    rb"\x28\xb5\x2f\xfd": "zst",
    rb"PK(\x03\x04|\x05\x06)": "zip",
}
_NO_TEXT = {
    rb"7z\xbc\xaf": "a 7z archive",
    rb"Rar!\x1a": "a rar archive",
    rb"\x04\x22\x4d\x18": "an lz4 file",
    rb"PAR1[^ -~]": "a parquet file: name it .parquet, as path of a corpus",
    rb"%PDF-": "a PDF",
    rb"\xd0\xcf\x11\xe0": "a document of an Office program",
    rb"\x00\x05\x16[\x00\x07]": "what macOS keeps beside a file: give the one without ._ before its name",
    rb"\xff\xfe": "UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
    rb"\xfe\xff": "UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
}
_TAR = slice(257, 262)
OF_MACOS = re.compile(r"__MACOSX/|(.*/)?(\.DS_Store$|\._)")  # files that macOS adds to archives, which are skipped


def read_lines(path: str | Path, remedy: str = "Mend the file.", **what: Any) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without line ends, empty lines too. what: further arguments of `checked_blocks`.

    Raises: UserError for a line with invalid UTF-8, NUL or another control character, or of too many characters, with
        its number; `remedy` ends the message. For a bad file as `checked_blocks`.
    """
    return chain.from_iterable(lines for lines, _ in checked_blocks(path, remedy, **what))


def checked_lines(path: str | Path, remedy: str | None, **what: Any) -> Iterator[tuple[str, str | None]]:
    """Yields (line, what is wrong with it or None) for each line of a file, by the arguments of `checked_blocks`."""
    for lines, problem in checked_blocks(path, remedy, **what):
        yield from zip(lines, repeat(problem))


def checked_blocks(
    path: str | Path,
    remedy: str | None,
    max_characters: int = MAX_CHARACTERS,
    keep_controls: bool = False,
    may_be_empty: bool = False,
    form: Form = "lines",
) -> Iterator[tuple[list[str], str | None]]:
    """Yields a file's lines in order: (list of good lines read at once, None), or ([bad line], what is wrong with it).

    The file is plain, or packed as gz, bz2, xz, zst or a zip of one file: told by its first bytes, not by its name. A
    line ends at \\n or \\r\\n and nowhere else (not at U+2028, as str.splitlines would have it). A byte-order mark is
    removed. With `keep_controls`, control characters are allowed. `form`: what names may say (formats.py).

    Raises: UserError for a bad line where there is a `remedy`, and for a file that is missing, empty (unless it
        `may_be_empty`), damaged or no text.
    """
    path = Path(path) if isinstance(path, str) else path
    number = 0
    limit = 4 * max_characters + 2
    with open_text(path, form) as handle:
        for block in _blocks(handle, limit):
            lines = None if keep_controls else _without_problems(block, number == 0, max_characters)
            if lines is not None:
                number += len(lines)
                yield lines, None
                continue
            for data in block.removesuffix(b"\n").split(b"\n"):
                number += 1
                text, problem = _decode(data[:limit], len(data) < limit, number, max_characters, keep_controls)
                if problem and remedy:
                    raise UserError(f"{path}, line {number}: {problem}. {remedy}")
                yield [text], problem and reason_of(problem)
    if number == 0 and not may_be_empty:
        raise UserError(f"{path}: the file is empty. Give a file with one sentence a line.")


@contextmanager
def open_text(path: Any, form: Form = "any") -> Iterator[io.BufferedReader]:
    """Opens a text file (Path or zipfile.Path) to read its bytes, unpacked on the way. Raises: UserError if it is
    missing, damaged or not text."""
    if path.is_dir():
        raise UserError(f"{path}: this is a folder; a file is expected.")
    try:
        file = path.open("rb")
        packed = _kind(_PACKED, file.read(10))
        file.seek(0)
    except FileNotFoundError:
        names = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        where = suggest(path.name, names) or ("" if path.parent.is_dir() else f" (there is no folder {path.parent})")
        raise UserError(f"{path}: no such file{where}. Check the path.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from error
    with file:
        if problem := no_lines(path, form):
            raise UserError(problem)
        try:
            text: Any = io.BufferedReader(cast(Any, _unpacked(file, packed, path))) if packed else file
            start = text.peek(_TAR.stop)
            kind = "a tar archive" if start[_TAR] == b"ustar" else _kind(_NO_TEXT, start)
            if kind and not (form == "xml" and kind.startswith("UTF-16")):
                remedy = "" if ":" in kind else " Unpack or convert it, and give the file of text."
                raise UserError(f"{path}: this is {kind}.{remedy}")
            if problem := no_lines(path, form, start[:200]):
                raise UserError(problem)
            yield text
        except Exception as error:  # each compression library raises other exceptions
            packed = packed or ("zip" if isinstance(path, zipfile.Path) else None)
            if packed is None or isinstance(error, UserError):
                raise
            raise UserError(f"{path}: broken {packed} file ({error}). Copy or download it again.") from error


class Counted(NamedTuple):
    """Lines, CRC-32 (`checksum`) and bytes (`size`) of a file's unpacked content; if not `whole`, of its beginning."""

    lines: int
    checksum: int
    size: int
    whole: bool


def count_text(path: Path, most: int | None = None) -> Counted:
    """Counts a file's text, unpacked, up to about its first `most` bytes. Raises: UserError as `checked_blocks`."""
    lines, checksum, size, last, block = 0, 0, 0, b"\n", b"\n"
    with open_text(path) as text:
        while (most is None or size < most) and (block := text.read(_AT_ONCE)):
            lines, checksum, size = lines + block.count(b"\n"), zlib.crc32(block, checksum), size + len(block)
            last = block[-1:]
        whole = not block or not text.read(1)
    return Counted(lines + (whole and last != b"\n"), checksum, size, whole)


def _kind(kinds: dict[bytes, str], start: bytes) -> str | None:
    return next((kind for magic, kind in kinds.items() if re.match(magic, start)), None)


def _unpacked(file: IO[bytes], packed: str, path: Path) -> Any:
    """Returns a stream of the content of a packed file."""
    if packed == "zip":
        archive = zipfile.ZipFile(file)
        names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
        names = [name for name in names if not OF_MACOS.match(name)]
        if len(names) != 1:
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            holds = f"{len(names)} files ({shown}), and one is read. Unpack it." if names else "no file. Pack it again."
            raise UserError(f"{path}: this zip holds {holds}")
        return archive.open(names[0])
    if packed == "zst":
        from pyarrow import CompressedInputStream, PythonFile

        return CompressedInputStream(PythonFile(file, "r"), "zstd")
    unpackers: dict[str, Any] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open, "lzma": lzma.open}
    return unpackers[packed](file)


def _blocks(handle: io.BufferedReader, limit: int) -> Iterator[bytes]:
    """Yields blocks of whole lines, as read at once; of a line longer than `limit` bytes only a beginning."""
    rest = b""
    while block := handle.read1(1 << 17):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        elif len(rest) < limit:
            rest += block
    if rest:
        yield rest


def _without_problems(block: bytes, first: bool, max_characters: int) -> list[str] | None:
    """Returns the lines of a block, or None where one may be bad. first: whether the block begins the file."""
    block = block.removeprefix(b"\xef\xbb\xbf") if first else block
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if len(block.translate(None, _CONTROL_BYTES)) < len(block) or _CONTROL_PAIR.search(block):
        return None
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = text.removesuffix("\n").split("\n")
    return lines if max(map(len, lines)) <= max_characters else None


def _decode(data: bytes, whole: bool, number: int, max_characters: int, keep_controls: bool) -> tuple[str, str | None]:
    """Returns the line's text, and what is wrong with the line, or None."""
    data = data.removesuffix(b"\r")
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


def problem_in(text: str, max_characters: int = MAX_CHARACTERS) -> str | None:
    """Returns what is wrong with a sentence (too long, a control character), or None."""
    if len(text) > max_characters:
        return f"over {max_characters:,} characters"
    if match := _CONTROL.search(text):
        name = "NUL" if match[0] == "\0" else "half of a" if match[0] > "\xff" else "control"
        return f"{name} character (U+{ord(match[0]):04X} at column {match.start() + 1})"
    return None


def reason_of(problem: str) -> str:
    """Returns the kind of a problem, under which reports count it: "invalid UTF-8" without byte and column."""
    return problem.split(":")[0].split(" (")[0]
