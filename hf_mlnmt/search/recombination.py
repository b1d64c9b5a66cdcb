"""Recombination: beams of a sentence that share their last k tokens are joined before each step.

Reference: thesis on monolingual data, section 4.1.2, "Limited context assumption and trellis computation". For a model
that sees k tokens, what follows two hypotheses with the same last k tokens is the same: their probabilities are added
up, and the better path of the two stands for both. Of any other model that is an approximation. k = 0 joins all beams
of a sentence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.search.decoder import gather_beams
from hf_mlnmt.search.hypotheses import IMPOSSIBLE, is_possible
from hf_mlnmt.search.loop import SearchBatch
from hf_mlnmt.search.rules import Rules
from hf_mlnmt.search.strategies import BeamSearch, Candidates


class Recombined(BeamSearch):
    """Beam search that joins beams before each step; each carries its last k tokens, and the sum of its path alone."""

    counts_impossible = False

    def __init__(self, batch: SearchBatch, prompt: Tensor, rules: Rules, config: Any):
        super().__init__(batch, prompt, rules, config)
        self.joined = Recombination(config.recombine, prompt, self.beams.running.clone(), batch.scale)

    def candidates(self, scores: Tensor, running: Tensor, history: Tensor) -> Candidates:
        self.sums = self.joined.join(running)
        return super().candidates(scores, self.sums, history)

    def follow(self, places: Tensor, beams: Tensor, tokens: Tensor) -> None:
        self.joined.follow(self.beams.running - self.sums.gather(1, beams), tokens, beams)

    def highest(self) -> Tensor:
        return self.joined.together(self.beams.running)[:, 0]

    def keep(self, sentences: Tensor) -> None:
        super().keep(sentences)
        self.joined.keep(sentences)


class Recombination:
    """The last k tokens of every beam, and the sum of the path that stands for it."""

    def __init__(self, k: int, prompt: Tensor, running: Tensor, scale: float = 1.0):
        """Begins with the prompt (sentences, length) of all beams and their sums `running` (sentences, beams).

        scale: what is added up is exp(scale x sum); alpha of a fused model's scores (4.4), whose q is exp(alpha x).
        """
        missing = max(k - prompt.shape[1], 0)
        # -1 stands for the tokens that there would be before the prompt.
        recent = torch.nn.functional.pad(prompt, (missing, 0), value=-1)[:, missing + prompt.shape[1] - k :]
        self.k, self.scale = k, scale
        self.recent = recent.unsqueeze(1).expand(-1, running.shape[1], -1)  # (sentences, beams, k)
        self.paths = running  # (sentences, beams): of the single path

    def groups(self, running: Tensor) -> tuple[Tensor, Tensor]:
        """Tells which beam stands for each, and which beams stand for themselves: (sentences, beams) each.

        Of those with the same last k tokens it is the one with the best path, the first of equals.
        """
        alive = is_possible(running)
        same = (self.recent.unsqueeze(2) == self.recent.unsqueeze(1)).all(-1)  # (sentences, beams, beams)
        same &= alive.unsqueeze(1) & alive.unsqueeze(2)
        paths = self.paths.unsqueeze(1).masked_fill(~same, -torch.inf)
        places = torch.arange(running.shape[1], device=running.device)
        chosen = torch.where(alive, paths.argmax(-1), places)
        return chosen, alive & (chosen == places)

    def join(self, running: Tensor) -> Tensor:
        """Adds up the sums (sentences, beams) of joined beams; a beam that another stands for becomes impossible."""
        chosen, stands = self.groups(running)
        possible = (self.scale * running).masked_fill(~is_possible(running), -torch.inf)
        members = chosen.unsqueeze(1) == torch.arange(running.shape[1], device=running.device).view(1, -1, 1)
        sums = possible.unsqueeze(1).masked_fill(~members, -torch.inf).logsumexp(-1)  # of those that each stands for
        return torch.where(stands, sums / self.scale, IMPOSSIBLE)

    def together(self, running: Tensor) -> Tensor:
        """Adds up all beams of a sentence: (sentences, beams) -> (sentences, 1)."""
        return (self.scale * running).logsumexp(1, keepdim=True) / self.scale

    def follow(self, scores: Tensor, tokens: Tensor, parents: Tensor) -> None:
        """Lets each beam go on from beam parents[b, i] with a token and its score: (sentences, beams) each."""
        self.paths = self.paths.gather(1, parents) + scores
        if self.k:
            recent = gather_beams(self.recent.contiguous(), parents)
            self.recent = torch.cat([recent, tokens.unsqueeze(-1)], dim=-1)[..., 1:]

    def keep(self, sentences: Tensor) -> None:
        """Keeps these sentences (indices)."""
        self.recent, self.paths = self.recent[sentences], self.paths[sentences]
