"""Cuts texts into pieces that fit the model, encodes the pieces, and joins the pieces' translations to texts.

A text that is too long is cut into sentences, and a sentence that is too long into clauses or words. Each piece keeps
the whitespace after it: all `piece.text + piece.space` joined are the stripped text, except for invisible characters.
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
    from hf_mlnmt.memory.matching import Match
    from hf_mlnmt.memory.steering import Pieces

logger = logging.getLogger(__name__)


class TextPiece(NamedTuple):
    """A part of a text and the whitespace after it; `whole`: it is one or more whole sentences."""

    text: str
    space: str
    whole: bool = True


# Characters between an end mark and the space after it, and between that space and the next sentence's first letter.
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
    """Splits a text into sentences at end marks of most scripts, but not after an abbreviation or an initial, nor
    before a lower-case letter."""
    ends = (match for match in _END.finditer(text) if match[1] is None or not _continues(text, *match.span()))
    return _pieces(text, ((match.start(match.lastindex or 0), match.end()) for match in ends))


def sentences_of(piece: TextPiece) -> list[TextPiece]:
    """Splits a piece into sentences; the last sentence has the white space that follows the piece."""
    *others, last = split_sentences(piece.text)
    return [*others, TextPiece(last.text, piece.space)]


def split_to_fit(text: str, limit: int, lengths: Callable[[list[str]], list[int]]) -> list[TextPiece]:
    """Splits a text into pieces whose `lengths` (tokens) are at most `limit`: sentences; a sentence that is too long
    into groups of clauses, else of words, else of characters of a script without spaces, each as large as fits.

    A single word of another script that is longer than the limit stays whole.
    """
    pieces = []
    levels = (_CLAUSE, _WORD, between_characters())
    for sentence, length in _measured(split_sentences(text), lengths):
        pieces += [sentence] if length <= limit else _cut(sentence, limit, lengths, levels)
    return pieces


def join(translations: Sequence[str], pieces: Sequence[TextPiece]) -> str:
    """Joins the translations of a text's pieces with the pieces' white space; where there is none (Chinese sentences),
    a space is put after a translation that does not end in a wide (East Asian) character."""
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
    """Cuts `text` into pieces at `cuts`, (end of a piece, start of the next)."""
    pieces = []
    start = 0
    for end, following in cuts:
        if end > start and following < len(text):
            pieces.append(TextPiece(text[start:end], text[end:following]))
            start = following
    return [*pieces, TextPiece(text[start:], "")] if text[start:] else pieces


def _continues(text: str, mark: int, following: int) -> bool:
    """Returns whether the sentence continues after the end mark at `mark`; following: where the next word begins."""
    rest = text[following : following + 8].lstrip(_OPENING)
    if rest[:1].islower():
        return True
    if text[mark] != "." or text[mark : mark + 2] == "..":
        return False
    word = re.split(r"[\s(\[\"'“„«]", text[max(0, mark - 20) : mark])[-1]
    return (len(word) == 1 and word.isupper()) or f" {word.lower()} " in _ABBREVIATIONS


def check_characters(text: Any, where: str) -> None:
    """Raises UserError for an object that is no str, and for a lone surrogate, which UTF-8 cannot encode."""
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
    """A piece of a text as the search gets it: its ids, its line, its number in the line, and its text, in which
    placeholders may stand for the `kept` parts of the original text `source`."""

    ids: list[int]
    line: int
    number: int
    text: str
    source: str = ""
    kept: tuple[KeptPart, ...] = ()
    pieces: int = 1  # the number of pieces that the text is cut into
    begins: Asked | None = None  # the beginning of the translation, used instead of a target_prefix
    known: str | None = None  # the translation from a memory, used without a search
    steering: Pieces = ()  # n-grams of similar texts' translations, preferred in the search
    written: Written | None = None  # original letter case of a line searched in sentence case


class CutText(NamedTuple):
    """A text cut into pieces that are translated one by one; `inputs`: the pieces with visible text, encoded; `origin`
    and `match`: how much of its translation a memory has (`Hypothesis.origin`), and its unit; None without a memory."""

    line: int
    pieces: list[TextPiece]
    inputs: list[EncodedPiece]
    origin: str | None = None
    match: Match | None = None

    def on_line(self, line: int) -> CutText:
        """Returns a copy with the line number `line`."""
        return self._replace(line=line, inputs=[piece._replace(line=line) for piece in self.inputs])


class TextEncoder:
    """Encodes source texts of a translation direction: text processing, language codes or prefix, tokenization; cuts
    texts that are longer than `limit` tokens. Raises: UserError for a limit that leaves no token for text."""

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
        """Returns the token ids of each text, uncut, with all special tokens."""
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
        """Cuts texts into pieces and encodes these; returns the pieces of each text, and the ids of all pieces.

        A piece is a line, with `sentences` a sentence. A piece that is longer than the limit is split further if
        `split_long`; what is then still longer is cut off.
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
                # Keeps the special tokens at the end: </s>, in mBART </s> and a language code.
                closing = [t for t in sequence[-2:] if t in self.tokenizer.all_special_ids]
                ids[i] = sequence[: self.limit - len(closing)] + closing
        return ids


def source_limit(model: Any, tokenizer: Any, asked: int | None) -> int | None:
    """Returns the longest input in tokens: the least of `asked`, the model's and the tokenizer's limit; None: none."""
    limits = [getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length, asked]
    # model_max_length of a tokenizer without a limit is 10^30.
    known = [limit for limit in limits if limit is not None and limit < 10**9]
    return min(known) if known else None
