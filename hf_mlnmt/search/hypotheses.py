"""The beams of a search: open hypotheses, the best finished ones, and the steps from which sequences are rebuilt.

| class | what it holds |
| --- | --- |
| Hypotheses | the open beams and the finished hypotheses of every sentence |
| Chains | independent hypotheses: of greedy search and of draws |
| Record | tokens and parents of each step, for the whole batch: sequences are rebuilt at the end |

The rules (strategies.py) are those of `GenerationMixin._update_finished_beams` and `_check_early_stop_heuristic`. With
`early_stopping` True a sentence is closed once `num_beams` hypotheses are finished; with "never" (4) scores its best
beam at the longest length, where the penalty favours length.

`Hypotheses` and `Chains` change tensors in place and read no value: CUDA graphs can repeat that (static_shapes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput

IMPOSSIBLE = -1.0e9  # Transformers' score of beams and tokens that must not be chosen


def is_possible(sums: Tensor) -> Tensor:
    """Tells which sums are of real hypotheses: a beam that was joined to another or never began has `IMPOSSIBLE`."""
    return sums > IMPOSSIBLE / 2


def length_penalties(config: Any, length: int, longest: int) -> tuple[float, float]:
    """Returns the divisors of sums of log P: length^length_penalty for a hypothesis that is finished now, and for the
    bound on open ones the same, or with early_stopping="never" and length_penalty > 0 that of the longest length.

    `Hypotheses` divides by these; cpu/search.c and gpu/kernels.py divide by tables of them for all lengths, which
    cpu/one_sentence.py and gpu/static_shapes.py make.
    """
    hopeful = config.early_stopping == "never" and config.length_penalty > 0.0
    return length**config.length_penalty, (longest if hopeful else length) ** config.length_penalty


def normalized(log_probability: Any, penalty: Any, length: Any) -> Any:
    """Returns a hypothesis's score, as `Hypotheses.finish` computes it: log P / length^penalty."""
    return log_probability / length**penalty


def onward(sums: Tensor, last: Tensor, count: int, out: Any = None) -> Any:
    """Returns sums and indices, as topk, of the `count` best candidates; those that end (`last`) rank below others."""
    return torch.topk(torch.add(sums, last, alpha=IMPOSSIBLE), count, out=out)


class Hypotheses:
    """The open and finished hypotheses of each sentence, in tensors (sentences, beams).

    running: sums of log P of open beams. best: scores of finished ones, the best first, minus infinity where there is
    none yet. last: the number of the candidate that ended each (see `Record`). open (sentences,): search goes on.
    """

    def __init__(self, sentences: int, beams: int, early: bool, device: Any):
        """Allocates the tensors; `early`: whether early_stopping is True."""
        self.early, shape = early, (sentences, beams)
        self.running, self.best = torch.empty(2, *shape, dtype=torch.float32, device=device).unbind()
        self.last, self.order = torch.empty(2, *shape, dtype=torch.long, device=device).unbind()
        self.open = torch.empty(sentences, dtype=torch.bool, device=device)
        self.nothing = torch.tensor(-torch.inf, dtype=torch.float32, device=device)
        self.begin(sentences)

    def begin(self, real: int) -> None:
        """Resets all tensors for a new search; rows from `real` on are padding, and their search is closed."""
        self.running.fill_(IMPOSSIBLE)[:, 0] = 0.0  # beams are equal at first: all but one are impossible
        self.best.fill_(-torch.inf)
        self.last.fill_(-1)
        self.open.fill_(True)[real:] = False

    def move_to(self, other: Any, rows: Tensor, real: int) -> None:
        """Copies the given rows to all rows of `other`, where rows from `real` on are padding, and are closed."""
        for name in ("running", "best", "last", "open"):
            torch.index_select(getattr(self, name), 0, rows, out=getattr(other, name))
        other.open[real:] = False

    def go_on(self, sums: Tensor, last: Tensor) -> Tensor:
        """Turns the best candidates that do not end into the next open beams; returns their indices.

        sums, last: (sentences, candidates), the best first; last: the token ends the hypothesis.
        """
        return onward(sums, last, self.order.shape[1], (self.running, self.order)).indices

    def finish(self, sums: Tensor, numbers: Tensor, over: Tensor, penalty: Any) -> None:
        """Merges the candidates (sentences, beams) that end (`over`) into the finished ones, scored sums / penalty."""
        new = torch.where(over & self.open.unsqueeze(1), sums / penalty, self.nothing)
        torch.topk(torch.cat([self.best, new], 1), new.shape[1], out=(self.best, self.order))
        torch.gather(torch.cat([self.last, numbers], 1), 1, self.order, out=self.last)

    def close(self, highest: Tensor, hope: Any) -> None:
        """Closes sentences where `highest` / `hope`, the bound on open beams (sentences,), is not above the worst
        finished score, and, if early_stopping is True, those with `beams` finished hypotheses."""
        worst = self.best[:, -1]
        self.open &= highest / hope > worst
        if self.early:
            self.open &= worst == -torch.inf


class Chains:
    """Independent hypotheses. going (sentences, width): which are open; open (sentences,): whether one of them is."""

    def __init__(self, sentences: int, width: int, pad_token: Any, device: Any):
        self.going = torch.empty(sentences, width, dtype=torch.bool, device=device)
        self.open = self.going.view(-1) if width == 1 else torch.empty_like(self.going[:, 0])
        self.pad_token = pad_token
        self.begin(sentences)

    def begin(self, real: int) -> None:
        """Opens the hypotheses of the first `real` sentences and closes the others, which are padding."""
        self.going.fill_(True)[real:] = False
        self.open.fill_(True)[real:] = False

    def move_to(self, other: Any, rows: Tensor, real: int) -> None:
        """Copies the first `real` of the given rows to `other`, whose rows after these are padding, and are closed."""
        other.begin(real)
        other.going[:real] = self.going[rows[:real]]

    def padded(self, tokens: Tensor) -> Tensor:
        """Returns the tokens (sentences, width), replaced by the padding token where the hypothesis has ended."""
        return torch.where(self.going, tokens, self.pad_token)

    def close(self, last: Tensor) -> None:
        """Closes the hypotheses where `last` (sentences, width) is True."""
        torch.gt(self.going, last, out=self.going)
        if self.going.shape[1] > 1:
            torch.any(self.going, 1, out=self.open)


