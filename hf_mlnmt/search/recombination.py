"""Recombination: joins beams of a sentence that share their last k tokens before each step; builds the trellis of it.

Reference: thesis on monolingual data, section 4.1.2, "Limited context assumption and trellis computation". A model that
sees k tokens continues two hypotheses with the same last k tokens in the same way: their probabilities are added up,
and the better path of the two represents both. For other models that is an approximation. k = 0 joins all beams.

The trellis of a search is a graph: nodes (joined hypotheses), arcs with their tokens, and ends of paths. Q of a node is
the sum over all paths to it; Z is the sum over all finished paths. This file builds the graph (`build_trellis`);
training/fusion_objectives.py computes its scores, with gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import EosTokenCriteria

from hf_mlnmt.search.decoder import SourceBatch, gather_beams
from hf_mlnmt.search.hypotheses import IMPOSSIBLE, is_possible
from hf_mlnmt.search.loop import SearchBatch, search
from hf_mlnmt.search.rules import Rules
from hf_mlnmt.search.strategies import BeamSearch, Candidates

History = tuple[int, ...]
Arc = tuple[int, int, int]  # parent, token, child; child END for a finished path
END = -1


class Recombined(BeamSearch):
    """Beam search that joins beams with the same last k tokens before each step, by a `Recombination`."""

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
    """The last k tokens of every beam, and the sum of log P of the single path that represents it."""

    def __init__(self, k: int, prompt: Tensor, running: Tensor, scale: float = 1.0):
        """Stores the prompt (sentences, length) of all beams and their sums `running` (sentences, beams).

        scale: exp(scale x sum) is the probability that is added up; for scores of a fused model by (4.4) it is alpha.
        """
        missing = max(k - prompt.shape[1], 0)
        # A prompt shorter than k tokens is padded with -1.
        recent = torch.nn.functional.pad(prompt, (missing, 0), value=-1)[:, missing + prompt.shape[1] - k :]
        self.k, self.scale = k, scale
        self.recent = recent.unsqueeze(1).expand(-1, running.shape[1], -1)  # (sentences, beams, k)
        self.paths = running  # (sentences, beams): sums of the single paths

    def groups(self, running: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the representative of each beam, and whether the beam is its own: (sentences, beams) each.

        The representative of beams with the same last k tokens is the one with the best path, the first of equals.
        """
        alive = is_possible(running)
        same = (self.recent.unsqueeze(2) == self.recent.unsqueeze(1)).all(-1)  # (sentences, beams, beams)
        same &= alive.unsqueeze(1) & alive.unsqueeze(2)
        paths = self.paths.unsqueeze(1).masked_fill(~same, -torch.inf)
        places = torch.arange(running.shape[1], device=running.device)
        chosen = torch.where(alive, paths.argmax(-1), places)
        return chosen, alive & (chosen == places)

    def join(self, running: Tensor) -> Tensor:
        """Returns sums (sentences, beams) in which each representative has the log of the added probabilities of the
        beams joined to it, and all other beams are impossible."""
        chosen, stands = self.groups(running)
        possible = (self.scale * running).masked_fill(~is_possible(running), -torch.inf)
        members = chosen.unsqueeze(1) == torch.arange(running.shape[1], device=running.device).view(1, -1, 1)
        sums = possible.unsqueeze(1).masked_fill(~members, -torch.inf).logsumexp(-1)  # over joined beams
        return torch.where(stands, sums / self.scale, IMPOSSIBLE)

    def together(self, running: Tensor) -> Tensor:
        """Returns the log of the added probabilities of all beams: (sentences, beams) -> (sentences, 1)."""
        return (self.scale * running).logsumexp(1, keepdim=True) / self.scale

    def follow(self, scores: Tensor, tokens: Tensor, parents: Tensor) -> None:
        """Replaces beam i by its parent beam parents[b, i] plus a token with its score: (sentences, beams) each."""
        self.paths = self.paths.gather(1, parents) + scores
        if self.k:
            recent = gather_beams(self.recent.contiguous(), parents)
            self.recent = torch.cat([recent, tokens.unsqueeze(-1)], dim=-1)[..., 1:]

    def keep(self, sentences: Tensor) -> None:
        """Drops all sentences but the given ones (indices)."""
        self.recent, self.paths = self.recent[sentences], self.paths[sentences]


@dataclass
class Trellis:
    """The trellis of one sentence: a graph of joined hypotheses (nodes) and tokens (arcs).

    nodes: `nodes[t]` are histories of t tokens, each the best of the paths to its node; nodes[0] is the root.
    arcs: `arcs[t]` lead from nodes[t] to nodes[t + 1], given by their indices; `arcs` is as long as `nodes`.
    """

    nodes: list[list[History]] = field(default_factory=lambda: [[()]])
    arcs: list[list[Arc]] = field(default_factory=lambda: [[]])

    def pruned(self) -> Trellis:
        """Returns the trellis without nodes through which no finished path goes."""
        nodes: list[list[History]] = []
        arcs: list[list[Arc]] = []
        after = {END: END}  # nodes of the next level that are kept: old index -> new index
        for histories, leading in zip(reversed(self.nodes), reversed(self.arcs), strict=True):
            leading = [(parent, token, after[child]) for parent, token, child in leading if child in after]
            kept = {parent for parent, _, _ in leading} | ({0} if histories == [()] else set())  # the root stays
            places = {node: place for place, node in enumerate(sorted(kept))}
            nodes.append([histories[node] for node in places])
            arcs.append([(places[parent], token, child) for parent, token, child in leading])
            after = {**places, END: END}
        return Trellis(nodes[::-1], arcs[::-1])

    def has(self, path: list[int]) -> bool:
        """Tells whether the trellis has a finished path of just these tokens."""
        node: int | None = 0
        for level, token in enumerate(path):
            is_last = level + 1 == len(path)
            arcs = self.arcs[level] if level < len(self.arcs) else []
            onward = (child for parent, other, child in arcs if (parent, other) == (node, token))
            node = next((child for child in onward if (child == END) == is_last), None)
        return node == END


