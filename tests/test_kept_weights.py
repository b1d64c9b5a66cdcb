"""Weights in another layout: kept from search to search, made anew after every change that a training makes."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from helpers.searching import decode, sources, toy
from torch import nn

from hf_mlnmt.common import matmul_backends as weight_cache
from hf_mlnmt.common.matmul_backends import forget, kept


class Layout:
    def __init__(self):
        self.times = 0

    def __call__(self, weight):
        self.times += 1
        return weight.detach().t().contiguous()


def test_made_once_for_each_layout():
    module, one, two = nn.Linear(3, 5), Layout(), Layout()
    assert kept(module, "a", one) is kept(module, "a", one)
    assert kept(module, "b", two) is not kept(module, "a", one)
    assert one.times == two.times == 1
    forget()
    kept(module, "a", one)
    assert one.times == 2


def whole(module):
    module.weight.data = module.weight.data.clone() + 1


def of_data(module, part):
    module.weight.data[part] += 1


CHANGES = {
    "an optimizer": lambda m: step(m),
    "load_state_dict": lambda m: m.load_state_dict({"weight": torch.ones(7, 4), "bias": torch.ones(7)}),
    "other data": whole,
    "data in place": lambda m: of_data(m, slice(None)),
    "a row of the data": lambda m: of_data(m, 5),
    "a column of the data": lambda m: of_data(m, (slice(None), 2)),
    "another parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(7, 4))),
    "another type": lambda m: m.double(),
}


def step(module):
    optimizer = torch.optim.Adam(module.parameters(), 1e-4)
    module(torch.ones(1, 4)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shape", [(4, 7)])
def test_made_anew_when_the_weight_changes(change, shape):
    module, layout = nn.Linear(*shape), Layout()
    kept(module, "a", layout)
    CHANGES[change](module)
    assert torch.equal(kept(module, "a", layout), module.weight.t())
    assert layout.times == 2


def test_every_row_and_column_is_looked_at():
    for shape in ((3, 8), (8, 3), (5, 5), (6, 4)):
        for axis in (0, 1):
            for index in range(shape[1 - axis]):
                module, layout = nn.Linear(*shape), Layout()
                kept(module, "a", layout)
                module.weight.data.select(axis, index).add_(1)
                kept(module, "a", layout)
                assert layout.times == 2, (shape, axis, index)


def test_what_is_not_kept(monkeypatch):
    module, layout = nn.Linear(3, 5), Layout()
    monkeypatch.setattr(weight_cache, "LARGEST", 14)
    kept(module, "a", layout), kept(module, "a", layout)
    assert layout.times == 2


def test_gone_with_the_module():
    forget()
    module = nn.Linear(3, 5)
    kept(module, "a", Layout())
    del module
    gc.collect()
    assert not weight_cache._KEPT


def test_a_model_that_is_trained_between_searches_searches_as_a_new_one():
    """And a copy of a model has weights of its own."""
    model, batch = toy(d_model=48).float(), sources((6, 1, 4))
    first = decode(model, **batch, num_beams=3, max_new_tokens=8).sequences
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-1.3)
    second = decode(other, **batch, num_beams=3, max_new_tokens=8).sequences
    assert not torch.equal(first, second)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.3)
    assert torch.equal(decode(model, **batch, num_beams=3, max_new_tokens=8).sequences, second)
