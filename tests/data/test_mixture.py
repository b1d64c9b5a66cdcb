"""Mixtures: how many of each, every pair before any again, a pure function of seed and epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from helpers.training_helpers import Pairs
from hypothesis import given
from hypothesis import strategies as st

from hf_mlnmt.data.training_set import Corpora, draw, epoch_counts
from hf_mlnmt.errors import UserError


def test_counts():
    assert epoch_counts([100, 10], None, None) == [100, 10]
    assert epoch_counts([100, 10], [1, 2.5], None) == [100, 25]
    assert epoch_counts([100, 10], [0.5, 1], None) == [50, 10]
    assert epoch_counts([100, 10], None, 1.0) == [100, 10]
    # shares 10 : 4 in a total of 116
    assert epoch_counts([100, 16], None, 2.0) == [83, 33]
    assert epoch_counts([999, 1], None, 1e9) == [500, 500]


@given(size=st.integers(1, 30), count=st.integers(1, 90), seed=st.integers(0, 9), epochs=st.integers(1, 8))
def test_every_pair_comes_before_any_comes_again(size, count, seed, epochs):
    drawn = [draw(size, count, seed, epoch) for epoch in range(epochs)]
    assert all(len(indices) == count for indices in drawn)
    shown = Counter(np.concatenate(drawn).tolist())
    numbers = [shown[i] for i in range(size)]
    assert max(numbers) - min(numbers) <= 1
    for indices in drawn:
        times = Counter(indices.tolist())
        assert max(times.values()) <= -(-count // size) + 1


def test_epochs_differ_and_seeds_differ():
    first, second = draw(100, 50, 1, 0), draw(100, 50, 1, 1)
    assert not set(first.tolist()) & set(second.tolist())
    assert draw(100, 50, 2, 0).tolist() != first.tolist() == draw(100, 50, 1, 0).tolist()


def test_every_copy_of_a_corpus_is_shuffled_anew():
    """Two epochs make a copy here: the third epoch is not the first one again."""
    halves = [draw(100, 50, 1, epoch).tolist() for epoch in range(8)]
    assert len({tuple(half) for half in halves}) == 8
    assert all(sorted(halves[epoch] + halves[epoch + 1]) == list(range(100)) for epoch in range(0, 8, 2))


def test_corpora_of_a_mixture_are_shuffled_apart():
    """Halves of two copies of one corpus: were they shuffled alike, every epoch would show the same pairs twice."""
    mixture = Corpora([Pairs(100), Pairs(100)], [0.5, 0.5])
    chosen = mixture.choose(0)
    first, second = chosen[chosen < 100], chosen[chosen >= 100] - 100
    assert len(first) == len(second) == 50
    assert set(first.tolist()) != set(second.tolist())


@pytest.mark.parametrize(
    ("sizes", "weights", "temperature", "message"),
    [
        ([3, 0], None, None, "corpus 2 of 2 has no pairs"),
        ([3, 4], [1], None, "2 weights"),
        ([3, 4], [1, -1], None, "above 0"),
        ([3, 4], None, 0, "temperature must be above 0"),
        ([3, 4], [1, 2], 5, "either weights or a temperature"),
    ],
)
def test_bad_mixtures(sizes, weights, temperature, message):
    with pytest.raises(UserError, match=message):
        epoch_counts(sizes, weights, temperature)
