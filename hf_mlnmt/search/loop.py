"""The loop of a search for all search strategies (strategies.py); faster implementations must find the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.search.decoder import Decoder, SourceBatch, gather_beams


class SearchBatch:
    """The sentences that are still being translated, whose numbers are `ids` (sentences,), and the decoder's state."""

    def __init__(self, decoder: Decoder[Any], source: SourceBatch, width: int):
        self.decoder, self.source, self.width = decoder, source, width
        self.scale = getattr(decoder, "scale", 1.0)  # alpha for the scores of a fused model, else 1 (decoders.py)
        self.count = len(source.real)  # sentences at the beginning
        self.ids = torch.arange(self.count, device=source.real.device)
        self.real = source.real
        self.state: Any = None

    def begin(self, prompt: Tensor) -> Tensor:
        """Reads the prompt (sentences, length); returns the next token's scores (sentences, 1, vocabulary)."""
        scores, self.state = self.decoder.begin(prompt, self.source)
        del self.source  # from here on only the state refers to the source, so that it can free parts
        return scores

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Reads tokens (sentences, width), each after its beam in `parents` (None: itself); returns next scores."""
        if parents is not None:
            self.state = self.state.reorder(parents)
        scores, self.state = self.decoder.step(tokens, self.state)
        return scores

    def keep(self, rows: Tensor) -> None:
        """Drops all sentences of the batch but `rows` (indices), and cuts sources to the longest that is left."""
        longest = int(self.real[rows].any(dim=0).nonzero().max()) + 1  # padding may be on either side
        self.ids, self.real = self.ids[rows], self.real[rows, :longest]
        self.state = self.state.select(rows, longest)


def search(batch: SearchBatch, prompt: Tensor, strategy: Any) -> Any:
    """Searches: in turn the strategy chooses tokens and the decoder reads them, until all hypotheses have ended.

    Args:
        batch: the sentences, before `begin`.
        prompt: (sentences, length).
        strategy: chooses the tokens (strategies.py), `batch.width` for each sentence.

    Returns: what generate() returns.
    """
    rules, length = strategy.rules, prompt.shape[1]
    history = prompt.unsqueeze(1).expand(-1, batch.width, -1)  # (sentences, width, length)
    scores = batch.begin(prompt)  # (sentences, 1, vocabulary)
    batch.state = batch.state.expand(batch.width)
    while True:
        length += 1
        tokens, parents, open_ = strategy.step(scores, history, length)  # open_ (sentences,), others (sentences, width)
        left = int(open_.sum())
        if not left or rules.is_longest(length):
            return strategy.result()
        rules.between_steps()  # after the scores have been read: a search in a callback may overwrite their memory
        if rules.processors:
            history = history if parents is None else gather_beams(history, parents)
            history = torch.cat([history, tokens.unsqueeze(-1)], dim=-1)
        if (kept := rules.sentences_to_keep(open_, left)) is not None:
            strategy.keep(kept)
            batch.keep(kept)
            rules.keep(kept, batch.width)
            tokens, history = tokens[kept], history[kept]
            parents = None if parents is None else parents[kept]
        scores = batch.step(tokens, parents)  # (sentences, width, vocabulary)
