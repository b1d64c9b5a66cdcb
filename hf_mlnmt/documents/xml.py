"""Readers of XML and XLIFF: expat finds the offsets of tags, so that everything that is not translated keeps its bytes.

`Rules` name the elements of a format. XLIFF (1.2 and 2.x) has the translation of a text in an element after the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from html import escape, unescape
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.formats import UNTRANSLATED, in_xml
from hf_mlnmt.data.placeholders import has_words
from hf_mlnmt.documents.catalogue import SPACED, doubled, message, text_of_program
from hf_mlnmt.documents.html import ATTRIBUTE, attributes, quoted
from hf_mlnmt.documents.icu import is_icu
from hf_mlnmt.documents.marked import Checked, Form, Passage, Reading, Token, passages
from hf_mlnmt.documents.plain import split_at, tag
from hf_mlnmt.generation import Hypothesis

_DEEPEST = 256  # most elements inside one another, as in libxml2
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)


def _read(raw: str) -> str:
    return unescape(_CDATA.sub(lambda match: escape(match[1]), raw))


XML = Form(_read, in_xml, ordered=True)


class Event(NamedTuple):
    """A tag, a text or another piece of an XML file; `name`: without prefix; `end`: number of a start tag's end tag."""

    kind: str
    raw: str
    name: str = ""
    end: int = 0


def events(text: str, check: Callable[[], object]) -> list[Event]:
    """Splits an XML file into its tags, texts and other pieces, and returns these; their `raw` joined is the file.

    Raises: UserError for a file that is no XML, is nested too deeply, or declares entities, which could read other
    files or grow without bound.
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
    """For a format, the names of elements of each kind, without prefixes.

    `blocks`: each has a text to translate. Inside of a text: `inline` elements follow their words, `lines` are line
    breaks, `breaks` separate texts, `gone` elements are left out (if also `inline`, only their tags); all others are
    marks, in which blocks are texts of their own. `opaque` elements are never translated. `attributes`: (element,
    attribute) to translate. `languages`: (element or "" for all, attribute) that name a language.
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
    """Reads an XML file by the Rules of its format. Subclasses override methods for what Rules cannot express."""

    text: str
    rules: Rules
    reading: Reading
    form: Form = XML
    events: list[Event] = field(init=False)

    def __post_init__(self) -> None:
        self.events = events(self.text, self.reading.check)

    def read(self) -> list[str | Passage]:
        """Returns the parts of the file: strings, and passages to translate."""
        return list(passages(self.tokens(0, len(self.events)), self.form, self.reading.check))

    def raw(self, number: int) -> str:
        """Returns an event's raw text. In a start tag replaces language attributes by `language`, and attributes to
        translate by placeholders."""
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
        """Returns a language attribute's new value: the target language if `code` is the source's, else `code`."""
        return self.reading.relabelled(code)

    def tokens(self, first: int, end: int) -> Iterator[Token]:
        """Yields the tokens of events[first:end]: for each block those of its text, for every other event a break."""
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
        """Returns False: no element is left untranslated. Subclasses return True for code and hidden text."""
        return False

    def whole(self, first: int) -> str:
        """Returns an element as raw XML, from its start tag to its end tag."""
        return "".join(self.raw(number) for number in range(first, self.events[first].end + 1))

    def paragraph(self, first: int, end: int) -> Iterator[Token]:
        """Yields the tokens of events[first:end], the text of a block."""
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
        """Returns one token for an element inside of a text, whose content is not part of that text."""
        event, rules = self.events[first], self.rules
        kinds = (("line", rules.lines), ("break", rules.breaks), ("gone", rules.gone))
        kind = next((kind for kind, names in kinds if event.name in names), "mark")
        name = "kept" if kind == "mark" and self.stays(first) else ""
        return Token(kind, self.inside(first, event.end + 1), name)  # type: ignore[arg-type]

    def inside(self, first: int, end: int) -> str:
        """Returns events[first:end], the content of a mark, as raw XML with placeholders for the texts to translate."""
        return self.reading.slot(passages(self.tokens(first, end), self.form, self.reading.check))


def read_xliff(text: str, reading: Reading) -> list[str | Passage | Checked]:
    """Returns the parts of an XLIFF file, in which units without a translation are to be translated.

    Raises: UserError for a file that is not XLIFF, or of a version that is not read.
    """
    part = _Xliff(text, Rules(frozenset({"sub"})), reading)
    root = next(event for event in part.events if event.kind == "start")
    if root.name != "xliff":
        raise UserError(f"its root is <{root.name}>, not <xliff>: not XLIFF.")
    if not (version := attributes(root.raw).get("version", "1.2")).startswith(("1.", "2.")):
        raise UserError(f"is XLIFF {version}; versions 1.0 to 2.1 are read here. Save it as one of these.")
    return part.units(version >= "2")


