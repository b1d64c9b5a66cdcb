"""Translation memories, catalogues and glossaries as streams of units: TMX, XLIFF, PO, MO, TBX, tables, Moses pairs.

file                 | source and target                          | left out
TMX 1.4b             | of the many languages of a unit the two    | units that lack one of them
XLIFF 1.2, 2.x       | segments (mrk), of Trados, memoQ, Phrase   | untranslated and unconfirmed ones, translate="no"
PO, MO               | each plural form with its source           | fuzzy, obsolete and untranslated messages
TBX, csv and tsv     | each term with each of its translations    | forbidden translations
NAME.en and NAME.de  | line by line, as OPUS has them in a zip    |

A folder or a zip is read file by file. XML is streamed, and an element is dropped once it is read; entities that a file
declares are refused, a DTD and other files are never loaded. Codes of inline markup are dropped, and the text inside of
`hi`, `g`, `pc` and `mrk` is the segment's; `sub` is text of its own inside of a code (TMX 1.4b), so it makes a unit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import language_in, same_language
from hf_mlnmt.data.formats import format_of
from hf_mlnmt.data.lines import open_text
from hf_mlnmt.data.placeholders import NO_LINES, forms_of, placeholders, without_key

Place = Any  # a Path, or a zipfile.Path inside of an archive
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_SPACES = re.compile("[ \t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")
_CODES = {"bpt", "ept", "it", "ph", "ut", "x", "bx", "ex", "sc", "ec", "cp", "sm", "em"}  # inline, no text of a segment
_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)T(\d\d):?(\d\d):?(\d\d)")
_SHOWN = 12  # languages that are named


class Unit(NamedTuple):
    """A segment and its translation; `before` and `after`: the segments beside it in the file, None where unknown.

    `changed`: the ISO date of the last change; `state`: translated, reviewed, final or ""; `place`: file and number.
    """

    source: str
    target: str
    before: str | None
    after: str | None
    changed: str | None
    state: str
    place: str


@dataclass
class UnitReport:
    """Counts of what was read: units, their languages and states, those left out by reasons, and those in which inline
    markup or an accelerator was dropped. `dropped` is called with the reason, source and target of each left out."""

    read: int = 0
    kept: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    dropped: Callable[..., object] = lambda *what: None

    def __str__(self) -> str:
        """Returns one paragraph for the user."""
        said = f"{self.read:,} units read"
        if self.languages:
            said += f", with {_listed(self.languages)}"
        said += f"; {self.kept:,} are pairs" + (f" ({_listed(self.states)})" if any(self.states) else "")
        if self.left_out:
            said += f"; left out: {_listed(self.left_out)}"
        return said + "".join(f". {note}: {count:,}" for note, count in self.notes.items()) + "."


def _listed(counts: Counter[str]) -> str:
    some = [f"{name or 'unnamed'} {count:,}" for name, count in counts.most_common(_SHOWN)]
    return ", ".join(some) + (f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else "")


class _Found(NamedTuple):
    """What a reader found: a source with its translations, or the reason why they are left out (`why`)."""

    source: str
    targets: Sequence[str]
    place: str
    state: str = ""
    changed: str | None = None
    why: str | None = None
    inner: Sequence[_Found] = ()  # texts of their own inside of its codes
    apart: bool = False  # a term, which has no neighbours


def read_units(
    path: str | Path, source: str, target: str, report: UnitReport | None = None, keep_keys: bool = False
) -> Iterator[Unit]:
    """Yields the units of a file, a folder or a zip in order, white space in them as single spaces.

    Args:
        source, target: codes of languages; a region may differ, and the exact code goes before others.
        report: is filled on the way, complete after the last unit.
        keep_keys: accelerators of programs (&File, _Open) stay in the messages of PO and MO.

    Raises: UserError for what is broken, of another kind or direction, and where no unit is left.
    """
    report = report if report is not None else UnitReport()
    for file in bilingual_files(Path(path), source, target):
        before = None
        reader = BILINGUAL[format_of(Path(file.name))]
        for found, behind in pairwise(chain(reader(file, source, target, report, keep_keys), [None])):
            assert found is not None
            yield from _units(found, before, _clean(behind.source) if behind else None, report)
            before = _clean(found.source) or None
    if not report.kept:
        raise UserError(
            f"{path}: no unit of {source} and {target} is left: {report} Say its own languages with --from and --to, "
            "or in a recipe with languages, and see that its units are translated."
        )


def _units(found: _Found, before: str | None, after: str | None, report: UnitReport) -> Iterator[Unit]:
    """Yields the units of what a reader found, and counts it."""
    report.read += 1
    own, targets = _clean(found.source), list(filter(None, map(_clean, found.targets)))
    if why := found.why or ("empty source" if not own else "empty target" if not targets else None):
        report.left_out[why] += 1
        report.dropped(why, own, *targets[:1])
        return
    report.kept += 1
    report.states[found.state] += 1
    beside = (None, None) if found.apart else (before, after or None)
    for text in targets:
        yield Unit(own, text, *beside, found.changed, found.state, found.place)
    for each in found.inner:
        yield from _units(each, None, None, report)


def bilingual_files(path: Path, source: str, target: str) -> list[Place]:
    """Returns the files that are read of a path. UserError for a folder or a zip without any."""
    return [path]


def _clean(text: str) -> str:
    return _SPACES.sub(" ", text).strip(" ")


@lru_cache(maxsize=1000)
def chosen(codes: tuple[str, ...], wanted: str) -> str | None:
    """Returns the code of a language among some: the exact one, or the first one of any region; None without."""
    same = [code for code in codes if same_language(code, wanted)]
    return next(
        (code for code in same if code.lower().replace("_", "-") == wanted.lower().replace("_", "-")), None
    ) or (same[0] if same else None)


def _iso(date: str | None) -> str | None:
    """Returns a date of TMX or XLIFF (20240131T101500Z) as ISO has it."""
    match = _DATE.match(date or "")
    return match and "{}-{}-{}T{}:{}:{}Z".format(*match.groups())


# XML


def _elements(file: Any, where: str, root: str, *names: str) -> Iterator[tuple[str, Any]]:
    """Yields ("start" or "end", element) of the root and of elements of these names, which are dropped then.

    Raises: UserError for broken XML, with the line, for another root, and for declared entities.
    """
    from lxml import etree

    tags = [f"{{*}}{name}" for name in (root, *names)]
    reading = etree.iterparse(file, ("start", "end"), tag=tags, resolve_entities=False, load_dtd=False, no_network=True)
    try:
        for event, element in reading:
            if event == "start" and element.getparent() is None:
                declared = element.getroottree().docinfo.internalDTD
                if declared is not None and (entity := next(declared.iterentities(), None)) is not None:
                    raise UserError(
                        f"{where}: declares the entity {entity.name}; files with entities of their own are not read. "
                        "Write them out."
                    )
            yield event, element
            if event == "end":
                element.clear(keep_tail=False)
                for each in (element, *element.iterancestors()):
                    while each.getprevious() is not None and each.getparent() is not None:
                        del each.getparent()[0]
    except etree.XMLSyntaxError as error:
        raise UserError(
            f"{where}, line {error.lineno}: broken XML, or cut off there ({error.msg}). Export or copy it again."
        ) from error
    if (name := etree.QName(reading.root).localname) != root:
        raise UserError(f"{where}: its root is <{name}>, not <{root}>. Name the file as its format is named.")


def _text(element: Any, subs: list[Any]) -> str:
    """Returns the text of a segment without its codes; `subs` gets the texts of their own inside of these."""
    if not len(element):
        return element.text or ""
    pieces = [element.text or ""]
    for child in element:
        name, tail = _name(child), child.tail or ""
        if name in _CODES:
            subs += child.iterchildren("{*}sub")
            parted = name in ("ph", "x") and pieces[-1][-1:].isalnum() and tail[:1].isalnum()
            pieces.append(" " * parted)
        elif name:
            pieces.append(_text(child, subs))
        pieces.append(tail)
    return "".join(pieces)


def _name(element: Any) -> str:
    """Returns an element's name without its namespace; "" of a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _segment(source: Any, targets: Sequence[Any], report: UnitReport, place: str, **about: Any) -> _Found:
    """Returns the unit of some elements, and those of the texts inside of its codes where both sides have as many."""
    subs: list[list[Any]] = [[] for _ in (source, *targets)]
    own, *others = (_text(element, some) for element, some in zip((source, *targets), subs))
    if any(map(len, (source, *targets))):
        report.notes["Inline markup was dropped from units"] += 1
    rows = zip(*subs) if len({*map(len, subs)}) == 1 else ()
    inner = [_segment(first, others, report, place, **about) for first, *others in rows]
    return _Found(own, others, place, inner=inner, **about)


