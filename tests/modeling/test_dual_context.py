"""Dual context: equal to a slow reference, to the baseline without its local half, and to itself with a cache."""

from __future__ import annotations

import pytest
import torch
from helpers.contract import TINY, Batch, assert_same, build, redraw
from reference import dual_context as reference
from torch import nn
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt.modeling import DualContextConfig, TransformerConfig
from hf_mlnmt.modeling.attention import SelfAttention
from hf_mlnmt.modeling.dual_context import DualContextAttention, DualContextDecoderLayer, DualContextEncoderLayer

WIDTH, HEADS = 6, 2


def config(member: str, **fields) -> DualContextConfig:
    return DualContextConfig(**{**TINY, "dual_context": member, **fields})


def layer(side: str, kernel: int, implementation: str, **fields) -> nn.Module:
    """One layer with the module, its matrices redrawn with std fan_in^-0.5."""
    sizes = {"d_model": WIDTH, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
    settings = config("Full-DC", kernel_size=kernel, **sizes, **fields)
    settings._attn_implementation = implementation
    module = {"encoder": DualContextEncoderLayer, "decoder": DualContextDecoderLayer}[side](settings, 0).double().eval()
    redraw(module, 5, None)
    return module


def weights_of(module: nn.Module) -> reference.Weights:
    """The paper's matrices, as in r W, from the layer's joined parameters."""
    unit, zeros = module.self_attn, torch.zeros(WIDTH, dtype=torch.float64)

    def parts(linear: nn.Linear, names: str) -> dict:
        biases = linear.bias.split(WIDTH) if linear.bias is not None else [zeros] * len(names)
        return {n: (w.t(), b) for n, w, b in zip(names, linear.weight.split(WIDTH), biases, strict=True)}

    of_r, of_local = parts(unit.global_proj, "lqkv"), parts(unit.local_proj, "kv")
    norm = module.self_attn_sublayer.layer_norm
    return reference.Weights(
        convolution=unit.convolution.weight.t(),
        convolution_bias=unit.convolution.bias,
        local_norm=(unit.convolution_norm.weight, unit.convolution_norm.bias),
        local_unit={"q": of_r.pop("l"), **of_local},
        global_unit=of_r,
        output=unit.out_proj.weight.t(),
        output_bias=unit.out_proj.bias,
        norm=(norm.weight, norm.bias),
    )


def mask_of(real: torch.Tensor, causal: bool, implementation: str) -> torch.Tensor:
    """What Transformers hands to the attention: additive for eager, boolean for SDPA."""
    length = real.shape[1]
    mask = real[:, None, None, :].expand(-1, 1, length, -1)
    if causal:
        mask = mask & torch.ones(length, length, dtype=torch.bool).tril()
    return mask if implementation == "sdpa" else (~mask).double() * torch.finfo(torch.float64).min


@pytest.mark.parametrize(
    ("kernel", "implementation", "bias"),
    [
        (2, "eager", False),
        (2, "sdpa", True),
        (3, "eager", True),
        (3, "sdpa", False),
        (8, "eager", False),
        (8, "sdpa", True),
    ],
)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_module_equals_the_reference(side, kernel, implementation, bias):
    module, causal = layer(side, kernel, implementation, attention_bias=bias), side == "decoder"
    r = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    mask = mask_of(real, causal, implementation)
    past = (None, {}) if causal else ()
    actual = module.attend_self(r, mask, *past)
    maps = module.self_attn(r, mask)[1]
    expected, expected_maps = reference.dual_context(r, real, weights_of(module), HEADS, kernel, causal)
    assert_same(actual[real], expected[real], 1e-11)
    if implementation == "eager":
        assert_same(maps.transpose(1, 3).transpose(2, 3)[real], expected_maps.transpose(1, 3).transpose(2, 3)[real])
    else:
        assert maps is None
    leaves = [r, *module.self_attn.parameters(), *module.self_attn_sublayer.parameters()]
    probe = torch.randn_like(actual) * real.unsqueeze(-1)
    got = torch.autograd.grad((actual * probe).sum(), leaves)
    wanted = torch.autograd.grad((expected * probe).sum(), leaves)
    assert_same(got, wanted, 1e-10)


def test_without_a_mask_all_positions_are_real():
    for side, causal in (("encoder", False), ("decoder", True)):
        module = layer(side, 4, "sdpa")
        r = torch.randn(2, 5, WIDTH, dtype=torch.float64)
        real = torch.ones(2, 5, dtype=torch.bool)
        actual = module.attend_self(r, None, *([None, {}] if causal else []))
        assert_same(actual, reference.dual_context(r, real, weights_of(module), HEADS, 4, causal)[0], 1e-11)


@pytest.mark.parametrize(("norm", "bias"), [("post", False), ("pre", True)])
@pytest.mark.parametrize("name", ["Enc-DC", "Dec-DC", "Full-DC"])
def test_without_the_local_half_it_is_the_baseline(name, norm, bias):
    """W_z = [0 ; W_o], b_z = b_o: the baseline's self-attention, whatever the local unit computes."""
    fields = {"norm_position": norm, "attention_bias": bias}
    model, baseline = (
        build(config(name, kernel_size=3, **fields)),
        build(TransformerConfig(**{**TINY, **fields}), seed=1),
    )
    plain, modules = dict(baseline.named_modules()), dict(model.named_modules())
    width = TINY["d_model"]
    with torch.no_grad():
        for path, module in modules.items():
            if isinstance(module, DualContextAttention):
                module.global_proj.weight[width:].copy_(plain[path].qkv_proj.weight)
                module.out_proj.weight.copy_(nn.functional.pad(plain[path].out_proj.weight, (width, 0)))
                module.out_proj.bias.copy_(plain[path].out_proj.bias if bias else torch.zeros(width))
                if bias:
                    module.global_proj.bias[width:].copy_(plain[path].qkv_proj.bias)
        shared = {k: v for k, v in baseline.state_dict().items() if k in model.state_dict() and "out_proj" not in k}
        shared |= {k: v for k, v in baseline.state_dict().items() if "source_attn.out_proj" in k}
        for path, module in modules.items():
            if isinstance(module, SelfAttention):  # the side without the module
                shared |= {f"{path}.{k}": v for k, v in plain[path].state_dict().items()}
    model.load_state_dict(shared, strict=False)
    batch = Batch.draw()
    with torch.no_grad():
        assert_same(model(**batch.inputs).logits, baseline(**batch.inputs).logits, 1e-11)


@pytest.mark.parametrize("layers", [None, [1, 1], [2, 3]])
@pytest.mark.parametrize("name", ["Enc-DC", "Dec-DC", "Full-DC"])
def test_layers_in_the_range_have_the_module(name, layers):
    model = build(config(name, dual_layers=layers, encoder_layers=3, decoder_layers=3))
    first, last = layers or (1, 3)
    for side, stack in (("Enc", model.model.encoder), ("Dec", model.model.decoder)):
        for number, module in enumerate(stack.layers, 1):
            dual = name in ("Full-DC", f"{side}-DC") and first <= number <= last
            assert isinstance(module.self_attn, DualContextAttention if dual else SelfAttention)


# Millions in [T1] table 5.2 and [P2] table 1; 61.2 is the baseline's, whose vocabulary is "about 33k".
@pytest.mark.parametrize(
    ("system", "published"), [("transformer", 61.2), ("enc-dc", 73.9), ("dec-dc", 73.9), ("full-dc", 86.5)]
)
def test_parameters_at_the_published_shape(system, published):
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(
            hf_mlnmt.config_for(system, "base", vocab_size=33413, attention_bias=True)
        )
    assert round(model.num_parameters() / 1e6, 1) == published


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kernel_size": 1}, "kernel_size=1: must be from 2 to 8"),
        ({"kernel_size": 9}, "kernel_size=9: must be from 2 to 8"),
        ({"dual_layers": []}, r"dual_layers=\[\].*1 <= i <= j <= encoder_layers=2"),
        ({"dual_layers": [2, 1]}, r"dual_layers=\[2, 1\]"),
        ({"dual_layers": [0, 1]}, r"dual_layers=\[0, 1\]"),
        ({"dual_layers": [1, 3]}, r"dual_layers=\[1, 3\].*encoder_layers=2"),
        ({"dual_layers": [1, 2, 2]}, r"dual_layers=\[1, 2, 2\]"),
        ({"dual_context": "Dec-DC", "dual_layers": [1, 4], "encoder_layers": 4}, "decoder_layers=2"),
        ({"dual_context": "Full-DC", "dual_layers": [2, 2], "decoder_layers": 1}, "decoder_layers=1"),
        ({"dual_context": "enc-dc"}, "dual_context"),
        ({"kernel_size": 2.0}, "kernel_size"),
    ],
)
def test_bad_configurations_are_refused(fields, message):
    with pytest.raises(Exception, match=message):
        DualContextConfig(**{**TINY, **fields})
