"""The contract of every model, part three: the fast search gives what Transformers' own loop gives.

Compared are the sequences, and with beams the final scores and the beams that every token came from. The other loop is
reached through `why_not`, which decides between the two.
"""

from __future__ import annotations

import logging

import pytest
import torch
from helpers.contract import KINDS, RECURRENT, assert_lively, members, members_once, of_each_kind
from helpers.searching import assert_equal_loops, call_modules, compiled_step

from hf_mlnmt import search
from hf_mlnmt.modeling.attention import CrossAttention, SelfAttention
from hf_mlnmt.modeling.ssru import SSRU
from hf_mlnmt.search import transformer
from hf_mlnmt.search.cpu.native import library
from hf_mlnmt.search.cpu.step import ACTIVATIONS

# Random weights hardly ever end a sentence by themselves: the longer, the likelier </s> is made.
ENDING = {"exponential_decay_length_penalty": (2, 1.2)}
# What a step can do wrong: beams that cross, and sentences that leave. The rules for stopping know no system.
BEAMS = {"num_beams": 4, "num_return_sequences": 4, **ENDING}
LAST = {member.system: member for member in members_once()}


def test_it_finds_what_transformers_finds(model, batch, monkeypatch):
    assert_lively(assert_equal_loops(model, monkeypatch, **batch.encoder_inputs, **BEAMS))


def test_sampling(model, batch, monkeypatch):
    """Hypotheses of a sentence that do not meet."""
    options = {"do_sample": True, "top_k": 0, "num_return_sequences": 3, "temperature": 1.5, **ENDING}
    assert_equal_loops(model, monkeypatch, **batch.encoder_inputs, **options)


@pytest.mark.parametrize("system", KINDS)
def test_greedily(system, batch, monkeypatch):
    """One hypothesis of each sentence."""
    assert_equal_loops(LAST[system].model(), monkeypatch, **batch.encoder_inputs, **ENDING)


def test_a_prompt_of_several_tokens(model, batch, monkeypatch):
    arguments = {**batch.encoder_inputs, "decoder_input_ids": batch.target[:, :2], "num_beams": 3}
    assert_equal_loops(model, monkeypatch, **arguments, no_repeat_ngram_size=1, min_new_tokens=4, max_new_tokens=4)


def test_steps_are_compiled(member, model):
    """Those of the baseline's layers and of SSRU; every system is known to this package's loop."""
    assert search.decoder_of(model).why_not(model, {}) is None
    if member.system in RECURRENT or library(torch.float32) is None:
        return
    layers = model.model.decoder.layers
    plain = all(type(layer.self_attn) in (SelfAttention, SSRU) for layer in layers)
    plain = plain and all(type(layer.source_attn) is CrossAttention for layer in layers)
    plain = plain and all(type(layer.feed_forward.activation) in ACTIVATIONS for layer in layers)
    plain = plain and not getattr(model.config, "information_fusion", False)
    assert (compiled_step(model.eval()) is not None) == plain


POST = [member for member in members() if member.variant == "post"]


@pytest.mark.parametrize("system", [one for one in POST if one.system in KINDS], ids=str)
def test_called_as_modules(system, batch, monkeypatch):
    """As on a GPU: every slot serves its modules."""
    call_modules(monkeypatch)
    test_it_finds_what_transformers_finds(system.model(), batch, monkeypatch)


@pytest.mark.parametrize("system", of_each_kind(POST))
def test_a_family_that_nobody_knows(system, batch, monkeypatch):
    call_modules(monkeypatch)
    monkeypatch.setattr(transformer, "find_family", lambda *a: None)
    test_it_finds_what_transformers_finds(system.model(), batch, monkeypatch)


def test_the_reason_for_the_slow_loop_is_told(batch, monkeypatch, caplog):
    """It is asked before anything of the system is."""
    model = members()[0].model()
    with caplog.at_level(logging.DEBUG, logger=search.__name__):
        assert_equal_loops(model, monkeypatch, fast=False, **batch.encoder_inputs, num_beams=2, use_cache=False)
    assert "the cache that was asked for" in caplog.text
