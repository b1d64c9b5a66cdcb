"""Slow reference of a student's loss: Kim and Rush 2016, equation 4; Garg et al. 2019, equation 3; float64 loops."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum()


def words_loss(teacher: Tensor, student: Tensor, labels: Tensor) -> Tensor:
    """Logits (batch, target, vocabulary) of both: the cross-entropy with the teacher's distribution, summed."""
    total = torch.zeros((), dtype=torch.float64)
    for sentence in range(labels.shape[0]):
        for t in range(labels.shape[1]):
            if labels[sentence, t] != -100:
                wanted, found = (softmax(logits[sentence, t]) for logits in (teacher, student))
                total = total - (wanted * found.log()).sum()
    return total


def alignment_loss(query: Tensor, key: Tensor, links: list[set[tuple[int, int]]], real: Tensor) -> Tensor:
    """query (batch, target, d_h), key (batch, source, d_h) of one head; links (target, source) of each sentence;
    real (batch, source): no attention elsewhere."""
    total = torch.zeros((), dtype=torch.float64)
    for sentence, own in enumerate(links):
        places = [s for s in range(key.shape[1]) if real[sentence, s]]
        for t in range(query.shape[1]):
            linked = [s for target, s in own if target == t]
            scores = [(query[sentence, t] * key[sentence, s]).sum() / key.shape[2] ** 0.5 for s in places]
            weights = dict(zip(places, softmax(torch.stack(scores))))
            total = total - sum(weights[s].log() / len(linked) for s in linked)
    return total