def _read_tmx(path: Place, source: str, target: str, report: UnitReport, keep_keys: bool) -> Iterator[_Found]:
    number = 0
    with open_text(path, "xml") as file:
        for event, element in _elements(file, str(path), "tmx", "header", "tu"):
            name = _name(element)
            if event == "start":
                continue
            if name == "header":
                original = element.get("srclang", "*all*")
                if same_language(original, target) and not same_language(original, source):
                    report.notes[f"Units were translated the other way, from {original}, says {path.name}"] += 1
            if name != "tu":
                continue
            number += 1
            variants: dict[str, list[Any]] = {}
            for variant in element.iterchildren("{*}tuv"):
                code = variant.get(_LANG) or variant.get("lang") or ""
                variants.setdefault(code, []).append(variant)
            report.languages.update([*variants])
            place, codes = f"{path}, unit {number}", tuple(variants)
            own, other = chosen(codes, source), chosen(codes, target)
            segments = [[each.find("{*}seg") for each in variants.get(code or " ", ())] for code in (own, other)]
            ours, theirs = ([each for each in some if each is not None] for some in segments)
            if not ours or not theirs or (own == other and source != target):
                some = ours or theirs
                yield _Found(_text(some[0], []) if some else "", [], place, why="other languages")
                continue
            dates = [each.get("changedate") or each.get("creationdate") for each in (variants[other or ""][0], element)]
            yield _segment(ours[0], theirs, report, place, changed=_iso(next(filter(None, dates), None)))


