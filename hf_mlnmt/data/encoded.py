"""Reads encoded text from disk, of pairs or of one language: memory-mapped Arrow files, written by encoding.py."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json, size_and_crc
from hf_mlnmt.data.filters import FilterReport

_AT_ONCE = 1 << 20  # number of lengths that `Lengths.max` computes at a time
_OPEN = 400  # most shards open at once, as a process may often open only 1,024 files
META = "meta.json"
FORM = {
    "format": int,
    "settings": str,
    "files": list,
    "fingerprint": str,
    "read": int,
    "columns": [str],
    "report": {"read": int, "kept": int, "dropped": {...: int}},
    "reader": {"read": int, "kept": int, "dropped": {...: int}},
    # "reader" or "report" (what the filters dropped) -> reason -> the first dropped pairs, each a list of its sides.
    "first?": {...: {...: [[str]]}},
    "shards": {...: {"items": int, "size": int, "crc": int, "time": int, "hashes": int}},
}


class Rows(Sequence[np.ndarray]):
    """Rows of different lengths, stored in one array: row i is values[starts[i] : starts[i] + lengths[i]].

    Without `starts` each row begins where the one before it ends, as `packed` arranges them.
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
        """Returns a copy of the elements of all rows, concatenated: (sum of lengths,)."""
        return self.values[places(self.starts, self.lengths)]

    def padded(self, value: int) -> np.ndarray:
        """Returns a copy of the rows, padded with `value` at their ends: int64 (rows, longest)."""
        columns = np.arange(int(self.lengths.max()))
        # Reads as many ids from each row's start as the longest row has, which is faster than a loop over the rows.
        found = self.values.take(self.starts[:, None] + columns, mode="clip")
        return np.where(columns < self.lengths[:, None], found, np.int64(value))

    def followed(self, length: int, times: int) -> Rows:
        """Returns the rows, followed by `times` dummy rows of length `length`."""
        values = self.values if len(self.values) >= length else np.resize(self.values, length)
        lengths = np.append(self.lengths, np.full(times, length))
        return Rows(values, lengths, np.append(self.starts, np.zeros(times, np.int64)))


def places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the indices of all elements of rows that begin at `starts`, row after row: int64 (sum of lengths,)."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)


class Examples(Sequence[dict[str, np.ndarray]]):
    """A sequence of examples: item i is {name: row i} of all `columns`, which are Rows or arrays (examples, n)."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: Any) -> Any:
        return {name: column[index] for name, column in self.columns.items()}


def interleaved(parts: Sequence[Examples], which: np.ndarray) -> Examples:
    """Merges the examples of several parts: example i of the result is the next unused one of part `which[i]`."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.argsort(which, kind="stable"))
    columns = {}
    for name in parts[0].columns:
        rows = [part.columns[name] for part in parts]
        joined = Rows(np.concatenate([row.packed() for row in rows]), np.concatenate([row.lengths for row in rows]))
        columns[name] = Rows(joined.values, joined.lengths[order], joined.starts[order])
    return Examples(columns)


class Lengths:
    """Lengths in subwords of the items of `encoded` on side `number` (0: source, -1: target), computed when indexed.

    Indexed by an array, a slice or a mask it returns int32 arrays.
    """

    dtype = np.dtype(np.int32)

    def __init__(self, encoded: Any, number: int) -> None:
        self.encoded, self.number = encoded, number

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, indices: Any) -> np.ndarray:
        return self.encoded.lengths(self.number, indices)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)

    def max(self) -> int:
        """Returns the greatest of the lengths; 0 if there are none."""
        parts = (self[start : start + _AT_ONCE] for start in range(0, len(self), _AT_ONCE))
        return max((int(part.max()) for part in parts), default=0)


