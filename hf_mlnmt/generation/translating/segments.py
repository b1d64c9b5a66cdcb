"""Texts in pieces that the model can take, and the pieces' translations as texts again.

A text that is too long is cut into sentences, and a sentence that is too long into clauses or words; translations are
put together again. The cuts keep the whitespace between the pieces: all `piece.text + piece.space` joined are the
stripped text again, but for invisible characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.words import between_characters


class Piece(NamedTuple):
    """A part of a text, the whitespace that follows it, and whether a sentence was cut to get it."""

    text: str
    space: str
    whole: bool = True


# What may stand between the end mark and the space, and between the space and the first letter of the next sentence.
_CLOSING = r"[\"'”’“»›)\]}]*"
_OPENING = "\"'“‘„‚«‹([{¿¡-–—"
_END = re.compile(rf"(?<![.!?…؟۔։።])[.!?…؟۔։።]++{_CLOSING}(\s+)|[。！？｡．।॥។။]+[”』」）》】]*(\s*)")
_LINE = re.compile(r"(?<!\s)\s*\n\s*")
_CLAUSE = re.compile(rf"[,;:،؛]{_CLOSING}(\s+)|[，；：、]+(\s*)")
_WORD = re.compile(r"()(\s+)")
_ABBREVIATIONS = (
    " mr mrs ms dr prof st sr jr gen col sgt capt rev hon no nos vol pp fig figs eq sec vs cf eg ie etc al dept approx "
    "est hr fr frl nr bzw ca usw vgl evtl ggf inkl abs art bd mio mrd str tel u.a z.b d.h e.g i.e u.s a.m p.m m mme "
    "mlle mm av sig dott ing avv sra srta ud uds "
)


def split_lines(text: str) -> list[Piece]:
    """Splits a text into its non-empty lines; empty lines and indentation are part of the whitespace between them."""
    return _pieces(text.strip(), ((match.start(), match.end()) for match in _LINE.finditer(text.strip())))


def split_sentences(text: str) -> list[Piece]:
    """Splits at end marks, in most scripts; an abbreviation, an initial or a lower-case word joins instead."""
    ends = (match for match in _END.finditer(text) if match[1] is None or not _continues(text, *match.span()))
    return _pieces(text, ((match.start(match.lastindex or 0), match.end()) for match in ends))


def sentences_of(piece: Piece) -> list[Piece]:
    """Splits a piece into sentences; the white space behind it is behind the last one."""
    *others, last = split_sentences(piece.text)
    return [*others, Piece(last.text, piece.space)]


def split_to_fit(text: str, limit: int, lengths: Callable[[list[str]], list[int]]) -> list[Piece]:
    """Splits into pieces whose `lengths` (tokens) are at most `limit`: sentences, else clauses, else words, else
    characters of a script without spaces, as large as fit.

    A single word of another script that is longer than the limit comes back as it is.
    """
    pieces = []
    levels = (_CLAUSE, _WORD, between_characters())
    for sentence, length in measured(split_sentences(text), lengths):
        pieces += [sentence] if length <= limit else _cut(sentence, limit, lengths, levels)
    return pieces


def join(translations: Sequence[str], pieces: Sequence[Piece]) -> str:
    """Joins to one text; sentences that no space separated (Chinese) get one where the other script wants it."""
    parts = []
    for translation, piece in zip(translations, pieces, strict=True):
        wide = bool(translation) and unicodedata.east_asian_width(translation[-1]) in "WF"
        parts += [translation, piece.space or ("" if wide else " ")]
    return "".join(parts[:-1])


def _cut(piece: Piece, limit: int, lengths: Callable, levels: tuple[re.Pattern, ...]) -> list[Piece]:
    marks = ((match.start(match.lastindex or 0), match.end()) for match in levels[0].finditer(piece.text))
    packed: list[Piece] = []
    room = 0
    for part, length in measured(_pieces(piece.text, marks), lengths):
        if packed and length <= room:
            packed[-1] = Piece(packed[-1].text + packed[-1].space + part.text, part.space)
            room -= length
        else:
            packed.append(part)
            room = limit - length
    cut = [Piece(part.text, part.space, len(packed) == 1 and piece.whole) for part in packed]
    if len(levels) > 1:
        sizes = measured(cut, lengths)
        cut = [p for part, size in sizes for p in ([part] if size <= limit else _cut(part, limit, lengths, levels[1:]))]
    cut[-1] = Piece(cut[-1].text, piece.space, cut[-1].whole)
    return cut


def measured(pieces: list[Piece], lengths: Callable[[list[str]], list[int]]) -> Iterator[tuple[Piece, int]]:
    return zip(pieces, lengths([piece.text for piece in pieces]), strict=True)


def _pieces(text: str, cuts: Iterator[tuple[int, int]]) -> list[Piece]:
    """Cuts `text` at (end of a piece, start of the next)."""
    pieces = []
    start = 0
    for end, following in cuts:
        if end > start and following < len(text):
            pieces.append(Piece(text[start:end], text[end:following]))
            start = following
    return [*pieces, Piece(text[start:], "")] if text[start:] else pieces


def _continues(text: str, mark: int, following: int) -> bool:
    """Returns whether the sentence goes on after the full stop at `mark`."""
    rest = text[following : following + 8].lstrip(_OPENING)
    if rest[:1].islower():
        return True
    if text[mark] != "." or text[mark : mark + 2] == "..":
        return False
    word = re.split(r"[\s(\[\"'“„«]", text[max(0, mark - 20) : mark])[-1]
    return (len(word) == 1 and word.isupper()) or f" {word.lower()} " in _ABBREVIATIONS


def check_characters(text: Any, where: str) -> None:
    """Raises UserError for what is no text, and for a lone surrogate, which UTF-8 cannot hold."""
    if not isinstance(text, str):
        raise UserError(f"{where}: {text!r} is no text but of type {type(text).__name__}: give a string.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        number = ord(text[error.start])
        raise UserError(
            f"{where}: U+{number:04X} at column {error.start + 1} is half of a character (a lone surrogate), which no "
            "tokenizer reads. Remove it."
        ) from error
