"""From texts to token sequences the model can take, and from their translations back to texts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_mlnmt.data.tokenizer import encode
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.languages import Direction
from hf_mlnmt.generation.splitting import Piece, split_lines, split_to_fit

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Segments:
    """Texts cut into pieces: `pieces[i]` are text i's, `ids` all pieces' tokens in that order."""

    pieces: list[list[Piece]]
    ids: list[list[int]]


class TextEncoder:
    """Source side of a direction: text processing, language marks, tokens, and the length that the model takes."""

    def __init__(self, tokenizer: Any, processing: Any, direction: Direction, prefix: str | None, limit: int | None):
        self.tokenizer = tokenizer
        self.processing = processing
        self.prefix_ids = list(direction.prefix_ids)
        self.prefix = direction.prefix_text if prefix is None else prefix
        check_characters(self.prefix, "prefix")
        if direction.source is not None:
            tokenizer.src_lang = direction.source
        self.overhead = len(self([""])[0])
        self.limit = limit
        if limit is not None and limit <= self.overhead:
            raise UserError(f"max_source_tokens={limit}: special tokens and prefix alone take {self.overhead}.")

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text with all special tokens, never cut off."""
        if not texts:
            return []
        processed = [self.prefix + (self.processing.apply(text) if self.processing else text) for text in texts]
        return [self.prefix_ids + ids.tolist() for ids in encode(self.tokenizer, processed)]

    def lengths(self, texts: list[str]) -> list[int]:
        """Tokens of each text with all special tokens."""
        return [len(ids) for ids in self(texts)]

    def segments(self, texts: Sequence[str], split_long: bool, first_line: int = 1) -> Segments:
        """Cut and encode texts. Lines are always separate; a line longer than the limit is split, or cut off."""
        for line, text in enumerate(texts, start=first_line):
            check_characters(text, f"line {line}")
        pieces = [split_lines(text) for text in texts]
        ids = self([piece.text for of_text in pieces for piece in of_text])
        if self.limit is not None and any(len(sequence) > self.limit for sequence in ids):
            if split_long:
                pieces = [self._split(of_text, first_line + i) for i, of_text in enumerate(pieces)]
                ids = self([piece.text for of_text in pieces for piece in of_text])
            ids = self._cut_off(ids, [first_line + i for i, of_text in enumerate(pieces) for _ in of_text])
        return Segments(pieces, ids)

    def _split(self, pieces: list[Piece], line: int) -> list[Piece]:
        assert self.limit is not None
        result: list[Piece] = []
        for piece, length in zip(pieces, self.lengths([piece.text for piece in pieces]), strict=True):
            parts = [piece] if length <= self.limit else split_to_fit(piece.text, self.limit, self.lengths)
            if not all(part.whole for part in parts):
                logger.warning(
                    "line %d: a sentence is longer than the %d tokens the model takes; "
                    "it is translated in parts, cut at commas or words",
                    line,
                    self.limit,
                )
            result += [*parts[:-1], Piece(parts[-1].text, piece.space)]
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


def check_characters(text: str, where: str) -> None:
    """UserError for a lone surrogate: Python's text may hold one (from JSON, a command line), UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        number = ord(text[error.start])
        raise UserError(
            f"{where}: U+{number:04X} at column {error.start + 1} is half of a character (a lone surrogate), which no "
            "tokenizer reads. Remove it."
        ) from error


def source_limit(model: Any, tokenizer: Any, asked: int | None) -> int | None:
    """The longest input in tokens: what is asked for, within what model and tokenizer allow (None: no limit)."""
    limits = [getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length, asked]
    # Tokenizers without a limit say 10^30.
    known = [limit for limit in limits if limit is not None and limit < 10**9]
    return min(known) if known else None
