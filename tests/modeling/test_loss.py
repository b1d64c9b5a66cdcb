"""The fused projection and cross-entropy against the plain one and the reference's loops."""

from __future__ import annotations

import pytest
import torch
from helpers.contract import assert_same
from reference.transformer import loss as reference_loss
from torch import nn

from hf_mlnmt.modeling import fused as module
from hf_mlnmt.modeling.fused import projected_cross_entropy
from hf_mlnmt.modeling.loss import cross_entropy


def example(rows: int = 7, dtype: torch.dtype = torch.float64, scale: float = 1.0):
    """States (2, rows, 5), weight (11, 5) and labels (2, rows) with a few -100."""
    generator = torch.Generator().manual_seed(rows)
    states = (scale * torch.randn(2, rows, 5, generator=generator)).to(dtype).requires_grad_()
    weight = torch.randn(11, 5, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(0, 11, (2, rows), generator=generator)
    labels[:, ::3] = -100
    return states, weight, labels


def results(compute, states, weight, factor: float = 1.0):
    states.grad = weight.grad = None
    value = compute()
    (factor * value).backward()
    return value.detach(), states.grad.clone(), weight.grad.clone()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("chunk", [1, 2, 3, 8, 9, 256])
def test_all_three_agree(monkeypatch, chunk, smoothing):
    monkeypatch.setattr(module, "ROWS", chunk)
    states, weight, labels = example()
    fused = results(lambda: projected_cross_entropy(states, weight, labels, smoothing), states, weight, 3.0)
    plain = results(lambda: cross_entropy(states @ weight.t(), labels, smoothing), states, weight, 3.0)
    loops = results(lambda: reference_loss(states @ weight.t(), labels.tolist(), smoothing), states, weight, 3.0)
    assert_same(fused, plain)
    assert_same(plain, loops)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("positions", [1, 3, 100])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_of_a_device_that_is_waited_for_and_of_one_that_is_not(monkeypatch, ahead, biased, positions, smoothing):
    """Where Python runs ahead all positions are projected, as many at a time as their logits may take bytes, and those
    without a label count 0; elsewhere only those that have one."""
    states, weight, labels = example()
    bias = torch.linspace(-1, 2, 11, dtype=torch.float64).requires_grad_() if biased else None
    monkeypatch.setattr(module, "is_asynchronous", lambda states: ahead)
    monkeypatch.setattr(module, "LOGITS", positions * 11 * 8)
    monkeypatch.setattr(module, "ROWS", positions)
    sizes, product = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda *given, out: sizes.append(len(out)) or product(*given, out=out))
    fused = results(lambda: projected_cross_entropy(states, weight, labels, smoothing, bias), states, weight, 3.0)
    by_bias = bias.grad.clone() if biased else None
    monkeypatch.undo()
    assert max(sizes) == min(positions, 14 if ahead else int((labels != -100).sum()))
    if biased:
        bias.grad = None
    logits = lambda: nn.functional.linear(states, weight, bias)  # noqa: E731
    plain = results(lambda: cross_entropy(logits(), labels, smoothing), states, weight, 3.0)
    assert_same(fused, plain)
    if biased:
        assert_same(by_bias, bias.grad)


def test_extreme_scores_stay_finite():
    states, weight, labels = example(dtype=torch.float32, scale=300.0)
    fused = results(lambda: projected_cross_entropy(states, weight, labels, 0.1), states, weight)
    plain = results(lambda: cross_entropy(states @ weight.t(), labels, 0.1), states, weight)
    assert all(value.isfinite().all() for value in fused)
    assert_same(fused, plain, 1e-3)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_nothing_to_predict(smoothing):
    states, weight, labels = example()
    labels.fill_(-100)
    for compute in (
        lambda: projected_cross_entropy(states, weight, labels, smoothing),
        lambda: cross_entropy(states @ weight.t(), labels, smoothing),
    ):
        value, by_states, by_weight = results(compute, states, weight)
        assert value == 0
        assert not by_states.any()
        assert not by_weight.any()


def test_backward_twice():
    states, weight, labels = example()
    value = projected_cross_entropy(states, weight, labels, 0.1)
    first = torch.autograd.grad(value, (states, weight), retain_graph=True)
    second = torch.autograd.grad(2 * value, (states, weight))
    assert_same(tuple(2 * g for g in first), second)


@pytest.mark.parametrize("frozen", ["states", "weight"])
def test_one_side_frozen(frozen):
    states, weight, labels = example()
    tensors = {"states": states, "weight": weight}
    tensors[frozen].requires_grad_(False)
    (other,) = (t for name, t in tensors.items() if name != frozen)
    projected_cross_entropy(states, weight, labels, 0.1).backward()
    actual, other.grad = other.grad, None
    cross_entropy(states @ weight.t(), labels, 0.1).backward()
    assert tensors[frozen].grad is None
    assert_same(actual, other.grad)


def test_without_gradients():
    states, weight, labels = example()
    with torch.no_grad():
        assert_same(projected_cross_entropy(states, weight, labels), cross_entropy(states @ weight.t(), labels))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bfloat16_autocast(smoothing):
    states, weight, labels = example(300, torch.float32)
    exact = results(lambda: cross_entropy(states @ weight.t(), labels, smoothing), states, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = projected_cross_entropy(states, weight, labels, smoothing)
    half = results(lambda: value, states, weight)
    assert half[0].dtype == torch.float32
    assert half[1].dtype == half[2].dtype == torch.float32
    assert float(half[0]) == pytest.approx(float(exact[0]), rel=5e-3)
    for gradient, expected in zip(half[1:], exact[1:]):
        assert (gradient - expected).norm() < 0.02 * expected.norm()


def test_bfloat16_sums_over_chunks_are_in_float32(monkeypatch):
    """The gradient of the weight, a sum over a thousand chunks of products that are rounded each by itself.

    Rounding to nearest changes a product, and the sum at the end, by 2^-9 of it at most: here all products are positive
    and equal, so the whole is within 2^-8. A sum kept in bfloat16 stops growing at 256 times a product.
    """
    monkeypatch.setattr(module, "ROWS", 1)
    states = torch.full((1000, 3), 0.7, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(5, 3, dtype=torch.bfloat16, requires_grad=True)
    projected_cross_entropy(states, weight, torch.zeros(1000, dtype=torch.int64)).backward()
    expected = 1000 * torch.tensor([0.2 - 1.0, 0.2, 0.2, 0.2, 0.2]).unsqueeze(1) * states[0].detach().double()
    assert weight.grad.dtype == torch.bfloat16
    assert ((weight.grad.double() - expected).abs() <= 2.0**-8 * 2 * expected.abs()).all()


def test_bfloat16_weights():
    states, weight, labels = example(300, torch.bfloat16)
    fused = results(lambda: projected_cross_entropy(states, weight, labels, 0.1), states, weight)
    plain = results(lambda: cross_entropy(states @ weight.t(), labels, 0.1), states, weight)
    assert fused[0].dtype == torch.float32
    assert float(fused[0]) == pytest.approx(float(plain[0]), rel=5e-3)
    for gradient, expected in zip(fused[1:], plain[1:]):
        assert gradient.dtype == torch.bfloat16
        assert (gradient - expected).norm() < 0.02 * expected.norm()
