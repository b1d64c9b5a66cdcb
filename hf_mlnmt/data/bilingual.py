"""Reads translation memories, catalogues and glossaries unit by unit: TMX, XLIFF, PO, MO, TBX, tables, Moses pairs.

A folder or a zip is read file by file. XML is streamed: an element is dropped once it is read; a file that declares
entities is refused, and no DTD or other file is loaded. Codes of inline markup are dropped with the text inside of them
(`sub` of TMX 1.4b); the text of `hi`, `g`, `pc` and `mrk` is the segment's.

Glossaries (`read_terms`) are TBX, or tables of a term and its translations in each row, whose header may name languages
and "forbidden": a translation that must not be, or a mark (x, yes, true, 1) that all of the row's must not.
"""

from __future__ import annotations

import csv
import logging
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.common.languages import base_language, language_in, pair_of_name, same_language
from hf_mlnmt.data.filters import FilterReport
from hf_mlnmt.data.formats import TABLES, UNTRANSLATED, format_of
from hf_mlnmt.data.lines import OF_MACOS, REMEDY, open_text, problem_in, read_lines, reason_of
from hf_mlnmt.data.placeholders import NO_LINES, forms_of, placeholders, without_key
from hf_mlnmt.data.tables import looks_like_header, read_table, separator_of, side_by_side

log = logging.getLogger(__name__)
Place = Any  # a Path, a zipfile.Path in an archive, or a tuple of two such: source text and target text
_NAMED = re.compile(rb"""\b(?:srclang|source-language|target-language|trgLang|srcLang|xml:lang)=["']([\w*-]+)""")
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_ODD = "\t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_SPACES = re.compile(f" *[{_ODD}][ {_ODD}]*|  +")  # matches white space, but for a single space
# Names of elements of inline codes: what they contain is markup, not text of the segment.
_CODES = {"bpt", "ept", "it", "ph", "ut", "x", "bx", "ex", "sc", "ec", "cp", "sm", "em"}
_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)T(\d\d):?(\d\d):?(\d\d)")
_PO_LINE = re.compile(r'\s*(?:#.*|(?:(?:msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)\s*)?"(?:[^"\\]|\\.)*+"\s*)?')
_FORBIDDEN = re.compile("deprecated|superseded|forbidden|prohibited", re.IGNORECASE)
_SHOWN = 12  # most languages, states, reasons or files that a message names
# Names of states in XLIFF, Trados (conf), memoQ (mq:status), Phrase (m:confirmed), lower case; others: unconfirmed.
_NAMES = {"final": "final signed-off approvedsignoff", "translated": "translated confirmed manuallyconfirmed 1"}
_NAMES["reviewed"] = "reviewed approvedtranslation proofread reviewer1confirmed reviewer2confirmed"
_STATES = {"": ""} | {state: name for name, states in _NAMES.items() for state in states.split()}


