"""XML, read by expat for its places: what is not translated is never written anew.

Rules say what the elements of a format are. XLIFF (1.2 and 2.x) is here too, whose translations stand beside the texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape, unescape
from typing import NamedTuple
from xml.parsers import expat

from hf_mlnmt.data.kept import has_words
from hf_mlnmt.documents.html import ATTRIBUTE, attributes, quoted
from hf_mlnmt.documents.marked import Form, Passage, Reading, Token, passages
from hf_mlnmt.errors import UserError

_DEEPEST = 256  # elements inside one another, as libxml2 has it
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def _read(raw: str) -> str:
    return unescape(_CDATA.sub(lambda match: escape(match[1]), raw))


def _quote(text: str) -> str:
    return escape(_NO_XML.sub("", text), quote=False)


XML = Form(_read, _quote, ordered=True)


class Event(NamedTuple):
    """A tag, a text, or anything else of an XML file; `name` without prefix; `end`: the number of a start's end."""

    kind: str
    raw: str
    name: str = ""
    end: int = 0


def events(text: str, check: Callable[[], object]) -> list[Event]:
    """Returns what an XML file is made of; all `raw` joined are the file.

    Raises: UserError for what is no XML, is nested too deeply or declares entities: those of other files and those that
    grow without bound are refused with them.
    """
    data = text.encode()
    parser = expat.ParserCreate("utf-8", "}")
    found: list[tuple[int, str, str]] = []
    depth = 0

    def add(kind: str, name: str = "") -> None:
        nonlocal depth
        check()
        depth += (kind == "start") - (kind == "end")
        if depth > _DEEPEST:
            raise UserError(f"has more than {_DEEPEST} elements inside one another.")
        if not (kind == "text" and found and found[-1][1] == "text"):
            found.append((parser.CurrentByteIndex, kind, name.split("}")[-1]))

    def refuse(name: str, *more: object) -> None:
        raise UserError(f"declares the entity {name}; files with entities of their own are not read. Write them out.")

    parser.StartElementHandler = lambda name, attributes: add("start", name)
    parser.EndElementHandler = lambda name: add("end", name)
    parser.CharacterDataHandler = lambda text: add("text")
    parser.StartCdataSectionHandler = parser.EndCdataSectionHandler = lambda: add("text")
    parser.DefaultHandler = lambda text: add("other")
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise UserError(f"is not well-formed XML ({error}).") from error
    result: list[Event] = []
    opened: list[int] = []
    for number, ((start, kind, name), (end, *_)) in enumerate(zip(found, [*found[1:], (len(data), "", "")])):
        result.append(Event(kind, data[start:end].decode(), name))
        if kind == "start":
            opened.append(number)
        elif kind == "end":
            begun = opened.pop()
            result[begun] = result[begun]._replace(end=number)
    return result


class Rules(NamedTuple):
    """The elements of a format, by their names without prefixes.

    `blocks`: each holds a text; inside of a text `inline` follows its words, `lines` and `breaks` part, `gone` is left
    out (if it is `inline`, its tags); all others are marks, whose blocks are texts of their own, but for those of
    `opaque`. `attributes`: of which elements people read them. `languages`: attributes that name a language, by
    themselves or with their element.
    """

    blocks: frozenset[str]
    inline: frozenset[str] = frozenset()
    lines: frozenset[str] = frozenset()
    breaks: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    opaque: frozenset[str] = frozenset()
    attributes: frozenset[tuple[str, str]] = frozenset()
    languages: frozenset[tuple[str, str]] = frozenset()


