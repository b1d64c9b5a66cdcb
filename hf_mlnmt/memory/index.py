"""A translation memory: an SQLite index of bilingual files; units are found by their words, and can be added any time.

| file beside `project.tmx` | what it holds | when it is written |
| --- | --- | --- |
| `project.tmx.en-de.memory` | the file's units and where their words stand | built when the file is new or changed |
| `project.tmx.en-de.added` | what was added since, which counts first | by `add`, before it returns |

Both have the same tables. `units`: texts, and keys of 64 bits of the source (`exact`), its neighbours (`context`, 0 for
none) and, if it has numbers or placeholders, of the source without these (`skeleton`). `postings`: for each of 2^21
features, which are the words of sources and pairs of neighbours, hashed, the numbers of the units that have it, in
blocks. A look-up reads the rarest features of a text, rates the units by what they share and by their lengths, and
compares the words of the best ones.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sqlite3
import threading
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from rapidfuzz.distance import Levenshtein

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_path, cache_folder, explained, file_name
from hf_mlnmt.common.languages import language_tag
from hf_mlnmt.common.made_from import Origin
from hf_mlnmt.data.bilingual import BILINGUAL, Unit, UnitReport, pair_of_file, read_units
from hf_mlnmt.data.formats import format_of
from hf_mlnmt.memory.lexicon import Lexicon, sampled
from hf_mlnmt.memory.matching import CONTEXT, EXACT, LEAST, Match, fitted, hashes_of, plain, skeleton, words

log = logging.getLogger(__name__)
VERSION = 3
_FEATURES = 1 << 20  # number of features of words; pairs of neighbouring words have as many more
_BLOCKS = 1 << 12  # most blocks of a feature's postings, each a row with the key feature * _BLOCKS + block
_AT_ONCE = 3 << 20  # words whose features are sorted together: 48 MiB
_READ = 50_000  # most postings that a look-up reads; those of the rarest feature are always read
_COMPARED = 48  # most units whose words a look-up compares with the text's
_LONGEST = 255  # greatest length in words that is stored; longer units count as this long
_KINDS = ".tmx, .xliff, .po, .mo, .tsv, .csv, a folder or zip of such"
_OWN = (".memory", ".added", ".lock", ".part")
_TABLES = """
CREATE TABLE units (id INTEGER PRIMARY KEY, exact INTEGER, context INTEGER, skeleton INTEGER, source TEXT, target TEXT,
    changed TEXT, place TEXT, words TEXT);
CREATE UNIQUE INDEX by_text ON units (exact, context);
CREATE TABLE postings (key INTEGER PRIMARY KEY, units BLOB);
CREATE TABLE about (name TEXT PRIMARY KEY, value BLOB);
"""
_BY_SKELETON = "CREATE INDEX by_skeleton ON units (skeleton) WHERE skeleton IS NOT NULL"
_MORE = """INSERT INTO postings VALUES (?, ?)
    ON CONFLICT (key) DO UPDATE SET units = CAST(units || excluded.units AS BLOB)"""
_COLUMNS = "source, target, context, changed, place, words"


def key_of(*texts: str) -> int:
    """Returns a hash of texts, in this order: a signed integer of 64 bits."""
    return int.from_bytes(blake2b("\0".join(texts).encode(), digest_size=8).digest(), "little", signed=True)


def context_of(before: str | None, after: str | None) -> int:
    """Returns the hash of the texts before and after a segment; 0 for a segment without both."""
    return key_of(plain(before or ""), plain(after or "")) if before or after else 0


def _features(hashes: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Returns, sorted and each once, feature << 32 | unit of words (hashes) in the order of their units (numbers)."""
    near, shift, size = np.flatnonzero(units[1:] == units[:-1]), np.uint64(32), np.uint64(_FEATURES)
    found = np.empty(len(units) + len(near), np.uint64)
    found[: len(units)] = hashes % _FEATURES
    pairs = hashes[near].astype(np.uint64) * np.uint64(0x9E3779B1) + hashes[near + 1]
    found[len(units) :] = (pairs * np.uint64(0x85EBCA6B) >> np.uint64(12)) % size + size
    found <<= shift
    found[: len(units)] |= units
    found[len(units) :] |= units[near]
    found.sort()
    new = np.ones(len(found), bool)
    np.not_equal(found[1:], found[:-1], out=new[1:])
    return found[new]