class Record:
    """The tokens chosen in each step, of all sentences of a batch, and their finished hypotheses.

    steps: for each step the numbers of the sentences still in the batch (here,), their tokens and parent beams (here,
    width). best, last: as in `Hypotheses`, of all sentences; a candidate's number is (step x width + parent beam) x
    columns + token, where `columns` is the size of the vocabulary.
    """

    def __init__(self, prompt: Tensor, width: int, config: Any):
        self.prompt, self.width, self.config = prompt, width, config
        self.best = prompt.new_full((len(prompt), width), -torch.inf, dtype=torch.float32)
        self.last = prompt.new_full((len(prompt), width), -1)
        self.columns = 1
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []

    def write(self, ids: Tensor, best: Tensor, last: Tensor, columns: int) -> None:
        """Stores scores and last candidates of the finished hypotheses of the sentences `ids`."""
        self.best[ids], self.last[ids], self.columns = best, last, columns

    def beams(self) -> Any:
        """Returns the best num_return_sequences of each sentence, as generate() does after a beam search."""
        wanted = self.config.num_return_sequences
        scores, last = self.best[:, :wanted], self.last[:, :wanted]
        step = torch.where(scores > -torch.inf, last // (self.width * self.columns), -1)
        ends = torch.stack([step, last % self.columns, last // self.columns % self.width], -1)
        steps = last.new_zeros(len(self.prompt), len(self.steps), 2, self.width)
        for at, ids, tokens, parents in self.stretches():
            steps[ids, at : at + tokens.shape[1]] = torch.stack([tokens, parents], 2)
        return read_off(self.prompt, steps, ends, scores, self.config)

    def chains(self) -> Any:
        """Returns all sequences, as generate() does after a search without beams."""
        prompt = self.prompt.repeat_interleave(self.width, 0)
        return sampled(torch.cat([prompt, self.chosen()], dim=1), self.config)

    def chosen(self) -> Tensor:
        """Returns the tokens of all steps (sentences x width, steps), with padding after the end of a hypothesis."""
        shape = len(self.prompt), len(self.steps), self.width
        columns = self.prompt.new_zeros(shape) + pad_token_of(self.config, self.prompt.device)
        for at, ids, tokens, _ in self.stretches():
            columns[ids, at : at + tokens.shape[1]] = tokens
        return columns.transpose(1, 2).flatten(0, 1)

    def stretches(self) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Yields for each run of steps with the same sentences: its first step, the sentences' ids, tokens and parents
        (here, steps, width)."""
        at = 0
        for _, steps in groupby(self.steps, lambda step: id(step[0])):
            ids, tokens, parents = zip(*steps)
            yield at, ids[0], torch.stack(tokens, 1), torch.stack(parents, 1)
            at += len(ids)


def pad_token_of(config: Any, device: torch.device) -> Any:
    """Returns the padding token, which follows a hypothesis's end, as a tensor without dimensions; 0 without one."""
    return 0 if config._pad_token_tensor is None else config._pad_token_tensor.to(device)


def blank_of(config: Any) -> int:
    """Returns the token that fills shorter hypotheses: padding, else the first end token, else -1."""
    pad, ends = config._pad_token_tensor, config._eos_token_tensor
    return int(pad) if pad is not None else -1 if ends is None else int(ends[0])


def sampled(sequences: Any, config: Any) -> Any:
    """Returns sequences (rows, length) as generate() does after a search without beams."""
    return GenerateEncoderDecoderOutput(sequences=sequences) if config.return_dict_in_generate else sequences


def read_off(prompt: Tensor, steps: Tensor, ends: Tensor, scores: Tensor, config: Any) -> Any:
    """Rebuilds hypotheses by following parent beams back from their ends; returns generate()'s result for beams.

    Args:
        prompt: (sentences, length). scores: of each hypothesis, (sentences, returned). config: the generation config.
        steps: tokens and parents of all beams in each step, (sentences, steps, 2, beams).
        ends: step, token and parent beam of each hypothesis' end, (sentences, returned, 3); step -1: no hypothesis.
    """
    table, blank, returned = steps.cpu().numpy(), blank_of(config), ends.shape[1]
    last, token, beam = ends.flatten(0, 1).cpu().numpy().T
    sentence = np.arange(len(last)) // returned
    found = np.empty((2, len(last), last.max() + 1), dtype=np.int64)  # [0]: tokens, [1]: rows of beams
    for at in reversed(range(found.shape[2])):
        chosen, parent = table[sentence, min(at, table.shape[1] - 1), :, beam].T
        beam = np.where(at < last, parent, beam)
        found[:, :, at] = np.where(at < last, chosen, token), beam + sentence * table.shape[3]
        found[:, at > last, at] = [[blank], [-1]]
    tokens, beams = torch.from_numpy(found).to(prompt.device)
    sequences: Any = torch.cat([prompt.repeat_interleave(returned, 0), tokens], 1)
    if not config.return_dict_in_generate:
        return sequences
    return GenerateBeamEncoderDecoderOutput(
        sequences=sequences, sequences_scores=scores.flatten(), beam_indices=beams.int()
    )
