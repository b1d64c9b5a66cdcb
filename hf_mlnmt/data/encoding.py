"""Encodes corpora to subword ids: one process reads, others filter and tokenise; shards keep the corpus's order.

`encode_corpus` uses encoded text again that was made of the same text and settings, and continues after the last shard
of a start that was killed. encoded.py reads the files.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import compress, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
from hf_mlnmt.common.made_from import Origin
from hf_mlnmt.common.memory import cores
from hf_mlnmt.data.corpus import CorpusSpec, TextSpec, read_pairs, read_text, size_of
from hf_mlnmt.data.encoded import FORM, META, Encoded
from hf_mlnmt.data.filters import DROPPED, FilterReport, Overlap, PairFilter, Seen, texts_of
from hf_mlnmt.data.formats import format_of
from hf_mlnmt.data.placeholders import with_placeholders
from hf_mlnmt.data.processing import EncodedChunk, Encoder, in_processes
from hf_mlnmt.data.tokenizer import Tokenizers, identity_of, languages_of
from hf_mlnmt.data.tokenizer import size_of as entries_of
from hf_mlnmt.data.training_set import mixed

log = logging.getLogger(__name__)
Spec = CorpusSpec | TextSpec
Progress = Callable[[int, int | None], Any]
"""Called after every chunk that is read or encoded: how many items are done, of how many (None: unknown)."""
_CHUNK = 1000  # most items of a chunk, the unit that one process encodes at a time
_LONG = 500_000  # a chunk of more characters ends before it has _CHUNK items
_SHARD = 100  # most chunks in a shard, which is one file
_FORMAT = 4
_MUCH = 0.2  # a warning names each reason for which more than this share of a corpus is dropped


class _Growing:
    """Encoded text that grows in a folder NAME.part, shard by shard; it begins with what an earlier start has left."""

    def __init__(self, part: Path, origin: Origin, encoder: Encoder, ids: Any, max_length: int | None) -> None:
        self.part, self.ids, self.max_length = part, ids, max_length
        self.seen, self.report = Seen(), FilterReport()
        self.meta: dict[str, Any] = {"format": _FORMAT, **origin.record(), "read": 0, "shards": {}}
        self.meta["columns"] = ["input_ids", "labels"][: len(encoder.sides)]
        try:
            self._go_on_from(read_json(part / META, FORM), origin)
        except (OSError, ValueError) as error:
            log.warning("%s cannot be gone on from (%s). Encoding again.", part, error.__cause__ or error)
            self.seen = Seen()
        for path in part.iterdir() if not self.meta["shards"] else ():
            if path.name != ".lock":
                path.unlink()

    def _go_on_from(self, there: dict[str, Any], origin: Origin) -> None:
        if there and there["format"] == _FORMAT and origin.holds(there):
            Encoded(self.part, check=True)
            for name, about in there["shards"].items():
                path = self.part / f"{name}.hashes.npy"
                if size_and_crc(path)[1] != about["hashes"]:
                    raise ValueError(f"{path.name} is damaged")
                self.seen.add(np.load(path))
            self.meta, self.report = there | origin.record(), FilterReport.from_dict(there["report"])
            self.report.first = there.get("first", {}).get("report", {})

    def add_shard(self, chunks: Sequence[Any], encoded: Iterable[EncodedChunk], hear: Callable[[int], Any]) -> None:
        """Writes a shard with those encoded items of the chunks that passed the filter and are new and not too long."""
        kept: list[list[tuple[np.ndarray, np.ndarray]]] = []
        hashes = []
        for chunk, made in zip(chunks, encoded):
            self.report.add(made.report)
            new = self.seen.add(made.hashes) if len(made.hashes) else np.ones(len(made.passed), bool)
            hashes.append(made.hashes)
            longest = np.max([lengths for _, lengths in made.sides], 0)
            fits = np.ones_like(new) if self.max_length is None else longest <= self.max_length
            for reason, gone in (("duplicate", ~new), (f"longer than {self.max_length} subwords", new & ~fits)):
                for number in np.flatnonzero(gone):
                    self.report.drop(reason, *texts_of(chunk[made.passed[number]]))
            stays = new & fits
            kept.append([(ids[np.repeat(stays, lengths)], lengths[stays]) for ids, lengths in made.sides])
            self.report.kept += int(stays.sum())
            self.meta["read"] += len(chunk)
            hear(self.meta["read"])
        name = f"{len(self.meta['shards']):05}.arrow"
        np.save(path := self.part / f"{name}.hashes.npy", np.concatenate(hashes))
        self.meta["shards"][name] = {**self._write(self.part / name, kept), "hashes": size_and_crc(path)[1]}

    def _write(self, path: Path, kept: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]]) -> dict[str, int]:
        """Writes the ids and lengths of a shard's chunks as an Arrow file; returns its entry for meta.json."""
        import pyarrow

        columns = []
        for side in zip(*kept):
            ids, lengths = (np.concatenate(arrays) for arrays in zip(*side))
            offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
            columns.append(pyarrow.ListArray.from_arrays(offsets, ids.astype(self.ids)))
        batch = pyarrow.RecordBatch.from_arrays(columns, self.meta["columns"])
        with path.open("wb") as file:
            with pyarrow.ipc.new_stream(file, batch.schema) as stream:
                stream.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        size, crc = size_and_crc(path)
        return {"items": batch.num_rows, "size": size, "crc": crc, "time": path.stat().st_mtime_ns}

    def note(self, reader: FilterReport) -> None:
        """Writes meta.json, so that encoding can resume here if this process is killed. reader: counts of bad lines."""
        self.meta |= {"report": self.report.to_dict(), "reader": reader.to_dict()}
        self.meta["first"] = {"report": self.report.first, "reader": reader.first}
        write_json(self.part / META, self.meta)