@dataclass
class Part:
    """An XML file that is read by rules; `paragraph` yields the tokens of the events of a text, (first, end)."""

    text: str
    rules: Rules
    reading: Reading
    form: Form = XML
    events: list[Event] = field(init=False)

    def __post_init__(self) -> None:
        self.events = events(self.text, self.reading.check)

    def read(self) -> list[str | Passage]:
        """Returns the parts of the file."""
        return list(passages(self.tokens(0, len(self.events)), self.form, self.reading.check))

    def raw(self, number: int) -> str:
        """Returns an event as it is written, a tag with its attributes as texts."""
        event, rules = self.events[number], self.rules

        def attribute(match: re.Match[str]) -> str:
            name, value = match[1].split(":")[-1], match[3] or ""
            if value and (event.name, name) in rules.attributes:
                value = quoted(value, self.reading)
            elif len(value) > 2 and {(event.name, name), ("", name)} & rules.languages:
                value = value[0] + self.language(name, value[1:-1]) + value[-1]
            return match[1] + (match[2] or "") + value

        return re.sub(r"(?<=\s)" + ATTRIBUTE.pattern, attribute, event.raw) if event.kind == "start" else event.raw

    def language(self, name: str, code: str) -> str:
        """Returns what an attribute says that names a language."""
        return self.reading.relabelled(code)

    def tokens(self, first: int, end: int) -> Iterator[Token]:
        """Yields the tokens of some events: of each block its text, and all else as breaks."""
        while first < end:
            event = self.events[first]
            if event.kind == "start" and (event.name in self.rules.opaque or self.stays(first)):
                yield Token("break", self.whole(first))
                first = event.end
            elif event.kind == "start" and event.name in self.rules.blocks:
                yield Token("break", self.raw(first))
                inside = self.events[first + 1 : event.end]
                words = has_words(self.form.read("".join(each.raw for each in inside if each.kind == "text")))
                yield from (self.paragraph if words else self.tokens)(first + 1, event.end)
                yield Token("break", self.raw(event.end))
                first = event.end
            else:
                yield Token("break", self.raw(first))
            first += 1

    def stays(self, number: int) -> bool:
        """Returns whether an element stays as it is, for what it says of itself: code, or what is hidden."""
        return False

    def whole(self, first: int) -> str:
        """Returns an element as it is written."""
        return "".join(self.raw(number) for number in range(first, self.events[first].end + 1))

    def paragraph(self, first: int, end: int) -> Iterator[Token]:
        """Yields the tokens of the events of a text."""
        while first < end:
            event = self.events[first]
            if event.kind == "text":
                yield Token("text", event.raw)
            elif event.kind == "start" and (event.name not in self.rules.inline or self.stays(first)):
                yield self.mark(first)
                first = event.end
            elif event.name in self.rules.inline:
                kind = "gone" if event.name in self.rules.gone else event.kind
                yield Token(kind, self.raw(first), event.name)  # type: ignore[arg-type]
            else:
                yield Token("mark", event.raw)
            first += 1

    def mark(self, first: int) -> Token:
        """Returns the token of an element of a text that has no words of the text."""
        event, rules = self.events[first], self.rules
        kinds = (("line", rules.lines), ("break", rules.breaks), ("gone", rules.gone))
        kind = next((kind for kind, names in kinds if event.name in names), "mark")
        name = "kept" if kind == "mark" and self.stays(first) else ""
        return Token(kind, self.inside(first, event.end + 1), name)  # type: ignore[arg-type]

    def inside(self, first: int, end: int) -> str:
        """Returns events as they are written inside of a tag or a mark, with slots for the texts that they hold."""
        return self.reading.slot(passages(self.tokens(first, end), self.form, self.reading.check))


def read_xliff(text: str, reading: Reading) -> list[str | Passage]:
    """Returns the parts of an XLIFF file, in which each unit without a translation gets one. Raises: UserError for a
    file that is no XLIFF."""
    part = _Xliff(text, Rules(frozenset()), reading)
    root = next(event for event in part.events if event.kind == "start")
    if root.name != "xliff":
        raise UserError(f"its root is <{root.name}>, not <xliff>: not XLIFF.")
    return part.units(attributes(root.raw).get("version", "1.2") >= "2")


_PAIRS, _OPENING, _CLOSING = {"g", "pc", "mrk"}, {"bx", "bpt", "sc"}, {"ex", "ept", "ec"}


