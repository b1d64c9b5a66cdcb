"""Greedy search and sampling: `GenerationMixin._sample`, the same draws for the same seed included."""

from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateEncoderDecoderOutput

from hf_mlnmt.search.hypotheses import SearchBatch, best_tokens, draw_tokens
from hf_mlnmt.search.rules import Rules


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
