"""The layers of the recurrent models (rnn.py): LSTM, encoder layer, and a module with all decoder layers in one loop.

Reference: Hochreiter and Schmidhuber 1997; Graves and Schmidhuber 2005 for both directions; the gates as PyTorch's.

(1) [i ; f ; g ; o] = W x_t + b + U h_{t-1} + b'
(2) c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)        (3) h_t = sigmoid(o) tanh(c_t)

The recurrence skips positions that are not real (padding on either side, or a hole), in either direction, and their
output is 0: real positions are moved to the front, and after them the gates are closed (equation 4). So a layer is one
call on any device (a CPU computes PyTorch's packed sentences one by one), and Python need not wait for a GPU to know
how many positions are real.

(4) W x_t - C (i), W x_t + C (f) at padding, C so large that sigmoid(i) = 0 and sigmoid(f) = 1: then c_t = c_{t-1}

`LoopProduct` multiplies by one matrix at every position of a loop. Autograd would compute the matrix's gradient at
every position, by a product with as few rows as the batch, and sum them; here a position's backward computes the
gradient of its input alone and stores dy_t and x_t, and one product after all positions computes the matrix's:

(5) y_t = W x_t + b      (6) dx_t = W^T dy_t      (7) dW = sum_t dy_t x_t^T, db = sum_t dy_t

These products may be in half precision (autocast) while the loop's state is not.

With input feeding the attentional state of a position is concatenated to the embedding of the next word (equation 5 of
rnn.py). Then the first layer's product with the embeddings is computed for all positions at once, and all that depends
on the position before in a loop. Without input feeding every layer runs in one call.

The attention over the source, g in equation 7 of rnn.py: Luong, Pham and Manning 2015, "Effective
Approaches to Attention-based Neural Machine Translation", with the "general" score:

(8) score(s_t, h_i) = s_t^T W_a h_i      (9) a_t = softmax over i      (10) c_t = sum_i a_ti h_i
(11) attentional state = tanh(W_c [c_t ; s_t])

W_a h_i is computed once for all source positions.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .linear import is_asynchronous, project
from .matrices import in_own_precision, matrix_of, product_dtype

Aside = list[tuple[Tensor, Tensor]]  # (dy_t, x_t) of each position whose backward has run


class LoopProduct:
    """Computes y_t of equation 5 position by position, with W (outputs, inputs) and b (outputs) or None.

    The product is computed in `dtype` (None: that of W) and returned in that of x_t.
    """

    def __init__(self, matrix: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None):
        if dtype is not None:
            matrix, bias = matrix.to(dtype), None if bias is None else bias.to(dtype)
        self.matrix, self.bias, self.end = matrix, bias, None
        needed = matrix.requires_grad or (bias is not None and bias.requires_grad)
        if needed and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.aside: Aside = []
            self.end = _AllPositions.apply(matrix, bias, self.aside)
            self.matrix, self.bias = matrix.detach(), None if bias is None else bias.detach()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Computes y_t (..., outputs) from x_t (..., inputs)."""
        given = inputs.to(self.matrix.dtype)
        if self.end is None:
            return nn.functional.linear(given, self.matrix, self.bias).to(inputs.dtype)
        return _OnePosition.apply(given, self.matrix, self.bias, self.end, self.aside).to(inputs.dtype)


class _AllPositions(torch.autograd.Function):
    """Forward returns a scalar that every position reads; backward, which so runs last, computes equation 7."""

    @staticmethod
    def forward(ctx, matrix: Tensor, bias: Tensor | None, aside: Aside) -> Tensor:
        ctx.aside, ctx.biased = aside, bias is not None
        return matrix.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        by_outputs, inputs = (torch.cat([x.flatten(0, -2) for x in part]) for part in zip(*ctx.aside))
        ctx.aside.clear()
        by_bias = by_outputs.sum(0) if ctx.biased and ctx.needs_input_grad[1] else None
        return by_outputs.t() @ inputs if ctx.needs_input_grad[0] else None, by_bias, None