class Encoded:
    """A corpus encoded to subword ids, read from a folder of shards, which are Arrow files, and meta.json.

    Item i is {"input_ids": (source,), "labels": (target,)} of pairs, {"input_ids": (length,)} of text of one language:
    int32 arrays of their own that end with </s>. `source_lengths` and `target_lengths`: as int32 arrays (items,), of
    text both the same. Opening it compares the files' sizes and times with those in meta.json, and where times differ,
    or with `check`, all bytes with the checksums there. `found`: how a folder encoded before was recognised, or "".
    """

    def __init__(self, folder: str | Path, check: bool = False) -> None:
        self.folder, self.found = Path(folder).absolute(), ""
        try:
            self.meta = read_json(self.folder / META, FORM)
            if not self.meta:
                raise FileNotFoundError(f"no {META}")
            self._check_files(check)
        except (OSError, ValueError) as error:
            problem = f"{folder}: no intact encoded text ({error}). Delete this folder and run again."
            raise UserError(problem) from error.__cause__ or error
        # The report counts what the reader dropped and, by the next line, what the filters dropped.
        self.report = FilterReport.from_dict(self.meta["reader"])
        self.report.add(FilterReport.from_dict(self.meta["report"]))
        self.unit = "pairs" if len(self.meta["columns"]) > 1 else "sentences"  # what items are called in messages
        self._names = list(self.meta["shards"])
        self._starts = np.cumsum([0, *(shard["items"] for shard in self.meta["shards"].values())])
        self._lengths: dict[str, np.ndarray] = {}
        self.source_lengths, self.target_lengths = Lengths(self, 0), Lengths(self, -1)

    def _check_files(self, check: bool) -> None:
        for name, expected in self.meta["shards"].items():
            now = (self.folder / name).stat()
            if now.st_size != expected["size"]:
                raise ValueError(f"{name} has {now.st_size:,} bytes, {expected['size']:,} expected")
            read = check or now.st_mtime_ns != expected["time"]
            if read and size_and_crc(self.folder / name)[1] != expected["crc"]:
                raise ValueError(f"{name} is damaged: its checksum is not that of what was written")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lengths": {}}

    def _shard(self, number: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        name = self._names[number]
        return _mapped(self.folder, name, self.meta["shards"][name]["time"], self.meta["shards"][name]["crc"])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)} {self.unit}")
        return self.gather(np.array([int(index) % len(self)]))[0]

    def lengths(self, number: int, indices: Any) -> np.ndarray:
        """Returns the lengths in subwords, int32, of items (indices, slice or mask) in meta.json's column `number`."""
        name = self.meta["columns"][number]
        if name not in self._lengths:
            shards = map(self._shard, range(len(self._names)))
            lengths = [np.diff(shard[name][0]) for shard in shards]
            longest = max((int(each.max(initial=0)) for each in lengths), default=0)
            small = np.uint16 if longest < 1 << 16 else np.int32  # uint16 takes half of the memory of int32
            self._lengths[name] = np.concatenate([np.zeros(0, small), *(each.astype(small) for each in lengths)])
        return self._lengths[name][indices].astype(np.int32)

    def gather(self, indices: np.ndarray) -> Examples:
        """Returns the items at `indices` as Examples, copied from the memory-mapped shards."""
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        within = (indices - self._starts[numbers]).tolist()
        shards = {number: self._shard(number) for number in np.unique(numbers).tolist()}
        columns = {}
        for name in self.meta["columns"]:
            rows = []
            for number, item in zip(numbers.tolist(), within):
                offsets, ids = shards[number][name]
                rows.append(ids[offsets[item] : offsets[item + 1]])
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            columns[name] = Rows(np.concatenate(rows, dtype=np.int32), lengths)
        return Examples(columns)


@lru_cache(_OPEN)
def _mapped(folder: Path, name: str, time: int, checksum: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Maps a shard into memory: of each column the offsets of its items, and all ids. A file that was made again has
    another time or checksum; of thousands only those used last are open at a time."""
    import pyarrow

    with pyarrow.ipc.open_stream(pyarrow.memory_map(str(folder / name))) as stream:
        columns = stream.read_next_batch()
    return {
        name: (column.offsets.to_numpy(), column.values.to_numpy())
        for name, column in zip(columns.schema.names, columns.columns)
    }
