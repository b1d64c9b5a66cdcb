"""The face of a decoder for the loops of a search: two calls, and a state that goes from each call to the next.

A decoder is a function of tokens and state; all that it knows of a sentence so far (keys and values, the window of a
convolution, the context of a recurrent attention, h and c of an LSTM, the states of two models side by side) is in its
state. Three things happen to a state: a sentence gets beams, beams change places, sentences leave. Every call uses the
given state up: what it returns takes its place, and may be the same object, changed.

`width` is how many hypotheses of a sentence are searched side by side: num_beams, or the draws of sampling.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from hf_mlnmt.modeling.releases import CACHE_NAMES

# What generate() gives its loops by keyword, and the loops hand on in another form or not at all.
HANDLED = {
    *("encoder_outputs", "attention_mask", *CACHE_NAMES, "use_cache", "logits_to_keep", "streamer", "synced_gpus")
}


class SourceBatch(NamedTuple):
    """The sources of the sentences that are being translated, once for each sentence, whatever the width."""

    outputs: Any  # the encoder's output, its tensors (sentences, ...)
    real: Tensor  # (sentences, source), False at padding

    @classmethod
    def take(cls, outputs: Any, mask: Tensor | None, width: int) -> SourceBatch:
        """Takes what generate() hands to its loops, where every sentence is there `width` times, and keeps one copy.

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

    def select(self, sentences: Tensor | None, length: int | None = None) -> SourceBatch:
        """Selects sentences (indices; None: all), fitted to a length."""
        outputs = {name: fitted(value, sentences, length) for name, value in self.outputs.items()}
        return SourceBatch(type(self.outputs)(**outputs), fitted(self.real, sentences, length))


class SourceTokens(NamedTuple):
    """Sources that are not encoded yet: token ids and mask, (sentences, source) each, the mask 0 at padding."""

    ids: Tensor
    real: Tensor

    def select(self, sentences: Tensor, length: int) -> SourceTokens:
        """Selects sentences (indices), padded to a length."""
        return SourceTokens(*(fitted(tensor, sentences, length) for tensor in self))


def fitted(tensor: Tensor, rows: Tensor | None, length: int | None = None, dim: int = 1) -> Tensor:
    """Selects rows of a tensor (None: all); dimension `dim` is cut to the length, or has zeros behind it."""
    if length is not None and tensor.shape[dim] > length:
        tensor = tensor.narrow(dim, 0, length)
    if rows is not None:
        tensor = tensor.index_select(0, rows)
    if length is None or tensor.shape[dim] == length:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = length - shape[dim]
    return torch.cat([tensor, tensor.new_zeros(shape)], dim=dim)


class DecoderState(Protocol):
    """The state of every sentence, (sentences, ...), and after `expand` of each of its beams."""

    def expand(self, width: int) -> Self:
        """Gives every sentence `width` beams, all alike."""

    def reorder(self, parents: Tensor) -> Self:
        """Lets beam i of sentence b go on from its beam parents[b, i]; parents (sentences, width)."""

    def select(self, sentences: Tensor, source_length: int) -> Self:
        """Keeps these sentences (indices); none of their sources has a real position behind `source_length`."""


State = TypeVar("State", bound=DecoderState)


class Decoder(Protocol[State]):
    """A model's decoder, for one batch."""

    normalized: bool  # scores are what a search adds up: nothing may pass them through a softmax first

    def begin(self, prompt: Tensor, source: SourceBatch) -> tuple[Tensor, State]:
        """Reads the prompt (sentences, length): scores of what follows it (sentences, 1, vocabulary), and the state."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Reads one token of every beam (sentences, width): scores (sentences, width, vocabulary), and the state.

        The scores may lie in memory that the next step writes into.
        """


def gather_beams(states: Tensor, parents: Tensor) -> Tensor:
    """Gathers what each beam goes on from: states (sentences, width, ...), parents (sentences, width) -> as states.

    Whole rows are copied; `take_along_dim` would first compute the place of every number.
    """
    return states.flatten(0, 1).index_select(0, rows_of_beams(parents)).view(states.shape)


def rows_of_beams(parents: Tensor) -> Tensor:
    """Returns the beams parents[b, i] of the sentences b (sentences, width) as rows of (sentences x width)."""
    first = torch.arange(0, parents.numel(), parents.shape[1], device=parents.device).unsqueeze(-1)
    return (parents + first).flatten()


def rows_of_sentences(sentences: Tensor, width: int) -> Tensor:
    """Returns all `width` beams of these sentences (indices) as rows of (sentences x width)."""
    return (sentences.unsqueeze(-1) * width + torch.arange(width, device=sentences.device)).flatten()


def read_source(attentions: list[tuple[Any, Tensor]], cache: Any) -> None:
    """Fills the cache for every attention over the source, each with the memory (sentences, source, ...) it reads."""
    for attention, memory in attentions:
        cache.cross_attention_cache.update(*attention.project_source(memory), attention.layer_idx)
        cache.is_updated[attention.layer_idx] = True
