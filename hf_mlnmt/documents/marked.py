"""Marked text: the texts of a document, which are translated, and all else, which stays as it was, to the character.

A format's reader makes a list of tokens. Breaks (the tags of paragraphs, cells, items) part texts from one another.
Inside a text, an inline element follows its words: each word of the translation is in the elements of the word that it
translates, as the hypothesis' alignment says; without one, words that are the same on both sides and the relative
positions between them say it. An element that comes apart is written twice; one of which no word is left keeps the
nearest word. What has no words (images, comments, code, an empty anchor) stays beside its neighbour. Numbers, codes and
placeholders that a translation lacks are put back (kept.py). Reading and writing take time in proportion to the length.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import accumulate, groupby, pairwise, takewhile
from typing import Any, Literal, NamedTuple

import numpy as np

from hf_mlnmt.data.words import is_unspaced, is_visible, words
from hf_mlnmt.documents.kept import has_words, kept, lost
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.pipeline import Hypothesis
from hf_mlnmt.generation.segments import split_sentences
from hf_mlnmt.languages import base_language

DEEPEST = 100  # inline elements inside one another
_SLOT = re.compile("\ufdd0(\\d+)\ufdd1")  # two that are no characters: for a program's own use
_ID = re.compile(r"""(?<!\s)\s+id\s*=\s*("[^"]*"|'[^']*'|[^\s"'=<>`]+)""", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\n\r\f\xa0]+")
# White space as it is written, at the start of a text; or at its end, of the text turned round (a search for the end
# would begin anew at each space).
_LEADING = re.compile(r"(?:\s|&nbsp;|&#160;|&#xa0;)*+", re.IGNORECASE)
_TRAILING = re.compile(r"(?:\s|;psbn&|;061#&|;0ax#&)*+", re.IGNORECASE)
_ENDS_SENTENCE = re.compile(r"[.!?…。！？:։۔।][\"'”’“»›)\]}]*\s*$")
_OPENING, _CLOSING = re.compile(r"[\"'“„«(\[¿¡]*"), re.compile(r"[\"'”“»)\].,;:!?…]*$")
NO_WRAP = ("", "")


def without_id(tag: str) -> str:
    """Returns a start tag as it is written a second time."""
    return _ID.sub("", tag)


class Form(NamedTuple):
    """The characters of a format: how they are read, and how text is written. `again`: a start tag for the second time;
    `ordered`: what has no words stays in its order, since some of it opens and some closes."""

    read: Callable[[str], str] = str
    quote: Callable[[str], str] = str
    again: Callable[[str], str] = without_id
    ordered: bool = False


HTML, PLAIN = Form(unescape, lambda text: escape(text, quote=False)), Form()


class Element:
    """An inline element around words; `path`: it and those around it, the outermost first. A text's own has none.

    `wrap` stands before and behind each run of its text: in Word's files no text is outside of a run.
    """

    def __init__(self, start: str = "", around: Element | None = None, wrap: tuple[str, str] = NO_WRAP) -> None:
        self.start, self.end, self.wrap = start, "", wrap
        self.path: tuple[Element, ...] = () if around is None else (*around.path, self)


def _shared(first: Element, second: Element) -> tuple[Element, ...]:
    """Returns the path of the innermost element that holds both."""
    pairs = takewhile(lambda pair: pair[0] is pair[1], zip(first.path, second.path))
    return tuple(element for element, _ in pairs)


class Token(NamedTuple):
    """A piece of the document. `break`: between texts; `mark`: stays in its text, without words; `line`: a line break,
    which parts two texts where a sentence ends; `gone`: is left out of a translation. `wrap` is a text's run."""

    kind: Literal["text", "start", "end", "mark", "line", "break", "gone"]
    raw: str
    name: str = ""
    wrap: tuple[str, str] = NO_WRAP

    @property
    def whole(self) -> str:
        """Returns the token as it stands in a document."""
        return self.wrap[0] + self.raw + self.wrap[1]


