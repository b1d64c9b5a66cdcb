"""Which loop a model is searched with: classes of one's own, code from elsewhere, and no search installed."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers.contract import FIELDS, RECURRENT, SEPARATE, TINY, Member
from helpers.searching import ENDING, assert_equal_loops, compiled_step, decode, sources, toy
from transformers import AutoModelForSeq2SeqLM
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, DynamicLayer
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from hf_mlnmt import TransformerForConditionalGeneration, TransformerModel, search
from hf_mlnmt.modeling import extended_cross_attention
from hf_mlnmt.modeling.attention import CrossAttention, cached_source, split_heads
from hf_mlnmt.modeling.layers import DecoderLayer
from hf_mlnmt.modeling.outputs import EncoderOutput
from hf_mlnmt.modeling.transformer import Decoder, Encoder
from hf_mlnmt.search.cache import BeamCacheLayer
from hf_mlnmt.search.cpu.step import find_family


class Sharper(CrossAttention):
    """An attention of a family's own, which reads the source in its own way."""

    def forward(self, hidden_states, memory, attention_mask=None, cache=None, **kwargs):
        query = split_heads(3 * self.q_proj(hidden_states), self.heads)
        key, value = cached_source(cache, self.layer_idx, self.project_source, memory.tanh())
        output, weights = self.attend(query, key, value, attention_mask, **kwargs)
        return self.out_proj(output), weights


class SharperLayer(DecoderLayer):
    source_attention_class = Sharper


class GatedLayer(DecoderLayer):
    def attend_source(self, hidden_states, *args, **kwargs):
        return super().attend_source(2 * hidden_states, *args, **kwargs)


class SharperDecoder(Decoder):
    layer_class = SharperLayer


class GatedDecoder(Decoder):
    layer_class = GatedLayer


class ExtendedLayer(DecoderLayer):
    def attend_self(self, hidden_states, mask, cache, extras, **kwargs):
        return super().attend_self(hidden_states + extras["first"], mask, cache, extras, **kwargs)


class ExtendedDecoder(Decoder):
    layer_class = ExtendedLayer

    def extend(self, embeds, past, position_ids, attention_mask, features):
        return {"first": embeds}


class SummaryEncoder(Encoder):
    """Hands on something of a whole sentence, which has not the source's length."""

    hands_on = ("features",)

    def features(self, states):
        return states[0][:, 0]


class SummaryModel(TransformerModel):
    encoder_class = SummaryEncoder

    def decode(self, encoded, **inputs):
        states = encoded.last_hidden_state + encoded.features.unsqueeze(1)
        return super().decode(EncoderOutput(last_hidden_state=states), **inputs)


def family(**fields) -> type[TransformerForConditionalGeneration]:
    """A family whose file knows nothing of a search."""
    model = type("OwnModel", (TransformerModel,), fields) if "model_class" not in fields else fields["model_class"]
    return type("Own", (TransformerForConditionalGeneration,), {"model_class": model})


FAMILIES = {
    "own attention": (family(decoder_class=SharperDecoder), True),
    "own sublayer": (family(decoder_class=GatedDecoder), False),
    "own extras": (family(decoder_class=ExtendedDecoder), False),
    "own features": (family(model_class=SummaryModel), False),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_whose_step_is_not_compiled(name, monkeypatch):
    """Its attention, or all of it, is called as modules; sentences leave all the same."""
    plain, (own, is_known) = toy(norm_position="pre"), FAMILIES[name]
    model = own(plain.config).double().eval()
    model.load_state_dict(plain.state_dict())
    assert (find_family(model) is not None) == is_known
    assert compiled_step(model) is None
    inputs = sources((6, 1, 4, 30))
    for options in ({}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}):
        found = assert_equal_loops(model, monkeypatch, **inputs, **{**ENDING, **options})
        assert found.sequences.tolist() != decode(plain, **inputs, **{**ENDING, **options}).sequences.tolist()


@pytest.mark.parametrize("system", RECURRENT)
def test_a_recurrent_model_has_no_compiled_step(system):
    """Asked for all the same where such a model was searched on a GPU and moved to a CPU."""
    assert find_family(Member(system, "post", {**TINY, **FIELDS.get(system, {})}).model()) is None


class LouderWords(extended_cross_attention.ExtendedDecoder):
    def extend(self, *args):
        return {name: 2 * value for name, value in super().extend(*args).items()}


