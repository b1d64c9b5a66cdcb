"""The encoder of every system with a projection: for a masked and for a causal language model of the source."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from helpers.ahead import ReadsNothing, run_ahead
from helpers.causal_contract import TextBatch
from helpers.contract import Batch, Member, assert_same, gradients, members, redraw
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from hf_mlnmt.zoo import find_system

FIRST = {member.system: member for member in members() if find_system(member.system).architecture.encoder_heads}
ONES = pytest.mark.parametrize("one", list(FIRST.values()), ids=lambda member: member.system)
HEADS = {"masked": AutoModelForMaskedLM, "causal": AutoModelForCausalLM}
BATCH = Batch.draw()


def model_of(one: Member, head: str, **overrides):
    return copy.deepcopy(_build(one, head, tuple(overrides.items())))


@functools.cache
def _build(one: Member, head: str, overrides: tuple):
    model = HEADS[head].from_config(one.config(**dict(overrides))).eval().double()
    redraw(model)
    return model


def with_encoder_of(one: Member, head: str):
    """The model with the encoder of the translation model."""
    model, translation = model_of(one, head), one.model()
    model.model.encoder.load_state_dict(translation.get_encoder().state_dict())
    return model, translation


@ONES
def test_it_is_the_translation_models_encoder(one):
    """Bidirectional the encoder's states are the translation model's, causal they are others."""
    model, translation = with_encoder_of(one, "masked")
    states = translation.get_encoder()(**BATCH.encoder_inputs).last_hidden_state
    assert_same(model(**BATCH.encoder_inputs).logits, model.projection(states))
    causal, _ = with_encoder_of(one, "causal")
    found = causal(**BATCH.encoder_inputs).logits
    assert not torch.allclose(found, causal.projection(states))
    # With its mask taken away it is that encoder again.
    encoder = causal.get_encoder()
    assert_same(causal.projection(encoder(**BATCH.encoder_inputs).last_hidden_state), causal.projection(states))


@ONES
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_causal_encoder_cannot_see_the_future(one, implementation):
    wide = {"kernel_size": 5} if "kernel_size" in one.config().to_dict() else {}
    model = model_of(one, "causal", **wide)
    model.set_attn_implementation(implementation)
    for mask in (None, BATCH.source_mask):
        before = model(BATCH.source, mask).logits
        position, changed = 2, BATCH.source.clone()
        changed[:, position] = (changed[:, position] + 7) % 22
        after = model(changed, mask).logits
        assert_same(after[:, :position], before[:, :position])
        assert not torch.allclose(after[0, position:], before[0, position:])


@ONES
@pytest.mark.parametrize("head", HEADS)
def test_loss_and_gradients(one, head):
    """A sum over the labels, by hand; with and without logits; of every parameter that the last state needs."""
    model = model_of(one, head)
    labels = BATCH.source.where((BATCH.source_mask == 1) & (BATCH.source % 2 == 0), -100)
    out = model(**BATCH.encoder_inputs, labels=labels)
    predicted = labels if head == "masked" else torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    expected = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), predicted.flatten(), reduction="sum")
    assert_same(out.loss, expected / (predicted != -100).sum())
    out.loss.backward()
    full = gradients(model)
    lean = model(
        **BATCH.encoder_inputs, labels=labels, loss_only=True, num_items_in_batch=int((predicted != -100).sum())
    )
    lean.loss.backward()
    assert lean.logits is None
    assert_same(gradients(model), full)
    without = {name for name, parameter in model.named_parameters() if name not in full}
    assert not [name for name in without if "layers" in name or "projection" in name or "embed" in name]


@ONES
def test_on_a_device_that_is_not_asked_it_is_the_same(one, monkeypatch):
    """The causal encoder, whose masks the translation model has not."""
    model, inputs = model_of(one, "causal"), BATCH.encoder_inputs
    expected = model(**inputs).logits
    run_ahead(monkeypatch)
    with ReadsNothing():
        found = model(**inputs).logits
    assert_same(found, expected)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_of_a_translation_folder_the_encoder_keeps_its_embeddings(head, shared, tmp_path):
    """One matrix of both sides is stored under the decoder's name; two are two."""
    one = FIRST["transformer"]
    sizes = {"vocab_size": 29, "decoder_vocab_size": 29, "share_encoder_decoder_embeddings": shared}
    translation = one.model(**sizes)
    translation.save_pretrained(tmp_path)
    assert ("model.encoder.embed_tokens.weight" in load_file(tmp_path / "model.safetensors")) != shared
    config = translation.config
    for given in ({}, {"config": config}):
        for load in (HEADS[head], type(model_of(one, head))):
            model, told = load.from_pretrained(tmp_path, output_loading_info=True, **given)
            assert told["missing_keys"] == {"projection.weight"}
            for name, weight in translation.get_encoder().state_dict().items():
                assert torch.equal(model.get_encoder().state_dict()[name], weight), name


@pytest.mark.parametrize("system", ["transformer", "m-10", "enc-dc"])
@pytest.mark.parametrize("head", HEADS)
def test_saving_resizing_and_tying(system, head, tmp_path):
    one = FIRST[system]
    model = model_of(one, head)
    model.save_pretrained(tmp_path / "a")
    loaded, report = HEADS[head].from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(loaded(**BATCH.encoder_inputs).logits, model(**BATCH.encoder_inputs).logits)
    names = load_file(tmp_path / "a" / "model.safetensors")
    assert not [name for name in names if "decoder" in name and "encoder" not in name]
    assert "projection.weight" in names
    model.resize_token_embeddings(35)
    assert model(**BATCH.encoder_inputs).logits.shape[-1] == 35
    model.save_pretrained(tmp_path / "b")
    assert HEADS[head].from_pretrained(tmp_path / "b").config.vocab_size == 35
    tied = HEADS[head].from_config(_tied(one))
    assert tied.projection.weight is tied.get_input_embeddings().weight


def _tied(one: Member):
    config = one.config()
    config.tie_projection = True
    return config


@ONES
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_the_causal_encoder_is_invisible(one, side):
    """A sentence alone, and the same in a batch with noise under the mask."""
    model, text = model_of(one, "causal"), TextBatch.draw()
    padded = text.padded_left() if side == "left" else text
    together = model(**padded.inputs).logits
    for row, length in enumerate(text.mask.sum(1).tolist()):
        alone = model(text.tokens[[row], :length]).logits
        assert_same(together[[row], -length:] if side == "left" else together[[row], :length], alone)


def test_the_causal_model_generates():
    """By Transformers' own loop: greedily what forced scores say. It has no cache, and says so of embeddings."""
    model = model_of(FIRST["transformer"], "causal")
    prompt = torch.tensor([[3, 9, 6]])
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=5)
    logits = model(out).logits
    real = out[0, 3:].tolist()
    assert real == logits[0, 2:-1].argmax(-1).tolist()[: len(real)]
    beams = model.generate(prompt, attention_mask=torch.ones_like(prompt), num_beams=3, max_new_tokens=5)
    assert beams[:, :3].tolist() == prompt.tolist()
    with pytest.raises(ValueError, match="no cache"):
        model.generate(inputs_embeds=model.get_input_embeddings()(prompt), max_new_tokens=5)
    assert not model._can_compile_fullgraph
