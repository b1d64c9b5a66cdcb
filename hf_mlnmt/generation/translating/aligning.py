"""Alignments of given pairs by a model's attention, also for other subwords than its own: a teacher's, for its student.

A teacher and its student may cut text differently, so the links are of words (alignments.py): a target subword of the
student is linked to all source subwords of the word that the teacher's attention links its word to. A text without
spaces is one word, of which nothing can be learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from hf_mlnmt.data.tokenizer import Tokenizers, decode, languages_of
from hf_mlnmt.generation.translating.alignments import (
    Link,
    SourceAttention,
    word_links,
    words_of_source,
    words_of_target,
)
from hf_mlnmt.generation.translating.batches import Generated, attention_over_source, batches_by_tokens
from hf_mlnmt.generation.translating.loading import Parts, load

_BATCH_TOKENS = 2048
Ids = Sequence[int]


class Aligner:
    """A model that links the words of sources and targets that it is given."""

    def __init__(self, parts: Parts, name: str = "", language: str | None = None):
        """language: of the targets, for a model that is told it. Raises: UserError as `SourceAttention`."""
        self.parts, self.attention = parts, SourceAttention(parts.model, name)
        self.language = language if languages_of(parts.source) else None

    @classmethod
    def of(cls, name: str, language: str | None = None) -> Self:
        """Loads a model, of several fused ones the first. Raises: UserError as `load`."""
        parts = load(name, device="cpu", fast=True)
        return cls(parts._replace(model=getattr(parts.model, "translation_models", [parts.model])[0]), name, language)

    def to(self, device: Any) -> None:
        """Moves the model to a device."""
        self.attention.model.to(device)
        self.parts.model.to(device)

    def links(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[Link, ...]]:
        """Returns the links (source word, target word) of each pair of texts."""
        parts, longest = self.parts, getattr(self.parts.model.config, "max_position_embeddings", None)
        inputs = [ids.tolist()[:longest] for ids in parts.tokenizers.encode_source(sources, self.language)]
        outputs = [ids.tolist()[:longest] for ids in parts.tokenizers.encode_target(targets)]
        found: list[tuple[Link, ...]] = [()] * len(sources)
        for batch in batches_by_tokens(list(map(len, inputs)), _BATCH_TOKENS):
            rows = [[Generated(outputs[index], 0.0)] for index in batch]
            weights = attention_over_source(self.attention, parts, [inputs[index] for index in batch], rows, {})
            for index, (matrix,) in zip(batch, weights, strict=True):
                processed = parts.source_processing.apply(sources[index])
                read = words_of_source(parts.source, inputs[index], "", processed, sources[index])
                written = words_of_target(parts.target, _without_end(parts.target, outputs[index]), targets[index])
                found[index] = word_links(matrix[: len(written)], read, written)
        return found

    def of_subwords(self, tokenizers: Tokenizers, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[Tensor]:
        """Returns of each pair of ids of other tokenizers which are linked: bool (target, source)."""
        texts = [
            [tokenizers.processing[side].undo(text) for text in decode(tokenizer, [list(ids) for ids in several])]
            for side, tokenizer, several in (
                ("source", tokenizers.source, sources),
                ("target", tokenizers.target, targets),
            )
        ]
        linked = []
        for source, target, *of_texts, links in zip(sources, targets, *texts, self.links(*texts), strict=True):
            sides = [(tokenizers.target, target, of_texts[1]), (tokenizers.source, source, of_texts[0])]
            rows, columns = (_members(*side) for side in sides)
            matrix = torch.zeros(rows.shape[1], columns.shape[1], dtype=torch.bool)
            for i, j in links:
                if i < columns.shape[1] and j < rows.shape[1]:
                    matrix[j, i] = True
            linked.append((rows.float() @ matrix.float() @ columns.float().t()).bool())
        return linked


def _members(tokenizer: Any, ids: Ids, text: str) -> Tensor:
    """Returns which word of a text each of the ids is part of: bool (ids, words)."""
    kept = _without_end(tokenizer, ids)
    words = [*words_of_target(tokenizer, kept, text), *[None] * (len(ids) - len(kept))]
    members = torch.zeros(len(ids), len(text.split()), dtype=torch.bool)
    for row, word in enumerate(words):
        if word is not None:
            members[row, word] = True
    return members


def _without_end(tokenizer: Any, ids: Ids) -> list[int]:
    return list(ids[:-1]) if len(ids) and ids[-1] == tokenizer.eos_token_id else list(ids)
