"""Encoded text on disk, pairs or one language, memory-mapped: larger than memory. encoding.py makes it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import lru_cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import size_and_crc
from hf_mlnmt.data.filters import FilterReport

_AT_ONCE = 1 << 20  # lengths that `max` makes at a time
_OPEN = 200  # sides of corpora, two files each: a process may often open 1,024
SIDES = ("source", "target")
META, STATE = "meta.json", "state.json"  # of a folder that is complete, of one that grows
HEAD = 128  # bytes before the numbers of an .npy file, whatever their count


class Rows(Sequence[np.ndarray]):
    """Arrays of different lengths in one array, `values`; lengths and starts: int64 (rows,).

    Unless told where they start they are one after the other, as `packed` puts them.
    """

    def __init__(self, values: np.ndarray, lengths: np.ndarray, starts: np.ndarray | None = None) -> None:
        self.values, self.lengths = values, lengths
        self.starts = np.cumsum(lengths) - lengths if starts is None else starts

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        start = self.starts[index]
        return self.values[start : start + self.lengths[index]]

    def packed(self) -> np.ndarray:
        """Returns a copy of the rows, one after the other."""
        return self.values[places(self.starts, self.lengths)]

    def padded(self, value: int) -> np.ndarray:
        """Returns a copy of the rows with `value` behind the shorter ones: int64 (rows, longest)."""
        columns = np.arange(int(self.lengths.max()))
        found = self.values.take(self.starts[:, None] + columns, mode="clip")  # faster than to take what is there alone
        return np.where(columns < self.lengths[:, None], found, np.int64(value))

    def followed(self, length: int, times: int) -> Rows:
        """Returns the rows, and so many of a length behind them, whatever stands in these."""
        values = self.values if len(self.values) >= length else np.resize(self.values, length)
        lengths = np.append(self.lengths, np.full(times, length))
        return Rows(values, lengths, np.append(self.starts, np.zeros(times, np.int64)))


def places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the places of rows in an array, one row after the other: int64 (sum of lengths,)."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)


class Examples(Sequence[dict[str, np.ndarray]]):
    """Examples gathered at once: item i has row i of each of the `columns`, which are Rows or (examples, n) arrays."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: Any) -> Any:
        return {name: column[index] for name, column in self.columns.items()}


def interleaved(parts: Sequence[Sequence[Any]], which: np.ndarray) -> Sequence[Any]:
    """Returns examples of several parts in one order: the next one of part `which[i]` is at place i."""
    if len(parts) == 1:
        return parts[0]
    if not all(isinstance(part, Examples) for part in parts):
        following = [iter(part) for part in parts]
        return [next(following[part]) for part in which.tolist()]
    order = np.argsort(np.argsort(which, kind="stable"))
    columns = {}
    for name in parts[0].columns:  # type: ignore[attr-defined]
        rows = [part.columns[name] for part in parts]  # type: ignore[attr-defined]
        joined = Rows(np.concatenate([row.packed() for row in rows]), np.concatenate([row.lengths for row in rows]))
        columns[name] = Rows(joined.values, joined.lengths[order], joined.starts[order])
    return Examples(columns)


class Lengths:
    """The lengths of the items of `encoded` on the side of a number, made of what is mapped when they are asked for.

    As int32 (items,): indices, slices, masks. longest: what none will be above, of items that are still to come.
    """

    dtype = np.dtype(np.int32)

    def __init__(self, encoded: Any, number: int, longest: int | None = None) -> None:
        self.encoded, self.number, self.longest = encoded, number, longest

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, indices: Any) -> np.ndarray:
        return self.encoded.lengths(self.number, indices)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)

    def max(self) -> int:
        """Returns the longest, or what it can be at most."""
        if self.longest is None:
            parts = (self[start : start + _AT_ONCE] for start in range(0, len(self), _AT_ONCE))
            self.longest = max((int(part.max()) for part in parts), default=0)
        return self.longest


