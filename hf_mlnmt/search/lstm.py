"""The `Decoder` (decoder.py) of the recurrent models (rnn.py, and bridge.py with recurrent coders).

The state of every beam is h and c of all layers and, with input feeding, the attentional state; the source's keys and
values are kept once for each sentence, and the beams of a sentence are the queries of the attention over them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration, BridgeModel
from hf_mlnmt.modeling.matrices import in_own_precision
from hf_mlnmt.modeling.outputs import EncoderOutput
from hf_mlnmt.modeling.rnn import RNNDecoder, RNNForConditionalGeneration, RNNModel
from hf_mlnmt.modeling.rnn_layers import RNNDecoderLayers, additive_mask
from hf_mlnmt.search.decoder import HANDLED, SourceBatch, gather_beams


class LSTMState(NamedTuple):
    """The state of an `LSTMDecoder`: `rows` (sentences, 1 or after `expand` beams, 2 layers (+ 1 with input feeding),
    d_model), h, c and attentional state; keys, values and mask of the source, as `LuongAttention` reads them."""

    rows: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None

    def expand(self, width: int) -> LSTMState:
        return self._replace(rows=self.rows[:, -1:].expand(-1, width, -1, -1))

    def reorder(self, parents: Tensor) -> LSTMState:
        return self._replace(rows=gather_beams(self.rows, parents))

    def select(self, sentences: Tensor, source_length: int) -> LSTMState:
        mask = None if self.mask is None else self.mask[sentences, ..., :source_length]
        length = self.keys.shape[2] if mask is None else source_length  # without a mask there is no padding to cut off
        keys, values = self.keys[sentences, :, :length], self.values[sentences, :, :length]
        return LSTMState(self.rows[sentences], keys, values, mask)


class LSTMDecoder:
    """The `Decoder` of the models of rnn.py."""

    def __init__(self, model: Any, arguments: dict[str, Any]):
        self.model, self.decoder, self.recurrence = model, model.model.decoder, model.model.decoder.recurrence
        self.normalized = model.logits_are_scores
        self.inner: Any = None  # the recurrent weights as `inner_products` returns them, made once for all steps

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """Names an overridden method or an argument that this decoder does not support, or returns None."""
        computed: list[tuple[Any, tuple[Any, ...]]] = [  # module -> the classes whose methods this decoder computes
            (model, (RNNForConditionalGeneration, BridgeForConditionalGeneration)),
            (model.model, (RNNModel, BridgeModel)),
            (model.model.decoder, (RNNDecoder,)),
            (model.model.decoder.recurrence, (RNNDecoderLayers,)),
        ]
        for part, kinds in computed:
            for name in ("forward", "decode"):
                if getattr(type(part), name, None) not in [getattr(kind, name, None) for kind in kinds]:
                    return f"a {name} of its own in {type(part).__name__}"
        others = [name for name in arguments if name not in HANDLED]
        return f"the argument {others[0]}" if others else None

    def begin(self, prompt: Tensor, source: SourceBatch) -> tuple[Tensor, LSTMState]:
        encoded = EncoderOutput.of(source.outputs, self.model.get_encoder().hands_on)
        memory = encoded.last_hidden_state if encoded.memory is None else encoded.memory
        assert memory is not None
        keys, values = self.recurrence.attention.project_source(memory)
        mask = None if bool(source.real.all()) else additive_mask(source.real, memory)
        start = self.decoder.begin(memory, encoded.features)
        gates = self.outer_gates(prompt)
        state = LSTMState(start.unsqueeze(1), keys, values, mask)
        for position in range(prompt.shape[1] - 1):
            state = self.advance(gates[:, position : position + 1], state)[1]
        attentional, state = self.advance(gates[:, -1:], state)
        return self.scores_of(attentional), state

    def step(self, tokens: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        attentional, state = self.advance(self.outer_gates(tokens), state)
        return self.scores_of(attentional), state

    def outer_gates(self, tokens: Tensor) -> Tensor:
        """Computes what the embeddings of tokens (sentences, prompt or beams) add to the gates: (..., 4 d_model)."""
        embeds = self.decoder.embed_tokens(tokens) * self.decoder.embed_scale
        with in_own_precision(embeds):
            return self.recurrence.outer_gates(embeds)

    def advance(self, gates: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Computes one position of each beam; returns attentional states (sentences, beams, d_model) and new state."""
        with in_own_precision(gates):
            if self.inner is None:
                self.inner = self.recurrence.inner_products()
            rows = list(state.rows.to(gates.dtype).unbind(2))
            source = state.keys.to(gates.dtype), state.values.to(gates.dtype), state.mask
            attentional, _, rows = self.recurrence.step(gates, rows, self.inner, source)
        return attentional, state._replace(rows=torch.stack(rows, dim=2))

    def scores_of(self, attentional: Tensor) -> Tensor:
        """Computes the scores (sentences, beams, vocabulary) from attentional states."""
        with in_own_precision(attentional):
            return self.model.lm_head(attentional).float()
