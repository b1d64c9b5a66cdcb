"""Texts in pieces that the model can take, encoded, and the pieces' translations as texts again.

A text that is too long is cut into sentences, and a sentence that is too long into clauses or words; translations are
put together again. The cuts keep the whitespace between the pieces: all `piece.text + piece.space` joined are the
stripped text again, but for invisible characters.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.tokenizer import Tokenizers, encode, own_copy
from hf_mlnmt.data.words import between_characters, without_invisible

if TYPE_CHECKING:
    from hf_mlnmt.data.directions import Direction
    from hf_mlnmt.generation.constraints.lexical_constraints import Asked
    from hf_mlnmt.generation.constraints.linked import KeptPart
    from hf_mlnmt.generation.translating.casing import Written

logger = logging.getLogger(__name__)


class TextPiece(NamedTuple):
    """A part of a text, the whitespace that follows it, and whether it is a whole sentence, or several."""

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


def split_lines(text: str) -> list[TextPiece]:
    """Splits a text into its non-empty lines; empty lines and indentation are part of the whitespace between them."""
    return _pieces(text.strip(), ((match.start(), match.end()) for match in _LINE.finditer(text.strip())))


def split_sentences(text: str) -> list[TextPiece]:
    """Splits at end marks, in most scripts; an abbreviation, an initial or a lower-case word joins instead."""
    ends = (match for match in _END.finditer(text) if match[1] is None or not _continues(text, *match.span()))
    return _pieces(text, ((match.start(match.lastindex or 0), match.end()) for match in ends))


def sentences_of(piece: TextPiece) -> list[TextPiece]:
    """Splits a piece into sentences; the white space behind it is behind the last one."""
    *others, last = split_sentences(piece.text)
    return [*others, TextPiece(last.text, piece.space)]


def split_to_fit(text: str, limit: int, lengths: Callable[[list[str]], list[int]]) -> list[TextPiece]:
    """Splits into pieces whose `lengths` (tokens) are at most `limit`: sentences, else clauses, else words, else
    characters of a script without spaces, as large as fit.

    A single word of another script that is longer than the limit comes back as it is.
    """
    pieces = []
    levels = (_CLAUSE, _WORD, between_characters())
    for sentence, length in _measured(split_sentences(text), lengths):
        pieces += [sentence] if length <= limit else _cut(sentence, limit, lengths, levels)
    return pieces


def join(translations: Sequence[str], pieces: Sequence[TextPiece]) -> str:
    """Joins to one text; sentences that no space separated (Chinese) get one where the other script wants it."""
    parts = []
    for translation, piece in zip(translations, pieces, strict=True):
        wide = bool(translation) and unicodedata.east_asian_width(translation[-1]) in "WF"
        parts += [translation, piece.space or ("" if wide else " ")]
    return "".join(parts[:-1])


def _cut(piece: TextPiece, limit: int, lengths: Callable, levels: tuple[re.Pattern, ...]) -> list[TextPiece]:
    marks = ((match.start(match.lastindex or 0), match.end()) for match in levels[0].finditer(piece.text))
    packed: list[TextPiece] = []
    room = 0
    for part, length in _measured(_pieces(piece.text, marks), lengths):
        if packed and length <= room:
            packed[-1] = TextPiece(packed[-1].text + packed[-1].space + part.text, part.space)
            room -= length
        else:
            packed.append(part)
            room = limit - length
    cut = [TextPiece(part.text, part.space, len(packed) == 1 and piece.whole) for part in packed]
    if len(levels) > 1:
        sizes = _measured(cut, lengths)
        cut = [p for part, size in sizes for p in ([part] if size <= limit else _cut(part, limit, lengths, levels[1:]))]
    cut[-1] = TextPiece(cut[-1].text, piece.space, cut[-1].whole)
    return cut


def _measured(pieces: list[TextPiece], lengths: Callable[[list[str]], list[int]]) -> Iterator[tuple[TextPiece, int]]:
    return zip(pieces, lengths([piece.text for piece in pieces]), strict=True)


def _pieces(text: str, cuts: Iterator[tuple[int, int]]) -> list[TextPiece]:
    """Cuts `text` into pieces; cuts: (end of a piece, start of the next)."""
    pieces = []
    start = 0
    for end, following in cuts:
        if end > start and following < len(text):
            pieces.append(TextPiece(text[start:end], text[end:following]))
            start = following
    return [*pieces, TextPiece(text[start:], "")] if text[start:] else pieces


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


class EncodedPiece(NamedTuple):
    """A `TextPiece` for the search: its ids, its line and its number in that line, and its text, in which tokens may
    stand for the parts of the `source` that are `kept`."""

    ids: list[int]
    line: int
    number: int
    text: str
    source: str = ""
    kept: tuple[KeptPart, ...] = ()
    pieces: int = 1  # that the text is cut into
    begins: Asked | None = None  # in the place of a target_prefix
    written: Written | None = None  # of a line that is searched in sentence case


class CutText(NamedTuple):
    """A text in the pieces that are translated alone; `inputs`: those that have something to translate."""

    line: int
    pieces: list[TextPiece]
    inputs: list[EncodedPiece]

    def on_line(self, line: int) -> CutText:
        """Returns the same text as line `line`."""
        return CutText(line, self.pieces, [piece._replace(line=line) for piece in self.inputs])


class TextEncoder:
    """Encodes the source side of a direction: text processing, language marks, tokens, the model's limit."""

    def __init__(
        self, tokenizers: Tokenizers, direction: Direction, prefix: str | None = None, limit: int | None = None
    ):
        self.tokenizer, self.processing = own_copy(tokenizers.source), tokenizers.processing["source"]
        self.prefix_ids = list(direction.prefix_ids)
        self.prefix = direction.prefix_text if prefix is None else prefix
        check_characters(self.prefix, "prefix")
        if direction.source is not None:
            self.tokenizer.src_lang = direction.source
        self.overhead = len(self([""])[0])
        self.limit = limit
        self.in_parts: list[int] = []  # numbers of lines with a sentence that was cut
        if limit is not None and limit <= self.overhead:
            raise UserError(f"max_source_tokens={limit}: special tokens and prefix alone take {self.overhead}.")

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of each text with all special tokens, never cut off."""
        if not texts:
            return []
        processed = [self.prefix + self.processing.apply(text) for text in texts]
        return [self.prefix_ids + ids.tolist() for ids in encode(self.tokenizer, processed)]

    def lengths(self, texts: list[str]) -> list[int]:
        """Counts the tokens of each text, all special tokens included."""
        return [len(ids) for ids in self(texts)]

    def segments(
        self, texts: Sequence[str], split_long: bool, first_line: int = 1, sentences: bool = False
    ) -> tuple[list[list[TextPiece]], list[list[int]]]:
        """Cuts and encodes texts: returns the pieces of each, and the tokens of all pieces in that order.

        Lines are always separate, with `sentences` their sentences too; what is longer than the limit is split, or cut
        off.
        """
        pieces = [split_lines(without_invisible(text)) for text in texts]
        if sentences:
            pieces = [[part for piece in of_text for part in sentences_of(piece)] for of_text in pieces]
        ids = self([piece.text for of_text in pieces for piece in of_text])
        if self.limit is not None and any(len(sequence) > self.limit for sequence in ids):
            if split_long:
                pieces = [self._split(of_text, first_line + i) for i, of_text in enumerate(pieces)]
                ids = self([piece.text for of_text in pieces for piece in of_text])
            ids = self._cut_off(ids, [first_line + i for i, of_text in enumerate(pieces) for _ in of_text])
        return pieces, ids

    def _split(self, pieces: list[TextPiece], line: int) -> list[TextPiece]:
        assert self.limit is not None
        result: list[TextPiece] = []
        for piece, length in _measured(pieces, self.lengths):
            parts = [piece] if length <= self.limit else split_to_fit(piece.text, self.limit, self.lengths)
            if not all(part.whole for part in parts) and line not in self.in_parts[-1:]:
                self.in_parts.append(line)
            result += [*parts[:-1], TextPiece(parts[-1].text, piece.space)]
        return result

    def _cut_off(self, ids: list[list[int]], lines: list[int]) -> list[list[int]]:
        assert self.limit is not None
        for i, sequence in enumerate(ids):
            if len(sequence) > self.limit:
                logger.warning(
                    "line %d: %d tokens, the model takes %d; the rest is not translated (split_long divides it where "
                    "there are spaces)",
                    lines[i],
                    len(sequence),
                    self.limit,
                )
                # The last token closes the sentence (or names the language, after the closing one, in mBART).
                closing = [t for t in sequence[-2:] if t in self.tokenizer.all_special_ids]
                ids[i] = sequence[: self.limit - len(closing)] + closing
        return ids


def source_limit(model: Any, tokenizer: Any, asked: int | None) -> int | None:
    """Returns the longest input in tokens: as asked, within what model and tokenizer allow (None: no limit)."""
    limits = [getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length, asked]
    # Tokenizers without a limit say 10^30.
    known = [limit for limit in limits if limit is not None and limit < 10**9]
    return min(known) if known else None
