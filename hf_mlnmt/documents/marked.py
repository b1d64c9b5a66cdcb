"""Documents: texts to translate, and markup between them, which `write` copies character by character.

A format's reader makes a list of tokens. Breaks (the tags of paragraphs, cells, items) separate texts. Inside a text
each word of the translation gets the inline elements of the source word that it translates, by the hypothesis'
alignment; without an alignment by words that are equal on both sides and relative positions between these. An element
whose words are no longer neighbours is written twice; an element to which no word is linked gets the nearest word.
Markup without words (images, comments, code, empty anchors) stays beside its neighbour. Numbers, codes and placeholders
that a translation lacks are inserted (`Linked.put_back`). Reading and writing take time linear in the length.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape, unescape
from itertools import chain, groupby
from typing import Any, Literal, NamedTuple

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import base_language
from hf_mlnmt.data.placeholders import has_words
from hf_mlnmt.documents.matching import NO_WRAP, SLOT, Element, Match, shared
from hf_mlnmt.generation import Hypothesis, split_sentences

_RIGHT_TO_LEFT = frozenset(["Arab", "Hebr", "Syrc", "Thaa", "Nkoo", "Adlm", "Rohg", "Mand", "Samr", "Yezi"])
DEEPEST = 100  # most inline elements inside one another; a deeper document is refused
_SLOT = re.compile("\ufdd0(\\d+)\ufdd1")
_ID = re.compile(r"""(?<!\s)\s+id\s*=\s*("[^"]*"|'[^']*'|[^\s"'=<>`]+)""", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\n\r\f\xa0]+")
# White space, also as entities, at the start of a text (_LEADING) and at the end of a text (_TRAILING).
# _TRAILING is matched on the reversed text: a pattern that is anchored at the end would take quadratic time.
_LEADING = re.compile(r"(?:\s|&nbsp;|&#160;|&#xa0;)*+", re.IGNORECASE)
_TRAILING = re.compile(r"(?:\s|;psbn&|;061#&|;0ax#&)*+", re.IGNORECASE)
# Matches the sign of a footnote or of a link to a heading, which is not translated: 1, [a], [note 1], ¶.
_NOTE = re.compile(r"\W*\d{0,3}\W*|\[{1,2}(?:\w|[\w-]+\W\d+)\]{1,2}")
_OF_SENTENCES = re.compile(r"[\w.,;:!?\u2026'\"()\[\]{}\u2010-\u2015\u2018-\u201f\xab\xbb\u3000-\u303f\uff00-\uff65-]")
_JOINT = re.compile(r"\s?(?![.\u2026\u3002]\s)[^\w\s()\[\]{}\"'!?\u2018-\u201f\xab\xbb]{1,3}\s?")
_ENDS_SENTENCE = re.compile(r"[.!?…。！？:։۔।][\"'”’“»›)\]}]*\s*$")


def without_id(tag: str) -> str:
    """Returns a start tag without its id, for the second part of an element that is written twice."""
    return _ID.sub("", tag)


class Form(NamedTuple):
    """Functions that decode and encode text of a format, and that change or judge its start tags.

    `read` decodes raw text (entities); `quote` encodes text. `again` returns the start tag for the second part of an
    element that is written twice. `needed` returns by a start tag whether the element must be in the translation.
    `ordered`: marks keep their order, since some may open and others close an element.
    """

    read: Callable[[str], str] = str
    quote: Callable[[str], str] = str
    again: Callable[[str], str] = without_id
    ordered: bool = False
    needed: Callable[[str], object] = bool


# Matches start tags of links and of elements with an id, which must not be left out of a translation.
_NEEDED = re.compile(r"<a\b|.*?\sid\s*=", re.IGNORECASE | re.DOTALL).match
HTML, PLAIN = Form(unescape, lambda text: escape(text, quote=False), needed=_NEEDED), Form(needed=_NEEDED)


class Token(NamedTuple):
    """A piece of a document. Kinds: `break` separates texts; `mark` is markup without words inside of a text, which
    readers see if its name is "kept" (code); `line` is a line break, which separates texts if a sentence ends there;
    `gone` is left out of translations. `wrap`: markup before and after a text (a run of Word)."""

    kind: Literal["text", "start", "end", "mark", "line", "break", "gone"]
    raw: str
    name: str = ""
    wrap: tuple[str, str] = NO_WRAP

    @property
    def whole(self) -> str:
        """Returns the token's raw text with its wrap, as it is in the document."""
        return self.raw.join(self.wrap)


