"""Filters pairs and sentences by length, length ratio, duplicates and empty sides; counts what is dropped, and why.

Also counts the pairs of scored sets that a training corpus holds (`Overlap`), and leaves them out (`HeldOut`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_SHOWN = 3  # most pairs of a scored set that a message shows
# The file of dropped pairs; the most pairs of each reason, and the most characters of a side, that are recorded.
DROPPED, MOST_DROPPED, _LONGEST = "dropped.tsv", 100, 500
_MOST = 4096  # most items that are filtered in one call of `passing`
_WORD = re.compile(r"[^\W_]+")
_NO_LETTERS = bytes(sign for sign in range(128) if not chr(sign).isalnum())


@dataclass
class FilterReport:
    """Counts of pairs: read, kept, and dropped for each reason, with the first pairs of each reason."""

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    first: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)  # reason -> first MOST_DROPPED pairs

    @property
    def read(self) -> int:
        """Returns the number of pairs read: those kept and those dropped."""
        return self.kept + self.dropped.total()

    def drop(self, reason: str, *example: str) -> None:
        """Counts a dropped pair under `reason`. example: its sides; the first ones of each reason are recorded."""
        if reason not in self.dropped:
            self.examples[reason] = _shorten(" ||| ".join(example))
        self.dropped[reason] += 1
        if len(some := self.first.setdefault(reason, [])) < MOST_DROPPED:
            some.append(tuple(text[:_LONGEST] for text in example))

    def add(self, other: FilterReport) -> None:
        """Adds the counts and first pairs of `other`, a report on text that follows this report's text."""
        self.kept += other.kept
        self.dropped.update(other.dropped)
        self.examples = {**other.examples, **self.examples}
        for reason, pairs in other.first.items():
            some = self.first.setdefault(reason, [])
            some += pairs[: MOST_DROPPED - len(some)]

    def write_dropped(self, path: Path) -> bool:
        """Writes the first dropped pairs, if any, as rows of reason, source and target; returns whether it wrote."""
        lines = ("\t".join(map(_in_a_cell, (reason, *texts))) for reason, some in self.first.items() for texts in some)
        return bool(self.first) and bool(write_text(path, "".join(f"{line}\n" for line in lines)))

    def table(self, unit: str = "pairs") -> Table:
        """Returns the report as a table: number and share of items read, kept, and dropped by reason; an example."""
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
        """Returns a report with the counts that `to_dict` returned, and empty examples."""
        dropped = Counter(values["dropped"])
        return cls(values["kept"], dropped, dict.fromkeys(dropped, ""))


class Seen:
    """A set of 64-bit hashes in sorted arrays: 8 bytes each, and at most a 64th more while two arrays are merged.

    Two of n different pairs have the same hash, so that the second is dropped wrongly, with a probability below
    n^2 / 2^65: 1 in 90,000 for 20 million pairs, 1 in 3,700 for 100 million.
    """

    def __init__(self) -> None:
        # Element i: sorted arrays of the hashes whose first six bits are the number i.
        self._parts: list[list[np.ndarray]] = [[] for _ in range(64)]

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Adds hashes, uint64 (n,); returns which of them are new, bool (n,): of equal ones at most the first."""
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
                joined.sort(kind="stable")  # fast: NumPy's stable sort merges two sorted runs
                arrays[-2:] = [joined]
        return new


@dataclass(frozen=True)
class PairFilter(Section):
    """A filter for training corpora: drops pairs and sentences that break one of its rules.

    Call it with pairs or sentences: it yields those that stay, one by one, in order; rules that compare two sides do
    not apply to sentences. Words are `words.words`: of a side without spaces characters.
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
        """Yields the pairs, or sentences, that pass all rules; `report` is complete after the last of them."""
        report = report if report is not None else FilterReport()
        seen, iterator, size = Seen(), iter(items), 1
        while some := list(islice(iterator, size)):
            size = min(2 * size, _MOST)  # 1 at first, so that a slow stream's first item is yielded at once
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
        """Returns the indices of items that pass all rules but duplicates, and if `drop_duplicates` their hashes."""
        passed = []
        for number, item in enumerate(items):
            if reason := self.reason(*texts_of(item)):
                report.drop(reason, *texts_of(item))
            else:
                passed.append(number)
        hashed = passed if self.drop_duplicates else []
        return passed, np.frombuffer(b"".join(_hash(texts_of(items[number])) for number in hashed), np.uint64)

    def reason(self, *texts: str) -> str | None:
        """Returns the reason to drop a pair or a sentence, or None; does not look for duplicates."""
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


