"""Fused models against the loops of tests/reference/fusion.py; reductions; what is frozen; what is refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from helpers.fused import exponents, fused, language_model, marian, member_logits, t5, translator
from helpers.searching import sources
from huggingface_hub.errors import StrictDataclassError
from reference.fusion import sequence_scores, symbol_loss, symbol_scores
from transformers import AutoModelForSeq2SeqLM
from transformers.utils import ModelOutput

from hf_mlnmt import modeling
from hf_mlnmt.modeling.fusion import FusionConfig, FusionForConditionalGeneration, start_token
from hf_mlnmt.modeling.releases import CACHE

VOCABULARY = 29
INPUTS = sources((5, 2, 4), VOCABULARY)
LABELS = torch.tensor([[9, 8, 4, 1], [6, 1, -100, -100], [20, 4, 1, -100]])
TARGETS = torch.tensor([[3, 9, 8, 4], [3, 6, 1, 0], [3, 20, 4, 1]])
ENSEMBLE = {"translation_weights": [0.75, 0.5], "language_weights": [0.25, 1.5]}


def ensemble(normalization: str, **settings):
    members = translator(), translator("dec-dc", seed=4)
    lms = [language_model(), language_model(seed=8, start=3)]
    return fused(*members, lms=lms, normalization=normalization, **ENSEMBLE, **settings)


@pytest.mark.parametrize("normalization", ["symbol", "sequence"])
def test_scores_are_the_products(normalization):
    """(4.2) and (4.4), token by token, of two translation models and two language models."""
    model, alpha, beta = ensemble(normalization), 0.7, 0.4
    found = model(**INPUTS, decoder_input_ids=TARGETS, alpha=alpha, beta=beta).logits
    found = found.log_softmax(-1) if normalization == "symbol" else found
    parts, powers = member_logits(model, INPUTS, TARGETS), exponents(model, alpha, beta)
    for row in range(3):
        for position in range(4):
            here = [one[row, position] for one in parts]
            expected = (
                symbol_scores(here, powers) if normalization == "symbol" else sequence_scores(here, powers, alpha)
            )
            torch.testing.assert_close(found[row, position], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalization", ["symbol", "sequence"])
def test_loss_and_gradients(normalization):
    """(4.1), for either normalization, by the weights of every translation model."""
    model, alpha, beta = ensemble(normalization, alpha=0.7, beta=0.4), 0.7, 0.4
    loss = model(**INPUTS, labels=LABELS).loss
    expected = symbol_loss(member_logits(model, INPUTS, TARGETS), exponents(model, alpha, beta), LABELS)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    assert len(weights) == sum(1 for one in model.translation_models for _ in one.parameters())
    gradients = zip(*(torch.autograd.grad(x, weights, allow_unused=True) for x in (loss, expected)))
    for ours, reference in gradients:
        assert (ours is None) == (reference is None)
        if ours is not None:
            torch.testing.assert_close(ours, reference, rtol=1e-8, atol=1e-10)
    called = ensemble(normalization)(**INPUTS, labels=LABELS, alpha=alpha, beta=beta).loss
    torch.testing.assert_close(called, expected, rtol=1e-10, atol=1e-10)
    halved = model(**INPUTS, labels=LABELS, num_items_in_batch=18).loss
    torch.testing.assert_close(halved, loss / 2)
    assert model(**INPUTS, labels=LABELS, loss_only=True).logits is None


@pytest.mark.parametrize("normalization", ["symbol", "sequence"])
def test_without_weight_the_language_model_is_not_there(normalization):
    model = fused(normalization=normalization, beta=0.0)
    alone = model.translation_models[0]
    found, expected = (one(**INPUTS, labels=LABELS) for one in (model, alone))
    torch.testing.assert_close(found.logits.log_softmax(-1), expected.logits.log_softmax(-1))
    if normalization == "sequence":
        torch.testing.assert_close(found.logits, expected.logits.log_softmax(-1))
    torch.testing.assert_close(found.loss, expected.loss)
    found.loss.backward()
    gradients = [weight.grad.clone() for weight in alone.parameters()]
    alone.zero_grad()
    expected.loss.backward()
    for before, weight in zip(gradients, alone.parameters()):
        torch.testing.assert_close(before, weight.grad)


def uniform():
    """A language model whose every token is as likely as any other."""
    model = language_model()
    model.transformer.ln_f.weight.data.zero_()
    model.transformer.ln_f.bias.data.zero_()
    return model


def test_a_uniform_language_model_changes_no_symbol_level_loss():
    model = fused(lms=[uniform()], normalization="symbol", beta=0.8)
    found = model(**INPUTS, labels=LABELS).loss
    torch.testing.assert_close(found, model.translation_models[0](**INPUTS, labels=LABELS).loss)


def test_a_uniform_language_model_adds_a_constant_to_every_token_of_a_sequence():
    model = fused(lms=[uniform()], beta=1.0)
    found = model(**INPUTS, decoder_input_ids=TARGETS).logits
    alone = model.translation_models[0](**INPUTS, decoder_input_ids=TARGETS).logits.log_softmax(-1)
    torch.testing.assert_close(found, alone - math.log(VOCABULARY))


@pytest.mark.parametrize("foreign", [marian, t5])
@pytest.mark.parametrize("normalization", ["symbol", "sequence"])
def test_step_by_step_is_all_at_once(foreign, normalization):
    """With the members' caches, for members of Transformers too; their own start tokens stand first."""
    model = fused(translator(), foreign(), normalization=normalization)
    whole = model(**INPUTS, decoder_input_ids=TARGETS, use_cache=False).logits
    cache, encoded = None, model.get_encoder()(**INPUTS)
    mask = INPUTS["attention_mask"]
    for position in range(TARGETS.shape[1]):
        step = {"decoder_input_ids": TARGETS[:, position : position + 1], "cache": cache, "use_cache": True}
        output = model(encoder_outputs=encoded, attention_mask=mask, **step)
        cache = output.get(CACHE)
        torch.testing.assert_close(output.logits[:, 0], whole[:, position], rtol=1e-8, atol=1e-8)
    kept = model(**INPUTS, decoder_input_ids=TARGETS, logits_to_keep=2).logits
    torch.testing.assert_close(kept, whole[:, -2:])
    parts = member_logits(model, INPUTS, TARGETS)
    expected = [one[2, 3] for one in parts]
    if normalization == "sequence":
        torch.testing.assert_close(whole[2, 3], sequence_scores(expected, exponents(model, 1.0, 0.1), 1.0))