class Mark(NamedTuple):
    """Markup without words (image, comment, line break) at an offset of a text, inside of the element `owner`.

    `line`: a line break. `spaced`: whether white space is before the mark, and after it. `end`: number of the token
    after the mark. `kept`: readers see the mark (code). `sign`: punctuation follows the mark.
    """

    offset: int
    raw: str
    line: bool
    spaced: tuple[bool, bool]
    owner: Element
    end: int
    kept: bool = False
    sign: bool = False


class Reading:
    """Settings for reading a document, and a register (`slots`) of the texts inside of tags and marks.

    Args:
        check: called at every step of reading and writing; can end both by raising an error.
        language: tag of the target language (de, pt-BR); None: language attributes stay as they are.
        fuzzy: translations are marked as not reviewed, where the format can do that (po, xliff).
        most: number of bytes that an archive may unpack to.
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
        self.kept: set[str] = set()  # names of styles of code and of hidden text; in Excel names of columns
        self.raised: set[str] = set()  # names of superscript styles

    def slot(self, parts: Iterable[str | Passage]) -> str:
        """Registers the parts of a text inside a tag for translation, and returns a placeholder, which Document.write
        replaces by the translation; returns parts without a passage as they are."""
        parts = list(parts)
        if all(isinstance(part, str) for part in parts):
            return "".join(map(str, parts))
        self.slots.append(parts)
        return f"\ufdd0{len(self.slots) - 1}\ufdd1"

    def text(self, raw: str, form: Form) -> str:
        """Registers a text inside a tag (an attribute's value) for translation; returns the placeholder of `slot`."""
        return self.slot(passages([Token("text", raw)], form, self.check))

    @cached_property
    def right_to_left(self) -> bool:
        """Returns whether the translation is written from right to left."""
        from langcodes import Language  # imported only here: the import takes a tenth of a second

        return Language.get(self.language or "und").maximize().script in _RIGHT_TO_LEFT

    def relabelled(self, code: str) -> str:
        """Returns the target language if `code` is the document's language (the first code given), else `code`."""
        self.source = self.source or base_language(code)
        return self.language if self.language and base_language(code) == self.source else code


@dataclass
class Document:
    """A document: parts that stay as they are (str), and passages, whose sentences (`texts`) are translated.

    Args:
        members: {file of an archive: its parts}; {"": parts} for a single file.
        reading: the Reading with the texts inside of tags and marks.
        original: the document as it was read, which `write` returns where there is nothing to translate.
        pack: makes the document of {member: its new text}.
    """

    members: Mapping[str, Sequence[str | Passage | Checked]]
    reading: Reading
    original: Any
    pack: Callable[[dict[str, str]], Any]

    @property
    def _passages(self) -> Iterator[Passage | Checked]:
        for parts in chain(self.members.values(), self.reading.slots):
            yield from (part for part in parts if not isinstance(part, str))

    @property
    def left(self) -> int:
        """Returns the number of messages that stay untranslated: of refused translations, and messages not read."""
        return sum(part.left for part in self._passages if isinstance(part, Checked))

    @property
    def texts(self) -> list[str]:
        """Returns the sentences of all passages in order; each is to be translated by itself."""
        return [text for passage in self._passages for text in passage.sentences]

    def keep_whole(self, known: Callable[[str], object]) -> None:
        """Makes one text of the sentences of each passage that is `known` as a whole."""
        for part in self._passages:
            for passage in part.passages:
                if len(passage.sentences) > 1 and known(passage.text):
                    passage.sentences, passage.spaces = [passage.text], [""]

    def too_long(self, hypotheses: Sequence[Hypothesis]) -> list[tuple[range, int]]:
        """Returns of each unit whose translation is longer than it may be the numbers of its texts, and its limit."""
        found, end = list[tuple[range, int]](), 0
        for part in self._passages:
            numbers = range(end, end + len(part.sentences))
            end = numbers.stop
            limit = part.limit if isinstance(part, Checked) else None
            if limit is not None and width_of(hypotheses[numbers.start : end]) > limit:
                found.append((numbers, limit))
        return found

    def write(self, hypotheses: Sequence[Hypothesis]) -> Any:
        """Returns the document, a string or the bytes of a file, with the translations of `texts` in their places."""
        if not hypotheses and not self.left:
            return self.original
        rest, check = iter(hypotheses), self.reading.check
        members = {name: _written(parts, rest, check) for name, parts in self.members.items()}
        slots: list[str] = []  # texts of the slots; a slot contains only placeholders of earlier slots
        for text in (_written(parts, rest, check) for parts in self.reading.slots):
            slots.append(_SLOT.sub(lambda match: slots[int(match[1])], text))
        return self.pack({n: _SLOT.sub(lambda match: slots[int(match[1])], text) for n, text in members.items()})


def _written(parts: Iterable[str | Passage | Checked], rest: Iterator[Hypothesis], check: Callable[[], object]) -> str:
    return "".join(
        part if isinstance(part, str) else part.write([next(rest) for _ in part.sentences], check) for part in parts
    )


def width_of(hypotheses: Sequence[Hypothesis]) -> int:
    """Returns the number of characters of a unit's translation, whose sentences have a space between them."""
    return len(" ".join(hypothesis.text for hypothesis in hypotheses))


@dataclass
class Checked:
    """Parts of a message that are translated together or not at all.

    `finish` makes the final text of the translated parts, or returns None to refuse the translation: then `write`
    returns the text `before`. `left`: the message is or stays untranslated. `limit`: the most characters.
    A part that is a function is called with that translation of the message that is least like the memory's.
    """

    parts: Sequence[str | Passage | Checked | Callable[[Hypothesis], str]]
    finish: Callable[[str], str | None]
    before: str
    left: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        self.left = self.left or any(isinstance(part, Checked) and part.left for part in self.parts)

    @property
    def sentences(self) -> list[str]:
        return [sentence for passage in self.passages for sentence in passage.sentences]

    @property
    def passages(self) -> list[Passage]:
        """Returns all passages, in order."""
        inner = (part for part in self.parts if isinstance(part, Checked | Passage))
        return [passage for part in inner for passage in part.passages]

    def write(self, hypotheses: Sequence[Hypothesis], check: Callable[[], object]) -> str:
        """Returns the text of the parts with the translated sentences. If `finish` or a part refuses the translation,
        sets `left` and returns `before`."""
        least = min(
            hypotheses, key=lambda each: each.match.percent if each.match else 0, default=Hypothesis("", 0, 0, 0)
        )
        parts = (part(least) if callable(part) else part for part in self.parts)
        done = self.finish(_written(parts, iter(hypotheses), check))
        self.left = self.left or done is None or any(isinstance(part, Checked) and part.left for part in self.parts)
        return self.before if done is None or self.left else done


def check_text(text: str) -> str:
    """Returns the text of a document unchanged. Raises: UserError if it has a noncharacter of placeholders (SLOT)."""
    if match := re.search(SLOT, text):
        raise UserError(f"holds U+{ord(match[0]):04X}, which is no character. Remove it.")
    return text


@dataclass
class Passage:
    """A text to translate, with inline elements. `owners`: the innermost element of each character; `marks`: markup
    without words; `edges`: white space before and after the text, if it must stay inside of a run (Word)."""

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

    @property
    def passages(self) -> list[Passage]:
        return [self]

    def leave_out(self, place: int) -> None:
        """Removes the character at offset `place` from the text to translate."""
        self.text = self.text[:place] + self.text[place + 1 :]
        del self.owners[place]
        self.marks = [mark._replace(offset=mark.offset - (mark.offset > place)) for mark in self.marks]
        self.__post_init__()

    def write(self, hypotheses: Sequence[Hypothesis], check: Callable[[], object]) -> str:
        """Returns the translated sentences as raw text, with the tags of elements and with the marks."""
        units: list[tuple[str, str, Element]] = []  # units of the translation: (white space before, text, element)
        placed: dict[int, list[Mark]] = {}  # {number of a unit: marks before the unit}
        offset, at, rest = 0, 0, deque(self.marks)  # `marks` is sorted by offsets
        line, line_at = 0, -1  # last line break: number of the unit after it, its offset
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
            match = Match(sentence, self.owners[offset:end], hypothesis, self.base, cuts)
            units += [(gap if i else between, text, owner) for i, (gap, text, owner) in enumerate(match.units())]
            for mark in marks:
                check()
                inside = mark.line and 0 < mark.offset < len(self.text) and mark.offset != line_at
                least = line + 1 - first if inside else 0
                unit = first + match.place(mark.offset - offset, mark.line, mark.spaced[0], least)
                # Drops a line end of the file (not <br>) on a line without text: an empty line ends a cue or paragraph.
                ends = inside and mark.raw.strip("\\ \t")[:1] in ("\r", "\n")
                if ends and (not any(text for _, text, _ in units[line:unit]) or (last and unit == len(units))):
                    continue
                line, line_at = (unit, mark.offset) if mark.line else (line, line_at)
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
        """Joins units, with tags of their elements and marks between: Der, Hund in <b>, <br> -> Der <b>Hund</b><br>."""
        out: list[tuple[tuple[str, str] | None, str]] = []  # (wrap, text) of texts, (None, raw) of markup
        opened: set[Element] = set()
        current = self.base
        for number, (gap, text, owner) in enumerate([*units, ("", "", self.base)]):
            check()
            same, marks = shared(current, owner), placed.get(number, [])
            # Puts white space into the run with the shorter markup, so that a space before a link is not underlined.
            beside = [each.wrap for each in (current, owner) if each.path in (same, (*same, each)) and not each.start]
            around = min(beside or [(same or (self.base,))[-1].wrap], key=lambda wrap: len(wrap[0]))
            path, late = list(current.path), ""
            inside = [place for place, mark in enumerate(marks) if _holds(current, mark.owner, same)]
            first = inside[-1] + 1 if inside else 0  # marks[:first] come before end tags, marks[last:] after start tags
            last = next((n for n in range(first, len(marks)) if _holds(owner, marks[n].owner, same)), len(marks))
            for place, (before, raw, after) in enumerate(_between(gap, marks, number == len(units), text[:1])):
                depth = len(marks[place].owner.path) if place < len(marks) else 0
                kept = max(depth, len(same)) if place < first else len(same) if place <= last else len(path)
                while len(path) > kept:
                    out.append((None, path.pop().end))
                out.append((around, late + before))
                for element in owner.path[len(path) : depth] if place >= last else ():
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
        return "".join(text if wrap is None else self.form.quote(text).join(wrap) for wrap, text in joined)

    def _start(self, element: Element, opened: set[Element]) -> str:
        """Returns the start tag of an element, changed by `form.again` if the element was opened before."""
        start = self.form.again(element.start) if element in opened else element.start
        opened.add(element)
        return start


def _holds(element: Element, inner: Element, outside: tuple[Element, ...]) -> bool:
    """Returns whether `element` is `inner` or inside of it, and `inner` is none of the elements `outside`."""
    return element.path[: len(inner.path)] == inner.path and len(inner.path) > len(outside)


def passages(
    tokens: Iterable[Token], form: Form, check: Callable[[], object] = lambda: None
) -> Iterator[str | Passage]:
    """Joins tokens to the parts of a document: yields a Passage for each text with words, strings for all else."""
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
    """Yields the parts of a segment, tokens between two breaks; its texts are separated where a sentence ends with a
    line, and at tags that have no counterpart in the segment."""
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
    """Returns the numbers of tokens that separate texts, as all three tags of a <b> c <i> d </b>; others nest well."""
    parting: set[int] = set()
    opened: list[list[Any]] = []  # open tags: number, name, whether a token inside separates texts
    names: Counter[str] = Counter()
    said, visible = "", False  # the end of the current line (40 characters); whether the line has visible text

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


def _main_run(tokens: list[Token]) -> tuple[str, str]:
    """Returns the wrap of the most text (outside of elements if any is), for the base element."""
    sizes, depth = Counter[tuple[bool, tuple[str, str]]](), 0
    for token in tokens:
        depth += (token.kind == "start") - (token.kind == "end")
        if token.kind == "text":
            sizes[not depth, token.wrap] += len(token.raw.strip())
    return max(sizes, key=lambda key: (key[0] and sizes[key] > 0, sizes[key]))[1]


def _passage(tokens: list[Token], form: Form) -> Iterator[str | Passage]:
    """Yields white space and the Passage of well nested tokens: " a <b>c</b>" -> " ", Passage of "a c"."""
    text: list[str] = []
    owners: list[Element] = []
    marks: list[Mark] = []
    element = run = base = Element(wrap=_main_run(tokens))
    # Stack of open elements: the element around each, and the numbers of tokens, characters and marks before it.
    outer: list[tuple[Element, int, int, int]] = []

    def add_mark(raw: str, start: int, end: int, line: bool = False, kept: bool = False) -> None:
        """Adds tokens[start:end] as a mark; joins the mark to the one before if at most a sign (hyphen) is between."""
        spaced = not owners or text[-1] == " "
        before = marks[-1] if marks and marks[-1].owner is element and not line and not marks[-1].line else None
        between = "".join(text[before.offset :]) if before else ""
        if before and ((kept and before.kept and _JOINT.fullmatch(between)) or not (between or before.spaced[1])):
            raw = before.raw + "".join(each.whole for each in tokens[before.end : start] if each.kind != "gone") + raw
            marks[-1] = before._replace(raw=raw, spaced=(before.spaced[0], False), end=end, kept=kept, sign=False)
            del text[before.offset :], owners[before.offset :]
            return
        if line and not spaced:  # adds a space: a line break separates words
            text.append(" ")
            owners.append(element)
        marks.append(Mark(len(owners), raw, line, (spaced and not line, False), element, end, kept))

    for number, token in enumerate(tokens):
        if token.kind == "text":
            if run.wrap != token.wrap or run.path[: len(element.path)] != element.path:
                run = element if token.wrap == base.wrap else Element("", element, token.wrap)
            for character in _SPACE.sub(" ", form.read(token.raw)):
                if character == " " and marks and marks[-1].offset == len(owners):
                    marks[-1] = marks[-1]._replace(spaced=(marks[-1].spaced[0], not marks[-1].line))
                elif marks and marks[-1].offset == len(owners):
                    marks[-1] = marks[-1]._replace(sign=not character.isalnum())
                if character != " " or (owners and text[-1] != " "):
                    text.append(character)
                    owners.append(run)
        elif token.kind == "start":
            if len(element.path) == DEEPEST:
                raise UserError(f"a text of the document has more than {DEEPEST} elements inside one another.")
            outer.append((element, number, len(owners), len(marks)))
            element = run = Element(token.raw, element, base.wrap)
            element.needed = bool(form.needed(token.raw))
        elif token.kind == "end":
            inner, (element, begun, characters, before) = element, outer.pop()
            run = element
            inner.end = token.raw
            said, kept = "".join(text[characters:]), any(mark.kept for mark in marks[before:])
            sign = f"[{said.strip()}]" if token.name == "sup" else said.strip()
            note = token.name in ("a", "sup", "[") and _NOTE.fullmatch(sign)
            if not said.strip():  # makes an element without text a mark
                raw = inner.start + "".join(mark.raw for mark in marks[before:]) + inner.end
                owners[characters:] = [element] * (len(owners) - characters)
            elif note or not _OF_SENTENCES.search(said):
                raw = "".join(each.whole for each in tokens[begun : number + 1] if each.kind != "gone")
                del text[characters:], owners[characters:]  # makes an arrow or a note's number a mark
            else:
                continue
            del marks[before:]
            add_mark(raw, begun, number + 1, kept=kept)
        elif token.kind != "gone":
            add_mark(token.raw, number, number + 1, token.kind == "line", token.name == "kept")
    whole = "".join(text).rstrip(" ")
    lead = _edges(tokens[0].raw)[0] if tokens[0].kind == "text" else ""
    trail = _edges(tokens[-1].raw)[1] if tokens[-1].kind == "text" else ""
    outside = base.wrap == NO_WRAP  # whether white space may stand outside of a run
    yield lead if outside else ""
    yield Passage(whole, owners[: len(whole)], marks, form, base, ("", "") if outside else (lead, trail))
    yield trail if outside else ""


def _edges(raw: str) -> tuple[str, str]:
    """Returns the white space before and after a raw text, as it is written."""
    start = len(raw) - len(_LEADING.sub("", raw, count=1))
    end = len(_TRAILING.sub("", raw[::-1], count=1))
    return raw[:start], raw[max(start, end) :]


def _between(gap: str, marks: list[Mark], end: bool, letter: str) -> list[tuple[str, str, str]]:
    """Returns (space before, markup, space after) of each mark, then (gap, "", ""); "" for a gap that marks replace."""
    out: list[tuple[str, str, str]] = []
    spaced = False
    for number, mark in enumerate(marks, 1):
        before = mark.spaced[0] and bool(gap or end) and not spaced
        after = mark.spaced[1] and not (end and number == len(marks))
        out.append((" " if before else "", mark.raw, " " if after else ""))
        spaced = mark.spaced[1] or mark.line
    needed = not any(mark.line or any(mark.spaced) for mark in marks) or (marks[-1].sign and letter.isalnum())
    return [*out, (gap if needed else "", "", "")]