class _Xliff(Part):
    """A file whose translations stand behind their texts."""

    def units(self, second: bool) -> list[str | Passage]:
        """Returns its parts; `second`: of version 2."""
        parts: list[str | Passage] = []
        self.form = self.form._replace(again=_copy if second else str)
        number, skipped, unit = 0, -1, 0
        language = self.reading.language
        while number < len(self.events):
            event = self.events[number]
            raw = event.raw
            if event.kind == "start":
                named = attributes(raw)
                if named.get("translate") == "no" and event.name not in _PAIRS:
                    skipped = max(skipped, event.end)
                wanted = {("xliff", True): "trgLang", ("file", False): "target-language"}.get((event.name, second))
                if wanted and language and wanted.lower() not in named:
                    raw = re.sub(r"(\s*/?>)$", rf' {wanted}="{language}"\1', raw)
                if event.name in ("trans-unit", "segment"):
                    unit = number
                if event.name == "source" and unit:
                    done = number > skipped and self._translate(unit, number, parts, second)
                    unit = 0
                    if done:
                        number = done
                        continue
            parts.append(raw)
            number += 1
        return parts

    def _translate(self, unit: int, source: int, parts: list[str | Passage], second: bool) -> int:
        """Adds the source of a unit and its translation; returns the number of the event behind both, 0 for neither."""
        children: dict[str, int] = {}
        number = unit + 1
        while number < self.events[unit].end:  # without those of an ignorable, which stands behind a segment
            if self.events[number].kind == "start":
                children.setdefault(self.events[number].name, number)
                number = self.events[number].end
            number += 1
        target, text = children.get("target"), children.get("seg-source", source)
        behind = self.events[text].end + 1
        old = self.events[target or behind : self.events[target].end if target else behind]
        if source != children.get("source") or any(each.kind == "text" and each.raw.strip() for each in old):
            return 0
        inner = list(passages(self.paragraph(text + 1, behind - 1), self.form, self.reading.check))
        if not any(isinstance(part, Passage) for part in inner):
            return 0
        state = "" if second else ' state="translated"'
        if self.reading.fuzzy and not second:
            state = ' state="needs-review-translation" state-qualifier="mt-suggestion"'
        name = self.events[source].raw[1:].partition("source")[0] + "target"
        start = re.sub(r"\s*/?>$|\sstate(?:-qualifier)?=(?:\"[^\"]*\"|'[^']*')", "", old[0].raw if old else f"<{name}>")
        parts.append("".join(event.raw for event in self.events[source : target or behind]))
        parts += [start + state + ">", *inner, f"</{name}>"]
        return self.events[target].end + 1 if target else behind

    def paragraph(self, first: int, end: int) -> Iterator[Token]:
        """Yields the tokens of a text: codes that open and close something are its elements."""
        segments: set[int] = set()
        while first < end:
            event = self.events[first]
            named = attributes(event.raw) if event.kind == "start" else {}
            kind, raw, key = event.kind, event.raw, event.name
            kept = named.get("translate") == "no" or named.get("mtype") == "protected"
            whole = kind == "start" and (event.name not in _PAIRS or kept)
            if whole:
                raw = "".join(each.raw for each in self.events[first : event.end + 1])
                first = event.end
            if whole and event.name in _OPENING | _CLOSING:
                kind = "start" if event.name in _OPENING else "end"
                key = named.get("rid") or named.get("startref") or named.get("id", "")
            elif event.name == "mrk" and (named.get("mtype") == "seg" or first in segments):
                segments.add(event.end)
                kind = "break"
            elif whole or kind == "other":
                kind = "mark"
            yield Token(kind, raw, key)  # type: ignore[arg-type]
            first += 1


def _copy(tag: str) -> str:
    """Returns a start tag of XLIFF 2 for the second time: with an id of its own, and saying of which it is a copy."""
    return re.sub(r'(?<=\s)id="([^"]*)"', r'id="\1-2" copyOf="\1"', tag)
