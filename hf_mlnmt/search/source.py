"""The source as a search keeps it: what the encoder gave, once for each sentence, whatever the number of beams; and the
keys and values of every attention over it, computed once and for real positions alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_mlnmt.modeling.releases import CACHE_NAMES

# What generate() gives its loops by keyword, and the loops hand on in another form or not at all.
HANDLED = {
    *("encoder_outputs", "attention_mask", *CACHE_NAMES, "use_cache", "logits_to_keep", "streamer", "synced_gpus")
}


class Source(NamedTuple):
    """The sources of the sentences that are being translated, once for each sentence."""

    outputs: Any  # the encoder's output, its tensors (sentences, ...)
    real: Tensor  # (sentences, source), False at padding

    @classmethod
    def take(cls, outputs: Any, mask: Tensor | None, width: int) -> Source:
        """From what generate() hands to its loops, where every sentence is there `width` times; one copy is kept.

        outputs: generate()'s own container (modeling/generation.py); it is emptied, so that the other copies are freed.
        mask: (sentences x width, source), or None where nothing is padding.
        """
        states = outputs.last_hidden_state
        mask = states.new_ones(states.shape[:2]) if mask is None else mask
        tensors = {}
        for name, value in list(outputs.items()):
            if isinstance(value, Tensor):
                tensors[name] = value[::width].contiguous()
            outputs[name] = None
        return cls(type(outputs)(**tensors), mask[::width].bool())

    def pad(self, length: int) -> Source:
        """Zeros behind the sources up to this length; all tensors are (sentences, source, ...)."""
        blank = length - self.real.shape[1]
        outputs = {
            name: torch.cat([value, value.new_zeros(len(value), blank, *value.shape[2:])], dim=1)
            for name, value in self.outputs.items()
        }
        return Source(type(self.outputs)(**outputs), torch.nn.functional.pad(self.real, (0, blank)))

    def select(self, sentences: Tensor, length: int | None = None) -> Source:
        """These sentences (indices), and if `length` is given only so many positions of (sentences, source, ...)."""
        part = (sentences,) if length is None else (sentences, slice(length))
        outputs = {name: value[part] for name, value in self.outputs.items()}
        return Source(type(self.outputs)(**outputs), self.real[part])


class RealPositions:
    """The positions of a batch of sources (sentences, source) that are not padding."""

    def __init__(self, real: Tensor):
        self.shape = real.shape
        self.sentences, self.positions = real.nonzero(as_tuple=True)

    def pack(self, memory: Tensor) -> Tensor:
        """Memory (sentences, source, ...) -> its real positions as one long sentence, (1, real, ...)."""
        return memory[self.sentences, self.positions].unsqueeze(0)

    def project(self, project: Callable, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (sentences, heads, source, d_h) of a packed memory, zeros at padding.

        Most of a batch can be padding, and `project` sees none of it. Keys lie transposed in memory.
        """
        key, value = project(packed)
        heads, width = key.shape[1], key.shape[3]
        keys = key.new_zeros(self.shape[0], heads, width, self.shape[1])
        keys.permute(0, 3, 1, 2)[self.sentences, self.positions] = key[0].transpose(0, 1)
        values = value.new_zeros(self.shape[0], value.shape[1], self.shape[1], value.shape[3])
        values.transpose(1, 2)[self.sentences, self.positions] = value[0].transpose(0, 1)
        return keys.transpose(2, 3), values


def read_source(attentions: list[tuple[Any, Tensor]], real: Tensor, cache: Any) -> None:
    """Fill the cache for every attention over the source, each with the memory (sentences, source, ...) it reads."""
    positions, memory, packed = RealPositions(real), None, None
    for attention, read in attentions:
        if packed is None or read is not memory:  # most layers read the same
            memory, packed = read, positions.pack(read)
        cache.cross_attention_cache.update(*positions.project(attention.project_source, packed), attention.layer_idx)
        cache.is_updated[attention.layer_idx] = True
