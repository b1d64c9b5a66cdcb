"""Linear layers in int8: what rounding costs, compiled and not, and that a search's step is written out from them."""

from __future__ import annotations

import pytest
import torch
from helpers.searching import call_modules, compiled_step, decode, sources, toy
from torch import nn

from hf_mlnmt.search.cpu.int8 import Int8Linear, compiled, in_int8

has_instructions = compiled(Int8Linear(nn.Linear(4, 4))) is not None
ROWS = (1, 2, 3, 16, 17, 33, 70)  # vectors and tiles of 16 and 32 rows, whole and not


@pytest.fixture(params=["compiled", "PyTorch"])
def way(request, monkeypatch):
    """Both ways of computing a product."""
    if request.param == "PyTorch":
        monkeypatch.setenv("HF_MLNMT_NATIVE", "0")
    elif not has_instructions:
        pytest.skip("no compiler, or no instructions for int8, here")


@pytest.fixture
def threads_restored():
    """As many threads after the test as before it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 40), (3, 40), (2, 24, 40)])
def test_a_product(shape, bias, way):
    """Outputs of different sizes have scales of their own, and so have the rows of an input."""
    torch.manual_seed(1)
    linear = nn.Linear(40, 70, bias)
    with torch.no_grad():
        linear.weight *= 10.0 ** torch.linspace(-3, 0, 70)[:, None]
        linear.weight[3] = 0
    states = torch.randn(shape) * 10.0 ** torch.linspace(-2, 2, shape[-2])[:, None]
    found, expected = Int8Linear(linear)(states), linear(states)
    assert found.shape == expected.shape
    rows, largest = linear.weight.abs(), states.abs().amax(-1, keepdim=True)
    # A step of an input is its row's largest / 127, one of a weight its row's; each is wrong by half of it at most.
    bound = 0.5 * largest / 127 * rows.sum(1) + 0.51 * rows.amax(1) / 127 * states.abs().sum(-1, keepdim=True)
    assert ((found - expected).abs() <= 1.05 * bound + 1e-6).all()
    assert torch.equal(found[..., 3], expected[..., 3])


def test_a_number_is_rounded_to_the_nearest_step(way):
    """Beside a matrix of ones on the diagonal, which is exact, each side alone is wrong by half a step at most."""
    torch.manual_seed(2)
    linear, diagonal = nn.Linear(64, 64, bias=False), torch.eye(64)
    rounded = Int8Linear(linear)(diagonal).T
    assert ((rounded - linear.weight).abs() <= 0.501 / 127 * linear.weight.abs().amax(1, keepdim=True)).all()
    states = torch.randn(64, 64)
    linear.weight.data = diagonal
    assert ((Int8Linear(linear)(states) - states).abs() <= 0.501 / 127 * states.abs().amax(1, keepdim=True)).all()


@pytest.mark.skipif(not has_instructions, reason="no compiler, or no instructions for int8, here")
@pytest.mark.parametrize("sizes", [(512, 130), (64, 64), (7, 3), (100, 640)])
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_code_is_pytorchs_operations(sizes, threads, threads_restored):
    """The sums are whole numbers: all that differs is the rounding of sum x scale x scale + bias, four roundings."""
    torch.set_num_threads(threads)
    linear = Int8Linear(nn.Linear(*sizes))
    for rows in ROWS:
        states = torch.randn(rows, sizes[0])
        states[-1] = 0
        expected = linear.multiply(states)
        difference = (linear(states) - expected).abs()
        assert (difference <= 4 * 2.0**-23 * (expected.abs() + 2 * linear.bias.abs())).all()
        assert torch.equal(linear(states)[-1], linear.bias)


def test_a_row_is_computed_as_if_it_were_alone(way):
    linear, states = Int8Linear(nn.Linear(96, 70)), torch.randn(40, 96)
    states[7] *= 1000
    alone = torch.cat([linear(row[None]) for row in states])
    torch.testing.assert_close(linear(states), alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fields", [{}, {"activation_function": "swish", "attention_bias": True}, {"system": "ssru"}])
def test_compiled_steps_are_pytorchs_steps(fields, monkeypatch):
    model, batch = in_int8(toy(d_model=64, **fields).float()), sources((6, 1, 4, 17, 3, 3, 8))
    found = decode(model, **batch, num_beams=3, max_new_tokens=6)
    monkeypatch.setenv("HF_MLNMT_NATIVE", "0")
    expected = decode(model, **batch, num_beams=3, max_new_tokens=6)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=0, atol=0.01)  # a tie may fall


@pytest.mark.skipif(not has_instructions, reason="no compiler, or no instructions for int8, here")
@pytest.mark.parametrize("beams", [1, 3])
def test_the_compiled_step_is_the_modules(beams, monkeypatch):
    model = in_int8(toy(d_model=64).float())
    assert compiled_step(model) is not None
    assert all(type(module) is not nn.Linear for module in model.modules())
    batch = sources((6, 1, 4))
    found = decode(model, **batch, num_beams=beams, max_new_tokens=6).sequences
    call_modules(monkeypatch)
    assert torch.equal(decode(model, **batch, num_beams=beams, max_new_tokens=6).sequences, found)


def test_the_model_itself_stays():
    model = toy().float()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rounded = in_int8(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert rounded.get_input_embeddings().weight.data_ptr() != model.get_input_embeddings().weight.data_ptr()
    assert not list(rounded.lm_head.parameters())
