"""Draws that share what they have in common: of a sentence's samples each different beginning is computed once.

Of 64 samples of a sentence many begin alike, and some have ended. So a row of a step is a beginning here, and no row is
padding: from each as many tokens are drawn as there are samples with it. They are those that `DrawsByRow` draws in
loop.py, the reference: the same numbers decide for each sample, by probabilities whose last bits alone can differ.
A row looks back at places of its own in one pool of keys and values (`look_at` of search.c), so that nothing moves when
rows part or end; chunks of rows are scored and drawn from (`draw`).

It is for decoders whose layers are the baseline's, on a CPU with compiled code; `why_not` says what is left to loop.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import EpsilonLogitsWarper

from hf_mlnmt.modeling.attention import SelfAttention
from hf_mlnmt.search.cpu.native import library
from hf_mlnmt.search.cpu.step import DecoderStep
from hf_mlnmt.search.decoder import RealPositions, SourceBatch
from hf_mlnmt.search.hypotheses import Chains, Record, pad_token_of
from hf_mlnmt.search.rules import Rules
from hf_mlnmt.search.strategies import BLOCK, DrawsByRow, SearchStrategy
from hf_mlnmt.search.transformer import TransformerDecoder

CHUNK = 2**22  # scores that are looked at together: what is free again and larger goes back to the system
FIRST = 2**14  # places that a pool has at first


def why_not(decoder: Any, choice: type[SearchStrategy], rules: Rules) -> str | None:
    """Names something that this search does not know, or returns None."""
    if choice is not DrawsByRow:
        return f"the choice {choice.__name__}"
    if type(decoder) is not TransformerDecoder or decoder.written_out is None:
        return f"the decoder {type(decoder).__name__}, or one that is called as modules"
    if not decoder.written_out.has_layers_of((SelfAttention,)):
        return "layers that are not the baseline's"
    if library(decoder.model.dtype) is None:
        return "no compiled code"
    return "logits processors that look at the tokens before" if rules.by_length is None else None


class SharedStep(DecoderStep):
    """The baseline's step for rows (rows, d_model), each of which looks at places of its own.

    pools: of each attention its keys and values side by side (places, 2 d_model). own, of_source: the places that each
    row looks at (rows, most), -1 behind the last. filled: places of the target.
    """

    def __init__(self, decoder: TransformerDecoder, source: SourceBatch):
        """Reads the source, of which each sentence is a row."""
        super().__init__(decoder.model)
        self.filled = 0
        self.pools: dict[Any, Tensor] = {}
        real, read = source.real, decoder.read(source)
        positions = RealPositions(real)
        for attention, memory in decoder.step_class.sources(decoder.model.model, read.outputs):
            parts = attention.project_source(positions.pack(memory))  # (1, heads, real positions, d_h) each
            self.pools[attention] = torch.cat([part[0].transpose(0, 1).flatten(1) for part in parts], 1)
        counts = real.sum(1, keepdim=True)
        place = torch.arange(int(counts.max())).expand(len(real), -1)
        self.of_source = torch.where(place < counts, place + counts.cumsum(0) - counts, -1)
        self.own = place[:, :0]

    def unit(self, sublayer: Any, module: Any) -> None:
        """Returns None: products are those of the library, here of many rows."""

    def go_on(self, rows: Tensor | None, tokens: Tensor, position: int) -> Tensor:
        """Lets each new row go on from one of the rows (None: its own) with a token: states (new rows, d_model)."""
        own, self.of_source = (part if rows is None else part[rows] for part in (self.own, self.of_source))
        new = torch.arange(self.filled, self.filled + len(tokens)).unsqueeze(1)
        self.own = torch.cat([own, new], 1)
        self.filled += len(tokens)
        return self.read(tokens, position, None)

    def attend_self(self, module: Any, context: Any, states: Tensor, onto: Tensor) -> Tensor:
        projected = self.linear(module.qkv_proj, states)
        new, before = projected[:, states.shape[1] :], self.filled - len(states)
        pool = self.pools.get(module, new[:0])
        if len(pool) < self.filled:  # memory that is not used costs nothing
            pool, old = new.new_empty(max(FIRST, 2 * self.filled), new.shape[1]), pool
            pool[:before] = old[:before]
            self.pools[module] = pool
        pool[before : self.filled] = new
        return self.look_at(module, projected, pool, self.own, onto)

    def attend_source(self, module: Any, context: Any, states: Tensor, onto: Tensor) -> Tensor:
        return self.look_at(module, self.linear(module.q_proj, states), self.pools[module], self.of_source, onto)

    def look_at(self, module: Any, queries: Tensor, pool: Tensor, places: Tensor, onto: Tensor) -> Tensor:
        """Computes equations 1 and 2, of queries (rows, d_model or more): (rows, d_model)."""
        contexts, memory = torch.empty_like(onto), onto.new_empty(places.numel() * module.heads)
        sizes = *places.shape, module.heads, onto.shape[1] // module.heads, queries.shape[1]
        given = (queries, pool, places, onto.new_tensor(module.scaling), contexts, memory)
        self.functions.look_at(*sizes, *(part.data_ptr() for part in given), torch.get_num_threads())
        return self.linear(module.out_proj, contexts, onto)

    def draw(self, states: Tensor, counts: Tensor, uniform: Tensor, rules: Rules, length: int) -> Tensor:
        """Draws `counts` (rows,) tokens of each row by uniform numbers (draws,): (draws,)."""
        kinds = [type(processor) for processor in rules.processors]
        cut = kinds == [EpsilonLogitsWarper] and rules.processors[0].min_tokens_to_keep == 1
        least = torch.tensor(rules.processors[0].epsilon if cut else 0.0)  # which `draw` knows of
        vocabulary, history = self.projection.out_features, counts.new_zeros(1, 1, length)
        tokens, firsts = torch.empty(len(uniform), dtype=torch.long), nn.functional.pad(counts.cumsum(0), (1, 0))
        for first in range(0, len(states), each := max(1, CHUNK // vocabulary)):
            scores = self.score(states[first : first + each]).float()
            if kinds and not cut:
                scores = rules.process(history.expand(1, len(scores), -1), scores.unsqueeze(0))[0].contiguous()
            memory = torch.empty(len(scores), -(-vocabulary // BLOCK), dtype=torch.float64)
            given = (part.data_ptr() for part in (scores, firsts[first:], uniform, least, memory, tokens))
            library(torch.float32).draw(len(scores), vocabulary, *given, torch.get_num_threads())
        return tokens


def search(
    decoder: TransformerDecoder, source: SourceBatch, prompt: Tensor, rules: Rules, config: Any, width: int
) -> Any:
    """Draws `width` sequences of each sentence, as loop.py does; returns what generate() returns."""
    step, (sentences, length) = SharedStep(decoder, source), prompt.shape
    vocabulary = step.projection.out_features
    for position in range(length):
        states = step.go_on(None, prompt[:, position], position)
    chains = Chains(sentences, width, pad_token_of(config, prompt.device), prompt.device)
    record, ids = Record(prompt, width, config), torch.arange(sentences)
    row = ids.repeat_interleave(width)  # of each sample that goes on
    while True:
        length += 1
        going = chains.going.clone()
        order = row.argsort()
        uniform = DrawsByRow.noise(sentences * width, vocabulary, prompt.device)[going.flatten(), 0][order]
        drawn = torch.empty_like(row)
        drawn[order] = step.draw(states, row.bincount(minlength=len(states)), uniform, rules, length - 1)
        tokens = chains.padded(prompt.new_zeros(going.shape).masked_scatter_(going, drawn))
        record.steps.append((ids, tokens, tokens))
        chains.close(rules.is_last(tokens, length))
        if not chains.open.any() or rules.is_longest(length):
            return record.chains()
        beginnings = (row * vocabulary + drawn)[chains.going[going]]
        new, row = beginnings.unique(return_inverse=True)  # in the order of the rows that they come from
        states = step.go_on(new // vocabulary, new % vocabulary, length - 1)
