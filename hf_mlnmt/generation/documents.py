"""Documents whose text is translated and whose form stays: HTML, subtitles (SubRip), plain text.

`read` makes a Document: its `texts` are translated, `write` puts the translations into their places. Whatever is not
translated comes out character for character as it came in: so the markup is read here, since parsers (lxml, selectolax,
srt) write tags, entities and ends of lines anew.

HTML and subtitles are read as one list of tokens. Block elements (paragraphs, cells, items) part texts from one
another. Inside a text, an inline element follows its words: each word of the translation is in the elements of the
word that it translates, as the hypothesis' alignment says; without one, words that are the same on both sides and the
relative positions between them say it. An element that comes apart is written twice, the second time without its id;
one of which no word is left keeps the nearest word. What has no words (images, comments, code, an empty anchor) stays
beside its neighbour. Reading and writing take time in proportion to the length, whatever the markup.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import accumulate, chain, groupby, pairwise, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from hf_mlnmt.data.lines import format_of, open_text
from hf_mlnmt.data.words import is_unspaced, is_visible, words
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.pipeline import Hypothesis
from hf_mlnmt.generation.segments import split_sentences

DEEPEST = 100  # inline elements inside one another
Check = Callable[[], object]
Format = Literal["text", "html", "srt"]
FORMATS: dict[str, Format] = {".html": "html", ".htm": "html", ".srt": "srt"}  # whose files are no lines of text


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_INLINE = _names(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark q ruby s small span strike strong sub sup "
    "time tt u"
)
_VOID = _names("area base br col embed hr img input link meta param source track wbr")
_OPAQUE_INLINE = _names("code kbd samp var math svg rt rp object audio video canvas")
_RAW = _names("script style textarea title iframe noembed noframes xmp")  # hold no tags, whatever is there
_OPAQUE = _OPAQUE_INLINE | _RAW - {"title"} | {"pre", "template"}
_ENDED_BY_SIBLING = _names("p li dt dd td th tr option")
# A comment or a tag that does not end takes the rest. Possessive: a start tag that does not end is given up after one
# look.
_TAG = re.compile(
    r"""<!--.*?(?:-->|\Z)|</(?P<end>[a-zA-Z][^\s/>]*)[^>]*>?|<[!?/][^>]*>?"""
    r"""|<(?P<start>[a-zA-Z][^\s/>]*+)(?P<attributes>(?:[^>"'=]|=\s*+(?:"[^"]*"|'[^']*')?|["'])*+)>|<[a-zA-Z].*\Z""",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'=<>`]+))?""")
_ID = re.compile(r"""(?<!\s)\s+id\s*=\s*("[^"]*"|'[^']*'|[^\s"'=<>`]+)""", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\n\r\f\xa0]+")
# White space as it is written, at the start of a text; or at its end, of the text turned round (a search for the end
# would begin anew at each space).
_LEADING = re.compile(r"(?:\s|&nbsp;|&#160;|&#xa0;)*+", re.IGNORECASE)
_TRAILING = re.compile(r"(?:\s|;psbn&|;061#&|;0ax#&)*+", re.IGNORECASE)
_ENDS_SENTENCE = re.compile(r"[.!?…。！？:։۔।][\"'”’“»›)\]}]*\s*$")
_TIME = re.compile(r"\s*\d+:\d\d:\d\d[,.]\d+\s*-->\s*\d+:\d\d:\d\d[,.]\d+.*")
_DASH = re.compile(r"\s*[-\u2010-\u2015\u2212]+(?!\d)\s*")
_CUE = re.compile(r"(\r?\n)|(</?[a-zA-Z][^<>\n]*>|\{\\[^{}\n]*\})")


class Form(NamedTuple):
    """The characters of a format: how they are read, and how text is written."""

    read: Callable[[str], str] = str
    quote: Callable[[str], str] = str


HTML, PLAIN = Form(unescape, lambda text: escape(text, quote=False)), Form()


class Element:
    """An inline element around words; `path`: it and those around it, the outermost first. A text's own has none."""

    def __init__(self, start: str = "", around: tuple[Element, ...] = ()) -> None:
        self.start, self.end = start, ""
        self.path = (*around, self) if start else ()


def _shared(first: Element, second: Element) -> tuple[Element, ...]:
    """Returns the path of the innermost element that holds both."""
    pairs = takewhile(lambda pair: pair[0] is pair[1], zip(first.path, second.path))
    return tuple(element for element, _ in pairs)


class Token(NamedTuple):
    """A piece of the document. `break`: between texts; `mark`: stays in its text, without words; `line`: a line break,
    which parts two texts where a sentence ends."""

    kind: Literal["text", "start", "end", "mark", "line", "break"]
    raw: str
    name: str = ""


