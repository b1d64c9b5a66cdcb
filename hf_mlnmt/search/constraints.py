"""Beam search for hypotheses that contain given phrases: vectorised dynamic beam allocation.

References: Post and Vilar 2018, "Fast Lexically Constrained Decoding with Dynamic Beam Allocation for Neural Machine
Translation"; Hu et al. 2019, "Improved Lexically Constrained Decoding for Translation and Monolingual Rewriting".

A constraint is met when one of its alternatives, each a sequence of tokens, is somewhere in the hypothesis; a
constraint that is asked for n times, when n alternatives are. The state of a hypothesis is a node of its sentence's
automaton (Aho and Corasick 1975: a trie of all alternatives with failure links) and how often it has met each
constraint. Its bank is its number of constraint tokens: for each time a constraint is met the length of its longest
alternative, plus the tokens so far of an alternative that is begun.

A step, over all sentences together:
1. Candidates are the width + end tokens best tokens of every beam, and all tokens of the sentence's constraints.
2. A token that would end a hypothesis before all constraints are met is no candidate.
3. The candidates of each bank are ranked by score. Beams go to the best candidate of every bank, then to every second
   best, and so on, the fullest bank first; a bank with too few candidates leaves its beams to the others.
4. Chosen candidates that end are finished hypotheses, as in `BeamSearch`; the next beams are the others in that order.

A sentence without constraints has one bank, and step 3 is the order of the scores: plain beam search. The search of a
sentence with constraints ends as soon as no open beam can be among the hypotheses that are returned, by the bound of
`early_stopping`: few beams are in the fullest bank, and `num_beams` finished hypotheses would need many more steps.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.search.hypotheses import IMPOSSIBLE, is_possible
from hf_mlnmt.search.loop import SearchBatch
from hf_mlnmt.search.rules import Phrase, Rules
from hf_mlnmt.search.strategies import BeamSearch, Candidates, best_continuations, log_softmax


class Automaton(NamedTuple):
    """The automata, of all sentences and padded to one size, that track which constraints a hypothesis has met.

    `alphabet` (sentences, symbols): tokens, -1 for padding; `goto` (sentences, nodes, 1 + symbols): the next node,
    symbol 0 for all other tokens; `met` (sentences, nodes, constraints): whether an alternative of the constraint ends
    at the node; `begun` (the same shape): how many tokens of an alternative lead to the node; `sizes` (sentences,
    constraints): length of the longest alternative, 0 for padding; `times` (the same shape): how often to be met.
    """

    alphabet: Tensor
    goto: Tensor
    met: Tensor
    begun: Tensor
    sizes: Tensor
    times: Tensor

    @classmethod
    def of(cls, asked: Sequence[Sequence[Sequence[Phrase]]], device: torch.device) -> "Automaton":
        counted = [Counter(tuple(map(tuple, constraint)) for constraint in constraints) for constraints in asked]
        sentences = [list(constraints) for constraints in counted]
        built = [_build(constraints) for constraints in sentences]
        symbols = max(1, *(len(alphabet) for alphabet, _ in built))
        nodes = max(len(rows) for _, rows in built)
        most = max(1, *(len(constraints) for constraints in sentences))
        alphabet = torch.full((len(built), symbols), -1)
        goto = torch.zeros(len(built), nodes, 1 + symbols, dtype=torch.long)
        met = torch.zeros(len(built), nodes, most, dtype=torch.bool)
        begun = torch.zeros(len(built), nodes, most, dtype=torch.long)
        sizes, times = torch.zeros(2, len(built), most, dtype=torch.long)
        for number, (constraints, (tokens, rows)) in enumerate(zip(sentences, built, strict=True)):
            alphabet[number, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
            for at, constraint in enumerate(constraints):
                sizes[number, at] = max(map(len, constraint))
                times[number, at] = counted[number][constraint]
            for node, (following, ends, depths) in enumerate(rows):
                goto[number, node, 1 : 1 + len(tokens)] = torch.tensor(following, dtype=torch.long)
                for constraint_met in ends:
                    met[number, node, constraint_met] = True
                for constraint_begun, depth in depths.items():
                    begun[number, node, constraint_begun] = depth
        return cls(*(part.to(device) for part in (alphabet, goto, met, begun, sizes, times)))

    def follow(self, nodes: Tensor, met: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Follows tokens from nodes, (sentences, any) each; returns the nodes reached, and how often each constraint is
        then met, at most `times`: (sentences, any, constraints)."""
        same = tokens.unsqueeze(-1) == self.alphabet.unsqueeze(1)  # (sentences, any, symbols)
        symbols = torch.where(same.any(-1), 1 + same.int().argmax(-1), 0)
        sentence = torch.arange(len(nodes), device=nodes.device).unsqueeze(-1)
        nodes = self.goto[sentence, nodes, symbols]
        return nodes, torch.minimum(met + self.met[sentence, nodes], self.times.unsqueeze(1))

    def banks(self, nodes: Tensor, met: Tensor) -> Tensor:
        """Returns the bank of each hypothesis, its number of constraint tokens: (sentences, any)."""
        sentence = torch.arange(len(nodes), device=nodes.device).unsqueeze(-1)
        begun = self.begun[sentence, nodes].masked_fill(self.all_met(met), 0)
        return (met * self.sizes.unsqueeze(1)).sum(-1) + begun.amax(-1)

    def all_met(self, met: Tensor) -> Tensor:
        """Tells which constraints are met as often as was asked for: (sentences, any, constraints)."""
        return met >= self.times.unsqueeze(1)

    def keep(self, sentences: Tensor) -> "Automaton":
        """Returns the automata of the given sentences (indices)."""
        return Automaton(*(part[sentences] for part in self))


