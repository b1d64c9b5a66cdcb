"""Encoded text made: read by this process, filtered and cut by several, written chunk by chunk, in the corpus's order.

`encode_corpus` uses what is there already of the same text and settings: it compares the files' sizes and times of
modification with those of then, and where they differ, or with `check`, their content. (Times are compared for being
equal alone: clocks may differ.) A start that was killed is gone on from at the last note of its state.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import asdict
from itertools import compress, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import (
    check_folder_name,
    explained,
    only_one,
    read_json,
    size_and_crc,
    take_place,
    write_json,
)
from hf_mlnmt.common.made_from import digest
from hf_mlnmt.common.memory import cores
from hf_mlnmt.data.corpus import CorpusSpec, read_pairs, size_of
from hf_mlnmt.data.encoded import HEAD, META, SIDES, STATE, Encoded
from hf_mlnmt.data.filters import FilterReport, Pair, PairFilter, Seen
from hf_mlnmt.data.formats import format_of
from hf_mlnmt.data.lines import FileHash, hashing
from hf_mlnmt.data.placeholders import with_placeholders
from hf_mlnmt.data.shuffling import mixed
from hf_mlnmt.data.text import TextSide, TextSpec, read_text
from hf_mlnmt.data.tokenizer import Tokenizers, identity_of, languages_of
from hf_mlnmt.data.workers import Encoder, Piece

log = logging.getLogger(__name__)
Spec = CorpusSpec | TextSpec
Progress = Callable[[int, int | None], Any]
"""Hears behind every chunk how many items are done, and of how many, where that is known."""
_CHUNK = 2000
_NOTED = 50  # chunks between two notes of the state
_FORMAT = 3
_MUCH = 0.2  # of a corpus


class Origin:
    """The text and the settings that encoded text is made of.

    about: what is kept with it: settings, sizes and times of the files, which tell quickly whether they are the same,
    and a hash of all, their content too, once it is known. hashes: of each file, made while it is read.
    """

    def __init__(self, parts: Any, paths: Sequence[Path] = ()) -> None:
        self.parts, self.hashes = parts, [FileHash(path) for path in paths if path.is_file()]
        self.about: dict[str, Any] = {"settings": digest(parts), "files": self._stamps(), "fingerprint": None}

    def _stamps(self) -> list[list[int]]:
        stats = [file.path.stat() for file in self.hashes]
        return [[stat.st_size, stat.st_mtime_ns] for stat in stats]

    @property
    def fingerprint(self) -> str:
        """Returns the hash of all; what nobody has read yet of the files is read."""
        if self.about["fingerprint"] is None:
            content = [file.of_first(size) for file, (size, _) in zip(self.hashes, self.about["files"])]
            self.about["fingerprint"] = digest(content, self.parts)
        return self.about["fingerprint"]  # type: ignore[no-any-return]

    def made(self, kept: dict[str, Any], check: bool = False) -> bool:
        """Returns whether what has `kept` for its `about` was made of this: by content in doubt, and with `check`; of
        what grows, by the content that was read."""
        if kept.get("settings") != self.about["settings"]:
            return False
        if kept["files"] == self.about["files"] and not check:
            self.about["fingerprint"] = kept["fingerprint"]
            return True
        if [size for size, _ in kept["files"]] != [size for size, _ in self.about["files"]]:
            return False
        if kept["fingerprint"] is None:
            return all(file.of_first(size) == found for file, (size, found) in zip(self.hashes, kept["hashes"]))
        return kept["fingerprint"] == self.fingerprint

    def state(self) -> dict[str, Any]:
        """Returns `about`, and the hashes of what was read so far."""
        return {**self.about, "hashes": [[file.size, file.of_first(0)] for file in self.hashes]}

    def total(self, read: int) -> int | None:
        """Estimates how many items there are, in three digits, where so many were read; None where that is unknown."""
        sizes = [(file.at, size) for file, (size, _) in zip(self.hashes[:1], self.about["files"])]
        return next((int(float(f"{read * size / at:.3g}")) for at, size in sizes if 0 < at < size), None)

    def check(self) -> None:
        """Raises: UserError for files that changed."""
        if self._stamps() != self.about["files"]:
            names = ", ".join(str(file.path) for file in self.hashes)
            raise UserError(f"{names}: changed while they were read. Run the same command again.")


class GrowingFile:
    """A file that grows, of which `size` bytes behind the first `head` are written, with the checksum `crc`."""

    def __init__(self, path: Path, dtype: Any, head: int = 0) -> None:
        self.path, self.dtype, self.head, self.size, self.crc = path, dtype, head, 0, 0

    def differs(self) -> bool:
        """Returns whether the file is not, or does not begin with, what was noted."""
        crc, left = 0, self.size
        if not self.path.is_file():
            return True
        with self.path.open("rb") as file:
            file.seek(self.head)
            while left and (block := file.read(min(left, 1 << 22))):
                crc, left = zlib.crc32(block, crc), left - len(block)
        return bool(left) or crc != self.crc

    def open(self) -> None:
        """Opens the file behind what was noted; the rest is cut off."""
        self.path.touch()
        self.file = self.path.open("r+b")
        self.file.truncate(self.head + self.size)
        self.file.seek(self.head + self.size)

    def write(self, values: np.ndarray) -> None:
        """Adds numbers."""
        data = values.astype(self.dtype, copy=False).tobytes()
        self.file.write(data)
        self.size, self.crc = self.size + len(data), zlib.crc32(data, self.crc)

    def flush(self) -> None:
        """Puts all on the disk, and into the head of an .npy file how many numbers there are."""
        if self.head:
            self.file.seek(0)
            shape = (self.size // np.dtype(self.dtype).itemsize,)
            about = {"descr": np.dtype(self.dtype).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self.file, about)
            self.file.seek(0, os.SEEK_END)
        self.file.flush()


class Growing:
    """Encoded text that grows in a folder NAME.part, until it is complete and takes its name. Use it as a context.

    origin: what it is made of. Of what a killed process left `read` items are there already, if that was the same.
    """

    def __init__(
        self, folder: str | Path, sides: Sequence[str], origin: Origin, max_length: int | None, unique: bool
    ) -> None:
        self.folder, self.sides, self.origin, self.max_length = Path(folder), sides, origin, max_length
        target = check_folder_name(folder)
        self.part = target.with_name(f"{target.name}.part")
        self.seen = Seen() if unique else None
        self.report, self.reader = FilterReport(), FilterReport()
        self.read = self.noted = 0
        self._sizes: dict[GrowingFile, int] = {}  # of what is noted
        self.ends = dict.fromkeys(sides, 0)  # ids of each side so far
        self.files = {name: GrowingFile(self.part / f"{name}.bin", np.int32) for name in sides}
        offsets = {name: GrowingFile(self.part / f"{name}_offsets.npy", np.int64, HEAD) for name in sides}
        self.files |= {f"{name}_offsets": file for name, file in offsets.items()}
        if unique:
            self.files["hashes"] = GrowingFile(self.part / "hashes.bin", np.uint64)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            busy = f"{self.part}: another process encodes this text. Wait for it, or choose another folder."
            stack.enter_context(only_one(self.part, busy))
            if (state := self._state()) is not None:
                self._restore(state)
            else:
                (self.part / STATE).unlink(missing_ok=True)
            for file in self.files.values():
                file.open()
                stack.callback(file.file.close)
            for side in self.sides if not self.noted else ():
                self.files[f"{side}_offsets"].write(np.zeros(1))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        with suppress(OSError):  # of a full disk, a second time
            self._stack.close()
        if kind is None:
            return
        if not self.noted:
            shutil.rmtree(self.part, ignore_errors=True)
        for file, size in self._sizes.items() if self.noted else ():  # what is behind is of no use
            os.truncate(file.path, file.head + size)

    def _state(self) -> dict[str, Any] | None:
        """Returns the state that a killed process left; None where there is none, of another text, or damaged."""
        try:
            state = read_json(self.part / STATE)
            if not state or not self.origin.made(state):
                return None
            for name, file in self.files.items():
                file.size, file.crc = state["written"][name]
                if file.differs():
                    raise ValueError(f"{file.path.name} is damaged, or not there")
            return state
        except (UserError, ValueError, TypeError, KeyError) as error:
            log.warning("%s cannot be gone on from (%s). Encoding again.", self.part, error)
            for file in self.files.values():
                file.size = file.crc = 0
        return None

    def _restore(self, state: dict[str, Any]) -> None:
        self.read = self.noted = state["read"]
        self._sizes = {file: file.size for file in self.files.values()}
        self.ends = state["ends"]
        for report, kept in ((self.report, state["report"]), (self.reader, state["reader"])):
            report.add(FilterReport.from_dict(kept))
            report.examples = kept["examples"]
        if self.seen is not None:
            for block in _blocks(self.files["hashes"]):
                self.seen.add(block)

    def add(self, chunk: Sequence[Any], piece: Piece) -> None:
        """Adds what the filter let pass of a chunk and is neither there already nor too long; counts the others."""
        self.report.add(piece.report)
        lengths = [lengths for _, lengths in piece.sides]
        stays = np.ones(len(piece.passed), bool)
        if self.seen is not None:
            stays = self.seen.add(piece.hashes)
            self.files["hashes"].write(piece.hashes[stays])
        long = np.zeros_like(stays) if self.max_length is None else np.max(lengths, 0) > self.max_length
        for number in np.flatnonzero(~stays | long).tolist():
            item = chunk[piece.passed[number]]
            reason = f"longer than {self.max_length} subwords" if stays[number] else "duplicate"
            self.report.drop(reason, *([item] if isinstance(item, str) else item))
        stays &= ~long
        for side, (ids, length) in zip(self.sides, piece.sides):
            self.files[side].write(ids if stays.all() else ids[np.repeat(stays, length)])
            ends = self.ends[side] + np.cumsum(length[stays], dtype=np.int64)
            self.files[f"{side}_offsets"].write(ends)
            self.ends[side] = int(ends[-1]) if len(ends) else self.ends[side]
        self.report.kept += int(stays.sum())
        self.read += len(chunk)

    def note(self, reader: FilterReport) -> None:
        """Notes what is done; a start that comes after a kill goes on from here. `reader` counts what was not read."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.file.fileno())
        reports = {
            name: {**report.to_dict(), "examples": report.examples}
            for name, report in (("report", self.report), ("reader", reader))
        }
        written = {name: [file.size, file.crc] for name, file in self.files.items()}
        done = {"read": self.read, "kept": self.report.kept, "ends": self.ends, "written": written}
        write_json(self.part / STATE, {**self.origin.state(), **done, **reports})
        self.noted, self._sizes = self.read, {file: file.size for file in self.files.values()}

    def finish(self, reader: FilterReport) -> Encoded:
        """Gives the folder its name; returns what is in it."""
        report = FilterReport()
        report.add(reader)
        report.add(self.report)
        for file in self.files.values():
            file.flush()
        self._stack.close()
        names = sorted(self.files[name].path.name for name in self.files if name != "hashes")
        meta = {"format": _FORMAT, "fingerprint": self.origin.fingerprint, **self.origin.about}
        meta["report"] = report.to_dict()
        whole = {file.path.name: [file.size, file.crc] for file in self.files.values() if not file.head}
        meta["checksums"] = {name: whole.get(name) or size_and_crc(self.part / name) for name in names}
        meta["times"] = {name: (self.part / name).stat().st_mtime_ns for name in names}
        write_json(self.part / META, meta)
        take_place(self.part, check_folder_name(self.folder))
        for name in ("hashes.bin", STATE, ".lock"):
            (self.folder / name).unlink(missing_ok=True)
        return Encoded(self.folder)