class Mark(NamedTuple):
    """Something without words at an offset of a text; whether white space stands before and behind it."""

    offset: int
    raw: str
    line: bool
    spaced: tuple[bool, bool]


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


@dataclass
class Document:
    """Parts that stay as they are, and passages, whose sentences or lines (`texts`) are translated."""

    parts: list[str | Passage]
    check: Check = lambda: None

    @property
    def texts(self) -> list[str]:
        """Returns the texts in order; each is to be translated by itself."""
        return [text for part in self.parts if not isinstance(part, str) for text in part.sentences]

    def write(self, hypotheses: Sequence[Hypothesis]) -> str:
        """Returns the document with these in the places of its texts."""
        rest = iter(hypotheses)
        return "".join(
            part if isinstance(part, str) else part.write([next(rest) for _ in part.sentences], self.check)
            for part in self.parts
        )


@dataclass
class Passage:
    """Text with inline elements: `owners` are the elements of its characters, `marks` what stands between words."""

    text: str
    owners: list[Element]
    marks: list[Mark]
    quote: Callable[[str], str]
    sentences: list[str] = field(init=False)
    spaces: list[str] = field(init=False)

    def __post_init__(self) -> None:
        pieces = split_sentences(self.text)
        self.sentences, self.spaces = [piece.text for piece in pieces], [piece.space for piece in pieces]

    def write(self, hypotheses: Sequence[Hypothesis], check: Check) -> str:
        """Returns the translated sentences, with elements and marks."""
        units: list[tuple[str, str, Element]] = []  # white space before, text, element
        placed: dict[int, list[Mark]] = {}  # before which unit
        offset, rest = 0, deque(self.marks)  # which stand in the order of their offsets
        for number, (sentence, space, hypothesis) in enumerate(zip(self.sentences, self.spaces, hypotheses)):
            end = offset + len(sentence)
            last = number == len(self.sentences) - 1
            first, between = len(units), " " if units else ""
            if units and not self.spaces[number - 1] and unicodedata.east_asian_width(units[-1][1][-1:] or " ") in "WF":
                between = ""
            match = _Match(sentence, self.owners[offset:end], hypothesis)
            units += [(gap if i else between, text, owner) for i, (gap, text, owner) in enumerate(match.units())]
            while rest and (last or rest[0].offset < end + len(space)):
                check()
                mark = rest.popleft()
                unit = first + match.place(mark.offset - offset, mark.line, mark.spaced[0])
                placed.setdefault(unit, []).append(mark)
            offset = end + len(space)
        out: list[str] = []
        opened: set[Element] = set()
        current = Element()
        for number, (gap, text, owner) in enumerate([*units, ("", "", Element())]):
            check()
            same = len(_shared(current, owner))
            out += [element.end for element in reversed(current.path[same:])]
            out.append(_between(gap, placed.get(number, []), number == len(units)))
            for element in owner.path[same:]:
                out.append(_ID.sub("", element.start) if element in opened else element.start)
                opened.add(element)
            out.append(self.quote(text))
            current = owner
        return "".join(out)


def read(text: str, format: Format, check: Check = lambda: None) -> Document:
    """Reads a document of this format.

    Args:
        check: called at every step of reading and of `write`; it ends them by raising an error.

    Raises: UserError for one that cannot be read.
    """
    if text.startswith("\ufeff"):  # the mark of an encoding, which editors put there
        return Document(["\ufeff", *read(text[1:], format, check).parts], check)
    if format == "html":
        parts = _passages(_html_tokens(text), HTML, check)
    elif format == "srt":
        parts = _subtitles(text, check)
    else:
        lines = text.splitlines(keepends=True)
        parts = chain.from_iterable(_passages([Token("text", line)], PLAIN, check) for line in lines)
    return Document(list(parts), check)


def read_file(path: str | Path) -> Document:
    """Reads a document, plain or packed, of the format that its name says. Raises: UserError as `read_lines`."""
    with open_text(Path(path)) as file:
        try:
            return read(file.read().decode("utf-8"), FORMATS[format_of(Path(path))])
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: byte {error.start} is not UTF-8. Save it as UTF-8.") from error
        except UserError as error:
            raise UserError(f"{path}: {error}") from error


def _subtitles(text: str, check: Check) -> Iterator[str | Passage]:
    """Yields the cues of SubRip: numbers, times and the dashes of speakers stay; a text is all lines of a cue up to
    the end of a sentence, or to the next speaker."""
    lines = text.splitlines(keepends=True)
    times = [number for number, line in enumerate(lines) if _TIME.fullmatch(line.rstrip("\r\n"))]
    if not times:
        raise UserError("no line gives the times of a subtitle, as in 00:00:01,000 --> 00:00:02,500: not SubRip (srt).")
    yield "".join(lines[: times[0]])
    for start, following in pairwise([*times, len(lines)]):
        end = start + 1
        while end < following and lines[end].strip():
            end += 1
        yield lines[start]
        yield from _passages(_cue_tokens("".join(lines[start + 1 : end])), PLAIN, check)
        yield "".join(lines[end:following])


