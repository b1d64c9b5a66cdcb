"""The attention bridge in plain loops, in float64, written from the paper on inner attention, section 2.2.

It imports torch alone; gradients come from autograd through the loops.
"""

import torch


def inner_attention(states, first, second, first_bias=None, second_bias=None):
    """Equations 8 and 9 for one sentence: a list of h_i -> the rows of M, and those of A."""
    scores = []
    for state in states:
        inner = torch.stack([(row * state).sum() for row in first])
        inner = inner if first_bias is None else inner + first_bias
        inner = torch.where(inner > 0, inner, torch.zeros_like(inner))
        outer = torch.stack([(row * inner).sum() for row in second])
        scores.append(outer if second_bias is None else outer + second_bias)
    rows, weights = [], []
    for head in range(len(second)):
        exponentials = [torch.exp(score[head]) for score in scores]
        total = sum(exponentials)
        weights.append([exponential / total for exponential in exponentials])
        rows.append(sum(weight * state for weight, state in zip(weights[-1], states)))
    return rows, weights


def penalty(weights):
    """Equation 10's second part for one sentence, entry by entry of A A^T - I."""
    total = torch.zeros((), dtype=torch.float64)
    for i, row in enumerate(weights):
        for j, other in enumerate(weights):
            entry = sum(a * b for a, b in zip(row, other))
            total = total + (entry - (1.0 if i == j else 0.0)) ** 2
    return total
