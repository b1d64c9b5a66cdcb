"""Multi-layer multi-head attention: equal to a slow reference, to n separate calls, and to the baseline when n = 1."""

from __future__ import annotations

import functools

import pytest
import torch
from helpers.contract import TINY, Batch, assert_same, redraw
from reference import multi_layer_attention as reference
from torch import nn
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt.modeling import MultiLayerAttentionConfig
from hf_mlnmt.modeling.multi_layer_attention import MultiLayerAttention, PerLayerLinear

MEMBERS = ["M-00", "M-01", "M-10", "M-11"]
LAYERS, HEADS, WIDTH = 3, 2, 8
SIZES = {**TINY, "encoder_layers": LAYERS, "decoder_layers": 2}


def config(name: str, **fields) -> MultiLayerAttentionConfig:
    return MultiLayerAttentionConfig(**{**SIZES, "multi_layer_attention": name, **fields})


def build(settings, std: float | None = None, seed: int = 0):
    """A float64 model in evaluation mode, its matrices redrawn with std fan_in^-0.5."""
    return redrawn(AutoModelForSeq2SeqLM.from_config(settings), std, seed)


def redrawn(module: nn.Module, std: float | None, seed: int):
    """`redraw`, and the fan-in of (n, outputs, inputs) is its inputs."""
    redraw(module.double().eval(), seed, std)
    for part in module.modules():
        if std is None and isinstance(part, PerLayerLinear):
            part.weight.data *= part.weight.shape[1] ** 0.5
    return module


def attention(name: str, implementation: str = "eager", **fields) -> MultiLayerAttention:
    settings = config(name, d_model=WIDTH, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, **fields)
    settings._attn_implementation = implementation
    return redrawn(MultiLayerAttention(settings, HEADS, 0), None, 5)


def weights_of(module: MultiLayerAttention) -> reference.Weights:
    """The paper's matrices, as in f W, from the module's joined parameters."""
    zeros = torch.zeros(WIDTH, dtype=torch.float64)
    bias = module.q_proj.bias is not None
    keys, values = module.kv_proj.weight.chunk(2, dim=1)
    rows = module.kv_proj.bias.chunk(2, dim=1) if bias else [[zeros] * module.layers] * 2
    return reference.Weights(
        query=[block.t() for block in module.q_proj.weight.chunk(module.layers)],
        key=[block.t() for block in keys],
        value=[block.t() for block in values],
        output=module.out_proj.weight.t(),
        query_bias=list(module.q_proj.bias.chunk(module.layers)) if bias else [zeros] * module.layers,
        key_bias=list(rows[0]),
        value_bias=list(rows[1]),
        output_bias=module.out_proj.bias if bias else zeros,
    )


