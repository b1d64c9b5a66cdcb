"""Translations as token ids, found by generate()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from hf_mlnmt.generation.batches import pad
from hf_mlnmt.generation.loading import Parts
from hf_mlnmt.generation.options import forced_last
from hf_mlnmt.generation.scoring import generated_lengths, log_probabilities


class Found(NamedTuple):
    """A translation: all generated ids, a forced first one and the end of sentence included, and its ln P.

    `log_probability` is 0 unless it was asked for.
    """

    ids: list[int]
    log_probability: float


@torch.inference_mode()
def by_generate(
    parts: Parts, sequences: Sequence[Sequence[int]], arguments: dict[str, Any], skipped: int, scored: bool
) -> list[list[Found]]:
    """`num_return_sequences` translations of each sequence of ids, best first.

    Args:
        arguments: of generate(); at least num_return_sequences.
        skipped: how many first tokens are forced.
        scored: whether log probabilities are wanted.
    """
    model, n = parts.model, arguments["num_return_sequences"]
    pad_id = parts.source.pad_token_id
    input_ids, mask = pad(sequences, 0 if pad_id is None else pad_id, model.device)
    output = model.generate(input_ids=input_ids, attention_mask=mask, **arguments)
    output = getattr(output, "sequences", output)
    lengths = generated_lengths(output, model.generation_config.eos_token_id)
    sums = [0.0] * len(output)
    if scored:
        forced = (bool(skipped), forced_last(model, arguments))
        scales = {name: arguments[name] for name in ("alpha", "beta") if name in arguments}
        sums = log_probabilities(model, input_ids, mask, output, lengths, *forced, **scales).tolist()
    rows = zip(output.tolist(), lengths.tolist(), sums, strict=True)
    found = [Found(row[1 : 1 + length], total) for row, length, total in rows]
    return [found[i : i + n] for i in range(0, len(found), n)]
