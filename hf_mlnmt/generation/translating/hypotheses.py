"""Translations with their scores; the translations of a text's pieces as one; how they are written as lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hf_mlnmt.generation.translating.alignments import Link, joined, to_pharaoh, words_of_target
from hf_mlnmt.generation.translating.segments import Piece, join


@dataclass(frozen=True)
class Hypothesis:
    """A translation of an n-best list.

    `log_probability`: natural logarithm, summed over `length` subwords (end-of-sentence counted); for a fused model
    with sequence-level normalization the sum of its scores. `score`: that, divided by the length normalisation.
    `finished`: it ended by itself, not at the length limit. `alignment`, where it was asked for: (word of the source,
    word of the translation), counted from 0, ascending. `confidence`, of the translation, and `word_confidences`, of
    each of its words, where they were asked for: 0 to 1.
    """

    text: str
    score: float
    log_probability: float
    length: int
    finished: bool = True
    alignment: tuple[Link, ...] | None = None
    confidence: float | None = None
    word_confidences: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Alternative(Hypothesis):
    """The translation with one of the likeliest next words behind a prefix, and the word's probability there.

    `word` is whole: the prefix's last one, completed, unless white space ends it; "" where the translation ends. In a
    script without spaces it is a token's characters.
    """

    word: str = ""
    probability: float = 0.0


@dataclass(frozen=True)
class Scored(Hypothesis):
    """A translation that was given, with its tokens, the end among them, and ln P of each."""

    tokens: tuple[str, ...] = ()
    token_log_probabilities: tuple[float, ...] = ()


@dataclass(frozen=True)
class Candidate(Hypothesis):
    """A hypothesis with the values of a reranker's features (reranking.py)."""

    features: tuple[float, ...] = ()


def mean(hypothesis: Hypothesis) -> float:
    """Returns the mean ln P of a translation's subwords, its end counted."""
    return hypothesis.log_probability / max(1, hypothesis.length)


def least_by_word(tokenizer: Any, ids: Sequence[int], logs: Sequence[float], text: str) -> list[float]:
    """Returns for each word of a finished translation the least ln P of its subwords, 0 for one without any."""
    least = [0.0] * len(text.split())
    for word, value in zip(words_of_target(tokenizer, ids, text), logs):
        if word is not None:
            least[word] = min(least[word], value)
    return least


def joined_alignment(ranked: Sequence[Hypothesis], pieces: Sequence[Piece]) -> tuple[Link, ...]:
    """Returns the alignment of a text from those of its pieces: words are numbered on."""
    sources = ["".join(piece.text + piece.space for piece in pieces[:i]) for i in range(len(pieces))]
    texts = [hypothesis.text for hypothesis in ranked]
    targets = [join([*texts[:i], ""], pieces[: i + 1]) for i in range(len(pieces))]
    return joined(zip(sources, targets, [hypothesis.alignment or () for hypothesis in ranked]))


def unsure(source: str, result: list[Hypothesis], below: float | None, mark: str | None) -> list[Hypothesis]:
    """Returns the result with a mark before the translations whose confidence is `below`, or without a mark with the
    source in their place."""
    if below is None:
        return result
    return [
        best if (best.confidence or 0.0) >= below else replace(best, text=source if mark is None else mark + best.text)
        for best in result
    ]


def format_result(
    number: int, source: str, result: list[Hypothesis], jsonl: bool, scores: bool, plain: bool = False
) -> str:
    """Returns a text's result as it is written.

    Plain: the translation, or 'number ||| translation ||| score' for each of an n-best list (from 0, as in Moses), with
    alignments as ' ||| 0-0 1-2' behind it. jsonl: an object with source, translation, alignment, confidences and next
    words, with `scores` also score, log_probability and length, and n_best when there is more than one.
    """
    links = [None if best.alignment is None else to_pharaoh(best.alignment) for best in result]
    if not jsonl:
        texts = [best.text.replace("\n", " ") for best in result]
        shown = [text if plain else f"{number} ||| {text} ||| {best.score:.6f}" for text, best in zip(texts, result)]
        return "\n".join(line if link is None else f"{line} ||| {link}" for line, link in zip(shown, links))
    records, numbers = [], ("score", "log_probability", "length")
    sure = ("confidence", "word_confidences", "word", "probability")
    for best, link in zip(result, links):
        records.append({"translation": best.text} | ({} if link is None else {"alignment": link}))
        records[-1] |= {name: value for name in sure if (value := getattr(best, name, None)) is not None}
        if scores or len(result) > 1:
            records[-1] |= {name: getattr(best, name) for name in numbers}
    record: dict[str, Any] = {"source": source, **records[0]}
    if not scores:
        record = {name: value for name, value in record.items() if name not in numbers}
    if len(records) > 1:
        record["n_best"] = records
    return json.dumps(record, ensure_ascii=False)
