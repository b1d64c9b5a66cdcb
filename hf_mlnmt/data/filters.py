"""Filters for pairs and for text of one language: length, ratio, duplicates, empty sides; counted and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any, TypeVar

from hf_mlnmt.data.words import words
from hf_mlnmt.errors import UserError
from hf_mlnmt.keys import key
from hf_mlnmt.table import Number, Table

Pair = tuple[str, str]
Item = TypeVar("Item", Pair, str)
_EXAMPLE_WIDTH = 60


@dataclass
class FilterReport:
    """Counts of pairs: read, kept, and dropped for each reason, with the first pair of each reason."""

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def read(self) -> int:
        """Returns pairs kept and dropped."""
        return self.kept + self.dropped.total()

    def drop(self, reason: str, example: str = "") -> None:
        """Count one dropped pair."""
        if reason not in self.dropped:
            self.examples[reason] = _shorten(example)
        self.dropped[reason] += 1

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


@dataclass(frozen=True)
class PairFilter:
    """Rules for what is dropped from a training corpus.

    Call it with pairs: it yields those that stay, one by one, in order. Words are `words.words`: of a side
    without spaces characters.
    Duplicates are known by a 16-byte hash: about 100 bytes of memory for each distinct pair.
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

    def __call__(self, pairs: Iterable[Pair], report: FilterReport | None = None) -> Iterator[Pair]:
        """Yield the pairs that stay; `report` is filled on the way and is complete after the last pair."""
        return _filtered(pairs, lambda pair: self.reason(*pair), self.drop_duplicates, report)

    def of_text(self) -> TextFilter:
        """Returns the rules that hold for sentences of one language."""
        return TextFilter(self.min_length, self.max_length, self.max_word, self.drop_empty, self.drop_duplicates)

    def reason(self, source: str, target: str) -> str | None:
        """Returns why this pair goes, or None; duplicates apart."""
        sides = words(source), words(target)
        lengths = sorted(map(len, sides))
        if self.drop_empty and lengths[0] == 0:
            return "empty side" if lengths[1] else "both sides empty"
        if lengths[0] < self.min_length and lengths[0] > 0:
            return f"shorter than {self.min_length} words"
        if self.max_length is not None and lengths[1] > self.max_length:
            return f"longer than {self.max_length} words"
        if self.max_ratio is not None and (lengths[1] + 1) / (lengths[0] + 1) > self.max_ratio:
            return f"length ratio above {self.max_ratio:g}"
        if self.max_word is not None and max(map(len, chain(*sides)), default=0) > self.max_word:
            return f"a word above {self.max_word} characters"
        return "target is a copy of the source" if self.drop_identical and source.strip() == target.strip() else None


@dataclass(frozen=True)
class TextFilter:
    """The fields of `PairFilter` that look at one sentence, for text of one language; called in the same way."""

    min_length: int = 1
    max_length: int | None = None
    max_word: int | None = None
    drop_empty: bool = True
    drop_duplicates: bool = False

    def __call__(self, texts: Iterable[str], report: FilterReport | None = None) -> Iterator[str]:
        """Yields the sentences that stay, as `PairFilter` does pairs."""
        return _filtered(texts, self.reason, self.drop_duplicates, report)

    def reason(self, text: str) -> str | None:
        """Returns why this sentence goes, or None; duplicates apart."""
        said = words(text)
        if not said:
            return "empty" if self.drop_empty else None
        if len(said) < self.min_length:
            return f"shorter than {self.min_length} words"
        if self.max_length is not None and len(said) > self.max_length:
            return f"longer than {self.max_length} words"
        if self.max_word is not None and max(map(len, said)) > self.max_word:
            return f"a word above {self.max_word} characters"
        return None


def _filtered(
    items: Iterable[Item], why: Callable[[Item], str | None], no_duplicates: bool, report: FilterReport | None
) -> Iterator[Item]:
    """Yields the items for which `why` names no reason to go; with `no_duplicates` each of them once."""
    report = report if report is not None else FilterReport()
    seen: set[bytes] = set()
    for item in items:
        texts = (item,) if isinstance(item, str) else item
        reason = why(item)
        if reason is None and no_duplicates:
            # The first length tells "ab" + "c" from "a" + "bc".
            text = f"{len(texts[0])} {''.join(texts)}"
            key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            reason = "duplicate" if key in seen else None
            seen.add(key)
        if reason is None:
            report.kept += 1
            yield item
        else:
            report.drop(reason, " ||| ".join(texts))


def _shorten(text: str) -> str:
    text = text.encode("unicode_escape", "backslashreplace").decode() if not text.isprintable() else text
    return text if len(text) <= _EXAMPLE_WIDTH else text[: _EXAMPLE_WIDTH - 3] + "..."
