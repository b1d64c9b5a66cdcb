"""The kinds of packages: a reader each, which yields pairs of a Side of English members and a Side of translated ones.

A Side is {place: content}; members of the same place go together.
"""

from __future__ import annotations

import bz2
import difflib
import gzip
import html
import io
import json
import re
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import polib
from moz.l10n.formats import Format
from moz.l10n.message import serialize_message
from moz.l10n.model import Entry, PatternMessage
from moz.l10n.resource import parse_resource

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.documents.html import attributes, html_tokens
from hf_mlnmt.documents.marked import Reading

from .clean import Pair

VERSION = 2  # of what readers and clean.py make of a package: raise it when that changes, and all is read anew
Side = dict[str, bytes]
Tell = Callable[[str], None]
Reader = Callable[[Side, Side, Tell], Iterator[Pair]]
_BROKEN = (OSError, EOFError, ValueError, LookupError, SyntaxError, struct.error, zlib.error, zipfile.BadZipFile)
_LEAST_RUN = 8  # blocks of the same kinds in the same order, where pages differ
_RECORD = re.compile(r"Package: (\S+)\nDescription-md5: (\S+)\nDescription-\w+: (.*(?:\n .*)*)")
_ID = re.compile(r"(?:par|hd|tit|bm)_id\w+")
_MALLARD_BLOCKS = {"p", "title", "subtitle", "desc", "item", "td", "th", "cite"}
_MALLARD_SKIPPED = {"screen", "comment", "revision", "credit", "license"}
_PACKED = {"ftl": Format.fluent, "properties": Format.properties, "dtd": Format.dtd}
_NO_TEXT = re.compile(r"(?:.*[.\-_:])?(?:(?:access|command)?key|style|width|height)", re.IGNORECASE)


class Block(NamedTuple):
    """A paragraph, a heading, a cell: its tag, its text, its id."""

    label: str
    text: str = ""
    id: str = ""


