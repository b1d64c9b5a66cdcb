"""The trellis of a beam search with recombination, whole: its nodes, the tokens between them, and where it ends.

Reference: thesis on monolingual data, section 4.1.2. Q of a node is the sum over all paths to it; Z is the sum over all
finished paths. Here is the graph alone: scores of it that have gradients are computed by who needs them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import EosTokenCriteria

from hf_mlnmt.search.hypotheses import IMPOSSIBLE, Recombination, SearchBatch, continuations, is_possible
from hf_mlnmt.search.rules import Rules
from hf_mlnmt.search.source import Source

History = tuple[int, ...]
Arc = tuple[int, int, int]  # parent, token, child; child END for a finished path
END = -1


@dataclass
class Trellis:
    """Of one sentence: `nodes[t]` are the histories of t tokens that stand for all paths to them, the first the root's.

    `arcs[t]`: from nodes[t] to nodes[t + 1], by their places.
    """

    nodes: list[list[History]] = field(default_factory=lambda: [[()]])
    arcs: list[list[Arc]] = field(default_factory=list)

    def pruned(self) -> Trellis:
        """Without the nodes that no finished path goes through."""
        kept: list[set[int]] = [set() for _ in self.nodes]
        for level in range(len(self.arcs) - 1, -1, -1):
            alive = kept[level + 1] if level + 1 < len(kept) else set()
            kept[level] = {parent for parent, _, child in self.arcs[level] if child == END or child in alive}
        kept[0].add(0)
        order = [{node: place for place, node in enumerate(sorted(some))} for some in kept]
        nodes = [[self.nodes[level][node] for node in places] for level, places in enumerate(order)]
        arcs = []
        for level, some in enumerate(self.arcs):
            after = order[level + 1] if level + 1 < len(order) else {}
            arcs.append(
                [
                    (order[level][parent], token, END if child == END else after[child])
                    for parent, token, child in some
                    if parent in order[level] and (child == END or child in after)
                ]
            )
        return Trellis(nodes, arcs)

    def has(self, path: list[int]) -> bool:
        """Whether a path that ends with its last token goes through the trellis."""
        node = 0
        for level, token in enumerate(path):
            if level >= len(self.arcs):
                return False
            wanted = level + 1 == len(path)
            found = [
                child
                for parent, other, child in self.arcs[level]
                if parent == node and other == token and (child == END) == wanted
            ]
            if not found:
                return False
            node = found[0]
        return bool(path)


@torch.no_grad()
def build_trellis(
    decoder: Any,
    source: Source,
    prompt: Tensor,
    ends: list[int],
    beams: int,
    k: int,
    longest: int,
    tolerance: float = 0.0,
) -> list[Trellis]:
    """A beam search with recombination that keeps everything.

    Args:
        decoder: a `Decoder` (decoder.py). prompt: (sentences, length), a start token each.
        ends: tokens that end a path. beams, k: as in generate(); longest: no path has more tokens, its end counted.
        tolerance: a sentence is done when its open beams have together less than this part of Z; 0: never before
            `longest`.

    Returns: a trellis for each sentence.
    """
    batch = SearchBatch(decoder, source, beams)
    rules = Rules(LogitsProcessorList(), [EosTokenCriteria(eos_token_id=ends)])
    running = prompt.new_full((len(prompt), beams), IMPOSSIBLE, dtype=torch.float32)
    running[:, 0] = 0.0
    joined = Recombination(k, prompt, running, batch.scale)
    total = prompt.new_full((len(prompt), 1), -torch.inf, dtype=torch.float32)  # log Z / scale
    found = [_Builder() for _ in prompt]
    scores = batch.begin(prompt)  # (sentences, 1, vocabulary)
    history = prompt.unsqueeze(1)  # nothing reads it
    for length in range(1, longest + 1):
        chosen, stands = joined.groups(running)
        running = joined.join(running)
        for row, sentence in enumerate(batch.ids.tolist()):
            found[sentence].join(chosen[row].tolist(), stands[row].tolist())
        count = min(max(2, 1 + len(ends)) * beams, beams * scores.shape[-1])
        sums, parents, tokens = continuations(rules, history, scores, decoder.normalized, running, count)
        over, real = torch.isin(tokens, torch.tensor(ends, device=tokens.device)), is_possible(sums)
        finished = (over & real)[:, :beams]
        for row, place in finished.nonzero().tolist():
            found[int(batch.ids[row])].finish(int(parents[row, place]), int(tokens[row, place]))
        if length == longest:
            break
        ended = sums[:, :beams].masked_fill(~finished, -torch.inf)
        total = (batch.scale * torch.cat([total, ended], 1)).logsumexp(1, keepdim=True) / batch.scale
        before, (running, best) = running, (sums + over * IMPOSSIBLE).topk(beams)
        tokens, parents = tokens.gather(1, best), parents.gather(1, best)
        joined.follow(running - before.gather(1, parents), tokens, parents)
        open_ = is_possible(running)
        if tolerance:
            left = joined.together(running.masked_fill(~open_, -torch.inf))
            open_ &= left > total + math.log(tolerance) / batch.scale
            running = running.masked_fill(~open_, IMPOSSIBLE)
        for row, sentence in enumerate(batch.ids.tolist()):
            found[sentence].expand(parents[row].tolist(), tokens[row].tolist(), open_[row].tolist())
        going = open_.any(1)
        if not going.any():
            break
        if not going.all():
            rows = going.nonzero()[:, 0]
            batch.keep(rows)
            joined.keep(rows)
            running, tokens, parents, total = running[rows], tokens[rows], parents[rows], total[rows]
            history = history[rows]
        scores = batch.step(tokens, parents)
    return [one.trellis.pruned() for one in found]


class _Builder:
    """The trellis of a sentence while it is searched."""

    def __init__(self) -> None:
        self.trellis = Trellis()
        self.places: dict[int, int] = {0: 0}  # beam -> its node among those of the last step
        self.coming: dict[int, tuple[int, int]] = {}  # beam -> parent's node and token

    def join(self, chosen: list[int], stands: list[bool]) -> None:
        """Make the nodes that the beams come to: chosen[i] stands for beam i."""
        if not self.trellis.arcs:
            self.trellis.arcs.append([])
            return
        before = self.trellis.nodes[-1]
        nodes: list[History] = []
        self.places = {}
        for beam, (parent, token) in self.coming.items():
            if stands[beam]:
                self.places[beam] = len(nodes)
                nodes.append((*before[parent], token))
        arcs = [(parent, token, self.places[chosen[beam]]) for beam, (parent, token) in self.coming.items()]
        self.trellis.arcs[-1] += arcs
        self.trellis.nodes.append(nodes)
        self.trellis.arcs.append([])

    def expand(self, parents: list[int], tokens: list[int], alive: list[bool]) -> None:
        """Beam i goes on from beam parents[i]."""
        moves = enumerate(zip(parents, tokens, alive))
        self.coming = {beam: (self.places[parent], token) for beam, (parent, token, open_) in moves if open_}

    def finish(self, parent: int, token: int) -> None:
        """A path ends behind this beam."""
        self.trellis.arcs[-1].append((self.places[parent], token, END))