def _build(
    constraints: Sequence[Sequence[Phrase]],
) -> tuple[list[int], list[tuple[list[int], set[int], dict[int, int]]]]:
    """Returns a sentence's alphabet, and of each node: the next node by symbol, the constraints met there, and for each
    constraint begun there the number of its tokens so far."""
    tokens = sorted({token for constraint in constraints for phrase in constraint for token in phrase})
    children: list[dict[int, int]] = [{}]
    ends: list[set[int]] = [set()]
    depths: list[dict[int, int]] = [{}]
    for number, constraint in enumerate(constraints):
        for phrase in constraint:
            node = 0
            for depth, token in enumerate(phrase, start=1):
                if token not in children[node]:
                    children[node][token] = len(children)
                    children.append({})
                    ends.append(set())
                    depths.append({})
                node = children[node][token]
                depths[node][number] = depth
            ends[node].add(number)
    falls, goto = [0] * len(children), [[0] * len(tokens) for _ in children]
    waiting = deque([0])
    while waiting:  # breadth first: a node's failure link leads to a less deep node, which is computed before
        node = waiting.popleft()
        for symbol, token in enumerate(tokens):
            behind = goto[falls[node]][symbol] if node else 0
            child = children[node].get(token)
            goto[node][symbol] = behind if child is None else child
            if child is not None:
                falls[child] = behind
                begun = {number: depth for number, depth in depths[child].items() if number not in ends[child]}
                depths[child] = {**depths[behind], **begun}
                ends[child] |= ends[behind]
                waiting.append(child)
    return tokens, list(zip(goto, ends, depths, strict=True))


def allocated(sums: Tensor, banks: Tensor) -> Tensor:
    """Returns candidates' indices in the order in which step 3 gives them beams; all are (sentences, candidates)."""
    by_score = sums.argsort(dim=1, descending=True, stable=True)
    possible = is_possible(sums).gather(1, by_score)
    banks = torch.where(possible, banks.gather(1, by_score), -1)  # impossible candidates: bank -1
    by_bank = banks.argsort(dim=1, descending=True, stable=True)
    banks = banks.gather(1, by_bank)
    places = torch.arange(sums.shape[1], device=sums.device).expand_as(banks)
    first = torch.ones_like(banks, dtype=torch.bool)
    first[:, 1:] = banks[:, 1:] != banks[:, :-1]
    ranks = places - torch.where(first, places, 0).cummax(dim=1).values
    ranks = torch.where(banks < 0, sums.shape[1], ranks)
    return by_score.gather(1, by_bank.gather(1, ranks.argsort(dim=1, stable=True)))


