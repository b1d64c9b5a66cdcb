"""What the oldest Transformers that the package allows (5.17) does otherwise, found by trying; its tests skip there."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DynamicCache
from transformers.generation import ExponentialDecayLengthPenalty


def _reset_empties() -> bool:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), 0)
    cache.layers[0].reset()
    return cache.layers[0].get_seq_length() == 0


def _decay_knows_impossible_tokens() -> bool:
    decay = ExponentialDecayLengthPenalty((0, 1.5), 0, 0)
    scores = decay(torch.zeros(1, 3, dtype=torch.long), torch.full((1, 2), float("-inf")))
    return not bool(scores.isnan().any())


needs_reset = pytest.mark.skipif(
    not _reset_empties(), reason="DynamicLayer.reset() of this Transformers fills with zeros what it should drop"
)
DECAY_KNOWS_IMPOSSIBLE_TOKENS = _decay_knows_impossible_tokens()
