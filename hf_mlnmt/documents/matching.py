"""Words of a translation and those of its source: which stands for which, and in which elements each is."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np

from hf_mlnmt.data.words import is_unspaced, is_visible, words
from hf_mlnmt.documents.kept import kept, lost
from hf_mlnmt.generation.pipeline import Hypothesis

SLOT = "[\ufdd0\ufdd1]"  # two that are no characters, for a program's own use: around the number of a slot
NO_WRAP = ("", "")
_OPENING, _CLOSING = re.compile(r"[\"'“„«(\[¿¡]*"), re.compile(r"[\"'”“»)\].,;:!?…]*$")


class Element:
    """An inline element around words; `path`: it and those around it, the outermost first. A text's own has none.

    `wrap` stands before and behind each run of its text: in Word's files no text is outside of a run.
    """

    def __init__(self, start: str = "", around: Element | None = None, wrap: tuple[str, str] = NO_WRAP) -> None:
        self.start, self.end, self.wrap = start, "", wrap
        self.path: tuple[Element, ...] = () if around is None else (*around.path, self)


def shared(first: Element, second: Element) -> tuple[Element, ...]:
    """Returns the path of the innermost element that holds both."""
    pairs = takewhile(lambda pair: pair[0] is pair[1], zip(first.path, second.path))
    return tuple(element for element, _ in pairs)


class Word(NamedTuple):
    """A word of a text from `start` to `end`; its letters, without the punctuation around them, are `core`."""

    text: str
    start: int
    end: int
    core: tuple[int, int]

    @property
    def parts(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Returns the places before, in and behind the core."""
        return (self.start, self.core[0]), self.core, (self.core[1], self.end)

    @property
    def middle(self) -> float:
        """Returns the place of its middle."""
        return (self.start + self.end) / 2


def _filled(
    units: list[tuple[str, str, Element | None]], first: Element, last: Element, base: Element
) -> list[tuple[str, str, Element]]:
    """Gives units of no element the one that holds both their neighbours; `first` and `last` are those of the ends."""
    before = list(accumulate((owner for *_, owner in units), lambda left, owner: owner or left, initial=first))
    filled: list[tuple[str, str, Element]] = []
    after = last
    for (gap, text, owner), left in zip(reversed(units), reversed(before[:-1])):
        after = owner or after
        filled.append((gap, text, owner or (shared(left, after) or (base,))[-1]))
    return filled[::-1]


def _words(text: str) -> list[Word]:
    spaced, at, result = not is_unspaced(text), 0, []
    for word in words(text) if is_visible(text) else []:
        start = text.index(word, at)
        at = end = start + len(word)
        first, last = start, end
        while spaced and first < end and not text[first].isalnum():
            first += 1
        while spaced and last > first and unicodedata.category(text[last - 1])[0] in "PSZC":
            last -= 1
        result.append(Word(word, start, end, (first, last) if first < last else (start, end)))
    return result