class Encoded:
    """Sentences of int32 ids in a folder: <side>.bin and <side>_offsets.npy of each side, meta.json.

    Item i is {"input_ids": (source,), "labels": (target,)} of pairs, {"input_ids": (length,)} of text of one language:
    arrays of their own that end with </s>. `source_lengths` and `target_lengths`: as int32 arrays (items,), of text
    both the same. Opening it compares the files' sizes and times with those in meta.json, and where times differ, or
    with `check`, all bytes with the checksums there; `was_read` says whether.
    """

    def __init__(self, folder: str | Path, check: bool = False) -> None:
        self.folder, self.found = Path(folder).absolute(), ""  # how it was, where it was there already
        try:
            self.meta = json.loads((self.folder / META).read_text(encoding="utf-8"))
            file = (self.folder / META).stat()
            self._written = file.st_ino, file.st_mtime_ns  # a folder that is made again is another one
            self.report = FilterReport.from_dict(self.meta["report"])
            self.was_read = check or self.meta.get("times") != self.times()
            self._check_files()
            self.sides = SIDES if "text.bin" not in self.meta["checksums"] else ("text",)
            self.unit = "pairs" if len(self.sides) > 1 else "sentences"  # what one item is, in the plural
            bytes_of = [self.meta["checksums"][f"{side}_offsets.npy"][0] for side in self.sides]
            self._count = (min(bytes_of) - HEAD) // np.dtype(np.int64).itemsize - 1
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{folder}: no intact encoded text ({error}). Delete this folder and run again.") from error
        self.source_lengths, self.target_lengths = Lengths(self, 0), Lengths(self, -1)

    def times(self) -> dict[str, int]:
        """Returns the files' times of modification."""
        return {name: (self.folder / name).stat().st_mtime_ns for name in self.meta["checksums"]}

    def _check_files(self) -> None:
        for name, expected in self.meta["checksums"].items():
            if (size := (self.folder / name).stat().st_size) != expected[0]:
                raise ValueError(f"{name} has {size:,} bytes, {expected[0]:,} expected")
            if self.was_read and size_and_crc(self.folder / name)[1] != expected[1]:
                raise ValueError(f"{name} is damaged: its checksum is not that of what was written")

    def _side(self, side: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns where each sentence of a side begins and the last one ends, and all ids."""
        return _mapped(self.folder, side, self._written)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)} {self.unit}")
        index = int(index) % len(self)
        item = {}
        for name, side in zip(("input_ids", "labels"), self.sides):
            offsets, ids = self._side(side)
            item[name] = np.array(ids[offsets[index] : offsets[index + 1]])
        return item

    def lengths(self, number: int, indices: Any) -> np.ndarray:
        """Returns the subwords of these items (indices, a slice, a mask) on the side of a number, int32."""
        offsets, _ = self._side(self.sides[number])
        return (offsets[1:][indices] - offsets[:-1][indices]).astype(np.int32)

    def gather(self, indices: np.ndarray) -> Examples:
        """Returns the items at these indices, which are copied from the file when they are padded."""
        columns = {}
        for name, side in zip(("input_ids", "labels"), self.sides):
            offsets, ids = self._side(side)
            starts = offsets[indices]
            columns[name] = Rows(ids, offsets[indices + 1] - starts, starts)
        return Examples(columns)


class Growth(Encoded):
    """Encoded text that still grows in a folder NAME.part, as far as it was noted when this was made."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.found = folder, ""
        self.meta = json.loads((folder / STATE).read_text(encoding="utf-8"))
        self.report = FilterReport.from_dict(self.meta["report"])
        self.sides = tuple(self.meta["ends"])
        self.unit = "pairs" if len(self.sides) > 1 else "sentences"

    def _side(self, side: str) -> tuple[np.ndarray, np.ndarray]:
        return _mapped_part(self.folder, side, len(self), self.meta["ends"][side])

    def __len__(self) -> int:
        return int(self.meta["kept"])


@lru_cache(_OPEN)
def _mapped(folder: Path, side: str, written: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Maps the files of a side into memory; of thousands of corpora only those used last are open at a time."""
    return _numbers(folder / f"{side}_offsets.npy", np.int64, HEAD), _numbers(folder / f"{side}.bin", np.int32)


@lru_cache(_OPEN)
def _mapped_part(folder: Path, side: str, count: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Maps as much of a side's growing files as was noted: so many sentences, and ids up to `end`."""
    offsets = _numbers(folder / f"{side}_offsets.npy", np.int64, HEAD, count + 1)
    return offsets, _numbers(folder / f"{side}.bin", np.int32, 0, end)


def _numbers(path: Path, dtype: Any, head: int = 0, count: int = -1) -> np.ndarray:
    """Maps so many numbers behind the head of a file; -1: all. (np.memmap takes far longer, felt with many corpora.)"""
    with path.open("rb") as file:
        if count == 0 or os.fstat(file.fileno()).st_size == head:
            return np.zeros(0, dtype)
        return np.frombuffer(mmap(file.fileno(), 0, access=ACCESS_READ), dtype, count, head)
