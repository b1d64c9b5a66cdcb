"""Slow references of the analyses: the papers' sums, one number at a time, in Python floats (float64).

Attention weights are nested lists w[i][j]; `length` says how many positions of a padded sentence are real.
"""

from __future__ import annotations

import math


def _row(weights, i: int, length: int, printed: bool, renormalize: bool) -> list[float]:
    """Weights from i to every position in the range, 0 elsewhere."""
    row = [w if j < length and (j <= i or not printed) else 0.0 for j, w in enumerate(weights[i])]
    total = sum(row)
    return [w / total for w in row] if renormalize and total > 0 else row


def distance(sentences, printed: bool, renormalize: bool) -> float:
    """(13) of one head; sentences: (weights, length) of each."""
    above = below = 0.0
    for weights, length in sentences:
        for i in range(length):
            for j, w in enumerate(_row(weights, i, length, printed, renormalize)):
                above += w * abs(i - j)
                below += w
    return above / below


def entropy(sentences, printed: bool, renormalize: bool) -> float:
    """(15) of one head, mean over all real positions."""
    values = []
    for weights, length in sentences:
        for i in range(length):
            row = _row(weights, i, length, printed, renormalize)
            values.append(-sum(w * math.log(w) for w in row if w > 0))
    return sum(values) / len(values)


def kullback_leibler(p, q) -> float:
    """Equation 12 of the dual contextual module's paper."""
    return sum(a * math.log(a) - a * math.log(b) for a, b in zip(p, q, strict=True) if a > 0)


def divergence(sentences, over_heads: bool) -> float:
    """(10), (11) of one layer; sentences: (local, whole, length), each unit's weights [head][i][j]."""
    values = []
    for local, whole, length in sentences:
        for i in range(length):
            pairs = [(one[i], other[i]) for one, other in zip(local, whole, strict=True)]
            if not over_heads:
                pairs = [tuple(_highest(unit, i) for unit in (local, whole))]
            js = 0.0
            for one, other in pairs:
                middle = [(a + b) / 2 for a, b in zip(one, other, strict=True)]
                js += (kullback_leibler(one, middle) + kullback_leibler(other, middle)) / 2 / len(pairs)
            values.append(js)
    return sum(values) / len(values)


def _highest(unit, i: int) -> list[float]:
    row = [max(head[i][j] for head in unit) for j in range(len(unit[0][i]))]
    return [w / sum(row) for w in row]


def output_dependency(logits, other, length: int) -> list[float]:
    """(4.4) of each target position: logits[t][word]."""
    return [kullback_leibler(_softmax(logits[t]), _softmax(other[t])) for t in range(length)]


def _softmax(row) -> list[float]:
    shares = [math.exp(x - max(row)) for x in row]
    return [share / sum(shares) for share in shares]


def head_dependency(weights, other, length: int) -> float:
    """(4.6) of one head, mean over the target positions: weights[t][j]."""
    return sum(kullback_leibler(weights[t], other[t]) for t in range(length)) / length


def word_weights(weights, source_words, target_words) -> list[list[float]]:
    """Mean over a target word's subwords of the sum over a source word's: [target word][source word]."""
    sources = 1 + max(word for word in source_words if word is not None)
    targets = 1 + max(word for word in target_words if word is not None)
    table = []
    for target in range(targets):
        rows = [row for row, word in zip(weights, target_words, strict=True) if word == target]
        table.append(
            [
                sum(w for row in rows for w, word in zip(row, source_words, strict=True) if word == source) / len(rows)
                for source in range(sources)
            ]
        )
    return table
