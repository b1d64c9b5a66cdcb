"""Batches: nothing lost, budgets kept, equal counts, pure functions of seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_mlnmt import UserError
from hf_mlnmt.data.training_set import scattered
from hf_mlnmt.training import batching
from hf_mlnmt.training.batching import TokenBatchSampler, batch_statistics

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=12, max_size=150)


def split(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(pairs)
    return array[:, 0], array[:, 1]


def captions(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lengths like those of image captions in two languages."""
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(12, 1.2, count), 3, 60).astype(int)
    target = np.clip(source + rng.normal(0, 2.2, count), 3, 70).astype(int)
    return source, target


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 200), st.sampled_from(["source", "target", "both"]), st.integers(0, 5))
def test_each_sentence_once_within_the_budget(pairs, budget, side, epoch):
    source, target = split(pairs)
    sampler = TokenBatchSampler(source, target, budget, side, seed=3)
    batches = sampler.batches(epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(pairs)))
    lengths = {"source": source, "target": target, "both": np.maximum(source, target)}[side]
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 200), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6))
def test_counts_are_equal_for_every_rank_and_epoch(pairs, budget, world, accumulation, epochs):
    source, target = split(pairs)
    samplers = [
        TokenBatchSampler(source, target, budget, seed=1, world_size=world, rank=rank, accumulation=accumulation)
        for rank in range(world)
    ]
    for epoch in range(epochs):
        seen = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            batches = list(sampler)
            assert len(batches) == len(sampler) == len(samplers[0])
            assert len(batches) % accumulation == 0
            seen += [index for batch in batches for index in batch]
        assert sorted(seen) == list(range(len(pairs)))


def test_max_sentences():
    source, target = captions(500)
    sampler = TokenBatchSampler(source, target, 1000, max_sentences=7)
    assert max(len(batch) for batch in sampler.batches(0)) == 7


@pytest.mark.parametrize("side", ["source", "target", "both"])
@pytest.mark.parametrize("tokens", [1024, 2048])
def test_padding_is_small_and_batches_change(side, tokens):
    source, target = captions(20_000)
    sampler = TokenBatchSampler(source, target, tokens, side)
    figures = batch_statistics(sampler, epoch=2)
    assert figures.source_padding < 0.05
    assert figures.target_padding < 0.05
    assert figures.sentences == 20_000
    assert figures.target_tokens == target.sum()
    first, second = ({frozenset(batch.tolist()) for batch in sampler.batches(epoch)} for epoch in (0, 1))
    assert len(first & second) < 0.05 * len(first)  # other members
    assert len(sampler.batches(0)) == len(sampler.batches(1)) == figures.batches
    longest = [int(target[batch].max()) for batch in sampler.batches(0)]
    assert longest != sorted(longest)  # and not in order of length