class Constrained(BeamSearch):
    """Beam search for hypotheses that meet all constraints; a beam has its node and how often it met each constraint.

    Raises: UserError for one beam, with recombination or groups, or for constraints of another number of sentences.
    """

    counts_impossible = False

    def __init__(self, batch: SearchBatch, prompt: Tensor, rules: Rules, config: Any):
        if config.num_beams == 1 or any(getattr(config, name, None) is not None for name in ("recombine", "groups")):
            raise UserError(
                "terms, or constraints: need several beams (num_beams, --beams), without recombine or groups."
            )
        sentences = rules.constraints or []
        if len(sentences) != len(prompt):
            raise UserError(f"constraints of {len(sentences)} sentences for {len(prompt)}.")
        super().__init__(batch, prompt, rules, config)
        self.automaton = Automaton.of(sentences, prompt.device)
        self.nodes = prompt.new_zeros(len(prompt), batch.width)
        # (sentences, width, constraints)
        self.met = torch.zeros_like(self.automaton.sizes).unsqueeze(1).expand(-1, batch.width, -1)

    def candidates(self, scores: Tensor, running: Tensor, history: Tensor) -> Candidates:
        width = self.batch.width
        log_probs = scores if self.batch.decoder.normalized else log_softmax(scores)
        log_probs = self.rules.process(history, log_probs.expand(-1, width, -1))  # (sentences, width, vocabulary)
        of_beam = width + len(self.rules.ends)
        sums, tokens = _candidates(log_probs, self.automaton.alphabet, of_beam)  # (sentences, width, candidates)
        sums = (sums + running.unsqueeze(-1)).flatten(1)
        beams = torch.arange(width, device=sums.device).repeat_interleave(tokens.shape[2]).expand_as(sums)
        tokens = tokens.flatten(1)
        nodes, met = self.automaton.follow(self.nodes.gather(1, beams), _of_parents(self.met, beams), tokens)
        unmet = ~self.automaton.all_met(met).all(-1)
        sums = sums.masked_fill(self.rules.is_last(tokens, self.length) & unmet, -torch.inf)
        order = allocated(sums, self.automaton.banks(nodes, met))
        self.following = nodes.gather(1, order), _of_parents(met, order)
        return sums.gather(1, order), beams.gather(1, order), tokens.gather(1, order)

    def go_on(self, sums: Tensor, last: Tensor) -> Tensor:
        """Turns the first candidates that do not end into the next open beams, in order; returns their indices."""
        places = last.int().argsort(dim=1, stable=True)[:, : self.batch.width]
        running = sums.masked_fill(last | ~is_possible(sums), IMPOSSIBLE)
        torch.gather(running, 1, places, out=self.beams.running)
        return places

    def follow(self, places: Tensor, beams: Tensor, tokens: Tensor) -> None:
        self.nodes, self.met = self.following[0].gather(1, places), _of_parents(self.following[1], places)

    def highest(self) -> Tensor:
        running = self.beams.running
        return running.masked_fill(~is_possible(running), -torch.inf).amax(1)

    def close(self) -> Tensor:
        """Closes sentences as `BeamSearch` does, and those with constraints as soon as no open beam can be among the
        hypotheses returned; returns which stay open."""
        open_ = super().close()
        worst = self.beams.best[:, self.config.num_return_sequences - 1]
        open_ &= ~self.automaton.sizes.any(1) | (self.highest() / self.length_penalties()[1] > worst)
        return open_

    def keep(self, sentences: Tensor) -> None:
        super().keep(sentences)
        self.automaton = self.automaton.keep(sentences)
        self.nodes, self.met = self.nodes[sentences], self.met[sentences]


def _candidates(log_probs: Tensor, alphabet: Tensor, of_beam: int) -> tuple[Tensor, Tensor]:
    """Returns log P and tokens (sentences, width, candidates): the `of_beam` best of every beam, then the alphabet's
    tokens, with minus infinity where a token is padding or already among the best."""
    sentences, width, vocabulary = log_probs.shape
    rows = log_probs.reshape(-1, 1, vocabulary)
    best, _, tokens = best_continuations(rows, rows.new_zeros(len(rows), 1), min(of_beam, vocabulary))
    best, tokens = best.view(sentences, width, -1), tokens.view(sentences, width, -1)
    asked = alphabet.unsqueeze(1).expand(-1, width, -1)  # (sentences, width, symbols)
    values = log_probs.gather(2, asked.clamp(min=0))
    there = (asked.unsqueeze(-1) == tokens.unsqueeze(-2)).any(-1) | (asked < 0)
    return torch.cat([best, values.masked_fill(there, -torch.inf)], dim=-1), torch.cat([tokens, asked.clamp(min=0)], -1)


def _of_parents(met: Tensor, parents: Tensor) -> Tensor:
    """Gathers met (sentences, any, constraints) at the indices `parents` (sentences, more)."""
    return met.gather(1, parents.unsqueeze(-1).expand(-1, -1, met.shape[2]))
