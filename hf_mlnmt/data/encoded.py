"""Encoded text on disk, pairs or one language, memory-mapped: larger than memory, encoded once and used again.

`encode_corpus` reads, filters and encodes, unless the folder holds the result already.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from transformers import PreTrainedTokenizerFast

from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.filters import FilterReport, Pair, PairFilter
from hf_mlnmt.data.lines import format_of
from hf_mlnmt.data.text import TextSide, TextSpec, read_text
from hf_mlnmt.data.tokenizer import Tokenizers, check_tag, languages_of
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_folder, size_and_crc, write_json
from hf_mlnmt.made_from import Digest

log = logging.getLogger(__name__)
_CHUNK = 2000
_FORMAT = 3
_MUCH = 0.2  # of a corpus
_OPEN = 200  # sides of corpora, two files each: a process may often open 1,024
SIDES = ("source", "target")
Sentences = list[np.ndarray]


class Rows(Sequence[np.ndarray]):
    """Arrays of different lengths, one after the other in one array, `values` (total,); lengths: int64 (rows,)."""

    def __init__(self, values: np.ndarray, lengths: np.ndarray) -> None:
        self.values, self.lengths = values, lengths
        self.starts = np.cumsum(lengths) - lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        start = self.starts[index]
        return self.values[start : start + self.lengths[index]]


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
        joined = Rows(*(np.concatenate([getattr(row, of) for row in rows]) for of in ("values", "lengths")))
        lengths = joined.lengths[order]
        columns[name] = Rows(joined.values[places(joined.starts[order], lengths)], lengths)
    return Examples(columns)


class Encoded:
    """Sentences of int32 ids in a folder: <side>.bin and <side>_offsets.npy of each side, meta.json.

    Item i is {"input_ids": (source,), "labels": (target,)} of pairs, {"input_ids": (length,)} of text of one language:
    arrays of their own that end with </s>. `source_lengths` and `target_lengths`: int32 arrays (items,), of text both
    the same. Opening it reads every byte once, to compare the files with the checksums in meta.json.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        try:
            self.meta = json.loads((self.folder / "meta.json").read_text(encoding="utf-8"))
            file = (self.folder / "meta.json").stat()
            self._written = file.st_ino, file.st_mtime_ns  # a folder that is made again is another one
            self.report = FilterReport.from_dict(self.meta["report"])
            self._check_files()
            self.sides = SIDES if "text.bin" not in self.meta["checksums"] else ("text",)
            self.unit = "pairs" if len(self.sides) > 1 else "sentences"  # what one item is, in the plural
            lengths = [np.diff(self._side(side)[0]).astype(np.int32) for side in self.sides]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{folder}: no intact encoded text ({error}). Delete this folder and run again.") from error
        self.source_lengths, self.target_lengths = lengths[0], lengths[-1]

    def _check_files(self) -> None:
        for name, expected in self.meta["checksums"].items():
            size, crc = size_and_crc(self.folder / name)
            if size != expected[0]:
                raise ValueError(f"{name} has {size:,} bytes, {expected[0]:,} expected")
            if crc != expected[1]:
                raise ValueError(f"{name} is damaged: its checksum is not that of what was written")

    def _side(self, side: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns where each sentence of a side begins and the last one ends, and all ids."""
        return _mapped(self.folder, side, self._written)

    def __len__(self) -> int:
        return len(self.source_lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)} {self.unit}")
        index = int(index) % len(self)
        item = {}
        for name, side in zip(("input_ids", "labels"), self.sides):
            offsets, ids = self._side(side)
            item[name] = np.array(ids[offsets[index] : offsets[index + 1]])
        return item

    def gather(self, indices: np.ndarray) -> Examples:
        """Returns the items at these indices, copied from the file at once."""
        columns = {}
        for name, side in zip(("input_ids", "labels"), self.sides):
            offsets, ids = self._side(side)
            starts = offsets[indices]
            lengths = offsets[indices + 1] - starts
            columns[name] = Rows(ids[places(starts, lengths)], lengths)
        return Examples(columns)

    @classmethod
    def build(
        cls,
        items: Iterable[Pair] | Iterable[str],
        tokenizers: Tokenizers,
        folder: str | Path,
        max_length: int | None = None,
        language: str | None = None,
        fingerprint: str | None = None,
        report: FilterReport | None = None,
        tag: str | None = None,
        side: TextSide | None = None,
    ) -> Self:
        """Encodes raw pairs, or texts, into `folder`, a chunk at a time, and opens it; it appears when it is complete.

        max_length: subwords with </s> and language code; an item with a longer side is dropped and counted.
        language: of the target; its code `<2de>` is put before every source. tag: a token before every source.
        fingerprint: what the result depends on (`fingerprint_of`): if `folder` holds that already, nothing is read.
        report: of the filter that `items` come through; it is completed, and stored with the data.
        side: of texts, whose vocabulary they get.
        """
        if fingerprint is not None and (there := cls.reuse(folder, fingerprint)):
            return there

        def encode(chunk: list[Any]) -> list[Sentences]:
            if side is not None:
                return [tokenizers.encode_source(chunk) if side == "source" else tokenizers.encode_target(chunk)]
            sources, targets = zip(*chunk)
            return [tokenizers.encode_source(sources, language, tag), tokenizers.encode_target(targets)]

        report = report if report is not None else FilterReport()
        with atomic_folder(folder) as temporary:
            _write(_chunks(items, encode, max_length, report), ("text",) if side else SIDES, temporary)
            files = sorted(path.name for path in temporary.iterdir())
            meta = {"format": _FORMAT, "fingerprint": fingerprint, "report": report.to_dict()}
            meta["checksums"] = {name: size_and_crc(temporary / name) for name in files}
            write_json(temporary / "meta.json", meta)
        return cls(folder)

    @classmethod
    def reuse(cls, folder: str | Path, fingerprint: str) -> Self | None:
        """Returns the data in `folder` if they are whole and of this fingerprint, else None."""
        path = Path(folder) / "meta.json"
        if not path.is_file():
            return None
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
            if (meta["fingerprint"], meta["format"]) != (fingerprint, _FORMAT):
                return None
            return cls(folder)
        except (OSError, ValueError, TypeError, KeyError) as error:
            reason = error.__cause__ or error  # a UserError tells the user what to do, but here nothing is to be done
            log.warning("%s cannot be used (%s). Encoding again.", folder, reason)
            return None


@lru_cache(_OPEN)
def _mapped(folder: Path, side: str, written: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Maps the files of a side into memory; of thousands of corpora only those used last are open at a time."""
    offsets = np.asarray(np.load(folder / f"{side}_offsets.npy", mmap_mode="r"))
    return offsets, np.asarray(np.memmap(folder / f"{side}.bin", np.int32, "r")) if offsets[-1] else np.zeros(
        0, np.int32
    )


def _chunks(
    items: Iterable[Any], encode: Callable[[list[Any]], list[Sentences]], max_length: int | None, report: FilterReport
) -> Iterator[list[Sentences]]:
    """Yields chunks of encoded items, a list of sentences for each side; completes the report."""
    iterator, kept = iter(items), 0
    while chunk := list(islice(iterator, _CHUNK)):
        sides = encode(chunk)
        longest = [max(map(len, sentences)) for sentences in zip(*sides)]
        stays = [max_length is None or length <= max_length for length in longest]
        for item, stay in zip(chunk, stays):
            if not stay:
                report.drop(f"longer than {max_length} subwords", *([item] if isinstance(item, str) else item))
        kept += sum(stays)
        yield [[ids for ids, stay in zip(side, stays) if stay] for side in sides]
    report.kept = kept


def _write(chunks: Iterable[Sequence[Sentences]], sides: Sequence[str], folder: Path) -> None:
    """Writes the ids of each side in one file, and where each sentence begins and the last one ends."""
    lengths: dict[str, list[np.ndarray]] = {side: [np.zeros(1, np.int64)] for side in sides}
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{side}.bin").open("wb")) for side in sides]
        for chunk in chunks:
            for side, file, sentences in zip(sides, files, chunk):
                lengths[side].append(np.array([len(ids) for ids in sentences], np.int64))
                if sentences:
                    file.write(np.concatenate(sentences).astype(np.int32).tobytes())
    for side in sides:
        np.save(folder / f"{side}_offsets.npy", np.cumsum(np.concatenate(lengths[side])))


def fingerprint_of(spec: CorpusSpec | TextSpec, root: str | Path, tokenizers: Tokenizers, **settings: Any) -> str:
    """Returns a hash of what encoded data depends on: files (of a data set its name) and how they are read, tokenizers,
    processing, settings."""
    digest = Digest()
    for path in spec.local_files(root):
        if path.is_file():
            digest.file(path)
        digest.text("\0")
    processing = {side: asdict(value) for side, value in tokenizers.processing.items()}
    if (suffix := format_of(Path(spec.path or ""))) in (".csv", ".json"):
        settings["format"] = suffix  # the same bytes are other rows in a .tsv and a .csv
    parts = [spec.reading(), processing, settings, identity_of(tokenizers.source), identity_of(tokenizers.target)]
    return digest.value(parts).hex()


def identity_of(tokenizer: Any, around: bool = True) -> str:
    """Returns text that is the same for two tokenizers if they give the same ids; without `around`, if those of words
    are the same, whatever they put around a text (text.py)."""
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        text = tokenizer.backend_tokenizer.to_str()
        return text if around else json.dumps({**json.loads(text), "post_processor": None}, sort_keys=True)
    return json.dumps([type(tokenizer).__name__, tokenizer.get_vocab()], sort_keys=True)


def encode_corpus(
    spec: CorpusSpec | TextSpec,
    root: str | Path,
    tokenizers: Tokenizers,
    folder: str | Path,
    pair_filter: PairFilter | None = None,
    max_length: int | None = None,
) -> Encoded:
    """Reads, filters and encodes a corpus into `folder`; what is there already of the same files and settings is used.

    Training data: give a filter and `max_length` (subwords). Development data: give neither, every item stays.
    Before the source stand `spec.tag` and, if the tokenizer has codes, that of `spec.languages`' target; of text of one
    language `spec.side` must say whose vocabulary it gets.

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
    key = fingerprint_of(spec, root, tokenizers, filter=repr(pair_filter), max_length=max_length, **how)
    report = FilterReport()
    items = filtered(spec, root, pair_filter, report)
    check_tag(tokenizers.source, tag)
    encoded = Encoded.build(
        items, tokenizers, folder, max_length, fingerprint=key, report=report, tag=tag, side=side, **how
    )
    _check_what_is_left(encoded, spec)
    return encoded


def filtered(
    spec: CorpusSpec | TextSpec,
    root: str | Path,
    pair_filter: PairFilter | None = None,
    report: FilterReport | None = None,
) -> Iterator[Any]:
    """Yields the raw pairs of a corpus, or texts of one language, that pass the filter, as a stream; also what a
    tokenizer is trained on."""
    items: Any = read_text(spec, root, report) if isinstance(spec, TextSpec) else read_pairs(spec, root, report)
    yield from pair_filter(items, report) if pair_filter else items


def _check_what_is_left(encoded: Encoded, spec: CorpusSpec | TextSpec) -> None:
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