class Unit(NamedTuple):
    """A segment and its translation; `before` and `after`: the source segments beside it in the file, or None.

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
class UnitReport(FilterReport):
    """Counts of the units read: kept, left out by reason, by language, by state, and by note for the user."""

    languages: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """Returns one paragraph for the user."""
        said = f"{self.read:,} units read" + (f", with {_listed(self.languages)}" if self.languages else "")
        said += f"; {self.kept:,} are pairs" + (f" ({_listed(self.states)})" if any(self.states) else "")
        said += f"; left out: {_listed(self.dropped)}" if self.dropped else ""
        return said + "".join(f". {note}: {count:,}" for note, count in self.notes.items()) + "."


def _listed(counts: Counter[str]) -> str:
    some = [f"{name or 'unnamed'} {count:,}" for name, count in counts.most_common(_SHOWN)]
    return ", ".join(some) + (f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else "")


class _Found(NamedTuple):
    """A source with its translations, as a reader found it, or the reason why they are left out (`why`)."""

    source: str
    targets: Sequence[str]
    place: str
    state: str = ""
    changed: str | None = None
    why: str | None = None
    apart: bool = False  # True for a term or a row of a table, which has no context before and after it


class _How(NamedTuple):
    source: str
    target: str
    report: UnitReport
    keep_keys: bool = False
    drop: bool = True
    alone: bool = True  # whether it is the only file read: only then a reverse direction is an error


def read_units(
    path: str | Path,
    source: str,
    target: str,
    report: UnitReport | None = None,
    keep_keys: bool = False,
    drop: bool = True,
) -> Iterator[Unit]:
    """Yields the units of a file, or of the files in a folder or zip, in order; a run of white space becomes one space.

    Args:
        source, target: codes of the languages to read, in any region; of several regions the exact one is read.
        report: is filled on the way, complete after the last unit.
        keep_keys: accelerators of programs (&File, _Open) stay in the messages of PO and MO.
        drop: units with control characters or overlong ones are left out and counted, else refused.

    Raises: UserError for what is broken, of another kind or direction, and where no unit is left.
    """
    files = bilingual_files(Path(path), source, target)
    how = _How(source, target, report if report is not None else UnitReport(), keep_keys, drop, len(files) == 1)
    for file in files:
        before = None
        reader = _read_table if isinstance(file, tuple) else BILINGUAL[format_of(Path(file.name))]
        for found, behind in pairwise(chain(reader(file, how), [None])):
            assert found is not None
            yield from _units(found, before, _clean(behind.source) if behind else None, how)
            before = _clean(found.source) or None
    if not how.report.kept:
        raise UserError(
            f"{path}: no unit of {source} and {target} is left: {how.report} Say its own languages with --from and "
            "--to, or in a recipe with languages, and see that its units are translated."
        )


def _units(found: _Found, before: str | None, after: str | None, how: _How) -> Iterator[Unit]:
    """Yields the units of what a reader found, and counts it."""
    own, targets = _clean(found.source), list(filter(None, map(_clean, found.targets)))
    why = found.why or ("empty source" if not own else "empty target" if not targets else None)
    if not why and (problem := next(filter(None, map(problem_in, (own, *targets))), None)):
        if not how.drop:
            raise UserError(f"{found.place}: {problem}. {REMEDY}")
        why = reason_of(problem)
    if why:
        how.report.drop(why, own, *targets[:1])
        return
    how.report.kept += 1
    how.report.states[found.state] += 1
    beside = (None, None) if found.apart else (before, after or None)
    for text in targets:
        yield Unit(own, text, *beside, found.changed, found.state, found.place)


def bilingual_files(path: Path, source: str, target: str) -> list[Place]:
    """Returns the files to read at a path: the path itself, or in a folder or zip the files with endings of BILINGUAL
    and the pairs of texts NAME.en and NAME.de (for `source` en, `target` de). Raises: UserError if there are none."""
    if path.is_dir():
        files: list[Any] = sorted(file for file in path.rglob("*") if file.is_file())
    elif path.suffix.lower() == ".zip":
        try:
            archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise UserError(f"{path}: cannot be read as a zip ({error}). Copy or download it again.") from error
        if any(entry.flag_bits & 1 for entry in archive.infolist()):
            raise UserError(f"{path}: is encrypted. Unpack it, and give the folder.")
        files = [zipfile.Path(archive, entry.filename) for entry in archive.infolist() if not entry.is_dir()]
    elif format_of(path) in BILINGUAL:
        return [path]
    else:
        raise UserError(f"{path}: expected {', '.join(BILINGUAL)}, also packed, or a folder or zip of such.")
    known, texts = list[Any](), dict[Any, dict[str, Any]]()
    for file in files:
        if OF_MACOS.match(getattr(file, "at", file.name)):
            continue
        if format_of(Path(file.name)) in BILINGUAL:
            known.append(file)
        elif code := language_in(file.name):
            stem = ".".join(part for part in file.name.split(".") if part != code)
            texts.setdefault((str(file.parent), stem), {})[code] = file
    sides = ((some, chosen(tuple(some), source), chosen(tuple(some), target)) for some in texts.values())
    known += [(some[own], some[other]) for some, own, other in sides if own and other and own != other]
    if not known:
        has = ", ".join(file.name for file in files[:_SHOWN]) or "nothing"
        raise UserError(
            f"{path}: holds no corpus of {source} and {target}, but {has}. Expected are {', '.join(BILINGUAL)}, or the "
            f"two texts NAME.{source} and NAME.{target}."
        )
    return known


def pair_of_file(path: Path) -> tuple[str, str] | None:
    """Returns source and target language of a bilingual file that names these two alone, in the first MiB of a TMX or
    XLIFF file, or in its name; else None."""
    found = list[str]()
    if path.is_file() and BILINGUAL.get(format_of(path)) in (_read_tmx, _read_xliff):
        with open_text(path, "xml") as file:
            found = [code.decode() for code in _NAMED.findall(file.read(1 << 20))]
    codes = dict[str, str]()
    for code in found or pair_of_name(path) or ():
        codes.setdefault(base_language(code), code)
    codes.pop("*all*", None)
    return (*codes.values(),) if len(codes) == 2 else None  # type: ignore[return-value]


def _clean(text: str) -> str:
    return _SPACES.sub(" ", text).strip(" ")


@lru_cache(maxsize=1000)
def chosen(codes: tuple[str, ...], wanted: str) -> str | None:
    """Returns the one of `codes` that equals `wanted`, else the first of the same language in any region, else None."""
    same = [code for code in codes if code and same_language(code, wanted)]
    exact = [code for code in same if code.lower().replace("_", "-") == wanted.lower().replace("_", "-")]
    return next(iter(exact + same), None)


def _other_languages(place: Place, own: str, other: str, how: _How) -> str | None:
    """Returns "other languages" for a file of another direction, else None. UserError if it is the reverse one."""
    if how.alone and other and same_language(other, how.source) and not same_language(other, how.target):
        raise UserError(
            f"{place}: its translations are {other}, and {how.source} to {how.target} is asked for. Exchange --from "
            "and --to, or in a recipe say reverse: true."
        )
    right = same_language(own or None, how.source) and same_language(other or None, how.target)
    return None if right else "other languages"


def _iso(date: str | None) -> str | None:
    """Returns a date as TMX and XLIFF have it (20240131T101500Z) as ISO has it."""
    match = _DATE.match(date or "")
    return match and "{}-{}-{}T{}:{}:{}Z".format(*match.groups())


# XML


def _elements(file: Any, where: Place, roots: str, *names: str) -> Iterator[tuple[str, Any]]:
    """Yields ("start" or "end", element) of the root and of these elements; removes an element after its "end".

    Raises: UserError for broken XML, with the line, for another root, and for declared entities.
    """
    from lxml import etree

    tags = [f"{{*}}{name}" for name in (*roots.split(), *names)]
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
                for each in (element, *element.iterancestors()):
                    while each.getparent() is not None and each.getprevious() is not None:
                        del each.getparent()[0]
    except etree.XMLSyntaxError as error:
        raise UserError(
            f"{where}, line {error.lineno}: broken XML, or cut off there ({error.msg}). Export or copy it again."
        ) from error
    if (name := _name(reading.root)) not in roots.split():
        raise UserError(f"{where}: its root is <{name}>, not <{roots}>. Name the file as its format is named.")


def _name(element: Any) -> str:
    """Returns an element's name without its namespace; "" of a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _text(element: Any) -> str:
    """Returns the text of a segment without its codes."""
    text = element.text or ""
    for child in element:
        name, tail = _name(child), child.tail or ""
        if name in _CODES:
            text += " " * (name in ("ph", "x") and text[-1:].isalnum() and tail[:1].isalnum())
        elif name:
            text += _text(child)
        text += tail
    return text