def _cue_tokens(cue: str) -> list[Token]:
    tokens: list[Token] = []
    done, line, begins = 0, None, True  # the last line break; whether the line has no text, yet
    for match in [*_CUE.finditer(cue), None]:
        text = cue[done : match.start() if match else None]
        if begins and (dash := _DASH.match(text)):
            tokens.append(Token("mark", dash[0]))
            text = text[dash.end() :]
            if line is not None:
                tokens[line] = tokens[line]._replace(kind="break")
        tokens.append(Token("text", text))
        if match is None:
            break
        begins = bool(match[1]) or (begins and not text.strip())
        done = match.end()
        if match[1]:
            line = len(tokens)
            tokens.append(Token("line", match[0]))
        elif match[0].startswith("{"):
            tokens.append(Token("mark", match[0]))
        else:
            name = re.sub(r"\W.*", "", match[0].lstrip("</"), flags=re.DOTALL).lower()
            tokens.append(Token("end" if match[0].startswith("</") else "start", match[0], name))
    return tokens


def _html_tokens(html: str) -> Iterator[Token]:
    at = 0
    while match := _TAG.search(html, at):
        if match.start() > at:
            yield Token("text", html[at : match.start()])
        at, raw, name = match.end(), match[0], (match["start"] or match["end"] or "").lower()
        inline = name in _INLINE or "-" in name
        if not name:
            yield Token("mark", raw)
        elif match["end"]:
            yield Token("end" if inline else "break", raw, name)
        elif name == "br":
            yield Token("line", raw, name)
        elif name in _VOID:
            yield Token("mark" if name in ("img", "wbr", "input") else "break", raw, name)
        elif name in _OPAQUE or _untranslated(match["attributes"]):
            at = _end_of_element(html, at, name)
            yield Token("mark" if inline or name in _OPAQUE_INLINE else "break", html[match.start() : at])
        else:
            yield Token("start" if inline else "break", raw, name)
    if at < len(html):
        yield Token("text", html[at:])


def _untranslated(attributes: str) -> bool:
    if "translate" not in attributes.lower():
        return False
    named = {match[1].lower(): (match[2] or "").strip("\"'") for match in _ATTRIBUTE.finditer(attributes)}
    return named.get("translate", "").lower() == "no" or "notranslate" in named.get("class", "").split()


def _end_of_element(html: str, at: int, name: str) -> int:
    """Returns the end of an element whose start tag ends here: behind its end tag, or where a sibling or the document
    ends."""
    if name in _RAW:
        match = re.compile(rf"</{name}(?=[\s/>])[^>]*>?", re.IGNORECASE).search(html, at)
        return match.end() if match else len(html)
    depth = 1
    for match in re.compile(rf"<(/?)({re.escape(name)})(?=[\s/>])", re.IGNORECASE).finditer(html, at):
        if not match[1] and depth == 1 and name in _ENDED_BY_SIBLING:
            return match.start()
        tag = _TAG.match(html, match.start())
        assert tag is not None
        depth += -1 if match[1] else not tag[0].endswith("/>")
        if not depth:
            return tag.end()
    return len(html)


def _passages(tokens: Iterable[Token], form: Form, check: Check) -> Iterator[str | Passage]:
    """Yields the texts between breaks, and what stands between them as it is."""
    segment: list[Token] = []
    for token in tokens:
        check()
        if token.kind != "break":
            segment.append(token)
            continue
        yield from _of_segment(segment, form)
        yield token.raw
        segment = []
    yield from _of_segment(segment, form)


