"""Decoders that are no Transformer, for the search loops: an LSTM, and two decoders side by side."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hf_mlnmt import TransformerForConditionalGeneration
from hf_mlnmt.search.decoder import SourceBatch, gather_beams
from hf_mlnmt.search.decoders import DECODERS
from hf_mlnmt.search.transformer import TransformerDecoder


class LSTMState(NamedTuple):
    """h and c, (sentences, size), then (sentences, beams, size); and what is read of the source (sentences, size)."""

    hidden: Tensor
    cell: Tensor
    source: SourceBatch

    def expand(self, width: int) -> LSTMState:
        return self._replace(hidden=self.hidden.expand(-1, width, -1), cell=self.cell.expand(-1, width, -1))

    def reorder(self, parents: Tensor) -> LSTMState:
        return self._replace(hidden=gather_beams(self.hidden, parents), cell=gather_beams(self.cell, parents))

    def select(self, sentences: Tensor, source_length: int) -> LSTMState:
        return LSTMState(self.hidden[sentences], self.cell[sentences], self.source.select(sentences, source_length))


class LSTMDecoder(nn.Module):
    """A language model of one layer that also reads the mean of the source at every step."""

    normalized = False

    def __init__(self, vocabulary: int, source_width: int, size: int = 6, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.output = nn.Embedding(vocabulary, size), nn.Linear(size, vocabulary)
        self.bridge, self.cell = nn.Linear(source_width, size), nn.LSTMCell(2 * size, size)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=1.0)

    def begin(self, prompt: Tensor, source: SourceBatch) -> tuple[Tensor, LSTMState]:
        zeros = torch.zeros(len(prompt), 1, self.cell.hidden_size)
        state = LSTMState(zeros, zeros, source)
        for token in prompt.unbind(1):
            scores, state = self.step(token.unsqueeze(1), state)
        return scores, state

    def step(self, tokens: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        real = state.source.real.unsqueeze(-1)
        states = state.source.outputs.last_hidden_state.float() * real
        mean = self.bridge(states.sum(1) / real.sum(1)).unsqueeze(1)  # (sentences, 1, size)
        inputs = torch.cat([self.embedding(tokens), mean.expand(-1, tokens.shape[1], -1)], dim=-1)
        before = state.hidden.flatten(0, 1), state.cell.flatten(0, 1)
        hidden, cell = (x.view(*tokens.shape, -1) for x in self.cell(inputs.flatten(0, 1), before))
        return self.output(hidden), state._replace(hidden=hidden, cell=cell)


class States(tuple):
    """The states of decoders side by side."""

    def expand(self, width: int) -> States:
        return States(state.expand(width) for state in self)

    def reorder(self, parents: Tensor) -> States:
        return States(state.reorder(parents) for state in self)

    def select(self, sentences: Tensor, source_length: int) -> States:
        return States(state.select(sentences, source_length) for state in self)


class SideBySide:
    """sum of weight log P over decoders: what a search adds up, and no log probability itself."""

    normalized = True
    why_not = TransformerDecoder.why_not

    def __init__(self, model: TwoModels, arguments: dict):
        self.members, self.weights = (TransformerDecoder(model, arguments), model.second), (1.0, model.weight)

    def begin(self, prompt: Tensor, source: SourceBatch) -> tuple[Tensor, States]:
        found = [member.begin(prompt, source) for member in self.members]
        return self.add(scores for scores, _ in found), States(state for _, state in found)

    def step(self, tokens: Tensor, states: States) -> tuple[Tensor, States]:
        found = [member.step(tokens, state) for member, state in zip(self.members, states)]
        return self.add(scores for scores, _ in found), States(state for _, state in found)

    def add(self, scores) -> Tensor:
        return sum(weight * x.log_softmax(-1) for weight, x in zip(self.weights, scores))


class TwoModels(TransformerForConditionalGeneration):
    """A translation model that is searched together with an LSTM."""

    logits_are_scores = True
    weight = 0.7

    def __init__(self, config):
        super().__init__(config)
        self.second = LSTMDecoder(config.vocab_size, config.d_model)


class OnlyLSTM(TwoModels):
    """The encoder of a translation model, and an LSTM that reads it."""

    logits_are_scores = False


class OnlyLSTMDecoder:
    """`OnlyLSTM.second`, as a search takes it."""

    why_not = staticmethod(lambda model, arguments: None)

    def __new__(cls, model: OnlyLSTM, arguments: dict) -> LSTMDecoder:
        return model.second


def register(monkeypatch) -> None:
    """Tell the search of the decoders above."""
    monkeypatch.setitem(DECODERS, TwoModels, SideBySide)
    monkeypatch.setitem(DECODERS, OnlyLSTM, OnlyLSTMDecoder)