def test_a_family_whose_extras_are_made_otherwise(monkeypatch):
    """Of the methods that a step computes, one alone is another one."""
    plain = Member("target-embedding", "pre", {**TINY, "norm_position": "pre"}).model()
    base = type("OwnModel", (extended_cross_attention.ExtendedCrossAttentionModel,), {"decoder_class": LouderWords})
    own = type("Own", (type(plain),), {"model_class": base})(plain.config).double().eval()
    own.load_state_dict(plain.state_dict())
    assert find_family(plain) is not None
    assert find_family(own) is None
    assert_equal_loops(own, monkeypatch, **sources((6, 1, 4), 29), num_beams=3)


def test_slots_that_the_search_does_not_know(monkeypatch, caplog):
    """A decoder with state of a kind of its own: Transformers' loop."""

    class OwnLayer(DynamicLayer):
        pass

    monkeypatch.setitem(DYNAMIC_LAYER_TYPE_MAPPING, "full_attention", OwnLayer)
    with caplog.at_level(logging.DEBUG, logger=search.__name__):
        assert_equal_loops(toy(), monkeypatch, fast=False, **sources((6, 1, 4)), num_beams=3)
    assert "OwnLayer" in caplog.text


def test_every_slot_of_ours_has_one_for_beams():
    for kind, of_beams in search.transformer.BEAM_LAYERS.items():
        assert issubclass(of_beams, BeamCacheLayer)
        assert DYNAMIC_LAYER_TYPE_MAPPING.get(getattr(kind, "_layer_type", None), kind) is kind


def test_code_from_elsewhere_is_searched_by_transformers(tmp_path, monkeypatch):
    """A class loaded from a published folder is not this package's, though this package is here: the registered class
    comes first, and where it does not, the published code stays by itself."""
    model = toy()
    model.config.register_for_auto_class()
    type(model).register_for_auto_class("AutoModelForSeq2SeqLM")
    try:
        model.save_pretrained(tmp_path)
    finally:
        type(model)._auto_class = type(model.config)._auto_class = None
    inputs, options = sources((6, 1, 4)), {"num_beams": 3, **ENDING}
    expected = decode(model, **inputs, **options).sequences.tolist()
    registered = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, trust_remote_code=True)
    assert type(registered) is type(model)
    assert compiled_step(registered) is not None
    elsewhere = get_class_from_dynamic_module("transformer.TransformerForConditionalGeneration", str(tmp_path))
    monkeypatch.delattr(search, "run")
    assert decode(elsewhere.from_pretrained(tmp_path), **inputs, **options).sequences.tolist() == expected


@pytest.mark.parametrize("beams", [1, 3])
def test_without_the_search(beams, monkeypatch):
    """With two vocabularies too, whose sizes Transformers' beam search and compute_transition_scores ask for."""
    model = Member("transformer", "separate", {**TINY, "norm_position": "post", **SEPARATE}).model()
    inputs = sources((6, 1, 4), 23)
    options = {**ENDING, "num_beams": beams}
    expected = decode(model, **inputs, **options)
    monkeypatch.delattr(search, "run")
    for slot in ("faster_search", "generate_again"):
        monkeypatch.setattr(f"hf_mlnmt.modeling.generation.{slot}", None)
    assert decode(model, **inputs, **options).sequences.tolist() == expected.sequences.tolist()
    found = decode(model, **inputs, **options, output_scores=True)
    assert found.sequences.tolist() == expected.sequences.tolist()
    scores = model.compute_transition_scores(found.sequences, found.scores, found.get("beam_indices"), True)
    assert scores.shape == (3, found.sequences.shape[1] - 1)
    if beams > 1:
        sums = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices).sum(1)
        lengths = (found.beam_indices >= 0).sum(1)
        torch.testing.assert_close(sums / lengths, expected.sequences_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("logits_are_scores", [False, True])
def test_transformers_loop_sets_nothing_that_other_threads_see(logits_are_scores, monkeypatch):
    model = Member("transformer", "separate", {**TINY, "norm_position": "post", **SEPARATE}).model()
    monkeypatch.setattr(model, "logits_are_scores", logits_are_scores, raising=False)
    seen = []

    def look(input_ids, scores):
        seen.append((model.config.vocab_size, len(model._forward_hooks)))
        return scores

    decode(model, **sources((6, 1, 4), 23), num_beams=3, output_scores=True, logits_processor=[look])
    assert set(seen) == {(TINY["vocab_size"], 0)}
