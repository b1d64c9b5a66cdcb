"""Readers of archives of XML files: Word, PowerPoint and Excel, OpenDocument texts and presentations, e-books (EPUB).

Members without translations are copied without recompression; the order of members stays. Unpacked sizes are limited.
"""

from __future__ import annotations

import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from html import unescape
from itertools import accumulate, pairwise, takewhile

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.documents.html import attributes, names_of, read_html
from hf_mlnmt.documents.marked import Document, Passage, Reading, Token, check_text
from hf_mlnmt.documents.xml import Part, Rules, with_lines

_Read = Callable[[str, Reading], list[str | Passage]]

_WORD = Rules(
    blocks=names_of("p"),
    inline=names_of("hyperlink ins moveTo smartTag fldSimple dir bdo customXml sdt sdtContent"),
    lines=names_of("br cr"),
    breaks=names_of("tab ptab"),
    gone=names_of("proofErr lastRenderedPageBreak softHyphen"),
    opaque=names_of("del moveFrom instrText rPr pPr sectPr"),
    attributes=frozenset({("docPr", "descr"), ("docPr", "title"), ("cNvPr", "descr"), ("cNvPr", "title")}),
    languages=frozenset(
        [("lang", "val"), ("lang", "bidi"), *((name, "lang") for name in ("rPr", "endParaRPr", "defRPr"))]
    ),
)
_CHART = _WORD._replace(blocks=names_of("p v"))
_SHEET = Rules(blocks=names_of("si is"), inline=names_of("t"), gone=names_of("phoneticPr"), opaque=names_of("rPh rPr"))
_ODF = Rules(
    blocks=names_of("p h title desc header-decl footer-decl"),
    inline=names_of("span a meta content-control text-input placeholder ruby ruby-base"),
    lines=names_of("line-break s"),
    breaks=names_of("tab"),
    gone=names_of("soft-page-break ruby ruby-base ruby-text"),
    opaque=names_of("annotation tracked-changes note-citation"),
    languages=frozenset({("text-properties", "language"), ("text-properties", "country"), ("", "writing-mode")}),
)
_EPUB = Rules(blocks=names_of("text title description"), languages=frozenset({("", "lang")}))
_SHOWN_FIELDS = re.compile(r"\s*(HYPERLINK|TOC|REF|QUOTE|INCLUDETEXT|STYLEREF|FORMTEXT|IF|FILLIN)\b")
_CODE = re.compile(
    r"(?:Source|Inline|HTML|Block)?-?Code(?:Char|Text|Block)?|Verbatim\w*|HTML(?:Preformatted|Keyboard|Sample)(?:Char)?"
    r"|SourceText|PreformattedText|Teletype"
)
_HIDDEN = re.compile(r"""<w:vanish\s*(?:/>|w:val="(?:1|true|on)")|text:display="none\"""")
_STYLES = re.compile(r"<(w|style):style\b[^<>]*(?:/>|>(?:(?!<\1:style\b).)*?</\1:style>)", re.DOTALL)
_OWN_NAME = re.compile(r"""\s(?:w:styleId|style:name)="([^"]*)\"""")
_PARENT = re.compile(r"""(?:<w:basedOn\s+w:val|\sstyle:parent-style-name)="([^"]*)\"""")
_STYLE = re.compile(r'<w:[pr]Style w:val="([^"]*)"')
# Elements that must come after the element of writing direction (w:bidi, w:rtl), by the order in Word's schema.
_BEHIND = {
    "pPr": "adjustRightInd|snapToGrid|spacing|ind|contextualSpacing|mirrorIndents|suppressOverlap|jc|text\\w+"
    "|outlineLvl|divId|cnfStyle|rPr|sectPr|pPrChange",
    "rPr": "cs|em|lang|eastAsianLayout|specVanish|oMath|rPrChange",
}
_COLUMN = re.compile(r"""<(?:tableColumn|cacheField)\b[^<>]*?\sname="([^"]*)\"""")
_RAISED = re.compile(r"""w:val="superscript"|\sbaseline="[1-9]""")
_UNSEEN = re.compile(r"<\w+:noProof\s*/>|\s(?:dirty|err|smtClean|noProof)=\"[^\"]*\"|\s(?=/?>)")


