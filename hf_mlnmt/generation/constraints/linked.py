"""Links words of a translation to words of its source, and inserts kept parts of the source that it lacks."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hf_mlnmt.data.placeholders import Part, whole
from hf_mlnmt.data.words import is_unspaced, is_visible, words

_OPENING, _CLOSING = re.compile(r"[\"'“„«(\[¿¡]*"), re.compile(r"[\"'”“»)\].,;:!?…]*$")
Place = tuple[str, int, int]  # the name of a part of a text, and where the part begins and ends


class Word(NamedTuple):
    """A word of a text, from `start` to `end`; `core`: start and end of the word without punctuation around it."""

    text: str
    start: int
    end: int
    core: tuple[int, int]

    @property
    def parts(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Returns (start, end) of the punctuation before the core, of the core, and of the punctuation after it."""
        return (self.start, self.core[0]), self.core, (self.core[1], self.end)

    @property
    def middle(self) -> float:
        """Returns the position of the word's middle in the text, in characters."""
        return (self.start + self.end) / 2


def words_of(text: str) -> list[Word]:
    """Splits a text into words, a text of a script without spaces into characters."""
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


class Linked:
    """The words of a translation, linked to the words of its source.

    `sources`: for each word of the translation the numbers of its words of the source; `targets`: {word of the source:
    the first and the last of its words of the translation}.
    """

    def __init__(self, source: str, target: str, alignment: Iterable[tuple[int, int]] | None) -> None:
        """alignment: links (word of the source, word of the translation); None: guesses links from words that are equal
        on both sides, and from relative positions between these."""
        self.source, self.words = source, words_of(source)
        self.starts = [word.start for word in self.words]
        self.take(target, alignment)

    def take(self, target: str, alignment: Iterable[tuple[int, int]] | None) -> None:
        """Replaces the translation by another translation of the same source; arguments: as of the class."""
        self.target, self.translated = target, words_of(target)
        self.places = [word.start for word in self.translated], [word.end for word in self.translated]
        self.sources: list[list[int]] = [[] for _ in self.translated]
        # In a script without spaces the words here are characters, but an alignment counts words between spaces.
        self.aligned = alignment is not None and not is_unspaced(self.source) and not is_unspaced(self.target)
        links = alignment if self.aligned else ((read, number) for number, read in enumerate(self._by_position()))
        self.targets: dict[int, tuple[int, int]] = {}
        for read, written in links or ():
            if read < len(self.words) and written < len(self.translated):
                self.sources[written].append(read)
                first, last = self.targets.get(read, (written, written))
                self.targets[read] = min(first, written), max(last, written)

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Returns the links (word of the source, word of the translation), ascending."""
        return tuple(sorted((read, written) for written, reads in enumerate(self.sources) for read in reads))

    def _by_position(self) -> list[int]:
        """Guesses for each word of the translation a word of the source: an equal word, else the word at the same
        relative position between two pairs of equal words."""
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

    def put_back(
        self, missing: Counter[str], parts: Sequence[Place], parts_of: Callable[[str], Iterable[Place]]
    ) -> list[int | None]:
        """Inserts the parts of the source that the translation lacks, each as often as `missing` says.

        The missing parts of a source word replace the words that translate this word alone; where there are none, they
        are inserted after the translation of the word before.

        Args:
            parts: all parts of the source, in order. parts_of: finds parts in a word of the translation.

        Returns: for each word of the new translation its number in the old one, None for an inserted word.
        """
        missing, wanted = missing.copy(), {name for name, *_ in parts}
        first_places = [start for _, start, _ in parts]
        places: dict[int, list[int]] = {}  # {word of the source: words of the translation linked to this word alone}
        for number, reads in enumerate(self.sources):
            ours = {name for name, *_ in parts_of(self.translated[number].text)}
            if self.aligned and len(set(reads)) == 1 and not ours & wanted:
                places.setdefault(reads[0], []).append(number)
        # new[0]: insertions before the first word; new[i + 1]: word i or what replaces it, then insertions after it.
        new: list[list[tuple[str, list[int], int | None]]] = [[]]
        new += [[(word.text, reads, i)] for i, (word, reads) in enumerate(zip(self.translated, self.sources))]
        behind = 0
        for number, word in enumerate(self.words):
            if not self.aligned:
                behind = -(-number * len(self.translated) // len(self.words))
            here = parts[bisect_left(first_places, word.start) : bisect_left(first_places, word.end)]
            found = [part for part in here if missing[part[0]] > 0]
            missing.subtract(name for name, *_ in found)
            text = self.source[found[0][1] : found[-1][2]] if found else ""
            if found and (replaced := places.get(number)):
                first, last = self.translated[replaced[0]].text, self.translated[replaced[-1]].text
                text = _OPENING.match(first)[0] + text + _CLOSING.search(last[-8:])[0]  # type: ignore[index]
                for place in replaced:
                    new[place + 1] = []
                new[replaced[0] + 1] = [(text, [number], None)]
            elif found:
                if behind == len(self.translated) and new[behind]:  # at the end: insert before a full stop
                    last, reads, was = new[behind].pop()
                    end = _CLOSING.search(last[-8:])[0]  # type: ignore[index]
                    new[behind].append((last.removesuffix(end) or last, reads, was))
                    text += end if end != last else ""
                new[behind].append((text, [number], None))
            behind = max(self.targets[number][1] + 1, behind) if number in self.targets else behind
        flat, space = [each for some in new for each in some], " " * (not is_unspaced(self.target))
        gaps = [self.target[end:start] for end, start in zip([0, *self.places[1]], self.places[0])]
        before = [space if was is None else gaps[was] or space for *_, was in flat]
        target = "".join(gap + text for gap, (text, *_) in zip(before, flat)).strip()
        self.take(target, [(read, i) for i, (_, reads, _) in enumerate(flat) for read in reads])
        return [was for *_, was in flat]


class KeptPart(NamedTuple):
    """A kept part of a source; `shown`: its text in the search's translation, a placeholder or the part itself; `ids`:
    tokenizations of that text, [] where the vocabulary cannot spell it."""

    part: Part
    shown: str
    ids: list[list[int]]


def filled(
    source: str, target: str, parts: Sequence[KeptPart], links: Collection[tuple[int, int]]
) -> tuple[str, Counter[str]]:
    """Replaces the texts that stand for kept parts (`shown`) in a translation by the parts; returns the new text, and a
    count of the missing parts.

    Where one text stands for several parts, a part goes to the place that `links` (word of the source, word of the
    translation) link it to; parts without a link go to the other places in order. parts: of the source, in order.
    """
    missing: Counter[str] = Counter()
    places: list[tuple[int, int, str]] = []
    for shown in sorted({each.shown for each in parts}, key=lambda shown: (-len(shown), shown)):
        left = [each.part for each in parts if each.shown == shown]
        free = [match.span() for match in whole(shown).finditer(target)]
        free = [(start, end) for start, end in free if all(end <= first or start >= last for first, last, _ in places)]
        for in_order in (False, True):
            for start, end in list(free):
                word = _word_at(target, start)
                own = next((part for part in left if in_order or (_word_at(source, part.start), word) in links), None)
                if own is not None:
                    left.remove(own)
                    free.remove((start, end))
                    places.append((start, end, own.text))
        missing.update(part.text for part in left)
    text, end = "", 0
    for start, behind, part in sorted(places):
        text, end = text + target[end:start] + part, behind
    return text + target[end:], missing


def _word_at(text: str, place: int) -> int:
    return len(f"{text[:place]}x".split()) - 1