def _of_segment(segment: list[Token], form: Form) -> Iterator[str | Passage]:
    """Yields the texts of a segment without block elements: they are parted where a sentence ends with a line, and
    where a tag has no counterpart in the segment."""
    parting = _partings(segment)
    for parted, group in groupby(range(len(segment)), parting.__contains__):
        part = [segment[number] for number in group]
        if parted or not any(token.kind == "text" and any(map(str.isalpha, form.read(token.raw))) for token in part):
            yield "".join(token.raw for token in part)
            continue
        inner = [
            number
            for number, token in enumerate(part)
            if token.kind not in ("mark", "line") and (token.kind != "text" or token.raw.strip())
        ]
        first, last = inner[0], inner[-1] + 1
        yield "".join(token.raw for token in part[:first])
        yield from _passage(part[first:last], form)
        yield "".join(token.raw for token in part[last:])


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
    element = Element()
    outer: list[tuple[Element, int, int]] = []  # around the open elements, with the characters and marks before them

    def add_mark(raw: str, line: bool) -> None:
        spaced = not owners or text[-1] == " "
        if line and not spaced:  # words of two lines are two words
            text.append(" ")
            owners.append(element)
        marks.append(Mark(len(owners), raw, line, (spaced and not line, False)))

    for token in tokens:
        if token.kind == "text":
            for character in _SPACE.sub(" ", form.read(token.raw)):
                if character == " " and marks and marks[-1].offset == len(owners):
                    marks[-1] = marks[-1]._replace(spaced=(marks[-1].spaced[0], not marks[-1].line))
                if character != " " or (owners and text[-1] != " "):
                    text.append(character)
                    owners.append(element)
        elif token.kind == "start":
            if len(element.path) == DEEPEST:
                raise UserError(f"a text of the document has more than {DEEPEST} elements inside one another.")
            outer.append((element, len(owners), len(marks)))
            element = Element(token.raw, element.path)
        elif token.kind == "end":
            inner, (element, characters, before) = element, outer.pop()
            inner.end = token.raw
            if all(character == " " for character in text[characters:]):  # an element without words is a mark
                raw = inner.start + "".join(mark.raw for mark in marks[before:]) + inner.end
                del marks[before:]
                owners[characters:] = [element] * (len(owners) - characters)
                add_mark(raw, False)
        else:
            add_mark(token.raw, token.kind == "line")
    whole = "".join(text).rstrip(" ")
    yield _edges(tokens[0].raw)[0] if tokens[0].kind == "text" else ""
    yield Passage(whole, owners[: len(whole)], marks, form.quote)
    yield _edges(tokens[-1].raw)[1] if tokens[-1].kind == "text" else ""


def _edges(raw: str) -> tuple[str, str]:
    """Returns the white space before and behind a text, as it is written."""
    start = len(raw) - len(_LEADING.sub("", raw, count=1))
    end = len(_TRAILING.sub("", raw[::-1], count=1))
    return raw[:start], raw[max(start, end) :]


def _between(gap: str, marks: list[Mark], end: bool) -> str:
    """Returns white space with marks in it."""
    if not marks:
        return gap
    out, spaced = [], False
    for mark in marks:
        before = mark.spaced[0] and bool(gap or end) and not spaced
        out += [" " if before else "", mark.raw, " " if mark.spaced[1] and not end else ""]
        spaced = mark.spaced[1]
    needed = gap and not any(mark.line or any(mark.spaced) for mark in marks)
    return "".join(out) + (" " if needed else "")


def _filled(
    units: list[tuple[str, str, Element | None]], first: Element, last: Element
) -> list[tuple[str, str, Element]]:
    """Gives units of no element the one that holds both their neighbours; `first` and `last` are those of the ends."""
    before = list(accumulate((owner for *_, owner in units), lambda left, owner: owner or left, initial=first))
    filled: list[tuple[str, str, Element]] = []
    after = last
    for (gap, text, owner), left in zip(reversed(units), reversed(before[:-1])):
        after = owner or after
        filled.append((gap, text, owner or (_shared(left, after) or (Element(),))[-1]))
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

    def __init__(self, source: str, owners: list[Element], hypothesis: Hypothesis) -> None:
        self.source, self.owners, self.target = source, owners, hypothesis.text
        self.words, self.translated = _words(source), _words(hypothesis.text)
        self.starts = [word.start for word in self.words]
        self.places = [word.start for word in self.translated], [word.end for word in self.translated]
        self.sources: list[list[int]] = [[] for _ in self.translated]  # words of the source, of each word
        links = hypothesis.alignment
        if links is None or is_unspaced(source) or is_unspaced(hypothesis.text):  # whose words have no spaces
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
                for text, element in self._part(number, side, self.target[start:end], owner) if start < end else ():
                    result.append((gap, text, element))
                    gap = ""
                if side == 1:
                    core = len(result)
            self.ends.append((before, core, len(result)))
        if not self.translated:
            result.append(("", self.target, self.owners[0]))
        self.count = len(result) + len(lost)
        return _filled(result, self.owners[0], self.owners[-1]) + [("", "", element) for element in lost]

    def _part(self, number: int, side: int, text: str, owner: Element | None) -> Iterator[tuple[str, Element | None]]:
        """Yields the part before (0), in (1) or behind (2) the core of a word. If the source has the same part, it is
        divided as it is there."""
        for read in self.sources[number]:
            start, end = self.words[read].parts[side]
            if self.source[start:end] == text and (side != 1 or owner in self.owners[start:end]):
                at = 0
                for element, run in groupby(self.owners[start:end]):
                    length = len(list(run))
                    yield text[at : at + length], element
                    at += length
                return
        yield text, owner if side == 1 else None

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
