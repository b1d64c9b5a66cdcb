"""Constraints of a search: against everything that a model can say, for each kind of decoder; terms of a glossary."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers.contract import Member
from helpers.fused import fused
from helpers.searching import decode, sources
from helpers.toy_context import bigram_translator

from hf_mlnmt.search.constraints import Constraints

VOCABULARY, LONGEST, END = 5, 5, 1
OTHERS = [token for token in range(VOCABULARY) if token != END]
CONSTRAINTS = {
    "one token": [[[2]]],
    "two of one token": [[[2]], [[4]]],
    "a phrase": [[[2, 4]]],
    "alternatives": [[[2, 2], [4]]],
    "one repeats the other's beginning": [[[2, 2, 4]]],
    "a phrase and alternatives": [[[3, 4]], [[0], [2, 2]]],
    "phrases that overlap": [[[2, 3]], [[3, 4]]],
    "none": [],
}


def has(body, constraints):
    """Whether each constraint has an alternative in the tokens."""
    return all(
        any(tuple(phrase) == tuple(body[i : i + len(phrase)]) for phrase in constraint for i in range(len(body)))
        for constraint in constraints
    )


@torch.no_grad()
def everything(model, source):
    """(log P / length, ids) of all hypotheses, those that are cut off at the limit too."""
    bodies = [body for size in range(LONGEST) for body in itertools.product(OTHERS, repeat=size)]
    rows = [(*body, END) for body in bodies] + list(itertools.product(OTHERS, repeat=LONGEST))
    scored = []
    for size, group in itertools.groupby(rows, len):
        ids = torch.tensor(list(group))
        inputs = torch.cat([torch.full((len(ids), 1), 3), ids[:, :-1]], dim=1)
        repeated = {name: value.expand(len(ids), -1) for name, value in source.items()}
        logits = model(**repeated, decoder_input_ids=inputs).logits
        logits = logits if getattr(model, "logits_are_scores", False) else logits.log_softmax(-1)
        sums = logits.gather(2, ids.unsqueeze(-1)).sum((1, 2)) / size
        scored += zip(sums.tolist(), map(tuple, ids.tolist()))
    return sorted(scored, reverse=True)


def tiny(system):
    fields = {"vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    return Member(system, "post", {**fields, "norm_position": "post", "max_position_embeddings": 16}).model()


MODELS = {
    "transformer": lambda: tiny("transformer"),
    "rnn": lambda: tiny("rnn"),
    "fused": lambda: fused(bigram_translator(VOCABULARY), normalization="sequence", alpha=0.6, beta=0.4),
}
WIDE = {"num_beams": 300, "early_stopping": "never", "length_penalty": 1.0, "max_new_tokens": LONGEST}


@pytest.mark.parametrize("kind", MODELS)
def test_it_finds_the_best_of_all_that_meet_them(kind):
    """Two sentences in a batch, each with constraints of its own: the best four of all, in order."""
    model = MODELS[kind]()
    inputs = sources((3, 2), VOCABULARY)
    singles = [{name: value[i : i + 1] for name, value in inputs.items()} for i in range(2)]
    ranked = [everything(model, source) for source in singles]
    names = list(CONSTRAINTS)
    for name, other in zip(names, names[1:] + names[:1]) if kind == "transformer" else [("a phrase", "none")]:
        asked = [CONSTRAINTS[name], CONSTRAINTS[other]]
        output = decode(model, **inputs, **WIDE, num_return_sequences=4, logits_processor=[Constraints(asked)])
        for sentence in range(2):
            allowed = [one for one in ranked[sentence] if has(one[1], asked[sentence])][:4]
            part = slice(4 * sentence, 4 * sentence + 4)
            rows = [tuple(row) for row in output.sequences[part, 1:].tolist()]
            assert [row[: len(ids)] for row, (_, ids) in zip(rows, allowed)] == [ids for _, ids in allowed], name
            scores = [score for score, _ in allowed]
            assert output.sequences_scores[part].tolist() == pytest.approx(scores, abs=1e-5)
