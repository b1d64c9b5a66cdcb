"""The batch of a search: which sentences are still being translated, and what the decoder knows of them."""

from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.search.decoder import Decoder
from hf_mlnmt.search.source import Source


class SearchBatch:
    """Sentences leave when they have ended; `ids` (sentences,) are the numbers of those that are still here."""

    def __init__(self, decoder: Decoder[Any], source: Source, width: int):
        self.decoder, self.source, self.width = decoder, source, width
        self.scale = getattr(decoder, "scale", 1.0)  # of a fused model (fusion.py)
        self.count = len(source.real)  # at the beginning
        self.ids = torch.arange(self.count, device=source.real.device)
        self.real = source.real
        self.state: Any = None

    def begin(self, prompt: Tensor) -> Tensor:
        """Read the prompt (sentences, length): scores (sentences, 1, vocabulary). Then there are `width` beams."""
        scores, state = self.decoder.begin(prompt, self.source)
        del self.source  # it is the state's now
        self.state = state.expand(self.width)
        return scores

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Tokens (sentences, width), behind beams `parents` or their own: scores (sentences, width, vocabulary)."""
        if parents is not None:
            self.state = self.state.reorder(parents)
        scores, self.state = self.decoder.step(tokens, self.state)
        return scores

    def keep(self, rows: Tensor) -> None:
        """Keep these sentences (indices into those that are here), and as much of the sources as the longest needs."""
        longest = int(self.real[rows].any(dim=0).nonzero().max()) + 1  # padding may be on either side
        self.ids, self.real = self.ids[rows], self.real[rows, :longest]
        self.state = self.state.select(rows, longest)

    def spread(self, tokens: Tensor, pad: Tensor | int) -> Tensor:
        """Tokens (sentences here, width) -> (sentences of the whole batch, width), `pad` where sentences have left."""
        if len(tokens) == self.count:
            return tokens
        column = tokens.new_zeros(self.count, self.width) + pad
        column[self.ids] = tokens
        return column
