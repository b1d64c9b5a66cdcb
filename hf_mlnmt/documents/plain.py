"""Readers of plain text and of subtitles (SubRip, WebVTT, SubViewer of YouTube, Advanced SubStation Alpha)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, pairwise

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.documents.marked import HTML, PLAIN, Form, Passage, Reading, Token, passages

_CLOCK = r"-?(?:\d+[ ]?:[ ]?)?\d+[ ]?:[ ]?\d+(?:[ ]?[,.:][ ]?\d+)?"  # a time; spaces are allowed: 00: 01: 02, 5
_TIME = re.compile(rf"\s*{_CLOCK}\s*(?:[-\u2010-\u2015\u2212]+[ ]?>|\u2192)\s*{_CLOCK}.*")
_SBV_TIME = re.compile(rf"\s*{_CLOCK}\s*,\s*{_CLOCK}\s*")
_DRAWING = re.compile(r"\{[^{}]*\\p[1-9]")
_DASH = re.compile(r"\s*(?:[-\u2010-\u2015\u2212]+(?!\d)|>>+|(?:&gt;){2,})\s*")
_CUE = re.compile(r"(\r?\n(?:[ \t]*\r?\n)*|\\N)|(</?[a-zA-Z][^<>\n]*>|<[\d:.]+>|\{\\[^{}\n]*\})")
_SRT = PLAIN._replace(read=lambda raw: raw.replace("\\h", "\xa0"))
_OF_VTT = re.compile(r"NOTE\b|STYLE\s|REGION\s")


def read_text(text: str, reading: Reading) -> list[str | Passage]:
    """Returns the parts of plain text; each line is a text to translate."""
    lines = text.splitlines(keepends=True)
    return list(chain.from_iterable(passages([Token("text", line)], PLAIN, reading.check) for line in lines))


def read_ass(text: str, reading: Reading) -> list[str | Passage]:
    """Returns the parts of Advanced SubStation Alpha: the text of each Dialogue line, the last of its fields.

    Raises: UserError where no Dialogue line follows a Format line of [Events].
    """
    parts: list[str | Passage] = []
    fields, found, events = 0, False, False
    for line in text.splitlines(keepends=True):
        kind, _, rest = line.partition(":")
        events = line.strip() == "[Events]" if line.startswith("[") else events
        fields = rest.count(",") if events and kind == "Format" else fields
        pieces = line.split(",", fields)
        if kind != "Dialogue" or not fields or len(pieces) <= fields or _DRAWING.search(pieces[-1]):
            parts.append(line)
            continue
        found = True
        parts += [line[: len(line) - len(pieces[-1])], *passages(_cue_tokens(pieces[-1]), _SRT, reading.check)]
    if not found:
        raise UserError("no Dialogue line under the Format line of [Events]: not Advanced SubStation Alpha (ass).")
    return parts


def _subtitles(
    text: str, reading: Reading, form: Form, name: str, time: re.Pattern[str] = _TIME
) -> Iterator[str | Passage]:
    """Yields the parts of subtitles. Numbers, times and dashes before speakers stay as they are; a text to translate is
    the lines of a cue up to a line that ends a sentence, or up to the next speaker. name: of the format.

    Raises: UserError where no line has the times of a subtitle.
    """
    lines = text.splitlines(keepends=True)
    times = [number for number, line in enumerate(lines) if time.fullmatch(line.rstrip("\r\n"))]
    if not times:
        raise UserError(f"no line gives the times of a subtitle, as in 00:00:01,000 --> 00:00:02,500: not {name}.")
    yield "".join(lines[: times[0]])
    for start, following in pairwise([*times, len(lines)]):
        named = lines[following - 1].strip().isdigit() or (form is HTML and not lines[following - 2].strip())
        end = following - (named and following < len(lines))  # ends before the number or name of the next cue
        yield lines[start]
        for piece in re.split(r"(?<=\n)(?=[ \t]*\r?\n)", "".join(lines[start + 1 : end])):
            kept = form is HTML and _OF_VTT.match(piece.lstrip())
            yield from [piece] if kept else passages(_cue_tokens(piece), form, reading.check)
        yield "".join(lines[end:following])


read_srt = partial(_subtitles, form=_SRT, name="SubRip (srt)")
read_vtt = partial(_subtitles, form=HTML, name="WebVTT (vtt)")
_SBV = "SubViewer (sbv), whose times are 0:00:01.000,0:00:02.500"
read_sbv = partial(_subtitles, form=PLAIN, name=_SBV, time=_SBV_TIME)  # SubViewer as YouTube writes it


def _cue_tokens(cue: str) -> list[Token]:
    tokens: list[Token] = []
    done, line, begins = 0, None, True  # line: index of the last line break's token; begins: no text in the line yet
    for match in [*_CUE.finditer(cue), None]:
        text = cue[done : match.start() if match else None]
        if begins and (dash := _DASH.match(text)):
            tokens.append(Token("mark", dash[0]))
            text = text[dash.end() :]
            if line is not None:
                tokens[line] = tokens[line]._replace(kind="break")
        tokens.append(Token("text", text))
        if match is None:
            break
        begins = bool(match[1]) or (begins and not text.strip())
        done = match.end()
        if match[1]:
            line = len(tokens)
            tokens.append(Token("line", match[0]))
        else:
            tokens.append(tag(match[0]))
    return tokens


def split_at(raw: str, pattern: re.Pattern[str], make: Callable[[re.Match[str]], Token]) -> Iterator[Token]:
    """Splits a raw text at the matches of a pattern: yields make(match) for each, and tokens for the text between."""
    done = 0
    for match in pattern.finditer(raw):
        yield Token("text", raw[done : match.start()])
        yield make(match)
        done = match.end()
    yield Token("text", raw[done:])


def tag(raw: str) -> Token:
    """Makes the token of a tag or entity: "start" or "end" of an element, "line" for <br>, "mark" for <0/>, &copy;."""
    name = re.sub(r"\W.*", "", raw.lstrip("</"), flags=re.DOTALL).lower()
    if name == "br" or raw == "&nbsp;":  # <br> and &nbsp; separate words
        return Token("line", raw)
    if (raw[1:2].isdigit() and ":" in raw) or raw[0] in "{&" or raw.endswith("/>"):
        return Token("mark", raw)
    return Token("end" if raw.startswith("</") else "start", raw, name)
