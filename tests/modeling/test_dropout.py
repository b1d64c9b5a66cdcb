"""The fast dropout is a dropout: rate, scale, gradient, independence of neighbours, and the plain one elsewhere."""

from __future__ import annotations

import pytest
import torch

from hf_mlnmt import config_for
from hf_mlnmt.modeling.layers import Dropout, Sublayer


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
def test_rate_and_scale(rate):
    torch.manual_seed(0)
    out = Dropout(rate)(torch.full((500, 400), 3.0))
    kept = out != 0
    assert float(kept.float().mean()) == pytest.approx(1 - rate, abs=5 * (rate * (1 - rate) / kept.numel()) ** 0.5)
    torch.testing.assert_close(out[kept], torch.full((int(kept.sum()),), 3.0 / (1 - rate)))


@pytest.mark.parametrize("shape", [(1,), (3,), (5, 7), (2, 3, 5)])
def test_any_number_of_elements(shape):
    torch.manual_seed(1)
    outs = torch.stack([Dropout(0.5)(torch.ones(shape)) for _ in range(200)])
    assert outs.shape[1:] == shape
    assert ((outs == 0) | (outs == 2)).all()
    assert ((outs == 0).any(0) & (outs == 2).any(0)).all()


def test_gradient_is_the_same_selection():
    torch.manual_seed(2)
    states = torch.randn(11, 13, requires_grad=True)
    out = Dropout(0.3)(states)
    incoming = torch.randn(11, 13)
    out.backward(incoming)
    torch.testing.assert_close(states.grad, torch.where(out != 0, incoming / 0.7, 0.0))


def test_neighbours_are_independent():
    torch.manual_seed(3)
    kept = (Dropout(0.5)(torch.ones(400_000)) != 0).float() - 0.5
    for distance in (1, 2, 3, 4, 8):
        assert abs(float((kept[:-distance] * kept[distance:]).mean())) < 0.002


def test_seed_decides():
    def draw(seed):
        torch.manual_seed(seed)
        return Dropout(0.5)(torch.ones(64))

    assert torch.equal(draw(4), draw(4))
    assert not torch.equal(draw(4), draw(5))


def test_identity_in_evaluation_and_at_rate_zero():
    states = torch.randn(4, 5)
    assert torch.equal(Dropout(0.5).eval()(states), states)
    assert torch.equal(Dropout(0.0)(states), states)


def test_plain_dropout_for_other_types():
    torch.manual_seed(6)
    out = Dropout(0.5)(torch.ones(1000, dtype=torch.float64))
    assert out.dtype == torch.float64
    assert set(out.tolist()) == {0.0, 2.0}


def test_fast_under_autocast():
    """bfloat16 becomes float32 and has the same selection; without autocast it stays what it is."""
    states = torch.randn(40, 50)

    def draw(states):
        torch.manual_seed(7)
        return Dropout(0.3)(states)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = draw(states.bfloat16())
    assert torch.equal(mixed, draw(states.bfloat16().float()))
    assert draw(states.bfloat16()).dtype == torch.bfloat16


def test_a_sublayer_drops_what_it_computes_and_no_residual():
    """Equation 3 of layers.py: x + dropout(f(LN(x)))."""
    sublayer = Sublayer(config_for("transformer", "tiny", norm_position="pre", dropout=0.5)).train()
    states = torch.randn(50, 128)
    added = sublayer(states, lambda x: torch.ones_like(x)) - states
    assert set(added.round().unique().tolist()) == {0.0, 2.0}
