"""Does the engine translate as generate() does? What is compared on the first sentences, and what counts as the same.

- In the numbers that the model is kept in, every token of every translation must be the same. Two translations whose
  log probabilities a token differ by at most 1e-3 are a tie and count as the same.
- In int8, where a search may well find others: the engine's translations, scored by the engine and by the model in
  float32; the means over their tokens must not differ by more than 0.25.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_mlnmt.generation.loading import Parts
from hf_mlnmt.generation.scoring import sums_of

TIE = 1e-3
ROUNDING = 0.25

Rows = Sequence[Sequence[Sequence[int]]]  # of each source, the ids of its translations


def difference(parts: Parts, sources: list[list[int]], theirs: Rows, ours: Rows, skipped: int) -> str | None:
    """What is different about the engine's translations, or None. `skipped`: how many first tokens are forced."""
    for source, their_row, our_row in zip(sources, theirs, ours, strict=True):
        for pair in zip(their_row, our_row, strict=True):
            if list(pair[0]) != list(pair[1]) and not _is_tie(parts, source, pair, skipped):
                return f"its translation of a sentence of {len(source)} tokens is not generate()'s"
    return None


def rounding_gap(parts: Parts, sources: list[list[int]], theirs: Rows, sums: Sequence[float], skipped: int) -> float:
    """How far the engine's mean log probability of a token (`sums` over each translation) is from the model's."""
    repeated = [source for source, row in zip(sources, theirs, strict=True) for _ in row]
    targets = [ids for row in theirs for ids in row]
    if not targets:
        return 0.0
    exact = _sums(parts, repeated, targets, skipped)
    return abs(sum(exact) - sum(sums)) / sum(len(ids) for ids in targets)


def _is_tie(parts: Parts, source: list[int], pair: Sequence[Sequence[int]], skipped: int) -> bool:
    sums = _sums(parts, [source] * 2, pair, skipped)
    means = [total / len(ids) for total, ids in zip(sums, pair, strict=True)]
    return abs(means[0] - means[1]) <= TIE


def _sums(parts: Parts, sources: Any, targets: Any, skipped: int) -> list[float]:
    return sums_of(parts.model, parts.source.pad_token_id or 0, sources, targets, bool(skipped))