def _blocks(file: GrowingFile) -> Iterator[np.ndarray]:
    with file.path.open("rb") as content:
        for start in range(0, file.size, 1 << 20):
            yield np.frombuffer(content.read(min(1 << 20, file.size - start)), file.dtype)


def reuse(folder: str | Path, origin: Origin, check: bool = False) -> Encoded | None:
    """Returns the data in `folder` if they are whole and made of this, else None; `check` compares all content."""
    path = Path(folder) / META
    if not path.is_file():
        return None
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        if meta["format"] != _FORMAT or not origin.made(meta, check):
            return None
        encoded = Encoded(folder, check)
        same = encoded.meta.get("files") == origin.about["files"] and not encoded.was_read
        encoded.found = f"encoded before, of files of the same {'sizes and times' if same else 'content'}"
        now = {**encoded.meta, **origin.about, "times": encoded.times()}
        if now != encoded.meta:  # the content is the same: the next start need not read it
            encoded.meta = now
            with suppress(OSError, UserError):
                write_json(path, now)
        return encoded
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = error.__cause__ or error  # a UserError tells the user what to do, but here nothing is to be done
        log.warning("%s cannot be used (%s). Encoding again.", folder, reason)
        return None


def build(
    items: Iterable[Pair] | Iterable[str],
    tokenizers: Tokenizers,
    folder: str | Path,
    max_length: int | None = None,
    language: str | None = None,
    fingerprint: str | None = None,
    tag: str | None = None,
    side: TextSide | None = None,
) -> Encoded:
    """Encodes raw pairs, or texts, into `folder`, chunk by chunk, and opens it; it appears when it is complete.

    max_length: subwords with </s> and language code; an item with a longer side is dropped and counted.
    language: of the target; its code `<2de>` is put before every source. tag: a token before every source.
    fingerprint: what the result depends on: if `folder` holds that already, nothing is read.
    side: of texts, whose vocabulary they get.
    """
    origin = Origin(fingerprint or os.urandom(8).hex())
    origin.about["fingerprint"] = fingerprint
    if fingerprint is not None and (there := reuse(folder, origin)):
        return there
    encoder = _encoder(tokenizers, side, language, tag)
    return _grow(folder, origin, encoder, lambda done, report: islice(items, done, None), max_length)


