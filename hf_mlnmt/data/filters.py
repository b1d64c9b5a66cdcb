"""Filters for pairs and for text of one language: length, ratio, duplicates, empty sides; counted and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import write_text
from hf_mlnmt.common.keys import Section, key
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.words import words

Pair = tuple[str, str]
Item = TypeVar("Item", Pair, str)
_EXAMPLE_WIDTH = 60
DROPPED, MOST_DROPPED, _LONGEST = "dropped.tsv", 100, 500  # pairs of a reason that are shown, characters of a side
_MOST = 4096  # items that are looked at together


@dataclass
class FilterReport:
    """Counts of pairs: read, kept, and dropped for each reason, with the first pairs of each reason."""

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    first: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)  # MOST_DROPPED of each reason

    @property
    def read(self) -> int:
        """Returns pairs kept and dropped."""
        return self.kept + self.dropped.total()

    def drop(self, reason: str, *example: str) -> None:
        """Counts one dropped pair, of which `example` are the sides."""
        if reason not in self.dropped:
            self.examples[reason] = _shorten(" ||| ".join(example))
        self.dropped[reason] += 1
        if len(some := self.first.setdefault(reason, [])) < MOST_DROPPED:
            some.append(tuple(text[:_LONGEST] for text in example))

    def add(self, other: FilterReport) -> None:
        """Adds the counts of another report, on text that follows this report's."""
        self.kept += other.kept
        self.dropped.update(other.dropped)
        self.examples = {**other.examples, **self.examples}
        for reason, pairs in other.first.items():
            some = self.first.setdefault(reason, [])
            some += pairs[: MOST_DROPPED - len(some)]

    def write_dropped(self, path: Path) -> bool:
        """Writes the first dropped pairs of each reason, reason, source and target with tabs between them, if any."""
        lines = ("\t".join(map(_in_a_cell, (reason, *texts))) for reason, some in self.first.items() for texts in some)
        return bool(self.first) and bool(write_text(path, "".join(f"{line}\n" for line in lines)))

    def table(self, unit: str = "pairs") -> Table:
        """Returns the report: counts, shares, the first example of each reason."""
        rows = [(f"{unit} read", self.read, ""), (f"{unit} kept", self.kept, "")]
        rows += [(f"dropped: {reason}", count, self.examples[reason]) for reason, count in self.dropped.most_common()]
        return Table(
            [unit, Number("number"), Number("share"), "first example"],
            [(name, f"{count:,}", f"{count / max(self.read, 1):.2%}", example) for name, count, example in rows],
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the counts for JSON, without the examples' text."""
        return {"read": self.read, "kept": self.kept, "dropped": dict(self.dropped)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FilterReport:
        """Back from `to_dict` (the examples are gone)."""
        dropped = Counter(values["dropped"])
        return cls(values["kept"], dropped, dict.fromkeys(dropped, ""))


class Seen:
    """A set of 64-bit hashes in sorted arrays: 8 bytes each, and while two arrays are joined up to a 64th more.

    Two of n different pairs have the same hash, so that the second is dropped wrongly, with a probability below
    n^2 / 2^65: 1 in 90,000 for 20 million pairs, 1 in 3,700 for 100 million.
    """

    def __init__(self) -> None:
        self._parts: list[list[np.ndarray]] = [[] for _ in range(64)]  # arrays of hashes with the same first six bits

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Adds hashes (n,) uint64; returns which were not there before, of equal ones the first: bool (n,)."""
        values, firsts = np.unique(hashes, return_index=True)
        starts = np.searchsorted(values, np.arange(64, dtype=np.uint64) << np.uint64(58)).tolist()
        new = np.zeros(len(hashes), bool)
        for arrays, start, end in zip(self._parts, starts, [*starts[1:], len(values)]):
            part = values[start:end]
            fresh = np.ones(len(part), bool)
            for array in arrays if len(part) else ():
                fresh &= array[np.minimum(np.searchsorted(array, part), len(array) - 1)] != part
            if not fresh.any():
                continue
            new[firsts[start:end][fresh]] = True
            arrays.append(part[fresh])
            while len(arrays) > 1 and len(arrays[-2]) < 4 * len(arrays[-1]):
                joined = np.concatenate(arrays[-2:])
                joined.sort(kind="stable")  # a stable sort is quick where two arrays are sorted
                arrays[-2:] = [joined]
        return new


@dataclass(frozen=True)
class PairFilter(Section):
    """Rules for what is dropped from a training corpus.

    Call it with pairs or sentences: it yields those that stay, one by one, in order; rules of two sides ask nothing of
    sentences. Words are `words.words`: of a side without spaces characters.
    Duplicates are known by a hash (`Seen`): 8 bytes of memory for each distinct pair.
    Never use it on a development or test set: the score would be of another set.
    """

    min_length: int = key(1, "The fewest words of a side; of a side without spaces (Chinese, Thai), characters.")
    max_length: int | None = key(None, "The most words of a side.")
    max_ratio: float | None = key(
        None, "The longer side's words over the shorter's, both plus one so that short sentences are spared; 1 or more."
    )
    max_word: int | None = key(None, "The most characters of a word, against links and binary junk.")
    drop_empty: bool = key(True, "Drop pairs with an empty side.")
    drop_duplicates: bool = key(False, "Drop a pair that was there before.")
    drop_identical: bool = key(False, "Drop a pair whose target is its source.")

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < self.min_length:
            raise UserError(f"filter: max_length {self.max_length} is below min_length {self.min_length}.")
        if self.max_ratio is not None and self.max_ratio < 1:
            raise UserError(f"filter: max_ratio (longer side over shorter) must be at least 1, not {self.max_ratio}.")

    def __call__(self, items: Iterable[Item], report: FilterReport | None = None) -> Iterator[Item]:
        """Yields the pairs, or sentences, that stay; `report` is filled on the way, complete after the last of them."""
        report = report if report is not None else FilterReport()
        seen, iterator, size = Seen(), iter(items), 1
        while some := list(islice(iterator, size)):
            size = min(2 * size, _MOST)  # of an endless stream the first ones come at once
            passed, hashes = self.passing(some, report)
            kept = [some[number] for number in passed]
            fresh = seen.add(hashes).tolist() if self.drop_duplicates else [True] * len(kept)
            for item, is_fresh in zip(kept, fresh):
                if not is_fresh:
                    report.drop("duplicate", *texts_of(item))
            for item in compress(kept, fresh):
                report.kept += 1
                yield item

    def passing(self, items: Sequence[Item], report: FilterReport) -> tuple[list[int], np.ndarray]:
        """Returns which items pass all rules but that of duplicates, and with that one their hashes, uint64."""
        passed = []
        for number, item in enumerate(items):
            if reason := self.reason(*texts_of(item)):
                report.drop(reason, *texts_of(item))
            else:
                passed.append(number)
        hashed = passed if self.drop_duplicates else []
        return passed, np.frombuffer(b"".join(_hash(texts_of(items[number])) for number in hashed), np.uint64)

    def reason(self, *texts: str) -> str | None:
        """Returns why a pair, or a sentence, goes, or None; duplicates apart."""
        sides = [words(text) for text in texts]
        least, most = min(map(len, sides)), max(map(len, sides))
        if self.drop_empty and least == 0:
            return "empty" if len(sides) == 1 else "empty side" if most else "both sides empty"
        if 0 < least < self.min_length:
            return f"shorter than {self.min_length} words"
        if self.max_length is not None and most > self.max_length:
            return f"longer than {self.max_length} words"
        if self.max_ratio is not None and (most + 1) / (least + 1) > self.max_ratio:
            return f"length ratio above {self.max_ratio:g}"
        if self.max_word is not None and max(map(len, chain(*sides)), default=0) > self.max_word:
            return f"a word above {self.max_word} characters"
        same = self.drop_identical and len({text.strip() for text in texts}) < len(texts)
        return "target is a copy of the source" if same else None


def texts_of(item: Item) -> tuple[str, ...]:
    """Returns the texts of a pair, or of a sentence."""
    return (item,) if isinstance(item, str) else item


def _hash(texts: tuple[str, ...]) -> bytes:
    # The first length tells "ab" + "c" from "a" + "bc".
    text = f"{len(texts[0])} {''.join(texts)}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _in_a_cell(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _shorten(text: str) -> str:
    text = text.encode("unicode_escape", "backslashreplace").decode() if not text.isprintable() else text
    return text if len(text) <= _EXAMPLE_WIDTH else text[: _EXAMPLE_WIDTH - 3] + "..."
