"""The language model against tests/reference/language_model.py; its size; the translation model's decoder is one."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.contract import TINY, assert_same, gradients, redraw
from helpers.reference_parameters import decoder_parameters
from huggingface_hub.errors import StrictDataclassError
from reference import language_model as reference
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from hf_mlnmt import UserError, config_for

SIZES = {name: value for name, value in TINY.items() if not name.startswith("encoder")}
VARIANTS = {
    "post": {},
    "pre": {"norm_position": "pre"},
    "untied": {"tie_word_embeddings": False, "output_bias": True},
    "biased, four heads": {"attention_bias": True, "decoder_attention_heads": 4, "norm_position": "pre"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_values_and_gradients_equal_the_reference(variant):
    model = AutoModelForCausalLM.from_config(config_for("lm", "tiny", **{**SIZES, **VARIANTS[variant]})).eval().double()
    redraw(model, seed=2, std=None)
    sentences, config = [[3, 8, 5, 19, 1], [3, 6, 1], [3, 1]], model.config
    total, parameters = torch.zeros((), dtype=torch.float64), decoder_parameters(model)
    for tokens in sentences:
        found, scores = reference.log_probability(
            parameters, tokens, config.decoder_attention_heads, config.norm_position == "pre", model.lm_head.bias
        )
        total = total - found.sum()
        assert_same(model(torch.tensor([tokens])).logits[0, :-1], scores)
    total.backward()
    expected = gradients(model)
    ids = torch.tensor([tokens + [0] * (5 - len(tokens)) for tokens in sentences])
    mask = torch.tensor([[1] * len(tokens) + [0] * (5 - len(tokens)) for tokens in sentences])
    out = model(ids, mask, labels=ids.masked_fill(mask == 0, -100))
    assert_same(out.loss, total / 7)  # perplexity's exponent: </s> counts, <s> does not
    assert math.isclose(float(out.loss.exp()), math.exp(float(total.detach()) / 7))
    (out.loss * 7).backward()
    actual = gradients(model)
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        assert_same(gradient, expected[name])


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", ["tiny", "small", "base"])
def test_number_of_parameters(shape, norm_position, tied):
    config = config_for("lm", shape, vocab_size=1000, norm_position=norm_position, tie_word_embeddings=tied)
    d, width, layers = config.d_model, config.decoder_ffn_dim, config.decoder_layers
    layer = 4 * d * d + 2 * d * width + width + d + 2 * 2 * d  # self-attention, feed-forward, two norms
    expected = 1000 * d * (1 if tied else 2) + layers * layer + 2 * d * (norm_position == "pre")
    with torch.device("meta"):
        assert AutoModelForCausalLM.from_config(config).num_parameters() == expected


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_the_decoder_of_a_translation_model_without_source_is_the_language_model(norm_position):
    """The same weights under the same names, values and gradients alike; but for the attention over the source."""
    translation = AutoModelForSeq2SeqLM.from_config(
        config_for("transformer", "tiny", **TINY, norm_position=norm_position)
    )
    translation = translation.eval().double()
    redraw(translation, seed=1)
    model = AutoModelForCausalLM.from_config(config_for("lm", "tiny", **SIZES, norm_position=norm_position)).eval()
    missing, unexpected = model.double().load_state_dict(translation.state_dict(), strict=False)
    assert not missing
    assert all("encoder" in name or "source_attn" in name for name in unexpected)
    ids = torch.tensor([[3, 8, 5, 19, 11], [3, 6, 2, 7, 9]])
    expected = translation.lm_head(translation.get_decoder()(ids).last_hidden_state)
    out = model(ids, labels=ids)
    assert_same(out.logits, expected)
    out.loss.backward()
    torch.nn.functional.cross_entropy(expected[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    for name, gradient in gradients(model).items():
        assert_same(gradient, translation.get_parameter(name).grad)


def test_refused_configurations():
    with pytest.raises(StrictDataclassError, match="decoder_layers=0: must be at least 1"):
        config_for("lm", "tiny", decoder_layers=0)
    with pytest.raises(StrictDataclassError, match="decoder_attention_heads=3: d_model=128 must be a multiple"):
        config_for("lm", "tiny", decoder_attention_heads=3)
    with pytest.raises(UserError, match="DecoderOnlyConfig has no field 'encoder_layers'"):
        config_for("lm", "tiny", encoder_layers=2)
