"""LSTM layers: over whole sentences of which some positions are padding, and one position at a time.

Reference: Hochreiter and Schmidhuber 1997; Graves and Schmidhuber 2005 for both directions; the gates as PyTorch's.

(1) [i ; f ; g ; o] = W x_t + b + U h_{t-1} + b'
(2) c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)        (3) h_t = sigmoid(o) tanh(c_t)

A position that is not real (padding on either side, or a hole) does not exist for the recurrence, in either direction:
the real ones are packed, and where nothing was the output is 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .linear import in_own_precision


class Packing:
    """The real positions of a batch, in the order in which a recurrence takes them."""

    def __init__(self, real: Tensor):
        """`real` (batch, time): False at padding. A sentence that is all padding counts as its first position."""
        real = torch.cat([real[:, :1] | ~real.any(1, keepdim=True), real[:, 1:]], dim=1)
        self.shape = real.shape
        lengths = real.sum(1)
        self.order = lengths.argsort(descending=True, stable=True)
        self.inverse = self.order.argsort()
        places = real.to(torch.int8).argsort(dim=1, descending=True, stable=True)  # of the i-th real position
        longest = int(lengths.max())
        there = torch.arange(longest, device=real.device).unsqueeze(1) < lengths[self.order]  # (longest, batch)
        self.index = (self.order * real.shape[1] + places[self.order, :longest].t())[there]
        self.batch_sizes = there.sum(1).cpu()

    @classmethod
    def of(cls, real: Tensor | None) -> Packing | None:
        """None where nothing is padding: there is nothing to pack."""
        return None if real is None or bool(real.all()) else cls(real)

    def pack(self, states: Tensor) -> PackedSequence:
        """(batch, time, width) -> its real positions."""
        data = states.flatten(0, 1).index_select(0, self.index)
        return PackedSequence(data, self.batch_sizes, self.order, self.inverse)

    def unpack(self, data: Tensor) -> Tensor:
        """(real positions, width) -> (batch, time, width), zeros where nothing was."""
        found = data.new_zeros(self.shape.numel(), data.shape[1])
        return found.index_copy(0, self.index, data).view(*self.shape, -1)


class LSTM(nn.LSTM):
    """One layer, (batch, time, inputs) -> (batch, time, outputs); in half of `outputs` each direction if both."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, inputs: int, outputs: int, bidirectional: bool = False):
        width = outputs // 2 if bidirectional else outputs
        super().__init__(inputs, width, batch_first=True, bidirectional=bidirectional)

    def forward(  # type: ignore[override]
        self, states: Tensor, packing: Packing | None = None, start: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Equations 1 to 3 for all positions.

        Args:
            start: h and c before the first position, (batch, outputs) each; None: zeros.

        Returns: h of every position, and h and c behind the last real one, (batch, outputs), both directions side by
            side.
        """
        with in_own_precision(states):
            states = states.to(self.weight_ih_l0.dtype)
            begin: Any = None if start is None else tuple(x.to(states.dtype).unsqueeze(0) for x in start)
            packed: Any = states if packing is None else packing.pack(states)
            found, ends = super().forward(packed, begin)
        hidden, cell = (end.transpose(0, 1).flatten(1) for end in ends)
        return found if packing is None else packing.unpack(found.data), hidden, cell

    def inner_matrix(self, fed: int) -> Tensor:
        """[W' ; U] (4 outputs, fed + outputs): equation 1's products with the last `fed` inputs and with h_{t-1}."""
        return torch.cat([self.weight_ih_l0[:, self.input_size - fed :], self.weight_hh_l0], dim=1)

    def outer_gates(self, inputs: Tensor) -> Tensor:
        """The rest of equation 1: W x + b + b' of the first inputs (..., some of them) -> (..., 4 outputs)."""
        weight = self.weight_ih_l0[:, : inputs.shape[-1]]
        return nn.functional.linear(inputs, weight, self.biases())

    def biases(self) -> Tensor:
        """b + b'."""
        return self.bias_ih_l0 + self.bias_hh_l0


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 2 and 3: gates (..., 4 width), c_{t-1} (..., width) -> h_t, c_t."""
    inputs, forget, new, output = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + inputs.sigmoid() * new.tanh()
    return output.sigmoid() * cell.tanh(), cell