def _encoder(
    tokenizers: Tokenizers,
    side: TextSide | None,
    language: str | None,
    tag: str | None,
    pair_filter: PairFilter | None = None,
    placeholders: Mapping[str, str] = MappingProxyType({}),
) -> Encoder:
    sides = tokenizers.sides(language, tag)
    return Encoder(list(sides.values()) if side is None else [sides[side]], pair_filter, dict(placeholders))


def _grow(
    folder: str | Path,
    origin: Origin,
    encoder: Encoder,
    read: Callable[[int, FilterReport], Iterator[Any]],
    max_length: int | None,
    processes: int = 1,
    progress: Progress | None = None,
    total: int | None = None,
) -> Encoded:
    """Encodes what `read` gives behind so many items; its report counts what it drops."""
    unique = encoder.pair_filter is not None and encoder.pair_filter.drop_duplicates
    sides = SIDES if len(encoder.sides) > 1 else ("text",)
    with (
        explained(Path(folder)),
        hashing(origin.hashes),
        Growing(folder, sides, origin, max_length, unique) as growing,
    ):
        report, dropped, ahead = growing.reader, deque[FilterReport](), growing.read

        def chunks() -> Iterator[list[Any]]:
            nonlocal ahead
            items = read(growing.read, report)
            while chunk := list(islice(items, _CHUNK)):
                dropped.append(deepcopy(report))  # as it is behind this chunk: others are read ahead
                ahead += len(chunk)
                yield chunk

        for number, (chunk, piece) in enumerate(encoder.pieces(chunks(), processes), start=1):
            growing.add(chunk, piece)
            reader = dropped.popleft()
            origin.check()
            if number % _NOTED == 0:
                growing.note(reader)
            if progress is not None:
                progress(growing.read, total or origin.total(ahead))
        origin.check()
        if progress is not None:
            progress(growing.read, growing.read)
        return growing.finish(report)