def catalogues(english: Side, translated: Side, tell: Tell) -> Iterator[Pair]:
    """Yields msgid and msgstr of gettext's catalogues, compiled or not; of plurals the first and the last form."""
    for place, content in sorted(translated.items()):
        compiled = content[:4] in (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")
        try:
            encoding = polib.detect_encoding(content, compiled)
            entries = polib.mofile(content, encoding=encoding) if compiled else polib.pofile(content.decode(encoding))
        except _BROKEN as error:
            tell(f"{place}: no catalogue that can be read ({error})")
            continue
        for entry in entries:
            if not (entry.obsolete or getattr(entry, "fuzzy", False)):
                forms = [entry.msgstr_plural[number] for number in sorted(entry.msgstr_plural)] or [entry.msgstr]
                texts = (entry.msgid, entry.msgid_plural)[: len(forms)]
                yield from (Pair(f"{place}:{entry.msgctxt or ''}", *both) for both in zip(texts, (forms[0], forms[-1])))


def descriptions(english: Side, translated: Side, tell: Tell) -> Iterator[Pair]:
    """Yields title and paragraphs of packages' descriptions by Description-md5, from apt's lists.

    Where the numbers of paragraphs differ, the title alone is a pair. A key is the package's name.
    """
    own = {digest: parts for content in english.values() for _, digest, parts in _records(content)}
    uneven = 0
    for name, digest, parts in (record for content in translated.values() for record in _records(content)):
        if digest in own:
            same = len(parts) == len(own[digest])
            uneven += not same
            yield from (Pair(name, *both) for both in zip(own[digest], parts if same else parts[:1]))
    tell(f"{uneven:,} descriptions have other paragraphs than the English ones: only their titles are taken")


def _records(content: bytes) -> Iterator[tuple[str, str, list[str]]]:
    """Yields package, digest of the English description, and title and paragraphs of each record of a list."""
    for name, digest, text in _RECORD.findall(content.decode("utf-8", "replace")):
        title, *lines = text.split("\n")
        yield name, digest, [title, *_paragraphs(lines)]


def _paragraphs(lines: Iterable[str]) -> list[str]:
    parts = [""]
    for line in lines:
        item = re.match(r"\s+[-*o+•]\s+(.*)", line)
        if line.strip() == "." or item:
            parts.append(item[1] if item else "")
        else:
            parts[-1] += " " + line.strip()
    return [part for part in parts if part.strip()]


def by_key(strings_of: Callable[[bytes], Iterable[tuple[str, str]]]) -> Reader:
    """Returns a reader of members that hold strings by their keys: those of the same key are pairs."""

    def read(english: Side, translated: Side, tell: Tell) -> Iterator[Pair]:
        for place in sorted(english.keys() & translated.keys()):
            try:
                own, other = (dict(strings_of(side[place])) for side in (english, translated))
            except _BROKEN as error:
                tell(f"{place}: cannot be read ({error})")
                continue
            yield from (Pair(f"{place}#{key}", text, other[key]) for key, text in own.items() if key in other)

    return read


def by_order(blocks_of: Callable[[bytes], list[Block]]) -> Reader:
    """Returns a reader of pages: blocks in the same order, of pages that differ runs of the same kinds of blocks."""

    def read(english: Side, translated: Side, tell: Tell) -> Iterator[Pair]:
        same = part = broken = 0
        for place in sorted(english.keys() & translated.keys()):
            try:
                own, other = blocks_of(english[place]), blocks_of(translated[place])
            except _BROKEN:
                broken += 1
                continue
            first, second = ([block.label for block in side] for side in (own, other))
            alike = first == second
            same, part = same + alike, part + (not alike)
            for match in difflib.SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks():
                for n in range(match.size if alike or match.size >= _LEAST_RUN else 0):
                    yield Pair(f"{place}#{match.a + n}", own[match.a + n].text, other[match.b + n].text)
        tell(f"{same:,} pages have the same blocks, {part:,} in part, {broken:,} cannot be read")

    return read


def page(content: bytes) -> list[Block]:
    """Returns the blocks of a page of HTML that have text; of code the place alone."""
    blocks, label, anchor, pieces = list[Block](), "", "", list[str]()
    for token in [*html_tokens(content.decode("utf-8", "replace"), Reading()), None]:
        if token and token.kind == "text":
            pieces.append(token.raw)
        elif token and token.kind == "mark" and not token.raw.startswith("<!"):
            pieces.append(re.sub("<[^>]*>", "", token.raw))
        elif token and token.kind == "line":
            pieces.append(" ")
        elif not token or token.kind == "break":
            text = " ".join(html.unescape("".join(pieces)).split())
            blocks += [Block(label, text, anchor)] if text else []
            pieces.clear()
        if token and token.kind == "break":
            ending = token.raw.startswith("</")
            found = "" if ending else attributes(token.raw[: token.raw.find(">") + 1]).get("id", "")
            label, anchor = "/" * ending + token.name, found if _ID.fullmatch(found) else ""
            if re.match("<pre", token.raw, re.IGNORECASE):
                blocks.append(Block("pre"))
    return blocks


def mallard_page(content: bytes) -> list[Block]:
    """Returns the blocks of a page of GNOME's Mallard, also the description and the titles of its `info`."""
    blocks: list[Block] = []

    def walk(element: ElementTree.Element, inside: bool) -> str:
        """Returns the text of an element that is part of its parent's, after adding the blocks in it."""
        name, place = str(element.tag).rpartition("}")[2], len(blocks)
        if name in _MALLARD_SKIPPED or (name == "code" and not inside):
            return ""
        block = name in _MALLARD_BLOCKS
        text = element.text or ""
        for child in element:
            text += walk(child, block or inside) + (child.tail or "")
        if block and text.strip():
            blocks.insert(place, Block(name, text))
        return text if inside and not block else ""

    walk(ElementTree.fromstring(content), False)
    return blocks


def manual_page(content: bytes) -> list[Block]:
    """Returns the blocks of a manual page as mandoc shows it, without the signs of lists."""
    shown = page(run("mandoc", "-Kutf-8", "-Thtml", "-Ofragment", content=gzip.decompress(content)))
    return [block._replace(text=re.sub(r"^(?:•|\d+\.)(?=\S)", "", block.text)) for block in shown]


def run(*words: str, folder: Path | None = None, content: bytes | None = None) -> bytes:
    """Returns what a program prints of the content. Raises: UserError with its last complaint where it fails."""
    try:
        return subprocess.run(words, cwd=folder, input=content, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise UserError(
            f"{words[0]}: no such program here. Run this in Debian, as in a container, and install it."
        ) from error
    except subprocess.CalledProcessError as error:
        complaints = error.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UserError(f"{' '.join(words)}: {complaints[-1] if complaints else 'failed'}") from error


def strings_of_pack(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields the strings of a language pack of Firefox or Thunderbird; keys say the files, without the language.

    Fluent's messages that are chosen by a number or a gender are left out.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            if form := _PACKED.get(name.rpartition(".")[2]):
                place = re.sub(r"(localization|locale)/[a-zA-Z-]+/", r"\1/", re.sub(r"chrome/[^/]+/", "chrome/", name))
                parts = parse_resource(form, archive.read(name)).sections
                for entry in (each for part in parts for each in part.entries if isinstance(each, Entry)):
                    for key, message in {"": entry.value, **entry.properties}.items():
                        names = ".".join(filter(None, (*entry.id, key)))
                        if isinstance(message, PatternMessage) and not _NO_TEXT.fullmatch(names):
                            text = "".join(map(str, message.pattern))
                            if form is Format.fluent:
                                text = re.sub(r'\{ *"([^"]*)" *\}', r"\1", serialize_message(form, message))
                            yield f"{place}:{names}", html.unescape(text) if form is Format.dtd else text


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, f"{key}.{name}") if name != "@metadata" else ()


KINDS: dict[str, Reader] = {
    "catalogues": catalogues,
    "descriptions": descriptions,
    "ids": by_key(lambda content: [(block.id, block.text) for block in page(content) if block.id]),  # LibreOffice's
    "messages": by_key(lambda content: _leaves(json.loads(content))),  # JSON of MediaWiki and others
    "bundles": by_key(strings_of_pack),
    "pages": by_order(page),
    "kde": by_order(lambda content: page(bz2.decompress(content))),
    "mallard": by_order(mallard_page),
    "manuals": by_order(manual_page),
}
