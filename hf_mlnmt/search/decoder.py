"""The interface of a decoder for the loops of a search: `begin` and `step`, and the state they return and read.

A decoder is a function of tokens and state; all that depends on the tokens so far (keys and values, the window of a
convolution, the context of a recurrent attention, h and c of an LSTM, the states of two models side by side) is in its
state. A state has three operations: `expand` to several beams a sentence, `reorder` beams, `select` sentences. After a
call only the returned state is valid; it may be the given object, changed.

`width` is how many hypotheses of a sentence are searched side by side: num_beams, or the draws of sampling.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from hf_mlnmt.modeling.releases import CACHE_NAMES

# Keyword arguments of generate()'s loops that the loops read; none is passed on unchanged to the model's forward.
HANDLED = {
    *("encoder_outputs", "attention_mask", *CACHE_NAMES, "use_cache", "logits_to_keep", "streamer", "synced_gpus")
}


class SourceBatch(NamedTuple):
    """The encoded sources: one row for each sentence that is still in the batch, whatever its number of beams."""

    outputs: Any  # the encoder's output, its tensors (sentences, ...)
    real: Tensor  # (sentences, source), False at padding

    @classmethod
    def take(cls, outputs: Any, mask: Tensor | None, width: int) -> SourceBatch:
        """Builds the batch from generate()'s encoder output, keeping one of the `width` equal rows of a sentence.

        outputs: generate()'s own container (modeling/generation.py); emptied, so that the other rows are freed.
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
        """Returns the batch of the given sentences (indices; None: all), cut or padded to `length` source positions."""
        outputs = {name: fitted(value, sentences, length) for name, value in self.outputs.items()}
        return SourceBatch(type(self.outputs)(**outputs), fitted(self.real, sentences, length))


class SourceTokens(NamedTuple):
    """Sources that are not encoded yet: token ids and mask, (sentences, source) each, the mask 0 at padding."""

    ids: Tensor
    real: Tensor

    def select(self, sentences: Tensor, length: int) -> SourceTokens:
        """Returns the given sentences (indices), cut or padded to `length` source positions."""
        return SourceTokens(*(fitted(tensor, sentences, length) for tensor in self))


def fitted(tensor: Tensor, rows: Tensor | None, length: int | None = None, dim: int = 1) -> Tensor:
    """Returns the given rows of a tensor (None: all), dimension `dim` cut, or padded with zeros, to `length`."""
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
    """The decoder's state: tensors (sentences, ...), which after `expand` also hold the state of each beam."""

    def expand(self, width: int) -> Self:
        """Returns the state with `width` equal beams for every sentence."""

    def reorder(self, parents: Tensor) -> Self:
        """Returns the state where beam i of sentence b has the state of its beam parents[b, i]; (sentences, width)."""

    def select(self, sentences: Tensor, source_length: int) -> Self:
        """Returns the state of the given sentences (indices), whose sources are padding from `source_length` on."""


State = TypeVar("State", bound=DecoderState)


class Decoder(Protocol[State]):
    """A model's decoder for one batch: reads the prompt, then a token of each beam in every step."""

    normalized: bool  # whether scores are summed up as they are, without a log-softmax

    def begin(self, prompt: Tensor, source: SourceBatch) -> tuple[Tensor, State]:
        """Reads the prompt (sentences, length); returns the next scores (sentences, 1, vocabulary) and the state."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Reads one token of every beam (sentences, width); returns the next scores (sentences, width, vocabulary),
        whose memory the next step may overwrite, and the state."""


def gather_beams(states: Tensor, parents: Tensor) -> Tensor:
    """Returns states (sentences, width, ...) in which beam i of sentence b has the given state of beam parents[b, i].

    Whole rows are copied; `take_along_dim` would first compute the index of every number.
    """
    return states.flatten(0, 1).index_select(0, rows_of_beams(parents)).view(states.shape)


def rows_of_beams(parents: Tensor) -> Tensor:
    """Returns b x width + parents[b, i], the rows of parent beams among all beams; parents: (sentences, width)."""
    first = torch.arange(0, parents.numel(), parents.shape[1], device=parents.device).unsqueeze(-1)
    return (parents + first).flatten()


def rows_of_sentences(sentences: Tensor, width: int) -> Tensor:
    """Returns the rows, among (sentences x width), of all `width` beams of the given sentences (indices)."""
    return (sentences.unsqueeze(-1) * width + torch.arange(width, device=sentences.device)).flatten()


def read_source(attentions: list[tuple[Any, Tensor]], cache: Any) -> None:
    """Writes keys and values of every attention over the source into the cache; `attentions`: pairs of an attention and
    the source states that it reads."""
    for attention, memory in attentions:
        cache.cross_attention_cache.update(*attention.project_source(memory), attention.layer_idx)
        cache.is_updated[attention.layer_idx] = True