def fingerprint_of(spec: Spec, root: str | Path, tokenizers: Tokenizers, **settings: Any) -> str:
    """Returns a hash of what encoded data depends on: files (of a data set its name) and how they are read, tokenizers,
    processing, settings."""
    return origin_of(spec, root, tokenizers, **settings).fingerprint


def origin_of(spec: Spec, root: str | Path, tokenizers: Tokenizers, **settings: Any) -> Origin:
    """Returns what encoded data depends on, as `fingerprint_of`."""
    processing = {side: asdict(value) for side, value in tokenizers.processing.items()}
    if (suffix := format_of(Path(spec.path or ""))) in (".csv", ".json"):
        settings["format"] = suffix  # the same bytes are other rows in a .tsv and a .csv
    parts = [spec.reading(), processing, settings, identity_of(tokenizers.source), identity_of(tokenizers.target)]
    return Origin(parts, spec.local_files(root))


def encode_corpus(
    spec: Spec,
    root: str | Path,
    tokenizers: Tokenizers,
    folder: str | Path,
    pair_filter: PairFilter | None = None,
    max_length: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    check: bool = False,
    placeholders: Mapping[str, str] = MappingProxyType({}),
) -> Encoded:
    """Reads, filters and encodes a corpus into `folder`; what is there already of the same text and settings is used.

    Training data: give a filter, `max_length` (subwords), and placeholders if any (placeholders.py). Development data:
    give none, every item stays.
    Before the source stand `spec.tag` and, if the tokenizer has codes, that of `spec.languages`' target; of text of one
    language `spec.side` must say whose vocabulary it gets.
    processes: that encode; None: one for each core. The bytes are the same for any number.
    check: read all of the text, and of what is there, to see whether it is the same.

    Raises: UserError when nothing is left.
    """
    how: dict[str, Any] = {}
    if isinstance(spec, TextSpec):
        assert spec.side is not None
        side, tag, tokenizers = spec.side, None, tokenizers.between(spec.language, spec.language)
    else:
        named, side, tag = spec.languages or {}, None, spec.tag or None
        tokenizers = tokenizers.between(named.get("source"), named.get("target"))
        how["language"] = named.get("target") if languages_of(tokenizers.source) else None
    made = {"placeholders": dict(placeholders)} if placeholders else {}
    origin = origin_of(spec, root, tokenizers, filter=repr(pair_filter), max_length=max_length, **made, **how)
    if there := reuse(folder, origin, check):
        return there

    def read(done: int, report: FilterReport) -> Iterator[Any]:
        if spec.dataset and spec.limit is None:
            return _items(spec, root, report, done + report.dropped.total())
        report.dropped.clear()  # they are read, and counted, once more
        return islice(_items(spec, root, report), done, None)

    encoder = _encoder(tokenizers, side, how.get("language"), tag, pair_filter, placeholders)
    if spec.dataset or format_of(Path(spec.path or "")) == ".parquet":
        _ = origin.fingerprint  # of a name, asked for while the data set still grows; of columns, read in no order
    encoded = _grow(folder, origin, encoder, read, max_length, processes or cores(), progress, size_of(spec, root))
    _check_what_is_left(encoded, spec)
    return encoded


