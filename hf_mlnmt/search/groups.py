"""Diverse beam search: groups of beams that are kept apart.

Reference: Vijayakumar et al. 2018, "Diverse Beam Search for Improved Described Scene Understanding". In each step the
groups choose in turn, and log P of a token is less by `diversity_penalty` for each time that the groups before have
chosen it for the same sentence in this step (Hamming diversity). Every group is a beam search of its own; what is
returned are the best of all groups. As in Transformers 4 the penalty stays in the sums, and so in the scores.

To the hypotheses (hypotheses.py) a group is a sentence: (sentences x groups, beams of a group).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.search import hypotheses
from hf_mlnmt.search.strategies import BeamSearch, Candidates, best_continuations, log_softmax


class Grouped(BeamSearch):
    """Beam search in `num_beam_groups` groups; beams carry nothing."""

    def begin(self, sentences: int, device: Any) -> hypotheses.Hypotheses:
        self.groups = self.config.groups
        self.size = self.batch.width // self.groups
        return hypotheses.Hypotheses(sentences * self.groups, self.size, self.config.early_stopping is True, device)

    def candidates(self, scores: Tensor, running: Tensor, history: Tensor) -> Candidates:
        log_probs = scores if self.batch.decoder.normalized else log_softmax(scores)
        if log_probs.shape[1] == 1:  # behind the prompt
            log_probs = log_probs.repeat(1, self.batch.width, 1)
        count, found = min(self.rules.candidates(self.size), self.size * log_probs.shape[-1]), []
        running, open_ = (part.unflatten(0, (-1, self.groups)) for part in (running, self.beams.open))
        for group in range(self.groups):
            first = group * self.size
            processed = self.rules.process(history, log_probs) if self.rules.processors else log_probs
            own = processed[:, first : first + self.size]
            sums, beams, tokens = best_continuations(own, running[:, group], count)
            found.append((sums, beams + first, tokens))
            places = hypotheses.onward(sums, self.rules.is_end(tokens), self.size).indices
            penalties = self.config.diversity_penalty * open_[:, group].view(-1, 1, 1).to(sums.dtype)
            chosen = tokens.gather(1, places).unsqueeze(1)  # (sentences, 1, size), for all beams of the groups behind
            rest = log_probs[:, first + self.size :]
            shape = rest.shape[0], rest.shape[1], self.size
            rest.scatter_add_(2, chosen.expand(shape), -penalties.expand(shape))
        sums, beams, tokens = (torch.stack(parts, 1).flatten(0, 1) for parts in zip(*found, strict=True))
        return sums, beams, tokens

    def close(self) -> Tensor:
        return super().close().view(-1, self.groups).any(1)

    def write(self) -> None:
        best, order = self.beams.best.view(-1, self.batch.width).sort(dim=1, descending=True, stable=True)
        last = self.beams.last.view(-1, self.batch.width).gather(1, order)
        self.record.write(self.batch.ids, best, last, self.columns)
