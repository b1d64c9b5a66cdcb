"""Least lengths are kept without a pass over the logits: what may follow is what Transformers lets through."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    TemperatureLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria

from hf_mlnmt.search.rules import Rules
from hf_mlnmt.search.strategies import continuations

ENDS = [2, 7]


def rules_of(*more):
    found = [MinLengthLogitsProcessor(4, ENDS), MinNewTokensLengthLogitsProcessor(1, 5, ENDS), *more]
    return Rules(LogitsProcessorList(found), [EosTokenCriteria(ENDS)])


def likely_ends(beams: int):
    scores = torch.randn(3, beams, 100, generator=torch.Generator().manual_seed(1))
    scores[..., ENDS] += 4
    return scores


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("length", [1, 3, 5, 6, 7])
@pytest.mark.parametrize("beams", [1, 3])
def test_the_best_continuations(beams, length, native, monkeypatch):
    monkeypatch.setenv("HF_MLNMT_NATIVE", native)
    rules, scores, history = rules_of(), likely_ends(beams), torch.zeros(3, beams, length, dtype=torch.long)
    running, count = torch.randn(3, beams), 3 * beams
    log_probs = rules.processors(history.flatten(0, 1), scores.log_softmax(-1).flatten(0, 1)).view(scores.shape)
    expected, places = (log_probs + running[..., None]).flatten(1).topk(count)
    sums, parents, tokens = continuations(rules, history, scores.clone(), False, running, count)
    torch.testing.assert_close(sums, expected)
    assert torch.equal(parents * 100 + tokens, places)
    assert bool(torch.isin(tokens, torch.tensor(ENDS)).any()) == (length >= 6)


@pytest.mark.parametrize("length", [3, 5, 6])
def test_the_scores(length):
    """Of one row for all draws of a sentence, too."""
    rules, scores, history = rules_of(), likely_ends(1), torch.zeros(3, 2, length, dtype=torch.long)
    scores = scores.expand(-1, 2, -1)
    expected = rules.processors(history.flatten(0, 1), scores.flatten(0, 1)).view(scores.shape)
    assert torch.equal(rules.process(history, scores), expected)


def test_with_other_processors_all_are_called():
    rules, scores, history = rules_of(TemperatureLogitsWarper(0.5)), likely_ends(2), torch.zeros(3, 2, 3).long()
    assert not rules.lengths_alone
    expected = rules.processors(history.flatten(0, 1), scores.flatten(0, 1).clone()).view(scores.shape)
    assert torch.equal(rules.process(history, scores), expected)