def _items(spec: Spec, root: str | Path, report: FilterReport | None, skip: int = 0) -> Iterator[Any]:
    return read_text(spec, root, report, skip) if isinstance(spec, TextSpec) else read_pairs(spec, root, report, skip)


def filtered(
    spec: Spec,
    root: str | Path,
    pair_filter: PairFilter | None = None,
    report: FilterReport | None = None,
    share: float = 1.0,
    seed: int = 1,
    placeholders: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Any]:
    """Yields the raw pairs of a corpus, with placeholders if any, or texts of one language, that pass the filter, as a
    stream; also what a tokenizer is trained on. share: of the items, as a hash of their numbers and the seed draws."""
    items = _items(spec, root, report)
    if share < 1:
        items = compress(items, _drawn(share, seed))
    items = pair_filter(items, report) if pair_filter else items
    yield from with_placeholders(items, placeholders) if placeholders and isinstance(spec, CorpusSpec) else items


def _drawn(share: float, seed: int) -> Iterator[bool]:
    of_seed = mixed(np.uint64(seed % 2**64))
    for first in itertools.count(0, _CHUNK):
        numbers = mixed(np.arange(first, first + _CHUNK, dtype=np.uint64) ^ of_seed)
        yield from (numbers < np.uint64(share * 2**64)).tolist()


def _check_what_is_left(encoded: Encoded, spec: Spec) -> None:
    if len(encoded) == 0:
        unit = encoded.unit.removesuffix("s")
        raise UserError(f"{spec}: no {unit} is left. Relax the filters.\n{encoded.report.table(encoded.unit)}")
    for reason, count in encoded.report.dropped.items():
        if count > _MUCH * (read := encoded.report.read):
            log.warning(
                "%s: %.0f%% of its %s %s are dropped: %s (%s). Is that meant? See data.filters and data.max_length.",
                spec,
                100 * count / read,
                f"{read:,}",
                encoded.unit,
                reason,
                f"{count:,}",
            )