def _segment(source: Any, targets: Sequence[Any], how: _How, place: str, **about: Any) -> _Found:
    """Makes a unit of a source element and its target elements; counts units with inline markup."""
    if any(map(len, (source, *targets))):
        how.report.notes["Inline markup was dropped from units"] += 1
    return _Found(_text(source), [_text(target) for target in targets], place, **about)


def _read_tmx(path: Place, how: _How) -> Iterator[_Found]:
    number = 0
    with open_text(path, "xml") as file:
        for event, element in _elements(file, path, "tmx", "header", "tu"):
            if event == "start":
                continue
            if _name(element) == "header":
                original = element.get("srclang", "*all*")
                if same_language(original, how.target) and not same_language(original, how.source):
                    how.report.notes[f"Files that were translated the other way, from {original} (srclang)"] += 1
            if _name(element) != "tu":
                continue
            number += 1
            variants: dict[str, list[Any]] = {}
            for variant in element.iterchildren("{*}tuv"):
                if (segment := next(variant.iterchildren("{*}seg"), None)) is not None:
                    variants.setdefault(variant.get(_LANG) or variant.get("lang") or "", []).append(segment)
            how.report.languages.update([*variants])
            place, codes = f"{path}, unit {number}", tuple(variants)
            own, other = chosen(codes, how.source), chosen(codes, how.target)
            if own is None or other is None or (own == other and how.source != how.target):
                known = variants[own or other or codes[0]][0] if codes else None
                yield _Found("" if known is None else _text(known), [], place, why="other languages")
                continue
            about = [variants[other][0].getparent(), element]
            dates = [each.get(name) for name in ("changedate", "creationdate") for each in about]
            changed = _iso(next(filter(None, dates), None))
            yield _segment(variants[own][0], variants[other], how, place, changed=changed)


