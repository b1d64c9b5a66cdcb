"""Beam search with recombination: hypotheses that share their last k tokens become one before they are expanded.

Reference: thesis on monolingual data, section 4.1.2, "Limited context assumption and trellis computation". For a model
that sees k tokens, what follows two such hypotheses is the same: their probabilities are added up, and the better path
of the two stands for both. Of any other model that is an approximation. k = 0 joins all beams of a sentence.
"""

import torch
from torch import Tensor

from hf_mlnmt.search.decoder import gather_beams
from hf_mlnmt.search.finished import IMPOSSIBLE

NOTHING = -1  # in the place of a token, before the prompt


def is_possible(sums: Tensor) -> Tensor:
    """Which sums are those of a hypothesis, and not of a beam that was joined to another or never began."""
    return sums > IMPOSSIBLE / 2


class Recombination:
    """The last k tokens of every beam, and the sum of the path that stands for it."""

    def __init__(self, k: int, prompt: Tensor, running: Tensor, scale: float = 1.0):
        """prompt (sentences, length) of all beams; running (sentences, beams), the sums they begin with.

        scale: what is added up is exp(scale x sum); alpha of a fused model's scores (4.4), whose q is exp(alpha x).
        """
        missing = max(k - prompt.shape[1], 0)
        recent = torch.nn.functional.pad(prompt, (missing, 0), value=NOTHING)[:, missing + prompt.shape[1] - k :]
        self.k, self.scale = k, scale
        self.recent = recent.unsqueeze(1).expand(-1, running.shape[1], -1)  # (sentences, beams, k)
        self.paths = running  # (sentences, beams): of the single path

    def groups(self, running: Tensor) -> tuple[Tensor, Tensor]:
        """Which beam stands for each, and which beams stand for themselves: (sentences, beams) each.

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
        """The sums (sentences, beams), those of joined beams added up; a beam that another stands for is impossible."""
        chosen, stands = self.groups(running)
        possible = (self.scale * running).masked_fill(~is_possible(running), -torch.inf)
        members = chosen.unsqueeze(1) == torch.arange(running.shape[1], device=running.device).view(1, -1, 1)
        sums = possible.unsqueeze(1).masked_fill(~members, -torch.inf).logsumexp(-1)  # of those that each stands for
        return torch.where(stands, sums / self.scale, IMPOSSIBLE)

    def together(self, running: Tensor) -> Tensor:
        """What all beams of a sentence would have if they were one: (sentences, 1)."""
        return (self.scale * running).logsumexp(1, keepdim=True) / self.scale

    def follow(self, scores: Tensor, tokens: Tensor, parents: Tensor) -> None:
        """Each beam goes on from beam parents[b, i] with a token and its score: (sentences, beams) each."""
        self.paths = self.paths.gather(1, parents) + scores
        if self.k:
            recent = gather_beams(self.recent.contiguous(), parents)
            self.recent = torch.cat([recent, tokens.unsqueeze(-1)], dim=-1)[..., 1:]

    def keep(self, sentences: Tensor) -> None:
        """Keep these sentences (indices)."""
        self.recent, self.paths = self.recent[sentences], self.paths[sentences]
