"""Alignments of a corpus by a model: every layer and head, in words, and the best of them by alignment error rate."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from hf_mlnmt.analysis.alignment import GoldAlignment, Link, alignment_error_rate, links, word_weights
from hf_mlnmt.analysis.reading import eager_attention, forced_passes
from hf_mlnmt.analysis.source_attention import Place, source_attentions
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.loading import Parts


def word_indices(tokenizer: Any, text: str) -> list[int | None]:
    """The word, counted from 0, of each subword of `text`; words are what white space separates. None for </s>."""
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    found: list[int | None] = []
    for (begin, end), special in zip(encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True):
        begin += len(text[begin:end]) - len(text[begin:end].lstrip())  # the space before a word is part of its subword
        found.append(None if special or begin >= len(text) else sum(start <= begin for start in starts) - 1)
    return found


def align(
    parts: Parts, sources: Sequence[str], targets: Sequence[str], batch_tokens: int = 4096
) -> list[dict[Place, set[Link]]]:
    """The links of every sentence pair at every place of the model, which reads the pair as it is given.

    Words are what white space separates, before and after the model's own text processing alike.
    Raises: UserError where that processing changes the number of words, or the tokenizer knows no offsets.
    """
    sides = []
    for name, tokenizer, processing, texts in (
        ("source", parts.source, parts.source_processing, sources),
        ("translation", parts.target, parts.target_processing, targets),
    ):
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(f"the {name}'s tokenizer does not say where in the text a subword stands (not a fast one).")
        sides.append([_encode(tokenizer, processing, text, f"{name} {n}") for n, text in enumerate(texts, start=1)])
    found: list[dict[Place, set[Link]]] = [{} for _ in sources]
    with eager_attention(parts.model):
        ids = [[sentence[0] for sentence in side] for side in sides]
        for index, place, weights in _sentences(parts, ids[0], ids[1], batch_tokens):
            found[index][place] = links(word_weights(weights, sides[0][index][1], sides[1][index][1]))
    return found


def _sentences(parts: Parts, sources: Any, targets: Any, batch_tokens: int) -> Iterator[tuple[int, Place, Tensor]]:
    """Each sentence's weights at each place, (target, source), without padding."""
    for one in forced_passes(parts, sources, targets, batch_tokens, output_attentions=True):
        places = source_attentions(parts.model, one.output.cross_attentions)
        for row, index in enumerate(one.indices):
            for place, weights in places.items():
                yield index, place, weights[row, : len(targets[index]), : len(sources[index])].cpu()


def _encode(tokenizer: Any, processing: Any, text: str, name: str) -> tuple[list[int], list[int | None]]:
    processed = processing.apply(text) if processing else text
    if not text.split() or len(processed.split()) != len(text.split()):
        raise UserError(
            f"{name} has {len(text.split())} words, and {len(processed.split())} after the model's text processing: "
            "give text with the words that the alignment counts, separated by spaces, as the processing leaves them."
        )
    return tokenizer(processed, verbose=False)["input_ids"], word_indices(tokenizer, processed)


def error_rates(found: Sequence[dict[Place, set[Link]]], gold: Sequence[GoldAlignment]) -> dict[Place, float]:
    """AER at every place, the best first."""
    rates = {place: alignment_error_rate([one[place] for one in found], gold) for place in found[0]}
    return dict(sorted(rates.items(), key=lambda item: (item[1], item[0])))


def check_gold(gold: Sequence[GoldAlignment], sources: Sequence[str], targets: Sequence[str], name: str) -> None:
    """UserError unless there is one gold alignment for each pair, within its words."""
    if not len(gold) == len(sources) == len(targets):
        raise UserError(
            f"{name}: {len(gold)} lines for {len(sources)} sources and {len(targets)} translations: expected the same."
        )
    for number, (sentence, source, target) in enumerate(zip(gold, sources, targets, strict=True), start=1):
        size = (len(source.split()), len(target.split()))
        if outside := [link for link in sorted(sentence.possible) if link[0] >= size[0] or link[1] >= size[1]]:
            raise UserError(
                f"{name}, line {number}: link {outside[0][0]}-{outside[0][1]} is outside of {size[0]} source words and "
                f"{size[1]} target words (is it counted from 1?)."
            )
