"""Learning-rate schedules."""

from __future__ import annotations

import math

import pytest
import torch

from hf_mlnmt import UserError
from hf_mlnmt.training.schedules import Schedule


def test_warmup_begins_above_zero_and_ends_at_one():
    for name in ("cosine", "inverse_sqrt", "linear", "newbob", "constant"):
        schedule = Schedule(name, warmup=4, total=20)
        assert [schedule(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_shapes_by_hand():
    assert [Schedule("linear", 2, 6)(step) for step in range(2, 7)] == [1, 0.75, 0.5, 0.25, 0]
    cosine = [Schedule("cosine", 0, 4)(step) for step in range(5)]
    assert cosine == pytest.approx([1, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4, 0])
    assert Schedule("inverse_sqrt", 100)(399) == 0.5
    assert Schedule("cosine", 0, 4, floor=0.2)(4) == 0.2


def test_newbob_reduces_when_the_dev_loss_stalls():
    schedule = Schedule("newbob", factor=0.5, patience=2)
    seen = []
    for loss in (3.0, 2.0, 2.5, 2.1, 1.9, 1.9, 1.9, 1.0):
        schedule.observe(loss)
        seen.append(schedule(100))
    assert seen == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]


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