def test_language_models_are_frozen_whoever_says_otherwise(tmp_path):
    fused().save_pretrained(tmp_path)
    model = FusionForConditionalGeneration.from_pretrained(tmp_path).train()
    assert all(one.training for one in model.translation_models)
    assert not any(module.training for one in model.language_models for module in one.modules())
    model(**INPUTS, labels=LABELS).loss.backward()
    assert all(weight.grad is None for one in model.language_models for weight in one.parameters())
    assert all(weight.grad is not None for one in model.translation_models for weight in one.parameters())


def assert_same_model(found, expected):
    """The weights to the bit, the logits to rounding: some processors' products depend on where a matrix lies."""
    weights = expected.state_dict()
    assert found.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in found.state_dict().items())
    logits, others = (one(**INPUTS, decoder_input_ids=TARGETS).logits for one in (found, expected))
    torch.testing.assert_close(logits, others, rtol=0, atol=1e-12)


def test_round_trip(tmp_path):
    """Tied weights, scales, weights of members, code and paths: nothing is lost, nothing of this machine is kept."""
    model = fused(translator(), marian(), alpha=0.9, beta=0.2, normalization="symbol", translation_weights=[0.3, 0.7])
    model.translation_models[0].config.name_or_path = "/somewhere/of/mine"
    model.config.translation_models[0].name_or_path = "/somewhere/of/mine"
    model.save_pretrained(tmp_path)
    assert "/somewhere" not in (tmp_path / "config.json").read_text()
    again, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True, dtype=torch.float64)
    assert type(again) is FusionForConditionalGeneration
    assert not any(report.values())
    assert_same_model(again, model)
    first = again.translation_models[0]
    assert first.lm_head.weight is first.model.decoder.embed_tokens.weight
    assert (again.generation_config.alpha, again.generation_config.beta) == (0.9, 0.2)
    assert again.config.to_dict() == again.config.from_dict(again.config.to_dict()).to_dict()