class Mark(NamedTuple):
    """Something without words at an offset of a text, in an element, and whether white space is before and behind."""

    offset: int
    raw: str
    line: bool
    spaced: tuple[bool, bool]
    owner: Element


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


class Reading:
    """What a reader is told, and the texts that stand inside of tags and marks.

    Args:
        check: called at every step of reading and writing; it ends them by raising an error.
        language: of the translation, as tags name it (de, pt-BR); None leaves what they say.
        fuzzy: translations are marked as not reviewed, where a format has that (po, xliff).
        most: bytes that an archive may unpack to.
    """

    def __init__(
        self,
        check: Callable[[], object] = lambda: None,
        language: str | None = None,
        fuzzy: bool = False,
        most: int = 100_000_000,
    ) -> None:
        self.check, self.language, self.fuzzy, self.most = check, language, fuzzy, most
        self.source: str | None = None
        self.slots: list[list[str | Passage]] = []

    def slot(self, parts: Iterable[str | Passage]) -> str:
        """Returns what stands for these parts inside of a tag or a mark, until the document is written."""
        parts = list(parts)
        if all(isinstance(part, str) for part in parts):
            return "".join(map(str, parts))
        self.slots.append(parts)
        return f"\ufdd0{len(self.slots) - 1}\ufdd1"

    def text(self, raw: str, form: Form) -> str:
        """Returns what stands for a text inside of a tag or a mark."""
        return self.slot(passages([Token("text", raw)], form, self.check))

    def relabelled(self, code: str) -> str:
        """Returns the language of the translation for the code of the document's, which is the first that is seen."""
        self.source = self.source or base_language(code)
        return self.language if self.language and base_language(code) == self.source else code


@dataclass
class Document:
    """Parts that stay as they are, and passages, whose sentences or lines (`texts`) are translated.

    Args:
        members: the parts of each file of an archive; of a single file, of "".
        reading: with the texts inside of tags and marks.
        original: the whole as it was read, which a document without texts remains.
        pack: makes the whole from what the members become.
    """

    members: Mapping[str, list[str | Passage]]
    reading: Reading
    original: Any
    pack: Callable[[dict[str, str]], Any]

    @property
    def _passages(self) -> Iterator[Passage]:
        for parts in (*self.members.values(), *self.reading.slots):
            yield from (part for part in parts if isinstance(part, Passage))

    @property
    def texts(self) -> list[str]:
        """Returns the texts in order; each is to be translated by itself."""
        return [text for passage in self._passages for text in passage.sentences]

    def write(self, hypotheses: Sequence[Hypothesis]) -> Any:
        """Returns the document with these in the places of its texts: a string, or the bytes of a file."""
        if not hypotheses:
            return self.original
        rest, check = iter(hypotheses), self.reading.check

        def written(parts: list[str | Passage]) -> str:
            return "".join(
                part if isinstance(part, str) else part.write([next(rest) for _ in part.sentences], check)
                for part in parts
            )

        members = {name: written(parts) for name, parts in self.members.items()}
        slots: list[str] = []  # each holds none but those before it
        for text in map(written, self.reading.slots):
            slots.append(_SLOT.sub(lambda match: slots[int(match[1])], text))
        return self.pack({n: _SLOT.sub(lambda match: slots[int(match[1])], text) for n, text in members.items()})


def check_text(text: str) -> str:
    """Returns the text of a document. Raises: UserError for what is no character, and stands for other texts here."""
    if match := re.search("[\ufdd0\ufdd1]", text):
        raise UserError(f"holds U+{ord(match[0]):04X}, which is no character. Remove it.")
    return text