# Catalogues of programs


def _read_po(path: Place, source: str, target: str, report: UnitReport, keep_keys: bool) -> Iterator[_Found]:
    import polib

    with open_text(path) as file:
        content = file.read()
    compiled = content[:4] in (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")
    try:
        encoding = polib.detect_encoding(content, compiled)
        text = content if compiled else NO_LINES.sub(" ", content.decode(encoding).removeprefix("\ufeff")) + "\n"
        read = polib.mofile if compiled else polib.pofile
        entries = read(text, encoding=encoding, check_for_duplicates=False)
    except Exception as error:  # polib raises many kinds for what is damaged
        line = re.search(r"\(line (\d+)\)", str(error))
        where = f"{path}, line {line[1]}" if line else f"{path}"
        said = "" if line else f" ({error})"
        raise UserError(
            f"{where}: broken, or no messages of gettext{said}. Copy it again; msgfmt -c says what is wrong."
        ) from error
    told, named = entries.metadata.get("Language", ""), path.parent
    language = told or language_in(path.name) or (named.parent.name if named.name == "LC_MESSAGES" else "")
    forms = forms_of(entries.metadata.get("Plural-Forms", ""))
    if language and same_language(language, source) and not same_language(language, target):
        raise UserError(
            f"{path}: its translations are {language}, and it was asked for from {source} to {target}. Exchange --from "
            "and --to, or in a recipe say reverse: true."
        )
    report.languages[language] += len(entries)
    try:
        changed = datetime.strptime(entries.metadata.get("PO-Revision-Date", ""), "%Y-%m-%d %H:%M%z")
        date = changed.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        date = None
    for number, entry in enumerate(entries, 1):
        place = f"{path}, unit {number}" if compiled else f"{path}, line {entry.linenum}"
        why = "obsolete" if entry.obsolete else "fuzzy" if getattr(entry, "fuzzy", False) else None
        if language and not same_language(language, target):
            why = "other languages"
        alike = placeholders(entry.msgid) == placeholders(entry.msgid_plural or "")
        for form, text in entry.msgstr_plural.items() or [(None, entry.msgstr)]:
            numbers = forms[form] if form is not None and form < len(forms) else {1} if not form else set()
            one = form is None or numbers == {1} or (alike and 1 in numbers and len(forms) > 1)
            own = entry.msgid if one else entry.msgid_plural
            if not keep_keys and (bare := without_key(own, text)):
                report.notes["Accelerators were taken out of units"] += 1
                own, text = bare
            untranslated = None if text.strip() else "untranslated"
            yield _Found(own, [text], place, "translated", date, why or untranslated)


Reader = Callable[[Place, str, str, UnitReport, bool], Iterator[_Found]]
BILINGUAL: dict[str, Reader] = {".tmx": _read_tmx, ".po": _read_po, ".mo": _read_po}