def _read_xliff(path: Place, how: _How) -> Iterator[_Found]:
    number, why, codes = 0, None, ("", "")
    with open_text(path, "xml") as file:
        for event, element in _elements(file, path, "xliff", "file", "trans-unit", "unit"):
            if event == "start":
                told = [element.get(name) for name in ("srcLang", "source-language", "trgLang", "target-language")]
                if any(told):
                    codes = told[0] or told[1] or "", told[2] or told[3] or ""
                    why = _other_languages(path, *codes, how)
            elif _name(element) in ("trans-unit", "unit"):
                number += 1
                how.report.languages.update(filter(None, codes))
                said = (each.get("translate") for each in (element, *element.iterancestors()))
                held = 'translate="no"' if next(filter(None, said), "yes") == "no" else None  # the nearest one counts
                for source, target, state, changed in _segments_of(element):
                    reason = why or held or ("untranslated" if target is None or state in UNTRANSLATED else None)
                    reason = reason or (None if state in _STATES else "unconfirmed")
                    found = _segment(source, [] if target is None else [target], how, f"{path}, unit {number}")
                    yield found._replace(state=_STATES.get(state, ""), changed=changed, why=reason)


def _segments_of(unit: Any) -> Iterator[tuple[Any, Any, str, str | None]]:
    """Yields source, target, state and date of a unit's segments: its <segment>s (XLIFF 2), its <mrk>s, or itself."""
    segments = list(unit.iterchildren("{*}segment")) or [unit]
    confirmed = {each.get("id"): each.get("conf", "Draft") for each in unit.iter("{*}seg")}  # of Trados
    for segment in segments:
        source, target = segment.find("{*}source"), segment.find("{*}target")
        marked = segment.find("{*}seg-source")
        if source is None:
            continue
        both = [segment] if target is None else [segment, target]
        about = {key.rpartition("}")[2]: value for each in both for key, value in each.attrib.items()}
        approved = "final" if about.get("approved") == "yes" else ""
        state = about.get("state") or about.get("status") or about.get("confirmed") or approved
        sides = [_marks(marked if marked is not None else source), {} if target is None else _marks(target)]
        for name, own in sides[0].items() if sides[0] and (sides[1] or target is None) else [(None, source)]:
            other = sides[1].get(name) if name is not None else target
            yield own, other, confirmed.get(name, state).lower(), _iso(about.get("lastchangedtimestamp"))


def _marks(element: Any) -> dict[str | None, Any]:
    return {each.get("mid"): each for each in element.iter("{*}mrk") if each.get("mtype") == "seg"}


