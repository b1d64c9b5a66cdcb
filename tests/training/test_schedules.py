"""Learning-rate schedules."""

from __future__ import annotations

import math

import pytest
import torch

from hf_mlnmt import UserError
from hf_mlnmt.training.arguments import Schedule


def test_warmup_begins_above_zero_and_ends_at_one():
    for name in ("cosine", "inverse_sqrt", "linear", "newbob", "constant"):
        schedule = Schedule(name, warmup=4, total=20)
        assert [schedule(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_buckets_by_hand():
    assert [Schedule("linear", 2, total=6)(step) for step in range(2, 7)] == [1, 0.75, 0.5, 0.25, 0]
    cosine = [Schedule("cosine", 0, total=4)(step) for step in range(5)]
    assert cosine == pytest.approx([1, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4, 0])
    assert Schedule("inverse_sqrt", 100)(399) == 0.5
    assert Schedule("cosine", 0, total=4, floor=0.2)(4) == 0.2


def test_restarts_by_hand():
    schedule = Schedule("linear", 2, total=12, restarts=2, restart_steps=4, restart_factor=0.5)
    assert [schedule(step) for step in range(13)] == [
        *[0.5, 1],  # warm-up
        *[1, 0.5],  # from 2 to 4
        *[0.5, 0.375, 0.25, 0.125],
        *[0.5, 0.375, 0.25, 0.125],
        0,
    ]
    assert schedule.ends(12) == [4, 8, 12]
    assert Schedule("linear", 2, total=12).ends(12) == []
    with pytest.raises(UserError, match="2 cycles of 4 steps and a warm-up of 2 do not fit in a training of 10"):
        schedule.ends(10)
    cosine = Schedule("cosine", 0, total=8, restarts=1, restart_steps=4, restart_factor=0.4)
    whole = Schedule("cosine", 0, total=4)
    shape = [whole(step) for step in range(5)]
    assert [cosine(step) for step in range(9)] == pytest.approx([*shape[:4], *(0.4 * value for value in shape)])


@pytest.mark.parametrize(
    "settings",
    [{"name": "inverse_sqrt", "restart_steps": 4}, {"name": "linear"}, {"name": "cosine", "restart_steps": -1}],
)
def test_restarts_that_make_no_sense(settings):
    with pytest.raises(UserError, match="restarts is 2: 0 or more are expected"):
        Schedule(restarts=2, **settings)


def test_newbob_reduces_when_the_dev_loss_stalls():
    schedule = Schedule("newbob", factor=0.5, patience=2)
    seen = []
    for loss in (3.0, 2.0, 2.5, 2.1, 2.0, 1.9, 1.9, 1.9, 1.0):
        schedule.observe(loss)
        seen.append(schedule(100))
    assert seen == [1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]
    choosy = Schedule("newbob", factor=0.5, patience=2, threshold=0.1)
    for loss in (1.0, 0.95, 0.91):
        choosy.observe(loss)
    assert choosy(100) == 0.5


def test_newbob_remembers_through_a_checkpoint():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
    schedule = Schedule("newbob", factor=0.5, patience=2)
    scheduler = schedule.scheduler(optimizer)
    schedule.observe(1.0)
    schedule.observe(1.0)
    again = Schedule("newbob", factor=0.5, patience=2)
    again.scheduler(optimizer).load_state_dict(scheduler.state_dict())
    again.observe(1.0)
    assert again(7) == 0.5


def test_unknown_name():
    with pytest.raises(UserError, match=r"schedule 'cosin' is unknown \(did you mean 'cosine'\?\)"):
        Schedule("cosin")