def masks(real: torch.Tensor, implementation: str) -> torch.Tensor:
    """What Transformers hands to the attention: additive for eager, boolean for SDPA."""
    mask = real[:, None, None, :]
    return mask if implementation == "sdpa" else (~mask).double() * torch.finfo(torch.float64).min


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MEMBERS)
def test_attention_equals_the_reference(name, implementation, bias):
    module = attention(name, implementation, attention_bias=bias)
    target = torch.randn(2, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    features = [torch.randn(2, 4, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(LAYERS)]
    real = torch.tensor([[True, True, True, True], [True, True, False, False]])
    actual, maps = module(target, torch.stack(features, dim=2), masks(real, implementation))
    u0, u1 = int(name[2]), int(name[3])
    expected, expected_maps = reference.multi_layer_attention(target, features, real, weights_of(module), HEADS, u0, u1)
    assert_same(actual, expected, 1e-11)
    if implementation == "eager":
        assert_same(maps, expected_maps if u0 else expected_maps[:, 0], 1e-11)
    else:
        assert maps is None
    leaves = [target, *features, *module.parameters()]
    probe = torch.randn_like(actual)
    got = torch.autograd.grad((actual * probe).sum(), leaves)
    wanted = torch.autograd.grad((expected * probe).sum(), leaves)
    assert_same(got, wanted, 1e-11)


@pytest.mark.parametrize(("norm", "bias"), [("post", False), ("pre", True)])
@pytest.mark.parametrize("name", MEMBERS)
def test_one_layer_is_the_baseline(name, norm, bias):
    fields = {"norm_position": norm, "attention_bias": bias}
    model, batch = build(config(name, attended_layers=1, **fields)), Batch.draw()
    baseline = AutoModelForSeq2SeqLM.from_config(hf_mlnmt.TransformerConfig(**{**SIZES, **fields})).double().eval()
    baseline.load_state_dict(
        {k: v.squeeze(0) if ".kv_proj." in k else v for k, v in model.state_dict().items()}, strict=True
    )
    left, right = model(**batch.training), baseline(**batch.training)
    assert_same(left.logits, right.logits, 1e-12)
    left.loss.backward()
    right.loss.backward()
    expected = dict(baseline.named_parameters())
    for name, parameter in model.named_parameters():
        assert_same(parameter.grad.view_as(expected[name]), expected[name].grad, 1e-11)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("n", [2, None])
def test_decoder_reads_the_top_layers_lowest_first(n, norm):
    model, batch = build(config("M-10", attended_layers=n, norm_position=norm)), Batch.draw()
    encoder = model.get_encoder()
    out = encoder(**batch.encoder_inputs, output_hidden_states=True)
    states = list(out.hidden_states)
    if norm == "pre":  # the recorded last state is already normed
        states[:-1] = [encoder.layer_norm(state) for state in states[:-1]]
    assert_same(out.memory, torch.stack(states[-(n or LAYERS) :], dim=2))


@pytest.mark.parametrize("name", MEMBERS)
def test_attention_weights_of_every_layer_come_out(name):
    model, batch = build(config(name)), Batch.draw()
    model.set_attn_implementation("eager")
    maps = model(**batch.training, output_attentions=True).cross_attentions
    assert len(maps) == 2
    joint = name in ("M-00", "M-01")
    for weights in maps:
        assert weights.shape == ((4, 2, 6, 7) if joint else (4, LAYERS, 2, 6, 7))
        assert_same(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert not weights[1][..., 5:].any(), "padding is seen"
    if not joint:
        assert not torch.allclose(maps[0][:, 0], maps[0][:, 1])


@pytest.mark.parametrize("name", MEMBERS)
def test_masked_layers_are_zeros(name):
    model, batch = build(config(name)), Batch.draw()
    with torch.no_grad():
        plain = model(**batch.training).logits
        memory = model.get_encoder()(**batch.encoder_inputs).memory
        for i in range(LAYERS):
            mask = [int(k != i) for k in range(LAYERS)]
            encoded = model.get_encoder()(**batch.encoder_inputs, layer_mask=mask)
            zeroed = memory.clone()
            zeroed[:, :, i] = 0
            assert_same(encoded.memory, zeroed)
            masked = model(**batch.training, layer_mask=torch.tensor(mask)).logits
            assert not torch.allclose(masked, plain)
            by_hand = model(attention_mask=batch.source_mask, labels=batch.labels, encoder_outputs=encoded).logits
            assert_same(masked, by_hand)
    decoded = [
        model.generate(**batch.encoder_inputs, layer_mask=mask, num_beams=2, max_new_tokens=8, output_scores=True,
                       return_dict_in_generate=True).sequences_scores
        for mask in ([1, 1, 1], [0, 1, 1], [1, 1, 0])
    ]  # fmt: skip
    assert not torch.allclose(decoded[0], decoded[1])
    assert not torch.allclose(decoded[0], decoded[2])


# PBML 115, table 6, in millions; 61.2 is the baseline's.
TABLE_6 = {
    "m-00": [67.5, 73.8, 80.1, 86.4, 92.7],
    "m-01": [66.0, 70.7, 75.4, 80.1, 84.9],
    "m-10": [67.5, 73.8, 80.1, 86.4, 92.7],
    "m-11": [66.0, 70.7, 75.4, 80.1, 84.9],
}


@functools.cache
def parameters(system: str, **fields) -> int:
    with torch.device("meta"):
        return AutoModelForSeq2SeqLM.from_config(hf_mlnmt.config_for(system, "base", **fields)).num_parameters()


@pytest.mark.parametrize("system", TABLE_6)
def test_parameter_counts_are_the_published_ones(system):
    """Every entry, with biases in the projections; without them, by default, M-01 and M-11 at n = 6 round to 84.8."""
    published = TABLE_6[system]
    for fields, expected in [
        ({"vocab_size": 33398, "attention_bias": True}, published),
        ({"vocab_size": 33480}, published if system in ("m-00", "m-10") else [*published[:-1], 84.8]),
    ]:
        assert round(parameters("transformer", **fields) / 1e6, 1) == 61.2
        counts = [parameters(system, attended_layers=n, **fields) for n in range(2, 7)]
        assert [round(count / 1e6, 1) for count in counts] == expected
    added = parameters(system) - parameters("transformer")
    assert added == 5 * 6 * (4 if system in ("m-00", "m-10") else 3) * 512**2


def test_projections_begin_alike_whatever_n():
    for n in (1, 3):
        model = AutoModelForSeq2SeqLM.from_config(config("M-10", attended_layers=n, d_model=64))
        module = model.get_decoder().layers[0].source_attn
        assert abs(module.q_proj.weight.std().item() - (1 / 64) ** 0.5) < 0.01
        assert abs(module.kv_proj.weight.std().item() - (2 / (3 * 64)) ** 0.5) < 0.01
    model = AutoModelForSeq2SeqLM.from_config(config("M-10", d_model=64, init_std=0.02, attention_bias=True))
    module = model.get_decoder().layers[0].source_attn
    assert abs(module.kv_proj.weight.std().item() - 0.02) < 0.002
    assert not module.kv_proj.bias.any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attended_layers": 4}, "attended_layers=4: must be from 1 to encoder_layers=3"),
        ({"attended_layers": 0}, "attended_layers=0: must be from 1 to encoder_layers=3"),
        ({"attended_layers": True}, "attended_layers"),
        ({"multi_layer_attention": "M-20"}, "multi_layer_attention"),
    ],
)
def test_bad_configuration_is_refused(fields, message):
    with pytest.raises(Exception, match=message):
        MultiLayerAttentionConfig(**{**SIZES, **fields})