def _read_tbx(path: Place, how: _How) -> Iterator[_Found]:
    number = 0
    with open_text(path, "xml") as file:
        for event, element in _elements(file, path, "martif tbx", "termEntry", "conceptEntry"):
            if event == "start" or _name(element) in ("martif", "tbx"):
                continue
            number += 1
            terms: dict[str, list[tuple[str, bool]]] = {}
            for part in chain(element.iterchildren("{*}langSet"), element.iterchildren("{*}langSec")):
                for entry in part.iter("{*}tig", "{*}ntig", "{*}termSec"):
                    notes = (each for each in entry.iter() if "administrativeStatus" in (_name(each), each.get("type")))
                    forbidden = any(_FORBIDDEN.search(each.text or "") for each in notes)
                    term = _text(next(entry.iter("{*}term"), entry))
                    terms.setdefault(part.get(_LANG) or part.get("lang") or "", []).append((term, forbidden))
            how.report.languages.update([*terms])
            own, other = chosen(tuple(terms), how.source), chosen(tuple(terms), how.target)
            place, others = f"{path}, entry {number}", terms.get(other or " ", [])
            for term, forbidden in terms.get(own or " ", []):
                if not others:
                    yield _Found(term, [], place, why="other languages", apart=True)
                for bad in (False, True) if not forbidden else ():
                    if targets := [target for target, is_bad in others if is_bad == bad]:
                        yield _Found(term, targets, place, why="forbidden" if bad else None, apart=True)


# Readers of gettext catalogues, and of tables and pairs of texts


