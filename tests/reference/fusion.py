"""Fusion of translation models and language models: slow float64 loops written from section 4.1 of the thesis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def log_q(logits: Sequence[Tensor], exponents: Sequence[float]) -> Tensor:
    """log q(v) for every token v: logits (vocabulary,) of each member and the exponent of its probability."""
    found = []
    for token in range(len(logits[0])):
        total = logits[0].new_zeros(())
        for one, exponent in zip(logits, exponents):
            probability = one[token].exp() / sum(x.exp() for x in one)
            total = total + exponent * probability.log()
        found.append(total)
    return torch.stack(found)


def symbol_scores(logits: Sequence[Tensor], exponents: Sequence[float]) -> Tensor:
    """(4.2): log q(v) / sum q."""
    scores = log_q(logits, exponents)
    return scores - sum(score.exp() for score in scores).log()


def sequence_scores(logits: Sequence[Tensor], exponents: Sequence[float], alpha: float) -> Tensor:
    """(4.4): log q(v), both exponents divided by alpha."""
    return log_q(logits, [exponent / alpha for exponent in exponents])


def symbol_loss(logits: Sequence[Tensor], exponents: Sequence[float], labels: Tensor) -> Tensor:
    """(4.1), negative, divided by the target tokens: logits (batch, target, vocabulary), -100 where nothing counts."""
    total, count = logits[0].new_zeros(()), 0
    for row in range(labels.shape[0]):
        for position in range(labels.shape[1]):
            token = int(labels[row, position])
            if token != -100:
                here = [one[row, position] for one in logits]
                total = total - symbol_scores(here, exponents)[token]
                count += 1
    return total / count


def every_sequence(vocabulary: int, end: int, longest: int) -> list[list[int]]:
    """All sequences of at most `longest` tokens that end with `end`, and with it alone."""
    found, open_ = [], [[]]
    for _ in range(longest):
        found += [[*prefix, end] for prefix in open_]
        open_ = [[*prefix, token] for prefix in open_ for token in range(vocabulary) if token != end]
    return found


def log_partition(score: Callable[[list[int]], Tensor], sequences: Sequence[Sequence[int]]) -> Tensor:
    """log Z (4.6) over these sequences: score(sequence) is its log q, a scalar."""
    return torch.stack([score(list(sequence)) for sequence in sequences]).logsumexp(0)


def k_token_partition(log_q_of: Callable[[tuple[int, ...]], Sequence[float]], end: int, k: int, longest: int) -> float:
    """log Z of a model that sees its last k tokens only, by the recursion for Q(i, e_{i-k}^i).

    log_q_of: from the last k tokens (fewer at the beginning) to log q of every next token.
    """
    total, states = 0.0, {(): 1.0}
    for _ in range(longest):
        following: dict[tuple[int, ...], float] = {}
        for context, mass in states.items():
            for token, score in enumerate(log_q_of(context)):
                if token == end:
                    total += mass * math.exp(score)
                else:
                    state = (*context, token)[-k:] if k else ()
                    following[state] = following.get(state, 0.0) + mass * math.exp(score)
        states = following
    return math.log(total)