_PAIRS, _OPENING, _CLOSING = {"g", "pc", "mrk"}, {"bx", "bpt", "sc"}, {"ex", "ept", "ec"}
_QUALIFIERS = {"memory": "exact-match", "fuzzy": "fuzzy-match", "machine": "mt-suggestion"}  # by origins
_STATE = re.compile(r"\s(?:state(?:-qualifier)?|subState)=(?:\"[^\"]*\"|'[^']*')")
_SEGMENT, _MATCHES = "hf-mlnmt", "urn:oasis:names:tc:xliff:matches:2.0"  # id of a segment without one; a namespace
_EMPTY_SEGMENT = re.compile(r"""<mrk\b[^<>]*\bmtype=["']seg["'][^<>]*(?:/>|>\s*</mrk>)""")
_TAG = re.compile(r"<[^<>]*>")
# Markup that is escaped as text: tags and entities of HTML, placeholders with spaces, line ends of Android (\n).
_ESCAPED_TAG = re.compile(rf"&lt;/?[a-zA-Z](?:(?!&[lg]t;).)*&gt;|&amp;#?\w+;|{SPACED}|(?<!:)\\n", re.DOTALL)


def _said(raw: str) -> str:
    """Returns the plain text of raw XML: without tags, entities decoded."""
    return _read(_TAG.sub("", raw))


class _Xliff(Part):
    """An XLIFF file, in whose units a target element with the translation follows the source element."""

    def units(self, second: bool) -> list[str | Passage | Checked]:
        """Returns the parts of the file. second: whether the file is of version 2 of XLIFF."""
        parts: list[str | Passage | Checked] = []
        self.second, self.form = second, self.form._replace(again=_copy if second else str)
        inherited = [(True, False)]  # stack of open elements: (units are translated, line breaks are kept)
        # inside: place in `parts` of what follows an open <unit>; 0 elsewhere, and behind the unit's first segment
        number, language, inside = 0, self.reading.language, 0
        while number < len(self.events):
            event, raw = self.events[number], self.events[number].raw
            if event.kind == "start":
                named = attributes(raw)
                wanted = {("xliff", True): "trgLang", ("file", False): "target-language"}.get((event.name, second))
                if wanted and language and wanted.lower() not in named:
                    raw = re.sub(r"(\s*/?>)$", rf' {wanted}="{language}"\1', raw)
                told = {"yes": True, "no": False}.get(named.get("translate", ""), inherited[-1][0])
                lines = named.get("xml:space", "preserve" * inherited[-1][1]) == "preserve"
                if event.name in ("trans-unit", "segment") and told:
                    ahead = parts[inside:] if inside else None
                    if unit := self._unit(number, lines, ahead):
                        parts[len(parts) - len(ahead or ()) :] = unit[:1]
                        number, inside = unit[1], 0
                        continue
                if event.name in ("unit", "segment", "matches"):
                    inside = len(parts) + 1 if event.name == "unit" else 0
                inherited.append((told, lines))
            elif event.kind == "end":
                inherited.pop()
            parts.append(raw)
            number += 1
        return parts

    def _unit(self, unit: int, lines: bool, ahead: list[Any] | None) -> tuple[Checked, int] | None:
        """Returns a unit to translate, and the number of the event after it; None for a unit that has a translation, or
        nothing to translate. A translation with empty segments is not changed, and counts as left.

        ahead: in version 2 what stands before the unit's first segment, behind a match of the memory."""
        children: dict[str, int] = {}
        number, last = unit + 1, self.events[unit].end
        while number < last:
            if self.events[number].kind == "start":
                children.setdefault(self.events[number].name, number)
                number = self.events[number].end
            number += 1
        if (source := children.get("source")) is None:
            return None
        target, text = children.get("target"), children.get("seg-source", source)
        lines = lines or attributes(self.events[source].raw).get("xml:space") == "preserve"
        behind = self.events[text].end + 1
        old: list[int] = [] if target is None else [*range(target, self.events[target].end + 1)]
        state = attributes(self.events[unit if self.second or target is None else target].raw).get("state")
        said = _said(self._raw(old[1:-1])) if old else ""
        before, first = "".join(ahead or ()) + self._raw(range(unit, last + 1)), self.events[unit].raw
        if said.strip() and (state not in UNTRANSLATED or said != _said(self._raw(range(text + 1, behind - 1)))):
            return (Checked([], str, before, left=True), last + 1) if _EMPTY_SEGMENT.search(self._raw(old)) else None
        unit_text = self._message(range(text + 1, behind - 1), lines)
        if not unit_text.left and not unit_text.sentences:
            return None
        name = self.events[source].raw[1:].partition("source")[0] + "target"
        start, begin, rest = (self.events[old[0]].raw, old[0], old[-1] + 1) if old else (f"<{name}>", behind, behind)
        named, prefix = attributes(first), name.removesuffix("target")
        around = [
            "" if ahead is None else partial(_alternative, prefix, named.get("id", _SEGMENT)),
            *(ahead or ()),
            partial(self._stated, first, named=ahead is None or "id" in named) if self.second else first,
            self._raw(range(unit + 1, begin)),
            _STATE.sub("", re.sub(r"\s*/?>$", ">", start)) if self.second else partial(self._stated, start, named=True),
            unit_text,
            f"</{name}>",
            "" if self.second else partial(_alternative, prefix, None),
            self._raw(range(rest, last + 1)),
        ]
        most = named.get("maxwidth", "") if named.get("size-unit") == "char" else ""
        limit = int(most) if most.isdecimal() else None
        return Checked([] if unit_text.left else around, str, before, unit_text.left, limit), last + 1

    def _stated(self, start: str, best: Hypothesis, named: bool) -> str:
        """Returns a start tag with the state of a translation and its origin: of the target, in version 2 of the
        segment, which gets an id for its match unless it is `named`."""
        start, fuzzy, origin = _STATE.sub("", re.sub(r"\s*/?>$", "", start)), self.reading.fuzzy, best.origin or ""
        if self.second:
            more = f' id="{_SEGMENT}"' if best.match and not named else ""
            more += f' subState="hf-mlnmt:{origin.replace(" ", "-")}"' if origin else ""
            return f'{start} state="{"initial" if fuzzy else "translated"}"{more}>'
        qualifier = _QUALIFIERS.get(origin.partition(" ")[0], "mt-suggestion" if fuzzy else "")
        state = "needs-review-translation" if fuzzy else "translated"
        return f'{start} state="{state}"' + (f' state-qualifier="{qualifier}">' if qualifier else ">")

    def _raw(self, numbers: Iterable[int]) -> str:
        return "".join(self.events[number].raw for number in numbers)

    def _message(self, numbers: range, lines: bool) -> Checked:
        """Returns the text of some events as a message; lines: its line breaks are kept."""
        raw = self._raw(numbers)
        if is_icu(raw) and "<" not in raw:
            form = doubled(self.form)._replace(again=str)
            return text_of_program(raw, self.reading, form, lambda text: _with_tags(Token("text", text)), True)
        if is_icu(_said(raw)):
            return Checked([], str, raw, left=True)
        tokens = self.paragraph(numbers.start, numbers.stop)
        if lines:
            tokens = (each for token in tokens for each in with_lines(token))
        inner = passages((each for token in tokens for each in _with_tags(token)), self.form, self.reading.check)
        return message([*inner], raw, self.form._replace(read=_said))

    def paragraph(self, first: int, end: int) -> Iterator[Token]:
        """Yields the tokens of a text. Codes that open and close a range (bpt and ept, sc and ec) become the start and
        end of an inline element."""
        segments: set[int] = set()
        while first < end:
            event = self.events[first]
            named = attributes(event.raw) if event.kind == "start" else {}
            kind, raw, key = event.kind, event.raw, event.name
            kept = named.get("translate") == "no" or named.get("mtype") == "protected"
            whole = kind == "start" and (event.name not in _PAIRS or kept)
            if whole:
                raw = self.inside(first, event.end + 1)  # texts of <sub> get placeholders
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


