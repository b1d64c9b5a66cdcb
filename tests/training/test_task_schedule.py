"""The order of tasks: shares hold exactly, everything follows from seed and step, each task has its own epochs."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_mlnmt.training.batching import TokenBatchSampler
from hf_mlnmt.training.tasks import TaskBatchSampler, TaskSchedule, seed_of

SHARES = st.lists(st.integers(1, 6), min_size=1, max_size=5)
ANY_SHARES = SHARES | st.lists(st.floats(0.01, 100), min_size=2, max_size=5) | st.just([1.0] * 1200)


def samplers(sizes, world=1, rank=0, accumulation=1, tokens=30, group=None):
    """Samplers of tasks with so many sentences of three tokens."""
    lengths = [np.full(size, 3) for size in sizes]
    options = {"world_size": world, "rank": rank, "accumulation": accumulation, "group": group}
    return [TokenBatchSampler(one, one, tokens, seed=seed_of(1, i), **options) for i, one in enumerate(lengths)]


@given(SHARES, st.integers(0, 20), st.integers(0, 5))
def test_shares_hold_exactly_in_every_cycle(shares, number, seed):
    schedule = TaskSchedule(shares, seed)
    counts = Counter(schedule.cycle(number).tolist())
    assert [counts[task] * sum(shares) for task in range(len(shares))] == [share * schedule.length for share in shares]


@settings(max_examples=30, deadline=None)
@given(ANY_SHARES, st.integers(0, 5), st.integers(0, 3), st.floats(0, 1))
def test_a_place_is_known_without_those_before_it(shares, seed, cycle, within):
    schedule = TaskSchedule(shares, seed)
    place = int((cycle + within) * schedule.length)
    cycles = [schedule.cycle(number) for number in range(place // schedule.length + 1)]
    order = np.concatenate(cycles)
    assert TaskSchedule(shares, seed).at(place) == (order[place], (order[:place] == order[place]).sum())
    assert TaskSchedule(shares, seed).seen(place) == np.bincount(order[:place], minlength=len(shares)).tolist()


@settings(max_examples=30, deadline=None)
@given(ANY_SHARES, st.integers(0, 5), st.integers(1, 300))
def test_any_shares_hold_to_a_few_places(shares, seed, cycles):
    """In each cycle to a place, over many to as few as the golden ratio leaves (log2(cycles) + 2 bounds it)."""
    schedule = TaskSchedule(shares, seed)
    expected = np.array(shares) / sum(shares) * schedule.length
    assert (np.abs(np.bincount(schedule.cycle(cycles), minlength=len(shares)) - expected) < 1 + 1e-6).all()
    assert (np.abs(np.array(schedule.seen(cycles * schedule.length)) - cycles * expected) < math.log2(cycles) + 2).all()


def test_fractions_and_their_ratio():
    assert TaskSchedule([1, 0.5], 1).counts == [2, 1]
    assert TaskSchedule([0.1, 0.2, 0.7], 1).counts == [1, 2, 7]
    assert TaskSchedule([4, 4], 1).counts == [1, 1]
    assert TaskSchedule([3], 1).counts == [1]
    assert TaskSchedule([4, 1], 3).cycle(2).tolist() == [0, 1, 0, 0, 0], "as it always was: runs that began go on"


def test_cycles_and_seeds_differ():
    schedule = TaskSchedule([5, 4], 1)
    orders = {tuple(schedule.cycle(number).tolist()) for number in range(9)}
    assert len(orders) > 5
    assert schedule.cycle(0).tolist() != TaskSchedule([5, 4], 2).cycle(0).tolist()


@settings(max_examples=30, deadline=None)
@given(SHARES, st.integers(1, 3), st.integers(1, 3), st.integers(0, 2))
def test_counts_are_equal_and_processes_are_at_the_same_task(shares, world, accumulation, epoch):
    sizes = [30 + 17 * number for number in range(len(shares))]
    ranks = [
        TaskBatchSampler(samplers(sizes, world, rank, accumulation), TaskSchedule(shares, 1)) for rank in range(world)
    ]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    batches = [list(sampler) for sampler in ranks]
    assert {len(one) for one in batches} == {len(ranks[0])}
    assert len(ranks[0]) % accumulation == len(ranks[0]) % ranks[0].schedule.length == 0
    for together in zip(*batches):
        assert len({task for task, *_ in together}) == 1
    first = epoch * len(ranks[0]) // accumulation
    for step in (0, len(ranks[0]) // accumulation - 1):
        places = range(step * accumulation, (step + 1) * accumulation)
        expected = [one[place][:2] for place in places for one in batches]
        assert ranks[0].members(first + step) == expected


GROUPS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=30, deadline=None)
@given(SHARES, st.lists(GROUPS, min_size=2, max_size=3), st.integers(0, 9))
def test_other_processes_go_on_where_the_ones_before_were(shares, groups, steps):
    """Every task's batches come in one order, whoever takes them and however many make a step."""
    sizes = [90 + 17 * number for number in range(len(shares))]
    seen: dict[int, list] = {}
    step, reached = 0, None
    for world, accumulation in groups:
        group = math.prod(groups[0])
        own = [
            TaskBatchSampler(samplers(sizes, world, rank, accumulation, group=group), TaskSchedule(shares, 1))
            for rank in range(world)
        ]
        for sampler in own if reached else ():
            sampler.begin_at(step, **reached)
        for _ in range(steps):
            for task, batch in own[0].members(step):
                seen.setdefault(task, []).append(batch)
            step += 1
        reached = own[0].reached(step)
    one = TaskBatchSampler(samplers(sizes, group=group), TaskSchedule(shares, 1))
    for task, batches in seen.items():
        assert batches == [one.samplers[task].following(number)[0] for number in range(len(batches))]
    epoch, place = divmod(step * accumulation, len(own[0]))
    for sampler in own:
        sampler.set_epoch(epoch)
    for rank, (task, indices, number) in enumerate(list(sampler)[place] for sampler in own):
        first = len(seen.get(task, [])) + rank
        assert (indices, number) == (one.samplers[task].following(first)[0], first // one.samplers[task].total)


def test_each_task_has_epochs_of_its_own():
    sizes = 40, 90
    sampler = TaskBatchSampler(samplers(sizes), TaskSchedule([1, 3], 1))  # 4 and 9 batches of ten
    shown: list[list[int]] = [[], []]
    for _ in range(9):
        for task, indices, own_epoch in sampler:
            assert own_epoch == len(shown[task]) // sizes[task], "of the task, not of the training"
            shown[task] += indices
        sampler.set_epoch(sampler.epoch + 1)
    assert len(sampler) == 16, "four cycles of four: the first task's data once"
    for task, size in enumerate(sizes):
        for epoch in range(len(shown[task]) // size):
            assert sorted(shown[task][epoch * size : (epoch + 1) * size]) == list(range(size))
    assert sampler.epochs(9 * 16) == [9.0, 9 * 12 / 9]
    assert sampler.epochs(0) == [0.0, 0.0]
    partial = sampler.schedule.cycle(4)[:3].tolist()
    assert sampler.epochs(4 * 4 + 3) == [(4 + partial.count(0)) / 4, (12 + partial.count(1)) / 9]


def test_an_epoch_ends_with_a_cycle_and_a_step():
    one = TaskBatchSampler(samplers([50], accumulation=2), TaskSchedule([1], 1))
    assert len(one) == len(one.samplers[0]) == 6
    sampler = TaskBatchSampler(samplers([50, 50], accumulation=2), TaskSchedule([2, 1], 1))
    assert len(sampler) == 12, "three cycles of three would be four steps and a half"


def test_tasks_on_the_same_data_have_other_batches():
    first, second = samplers([60, 60])
    assert first.batches(0)[0].tolist() != second.batches(0)[0].tolist()
    assert seed_of(5, 0) == 5
    assert len({seed_of(5, number) for number in range(50)}) == 50
