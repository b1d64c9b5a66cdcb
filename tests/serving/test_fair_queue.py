"""Who is served next: turns, batches and costs, without a thread, a model or a clock."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest

from hf_mlnmt.serving.fair_queue import Costs, FairQueues, Queue, QueuedPiece


class Key:
    """Something that a queue belongs to."""


@pytest.fixture
def fair(monkeypatch):
    """Queues whose batches are as large as their budget lets them be."""
    monkeypatch.setattr(Costs, "size", lambda costs, most: most)
    return FairQueues(batch_tokens=100)


def come(fair: FairQueues, key: Key, *sizes: int) -> SimpleNamespace:
    """A request comes, with pieces of these sizes."""
    request = SimpleNamespace(turn=fair.served)
    fair.put(key, fair.pieces_of(request, ((size, None) for size in sizes)))
    return request


def serve(fair: FairQueues, waiting: int = 1) -> list[QueuedPiece]:
    """Takes the next batch and counts it as served to so many requests."""
    key = fair.first()
    batch, _ = fair.take(key, fair.queue(key), 1000, ahead=False)
    fair.count(batch, waiting, 1e-3)
    return batch


def test_the_fewest_pieces_that_cost_about_the_least_are_searched_together():
    """By what a token took: each size is measured thrice, for the first ones make things ready, and now and then."""
    for of_sizes, expected in [
        ({1: 1.0, 2: 1.8, 4: 1.2, 8: 0.9}, 1),
        ({1: 2.0, 2: 2.1, 4: 1.14, 8: 1.0}, 4),
        ({1: 2.0, 2: 2.0, 4: 1.2, 8: 1.0}, 11),
    ]:
        costs, asked = Costs(), []
        for number in range(12):
            asked.append(costs.size(11))
            tokens = 10 * asked[-1]
            costs.add(asked[-1], tokens, tokens * (of_sizes[min(asked[-1], 8)] + 5 * (number % 3 < 2)))
        assert asked == [1, 1, 1, 11, 11, 11, 4, 4, 4, 2, 2, 2]
        answers = [costs.size(11) for _ in range(400)]
        assert answers.count(expected) > 390
        assert set(answers) == {1, 2, 4, 11}  # the others are tried again
        assert costs.size(20) == 20  # of which nothing is known
        for _ in range(3):
            costs.add(expected, 10, 1000.0)
        assert costs.size(11) != expected  # the newest searches count


def test_a_short_request_goes_before_the_rest_of_a_long_one(fair):
    key, other = Key(), Key()
    long = come(fair, key, *[10] * 40)
    assert {id(piece.request) for piece in serve(fair, 2)} == {id(long)}
    short = come(fair, other, 10)
    assert [piece.request for piece in serve(fair, 2)] == [short]
    assert serve(fair)[0].request is long


def test_a_long_request_comes_to_its_turn_among_many_short_ones(fair):
    """Though more of them come than a batch has room for, the long one gets its share."""
    key = Key()
    long, served, batches, waiting = come(fair, key, *[10] * 20), 0, 0, 1
    while served < 20:
        for _ in range(15):
            come(fair, key, 10)
        batch = serve(fair, waiting + 15)
        waiting += 15 - sum(piece.request is not long for piece in batch)
        served += sum(piece.request is long for piece in batch)
        batches += 1
        assert batches < 40  # twice as many as its tokens take


def test_turns_are_counted_in_the_order_of_the_search(fair):
    """Pieces that a batch leaves, because others are of a better length, are not due because they came before those."""
    sizes, key = random.Random(3).choices(range(3, 40), k=60), Key()
    come(fair, key, *sizes)
    served, in_order = 0, []
    while fair.first():
        batch = serve(fair)
        assert batch[0].turn == served == min(piece.turn for piece in batch)
        served += sum(piece.tokens for piece in batch)
        in_order += [piece.number for piece in batch]
        assert fair.queue(key).turn == (served if served < sum(sizes) else math.inf)
    assert sorted(in_order) == list(range(60)) != in_order


@pytest.mark.parametrize("ahead", [True, False])
def test_pieces_whose_turn_has_come_go_before_those_that_waste_less_padding(fair, ahead):
    fair.served = 5.0
    pieces = [
        QueuedPiece(turn, n, SimpleNamespace(), size, None) for n, (turn, size) in enumerate([(0, 10), (3, 4), (8, 10)])
    ]
    batch, _ = fair.take(Key(), Queue(pieces=pieces), 2, ahead)
    assert [piece.number for piece in batch] == [0, 1]


@pytest.mark.parametrize(("ahead", "expected"), [(True, 3), (False, 2)])
def test_who_is_due_is_not_searched_beside_those_whose_turn_has_not_come(fair, ahead, expected):
    """On a CPU, where the others would lengthen the search."""
    fair.served = 5.0
    pieces = [QueuedPiece(turn, n, SimpleNamespace(), 10, None) for n, turn in enumerate([0, 3, 8])]
    batch, _ = fair.take(Key(), Queue(pieces=pieces), 10, ahead)
    assert len(batch) == expected


def test_a_batch_keeps_to_its_budget_padding_included(fair):
    come(fair, Key(), *random.Random(5).choices(range(1, 30), k=200))
    for _ in range(3):
        come(fair, Key(), 250)  # one that is longer is searched alone
    sizes = []
    while fair.first():
        batch = serve(fair)
        sizes.append(len(batch) * max(piece.tokens for piece in batch))
        assert len(batch) == 1 or sizes[-1] <= 100
    assert sum(sizes) > 50 * len(sizes)  # and it is used


def test_who_leaves_leaves_nothing(fair):
    key = Key()
    gone, stays = come(fair, key, 10, 10, 10), come(fair, key, 10)
    fair.queue(key).uncut.append(gone)
    assert fair.remove(key, gone) == (3, True)
    assert [piece.request for piece in serve(fair)] == [stays]
    come(fair, key, 20)
    assert fair.seconds_left() == pytest.approx(20 / (0.2 * 10 / 1e-3))  # by the speed of one batch
    serve(fair)
    assert fair.remove(key, gone) == (0, False)
    assert fair.first() is None
    assert fair.seconds_left() == 0
