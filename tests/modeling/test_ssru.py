"""SSRU: equal to a slow reference, to the baseline where a layer has self-attention, and to itself with a cache."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from helpers import contract
from helpers.contract import TINY, Batch, assert_same, redraw
from reference import ssru as reference
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt import TransformerConfig
from hf_mlnmt.modeling import SSRUConfig
from hf_mlnmt.modeling.ssru import SSRUDecoderLayer

WIDTH = 6
REAL = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 1, 0, 0]], dtype=torch.bool)


def build(seed: int = 0, **fields):
    """A float64 model in evaluation mode with large weights."""
    return contract.build(SSRUConfig(**{**TINY, **fields}), seed=seed)


def layer(norm: str = "post") -> SSRUDecoderLayer:
    """A layer whose matrices are redrawn with std fan_in^-0.5."""
    settings = SSRUConfig(**{**TINY, "d_model": WIDTH, "norm_position": norm})
    module = SSRUDecoderLayer(settings, 0).double().eval()
    redraw(module, 5, None)
    return module


def additive(real: torch.Tensor) -> torch.Tensor:
    """The mask as an attention gets it."""
    length = real.shape[1]
    mask = real[:, None, None, :] & torch.ones(length, length, dtype=torch.bool).tril()
    return (~mask).double() * torch.finfo(torch.float64).min


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("real", [None, REAL], ids=["whole", "padded"])
def test_the_sublayer_equals_the_reference(norm, real):
    module = layer(norm)
    unit, scale = module.self_attn, module.self_attn_sublayer.layer_norm
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    shown = torch.ones(3, 5, dtype=torch.bool) if real is None else real

    def normed(states):
        rows = [reference.layer_norm(row, scale.weight, scale.bias) for row in states.flatten(0, 1)]
        return torch.stack(rows).view_as(states)

    matrices = unit.input_proj.weight, unit.forget_proj.weight, unit.forget_proj.bias
    inputs = normed(x) if norm == "pre" else x
    expected = x + reference.ssru(inputs, shown, *matrices)
    expected = expected if norm == "pre" else normed(expected)
    actual = module.attend_self(x, None if real is None else additive(real), None, {})
    assert_same(actual[shown], expected[shown], 1e-12)
    leaves = [x, *unit.parameters(), *scale.parameters()]
    probe = torch.randn_like(actual) * shown.unsqueeze(-1)
    got = torch.autograd.grad((actual * probe).sum(), leaves)
    assert_same(got, torch.autograd.grad((expected * probe).sum(), leaves), 1e-12)


def test_a_closed_gate_remembers_nothing_and_an_open_one_everything():
    unit, x = layer().self_attn, torch.randn(3, 5, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        unit.forget_proj.weight.zero_()
        unit.forget_proj.bias.fill_(-1e4)
        assert_same(unit(x)[0], torch.relu(unit.input_proj(x)), 1e-15)
        unit.forget_proj.bias.fill_(1e4)
        assert not unit(x)[0].any()


def test_with_self_attention_it_is_the_baseline():
    model = build(decoder_autoregression="self-attention")
    fields = ("attention_bias", "output_bias", "layer_norm_eps", "position_embedding")
    settings = TransformerConfig(**TINY, **{name: getattr(model.config, name) for name in fields})
    baseline = AutoModelForSeq2SeqLM.from_config(settings).double().eval()
    baseline.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(**Batch.draw().inputs).logits, baseline(**Batch.draw().inputs).logits)
    for kind in (torch.float64, torch.float32):
        decoded = [one.to(kind).generate(**Batch.draw().encoder_inputs, num_beams=3) for one in (model, baseline)]
        assert decoded[0].tolist() == decoded[1].tolist()


def test_a_search_in_bfloat16():
    """Its states are float32 there too."""
    output = build().bfloat16().generate(**Batch.draw().encoder_inputs, num_beams=3, max_new_tokens=5)
    assert output.shape[1] > 1


@pytest.mark.parametrize(("shape", "decoder", "d"), [("student-tiny", 2, 256), ("student-base", 4, 384)])
def test_parameters(shape, decoder, d):
    """Four d x d projections with biases an attention, 2 d d + d a unit, two norms an encoder layer, three a decoder's;
    one embedding and the output's bias."""
    attention, feed_forward, vocabulary = 4 * (d * d + d), 2 * d * 1536 + 1536 + d, 32000
    of_encoder = attention + feed_forward + 2 * 2 * d
    of_decoder = 2 * d * d + d + attention + feed_forward + 3 * 2 * d
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(hf_mlnmt.config_for("ssru", shape, vocab_size=vocabulary))
        plain = AutoModelForSeq2SeqLM.from_config(hf_mlnmt.config_for("transformer", "student-self-attention"))
    assert model.num_parameters() == 6 * of_encoder + decoder * of_decoder + vocabulary * (d + 1)
    assert (plain.config.encoder_layers, plain.config.decoder_layers, plain.config.d_model) == (6, 2, 256)


def train(model) -> torch.Tensor:
    """The start token's embedding after steps with label smoothing, momentum and decay."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(3):
        model(**Batch.draw().training, smoothing=0.1).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.model.decoder.embed_tokens.weight.detach()[model.config.decoder_start_token_id]


@pytest.mark.parametrize("way", ["new", "copied", "pickled", "loaded"])
def test_the_decoder_begins_with_zeros_and_goes_on_so(way, tmp_path):
    model = AutoModelForSeq2SeqLM.from_config(SSRUConfig(**TINY))
    before = model.lm_head.weight.detach().clone()
    if way != "new":
        assert not train(model).any()
    if way == "copied":
        model = copy.deepcopy(model)
    elif way == "pickled":
        model = pickle.loads(pickle.dumps(model))
    elif way == "loaded":
        model.save_pretrained(tmp_path)
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert not train(model).any()
    others = torch.arange(len(before)) != model.config.decoder_start_token_id
    assert (model.lm_head.weight != before)[others].any(1).all()


def test_a_start_that_is_none_of_zeros_is_trained():
    assert train(build().float()).ne(build().lm_head.weight[SSRUConfig(**TINY).decoder_start_token_id]).all()


@pytest.mark.parametrize("value", ["rnn", "SSRU", None, 1])
def test_bad_configurations_are_refused(value):
    with pytest.raises(Exception, match="decoder_autoregression"):
        SSRUConfig(**TINY, decoder_autoregression=value)
