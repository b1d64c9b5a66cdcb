"""Draws by (seed, text): they have the model's distribution, and no batch, window or neighbour changes them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.model_folders import SENTENCES
from helpers.toy_translators import best_of_lines

from hf_mlnmt import UserError, search
from hf_mlnmt.generation.translating.searching import TextDraws, unit_interval

SAMPLING = {"do_sample": True, "draws": "text", "seed": 3, "max_new_tokens": 20}


def drawn(scores: torch.Tensor, count: int, **options) -> np.ndarray:
    """How often each token is drawn in so many places of a text."""
    draws = TextDraws(5, [(line, 0) for line in range(count)], **options)
    found = draws(torch.zeros(count, 4, dtype=torch.long), scores.expand(count, -1)).argmax(dim=-1)
    return np.bincount(found.numpy(), minlength=len(scores))


@pytest.mark.parametrize("options", [{}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.8}])
def test_frequencies_are_the_probabilities(options):
    """Within five standard deviations of a binomial count; what is left out by an option never comes."""
    scores = torch.tensor([2.0, -1.0, 0.5, -torch.inf, 1.0, 0.4])
    probabilities = (scores / options.get("temperature", 1.0)).softmax(-1).double()
    order = probabilities.argsort(descending=True)
    kept = order[: options.get("top_k", 6)]
    if "top_p" in options:
        kept = order[: int((probabilities[order].cumsum(0) < options["top_p"]).sum()) + 1]
    expected = torch.zeros(6, dtype=torch.float64)
    expected[kept] = probabilities[kept] / probabilities[kept].sum()
    count = 20_000
    found = drawn(scores, count, **options)
    for number, probability in zip(found, expected.tolist()):
        assert abs(number - count * probability) <= 5 * math.sqrt(count * probability * (1 - probability))


def test_the_numbers_are_uniform_and_apart():
    """Means, and no correlation between neighbouring texts, positions and seeds; five standard deviations."""
    lines = [(line, piece) for line in range(4000) for piece in range(2)]
    one, other = TextDraws(1, lines).keys, TextDraws(2, lines).keys
    series = [unit_interval(one, 1), unit_interval(one, 2), unit_interval(other, 1)]
    assert all(numbers.min() >= 0 and numbers.max() < 1 for numbers in series)
    bound = 5 / math.sqrt(len(lines))
    assert all(abs(numbers.mean() - 0.5) < bound * math.sqrt(1 / 12) for numbers in series)
    for left, right in [(series[0], series[1]), (series[0], series[2]), (series[0][1:], series[0][:-1])]:
        assert abs(np.corrcoef(left, right)[0, 1]) < bound
    assert len(set(one.tolist())) == len(lines)


def test_neither_batches_nor_windows_nor_loops_change_the_draws(pipeline, monkeypatch):
    lines = [*SENTENCES[:40], "", " ".join(SENTENCES[:8])]  # the last one is too long for the model: it is cut up
    whole = best_of_lines(pipeline, lines, **SAMPLING)
    assert len({each.text for each in whole}) > 30
    assert len({each.length for each in whole}) > 8, "sentences must leave the batch early"
    assert not whole[-2].text
    small = best_of_lines(pipeline, lines, batch_tokens=25, **SAMPLING)
    halves = [best_of_lines(pipeline, lines[i : i + 21], 1 + i, **SAMPLING) for i in (0, 21)]
    monkeypatch.setattr(search, "why_not", lambda *arguments: "the test")
    by_transformers = best_of_lines(pipeline, lines, **SAMPLING)
    texts = [each.text for each in whole]
    assert [each.text for each in small] == texts
    assert [each.text for half in halves for each in half] == texts
    assert [each.text for each in by_transformers] == texts


def test_other_seeds_and_lines_draw_otherwise(pipeline):
    lines = SENTENCES[:8]
    first = [each.text for each in best_of_lines(pipeline, lines, **SAMPLING)]
    other_seed = [each.text for each in best_of_lines(pipeline, lines, **{**SAMPLING, "seed": 4})]
    other_line = [each.text for each in best_of_lines(pipeline, lines, 9, **SAMPLING)]
    assert all(a != b and a != c for a, b, c in zip(first, other_seed, other_line))


def test_what_ended_at_the_limit_is_told(pipeline):
    found = best_of_lines(pipeline, SENTENCES[:20], **{**SAMPLING, "max_new_tokens": 4})
    free = best_of_lines(pipeline, SENTENCES[:20], **SAMPLING)
    assert [each.finished for each in found] == [each.length <= 4 for each in free]
    assert {each.finished for each in found} == {True, False}


def test_several_draws_of_a_text_are_refused(pipeline):
    with pytest.raises(UserError, match="draws by text are of one translation"):
        best_of_lines(pipeline, ["a"], num_return_sequences=2, **SAMPLING)
