"""Beams with sampling: candidates that are drawn, and whole translations drawn without replacement.

Reference: Kool, van Hoof and Welling 2019, "Stochastic Beams and Where to Find Them: The Gumbel-Top-k Trick for
Sampling Sequences Without Replacement".

G(y) = log P(y) + Gumbel noise; the k sequences with the largest G are k draws without replacement, in that order. They
are found from the top: (1) of the continuations of a beginning with perturbed log probability G, whose own are g, the
largest becomes G, and each -log(exp(-G) - exp(-max g) + exp(-g)). So G never grows, and a beam search with G in the
place of its sums, and without length normalisation, finds the k largest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.search import hypotheses
from hf_mlnmt.search.hypotheses import IMPOSSIBLE, is_possible
from hf_mlnmt.search.loop import SearchBatch
from hf_mlnmt.search.rules import Rules
from hf_mlnmt.search.strategies import BeamSearch, Candidates, Draws, log_softmax


class SampledBeams(BeamSearch):
    """Beam search whose candidates are drawn without replacement from softmax(sums): for a seed, Transformers' own."""

    def processed(self, scores: Tensor, history: Tensor) -> Tensor:
        """Returns log P (sentences, width, vocabulary) by the rules."""
        log_probs = scores if self.batch.decoder.normalized else log_softmax(scores)
        return self.rules.process(history, log_probs.expand(-1, self.batch.width, -1))

    def candidates(self, scores: Tensor, running: Tensor, history: Tensor) -> Candidates:
        sums = (self.processed(scores, history) + running.unsqueeze(-1)).flatten(1)
        vocabulary, count = scores.shape[-1], min(self.rules.candidates(self.batch.width), sums.shape[1])
        # Drawn for all sentences of the batch, also those that have left.
        noise = Draws.noise(self.batch.count, sums.shape[1], sums.device)[self.batch.ids]
        drawn = (sums.softmax(-1) / noise).topk(count).indices
        sums, order = sums.gather(1, drawn).sort(dim=1, descending=True)
        drawn = drawn.gather(1, order)
        return sums, drawn // vocabulary, drawn % vocabulary


class WithoutReplacement(SampledBeams):
    """`num_beams` draws without replacement; beams are summed up as G, and carry log P, the scores.

    The probabilities are those behind the rules (temperature, top_k), which add up to one again in every step.
    """

    counts_impossible = False

    def __init__(self, batch: SearchBatch, prompt: Tensor, rules: Rules, config: Any):
        super().__init__(batch, prompt, rules, config)
        self.logs = torch.zeros_like(self.beams.running)  # log P of the beams
        self.finished = torch.zeros_like(self.beams.best)  # of the finished hypotheses
        self.all_finished = torch.zeros_like(self.beams.best)  # of all sentences

    def begin(self, sentences: int, device: Any) -> hypotheses.Hypotheses:
        return hypotheses.Hypotheses(sentences, self.batch.width, False, device)

    def candidates(self, scores: Tensor, running: Tensor, history: Tensor) -> Candidates:
        log_probs = self.logs.unsqueeze(-1) + self.processed(scores, history).log_softmax(-1)
        gumbels = log_probs - torch.rand_like(log_probs).log_().neg_().log_()  # g
        below = (gumbels - gumbels.amax(-1, keepdim=True)).exp().neg().log1p()  # log(1 - exp(g - max g))
        largest = running.unsqueeze(-1)  # G of the beginning
        beyond = largest - gumbels + below
        sums = largest - beyond.clamp(min=0) - beyond.abs().neg().exp().log1p()  # (1)
        sums = sums.masked_fill(~is_possible(largest) | (log_probs == -torch.inf), IMPOSSIBLE).flatten(1)
        vocabulary, count = scores.shape[-1], min(self.rules.candidates(self.batch.width), sums.shape[1])
        sums, chosen = sums.topk(count)
        self.following = log_probs.flatten(1).gather(1, chosen)
        return sums, chosen // vocabulary, chosen % vocabulary

    def length_penalties(self) -> tuple[float, float]:
        return 1.0, 1.0

    def finish(self, sums: Tensor, beams: Tensor, tokens: Tensor, over: Tensor) -> None:
        super().finish(sums, beams, tokens, over)
        best = self.beams.best.shape[1]
        if over[:, :best].any():
            new = torch.cat([self.finished, self.following[:, :best]], 1)
            self.finished = new.gather(1, self.beams.order)

    def follow(self, places: Tensor, beams: Tensor, tokens: Tensor) -> None:
        self.logs = self.following.gather(1, places)

    def keep(self, sentences: Tensor) -> None:
        super().keep(sentences)
        self.logs, self.finished = self.logs[sentences], self.finished[sentences]

    def write(self) -> None:
        super().write()
        self.all_finished[self.batch.ids] = self.finished

    def result(self) -> Any:
        output = super().result()
        if self.config.return_dict_in_generate:
            output.sequences_scores = self.all_finished[:, : self.config.num_return_sequences].flatten()
        return output
