"""The source as a search keeps it: what the encoder gave, once for each sentence, whatever the number of beams."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_mlnmt.modeling.releases import CACHE_NAMES

# What generate() gives its loops by keyword, and they hand on in another form or not at all.
HANDLED = {
    *("encoder_outputs", "attention_mask", *CACHE_NAMES, "use_cache", "logits_to_keep", "streamer", "synced_gpus")
}


class Source(NamedTuple):
    """The sources of the sentences that are being translated, once for each sentence."""

    outputs: Any  # the encoder's output, its tensors (sentences, ...)
    real: Tensor  # (sentences, source), False at padding

    @classmethod
    def take(cls, outputs: Any, mask: Tensor | None, width: int) -> "Source":
        """From what generate() hands to its loops, where every sentence is there `width` times.

        Once is enough. `outputs` is generate()'s own container (generation.py): it is emptied, so that the copies are
        let go. `mask` (sentences x width, source) is None where nothing is padding.
        """
        states = outputs.last_hidden_state
        mask = states.new_ones(states.shape[:2]) if mask is None else mask
        found = {}
        for name, value in list(outputs.items()):
            if isinstance(value, Tensor):
                found[name] = value[::width].contiguous()
            outputs[name] = None
        return cls(type(outputs)(**found), mask[::width].bool())

    def pad(self, length: int) -> "Source":
        """Zeros behind the sources up to this length; all tensors are (sentences, source, ...)."""
        blank = length - self.real.shape[1]
        outputs = {name: pad_source(value, blank) for name, value in self.outputs.items()}
        return Source(type(self.outputs)(**outputs), torch.nn.functional.pad(self.real, (0, blank)))

    def select(self, sentences: Tensor, length: int | None = None) -> "Source":
        """These sentences (indices), and if `length` is given only so many positions of (sentences, source, ...)."""
        part = (sentences,) if length is None else (sentences, slice(length))
        outputs = {name: value[part] for name, value in self.outputs.items()}
        return Source(type(self.outputs)(**outputs), self.real[part])


def pad_source(states: Tensor, blank: int) -> Tensor:
    """(batch, source, ...) with `blank` positions of zeros behind."""
    return torch.cat([states, states.new_zeros(len(states), blank, *states.shape[2:])], dim=1)