@dataclass
class Passage:
    """Text with inline elements: `owners` are the elements of its characters, `marks` what stands between words, and
    `edges` the white space around it that is to be in its elements."""

    text: str
    owners: list[Element]
    marks: list[Mark]
    form: Form
    base: Element
    edges: tuple[str, str]
    sentences: list[str] = field(init=False)
    spaces: list[str] = field(init=False)

    def __post_init__(self) -> None:
        pieces = split_sentences(self.text)
        self.sentences, self.spaces = [piece.text for piece in pieces], [piece.space for piece in pieces]

    def write(self, hypotheses: Sequence[Hypothesis], check: Callable[[], object]) -> str:
        """Returns the translated sentences, with elements and marks."""
        units: list[tuple[str, str, Element]] = []  # white space before, text, element
        placed: dict[int, list[Mark]] = {}  # before which unit
        offset, at, rest = 0, 0, deque(self.marks)  # which stand in the order of their offsets
        for number, (sentence, space, hypothesis) in enumerate(zip(self.sentences, self.spaces, hypotheses)):
            end = offset + len(sentence)
            last = number == len(self.sentences) - 1
            first, between = len(units), " " if units else ""
            if units and not self.spaces[number - 1] and unicodedata.east_asian_width(units[-1][1][-1:] or " ") in "WF":
                between = ""
            marks: list[Mark] = []
            while rest and (last or rest[0].offset < end + len(space)):
                marks.append(rest.popleft())
            cuts = [mark.offset - offset for mark in marks]
            match = _Match(sentence, self.owners[offset:end], hypothesis, self.base, cuts)
            units += [(gap if i else between, text, owner) for i, (gap, text, owner) in enumerate(match.units())]
            for mark in marks:
                check()
                unit = first + match.place(mark.offset - offset, mark.line, mark.spaced[0])
                at = max(at, unit) if self.form.ordered else unit
                placed.setdefault(at, []).append(mark)
            offset = end + len(space)
        for place, side in ((0, (self.edges[0], "")), (-1, ("", self.edges[1]))):
            gap, text, owner = units[place]
            units[place] = gap, side[0] + text + side[1], owner
        return self._joined(units, placed, check)

    def _joined(
        self, units: list[tuple[str, str, Element]], placed: dict[int, list[Mark]], check: Callable[[], object]
    ) -> str:
        """Returns the units with the tags of their elements between them, and the marks before them."""
        out: list[tuple[tuple[str, str] | None, str]] = []  # text with what is around it, and markup (None)
        opened: set[Element] = set()
        current = self.base
        for number, (gap, text, owner) in enumerate([*units, ("", "", self.base)]):
            check()
            same, marks = _shared(current, owner), placed.get(number, [])
            path, around, late = list(current.path), (same or (self.base,))[-1].wrap, ""
            inside = [place for place, mark in enumerate(marks) if _holds(current, mark.owner, same)]
            first = inside[-1] + 1 if inside else 0  # marks before the elements end, and from `last` behind the starts
            last = next((n for n in range(first, len(marks)) if _holds(owner, marks[n].owner, same)), len(marks))
            for place, (before, raw, after) in enumerate(_between(gap, marks, number == len(units))):
                depth = len(marks[place].owner.path) if place < len(marks) else 0
                opening = place >= last < len(marks)
                while not opening and len(path) > (max(depth, len(same)) if place < first else len(same)):
                    out.append((None, path.pop().end))
                out.append((around, late + before))
                for element in owner.path[len(path) : depth] if opening else ():
                    out.append((None, self._start(element, opened)))
                    path.append(element)
                out.append((None, raw))
                late = after
            for element in owner.path[len(path) :]:
                out.append((None, self._start(element, opened)))
            out.append((owner.wrap, text))
            current = owner
        pieces = groupby(((wrap, text) for wrap, text in out if text), key=lambda piece: piece[0])
        joined = ((wrap, "".join(text for _, text in some)) for wrap, some in pieces)
        return "".join(text if wrap is None else _wrapped(self.form.quote(text), wrap) for wrap, text in joined)

    def _start(self, element: Element, opened: set[Element]) -> str:
        """Returns the start tag of an element, which may have been opened before."""
        start = self.form.again(element.start) if element in opened else element.start
        opened.add(element)
        return start


def _holds(element: Element, inner: Element, outside: tuple[Element, ...]) -> bool:
    """Returns whether an element is another one or stands in it, which is none of those outside of both."""
    return element.path[: len(inner.path)] == inner.path and len(inner.path) > len(outside)