class _OnePosition(torch.autograd.Function):
    """Computes equation 5 in forward, 6 in backward; the scalar `end` makes autograd run `_AllPositions` last."""

    @staticmethod
    def forward(ctx, inputs: Tensor, matrix: Tensor, bias: Tensor | None, end: Tensor, aside: Aside) -> Tensor:
        ctx.save_for_backward(inputs, matrix)
        ctx.aside = aside
        return nn.functional.linear(inputs, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        inputs, matrix = ctx.saved_tensors
        ctx.aside.append((gradient, inputs))
        return gradient @ matrix if ctx.needs_input_grad[0] else None, None, None, gradient.new_zeros(()), None


CLOSED = 1e4  # equation 4's C: far above any product with weights, and finite in half precision


class Packing:
    """Moves the real positions of each sentence (True in `real`, (batch, time)) to the front, and later back.

    Of a sentence that is all padding the first position counts as real.
    """

    def __init__(self, real: Tensor):
        self.real = torch.cat([real[:, :1] | ~real.any(1, keepdim=True), real[:, 1:]], dim=1)

    @classmethod
    def of(cls, real: Tensor | None) -> Packing | None:
        """Returns the `Packing` of `real`; None if that is None or, on a CPU outside of export, nothing is padding."""
        if real is None or not (torch.compiler.is_exporting() or is_asynchronous(real) or not bool(real.all())):
            return None
        return cls(real)

    @cached_property
    def places(self) -> Tensor:
        """Returns the indices (batch, time) that sort each sentence's positions: real ones first, else as they are."""
        return self.real.to(torch.int8).argsort(dim=1, descending=True, stable=True)

    @cached_property
    def aligned(self) -> Packing:
        """Returns the `Packing` of the aligned sentences: this one if real positions are known to be in front."""
        # In an export values cannot be read; where no padding is inside a sentence equation 4 needs no alignment.
        if torch.compiler.is_exporting():
            return self
        asked = not (is_asynchronous(self.real) or torch.compiler.is_compiling())
        if asked and bool((self.real[:, 1:] <= self.real[:, :-1]).all()):
            return self
        return Packing(self.real.gather(1, self.places))

    def align(self, states: Tensor) -> Tensor:
        """Moves the real positions of states (batch, time, width) to the front of each sentence."""
        if self.aligned is self:
            return states
        return states.gather(1, self.places.unsqueeze(-1).expand_as(states))

    def back(self, states: Tensor) -> Tensor:
        """Undoes `align`: moves the positions of states (batch, time, width) back to where they were."""
        if self.aligned is self:
            return states
        return states.gather(1, self.places.argsort(dim=1).unsqueeze(-1).expand_as(states))

    @cached_property
    def sides(self) -> tuple[Tensor, Tensor]:
        """Returns the indices of the first and of the last real position of each sentence, (batch,) each."""
        places = torch.arange(self.real.shape[1], device=self.real.device)
        first = places.masked_fill(~self.real, self.real.shape[1]).amin(1)
        return first, places.masked_fill(~self.real, -1).amax(1)


class LSTM(nn.LSTM):
    """An LSTM layer (batch, time, inputs) -> (batch, time, outputs); each of two directions computes half of them."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, inputs: int, outputs: int, bidirectional: bool = False):
        width = outputs // 2 if bidirectional else outputs
        super().__init__(inputs, width, batch_first=True, bidirectional=bidirectional)

    @property
    def _flat_weights(self) -> Any:  # type: ignore[override]
        """Returns the module's present parameters; PyTorch's list may still have those of its construction."""
        return [getattr(self, name) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, weights: Any) -> None:
        pass

    def begin_weights(self, config: Any) -> None:
        """Initialises each gate's matrix Xavier-uniform, biases with 0, but b of the forget gate with 1."""
        for name, parameter in self.named_parameters():
            if name.startswith("weight"):
                bound = (6.0 / (self.hidden_size + parameter.shape[1])) ** 0.5
                init.uniform_(parameter, -bound, bound)
            else:
                bias = torch.zeros_like(parameter)
                if name.startswith("bias_ih"):
                    bias[self.hidden_size : 2 * self.hidden_size] = 1.0
                init.copy_(parameter, bias)

    def forward(  # type: ignore[override]
        self, states: Tensor | None, packing: Packing | None = None, start: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes equations 1 to 3 for all positions; if `states` is None returns the weights W, U and b + b'.

        Args:
            start: h and c before the first position, (batch, outputs) each; None: zeros.

        Returns: h of every position, and h and c after the last real one, (batch, outputs), of both directions.
        """
        if states is None:
            return self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0 + self.bias_hh_l0
        with in_own_precision(states):
            states = states.to(self.weight_ih_l0.dtype)
            begin: Any = None if start is None else tuple(x.to(states.dtype).unsqueeze(0) for x in start)
            if packing is not None:
                outputs, hidden, cell = self.closed(packing.align(states), packing.aligned, begin)
                return packing.back(outputs), hidden, cell
            outputs, *ends = self.whole(states, begin, self._flat_weights)
        hidden, cell = (end.transpose(0, 1).flatten(1) for end in ends)
        return outputs, hidden, cell

    def whole(self, states: Tensor, begin: Any, weights: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Calls PyTorch's LSTM; returns h of every position, and the last h and c, (directions, batch, width)."""
        width = self.hidden_size
        nothing = states.new_zeros(2 if self.bidirectional else 1, states.shape[0], width)
        # In training mode alone cuDNN stores what backward needs; the result is the same, as dropout is 0.
        training = self.training or (is_asynchronous(states) and torch.is_grad_enabled())
        return torch.lstm(
            states, begin or (nothing, nothing), weights, True, 1, 0.0, training, self.bidirectional, True
        )

    def closed(self, states: Tensor, packing: Packing, begin: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the layer over aligned sentences in one call: an added input, 1 at padding, closes the gates there
        (equation 4), and outputs there are set to 0."""
        ends = ["l0", "l0_reverse"][: 2 if self.bidirectional else 1]
        inputs = torch.cat([states, (~packing.real).unsqueeze(-1).to(states.dtype)], dim=-1)
        switch = states.new_tensor([-CLOSED, CLOSED, 0.0, 0.0]).repeat_interleave(self.hidden_size).unsqueeze(1)
        weights: list[Tensor] = []
        for end in ends:
            matrix, *others = (
                getattr(self, f"{kind}_{end}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            weights += [torch.cat([matrix, switch], dim=1), *others]
        outputs, _, cells = self.whole(inputs, begin, weights)
        outputs = torch.where(packing.real.unsqueeze(-1), outputs, 0.0)
        rows, (first, last) = torch.arange(states.shape[0], device=states.device), packing.sides
        ahead, back = outputs[rows, last, : self.hidden_size], outputs[rows, first, self.hidden_size :]
        return outputs, torch.cat([ahead, back], dim=1), cells.transpose(0, 1).flatten(1)

    def inner_product(self, fed: int) -> tuple[Tensor, Tensor]:
        """Returns the matrix [W' ; U] (4 outputs, fed + outputs), by which the last `fed` inputs and h_{t-1} are
        multiplied, and the bias b + b'."""
        matrix, recurrent, biases = self(None)
        return torch.cat([matrix[:, self.input_size - fed :], recurrent], dim=1), biases

    def outer_gates(self, inputs: Tensor) -> Tensor:
        """Computes W x + b + b' of equation 1 for the first n inputs alone: (..., n) -> (..., 4 outputs)."""
        matrix, _, biases = self(None)
        return nn.functional.linear(inputs, matrix[:, : inputs.shape[-1]], biases)


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Computes equations 2 and 3: returns h_t and c_t of gates (..., 4 width) and c_{t-1} (..., width)."""
    inputs, forget, new, output = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + inputs.sigmoid() * new.tanh()
    return output.sigmoid() * cell.tanh(), cell


class LuongAttention(nn.Module):
    """Luong's attention, score "general", equations 8 to 11, of states of size `width`, with dropout on weights."""

    def __init__(self, width: int, dropout: float = 0.0):
        super().__init__()
        self.k_proj = nn.Linear(width, width, bias=False)  # W_a
        self.out_proj = nn.Linear(2 * width, width, bias=False)  # W_c
        self.dropout = nn.Dropout(dropout)

    def project_source(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Returns W_a h_i as keys and h_i as values of an attention with one head, (batch, 1, source, d) each."""
        return project(self.k_proj, memory).unsqueeze(1), memory.unsqueeze(1)

    def loop_product(self, like: Tensor, dtype: torch.dtype) -> LoopProduct | None:
        """Returns the `LoopProduct` of W_c for a loop; None without gradients, where the layer itself is called."""
        return LoopProduct(*matrix_of(self.out_proj, like), dtype) if torch.is_grad_enabled() else None

    def forward(
        self, states: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, combine: LoopProduct | None = None
    ) -> tuple[Tensor, Tensor]:
        """Computes attentional states (batch, time, d) and weights (batch, 1, time, source) of s (batch, time, d).

        Args:
            keys, values: the results of `project_source`.
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
    """Converts a mask (batch, source), 0 at padding, to an additive one (batch, 1, 1, source): the lowest number at
    padding, 0 elsewhere."""
    if mask is None:
        return None
    hidden = torch.zeros(mask.shape, dtype=like.dtype, device=mask.device)
    return hidden.masked_fill_(mask == 0, torch.finfo(like.dtype).min)[:, None, None, :]


class RNNEncoderLayer(GradientCheckpointingLayer):
    """A BiLSTM layer, equation 1 of rnn.py, with dropout on its input in all layers but the first."""

    def __init__(self, config: Any, layer_idx: int):
        super().__init__()
        self.lstm = LSTM(config.d_model, config.d_model, bidirectional=True)
        self.dropout = nn.Dropout(config.dropout if layer_idx else 0.0)

    def forward(self, states: Tensor, packing: Packing | None) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the layer; returns h of all positions (batch, source, d_model), last h and c (batch, d_model)."""
        return self.lstm(self.dropout(states), packing)


class RNNDecoderLayers(GradientCheckpointingLayer):
    """All decoder layers and the attention, equations 5 to 7 of rnn.py, as one module: with input feeding each position
    is computed by all of them before the next."""

    def __init__(self, config: Any):
        super().__init__()
        self.fed = config.d_model if config.input_feeding else 0
        widths = [config.d_model + self.fed] + [config.d_model] * (config.decoder_layers - 1)
        self.lstms: Any = nn.ModuleList([LSTM(width, config.d_model) for width in widths])
        self.attention = LuongAttention(config.d_model, config.attention_dropout)
        self.dropout = nn.Dropout(config.dropout)

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
        """Returns attentional states, attention weights, states after the positions, and outputs of all layers.

        Args:
            embeds: (batch, target, d_model).
            start: the state before the first position, (batch, rows, d_model): h and c of every layer from below, and
                with input feeding the attentional state.
            keys, values, mask: of the source, as for `LuongAttention`.
            real: which positions are not padding, (batch, target); None: all.
            record: whether to return the state after every position, or after the last alone.

        Returns: (batch, target, d_model), (batch, 1, target, source), (batch, target or 1, rows, d_model), and for
            every layer (batch, target, d_model).
        """
        number = product_dtype(embeds)
        with in_own_precision(embeds):
            exact = self.lstms[0].weight_ih_l0.dtype
            embeds, start, keys, values = (x.to(exact) for x in (embeds, start, keys, values))
            if self.fed or record or torch.compiler.is_exporting():  # an exported graph has one position
                return self.loop(embeds, start, (keys, values, mask), real, record, number)
            return self.all_at_once(embeds, start, (keys, values, mask), real)

    def all_at_once(self, states: Tensor, start: Tensor, source: tuple, real: Tensor | None) -> tuple[Tensor, ...]:
        """Computes `forward` without input feeding: each layer runs over all positions in one call."""
        packing, ends, outputs = Packing.of(real), [], []
        for index, lstm in enumerate(self.lstms):
            inputs = self.dropout(states) if index else states
            before = start[:, 2 * index], start[:, 2 * index + 1]
            states, *after = lstm(inputs, packing, before)
            if packing is not None and real is not None:  # a sentence of padding alone keeps its state
                after = [torch.where(real.any(1, keepdim=True), new, old) for new, old in zip(after, before)]
            ends += after
            outputs.append(states)
        attentional, weights = self.attention(states, *source)
        return self.dropout(attentional), weights, torch.stack(ends, dim=1).unsqueeze(1), *outputs

    def loop(
        self, embeds: Tensor, start: Tensor, source: tuple, real: Tensor | None, record: bool, number: torch.dtype
    ) -> tuple[Tensor, ...]:
        """Computes `forward` position by position; products are in the dtype `number`, the state keeps its own."""
        inner, source = self.inner_products(number), (*source, self.attention.loop_product(embeds, number))
        state, steps, ends = list(start.unsqueeze(2).unbind(1)), [], []
        for position, gates in enumerate(self.outer_gates(embeds).unsqueeze(2).unbind(1)):
            attentional, weights, after = self.step(gates, state, inner, source)
            if real is not None:  # at padding the state stays unchanged
                here = real[:, position, None, None]
                after = [torch.where(here, new, old) for new, old in zip(after, state)]
            state = after
            steps.append((attentional, weights, *state[0 : 2 * len(self.lstms) : 2]))
            if record or position + 1 == embeds.shape[1]:
                ends.append(torch.stack(state, dim=2))
        outputs, maps, *layers = zip(*steps)
        return torch.cat(outputs, 1), torch.cat(maps, 2), torch.cat(ends, 1), *(torch.cat(x, 1) for x in layers)

    def outer_gates(self, embeds: Tensor) -> Tensor:
        """Computes the embeddings' part of the first layer's gates, with biases: (..., d_model) -> (..., 4 d_model)."""
        return self.lstms[0].outer_gates(embeds)

    def inner_products(self, number: torch.dtype | None = None) -> list[LoopProduct]:
        """Returns each layer's `LoopProduct` of all inputs but embeddings; the first is without its biases."""
        first, *upper = self.lstms
        lowest = LoopProduct(first.inner_product(self.fed)[0], None, number)
        products = (lstm.inner_product(lstm.input_size) for lstm in upper)
        return [lowest, *(LoopProduct(matrix, biases, number) for matrix, biases in products)]

    def step(
        self, gates: Tensor, state: list[Tensor], inner: list[LoopProduct], source: tuple
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Computes one position of every sentence or beam; tensors are (batch, beams, ...), beams 1 in training.

        Args:
            gates: `outer_gates` of the embeddings (batch, beams, 4 d_model).
            state: the rows, (batch, beams, d_model) each.
            inner: `inner_products`.
            source: keys, values, mask and, optionally, `loop_product`: the arguments of `LuongAttention`.

        Returns: the attentional state, the weights (batch, 1, beams, source), the new rows.
        """
        rows: list[Tensor] = []
        read = state[-1:] if self.fed else []  # what a layer reads beside its own previous h
        for index, product in enumerate(inner):
            products = product(torch.cat([*read, state[2 * index]], dim=-1))
            hidden, cell = lstm_cell(products if index else products + gates, state[2 * index + 1])
            rows += [hidden, cell]
            read = [self.dropout(hidden)]
        attentional, weights = self.attention(hidden, *source)
        attentional = self.dropout(attentional)
        return attentional, weights, rows + [attentional] * bool(self.fed)
