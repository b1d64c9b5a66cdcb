"""The best next tokens: of one hypothesis, and of all beams of a sentence together."""

import torch
from torch import Tensor

from hf_mlnmt.search.native import best_continuations_natively
from hf_mlnmt.search.rules import Rules

BLOCK = 64  # of the vocabulary, when the best tokens are looked for


def best_tokens(scores: Tensor) -> Tensor:
    """argmax over the last dimension: (sentences, width, vocabulary) -> (sentences, width)."""
    found = best_continuations_natively(scores.flatten(0, 1).unsqueeze(1), None, 1)
    return scores.argmax(dim=-1) if found is None else found[2].view(scores.shape[:2])


def draw_tokens(scores: Tensor, ids: Tensor, sentences: int) -> Tensor:
    """One token from softmax(scores): (sentences here, width, vocabulary) -> (sentences here, width).

    As torch.multinomial does it, argmax p / q with q from an exponential distribution, drawn for each of all the
    batch's `sentences`, those that have left included: so the same seed gives Transformers' own draws.
    """
    noise = scores.new_empty(sentences * scores.shape[1], scores.shape[2]).exponential_(1)
    noise = noise.view(sentences, *scores.shape[1:])[ids]  # (sentences here, width, vocabulary)
    return (scores.softmax(dim=-1) / noise).argmax(dim=-1)


def continuations(
    rules: Rules, history: Tensor, scores: Tensor, normalized: bool, running: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` best of running + log P: sums, beams, tokens (sentences, count) each, best first.

    Args:
        history: (sentences, beams, length), for the processors of `rules`.
        scores: of the next token (sentences, beams or, behind the prompt, 1, vocabulary).
        normalized: the scores are log P themselves, or what takes its place; else it is their log-softmax.
        running: sums of the beams so far (sentences, beams).
    """
    beams = running.shape[1]
    if rules.lengths_alone and not normalized:
        forbidden = rules.forbidden(history.shape[-1])
        more = 0 if forbidden is None else forbidden.numel() * beams  # among so many more, enough are allowed
        found = best_continuations_natively(scores.expand(-1, beams, -1), running, count + more)
        if found is not None:
            return found if forbidden is None else without(found, forbidden, count)
    log_probs = scores if normalized else log_softmax(scores)
    log_probs = rules.process(history, log_probs.expand(-1, beams, -1))  # (sentences, beams, vocabulary)
    return best_continuations(log_probs, running, count)


def without(found: tuple[Tensor, Tensor, Tensor], tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first `count` of sums, beams, tokens (sentences, more) that are none of these tokens, in the same order."""
    order = torch.isin(found[2], tokens).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
    sums, beams, last = (part.gather(1, order) for part in found)
    return sums, beams, last


def log_softmax(scores: Tensor) -> Tensor:
    """Over the last dimension; on a CPU in the place of the scores, which takes no new memory."""
    return torch.log_softmax(scores, -1, out=scores if scores.device.type == "cpu" else None)


def best_continuations(log_probs: Tensor, running: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` best of running + log_probs over beams and vocabulary: sums, beams, tokens (sentences, count).

    The `count` best values lie in the `count` blocks with the best maxima: a pass for the maxima, and little else.
    """
    sentences, beams, vocabulary = log_probs.shape
    blocks = vocabulary // BLOCK
    if beams * blocks < 4 * count:
        sums, index = (log_probs + running.unsqueeze(-1)).flatten(1).topk(count)  # (sentences, count)
        return sums, index // vocabulary, index % vocabulary
    maxima = log_probs[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK)).amax(dim=-1) + running.unsqueeze(-1)
    best = maxima.flatten(1).topk(count, sorted=False).indices.unsqueeze(-1)  # (sentences, count, 1), of beams x blocks
    beam = best // blocks
    token = best % blocks * BLOCK + torch.arange(BLOCK, device=best.device)  # (sentences, count, BLOCK)
    beam, token = beam.expand_as(token).flatten(1), token.flatten(1)
    if rest := vocabulary - blocks * BLOCK:  # the last, shorter block of each beam
        last = torch.arange(blocks * BLOCK, vocabulary, device=best.device)
        beams_of_last = torch.arange(beams, device=best.device).repeat_interleave(rest)
        beam = torch.cat([beam, beams_of_last.expand(sentences, -1)], dim=1)
        token = torch.cat([token, last.repeat(beams).expand(sentences, -1)], dim=1)
    values = log_probs.flatten(1).gather(1, beam * vocabulary + token) + running.gather(
        1, beam
    )  # (sentences, looked at)
    sums, chosen = values.topk(count)
    return sums, beam.gather(1, chosen), token.gather(1, chosen)