def plain(text: str) -> str:
    """Returns a text in lower case without punctuation: sentences with the same result count as the same."""
    return " ".join(_WORD.findall(text.lower()))


@dataclass(frozen=True)
class HeldOut(PairFilter):
    """A filter that also drops pairs one side of which is also a side of a development or test set, by `plain`."""

    digest: str = ""  # digest of the development and test sets
    # The sources and the targets of the sets, each as `plain` returns it.
    held: tuple[frozenset[str], ...] = field(default=(), repr=False)

    def reason(self, *texts: str) -> str | None:
        """Returns the reason to drop a pair or a sentence, or None; only pairs are compared with the scored sets."""
        if len(texts) > 1 and any(plain(text) in own for text, own in zip(texts, self.held)):
            return "in a development or test set"
        return super().reason(*texts)


class Overlap:
    """Counts the sentences and pairs of `sets` that also occur in a corpus, as the corpus is streamed."""

    def __init__(self, sets: Mapping[str, Sequence[Pair]]) -> None:
        self.sets = sets
        self._places: tuple[dict[str, list[tuple[str, int]]], ...] = (defaultdict(list), defaultdict(list))
        for name, pairs in sets.items():
            for number, pair in enumerate(pairs):
                for text, places in zip(map(plain, pair), self._places):
                    if text:
                        places[text].append((name, number))
        self._letters = [set(map(_letters, places)) for places in self._places]
        self._found: dict[str, list[set[int]]] = defaultdict(lambda: [set() for _ in range(6)])

    def watched(self, corpus: Iterable[Pair]) -> Iterator[Pair]:
        """Yields the pairs of a corpus unchanged; counts which pairs of the sets occur in it, for `messages`."""
        sources, targets = self._letters
        for pair in corpus:
            if _letters(pair[0]) in sources or _letters(pair[1]) in targets:
                self._count(pair)
            yield pair

    def _count(self, pair: Pair) -> None:
        hits = [set(places.get(plain(text), ())) for text, places in zip(pair, self._places)]
        for name, number in hits[0] | hits[1]:
            same = [(name, number) in of_side for of_side in hits]
            exact = [text.strip() == own.strip() for text, own in zip(pair, self.sets[name][number])]
            for numbers, is_one in zip(self._found[name], (*exact, all(exact), *same, all(same))):
                numbers.update([number] if is_one else [])

    def messages(self) -> Iterator[str]:
        """Yields a message for each set that shares sentences with the corpus: how many of its sources, targets and
        pairs, exactly and by `plain`; resets the counts."""
        for name, kinds in self._found.items():
            counts = ["{:,} sources, {:,} targets, {:,} pairs".format(*map(len, own)) for own in (kinds[:3], kinds[3:])]
            some = sorted(kinds[5] or kinds[3] | kinds[4])[:_SHOWN]
            shown = "; ".join(f"{' ||| '.join(self.sets[name][number]):.100}" for number in some)
            yield (
                f"holds, of the {len(self.sets[name]):,} pairs of {name}: exactly {counts[0]}; without case and "
                f"punctuation {counts[1]}, as: {shown}"
            )
        self._found.clear()


def _letters(text: str) -> bytes:
    """Returns the ASCII letters and digits of a text in small letters: equal where `plain` is, and ten times faster."""
    return text.lower().encode("ascii", "ignore").translate(None, _NO_LETTERS)


def texts_of(item: Item) -> tuple[str, ...]:
    """Returns a pair as it is, (source, target), and a sentence as the tuple (sentence,)."""
    return (item,) if isinstance(item, str) else item


def _hash(texts: tuple[str, ...]) -> bytes:
    # The first text's length is hashed too, so that ("ab", "c") and ("a", "bc") differ.
    text = f"{len(texts[0])} {''.join(texts)}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _in_a_cell(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _shorten(text: str) -> str:
    text = text.encode("unicode_escape", "backslashreplace").decode() if not text.isprintable() else text
    return text if len(text) <= _EXAMPLE_WIDTH else text[: _EXAMPLE_WIDTH - 3] + "..."