class Match:
    """The words of a translation, each with the words of its source that it stands for."""

    def __init__(
        self, source: str, owners: list[Element], hypothesis: Hypothesis, base: Element, cuts: list[int]
    ) -> None:
        self.source, self.owners, self.base, self.cuts = source, owners, base, cuts
        self.at: dict[int, int] = {}  # units before the places of cuts inside of words
        self.words = _words(source)
        self._translate(hypothesis.text, hypothesis.alignment)
        if missing := lost(source, self.target):
            self._translate(*self._with(missing, hypothesis.alignment is not None))

    def _translate(self, target: str, alignment: tuple[Any, ...] | None) -> None:
        """Takes a translation, and finds the words that each of its words stands for."""
        self.target = re.sub(SLOT, "", target)
        self.translated = _words(self.target)
        self.starts = [word.start for word in self.words]
        self.places = [word.start for word in self.translated], [word.end for word in self.translated]
        self.sources: list[list[int]] = [[] for _ in self.translated]  # words of the source, of each word
        links = alignment
        if links is None or is_unspaced(self.source) or is_unspaced(self.target):  # whose words have no spaces
            links = tuple((read, number) for number, read in enumerate(self._by_position()))
        self.targets: dict[int, tuple[int, int]] = {}  # of each word of the source its first and its last one
        for read, written in links:
            if read < len(self.words) and written < len(self.translated):
                self.sources[written].append(read)
                first, last = self.targets.get(read, (written, written))
                self.targets[read] = min(first, written), max(last, written)

    def _by_position(self) -> list[int]:
        """Returns a word of the source for each of the translation: words that are the same, and relative positions
        between."""
        if not self.words:
            return []
        keys = [
            [text[slice(*word.core)].casefold() for word in of_text]
            for text, of_text in ((self.source, self.words), (self.target, self.translated))
        ]
        counts = list(map(Counter, keys))
        places = dict(zip(keys[1], self.translated))
        fixed = [(0.0, 0.0)]
        for key, word in zip(keys[0], self.words):
            if counts[0][key] == counts[1][key] == 1 and places[key].start > fixed[-1][1]:
                fixed.append((word.middle, places[key].middle))
        fixed.append((float(len(self.source)), float(max(len(self.target), fixed[-1][1] + 1))))
        read, written = zip(*fixed)
        at = np.interp([word.middle for word in self.translated], written, read)
        return [max(0, bisect_right(self.starts, place) - 1) for place in at]

    def _with(self, missing: Counter[str], aligned: bool) -> tuple[str, tuple[Any, ...]]:
        """Returns the translation with what it lacks, and its alignment.

        A word that holds some of it takes the place of those that translate no other word, or stands behind the
        translation of the word before it.
        """
        wanted = {name for name, *_ in kept(self.source)}
        places: dict[int, list[int]] = {}  # words of the translation that stand for one word alone
        for number, reads in enumerate(self.sources):
            ours = {name for name, *_ in kept(self.translated[number].text)}
            if aligned and len(set(reads)) == 1 and not ours & wanted:
                places.setdefault(reads[0], []).append(number)
        new = [[(word.text, reads)] for word, reads in zip(self.translated, self.sources)]
        new.insert(0, [])  # what stands before the first word
        behind = 0
        for number, word in enumerate(self.words):
            if not aligned:
                behind = -(-number * len(self.translated) // len(self.words))
            found = [place for place in kept(word.text) if missing[place[0]] > 0]
            missing.subtract(name for name, *_ in found)
            text = word.text[found[0][1] : found[-1][2]] if found else ""
            if found and (replaced := places.get(number)):
                first, last = self.translated[replaced[0]].text, self.translated[replaced[-1]].text
                text = _OPENING.match(first)[0] + text + _CLOSING.search(last[-8:])[0]  # type: ignore[index]
                for place in replaced:
                    new[place + 1] = []
                new[replaced[0] + 1] = [(text, [number])]
            elif found:
                if behind == len(self.translated) and new[behind]:  # before the full stop
                    last, reads = new[behind].pop()
                    end = _CLOSING.search(last[-8:])[0]  # type: ignore[index]
                    new[behind].append((last.removesuffix(end) or last, reads))
                    text += end if end != last else ""
                new[behind].append((text, [number]))
            behind = max(self.targets[number][1] + 1, behind) if number in self.targets else behind
        flat = [each for some in new for each in some]
        links = ((read, place) for place, (_, reads) in enumerate(flat) for read in reads)
        return " ".join(text for text, _ in flat), tuple(links)

    def units(self) -> list[tuple[str, str, Element]]:
        """Returns (white space before, text, element) of words and parts of words of the translation, in order."""
        result: list[tuple[str, str, Element | None]] = []
        self.ends: list[tuple[int, int, int]] = []  # units before each word, its end mark, the next
        at = 0
        owners, lost = self._elements()
        for number, (word, owner) in enumerate(zip(self.translated, owners)):
            gap, at, before = self.target[at : word.start], word.end, len(result)
            core = before
            for side, (start, end) in enumerate(word.parts):
                part = self._part(number, side, self.target[start:end], owner) if start < end else ()
                for text, element, place in part:
                    self.at.setdefault(place, len(result))
                    result.append((gap, text, element))
                    gap = ""
                if side == 1:
                    core = len(result)
            self.ends.append((before, core, len(result)))
        if not self.translated:
            result.append(("", self.target, self.owners[0]))
        self.count = len(result) + len(lost)
        return _filled(result, self.owners[0], self.owners[-1], self.base) + [("", "", element) for element in lost]

    def _part(
        self, number: int, side: int, text: str, owner: Element | None
    ) -> Iterator[tuple[str, Element | None, int]]:
        """Yields the part before (0), in (1) or behind (2) the core of a word. If the source has the same part, it is
        divided as it is there, and its places in the source are named."""
        for read in self.sources[number]:
            start, end = self.words[read].parts[side]
            if self.source[start:end] == text and (side != 1 or owner in self.owners[start:end]):
                cuts = {*self.cuts[bisect_right(self.cuts, start) : bisect_left(self.cuts, end)]}
                changes = (at for at in range(start + 1, end) if self.owners[at] is not self.owners[at - 1])
                for first, last in pairwise([start, *sorted(cuts.union(changes)), end]):
                    yield self.source[first:last], self.owners[first], first if first in cuts else -1
                return
        yield text, owner if side == 1 else None, -1

    def _elements(self) -> tuple[list[Element | None], list[Element]]:
        """Returns the element of each word of the translation, and those for which no word is left."""

        def depth(element: Element) -> int:
            return len(element.path)

        of_source = [max(self.owners[slice(*word.core)], key=depth) for word in self.words]
        owners = [max((of_source[read] for read in of_word), key=depth, default=None) for of_word in self.sources]
        taken, lost = {element for owner in set(owners) if owner for element in owner.path}, []
        middles: dict[Element, int] = {}  # word of the source, of each innermost element
        for number, word in enumerate(self.words):
            for element in dict.fromkeys(self.owners[slice(*word.core)]):
                middles.setdefault(element, number)
        for element in sorted(middles, key=depth, reverse=True):
            if not element.path or element in taken:
                continue
            place = int((middles[element] + 0.5) / len(self.words) * len(owners))
            near = range(max(0, place - 10), min(len(owners), place + 10))
            for number in sorted(near, key=lambda number: abs(number - place)):
                owner = owners[number]
                if owner is None or not owner.path or owner in element.path:
                    owners[number] = element
                    break
            else:
                lost.append(element)
            taken.update(element.path)
        return owners, lost

    def place(self, offset: int, line: bool, spaced: bool) -> int:
        """Returns before which unit of the translation something stands that is at this offset of the source."""
        if not self.ends or offset >= len(self.source):
            return self.count
        if offset in self.at and not spaced:
            return self.at[offset]
        share = offset / len(self.source) * len(self.target)
        if line or not self.words:
            return self.ends[_nearest(self.places[0], share)][0]
        following = bisect_right(self.starts, offset - 1)
        if spaced or offset == 0:
            first, _ = self.targets.get(min(len(self.words) - 1, following), (_nearest(self.places[0], share), 0))
            return self.ends[first][0]
        behind = max(0, following - 1)
        _, last = self.targets.get(behind, (0, _nearest(self.places[1], share)))
        return self.ends[last][1 if offset <= self.words[behind].core[1] else 2]


def _nearest(places: list[int], wanted: float) -> int:
    """Returns the number of the nearest of ascending places, of two the first."""
    behind = bisect_left(places, wanted)
    return min(range(max(0, behind - 1), min(len(places), behind + 1)), key=lambda i: abs(places[i] - wanted))
