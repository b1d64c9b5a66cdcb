"""Linear layers in int8: what rounding costs, few rows and many, and that a search's step is written out from them."""

from __future__ import annotations

import pytest
import torch
from helpers.searching import decode, sources, toy, written_out
from torch import nn

from hf_mlnmt.search.int8 import MANY_ROWS, Int8Linear, in_int8


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 40), (3, 40), (2, MANY_ROWS, 40)])
def test_a_product(shape, bias):
    """Outputs of different sizes have scales of their own; inputs are rounded to 127 steps of their range."""
    torch.manual_seed(1)
    linear = nn.Linear(40, 70, bias)
    with torch.no_grad():
        linear.weight *= 10.0 ** torch.linspace(-3, 0, 70)[:, None]
        linear.weight[3] = 0
    states = torch.randn(shape)
    found, expected = Int8Linear(linear)(states), linear(states)
    assert found.shape == expected.shape
    rows = linear.weight.abs()
    spread = states.amax() - states.amin()
    # A step of an input is spread / 127, one of a weight its row's largest / 127; each is wrong by half of it at most.
    bound = 0.5 * spread / 127 * rows.sum(1) + 0.51 * rows.amax(1) / 127 * states.abs().sum(-1, keepdim=True).amax()
    assert ((found - expected).abs() <= 1.05 * bound + 1e-6).all()
    assert torch.equal(found[..., 3], expected[..., 3])


def test_few_rows_and_many_are_the_same_weight():
    linear = Int8Linear(nn.Linear(64, 32))
    states = torch.randn(MANY_ROWS, 64)
    many, few = linear(states), torch.ops.quantized.linear_dynamic(states, linear.few_rows, True)
    torch.testing.assert_close(many, few, atol=0.05, rtol=0)


@pytest.mark.parametrize("beams", [1, 3])
def test_the_step_is_written_out_and_is_the_modules(beams, monkeypatch):
    model = in_int8(toy(d_model=64).float())
    assert written_out(model) is not None
    assert all(type(module) is not nn.Linear for module in model.modules())
    batch = sources((6, 1, 4))
    found = decode(model, **batch, num_beams=beams, max_new_tokens=6).sequences
    monkeypatch.setattr("hf_mlnmt.search.transformer.write_out", lambda *_: None)
    assert torch.equal(decode(model, **batch, num_beams=beams, max_new_tokens=6).sequences, found)


def test_the_model_itself_stays():
    model = toy().float()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rounded = in_int8(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert rounded.get_input_embeddings().weight.data_ptr() != model.get_input_embeddings().weight.data_ptr()
    assert not list(rounded.lm_head.parameters())
