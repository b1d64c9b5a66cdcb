"""The matrix that a layer's call multiplies by, whatever the layer is."""

from __future__ import annotations

import pytest
import torch
from helpers.contract import TINY, Member, assert_same
from peft import LoraConfig, get_peft_model
from torch import nn

from hf_mlnmt.modeling.extended_cross_attention import chained
from hf_mlnmt.modeling.matrices import is_plain, matrix_of

DRAW = torch.randn(7, 5, dtype=torch.float64)


def plain(inputs: int = 5, outputs: int = 3, bias: bool = True) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias).double()


def adapted(module: nn.Linear, bias: bool) -> nn.Module:
    options = {"init_lora_weights": False, "lora_bias": bias}
    model = get_peft_model(nn.Sequential(module), LoraConfig(r=2, target_modules=["0"], **options))
    nn.init.ones_(model.base_model.model[0].lora_B["default"].bias) if bias else None
    return model.base_model.model[0]


def hooked(module: nn.Linear) -> nn.Linear:
    module.register_forward_hook(lambda m, args, output: 2 * output)
    return module


def replaced(module: nn.Linear) -> nn.Linear:
    """As accelerate does it."""
    forward = module.forward
    module.forward = lambda x: 3 * forward(x)  # type: ignore[method-assign]
    return module


KINDS = {
    "plain": lambda: plain(),
    "no bias": lambda: plain(bias=False),
    "hook": lambda: hooked(plain()),
    "another forward": lambda: replaced(plain()),
    "parametrised": lambda: nn.utils.parametrizations.weight_norm(plain()),
    "adapter": lambda: adapted(plain(), False),
    "adapter, no bias": lambda: adapted(plain(bias=False), False),
    "adapter, bias": lambda: adapted(plain(), True),
    "adapter with the only bias": lambda: adapted(plain(bias=False), True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_a_call_multiplies_by(kind):
    module = KINDS[kind]()
    weight, bias = matrix_of(module, DRAW)
    assert is_plain(module) == (kind in ("plain", "no bias"))
    assert_same(DRAW @ weight.t() + (0 if bias is None else bias), module(DRAW), 1e-12)
    trained = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad((DRAW @ weight.t()).square().sum(), trained, allow_unused=True)
    assert any(gradient is not None and gradient.any() for gradient in found)


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", ["plain", "no bias", "adapter, bias"])
def test_two_behind_each_other(first, second):
    first, second = (
        KINDS[first](),
        {"adapter, bias": lambda: adapted(plain(3, 4), True)}.get(second, lambda: plain(3, 4, second == "plain"))(),
    )
    outer, inner, bias = chained(second, first, DRAW)
    assert_same(DRAW @ inner.t() @ outer.t() + (0 if bias is None else bias), second(first(DRAW)), 1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_a_key_value_pair_is_what_the_three_layers_make_of_a_context(bias):
    model = Member("key-value-full", "bias", TINY).model(attention_bias=bias)
    targets = ["context_proj", "context_kv_proj", "kv_proj"]
    options = {"init_lora_weights": False, "lora_bias": True, "target_modules": targets}
    adapter = get_peft_model(model, LoraConfig(r=2, **options))
    for name, parameter in adapter.named_parameters():
        if "lora_B" in name and name.endswith("bias"):
            nn.init.ones_(parameter)
    attention = adapter.base_model.model.model.decoder.layers[0].source_attn
    context = torch.randn(3, TINY["d_model"], dtype=torch.float64)
    matrix, shift = attention.transition(context)
    expected = attention.kv_proj(attention.context_kv_proj(attention.context_proj(context)))
    assert_same(context @ matrix[0] + shift[0], expected, 1e-10)


def test_no_autocast_within():
    module = adapted(plain().float(), False)
    exact = matrix_of(module, DRAW)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(matrix_of(module, DRAW), exact, 0.0)