def _styles_of(text: str) -> dict[str, tuple[str, bool, bool]]:
    """Returns {style: (its parent style, whether it is for code or hides its text, whether it is superscript)}."""
    styles = {}
    for match in _STYLES.finditer(text):
        name, above = (found[1] if (found := sought.search(match[0])) else "" for sought in (_OWN_NAME, _PARENT))
        styles[name] = above, bool(_HIDDEN.search(match[0])) or _is_code(above), 'text-position="super' in match[0]
    return styles


def _with_heirs(styles: dict[str, tuple[str, bool, bool]], which: int) -> set[str]:
    """Returns the styles whose entry `which` of `_styles_of` is true, and all styles derived from them."""
    found = {name for name, style in styles.items() if style[which]}
    for _ in range(10):  # follows at most ten levels of derived styles
        found |= {name for name, style in styles.items() if style[0] in found}
    return found


def _is_code(style: str) -> bool:
    return bool(_CODE.fullmatch(style.replace("_20_", "")))


def _directed(properties: str, name: str, mark: str, right_to_left: bool) -> str:
    """Returns the properties of a Word paragraph or run with the element `mark` if right to left, else without it."""
    empty = f"<w:{name}></w:{name}>"
    properties = empty if re.fullmatch(rf"(<w:{name}\s*/>)?", properties) else properties
    behind = re.search(rf"<w:(?:{_BEHIND[name]})\b|</w:{name}>", properties)
    at = behind.start() if behind else len(properties)
    directed = re.sub(rf"<w:{mark}\b[^>]*/>", "", properties[:at]) + f"<w:{mark}/>" * right_to_left + properties[at:]
    return "" if directed == empty else directed


