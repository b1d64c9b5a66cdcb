"""Assigns the words of a translation to the inline elements of its source, by links between words of both."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise, takewhile

from hf_mlnmt.data.placeholders import kept, lost
from hf_mlnmt.generation import Hypothesis, Linked

SLOT = "[\ufdd0\ufdd1]"  # the two Unicode noncharacters around the number of a slot's placeholder (marked.py)
NO_WRAP = ("", "")


class Element:
    """An inline element around words. `path`: the elements around it, the outermost first, then itself; empty for the
    base element, which holds the whole text.

    `wrap`: markup before and after each stretch of its text, as in Word's files text is always inside of a run.
    `needed`: an element that must not be left out: where no word is linked to it, it gets the nearest word.
    """

    def __init__(self, start: str = "", around: Element | None = None, wrap: tuple[str, str] = NO_WRAP) -> None:
        self.start, self.end, self.wrap, self.needed = start, "", wrap, False
        self.path: tuple[Element, ...] = () if around is None else (*around.path, self)


def shared(first: Element, second: Element) -> tuple[Element, ...]:
    """Returns the path of the innermost element that contains both elements."""
    pairs = takewhile(lambda pair: pair[0] is pair[1], zip(first.path, second.path))
    return tuple(element for element, _ in pairs)


def _filled(
    units: list[tuple[str, str, Element | None]], first: Element, last: Element, base: Element
) -> list[tuple[str, str, Element]]:
    """Assigns units without an element to the innermost one around both neighbours; first, last: those of the ends."""
    before = list(accumulate((owner for *_, owner in units), lambda left, owner: owner or left, initial=first))
    filled: list[tuple[str, str, Element]] = []
    after = last
    for (gap, text, owner), left in zip(reversed(units), reversed(before[:-1])):
        after = owner or after
        filled.append((gap, text, owner or (shared(left, after) or (base,))[-1]))
    return filled[::-1]


class Match(Linked):
    """The words of a translation, linked to the words of its source and assigned to the inline elements of these.

    Numbers, codes and placeholders of the source that the translation lacks are inserted.
    """

    def __init__(
        self, source: str, owners: list[Element], hypothesis: Hypothesis, base: Element, cuts: list[int]
    ) -> None:
        self.owners, self.base, self.cuts = owners, base, cuts
        self.at: dict[int, int] = {}  # {offset of a mark inside of a source word: number of the unit after it}
        super().__init__(source, re.sub(SLOT, "", hypothesis.text), hypothesis.alignment)
        if missing := lost(source, self.target):
            self.put_back(missing, list(kept(source)), kept)

    def units(self) -> list[tuple[str, str, Element]]:
        """Returns the units of the translation in order, as (white space before, text, element). Units are words, and
        the parts of words that elements or marks cut."""
        result: list[tuple[str, str, Element | None]] = []
        self.ends: list[tuple[int, int, int]] = []  # number of units before each word, to its core's end, to its end
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
            result.append(("", self.target, self.base))
        self.count = len(result) + len(lost)
        return _filled(result, self.owners[0], self.owners[-1], self.base) + [("", "", element) for element in lost]

    def _part(
        self, number: int, side: int, text: str, owner: Element | None
    ) -> Iterator[tuple[str, Element | None, int]]:
        """Yields (text, element, offset of a cut in the source or -1) for the part before (side 0), in (1) or after (2)
        the core of a word; a part that is equal in the source is divided at the same elements and cuts as there."""
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
        """Returns the innermost element of each word of the translation, and the needed elements that got no word."""

        def depth(element: Element) -> int:
            return len(element.path)

        of_source = [max(self.owners[slice(*word.core)], key=depth) for word in self.words]
        owners = [max((of_source[read] for read in of_word), key=depth, default=None) for of_word in self.sources]
        cores = [self.target[slice(*word.core)] for word in self.translated]
        signs = [number for number, core in enumerate(cores) if not any(map(str.isalnum, core))]
        for number in signs:  # a sign (punctuation) is in an element only if linked to the same sign of the source
            same = (read for read in self.sources[number] if self.words[read].text == self.translated[number].text)
            owners[number] = next((of_source[read] for read in same), None)
        taken, lost = {element for owner in set(owners) if owner for element in owner.path}, []
        middles: dict[Element, int] = {}  # {innermost element: number of its first source word}
        for number, word in enumerate(self.words):
            for element in dict.fromkeys(self.owners[slice(*word.core)]):
                middles.setdefault(element, number)
        for element in sorted(middles, key=depth, reverse=True):
            if not element.path or element in taken:
                continue
            place = int((middles[element] + 0.5) / len(self.words) * len(owners))
            reach = 100 if element.needed else 10
            near = {*range(max(0, place - reach), min(len(owners), place + reach))}.difference(signs)
            free = {n for n in near if not (owner := owners[n]) or not owner.path or owner in element.path}
            if element.needed and not free:  # takes a word from an element that is not needed
                free = {n for n in near if not any(each.needed for each in owners[n].path)}  # type: ignore[union-attr]
            if free:
                owners[min(free, key=lambda number: (abs(number - place), number))] = element
            elif element.needed and element.start != "[":  # is written without words; a Markdown link cannot be
                lost.append(element)
            taken.update(element.path)
        return owners, lost

    def place(self, offset: int, line: bool, spaced: bool, least: int = 0) -> int:
        """Returns the number of the unit before which a mark at `offset` of the source is put; the number of all units
        to put it at the end.

        line: it is a line break, which goes before a whole word, no earlier than unit `least`; spaced: white space
        precedes it."""
        if not self.ends or offset >= len(self.source):
            return self.count
        if offset in self.at and not spaced:
            return self.at[offset]
        share = offset / len(self.source) * len(self.target)
        if line or not self.words:
            number = max(_nearest(self.places[0], share), bisect_left(self.ends, (least,)))
            return self.ends[number][0] if number < len(self.ends) else self.count
        following = bisect_right(self.starts, offset - 1)
        if spaced or offset == 0:
            first, _ = self.targets.get(min(len(self.words) - 1, following), (_nearest(self.places[0], share), 0))
            return self.ends[first][0]
        behind = max(0, following - 1)
        _, last = self.targets.get(behind, (0, _nearest(self.places[1], share)))
        return self.ends[last][1 if offset <= self.words[behind].core[1] else 2]


def _nearest(places: list[int], wanted: float) -> int:
    """Returns the index of the value nearest to `wanted` in an ascending list, the first of two."""
    behind = bisect_left(places, wanted)
    return min(range(max(0, behind - 1), min(len(places), behind + 1)), key=lambda i: abs(places[i] - wanted))