def _alternative(prefix: str, segment: str | None, best: Hypothesis) -> str:
    """Returns the memory's unit that is nearest to a unit of XLIFF 1.2, or to this segment of XLIFF 2, as the version
    has it; "" without one."""
    if (match := best.match) is None:
        return ""
    origin, sides = escape(Path(match.place).name), {"source": match.source, "target": match.target}
    inner = "".join(f"<{prefix}{name}>{in_xml(text)}</{prefix}{name}>" for name, text in sides.items())
    if segment is None:
        return f'<{prefix}alt-trans match-quality="{match.percent}%" origin="{origin}">{inner}</{prefix}alt-trans>'
    about = f'ref="#{segment}" similarity="{match.percent}" origin="{origin}"'
    return f'<mtc:matches xmlns:mtc="{_MATCHES}"><mtc:match {about}>{inner}</mtc:match></mtc:matches>'


def with_lines(token: Token) -> Iterator[Token]:
    """Splits a text token into tokens of its lines and of the line breaks between; yields any other token unchanged."""
    for piece in re.split(r"(\r?\n[ \t]*)", token.raw) if token.kind == "text" else ():
        yield token._replace(kind="line" if piece[:1] in ("\r", "\n") else "text", raw=piece)
    if token.kind != "text":
        yield token


def _with_tags(token: Token) -> Iterator[Token]:
    """Splits a text token at escaped HTML tags, which become tokens of tags; yields any other token as it is."""
    if token.kind != "text":
        yield token
        return

    def token_of(match: re.Match[str]) -> Token:
        return Token("line", "\\n") if match[0] == "\\n" else tag(unescape(match[0]))._replace(raw=match[0])

    raw = _CDATA.sub(lambda match: escape(match[1], quote=False), token.raw)
    yield from split_at(raw, _ESCAPED_TAG, token_of)


def _copy(tag: str) -> str:
    """Returns a start tag of XLIFF 2 for an element's second part: with a new id, and copyOf with the first one."""
    return re.sub(r'(?<=\s)id="([^"]*)"', r'id="\1-2" copyOf="\1"', tag)