def _features_of(found: Sequence[str]) -> list[int]:
    """Returns the features of the words of a text."""
    hashes = hashes_of(found)
    return (_features(hashes, np.zeros(len(hashes), np.uint32)) >> np.uint64(32)).tolist()


class Index:
    """Reads and writes the units of one SQLite file, each thread by its own connection. `fixed`: only reads them."""

    def __init__(self, path: Path, fixed: bool) -> None:
        self.path, self.fixed, self._own = path, fixed, threading.local()

    @property
    def connection(self) -> sqlite3.Connection:
        """Returns this thread's connection; unless `fixed`, makes a missing file, with its tables."""
        if not hasattr(self._own, "connection"):
            address = self.path.resolve().as_uri() + ("?mode=ro&immutable=1" if self.fixed else "?mode=rwc")
            self._own.connection = sqlite3.connect(address, uri=True, timeout=60, isolation_level=None)
            if not self.fixed:
                with self.changing() as connection:
                    if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                        for statement in (*_TABLES.split(";")[:-1], _BY_SKELETON):
                            connection.execute(statement)
        return self._own.connection

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Runs a block as a transaction: its changes are on disk afterwards; an exception undoes all of them."""
        connection = self.connection
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        with connection:  # commits; rolls back after an exception
            yield connection

    def about(self, name: str) -> Any:
        """Returns the value that the table `about` has for a name, or None."""
        row = self.connection.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return row and row[0]

    def rows(self, where: str, values: Sequence[Any], most: int = 1000) -> list[Any]:
        """Returns (source, target, context, changed, place, words) of units that `where` selects, newest first."""
        order = f"ORDER BY changed DESC, id DESC LIMIT {most}"
        return self.connection.execute(f"SELECT {_COLUMNS} FROM units WHERE {where} {order}", values).fetchall()

    def _postings(self, what: str, features: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yields (feature, value of `what`) for each block of postings of some features."""
        joined = f"json_each(?) CROSS JOIN postings AS p ON p.key BETWEEN value AND value + {_BLOCKS - 1}"
        starts = json.dumps([feature * _BLOCKS for feature in features])
        for key, value in self.connection.execute(f"SELECT p.key, {what} FROM {joined}", (starts,)):
            yield key // _BLOCKS, value

    def near(self, found: Sequence[str]) -> list[Any]:
        """Returns the rows of the units that share most features with the words `found` of a text; rare features count
        more; leaves out units whose length alone makes a similarity of LEAST percent impossible."""
        number = self.connection.execute("SELECT max(id) FROM units").fetchone()[0]
        if not found or not number:
            return []
        if getattr(self._own, "number", None) != number:
            self._own.number, self._own.marks = number, np.zeros(number + 1, np.int32)
            self._own.scores = np.zeros(number + 1, np.float32)
            self._own.lengths = np.frombuffer(b"\0" + self.about("lengths"), np.uint8).astype(np.float32)
        sizes, weights, read = Counter[int](), dict[int, float](), 0
        for feature, size in self._postings("length(units) / 4", _features_of(found)):
            sizes[feature] += size
        for feature, size in sorted(sizes.items(), key=lambda each: each[1]):
            if weights and read + size > _READ:
                break
            weights[feature], read = math.log(1 + number / size), read + size
        scores, all_units = self._own.scores, [np.zeros(0, np.uint32)]
        for feature, data in self._postings("units", weights):
            units = np.frombuffer(data, np.uint32)
            # another process may have added units since `number` was read
            units = units if self.fixed else units[units <= number]
            scores[units] += weights[feature]
            all_units.append(units)
        units = np.concatenate(all_units)
        places = np.arange(len(units), dtype=np.int32)
        self._own.marks[units] = places
        units = units[self._own.marks[units] == places]  # each unit once
        lengths, own = self._own.lengths[units], min(_LONGEST, len(found))
        rated = scores[units] / np.maximum(lengths, own)
        scores[units] = 0
        possible = np.minimum(lengths, own) >= LEAST / 100 * np.maximum(lengths, own)
        units, rated = units[possible], rated[possible]
        if len(units) > _COMPARED:
            units = units[np.argpartition(rated, -_COMPARED)[-_COMPARED:]]
        return self.rows("id IN (SELECT value FROM json_each(?))", (json.dumps(units.tolist()),))