def _wrapped(text: str, wrap: tuple[str, str]) -> str:
    return wrap[0] + text + wrap[1] if text else ""


def passages(
    tokens: Iterable[Token], form: Form, check: Callable[[], object] = lambda: None
) -> Iterator[str | Passage]:
    """Yields the texts between breaks, and what stands between them as it is."""
    segment: list[Token] = []
    for token in tokens:
        check()
        if token.kind != "break":
            segment.append(token)
            continue
        yield from _of_segment(segment, form)
        yield token.whole
        segment = []
    yield from _of_segment(segment, form)


def _of_segment(segment: list[Token], form: Form) -> Iterator[str | Passage]:
    """Yields the texts of a segment without block elements: they are parted where a sentence ends with a line, and
    where a tag has no counterpart in the segment."""
    parting = _partings(segment)
    for parted, group in groupby(range(len(segment)), parting.__contains__):
        part = [segment[number] for number in group]
        if parted or not has_words(form.read("".join(token.raw for token in part if token.kind == "text"))):
            yield "".join(token.whole for token in part)
            continue
        inner = [
            number
            for number, token in enumerate(part)
            if token.kind not in ("mark", "line", "gone") and (token.kind != "text" or token.raw.strip())
        ]
        first, last = inner[0], inner[-1] + 1
        yield "".join(token.whole for token in part[:first] if token.kind != "gone")
        yield from _passage(part[first:last], form)
        yield "".join(token.whole for token in part[last:] if token.kind != "gone")


def _partings(segment: list[Token]) -> set[int]:
    """Returns the numbers of tokens that part texts. What is left is nested well."""
    parting: set[int] = set()
    opened: list[list[Any]] = []  # number, name, whether something inside parts
    names: Counter[str] = Counter()
    said, visible = "", False  # the text since the last line break, and whether there was one

    def part(number: int) -> None:
        parting.add(number)
        if opened:
            opened[-1][2] = True

    def close(broken: bool) -> bool:
        number, name, inside = opened.pop()
        names[name] -= 1
        if broken or inside:
            part(number)
        return broken or inside

    for number, token in enumerate(segment):
        if token.kind == "text":
            said, visible = (said + token.raw)[-40:], visible or bool(token.raw.strip())
        elif token.kind == "line":
            if not visible or _ENDS_SENTENCE.search(said):
                part(number)
            said, visible = "", False
        elif token.kind == "start":
            opened.append([number, token.name, False])
            names[token.name] += 1
        elif token.kind == "end" and names[token.name]:
            while opened[-1][1] != token.name:
                close(True)
            if close(False):
                part(number)
        elif token.kind == "end":
            part(number)
    while opened:
        close(True)
    return parting


