"""Positions, added to the embeddings so that the model can tell places apart: sines and cosines, or a learned table.

Reference: Vaswani et al. 2017, "Attention Is All You Need", section 3.5. t counts from `position_offset`.

| position_embedding | dimension 2i | dimension 2i+1 | r_i | used by |
| --- | --- | --- | --- | --- |
| interleaved | sin(t r_i) | cos(t r_i) | 10000^(-2i/d) | the paper, OpenNMT-py, JoeyNMT |
| halves | sines in the first half of the dimensions, cosines in the second | | 10000^(-2i/d) | Marian in Transformers |
| tensor2tensor | the same | | 10000^(-i/(d/2-1)) | tensor2tensor, fairseq, M2M100, NLLB, Marian's own engine |
| learned | a table that is trained | | | BART, mBART |
"""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init


class Positions(nn.Module):
    """A table (max_position_embeddings, d_model) with a row for each place."""

    table: Tensor

    def forward(self, length: int, past: int | Tensor = 0) -> Tensor:
        """Returns rows past .. past + length - 1: (length, d_model)."""
        if isinstance(past, Tensor):  # a static cache counts on the device
            return self.table[torch.arange(length, device=self.table.device) + past]
        if past + length > len(self.table):
            raise ValueError(
                f"a sequence of {past + length} subwords is longer than max_position_embeddings={len(self.table)}: "
                "split or truncate it"
            )
        return self.table[past : past + length]

    def at(self, positions: Tensor) -> Tensor:
        """Returns the rows of any positions: (..., d_model)."""
        return nn.functional.embedding(positions.to(self.table.device), self.table)


class SinusoidalPositions(Positions):
    """Sines and cosines: a buffer, neither trained nor saved; `compute` says how exact."""

    def __init__(self, positions: int, width: int, kind: str = "interleaved", offset: int = 0):
        super().__init__()
        self.kind, self.offset = kind, offset
        table = self.compute(positions, width, kind, offset).to(torch.get_default_dtype())
        self.register_buffer("table", table, persistent=False)

    def begin_weights(self, config) -> None:
        """Computes the table anew: no checkpoint holds it."""
        positions, width = self.table.shape
        init.copy_(self.table, self.compute(positions, width, self.kind, self.offset))

    def _apply(self, *args, **kwargs):
        """Moves the module, for Module.to(); a table of other numbers is computed anew, not rounded twice."""
        before = self.table.dtype
        super()._apply(*args, **kwargs)
        if self.table.dtype != before and not self.table.is_meta:
            positions, width = self.table.shape
            self.table.copy_(self.compute(positions, width, self.kind, self.offset))
        return self

    @staticmethod
    def compute(positions: int, width: int, kind: str = "interleaved", offset: int = 0) -> Tensor:
        """Computes the table above, in float64.

        "interleaved" is exact. The others are rounded to float32, as those who use them do, and "tensor2tensor" is
        computed in it: at t = 1000 that makes a difference of some 1e-5, and models were trained with it.
        """
        dtype = torch.float32 if kind == "tensor2tensor" else torch.float64
        if kind == "tensor2tensor":
            rates = torch.exp(torch.arange(width // 2, dtype=dtype) * -(math.log(10000.0) / max(width // 2 - 1, 1)))
        else:
            rates = torch.exp(torch.arange(0, width, 2, dtype=dtype) * (-math.log(10000.0) / width))
        angles = torch.arange(offset, offset + positions, dtype=dtype).unsqueeze(1) * rates
        if kind == "interleaved":
            return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).double()
        return torch.cat([angles.sin(), angles.cos()], dim=1).float().double()


class LearnedPositions(Positions):
    """A parameter, begun like the embeddings."""

    def __init__(self, positions: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(positions, width))  # type: ignore[assignment]

    def begin_weights(self, config) -> None:
        init.normal_(self.table, std=config.init_std or config.d_model**-0.5)


def shown_positions(mask: Tensor | None, length: int) -> Tensor | None:
    """Returns the places of the last `length` tokens, from the first that the mask (batch, time) shows; None: from 0.

    So a sentence is the same whether its padding stands on the left or on the right.
    """
    if mask is None or mask.dim() != 2:
        return None
    return (mask.cumsum(1) - 1).clamp(min=0)[:, -length:]


def positions_of(config) -> Positions:
    """Builds the positions that the config names."""
    sizes = config.max_position_embeddings, config.d_model
    if config.position_embedding == "learned":
        return LearnedPositions(*sizes)
    return SinusoidalPositions(*sizes, config.position_embedding, config.position_offset)
