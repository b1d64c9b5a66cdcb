"""The finished hypotheses of a beam search: which are kept, when a sentence is done, how they are read off.

The rules are those of `GenerationMixin._update_finished_beams` and `_check_early_stop_heuristic`.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateBeamEncoderDecoderOutput

IMPOSSIBLE = -1.0e9  # Transformers' score of what must not be chosen


class FinishedHypotheses:
    """The finished hypotheses of every sentence, and the steps from which all sequences can be read off."""

    def __init__(self, prompt: Tensor, config: Any):
        self.prompt, self.config, self.beams = prompt, config, config.num_beams
        shape = (len(prompt), config.num_beams)
        self.scores = prompt.new_full(shape, IMPOSSIBLE, dtype=torch.float32)
        self.filled = torch.zeros(shape, dtype=torch.bool, device=prompt.device)
        self.open = torch.ones(len(prompt), dtype=torch.bool, device=prompt.device)
        # Of each hypothesis: its last step, the token there, and the beam it came from.
        self.last = torch.stack([prompt.new_full(shape, -1), prompt.new_zeros(shape), prompt.new_zeros(shape)], dim=-1)
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []  # sentences, tokens, parents

    def add(self, ids: Tensor, scores: Tensor, tokens: Tensor, parents: Tensor, over: Tensor, length: int) -> None:
        """Take those of the best `beams` candidates that are over; before `step`."""
        over = over[:, : self.beams]
        if not over.any():
            return
        divisor = (length - self.prompt.shape[1]) ** self.config.length_penalty
        shut = ~self.open[ids]
        if self.config.early_stopping is True:
            shut |= self.filled[ids].all(dim=1)
        allowed = over & ~shut.unsqueeze(-1)
        new = torch.where(allowed, scores[:, : self.beams] / divisor, IMPOSSIBLE)
        self.scores[ids], best = torch.cat([self.scores[ids], new], dim=1).topk(self.beams)
        self.filled[ids] = torch.cat([self.filled[ids], allowed], dim=1).gather(1, best)
        step = torch.full_like(tokens, len(self.steps))
        last = torch.stack([step, tokens, parents], dim=-1)[:, : self.beams]
        self.last[ids] = torch.take_along_dim(torch.cat([self.last[ids], last], dim=1), best.unsqueeze(-1), dim=1)

    def step(self, ids: Tensor, tokens: Tensor, parents: Tensor) -> None:
        """The beams that go on: (sentences, beams) each."""
        self.steps.append((ids, tokens, parents))

    def ended(self, ids: Tensor, running: Tensor, length: int) -> Tensor:
        """Which sentences nothing can be added to: as early_stopping defines it."""
        config, prompt = self.config, self.prompt.shape[1]
        hopeful = config.early_stopping == "never" and config.length_penalty > 0.0
        longest = config.max_length - prompt if hopeful else length - prompt
        possible = running[:, :1] / longest**config.length_penalty
        scores, filled = self.scores[ids], self.filled[ids]
        worst = torch.where(filled, scores.amin(dim=1, keepdim=True), IMPOSSIBLE)
        self.open[ids] &= (possible > worst).any(dim=1)
        ended = ~self.open[ids]
        return ended | filled.all(dim=1) if config.early_stopping is True else ended

    def result(self) -> Any:
        """The best num_return_sequences of each sentence, as generate() returns them."""
        config, wanted = self.config, self.config.num_return_sequences
        step, token, beam = self.last[:, :wanted].unbind(dim=-1)
        total = int(step.max()) + 1
        # As in Transformers: a padding token with id 0 counts as none.
        pad, ends = config._pad_token_tensor, config._eos_token_tensor
        fill = int(pad or ends[0]) if ends is not None else -1
        tokens = self.prompt.new_full((*step.shape, total), fill)
        origins = self.prompt.new_full((*step.shape, total), -1)
        first = torch.arange(len(self.prompt), device=step.device).unsqueeze(-1) * self.beams
        for at in range(total - 1, -1, -1):
            ids, step_tokens, step_parents = self.steps[at]
            all_tokens, all_parents = self.last.new_zeros(2, len(self.prompt), self.beams)
            all_tokens[ids], all_parents[ids] = step_tokens, step_parents
            here = step == at
            parent = torch.where(here, beam, all_parents.gather(1, beam))
            tokens[..., at] = torch.where(here, token, all_tokens.gather(1, beam)).where(step >= at, fill)
            origins[..., at] = (parent + first).where(step >= at, -1)
            beam = torch.where(step >= at, parent, beam)
        prompt = self.prompt.unsqueeze(1).expand(-1, wanted, -1)
        sequences = torch.cat([prompt, tokens], dim=-1).flatten(0, 1)
        if not config.return_dict_in_generate:
            return sequences
        scores = self.scores[:, :wanted].flatten()
        found: dict[str, Any] = {"sequences": sequences, "sequences_scores": scores}
        return GenerateBeamEncoderDecoderOutput(**found, beam_indices=origins.flatten(0, 1).int())  # type: ignore[arg-type]