def _passage(tokens: list[Token], form: Form) -> Iterator[str | Passage]:
    """Yields one text of well nested tokens, and the white space around it."""
    text: list[str] = []
    owners: list[Element] = []
    marks: list[Mark] = []
    sizes, depth = Counter[tuple[bool, tuple[str, str]]](), 0  # of runs outside of elements, and inside
    for token in tokens:
        depth += (token.kind == "start") - (token.kind == "end")
        if token.kind == "text":
            sizes[not depth, token.wrap] += len(token.raw.strip())
    *_, base_wrap = max(sizes, key=lambda key: (key[0] and sizes[key] > 0, sizes[key]))
    element = run = base = Element(wrap=base_wrap)  # most of the text has no element of its own
    outer: list[tuple[Element, int, int, int]] = []  # around the open ones; tokens, characters, marks before them

    def add_mark(raw: str, line: bool) -> None:
        spaced = not owners or text[-1] == " "
        if line and not spaced:  # words of two lines are two words
            text.append(" ")
            owners.append(element)
        marks.append(Mark(len(owners), raw, line, (spaced and not line, False), element))

    for number, token in enumerate(tokens):
        if token.kind == "text":
            if run.wrap != token.wrap or run.path[: len(element.path)] != element.path:
                run = element if token.wrap == base.wrap else Element("", element, token.wrap)
            for character in _SPACE.sub(" ", form.read(token.raw)):
                if character == " " and marks and marks[-1].offset == len(owners):
                    marks[-1] = marks[-1]._replace(spaced=(marks[-1].spaced[0], not marks[-1].line))
                if character != " " or (owners and text[-1] != " "):
                    text.append(character)
                    owners.append(run)
        elif token.kind == "start":
            if len(element.path) == DEEPEST:
                raise UserError(f"a text of the document has more than {DEEPEST} elements inside one another.")
            outer.append((element, number, len(owners), len(marks)))
            element = run = Element(token.raw, element, base.wrap)
        elif token.kind == "end":
            inner, (element, begun, characters, before) = element, outer.pop()
            run = element
            inner.end = token.raw
            said = "".join(text[characters:])
            if not said.strip():  # an element without words is a mark
                raw = inner.start + "".join(mark.raw for mark in marks[before:]) + inner.end
                owners[characters:] = [element] * (len(owners) - characters)
            elif all(
                unicodedata.category(sign)[0] in "SMCZ" or (token.name == "a" and sign.isdigit()) for sign in said
            ):
                raw = "".join(each.whole for each in tokens[begun : number + 1] if each.kind != "gone")
                del text[characters:], owners[characters:]  # an arrow, or the number of a note
            else:
                continue
            del marks[before:]
            add_mark(raw, False)
        elif token.kind != "gone":
            add_mark(token.raw, token.kind == "line")
    whole = "".join(text).rstrip(" ")
    before, after = (
        _edges(token.raw)[side] if token.kind == "text" else "" for side, token in ((0, tokens[0]), (1, tokens[-1]))
    )
    outside = base.wrap == NO_WRAP  # white space of a run stays in one
    yield before if outside else ""
    edges = ("", "") if outside else (before, after)
    yield Passage(whole, owners[: len(whole)], marks, form, base, edges)
    yield after if outside else ""


def _edges(raw: str) -> tuple[str, str]:
    """Returns the white space before and behind a text, as it is written."""
    start = len(raw) - len(_LEADING.sub("", raw, count=1))
    end = len(_TRAILING.sub("", raw[::-1], count=1))
    return raw[:start], raw[max(start, end) :]


def _between(gap: str, marks: list[Mark], end: bool) -> list[tuple[str, str, str]]:
    """Returns each mark between white space, and at last the white space `gap` as far as it is needed."""
    out: list[tuple[str, str, str]] = []
    spaced = False
    for number, mark in enumerate(marks, 1):
        before = mark.spaced[0] and bool(gap or end) and not spaced
        after = mark.spaced[1] and not (end and number == len(marks))
        out.append((" " if before else "", mark.raw, " " if after else ""))
        spaced = mark.spaced[1] or mark.line
    needed = gap and not any(mark.line or any(mark.spaced) for mark in marks)
    return [*out, (gap if needed else "", "", "")]


def _filled(
    units: list[tuple[str, str, Element | None]], first: Element, last: Element, base: Element
) -> list[tuple[str, str, Element]]:
    """Gives units of no element the one that holds both their neighbours; `first` and `last` are those of the ends."""
    before = list(accumulate((owner for *_, owner in units), lambda left, owner: owner or left, initial=first))
    filled: list[tuple[str, str, Element]] = []
    after = last
    for (gap, text, owner), left in zip(reversed(units), reversed(before[:-1])):
        after = owner or after
        filled.append((gap, text, owner or (_shared(left, after) or (base,))[-1]))
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


class _Match:
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
        self.target, self.translated = target, _words(target)
        self.starts = [word.start for word in self.words]
        self.places = [word.start for word in self.translated], [word.end for word in self.translated]
        self.sources: list[list[int]] = [[] for _ in self.translated]  # words of the source, of each word
        links = alignment
        if links is None or is_unspaced(self.source) or is_unspaced(target):  # whose words have no spaces
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
