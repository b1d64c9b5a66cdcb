"""Mixtures: how many of each, every pair before any again, a pure function of seed and epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from helpers.training_helpers import Pairs
from hypothesis import given
from hypothesis import strategies as st

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.training_set import Corpora, draw, epoch_counts, shuffled


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


@pytest.mark.parametrize("counts", [(20, 130), (20, 60), (13, 200)])
def test_a_large_corpus_is_drawn_from_without_a_permutation_of_all(monkeypatch, counts):
    """Of the small corpus the same as ever; of the large one every pair before any again, any places of an epoch."""
    sizes = (40, 130)
    parts = [Pairs(size, seed=number) for number, size in enumerate(sizes)]
    weights = [count / size for count, size in zip(counts, sizes)]
    usual = [Corpora(parts, weights).choose(epoch) for epoch in range(4)]
    monkeypatch.setattr("hf_mlnmt.data.training_set.LARGE", 100)
    mixture = Corpora(parts, weights)
    epochs = [mixture.choose(epoch) for epoch in range(4)]
    whole = [epoch[:] for epoch in epochs]
    for epoch, indices, before in zip(epochs, whole, usual):
        assert not isinstance(epoch, np.ndarray)
        assert len(epoch) == len(indices) == sum(counts)
        assert indices[: counts[0]].tolist() == before[before < 40].tolist()
        places = np.array([sum(counts) - 1, 0, 7, counts[0]])
        assert epoch[places].tolist() == indices[places].tolist()
        assert epoch[np.arange(len(indices)) < 9].tolist() == indices[:9].tolist()
    shown = Counter(np.concatenate([indices[counts[0] :] - 40 for indices in whole]).tolist())
    assert max(shown) < 130
    assert max(shown.values()) - min(shown[i] for i in range(130)) <= 1
    same = whole[0][counts[0] :].tolist() == whole[1][counts[0] :].tolist()
    assert same == (counts[1] == 130), "all of it, once, is not drawn"
    row = shuffled(130, 1, 0, 260)[:]
    assert shuffled(130, 1, 65, 130)[:].tolist() == row[65:195].tolist(), "as many, of two copies"


def test_lengths_of_several_corpora_are_those_of_each():
    parts = [Pairs(size, seed=number) for number, size in enumerate((30, 5, 12))]
    corpora = Corpora(parts)
    for name in ("source_lengths", "target_lengths"):
        found, expected = getattr(corpora, name), np.concatenate([getattr(part, name) for part in parts])
        assert np.asarray(found).tolist() == expected.tolist()
        assert found.max() == expected.max()
        indices = np.array([46, 0, 31, 30, 29, 35])
        assert found[indices].tolist() == found[indices.tolist()].tolist() == expected[indices].tolist()
        assert found[expected > 5].tolist() == expected[expected > 5].tolist()


def test_weights_and_a_temperature_exclude_each_other():
    with pytest.raises(UserError, match="either weights or a temperature"):
        epoch_counts([3, 4], [1, 2], 5)
