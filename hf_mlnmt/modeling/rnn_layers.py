"""The layers of the recurrent models (rnn.py): encoder layers one by one, and all decoder layers in one recurrence.

With input feeding the attentional state of a position joins the embedding of the next word (equation 5 of rnn.py). Then
what the first layer makes of the embeddings is computed for all positions at once, and what depends on the position
before in a loop. Without input feeding every layer runs in one call.

Reference of the attention over the source, g in equation 7 of rnn.py: Luong, Pham and Manning 2015, "Effective
Approaches to Attention-based Neural Machine Translation", with the "general" score:

(1) score(s_t, h_i) = s_t^T W_a h_i      (2) a_t = softmax over i      (3) c_t = sum_i a_ti h_i
(4) attentional state = tanh(W_c [c_t ; s_t])

W_a h_i is computed once for all source positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .layers import Dropout
from .linear import in_own_precision, matrix_of, product_dtype, project
from .lstm import LSTM, LoopProduct, Packing, lstm_cell


class LuongAttention(nn.Module):
    """Luong's attention with the "general" score, equations 1 to 4, for states of width d; `dropout` of the weights."""

    def __init__(self, width: int, dropout: float = 0.0):
        super().__init__()
        self.k_proj = nn.Linear(width, width, bias=False)  # W_a
        self.out_proj = nn.Linear(2 * width, width, bias=False)  # W_c
        self.dropout = nn.Dropout(dropout)

    def project_source(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Returns W_a h_i and h_i, (batch, 1, source, d) each: keys and values of an attention with one head."""
        return project(self.k_proj, memory).unsqueeze(1), memory.unsqueeze(1)

    def loop_product(self, like: Tensor, dtype: torch.dtype) -> LoopProduct | None:
        """Returns the product with W_c for every position of a loop that has gradients; None: the layer is called."""
        return LoopProduct(*matrix_of(self.out_proj, like), dtype) if torch.is_grad_enabled() else None

    def forward(
        self,
        states: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        combine: LoopProduct | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Maps s (batch, time, d) to attentional states (batch, time, d) and weights (batch, 1, time, source).

        Args:
            keys, values: what `project_source` returned.
            mask: (batch, 1, 1, source), added to the scores; None: the whole source is read.
            combine: `loop_product`, or None.
        """
        scores = torch.matmul(states.unsqueeze(1), keys.transpose(2, 3))
        if mask is not None:
            scores = scores + mask
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
        context = torch.matmul(self.dropout(weights) if self.training else weights, values).squeeze(1)
        return torch.tanh((combine or self.out_proj)(torch.cat([context, states], dim=-1))), weights


def additive_mask(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Makes (batch, source), 0 at padding, (batch, 1, 1, source), 0 at what is read and a very low number elsewhere."""
    if mask is None:
        return None
    hidden = torch.zeros(mask.shape, dtype=like.dtype, device=mask.device)
    return hidden.masked_fill_(mask == 0, torch.finfo(like.dtype).min)[:, None, None, :]


class RNNEncoderLayer(GradientCheckpointingLayer):
    """A BiLSTM layer, equation 1 of rnn.py, with dropout on what it reads, but for the first layer."""

    def __init__(self, config: Any, layer_idx: int):
        super().__init__()
        self.lstm = LSTM(config.d_model, config.d_model, bidirectional=True)
        self.dropout = Dropout(config.dropout if layer_idx else 0.0)

    def forward(self, states: Tensor, packing: Packing | None) -> tuple[Tensor, Tensor, Tensor]:
        """Maps (batch, source, d_model) to the same, and to the last h and c, (batch, d_model)."""
        return self.lstm(self.dropout(states), packing)


class RNNDecoderLayers(GradientCheckpointingLayer):
    """All decoder layers and their attention, equations 5 to 7 of rnn.py, as every position needs the one before."""

    def __init__(self, config: Any):
        super().__init__()
        self.fed = config.d_model if config.input_feeding else 0
        widths = [config.d_model + self.fed] + [config.d_model] * (config.decoder_layers - 1)
        self.lstms: Any = nn.ModuleList([LSTM(width, config.d_model) for width in widths])
        self.attention = LuongAttention(config.d_model, config.attention_dropout)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        embeds: Tensor,
        start: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        real: Tensor | None,
        record: bool = False,
    ) -> tuple[Tensor, ...]:
        """Returns attentional states, weights over the source, states behind the positions, and outputs of all layers.

        Args:
            embeds: (batch, target, d_model).
            start: the state before the first position, (batch, rows, d_model): h and c of every layer from below, and
                with input feeding the attentional state.
            keys, values, mask: of the source, as `LuongAttention` takes them.
            real: which positions are not padding, (batch, target); None: all.
            record: whether the state behind every position is wanted, or behind the last alone.

        Returns: (batch, target, d_model), (batch, 1, target, source), (batch, target or 1, rows, d_model), and for
            every layer (batch, target, d_model).
        """
        number = product_dtype(embeds)
        with in_own_precision(embeds):
            exact = self.lstms[0].weight_ih_l0.dtype
            embeds, start, keys, values = (x.to(exact) for x in (embeds, start, keys, values))
            if self.fed or record or torch.compiler.is_exporting():  # a graph has one position
                return self.loop(embeds, start, (keys, values, mask), real, record, number)
            return self.all_at_once(embeds, start, (keys, values, mask), real)

    def all_at_once(self, states: Tensor, start: Tensor, source: tuple, real: Tensor | None) -> tuple[Tensor, ...]:
        """Runs every layer in one call: nothing that a position reads depends on the attention of an earlier one."""
        packing, ends, outputs = Packing.of(real), [], []
        for index, lstm in enumerate(self.lstms):
            inputs = self.dropout(states) if index else states
            before = start[:, 2 * index], start[:, 2 * index + 1]
            states, *after = lstm(inputs, packing, before)
            if packing is not None and real is not None:  # a row of padding alone: the state stays as it was
                after = [torch.where(real.any(1, keepdim=True), new, old) for new, old in zip(after, before)]
            ends += after
            outputs.append(states)
        attentional, weights = self.attention(states, *source)
        return self.dropout(attentional), weights, torch.stack(ends, dim=1).unsqueeze(1), *outputs

    def loop(
        self,
        embeds: Tensor,
        start: Tensor,
        source: tuple,
        real: Tensor | None,
        record: bool,
        number: torch.dtype,
    ) -> tuple[Tensor, ...]:
        """Runs position by position; products are in `number`, the state is not."""
        inner, source = self.inner_products(number), (*source, self.attention.loop_product(embeds, number))
        state, steps, ends = list(start.unsqueeze(2).unbind(1)), [], []
        for position, gates in enumerate(self.outer_gates(embeds).unsqueeze(2).unbind(1)):
            attentional, weights, after = self.step(gates, state, inner, source)
            if real is not None:  # at padding everything stays as it is
                here = real[:, position, None, None]
                after = [torch.where(here, new, old) for new, old in zip(after, state)]
            state = after
            steps.append((attentional, weights, *state[0 : 2 * len(self.lstms) : 2]))
            if record or position + 1 == embeds.shape[1]:
                ends.append(torch.stack(state, dim=2))
        outputs, maps, *layers = zip(*steps)
        return torch.cat(outputs, 1), torch.cat(maps, 2), torch.cat(ends, 1), *(torch.cat(x, 1) for x in layers)

    def outer_gates(self, embeds: Tensor) -> Tensor:
        """Computes what the first layer's gates have of the embeddings (..., d_model): (..., 4 d_model)."""
        return self.lstms[0].outer_gates(embeds)

    def inner_products(self, number: torch.dtype | None = None) -> list[LoopProduct]:
        """Returns every layer's product with what is known at a position alone, and the bias that is left to add."""
        first, *upper = self.lstms
        lowest = LoopProduct(first.inner_product(self.fed)[0], None, number)
        products = (lstm.inner_product(lstm.input_size) for lstm in upper)
        return [lowest, *(LoopProduct(matrix, biases, number) for matrix, biases in products)]

    def step(
        self, gates: Tensor, state: list[Tensor], inner: list[LoopProduct], source: tuple
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Takes one position of every sentence, or of every beam: (batch, beams, ...).

        Args:
            gates: `outer_gates` of the embeddings (batch, beams, 4 d_model).
            state: the rows, (batch, beams, d_model) each.
            inner: `inner_products`.
            source: keys, values, mask and, if wanted, `loop_product`, as `LuongAttention` takes them.

        Returns: the attentional state, the weights (batch, 1, beams, source), the new rows.
        """
        rows: list[Tensor] = []
        read = state[-1:] if self.fed else []  # what a layer reads beside its own last h
        for index, product in enumerate(inner):
            products = product(torch.cat([*read, state[2 * index]], dim=-1))
            hidden, cell = lstm_cell(products if index else products + gates, state[2 * index + 1])
            rows += [hidden, cell]
            read = [self.dropout(hidden)]
        attentional, weights = self.attention(hidden, *source)
        attentional = self.dropout(attentional)
        return attentional, weights, rows + [attentional] * bool(self.fed)
