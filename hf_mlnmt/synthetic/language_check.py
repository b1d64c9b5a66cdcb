"""Signs that a text is not in the language that a model reads, seen in what the model makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hf_mlnmt.data.tokenizer import encode
from hf_mlnmt.data.word_overlap import word_overlap

LINES = 200  # that are looked at: more of them share more words by chance
FEWEST = 20
SAME_LANGUAGE = 0.4  # of the running words; of 200 lines two languages share some 5 to 15 in 100, one with itself 80
SHORT_PIECES = 2.5  # bytes; 3.5 and more in the languages that a tokenizer learnt, 1.3 to 2.1 in others
MANY = 0.2  # of the outputs; a model that is fit for its text spoils one in a hundred


def doubts_about_language(
    texts: Sequence[str], outputs: Sequence[str], spoilt: Sequence[str], tokenizer: Any
) -> Iterator[str]:
    """Warnings with their evidence.

    Args:
        texts, outputs: what was given to the model, and what it made of each.
        spoilt: what is wrong with those outputs with which something is.
        tokenizer: of the text.
    """
    pairs = [pair for pair in zip(texts, outputs, strict=True) if all(side.split() for side in pair)][:LINES]
    if len(pairs) < FEWEST:
        return
    read, written = map(list, zip(*pairs))
    overlap = word_overlap(read, written)
    if overlap.share > SAME_LANGUAGE:
        yield (
            "is the text in the language that the model translates into, and not from? Of its first "
            f"{len(pairs)} lines {overlap} stand in the model's own output too."
        )
        return
    signs = []
    if (size := bytes_per_piece(tokenizer, read)) < SHORT_PIECES:
        signs.append(f"the model's tokenizer cuts its first {len(pairs)} lines into pieces of {size:.1f} bytes")
    if len(spoilt) / len(texts) > MANY:
        signs.append(f"{len(spoilt)} of its first {len(texts)} outputs are {' or '.join(sorted(set(spoilt)))}")
    if signs:
        yield f"is the text in the language that the model reads? {' and '.join(signs)}."


def bytes_per_piece(tokenizer: Any, texts: Sequence[str]) -> float:
    """How long the pieces are that a tokenizer cuts texts into, spaces apart."""
    pieces = sum(len(ids) - 1 for ids in encode(tokenizer, texts))
    return sum(len("".join(text.split()).encode()) for text in texts) / max(1, pieces)
