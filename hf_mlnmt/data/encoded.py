"""Encoded text on disk, pairs or one language: memory-mapped Arrow files, made by encoding.py."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json, size_and_crc
from hf_mlnmt.data.filters import FilterReport

_AT_ONCE = 1 << 20  # lengths that `max` makes at a time
_OPEN = 400  # files open at once; often a process may have 1,024
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
    "first?": {...: {...: [[str]]}},  # dropped pairs, by reader or filters and by reasons
    "shards": {...: {"items": int, "size": int, "crc": int, "time": int, "hashes": int}},
}


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
        """Returns the rows, and `times` dummy rows of a length behind them."""
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


def interleaved(parts: Sequence[Examples], which: np.ndarray) -> Examples:
    """Returns examples of several parts in one order: the next one of part `which[i]` is at place i."""
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
    """The lengths of the items of `encoded` on a side (0: source, -1: target), computed when they are asked for.

    As int32 (items,): indices, slices, masks.
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
        """Returns the longest."""
        parts = (self[start : start + _AT_ONCE] for start in range(0, len(self), _AT_ONCE))
        return max((int(part.max()) for part in parts), default=0)


class Encoded:
    """Sentences of ids in a folder: shards, which are Arrow files as `datasets` reads them, and meta.json.

    Item i is {"input_ids": (source,), "labels": (target,)} of pairs, {"input_ids": (length,)} of text of one language:
    int32 arrays of their own that end with </s>. `source_lengths` and `target_lengths`: as int32 arrays (items,), of
    text both the same. Opening it compares the files' sizes and times with those in meta.json, and where times differ,
    or with `check`, all bytes with the checksums there. `found`: how it was found, where it was there already.
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
        self.report = FilterReport.from_dict(self.meta["reader"])  # what the reader dropped, and what filters did
        self.report.add(FilterReport.from_dict(self.meta["report"]))
        self.unit = "pairs" if len(self.meta["columns"]) > 1 else "sentences"  # what one item is, in the plural
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
        """Counts the subwords of these items (indices, a slice, a mask) in column `number` of meta.json, int32."""
        name = self.meta["columns"][number]
        if name not in self._lengths:
            shards = map(self._shard, range(len(self._names)))
            lengths = [np.diff(shard[name][0]) for shard in shards]
            longest = max((int(each.max(initial=0)) for each in lengths), default=0)
            small = np.uint16 if longest < 1 << 16 else np.int32  # half of the memory
            self._lengths[name] = np.concatenate([np.zeros(0, small), *(each.astype(small) for each in lengths)])
        return self._lengths[name][indices].astype(np.int32)

    def gather(self, indices: np.ndarray) -> Examples:
        """Returns copies of the items at these indices."""
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