class _Word(Part):
    """An XML part of a Word or PowerPoint file, where text is inside of runs (w:r, a:r)."""

    def language(self, name: str, code: str) -> str:
        """Returns the new value of a language attribute. `bidi`, the language of right-to-left text, changes only if
        the target language is written from right to left."""
        if name == "bidi":
            return self.reading.language or code if self.reading.right_to_left else code
        return super().language(name, code)

    def raw(self, number: int) -> str:
        """Returns an event's raw text; adds the writing direction of the target language to a paragraph."""
        raw, event = super().raw(number), self.events[number]
        if event.kind != "start" or event.name not in ("p", "pPr") or raw[:3] not in ("<a:", "<w:"):
            return raw
        if raw.startswith("<a:pPr") and self.reading.language:
            return raw[:6] + ' rtl="1"' * self.reading.right_to_left + re.sub(r'\srtl="\w+"', "", raw[6:])
        if event.name == "p" and self.events[number + 1].name not in ("p", "pPr") and self.reading.right_to_left:
            return raw + ('<a:pPr rtl="1"/>' if raw[1] == "a" else "<w:pPr><w:bidi/></w:pPr>")
        return raw

    def whole(self, first: int) -> str:
        """Returns an element as raw XML; Word's paragraph properties get the writing direction of the translation."""
        whole = super().whole(first)
        word = whole.startswith("<w:pPr") and self.reading.language
        return _directed(whole, "pPr", "bidi", self.reading.right_to_left) if word else whole

    def stays(self, number: int) -> bool:
        """Returns whether an element is not translated: code, a formula, a computed field, a control bound to data."""
        event = self.events[number]
        if event.name == "p":
            style = _STYLE.match("".join(each.raw for each in self.events[number + 1 : number + 3]).partition(">")[2])
            return bool(style and (style[1] in self.reading.kept or _is_code(style[1])))
        if event.name == "sdt":  # a control that is bound to a property of the document shows that property's value
            inside = takewhile(lambda each: each.name != "sdtContent", self.events[number : event.end])
            return any(each.name == "dataBinding" for each in inside)
        shown = event.name != "fldSimple" or _SHOWN_FIELDS.match(attributes(event.raw).get("w:instr", ""))
        return event.name == "oMath" or not shown

    def paragraph(self, first: int, end: int) -> Iterator[Token]:
        """Yields the tokens of a paragraph. A field that shows text (link, reference) is an inline element around the
        text; a field that is computed stays as it is."""
        held: list[Token] = []  # tokens of a field's code, or of a whole field that is not translated
        depth, shown = 0, False
        for token in self._of_runs(first, end):
            if token.name == "begin":
                depth, shown = (depth + 1 if held else 1), shown and bool(held)
            if not depth:
                yield token._replace(kind="end") if token.name == "fldChar" else token
                continue
            held.append(token)
            if token.name == "instrText":
                shown = shown or (depth == 1 and bool(_SHOWN_FIELDS.match(re.sub("<[^>]*>", "", token.raw))))
            depth -= token.name == "fldChar"
            if not depth or (shown and depth == 1 and token.name == "separate"):
                levels = list(accumulate((each.kind == "start") - (each.kind == "end") for each in held))
                if levels[-1] or min(levels) < 0:  # the field ends outside the link it begins in
                    yield from held
                else:
                    yield Token("start" if depth else "mark", "".join(each.whole for each in held), "fldChar")
                held, depth, shown = [], 0, False
        yield from held

    def _of_runs(self, first: int, end: int) -> Iterator[Token]:
        while first < end:
            event = self.events[first]
            if event.kind == "start" and event.name == "r":
                yield from self._run(first)
                first = event.end
            elif event.kind == "start" and event.name == "sdt" and not self.stays(first):
                inside = range(first + 1, event.end)
                content = next((n for n in inside if self.events[n].name == "sdtContent"), event.end)
                yield Token("start", "".join(self.raw(number) for number in range(first, content + 1)), "sdt")
                first = content
            elif event.name == "sdt":
                yield Token("end", event.raw, "sdt")
            elif event.name == "sdtContent":
                yield Token("end", event.raw + self.events[first + 1].raw, "sdt")
                first += 1
            else:
                whole = event.kind == "start" and (event.name not in self.rules.inline or self.stays(first))
                step = event.end if whole else first
                yield from super().paragraph(first, step + 1)
                first = step
            first += 1

    def _run(self, first: int) -> Iterator[Token]:
        """Yields the tokens of a run; its text is wrapped in the run's tags, without properties that are not seen."""
        last, properties, begun = self.events[first].end, "", first + 1
        start = self.events[first].raw.split()[0].rstrip("/>")
        if self.events[begun].kind == "start" and self.events[begun].name == "rPr":
            last_property = self.events[begun].end
            properties = "".join(self.raw(number) for number in range(begun, last_property + 1))
            begun = last_property + 1
        properties = _UNSEEN.sub("", properties)
        properties = "" if re.fullmatch(r"<(\w+:rPr)>(</\1>)|<\w+:rPr/>", properties) else properties
        if start == "<w:r" and self.reading.language:
            properties = _directed(properties, "rPr", "rtl", self.reading.right_to_left)
        around, end = f"{start}>{properties}", f"</{start[1:]}>"
        style = _STYLE.search(properties)
        stays = _HIDDEN.search(properties) or (style and (style[1] in self.reading.kept or _is_code(style[1])))
        tag, space = f"{start[:-1]}t", "" if start == "<a:r" else ' xml:space="preserve"'
        wrap = f"{around}{tag}{space}>", f"</{tag[1:]}>{end}"
        while begun < last:
            event = self.events[begun]
            if event.kind == "start" and event.name == "t":
                token = Token("text", "".join(each.raw for each in self.events[begun + 1 : event.end]), "", wrap)
                note = re.fullmatch(r"[\W\d]+", token.raw) and _RAISED.search(properties)
                yield Token("mark", token.whole, "kept" * bool(stays)) if note or stays else token
            elif event.kind == "start" and event.name == "ruby":  # yields base characters without their readings
                for number in range(begun, event.end):
                    if self.events[number].kind == "start" and self.events[number].name == "rubyBase":
                        yield from self._of_runs(number + 1, self.events[number].end)
            elif event.kind == "start" and event.name == "noBreakHyphen":
                yield Token("text", "\u2011", "", wrap)
            elif event.kind == "start":
                token = self.mark(begun)
                name = attributes(event.raw).get("w:fldchartype", "") if event.name == "fldChar" else event.name
                yield token._replace(raw=around + token.raw + end, name="fldChar" if name == "end" else name)
            begun = max(begun, event.end) + 1


