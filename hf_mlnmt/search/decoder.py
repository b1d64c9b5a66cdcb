"""What the loops of a search need of a decoder: two calls, and a state that goes from each call to the next.

A decoder is a function of tokens and state; all that it knows of a sentence so far (keys and values, the window of a
convolution, the context of a recurrent attention, h and c of an LSTM, the states of two models side by side) is in its
state. Three things happen to a state: a sentence gets beams, beams change places, sentences leave.

Every call uses the given state up: what it returns takes its place, and may be the same object, changed.
"""

from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from hf_mlnmt.search.source import Source


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
    return states.flatten(0, 1).index_select(0, rows_of_beams(parents)).view(states.shape)


def rows_of_beams(parents: Tensor) -> Tensor:
    """The beams parents[b, i] of the sentences b (sentences, width), as rows of (sentences x width)."""
    first = torch.arange(0, parents.numel(), parents.shape[1], device=parents.device).unsqueeze(-1)
    return (parents + first).flatten()


def rows_of_sentences(sentences: Tensor, width: int) -> Tensor:
    """All `width` beams of these sentences (indices), as rows of (sentences x width)."""
    return (sentences.unsqueeze(-1) * width + torch.arange(width, device=sentences.device)).flatten()
