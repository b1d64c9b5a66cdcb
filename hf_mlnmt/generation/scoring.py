"""Log probabilities of given translations, by one pass of the model over each: the scores beside n-best lists.

The search knows these sums too, but Transformers returns them only together with the whole vocabulary's scores at
every step (gigabytes for a large vocabulary). One pass over the finished translations gives the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ELEMENTS = 1 << 25  # logits held at once: 128 MiB in float32


def generated_lengths(sequences: Tensor, eos_token_id: int | list[int] | None) -> Tensor:
    """Generated positions of each row, end-of-sentence counted; `sequences` (rows, 1 + T) start with <s>."""
    ends = torch.as_tensor([] if eos_token_id is None else eos_token_id, device=sequences.device).reshape(-1)
    ended = torch.isin(sequences[:, 1:], ends)
    first = ended.int().argmax(dim=1) + 1
    return torch.where(ended.any(dim=1), first, ended.shape[1])


@torch.inference_mode()
def log_probabilities(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    sequences: Tensor,
    lengths: Tensor,
    forced_first: bool = False,
    forced_last: int | None = None,
    **options: Any,
) -> Tensor:
    """Sum of log P(token) over each translation, (batch * n,), natural logarithm, float32.

    Of a model whose logits are what a search adds up (`logits_are_scores`) it is the sum of those.
    `sequences` (batch * n, 1 + T): n rows for each source, as generate() returns them. With `forced_first` the first
    generated token (a language code) counts nothing, as in the search; nor does the last one of a translation of
    `forced_last` tokens (models that force the end of sentence at the length limit). `options` are the forward's:
    alpha and beta of a fused model.
    """
    n = len(sequences) // len(input_ids)
    rows = max(1, _ELEMENTS // (max(sequences.shape[1] - 1, 1) * _vocabulary(model)))
    sums = []
    for start in range(0, len(sequences), rows):
        part = slice(start, start + rows)
        sources = torch.arange(len(sequences), device=input_ids.device)[part] // n
        targets = sequences[part, 1:]
        logits = model(
            input_ids=input_ids[sources],
            attention_mask=attention_mask[sources],
            decoder_input_ids=sequences[part, :-1],
            use_cache=False,
            **options,
        ).logits.float()
        logs = logits.gather(2, targets[:, :, None])[:, :, 0]
        if not getattr(model, "logits_are_scores", False):  # of this package's models, those that a search adds up
            logs = logs - logits.logsumexp(dim=2)
        positions = torch.arange(targets.shape[1], device=targets.device)
        counted = (positions < lengths[part, None]) & (positions >= int(forced_first))
        if forced_last is not None:
            counted &= positions < forced_last - 1
        sums.append(logs.where(counted, 0.0).sum(dim=1))
    return torch.cat(sums)


def _vocabulary(model: Any) -> int:
    return getattr(model.config, "decoder_vocab_size", None) or model.config.vocab_size