def _write(connection: sqlite3.Connection, units: Iterable[Unit]) -> int:
    """Writes units, which get newer targets where they are there; returns how many had another one before."""
    known = connection.execute("SELECT value FROM about WHERE name = 'lengths'").fetchone()
    all_words, numbers, lengths, block, again = array("I"), array("I"), bytearray(known[0] if known else b""), 0, 0

    def flush() -> None:
        nonlocal block
        if all_words:
            features = _features(np.frombuffer(all_words, np.uint32), np.frombuffer(numbers, np.uint32))
            data, kinds = memoryview(features.astype(np.uint32).tobytes()), (features >> np.uint64(32)).astype(np.int64)
            starts = [0, *(np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist()]
            rows = zip((kinds[starts] * _BLOCKS + block).tolist(), starts, [*starts[1:], len(kinds)])
            connection.executemany(_MORE, ((key, data[4 * first : 4 * end]) for key, first, end in rows))
        block += 1
        del all_words[:], numbers[:]

    for unit in units:
        source = plain(unit.source)
        keys = key_of(source), context_of(unit.before, unit.after)
        new = source, unit.target, unit.changed or "", str(unit.place or "")
        asked = "SELECT id, changed, target FROM units WHERE exact = ? AND context = ?"
        if old := connection.execute(asked, keys).fetchone():
            again += old[2] != unit.target
            if new[2] >= old[1]:
                changes = "UPDATE units SET source = ?, target = ?, changed = ?, place = ? WHERE id = ?"
                connection.execute(changes, (*new, old[0]))
            continue
        bare, found = skeleton(source), words(source)
        lengths.append(min(_LONGEST, len(found)))
        row = (len(lengths), *keys, None if bare == source else key_of(bare), *new, " ".join(found))
        connection.execute("INSERT INTO units VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        all_words.frombytes(hashes_of(found).tobytes())
        numbers.extend([len(lengths)] * len(found))
        if len(all_words) > _AT_ONCE:
            flush()
    flush()
    connection.execute("INSERT OR REPLACE INTO about VALUES ('lengths', ?)", (bytes(lengths),))
    return again


class TranslationMemory:
    """Looks up translations in one or several bilingual files. Added units are found at once, and kept on disk.

    >>> memory = TranslationMemory("project.tmx", source="en", target="de")
    >>> memory.add("Save all files", "Alle Dateien sichern")
    >>> memory.matches("Save the files")[0].percent
    66

    Of units with the same source the newest is used: one that was added, else the one that was changed last, else the
    one that stands last.

    Raises: UserError for a file that cannot be read, or without a unit in the two languages.
    """

    def __init__(self, *files: str | Path, source: str | None = None, target: str | None = None) -> None:
        """Stores the files; opens them for the two languages if both are given, else `between` does it later."""
        if not files:
            raise UserError(f"memory: name a bilingual file ({_KINDS}).")
        self.files, self.languages = [Path(file) for file in files], tuple[str, ...]()
        self.parts: list[Index] = []  # if several have units with a source, the first one's unit is used
        if source and target:
            self.between(source, target)

    def between(self, source: str | None, target: str | None) -> Self:
        """Opens the memory for two languages, unless it is open already, and returns it. A language that is None is
        read from the first file that names its languages. Raises: UserError where no file does, or one is missing."""
        if self.parts:
            return self
        if not (source and target):
            pair = next(filter(None, map(pair_of_file, self.files)), (None, None))
            source, target = source or pair[0], target or pair[1]
        if not (source and target):
            raise UserError("memory: its languages are not known: say source and target (--from, --to).")
        tags = [language_tag(code) for code in (source, target)]
        self.languages = tuple(code if tag == "und" else tag for code, tag in zip((source, target), tags))
        places = [self._place(file) for file in self.files]
        built = [self._built(file, place) for file, place in zip(self.files, places)]
        added = [Index(place.with_name(f"{place.name}.added"), fixed=False) for place in places]
        self.added = added[0]
        self.parts = [part for part in added if part.path.exists()] + built[::-1]
        return self

    def _place(self, file: Path) -> Path:
        """Returns how the names of a file's index begin: beside it, or in the folder of caches where that is shut."""
        if not file.exists():
            raise UserError(f"{file}: no such file. A memory is a bilingual file ({_KINDS}).")
        if file.is_file() and format_of(file) not in (*BILINGUAL, ".zip"):
            raise UserError(f"{file}: no bilingual file ({_KINDS}).")
        pair = file_name("-".join(self.languages))
        if os.access(file.resolve().parent, os.W_OK):
            return file.resolve().with_name(f"{file.name}.{pair}")
        folder = cache_folder() / "memory"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{file_name(str(file.resolve()))}.{pair}"

    def _built(self, file: Path, place: Path) -> Index:
        """Returns the index of a file, which is built where there is none, or the file has changed."""
        from filelock import FileLock

        inner = sorted(path for path in file.rglob("*") if path.suffix not in _OWN) if file.is_dir() else [file]
        origin, path = Origin([VERSION, *self.languages], inner), place.with_name(f"{place.name}.memory")
        if not self._holds(path, origin):
            with explained(path), FileLock(path.with_name(f".{path.name}.lock")):
                if not self._holds(path, origin):
                    with atomic_path(path) as temporary:
                        self._build(file, temporary, origin)
        return Index(path, fixed=True)

    @staticmethod
    def _holds(path: Path, origin: Origin) -> bool:
        if not path.is_file():
            return False
        index = Index(path, fixed=True)
        with suppress(sqlite3.DatabaseError, ValueError, KeyError, TypeError):
            return origin.holds(json.loads(index.about("made_from")))
        return False

    def _build(self, file: Path, path: Path, origin: Origin) -> None:
        report = UnitReport()
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.executescript(f"PRAGMA journal_mode = OFF; PRAGMA cache_size = -65536; {_TABLES} BEGIN")
            source, target = self.languages
            some = list[tuple[str, str]]()
            again = _write(connection, sampled(read_units(file, source, target, report), some))
            connection.execute("INSERT INTO about VALUES ('lexicon', ?)", (Lexicon.of(some).write(),))
            connection.execute(_BY_SKELETON)
            origin.check_unchanged()
            connection.execute("INSERT INTO about VALUES ('made_from', ?)", (json.dumps(origin.record()),))
            connection.execute("COMMIT")
        finally:
            connection.close()
        twice = f" {again:,} stand there again with another target: the newest counts." if again else ""
        log.warning("%s: %s%s", file, report, twice)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(TranslationMemory, **dict(zip(("source", "target"), self.languages))), tuple(self.files)

    def __repr__(self) -> str:
        """Returns what it holds: the digests of its files, and how many units were added."""
        built = [json.loads(part.about("made_from"))["fingerprint"] for part in self.parts if part.fixed]
        return f"TranslationMemory({', '.join(built)}, {len(self)} units)"

    def __len__(self) -> int:
        return sum(part.connection.execute("SELECT count(*) FROM units").fetchone()[0] for part in self.parts)

    def add(self, source: str, target: str, before: str | None = None, after: str | None = None) -> None:
        """Adds a unit; one that was added with the same source and neighbours gets the new target. The unit is on disk
        when this returns, and is used before all others with its source.

        before, after: the source's neighbours. Raises: UserError for an empty text, or a file that cannot be written.
        """
        for name, text in (("source", source), ("target", target)):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"memory: {name}: {text!r} is no text. Give the source and its translation.")
        self.between(None, None)
        unit = Unit(source, target, before, after, datetime.now(UTC).isoformat(), "", "added")
        try:
            with explained(self.added.path), self.added.changing() as connection:
                _write(connection, [unit])
        except sqlite3.Error as error:
            path = self.added.path
            raise UserError(f"{path}: nothing can be added to it ({error}). Move it away, or mend it.") from error
        if self.added not in self.parts:
            self.parts = [self.added, *self.parts]

    def matches(
        self, text: str, before: str | None = None, after: str | None = None, most: int = 5, others: bool = False
    ) -> list[Match]:
        """Returns the `most` best matches of a text, the best first: units whose source is the text, or differs in
        numbers, addresses, tags and placeholders alone; if there are none, units of LEAST percent or more.

        before, after: the text's neighbours; a unit with the same ones is a context match. others: leaves out units
        whose source is the text, and gives all others 99 percent at most.
        """
        self.between(None, None)
        if not (asked := plain(text)):
            return []
        bare, context, found, matches = skeleton(asked), context_of(before, after), words(asked), dict[str, Match]()
        for part in () if others else self.parts:
            same = part.rows("exact = ?", (key_of(asked),))
            same = sorted(same, key=lambda row: row[2] != context)  # units with the same neighbours first
            for row in [*same, *(part.rows("skeleton = ?", (key_of(bare),), 20) if bare != asked else ())]:
                source, exact = row[0], CONTEXT if row[2] == context != 0 else EXACT
                text, done = (row[1], True) if source == asked else fitted(source, row[1], asked)
                if done and source not in matches and skeleton(source) == bare:
                    matches[source] = Match(exact if source == asked else EXACT, text, source, row[1], row[4])
        for part in self.parts if not matches else ():
            for row in part.near(found):
                near = Levenshtein.normalized_similarity(found, row[5].split(), score_cutoff=LEAST / 100)
                if near * 100 >= LEAST and row[0] not in matches and not (others and row[0] == asked):
                    matches[row[0]] = Match(min(99, math.floor(100 * near + 1e-9)), "", row[0], row[1], row[4])
        chosen = dict[str, Match]()  # translation -> its best match
        for match in sorted(matches.values(), key=lambda match: -match.percent):
            chosen.setdefault(match.text or match.target, match)
        return [self._fitted(match, asked, found) for match in islice(chosen.values(), most)]

    def _fitted(self, match: Match, asked: str, found: Sequence[str]) -> Match:
        """Returns a match with what of its translation fits a text, whose words are `found`."""
        if match.text:
            return match
        text, _ = fitted(match.source, match.target, asked)
        return match._replace(text=self.lexicon.fitting(found, match.source, text))

    @cached_property
    def lexicon(self) -> Lexicon:
        """Returns the largest of the files' lexicons: which words of a source and a target translate each other."""
        found = [part.about("lexicon") for part in self.parts if part.fixed]
        return Lexicon.read(max(found, key=len))


@dataclass(frozen=True)
class MatchesBehind:
    """Finds for each pair of a training corpus the translation of the most similar other source in a memory.

    A share `none` of the pairs gets no match, and a share `other` the match of the pair before, so that a model learns
    to translate without a match and beside a bad one. Which pairs these are follows from their texts.

    Reference: Bulte and Tezcan 2019, "Neural Fuzzy Repair".
    """

    memory: TranslationMemory
    none: float = 0.0
    other: float = 0.0

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Returns a translation for each pair of texts, "" for a pair without a match."""
        found = [self.memory.matches(source, most=1, others=True) for source, _ in pairs]
        texts, draws = (
            [match[0].target if match else "" for match in found],
            [key_of(*pair) / 2**64 + 0.5 for pair in pairs],
        )
        rows = zip(draws, texts, texts[-1:] + texts[:-1], strict=True)
        return [
            "" if draw < self.none else wrong if draw < self.none + self.other else text for draw, text, wrong in rows
        ]