def reuse(folder: str | Path, origin: Origin, check: bool = False) -> Encoded | None:
    """Returns the encoded text in `folder`, None if damaged or not made from `origin`; `check`: compare all bytes."""
    path = Path(folder) / META
    try:
        # Of a folder without meta.json, read_json returns {}, in which the format is None.
        if read_json(path).get("format") != _FORMAT:
            return None
        encoded = Encoded(folder, check)
        if not origin.holds(encoded.meta, check):
            return None
        shards = encoded.meta["shards"].items()
        times = {name: {**about, "time": (encoded.folder / name).stat().st_mtime_ns} for name, about in shards}
        now = {**encoded.meta, **origin.record(), "shards": times}
        same = "sizes and times" if now == encoded.meta else "content"
        encoded.found = f"encoded before, of files of the same {same}"
        if now != encoded.meta:  # record the new times: the next start then need not read the files
            encoded.meta = now
            with suppress(OSError, UserError):
                write_json(path, now)
        return encoded
    except (OSError, ValueError) as error:
        # Logs the cause, not the UserError's text, which asks the user to act, though nothing is to be done.
        reason = error.__cause__ or error
        log.warning("%s cannot be used (%s). Encoding again.", folder, reason)
        return None


def grow(
    folder: str | Path,
    origin: Origin,
    encoder: Encoder,
    read: Callable[[int, FilterReport], Iterator[Any]],
    ids: Any,
    max_length: int | None = None,
    processes: int = 1,
    hear: Callable[[int], Any] = lambda done: None,
) -> Encoded:
    """Encodes items into shards in `folder`, resuming after those that an interrupted earlier call has written.

    read: yields the items from a number on; bad ones are counted in the report. ids: the dtype of subword ids.
    hear: called with the number of items done. Raises: UserError if another process encodes into `folder`.
    """
    target = check_folder_name(folder)
    part = target.with_name(f"{target.name}.part")
    with (
        explained(target),
        only_one(part, f"{part}: another process encodes this text. Wait for it, or choose another folder."),
    ):
        growing = _Growing(part, origin, encoder, ids, max_length)
        reader = FilterReport.from_dict(growing.meta.get("reader", FilterReport().to_dict()))
        reader.first = growing.meta.get("first", {}).get("reader", {})
        try:
            with in_processes(encoder, processes) as encode:
                chunks = _chunks(read(growing.meta["read"], reader), lambda: hear(growing.meta["read"]))
                while shard := list(islice(chunks, _SHARD)):
                    growing.add_shard(shard, encode(shard), hear)
                    origin.check_unchanged()
                    growing.note(reader)
            origin.check_unchanged()
            growing.note(reader)
            reader.add(growing.report)
            reader.write_dropped(part / DROPPED)
        except BaseException:
            if not (part / META).is_file():
                shutil.rmtree(part, ignore_errors=True)
            raise
        take_place(part, target)
        for path in (*target.glob("*.hashes.npy"), target / ".lock"):
            path.unlink(missing_ok=True)
        return Encoded(target)


