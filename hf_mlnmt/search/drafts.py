"""Greedy search that begins with drafts: with the last translation of a text that is being typed, say.

The prompt and a draft of each sentence are read at once. Of a draft those tokens are kept that the search would choose
itself behind those before; from there it goes on step by step. So it finds what `Greedy` does, in fewer steps: this is
speculative decoding (Leviathan et al. 2023; Chen et al. 2023) with one guess, for which nothing is computed.

Each sentence goes on from a position of its own, so a step's positions and lengths are of each sentence: `length` of
the loop does not count what was kept. With processors that remember rows, and with models that cannot be at several
positions at once, all keep as much as the one that keeps the least.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.search.hypotheses import pad_token_of, sampled
from hf_mlnmt.search.loop import SearchBatch
from hf_mlnmt.search.rules import Rules
from hf_mlnmt.search.strategies import Greedy


class Drafted(Greedy):
    """The best token of each hypothesis, behind what is kept of drafts.

    Raises: UserError for beams, draws, or another number of sentences.
    """

    def __init__(self, batch: SearchBatch, prompt: Tensor, rules: Rules, config: Any):
        if config.num_beams > 1 or config.do_sample:
            raise UserError("draft: is of a greedy search; leave num_beams (--beams) and do_sample (--sample) out.")
        drafts = rules.drafts or []
        if len(drafts) != len(prompt):
            raise UserError(f"draft: {len(drafts)} drafts for {len(prompt)} sentences.")
        super().__init__(batch, prompt, rules, config)
        length = prompt.shape[1]
        room = max(map(len, drafts), default=0) if rules.max_length is None else rules.max_length - length - 1
        rows = [draft[: max(room, 0)] for draft in drafts]
        self.longest = max(map(len, rows))
        self.drafts = torch.tensor([[*row, *[-1] * (self.longest - len(row))] for row in rows], device=prompt.device)
        self.drafts = self.drafts.long().masked_fill(rules.is_end(self.drafts), -1)
        self.prompt, self.kept = length, prompt.new_zeros(len(prompt))  # tokens of each draft
        self.taken = torch.zeros_like(self.kept)  # steps that each sentence, by its number, took

    def read(self, prompt: Tensor) -> Tensor:
        if not self.longest:
            return super().read(prompt)
        ids = torch.cat([prompt, self.drafts.clamp(min=0)], 1)
        scores = self.batch.begin(ids, 1 + self.longest)  # (sentences, 1 + longest, vocabulary)
        agreed = torch.ones_like(self.kept, dtype=torch.bool)
        for place in range(self.longest):
            history = ids[:, None, : self.prompt + place]
            chosen = self.tokens(self.rules.process(history, scores[:, place : place + 1]))[:, 0]
            agreed &= chosen == self.drafts[:, place]
            self.kept += agreed
            if not agreed.any():
                break
        if self.rules.followers or not self.rules.rows_may_leave or getattr(self.batch.decoder, "one_length", False):
            self.kept = self.kept.min().expand(len(self.kept))
        self.batch.state = self.batch.state.rewind(self.longest - self.kept)
        self.all_kept, self.ids = self.kept, ids
        return scores[torch.arange(len(ids), device=ids.device), self.kept].unsqueeze(1)

    def process(self, history: Tensor, scores: Tensor) -> Tensor:
        if not (self.rules.processors and self.longest):
            return self.rules.process(history, scores)
        scores = scores.clone()
        for kept in self.kept.unique().tolist():  # sentences of one length at a time
            rows = (self.kept == kept).nonzero()[:, 0]
            before = self.ids[rows, None, : self.prompt + kept]
            so_far = torch.cat([before, history[rows, :, self.prompt :]], -1)
            scores[rows] = self.rules.process(so_far, scores[rows])
        return scores

    def is_last(self, tokens: Tensor, length: int) -> Tensor:
        self.taken[self.batch.ids] += self.chains.open
        lengths = self.kept + length
        at_limit = torch.zeros_like(self.kept, dtype=torch.bool)
        if self.rules.max_length is not None:
            at_limit = lengths >= self.rules.max_length
        return self.rules.is_last(tokens, 0) | at_limit.unsqueeze(1)

    def keep(self, sentences: Tensor) -> None:
        super().keep(sentences)
        self.kept = self.kept[sentences]
        if self.longest:
            self.ids = self.ids[sentences]

    def result(self) -> Any:
        chosen = self.record.chosen()  # (sentences, steps)
        if not self.longest:
            return self.record.chains()
        lengths = self.all_kept + self.taken
        found = chosen.new_zeros(len(chosen), int(lengths.max())) + pad_token_of(self.record.config, chosen.device)
        for row, (kept, taken) in enumerate(zip(self.all_kept.tolist(), self.taken.tolist())):
            found[row, :kept] = self.drafts[row, :kept]
            found[row, kept : kept + taken] = chosen[row, :taken]
        return sampled(torch.cat([self.record.prompt, found], 1), self.record.config)