class _Sheet(_Word):
    """The texts of a workbook's cells. Headings of tables and of pivots stay: other members name them."""

    def stays(self, number: int) -> bool:
        """Returns whether a cell is not translated, since its text is the name of a table's column."""
        event = self.events[number]
        inside = self.events[number : event.end] if event.name in ("si", "is") else ()
        return unescape("".join(each.raw for each in inside if each.kind == "text")) in self.reading.kept

    def paragraph(self, first: int, end: int) -> Iterator[Token]:
        """Yields the tokens of a cell; its line breaks are tokens, so that they are kept."""
        return (each for token in super().paragraph(first, end) for each in with_lines(token))


class _Odf(Part):
    """An XML part of an OpenDocument file, where attributes name the language, then the country."""

    ours = False  # whether the last language attribute was replaced by the target language

    def __post_init__(self) -> None:
        super().__post_init__()
        self.form = self.form._replace(needed=lambda start: not start.startswith("<text:span"))

    def stays(self, number: int) -> bool:
        """Returns whether an element is not translated: its style is for code or hidden text, or for superscript and
        the element has no letters."""
        event = self.events[number]
        style = attributes(event.raw).get("text:style-name", "") if event.name in ("p", "h", "span") else ""
        if style in self.reading.raised:
            shown = "".join(each.raw for each in self.events[number : event.end] if each.kind == "text")
            return bool(re.fullmatch(r"[\W\d]+", shown))
        return style in self.reading.kept or _is_code(style)

    def language(self, name: str, code: str) -> str:
        """Returns the value for the target language of an attribute that names a language, a country or a writing
        direction."""
        target = self.reading.language or ""
        if name == "writing-mode":
            turned = "rl-tb" if self.reading.right_to_left else "lr-tb"
            return turned if target and code in ("lr-tb", "rl-tb") else code
        if name == "language":
            self.ours = code not in ("none", "zxx") and self.reading.relabelled(code) == target
        language, *others = target.split("-")
        country = next((part for part in others if re.fullmatch("[A-Z]{2}|[0-9]{3}", part)), "none")
        return code if not self.ours else language if name == "language" else country


class _Book(Part):
    """The table of contents (ncx) or the package description (opf) of an e-book."""

    def raw(self, number: int) -> str:
        """Returns an event's raw text; for the text of an element `language` the code of the target language."""
        raw = super().raw(number)
        named = number and self.events[number].kind == "text" and self.events[number - 1].name == "language"
        return self.reading.relabelled(raw) if named and self.events[number - 1].kind == "start" else raw


def _part(kind: type[Part], rules: Rules) -> _Read:
    return lambda text, reading: kind(text, rules, reading).read()


# {kind of archive: {pattern of the names of members to translate: their reader}}; other members are copied.
MEMBERS: dict[str, dict[str, _Read]] = {
    "docx": {
        r"word/(document\d*|header\d*|footer\d*|footnotes|endnotes|styles)\.xml": _part(_Word, _WORD),
        r"word/diagrams/data\d*\.xml": _part(_Word, _WORD),
        r"word/charts/chart\d*\.xml": _part(_Word, _CHART),
    },
    "pptx": {
        r"ppt/(slides/slide|notesSlides/notesSlide|diagrams/data|diagrams/drawing)\d*\.xml": _part(_Word, _WORD),
        r"ppt/charts/chart\d*\.xml": _part(_Word, _CHART),
    },
    "xlsx": {
        r"xl/(sharedStrings|worksheets/sheet\d+)\.xml": _part(_Sheet, _SHEET),
        r"xl/drawings/drawing\d*\.xml": _part(_Word, _WORD),
        r"xl/charts/chart\d*\.xml": _part(_Word, _CHART),
    },
    "odt": {r"(Object \d+/)?(content|styles)\.xml": _part(_Odf, _ODF)},
    "odp": {
        r"(Object \d+/)?content\.xml": _part(_Odf, _ODF),
        r"styles\.xml": _part(_Odf, _ODF._replace(blocks=frozenset())),
    },
    "epub": {r".*\.x?html?": read_html, r".*\.(ncx|opf)": _part(_Book, _EPUB)},
}


