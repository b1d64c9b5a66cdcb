"""Manual pages in the macros of man."""

from __future__ import annotations

import re
from typing import NamedTuple

_SIGNS = {"bu": "•", "co": "©", "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "aq": "'", "dq": '"', "em": "—", "en": "–"}
_SIGNS |= {"ti": "~", "ha": "^", "rs": "\\", "mi": "-", "hy": "-", "->": "→"}
_SIGNS |= {"Bq": "„", "bq": "‚", "Fo": "«", "Fc": "»"}
_STRINGS = {"C`": '"', "C'": '"', 'L"': "“", 'R"': "”", "--": "—", "lq": "“", "rq": "”", "Aq": "'"}  # perl's, and an's
_ESCAPE = re.compile(
    r"""\\(?: \*(?:\((?P<string>..)|.) | f(?:\[[^]]*\]|\(..|.) | s[-+]?\d | m\[[^]]*\]"""
    r"""| \((?P<short>..) | \[(?P<long>[^]]+)\] | (?P<plain>[-.'`e\\~ ]) | [&%:|^/,)c] )""",
    re.VERBOSE,
)
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_WORDS, _JOINED = {"B", "I", "SM", "SB"}, {"BR", "BI", "RB", "RI", "IB", "IR"}
_BREAKS = {"PP", "P", "LP", "TP", "TQ", "IP", "HP", "RS", "RE", "br", "sp", "SH", "SS"}


class Block(NamedTuple):
    """A paragraph, a heading, a cell: its tag or macro, its text, its id."""

    label: str
    text: str = ""
    id: str = ""


def manual_page(text: str) -> list[Block]:
    """Returns the blocks of a manual page: headings, paragraphs, the terms of lists; of pages in mdoc none."""
    blocks, label, pieces, literal = list[Block](), "", list[str](), False

    def end(then: str) -> None:
        nonlocal label
        if pieces:
            blocks.append(Block(label, " ".join(pieces)))
            pieces.clear()
        label = then

    for line in text.replace("\\\n", "").split("\n") if not re.search(r"^\.Dd ", text, re.MULTILINE) else ():
        macro, rest = re.match(r"[.'][ \t]*(\S*)[ \t]*(.*)", line).groups() if line[:1] in (".", "'") else ("", line)  # type: ignore[union-attr]
        if macro in ("nf", "EX", "TS"):
            end(label)
            blocks.append(Block("literal"))
            literal = True
        elif macro in ("fi", "EE", "TE"):
            literal = False
        elif literal:
            continue
        elif macro in _BREAKS:
            end(macro)
            if macro in ("SH", "SS", "IP") and rest:
                pieces += _arguments(rest)[: 1 if macro == "IP" else None]
                end(f"/{macro}")
        elif not macro or macro in _WORDS | _JOINED:
            words = ("" if macro in _JOINED else " ").join(_arguments(rest)) if macro else _spoken(rest)
            pieces += [words] if words else []
            if label in ("TP", "TQ") and pieces:  # the line behind .TP is the term
                end(f"/{label}")
    end("")
    return blocks


def _arguments(rest: str) -> list[str]:
    return [_spoken(quoted.replace('""', '"') or bare) for quoted, bare in _ARGUMENT.findall(rest)]


def _spoken(text: str) -> str:
    """Returns a text of roff as it is printed; a sign that is not known becomes U+FFFD, which no pair may hold."""

    def sign(match: re.Match[str]) -> str:
        name = match["short"] or match["long"]
        if name:
            number = re.fullmatch(r"u([0-9A-F]{4,6})", name)
            return chr(int(number[1], 16)) if number else _SIGNS.get(name, "\ufffd")
        if match[0][1] == "*":
            return _STRINGS.get(match["string"] or "", "\ufffd")
        return {"e": "\\", "~": " ", None: ""}.get(match["plain"], match["plain"] or "")

    return _ESCAPE.sub(sign, re.sub(r'\\".*', "", text))
