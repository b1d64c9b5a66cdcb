"""The language packs of Firefox and Thunderbird: archives of Fluent, properties and DTD files."""

from __future__ import annotations

import html
import io
import re
import zipfile
from collections.abc import Iterator

_FLUENT = re.compile(r"^(-?[A-Za-z][\w-]*) *=(.*(?:\n(?:[ \t]+.*|(?=\n[ \t])))*)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^[ \t]+\.([\w-]+) *= *", re.MULTILINE)
_PROPERTY = re.compile(r"^[ \t]*([^#!\s=:]+)[ \t]*[=:][ \t]*((?:\\\n|.)*)", re.MULTILINE)
_ENTITY = re.compile(r"""<!ENTITY\s+([\w.-]+)\s+(?:"([^"]*)"|'([^']*)')\s*>""")
_NO_TEXT = re.compile(r"(?:.*[.\-_:])?(?:(?:access|command)?key|style|width|height)", re.IGNORECASE)


def strings_of_pack(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields the strings of a pack; their keys say the files, without what names the language."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            if reader := {"ftl": _fluent, "properties": _properties, "dtd": _dtd}.get(name.rpartition(".")[2]):
                place = re.sub(r"(localization|locale)/[a-zA-Z-]+/", r"\1/", re.sub(r"chrome/[^/]+/", "chrome/", name))
                strings = reader(archive.read(name).decode("utf-8", "replace"))
                yield from ((f"{place}:{key}", text) for key, text in strings if not _NO_TEXT.fullmatch(key))


def _fluent(text: str) -> Iterator[tuple[str, str]]:
    """Yields messages and their attributes; those that are chosen by a number or a gender (`->`) are left out."""
    for key, body in _FLUENT.findall(text):
        value, *rest = _ATTRIBUTE.split(body)
        for name, part in ((key, value), *((f"{key}.{name}", part) for name, part in zip(rest[::2], rest[1::2]))):
            if "->" not in part:
                yield name, re.sub(r'\{ *"([^"]*)" *\}', r"\1", part)


def _properties(text: str) -> Iterator[tuple[str, str]]:
    for key, value in _PROPERTY.findall(text):
        value = re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), re.sub(r"\\\n[ \t]*", "", value))
        yield key, re.sub(r"\\(.)", lambda match: " " if match[1] in "ntr" else match[1], value)


def _dtd(text: str) -> Iterator[tuple[str, str]]:
    yield from ((key, html.unescape(double or single)) for key, double, single in _ENTITY.findall(text))