def _chunks(items: Iterable[Any], hear: Callable[[], Any]) -> Iterator[list[Any]]:
    """Yields chunks of `_CHUNK` items, or of fewer long ones. Calls `hear`, which may raise, before each full one."""
    chunk: list[Any] = []
    characters = 0
    for item in items:
        chunk.append(item)
        characters += len(item) if isinstance(item, str) else sum(map(len, item))
        if len(chunk) == _CHUNK or characters > _LONG:
            hear()
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def origin_of(spec: Spec, root: str | Path, tokenizers: Tokenizers, **settings: Any) -> Origin:
    """Returns the Origin of encoded data, by which changed inputs are noticed: files (or a data set's name), keys of
    the corpus, tokenizers, text processing and `settings`."""
    processing = {side: asdict(value) for side, value in tokenizers.processing.items()}
    if (suffix := format_of(Path(spec.path or ""))) in (".csv", ".json"):
        settings["format"] = suffix  # the same bytes are read as other rows in a .tsv than in a .csv
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
    overlap: Overlap | None = None,
    behind: Any = None,
) -> Encoded:
    """Reads, filters and encodes a corpus into `folder`; returns what is there if it has the same text and settings.

    Training data: give a filter, `max_length` (subwords), and placeholders if any (placeholders.py). Development data:
    give none, every item stays.
    Before the source stand `spec.tag` and, if the tokenizer has codes, that of `spec.languages`' target; of text of one
    language `spec.side` must say whose vocabulary it gets.
    processes: that encode; None: one for each core. The bytes are the same for any number.
    check: read all of the text, and of what is there, to see whether it is the same.
    overlap: counts the pairs of other sets in the corpus, where it is read.
    behind: finds the texts behind the sources (`Encoder`), at most `max_length` subwords with these.

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
        how |= tokenizers.told()
    made: dict[str, Any] = {"placeholders": dict(placeholders)} if placeholders else {}
    made |= {"behind": repr(behind)} if behind else {}
    origin = origin_of(spec, root, tokenizers, filter=repr(pair_filter), max_length=max_length, **made, **how)
    if there := reuse(folder, origin, check):
        return there

    def read(done: int, report: FilterReport) -> Iterator[Any]:
        skip = done + report.dropped.total() if spec.dataset and spec.limit is None else 0
        if not skip:  # all lines are read again, so that their counts begin at 0
            report.first.clear()
            report.dropped.clear()
        items = _items(spec, root, report, skip)
        return islice(overlap.watched(items) if overlap else items, 0 if skip else done, None)

    sides = tokenizers.sides(how.get("language"), tag)
    own = list(sides.values()) if side is None else [sides[side]]
    encoder = Encoder(own, pair_filter, dict(placeholders), behind, longest=max_length or 0)
    ids = np.uint16 if max(map(entries_of, tokenizers.distinct())) <= 1 << 16 else np.int32
    total = size_of(spec, root, read=True) if progress else None
    hear = (lambda done: progress(done, total)) if progress else lambda done: None
    encoded = grow(folder, origin, encoder, read, ids, max_length, processes or cores(), hear)
    if progress:
        progress(encoded.meta["read"], encoded.meta["read"])
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
    """Yields the raw pairs (or sentences) of a corpus that pass the filter, with `placeholders` put in, as they are
    encoded; tokenizers are trained on them. share: the part of the items to take, chosen by hashes of their numbers."""
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
            said = "%s: %.0f%% of its %s %s are dropped: %s (%s). Is that meant? See data.filters and data.max_length."
            log.warning(said, spec, 100 * count / read, f"{read:,}", encoded.unit, reason, f"{count:,}")