def test_the_order_of_the_batches_changes_every_epoch():
    """Lengths that differ, so that without noise the batches are the same ones: their order is not."""
    lengths = np.arange(1, 201)
    sampler = TokenBatchSampler(lengths, lengths, 400, noise=0.0)
    orders = [[tuple(sorted(batch.tolist())) for batch in sampler.batches(epoch)] for epoch in range(3)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[0] != orders[1] != orders[2] != orders[0]


def members(sampler: TokenBatchSampler, step: int) -> list[list[int]]:
    firsts = range(step * sampler.group, (step + 1) * sampler.group, sampler.world_size)
    return [batch for first in firsts for batch in sampler.following(first)]


def test_a_batch_is_named_by_step_alone():
    source, target = captions(300)
    ranks = [TokenBatchSampler(source, target, 200, world_size=2, rank=rank, accumulation=2) for rank in (0, 1)]
    steps = len(ranks[0]) // 2
    for step in (0, 3, steps - 1, steps, 2 * steps + 1):
        for sampler in ranks:
            sampler.set_epoch(step // steps)
        first = step % steps * 2
        mine = [list(sampler)[first : first + 2] for sampler in ranks]
        assert members(ranks[0], step) == [mine[0][0], mine[1][0], mine[0][1], mine[1][1]]


def test_two_processes_see_what_one_sees_in_two_accumulated_batches():
    source, target = captions(300)
    one = TokenBatchSampler(source, target, 200, accumulation=2)
    two = TokenBatchSampler(source, target, 200, world_size=2)
    assert [members(one, step) for step in range(20)] == [members(two, step) for step in range(20)]


def test_seed_decides():
    source, target = captions(300)
    same = [TokenBatchSampler(source, target, 200, seed=seed).following(5) for seed in (1, 1, 2)]
    assert same[0] == same[1] != same[2]


def test_a_mixture_keeps_the_count():
    source, target = captions(2000)

    def choose(epoch: int) -> np.ndarray:
        return np.random.default_rng([1, epoch]).integers(0, 2000, 1500)  # the first is a short one

    sampler = TokenBatchSampler(source, target, 300, choose=choose)
    for epoch in range(8):
        batches = sampler.batches(epoch)
        assert len(batches) == len(sampler)
        assert sorted(np.concatenate(batches)) == sorted(choose(epoch))
        assert max(len(batch) * sampler.target[batch].max() for batch in batches) <= 300


def test_padding_by_hand():
    sampler = TokenBatchSampler([2, 4, 7], [1, 1, 3], 2)  # the first two are one batch
    figures = batch_statistics(sampler)
    assert (figures.source_padding, figures.target_padding) == pytest.approx((2 / 15, 0))


def test_bad_arguments():
    with pytest.raises(UserError, match="too few for 4 process"):
        TokenBatchSampler([3, 3], [3, 3], 10, world_size=4)
    with pytest.raises(UserError, match="0 sentence pairs"):
        TokenBatchSampler([], [], 10)


@pytest.mark.parametrize("more", [{}, {"buckets": 8}, {"choose": lambda epoch: np.arange(epoch, 4000 + epoch)}])
def test_a_large_epoch_is_made_window_by_window(more, monkeypatch):
    monkeypatch.setattr(batching, "WINDOW", 1000)
    source, target = captions(4100)
    arranged, arrange = [], TokenBatchSampler._arrange
    monkeypatch.setattr(TokenBatchSampler, "_arrange", lambda *args: (arranged.append(args[1:]), arrange(*args))[1])
    sampler = TokenBatchSampler(source, target, 300, accumulation=2, **more)
    assert set(arranged) <= {(0, 0)}, "a start looks at one window"
    epochs = [sampler.batches(epoch) for epoch in range(3)]
    shown = [more["choose"](epoch) if "choose" in more else np.arange(4100) for epoch in range(3)]
    for epoch, batches in enumerate(epochs):
        assert len(batches) == len(sampler)
        assert sorted(np.concatenate(batches)) == sorted(shown[epoch])
        sampler.set_epoch(epoch)
        assert list(sampler) == [batch.tolist() for batch in batches]
        assert [sampler.following(epoch * len(sampler) + place)[0] for place in (0, 99, len(sampler) - 1)] == [
            batches[place].tolist() for place in (0, 99, -1)
        ]
    assert len({tuple(sorted(np.concatenate(batches[: len(batches) // 4]))) for batches in epochs}) == 3
    processes = [TokenBatchSampler(source, target, 300, world_size=2, rank=rank, **more) for rank in range(2)]
    for rank, process in enumerate(processes):
        assert list(process) == [batch.tolist() for batch in epochs[0][rank::2]]
        assert process.following(2 * len(process) - 4) == [batch.tolist() for batch in epochs[0][-4:-2]]


@pytest.mark.parametrize("size", [1, 2, 5, 1000, 1025])
def test_places_are_scattered_by_a_permutation_without_the_others(size):
    def of(places, seed=0):
        return scattered(places, size, np.random.default_rng(seed)).tolist()

    whole = of(np.arange(size))
    assert sorted(whole) == list(range(size))
    assert of(np.arange(size)[size // 2 :]) == whole[size // 2 :]
    if size == 1000:
        assert abs(np.corrcoef(np.arange(size), whole)[0, 1]) < 0.15
        assert sum(a == b for a, b in zip(whole, of(np.arange(size), 1))) < 10