def read_archive(content: bytes, reading: Reading, kind: str) -> Document:
    """Parses a document from the bytes of an archive; kind: a key of MEMBERS.

    Raises: UserError for another file, an archive with a password, or one that unpacks to more than `reading.most`.
    """
    members: dict[str, list[str | Passage]] = {}
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        if not all(content.startswith(b"PK\3\4", entry.header_offset) for entry in archive.infolist()):
            raise zipfile.BadZipFile("a member is not where the directory says")
        names, readers = [entry.filename for entry in archive.infolist()], MEMBERS[kind].items()
        wanted = {name: next((read for part, read in readers if re.fullmatch(part, name)), None) for name in names}
        entries = [entry for entry in archive.infolist() if wanted[entry.filename]]
        if not entries:
            raise UserError("holds no text of this format: another program's archive, or another ending.")
        size = sum(entry.file_size for entry in entries)
        if size > reading.most:
            raise UserError(f"unpacks to {size:,} bytes; the limit is {reading.most:,}.")
        if any(entry.flag_bits & 1 for entry in entries):
            raise UserError("is locked by a password. Save it without one.")
        texts = {entry.filename: archive.read(entry).decode("utf-8-sig") for entry in entries}
        styles = {name: _styles_of(text) for name, text in texts.items()}
        tables = [
            name for name in wanted if re.fullmatch(r"xl/(tables/table|pivotCache/pivotCacheDefinition)\d+\.xml", name)
        ]
        columns = {unescape(name) for table in tables for name in _COLUMN.findall(archive.read(table).decode())}
        for entry in entries:
            reading.check()
            read, text = wanted[entry.filename], texts[entry.filename]
            # The styles of styles.xml in the member's folder, overridden by those of the member itself.
            here = styles.get(re.sub(r"[^/]*$", "styles.xml", entry.filename, count=1), {}) | styles[entry.filename]
            reading.kept, reading.raised = (_with_heirs(here, which) for which in (1, 2))
            if kind == "xlsx":
                reading.kept = columns
            try:
                members[entry.filename] = read(check_text(text), reading) if read else []
            except UserError as error:
                raise UserError(f"{entry.filename}: {error}") from error
    except UserError:  # UserError is a ValueError, which the next clause would catch
        raise
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise UserError(f"cannot be read ({error}): not whole, of another format, or locked.") from error
    return Document(members, reading, content, partial(_packed, archive, content))


def _packed(archive: zipfile.ZipFile, content: bytes, members: dict[str, str]) -> bytes:
    """Returns the bytes of the archive with the texts `members` instead of the old ones; other members are copied."""
    written = io.BytesIO()
    ends = dict(pairwise(sorted([*(entry.header_offset for entry in archive.infolist()), archive.start_dir])))
    with zipfile.ZipFile(written, "w") as new:
        new.comment = archive.comment
        infos: dict[str, zipfile.ZipInfo] = {}
        for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
            info = copy(entry)
            infos[entry.filename] = info
            text = members.get(entry.filename)
            if text is not None and text.encode() != archive.read(entry).removeprefix(b"\xef\xbb\xbf"):
                info.flag_bits, info.extra = info.flag_bits & ~8, b""  # clears the flag: sizes follow the content
                new.writestr(info, text.encode())
                continue
            info.header_offset = written.tell()
            written.write(content[entry.header_offset : ends[entry.header_offset]])
            new.filelist.append(info)
            new.NameToInfo[info.filename] = info
            new.start_dir = written.tell()
        new.filelist[:] = [infos[entry.filename] for entry in archive.infolist()]
    return written.getvalue()