@torch.no_grad()
def build_trellis(
    decoder: Any, source: SourceBatch, prompt: Tensor, ends: list, beams: int, k: int, longest: int, tolerance: float
) -> list[Trellis]:
    """Builds the trellis of each sentence by a beam search with recombination that records all nodes and arcs.

    Args:
        decoder: a `Decoder` (decoder.py). prompt: (sentences, length), a start token each.
        ends: tokens that end a path. beams: of each sentence. k: beams with the same last k tokens are joined.
        longest: the most tokens of a path, its end included.
        tolerance: a sentence is done when its open beams together have less than this part of Z; 0: only at `longest`.
    """
    batch = SearchBatch(decoder, source, beams)
    rules = Rules(LogitsProcessorList(), [EosTokenCriteria(ends)] if ends else [])
    config: Any = GenerationConfig(num_beams=beams, max_length=prompt.shape[1] + longest)
    config.recombine = k
    return search(batch, prompt, Everything(batch, prompt, rules, config, tolerance))


class Everything(Recombined):
    """Beam search with recombination that records all nodes and finished paths; `result` returns the trellises."""

    def __init__(self, batch: SearchBatch, prompt: Tensor, rules: Rules, config: Any, tolerance: float):
        super().__init__(batch, prompt, rules, config)
        self.tolerance, self.builders = tolerance, [_Builder() for _ in prompt]
        self.total = prompt.new_full((len(prompt), 1), -torch.inf, dtype=torch.float32)  # log Z / scale

    def candidates(self, scores: Tensor, running: Tensor, history: Tensor) -> Candidates:
        chosen, stands = self.joined.groups(running)
        for row, builder in self.here():
            builder.join(chosen[row].tolist(), stands[row].tolist())
        return super().candidates(scores, running, history)

    def finish(self, sums: Tensor, beams: Tensor, tokens: Tensor, over: Tensor) -> None:
        over = over[:, : self.batch.width]
        for row, place in over.nonzero().tolist():
            self.builders[int(self.batch.ids[row])].finish(int(beams[row, place]), int(tokens[row, place]))
        ended = sums[:, : over.shape[1]].masked_fill(~over, -torch.inf)
        self.total = self.joined.together(torch.cat([self.total, ended], 1))

    def follow(self, places: Tensor, beams: Tensor, tokens: Tensor) -> None:
        super().follow(places, beams, tokens)
        open_ = is_possible(self.beams.running)
        if self.tolerance:
            left = self.joined.together(self.beams.running.masked_fill(~open_, -torch.inf))
            open_ &= left > self.total + math.log(self.tolerance) / self.batch.scale
            self.beams.running.masked_fill_(~open_, IMPOSSIBLE)
        for row, builder in self.here():
            builder.expand(beams[row].tolist(), tokens[row].tolist(), open_[row].tolist())
        self.beams.open = open_.any(1) & (self.length < self.config.max_length)

    def close(self) -> Tensor:
        return self.beams.open

    def keep(self, sentences: Tensor) -> None:
        super().keep(sentences)
        self.total = self.total[sentences]

    def here(self) -> Iterator[tuple[int, _Builder]]:
        """Yields the row and the trellis builder of each sentence in the batch."""
        return ((row, self.builders[sentence]) for row, sentence in enumerate(self.batch.ids.tolist()))

    def result(self) -> list[Trellis]:
        return [builder.trellis.pruned() for builder in self.builders]


class _Builder:
    """Builds the trellis of one sentence during its search."""

    def __init__(self) -> None:
        self.trellis = Trellis()
        self.places: dict[int, int] = {0: 0}  # beam -> index of its node in the last level
        self.coming: dict[int, tuple[int, int]] = {}  # beam of the next level -> parent's node and token

    def join(self, chosen: list[int], stands: list[bool]) -> None:
        """Adds a level: a node for each beam that represents itself (`stands`), and from the last level an arc of each
        beam i to the node of its representative, beam chosen[i]."""
        if not self.coming:  # at first there is only the root
            return
        before = self.trellis.nodes[-1]
        nodes: list[History] = []
        self.places = {}
        for beam, (parent, token) in self.coming.items():
            if stands[beam]:
                self.places[beam] = len(nodes)
                nodes.append((*before[parent], token))
        coming = self.coming.items()
        self.trellis.arcs[-1] += [(parent, token, self.places[chosen[beam]]) for beam, (parent, token) in coming]
        self.trellis.nodes.append(nodes)
        self.trellis.arcs.append([])

    def expand(self, parents: list[int], tokens: list[int], alive: list[bool]) -> None:
        """Stores for `join` each open beam's (`alive`) last token and the node of its parent, beam parents[i]."""
        moves = enumerate(zip(parents, tokens, alive))
        self.coming = {beam: (self.places[parent], token) for beam, (parent, token, open_) in moves if open_}

    def finish(self, parent: int, token: int) -> None:
        """Adds the end of a finished path: an arc from the node of beam `parent` by the path's last `token` to END."""
        self.trellis.arcs[-1].append((self.places[parent], token, END))
