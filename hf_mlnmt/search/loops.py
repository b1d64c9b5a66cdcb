"""The loops of a search: beam search; greedy search and sampling.

They are `GenerationMixin._beam_search`, with the same candidates, scores and rules for stopping, and
`GenerationMixin._sample`, with the same draws for the same seed.

Beam search looks at 2 (or 1 + the number of end tokens) times the beams; those that end among the first `num_beams` go
to the finished ones, scored by log P / length^penalty. With `recombine` beams are joined before each step
(hypotheses.py), and P is the probability of all the paths that a hypothesis stands for.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateEncoderDecoderOutput

from hf_mlnmt.search.decoder import gather_beams
from hf_mlnmt.search.hypotheses import (
    IMPOSSIBLE,
    FinishedHypotheses,
    Recombination,
    SearchBatch,
    best_tokens,
    continuations,
    draw_tokens,
    is_possible,
)
from hf_mlnmt.search.rules import Rules


def beam_search(batch: SearchBatch, input_ids: Tensor, rules: Rules, config: Any) -> Any:
    """The best `num_return_sequences` hypotheses of every sentence.

    Args:
        batch: the sentences, with `num_beams` as their width.
        input_ids: the prompt (sentences x num_beams, length).
        config: the generation config as generate() prepares it.

    Returns: (sentences x num_return_sequences, length), or with `return_dict_in_generate` an output that has them,
        their scores and the beams that they came from.
    """
    beams = batch.width
    prompt = input_ids[::beams]  # (sentences, length)
    count = max(2, 1 + (0 if rules.end_tokens is None else rules.end_tokens.numel())) * beams  # candidates
    running = prompt.new_full((len(prompt), beams), IMPOSSIBLE, dtype=torch.float32)  # sums (sentences, beams)
    running[:, 0] = 0.0  # the beams are one at first
    finished = FinishedHypotheses(prompt, config)
    k = getattr(config, "recombine", None)
    joined = None if k is None else Recombination(k, prompt, running, batch.scale)
    history = input_ids.view(-1, beams, prompt.shape[1])  # (sentences, beams, length)
    scores = batch.begin(prompt)  # (sentences, 1, vocabulary)
    length = prompt.shape[1]
    while True:
        length += 1
        if joined is not None:
            running = joined.join(running)
        before = running
        # (sentences, candidates) each
        sums, parents, tokens = continuations(rules, history, scores, batch.decoder.normalized, running, count)
        last = rules.is_last(tokens, length)
        running, chosen = (sums + last * IMPOSSIBLE).topk(beams)  # (sentences, beams)
        finished.add(batch.ids, sums, tokens, parents, last & is_possible(sums) if joined else last, length)
        tokens, parents = tokens.gather(1, chosen), parents.gather(1, chosen)  # (sentences, beams)
        finished.step(batch.ids, tokens, parents)
        highest = running
        if joined is not None:
            joined.follow(running - before.gather(1, parents), tokens, parents)
            highest = joined.together(running)  # more than that no finished hypothesis will have
        ended = finished.ended(batch.ids, highest, length)  # (sentences,)
        left = len(ended) - int(ended.sum())
        if not left or last.all():
            break
        if rules.processors:
            history = torch.cat([gather_beams(history, parents), tokens.unsqueeze(-1)], dim=-1)
        if (kept := rules.sentences_to_keep(ended, left)) is not None:
            batch.keep(kept)
            rules.keep(kept, beams)
            tokens, parents, running, history = tokens[kept], parents[kept], running[kept], history[kept]
            if joined is not None:
                joined.keep(kept)
        scores = batch.step(tokens, parents)  # (sentences, beams, vocabulary)
    return finished.result()


def sample(batch: SearchBatch, input_ids: Tensor, rules: Rules, config: Any) -> Any:
    """One hypothesis, or `num_return_sequences` draws, of every sentence.

    Args:
        batch: the sentences, with `num_return_sequences` as their width.
        input_ids: the prompt (sentences x num_return_sequences, length).
        config: the generation config as generate() prepares it.

    Returns: (sentences x num_return_sequences, length), or with `return_dict_in_generate` an output that has them.
    """
    rows, width = len(input_ids), batch.width
    prompt = input_ids[::width]  # (sentences, length)
    scores = batch.begin(prompt).expand(-1, width, -1)  # (sentences, width, vocabulary)
    history = input_ids.view(-1, width, prompt.shape[1])  # (sentences, width, length)
    done = torch.zeros(history.shape[:2], dtype=torch.bool, device=prompt.device)  # (sentences, width)
    pad = 0 if config._pad_token_tensor is None else config._pad_token_tensor.to(prompt.device)
    columns, length = [input_ids], prompt.shape[1]
    while True:
        scores = rules.process(history, scores)  # (sentences, width, vocabulary)
        tokens = draw_tokens(scores, batch.ids, batch.count) if config.do_sample else best_tokens(scores)
        tokens = torch.where(done, pad, tokens) if rules.end_tokens is not None else tokens  # (sentences, width)
        columns.append(batch.spread(tokens, pad).view(rows, 1))  # of the whole batch
        length += 1
        done = done | rules.is_last(tokens, length)
        ended = done.squeeze(1) if width == 1 else done.all(dim=1)  # (sentences,)
        left = len(ended) - int(ended.sum())
        if not left:
            break
        if rules.processors:
            history = torch.cat([history, tokens.unsqueeze(-1)], dim=-1)  # (sentences, width, length)
        if (kept := rules.sentences_to_keep(ended, left)) is not None:
            batch.keep(kept)
            rules.keep(kept, width)
            tokens, done, history = tokens[kept], done[kept], history[kept]
        scores = batch.step(tokens, None)
    sequences = torch.cat(columns, dim=1)
    if not config.return_dict_in_generate:
        return sequences
    return GenerateEncoderDecoderOutput(sequences=sequences)  # type: ignore[arg-type]