def _read_po(path: Place, how: _How) -> Iterator[_Found]:
    import polib

    with open_text(path) as file:
        content: Any = file.read()
    compiled, lines = content[:4] in (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde"), []
    try:
        encoding = polib.detect_encoding(content, compiled)
        if not compiled:
            content = NO_LINES.sub(" ", content.decode(encoding).removeprefix("\ufeff")) + "\n"
            lines = content.split("\n")
        entries = (polib.mofile if compiled else polib.pofile)(content, encoding=encoding, check_for_duplicates=False)
        if (wrong := next((n for n, line in enumerate(lines, 1) if not _PO_LINE.fullmatch(line)), None)) is not None:
            raise ValueError(f"(line {wrong})")  # polib ignores a string without a closing quote
    except Exception as error:  # polib raises exceptions of many kinds for a damaged file
        line = re.search(r"\(line (\d+)\)", str(error))
        where, said = (f"{path}, line {line[1]}", "") if line else (f"{path}", f" ({error})")
        raise UserError(
            f"{where}: broken, or no messages of gettext{said}. Copy it again; msgfmt -c says what is wrong."
        ) from error
    above = path.parent.parent.name if path.parent.name == "LC_MESSAGES" else ""
    language = entries.metadata.get("Language", "") or language_in(path.name) or above
    others = _other_languages(path, "", language, how)
    how.report.languages[language] += len(entries)
    with naming(str(path)):
        forms = forms_of(entries.metadata.get("Plural-Forms", ""))
    try:
        changed = datetime.strptime(entries.metadata.get("PO-Revision-Date", ""), "%Y-%m-%d %H:%M%z")
        date = changed.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        date = None
    for number, entry in enumerate(entries, 1):
        place = f"{path}, unit {number}" if compiled else f"{path}, line {entry.linenum}"
        why = "obsolete" if entry.obsolete else "fuzzy" if getattr(entry, "fuzzy", False) else others
        alike = placeholders(entry.msgid) == placeholders(entry.msgid_plural or "")
        for form, text in entry.msgstr_plural.items() or [(None, entry.msgstr)]:
            numbers = forms[form] if form is not None and form < len(forms) else {1} if not form else set()
            one = form is None or numbers == {1} or (alike and 1 in numbers and len(forms) > 1)
            own = entry.msgid if one else entry.msgid_plural
            if not how.keep_keys and (bare := without_key(own, text)):
                how.report.notes["Accelerators were taken out of units"] += 1
                own, text = bare
            untranslated = None if text.strip() else "untranslated"
            yield _Found(own, [text], place, "translated", date, why or untranslated)


def _read_table(path: Place, how: _How) -> Iterator[_Found]:
    """Yields the pairs of a table, or of two files of lines."""
    if is_lines := isinstance(path, tuple):
        rows = side_by_side(path, how.drop, how.report)
    else:
        spec = SimpleNamespace(columns=None, bad_lines="drop" if how.drop else "error")
        spec.languages = {"source": how.source, "target": how.target}
        rows = read_table(spec, path, how.report)
    for number, (own, other) in enumerate(rows, 1):
        how.report.languages.update((how.source, how.target))
        yield _Found(own, [other], f"{path[0] if is_lines else path}, pair {number}", apart=not is_lines)


Reader = Callable[[Place, _How], Iterator[_Found]]
_XLIFF = dict.fromkeys((".xlf", ".xliff", ".sdlxliff", ".mqxliff", ".mxliff"), _read_xliff)
BILINGUAL: dict[str, Reader] = {".tmx": _read_tmx, **_XLIFF, ".po": _read_po, ".mo": _read_po, ".tbx": _read_tbx}
BILINGUAL |= {".csv": _read_table, ".tsv": _read_table}


# Glossaries

_MARKS = {"x", "yes", "true", "1"}
Terms = dict[str, Any]
"""{term: its translations, or {"use": translations, "not": forbidden ones} where there are such}."""


class WhichLanguages(UserError):
    """Raised where a glossary has terms in several languages, and the caller does not give both source and target."""


def read_terms(path: Path, source: str | None, target: str | None) -> Terms:
    """Returns the terms of a glossary; of one with several languages, those of `source` and `target`.

    Raises: UserError for a row that is no term, or a language that the file lacks; WhichLanguages if it has several,
    and `source` or `target` is None.
    """
    terms: dict[str, tuple[list[str], list[str]]] = {}
    if (ending := format_of(path)) in BILINGUAL and ending not in TABLES:
        if source is None or target is None:
            raise WhichLanguages(f"{path}: its terms are in several languages: say which, --from and --to.")
        for found in BILINGUAL[ending](path, _How(source, target, report := UnitReport())):
            if (name := _clean(found.source)) and found.why in (None, "forbidden"):
                terms.setdefault(name, ([], []))[found.why is not None].extend(map(_clean, found.targets))
        if not terms:
            has = ", ".join(report.languages) or "none"
            raise UserError(f"{path}: has no term of {source} and {target}, but of {has}.")
        return _checked(terms)
    sign = separator_of(path) if ending == ".csv" else ""
    own, others, at = 0, None, -1
    for number, line in enumerate(read_lines(path, form="table"), start=1):
        cells = next(csv.reader([line], delimiter=sign), [""]) if sign else line.split("\t")
        cells = [part.strip() for part in cells]
        if number == 1 and len(cells) > 1 and looks_like_header(cells):
            log.warning("%s, line 1: is a header, no term", path)
            at = next((place for place, cell in enumerate(cells) if cell.lower() == "forbidden"), -1)
            own, others = _columns(path, cells, source, target)
            continue
        term, told = cells[own : own + 1], cells[at] if 0 <= at < len(cells) else ""
        targets = [cell for place, cell in enumerate(cells) if place not in (own, at) and others in (None, place)]
        bad = [told] if told and told.lower() not in _MARKS else []
        if line.strip() and not (all(term) and (targets or bad) and (all(targets) or bad or others)):
            wanted = "term, comma, translations" if sign else "term, tab, translations"
            raise UserError(f"{path}, line {number}: {line!r} is no term; expected {wanted}.")
        use = list(filter(None, targets))
        for some, more in zip(terms.setdefault(term[0], ([], [])), ([], use) if told and not bad else (use, bad)):
            some += more
    return _checked(terms)


def _columns(path: Path, header: list[str], source: str | None, target: str | None) -> tuple[int, int | None]:
    """Returns the columns of source and target by the languages in a header; target None: all other columns."""
    languages = [cell for cell in header if cell.lower() not in ("forbidden", "source", "target")]
    if len(languages) < 3 and (not languages or source is None or target is None):
        return 0, None
    if source is None or target is None:
        raise WhichLanguages(f"{path}: has {', '.join(languages)}: say which, --from and --to.")
    own, other = (chosen(tuple(languages), code) for code in (source, target))
    if own is None or other is None:
        raise UserError(f"{path}: has {', '.join(languages)}, not {source} and {target}.")
    return header.index(own), header.index(other)


def _checked(terms: Mapping[str, tuple[list[str], list[str]]]) -> Terms:
    return {term: {"use": use, "not": bad} if bad else use for term, (use, bad) in terms.items() if use or bad}
