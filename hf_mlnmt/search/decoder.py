"""What the loops of a search need of a decoder: two calls, and a state that goes from each call to the next.

A decoder is a function of tokens and state; all that it knows of a sentence so far (keys and values, the window of a
convolution, the context of a recurrent attention, h and c of an LSTM, the states of two models side by side) is in its
state. The loops know three things that happen to a state: a sentence gets beams, beams change places, sentences leave.

Every call uses the given state up: what it returns takes its place, and may be the same object, changed.
"""

from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

# What generate() gives its loops by keyword, and they hand on in another form or not at all.
HANDLED = {
    *("encoder_outputs", "attention_mask", "past_key_values", "use_cache", "logits_to_keep", "streamer", "synced_gpus")
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


class DecoderState(Protocol):
    """What a decoder knows: of every sentence, (sentences, ...), and after `expand` of each of its beams."""

    def expand(self, width: int) -> Self:
        """Every sentence has `width` beams from now on, all alike."""

    def reorder(self, parents: Tensor) -> Self:
        """Beam i of sentence b goes on from its beam parents[b, i]; parents (sentences, width)."""

    def select(self, sentences: Tensor, source_length: int) -> Self:
        """Keep these sentences (indices); none of their sources has a real position behind `source_length`."""


State = TypeVar("State", bound=DecoderState)


class Decoder(Protocol[State]):
    """A model's decoder, for one batch."""

    normalized: bool  # scores are what a search adds up: nothing may pass them through a softmax first

    def begin(self, prompt: Tensor, source: Source) -> tuple[Tensor, State]:
        """Read the prompt (sentences, length): scores of the next token (sentences, 1, vocabulary), and the state."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token of every beam (sentences, width): scores (sentences, width, vocabulary), and the state.

        The scores may lie in memory that the next step writes into.
        """


def gather_beams(states: Tensor, parents: Tensor) -> Tensor:
    """What each beam goes on from: states (sentences, width, ...), parents (sentences, width) -> as states.

    Whole rows are copied; `take_along_dim` would first compute the place of every number.
    """
    first = torch.arange(0, parents.numel(), parents.shape[1], device=parents.device).unsqueeze(-1)
    return states.flatten(0, 1).index_select(0, (parents + first).flatten()).view(states.shape)


def pad_source(states: Tensor, blank: int) -> Tensor:
    """(batch, source, ...) with `blank` positions of zeros behind."""
    return torch.cat([states, states.new_zeros(len(states), blank, *states.shape[2:])], dim=1)
