"""Word alignments from attention over the source, and their error rate against alignments made by people.

References: Koehn and Knowles 2017, "Six Challenges for Neural Machine Translation", section 3.5 (from subwords to
words); Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models" (alignment error rate).

Links are pairs (source word, target word), counted from 0. AER = 1 - (|A & S| + |A & P|) / (|A| + |S|), A the links
found, S the sure and P the sure and possible links of the gold alignment.

The weights of a target word are the mean over its subwords, those of a source word the sum over its subwords; each
target word is linked to the source word with the largest weight, the first of several that are equal. </s> is no word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hf_mlnmt.errors import UserError

Link = tuple[int, int]
_LINK = re.compile(r"(\d+)([-?p])(\d+)")


def word_weights(weights: Tensor, source_words: Sequence[int | None], target_words: Sequence[int | None]) -> Tensor:
    """Subword weights (..., target, source) -> word weights (..., target words, source words), float64.

    source_words, target_words: the word that each subword belongs to, from 0; None for </s> and other marks.
    """
    from_source = _membership(source_words).to(weights.device)
    from_target = _membership(target_words).to(weights.device)
    summed = weights.double() @ from_source
    return (from_target / from_target.sum(0)).mT @ summed


def _membership(words: Sequence[int | None]) -> Tensor:
    """(subwords, words): 1 where the subword is part of the word."""
    members = torch.zeros(len(words), 1 + max((word for word in words if word is not None), default=-1))
    for position, word in enumerate(words):
        if word is not None:
            members[position, word] = 1.0
    return members.double()


def links(weights: Tensor) -> set[Link]:
    """The links of one layer and head: word weights (target words, source words) -> pairs (source, target)."""
    return {(source, target) for target, source in enumerate(weights.argmax(-1).tolist())}


@dataclass(frozen=True)
class GoldAlignment:
    """One sentence's links; `possible` holds the sure ones too."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def alignment_error_rate(found: Iterable[set[Link]], gold: Iterable[GoldAlignment]) -> float:
    """AER over all sentences, their counts added up before dividing. Raises: UserError if there is no link at all."""
    right = total = 0
    for links_found, sentence in zip(found, gold, strict=True):
        right += len(links_found & sentence.sure) + len(links_found & sentence.possible)
        total += len(links_found) + len(sentence.sure)
    if not total:
        raise UserError("no links, neither found nor sure: there is no alignment error rate.")
    return 1 - right / total


def to_pharaoh(found: Iterable[Link]) -> str:
    """`0-0 1-2`: source-target, ascending."""
    return " ".join(f"{source}-{target}" for source, target in sorted(found))


def read_gold(lines: Iterable[str], name: str | Path, one_based: bool = False) -> list[GoldAlignment]:
    """Gold alignments, one sentence a line: `i-j` sure, `i?j` or `ipj` possible, source first.

    Raises: UserError with file and line for anything else.
    """
    found = []
    for number, line in enumerate(lines, start=1):
        sure, possible = set(), set()
        for field in line.split():
            match = _LINK.fullmatch(field)
            if not match or (one_based and "0" in (match[1], match[3])):
                counted = "1" if one_based else "0"
                raise UserError(
                    f"{name}, line {number}: {field!r} is no link; expected source-target such as 3-4 (sure), 3?4 or "
                    f"3p4 (possible), words counted from {counted}."
                )
            link = (int(match[1]) - one_based, int(match[3]) - one_based)
            possible.add(link)
            if match[2] == "-":
                sure.add(link)
        found.append(GoldAlignment(frozenset(sure), frozenset(possible)))
    return found