def test_start_tokens_are_the_members_own():
    members, fused_config = [translator(), marian(), language_model(seed=9, start=5)], fused().config
    assert [start_token(member.config, fused_config) for member in members] == [3, 0, 5]


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "1", None, True])
def test_scales_are_numbers_of_at_least_0(value):
    for name in ("alpha", "beta"):
        with pytest.raises(StrictDataclassError, match=name):
            FusionConfig(**{name: value})
        if value is not None:  # then the config's holds
            with pytest.raises(ValueError, match=f"{name}="):
                fused()(**INPUTS, decoder_input_ids=TARGETS, **{name: value})


def test_what_else_is_refused():
    with pytest.raises(StrictDataclassError, match="alpha=0: sequence-level"):
        FusionConfig(alpha=0)
    with pytest.raises(ValueError, match="label smoothing is not defined"):
        fused()(**INPUTS, labels=LABELS, smoothing=0.1)
    with pytest.raises(StrictDataclassError, match="at least one translation model"):
        FusionConfig(language_models=[language_model().config], translation_models=[])
    with pytest.raises(StrictDataclassError, match="one number for each of 1 members"):
        FusionConfig(translation_models=[translator().config], translation_weights=[0.5, 0.5])
    with pytest.raises(ValueError, match="model_type='nobody-knows', which is unknown here"):
        FusionConfig(translation_models=[{"model_type": "nobody-knows"}])
    with pytest.raises(ValueError, match="nothing is left of the model"):
        fused(normalization="symbol", alpha=0.0, beta=0.0)(**INPUTS, decoder_input_ids=TARGETS)
    with pytest.raises(ValueError, match="fuse them again"):
        fused().resize_token_embeddings(40)
    assert modeling.FusionForConditionalGeneration is FusionForConditionalGeneration


def test_what_the_decoder_lacks_is_named():
    with pytest.raises(ValueError, match=r"decoder_input_ids are missing.*model=model"):
        fused()(input_ids=torch.tensor([[5, 1]]))


def test_a_tuple_is_no_output_of_several_encoders():
    model, (ids, targets) = fused(translator(seed=1), translator(seed=2)), (torch.tensor([[5, 6, 1]]),) * 2
    one = fused(translator(seed=1))
    with torch.no_grad():
        for fusion in (model, one):
            encoded, expected = fusion.get_encoder()(ids), fusion(input_ids=ids, decoder_input_ids=targets).logits
            assert torch.equal(fusion(encoder_outputs=encoded, decoder_input_ids=targets).logits, expected)
        assert torch.equal(one(encoder_outputs=encoded.to_tuple(), decoder_input_ids=targets).logits, expected)
    with pytest.raises(ValueError, match="this model has several"):
        model(encoder_outputs=model.get_encoder()(ids).to_tuple(), decoder_input_ids=targets)


def test_attention_is_chosen_for_all_members(tmp_path):
    fused(translator(seed=1), translator("rnn", seed=2)).save_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 1]])
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    outputs = model(input_ids=ids, decoder_input_ids=ids, output_attentions=True)
    assert [one.shape[-1] for one in outputs.cross_attentions] == [3] * len(outputs.cross_attentions)
    assert outputs.cross_attentions
    assert {one.config._attn_implementation for one in (*model.translation_models, *model.language_models)} == {"eager"}
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("system", ["transformer", "rnn", "m-10+enc-dc", "fertility"])
def test_what_an_encoder_hands_on_is_read_by_its_fields(system):
    """Not by its class: Transformers loads published code of every entry class as a module of its own."""
    model, ids = translator(system, seed=2), torch.tensor([[5, 6, 1]])
    names = ("last_hidden_state", "memory", "features")
    other = dataclasses.make_dataclass("EncoderOutput", [(name, Any, None) for name in names], bases=(ModelOutput,))
    with torch.no_grad():
        encoded = model.get_encoder()(ids)
        expected = model(encoder_outputs=encoded, decoder_input_ids=ids).logits
        twin = other(**{name: getattr(encoded, name, None) for name in names})
        assert torch.equal(model(encoder_outputs=twin, decoder_input_ids=ids).logits, expected)
