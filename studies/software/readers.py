"""The kinds of packages: a reader each, which yields pairs of a Side of English members and a Side of translated ones.

A Side is {place: content}; members of the same place go together.
"""

from __future__ import annotations

import bz2
import difflib
import gzip
import html
import json
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from xml.etree import ElementTree

import polib

from hf_mlnmt.documents.html import attributes, html_tokens
from hf_mlnmt.documents.marked import Reading

from .bundles import strings_of_pack
from .clean import Pair
from .manuals import Block, manual_page

VERSION = 1  # of what readers and clean.py make of a package: raise it when that changes, and all is read anew
Side = dict[str, bytes]
Tell = Callable[[str], None]
Reader = Callable[[Side, Side, Tell], Iterator[Pair]]
_BROKEN = (OSError, EOFError, ValueError, LookupError, SyntaxError, struct.error, zlib.error, zipfile.BadZipFile)
_LEAST_RUN = 8  # blocks of the same kinds in the same order, where pages differ
_ID = re.compile(r"(?:par|hd|tit|bm)_id\w+")
_MALLARD_BLOCKS = {"p", "title", "subtitle", "desc", "item", "td", "th", "cite"}
_MALLARD_SKIPPED = {"screen", "comment", "revision", "credit", "license"}


def catalogues(english: Side, translated: Side, tell: Tell) -> Iterator[Pair]:
    """Yields msgid and msgstr of gettext's catalogues, compiled or not; of plurals the first and the last form."""
    for place, content in sorted(translated.items()):
        compiled = content[:4] in (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")
        with tempfile.NamedTemporaryFile(suffix=".mo" if compiled else ".po") as file:
            file.write(content)
            file.flush()
            try:
                entries = polib.mofile(file.name) if compiled else polib.pofile(file.name)
            except _BROKEN as error:
                tell(f"{place}: no catalogue that can be read ({error})")
                continue
        for entry in entries:
            if not (entry.obsolete or getattr(entry, "fuzzy", False)):
                forms = [entry.msgstr_plural[number] for number in sorted(entry.msgstr_plural)] or [entry.msgstr]
                yield Pair(f"{place}:{entry.msgctxt or ''}", entry.msgid, forms[0])
                if entry.msgid_plural and len(forms) > 1:
                    yield Pair(f"{place}:{entry.msgctxt or ''}", entry.msgid_plural, forms[-1])


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
    for record in content.decode("utf-8", "replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Description-md5): (\S+)", record, re.MULTILINE))
        found = re.search(r"^Description-(?!md5)\w+: (.*(?:\n .*)*)", record, re.MULTILINE)
        if found and len(fields) == 2:
            title, *lines = found[1].split("\n")
            yield fields["Package"], fields["Description-md5"], [title, *_paragraphs(lines)]


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
            alike = [block.label for block in own] == [block.label for block in other]
            same, part = same + alike, part + (not alike)
            for start, begin, size in [(0, 0, len(own))] if alike else _runs(own, other):
                for number, pair in enumerate(zip(own[start : start + size], other[begin : begin + size]), start):
                    yield Pair(f"{place}#{number}", pair[0].text, pair[1].text)
        tell(f"{same:,} pages have the same blocks, {part:,} in part, {broken:,} cannot be read")

    return read


def _runs(own: list[Block], other: list[Block]) -> list[tuple[int, int, int]]:
    tags, others = ([block.label for block in side] for side in (own, other))
    matches = difflib.SequenceMatcher(None, tags, others, autojunk=False).get_matching_blocks()
    return [(match.a, match.b, match.size) for match in matches if match.size >= _LEAST_RUN]


def page(content: bytes) -> list[Block]:
    """Returns the blocks of a page of HTML, plain or packed as KDE's are, that have text; of code the place alone."""
    if content[:3] == b"BZh":
        content = bz2.decompress(content)
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
    "kde": by_order(page),
    "mallard": by_order(mallard_page),
    "manuals": by_order(lambda content: manual_page(gzip.decompress(content).decode("utf-8"))),
}
