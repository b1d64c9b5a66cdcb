"""Matches of a text in a translation memory: their percentages, their translations fitted to the text, their bands.

A match's percentage is the similarity of the words of two sources, 100 x (1 - edits / words of the longer one), as
tools for translators count it: an edit inserts, deletes or replaces a word or a sign, capitals count like small
letters. 100 is the same text, or one that differs in numbers and placeholders alone, which are put into the
translation; 101 is the same text between the same neighbours; all else is 99 at most.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hf_mlnmt.data.placeholders import PATTERNS
from hf_mlnmt.data.words import is_unspaced

CONTEXT, EXACT, LEAST = 101, 100, 50
BANDS = {CONTEXT: "101", EXACT: "100", 95: "95-99", 85: "85-94", 75: "75-84", LEAST: "50-74", 0: "none"}
BEHIND = "reads_matches"  # the key in generation_config.json of a model that was trained with matches after its sources
HOLE = "\ue000"  # in a match's translation: instead of what the text does not have
_SPACED = re.compile(r"\w+|[^\w\s]")
_SINGLE = re.compile(r"[a-z0-9_]+|[^\s]")
_KINDS = ("url", "email", "tag", "placeholder", "number")
# a text without any of these has no part; _PARTS is slower and is tried only afterwards
_MAY_HAVE = re.compile(r"[\d%${<@:!]|www\.")
_PARTS = re.compile("|".join(f"(?P<{kind}>{PATTERNS[kind]})" for kind in _KINDS), re.VERBOSE | re.ASCII)


class Match(NamedTuple):
    """A unit of a memory whose source is similar to a text. `text`: the unit's translation with the text's numbers and
    placeholders put in, and HOLE instead of what the text does not have; `place`: the unit's file and number."""

    percent: int
    text: str
    source: str
    target: str
    place: str = ""

    @property
    def origin(self) -> str:
        """Returns "memory 101", "memory 100" or "fuzzy 87"."""
        return f"{'memory' if self.percent >= EXACT else 'fuzzy'} {self.percent}"

    @property
    def reward(self) -> float:
        """Returns the reward of an n-gram of this match's translation: the 6th power of the similarity (at most 1),
        chosen on three kinds of text. A match with half of a text's words has less than half of its translation."""
        return (min(self.percent, EXACT) / 100) ** 6


class Part(NamedTuple):
    """A number, address, tag or placeholder of a text, at characters `start` to `end`, the latter excluded."""

    kind: str
    text: str
    start: int
    end: int

    def same(self, other: Part) -> bool:
        """Returns whether two parts are equal: two numbers by their digits, all others by kind and text."""
        if self.kind == other.kind == "number":
            return re.sub(r"\D", "", self.text) == re.sub(r"\D", "", other.text)
        return self[:2] == other[:2]


def plain(text: str) -> str:
    """Returns a text in Unicode's form NFC, with one space between words and none around the text."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


def words(text: str) -> list[str]:
    """Returns the words and signs of a text in lower case; of scripts without spaces, the single characters."""
    text = text.casefold()
    return (_SINGLE if not text.isascii() and is_unspaced(text) else _SPACED).findall(text)


def hashes_of(found: Sequence[str]) -> np.ndarray:
    """Returns a hash of 32 bits of each word."""
    return np.array([zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in found], np.uint32)


def words_in(text: str) -> list[tuple[int, int]]:
    """Returns (start, end) of each word and sign of a text, without HOLE; of scripts without spaces, each character."""
    found = (_SINGLE if not text.isascii() and is_unspaced(text) else _SPACED).finditer(text)
    return [match.span() for match in found if match[0] != HOLE]


def parts_of(text: str) -> list[Part]:
    """Returns the numbers, addresses, tags and placeholders of a text."""
    found = _PARTS.finditer(text) if _MAY_HAVE.search(text) else ()
    return [Part(str(match.lastgroup), match[0], *match.span()) for match in found]


def skeleton(text: str) -> str:
    """Returns a text with each number, address, tag and placeholder replaced by a mark of its kind."""
    return _PARTS.sub(lambda match: f"\0{match.lastgroup}", text) if _MAY_HAVE.search(text) else text


def band(percent: int) -> int:
    """Returns the key of BANDS for a percentage."""
    return next(least for least in BANDS if percent >= least)


def fitted(source: str, target: str, text: str) -> tuple[str, bool]:
    """Puts numbers, addresses, tags and placeholders of `text` into the translation of a similar source.

    Returns the translation, HOLE in it for a part that the text has not, and whether every part found its place. A part
    is replaced where source and translation have it equally often, a number with marks as the translation writes them.
    """
    theirs, ours, there = parts_of(source), parts_of(text), parts_of(target)
    if [part[:2] for part in theirs] == [part[:2] for part in ours]:
        return target, True
    pairs, whole = list(zip(theirs, ours)), [part.kind for part in theirs] == [part.kind for part in ours]
    if not whole:
        both = Counter(part.text for part in theirs) & Counter(part.text for part in ours)
        gone, come = ([part for part in side if part.text not in both] for side in (theirs, ours))
        alike = [part.kind for part in gone] == [part.kind for part in come]
        pairs = [*zip(gone, come)] * alike + [(part, part) for part in theirs if part.text in both]
    pieces, end, used = [], 0, Counter[str]()
    for part in there:
        here = [pair for pair in pairs if pair[0].same(part)]
        news = {new.text for _, new in here}
        counted = len(here) == sum(other.same(part) for other in there)
        new = _rewritten(here[0][0].text, part.text, news.pop()) if len(news) == 1 and counted else None
        if new is None and any(part.same(other) for other in ours):
            new = part.text
        used.update([here[0][0].text] if here and new is not None else [])
        pieces += [target[end : part.start], HOLE if new is None else new]
        end = part.end
    changed = {old.text for old, new in pairs if old.text != new.text}
    done = "".join([*pieces, target[end:]])
    return done, whole and HOLE not in done and all(used[text] for text in changed)


def _rewritten(old: str, written: str, new: str) -> str | None:
    """Returns a number with the marks that `written`, the translation of `old`, has; None where it has none for one."""
    if old == new:
        return written
    marks = [re.sub(r"[^.,:/]", "", number) for number in (old, written)]
    if not re.fullmatch(r"[\d.,:/]+", new) or not new[:1].isdigit():
        return new
    known = dict(zip(*marks)) if len(marks[0]) == len(marks[1]) else {}
    found = [known.get(sign, "" if sign in ".,:/" else sign) for sign in new]
    return "".join(found) if all(found) else None


class Bands:
    """Counts segments and words by bands of their best matches."""

    def __init__(self) -> None:
        self.segments, self.words = Counter[int](), Counter[int]()

    def add(self, text: str, percent: int) -> None:
        """Counts a segment and its words in the band of its best match's percentage."""
        self.segments[band(percent)] += 1
        self.words[band(percent)] += len(text.split())

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Returns {band: {"segments", "words"}} of all bands, for JSON."""
        return {name: {"segments": self.segments[least], "words": self.words[least]} for least, name in BANDS.items()}

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Returns the rows of a table, one for each band, the last for all: band, segments, words, share of words."""
        total = max(1, self.words.total())
        rows = [(name, self.segments[least], self.words[least]) for least, name in BANDS.items()]
        rows.append(("all", self.segments.total(), self.words.total()))
        return [(name, f"{one:,}", f"{two:,}", f"{two / total:.1%}") for name, one, two in rows]


def holes(text: str) -> list[str]:
    """Returns the texts between the HOLEs of a fitted translation, without blank ones."""
    return [part for part in text.split(HOLE) if part.strip()]
