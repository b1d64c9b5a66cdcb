"""A step on the baseline: when it is compiled, what it keeps in memory, and what it reads of the source."""

from __future__ import annotations

from types import MethodType

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from helpers.contract import FIELDS, KINDS, TINY, Member
from helpers.searching import ENDING, assert_equal_loops, compiled_step, decode, sources, toy
from transformers.cache_utils import DynamicLayer

from hf_mlnmt.search.cache import BeamCache
from hf_mlnmt.search.cpu.native import library
from hf_mlnmt.search.cpu.step import CompiledStep
from hf_mlnmt.search.loop import SearchBatch

needs_compiler = pytest.mark.skipif(library(torch.float32) is None, reason="there is no C compiler here")


@needs_compiler
@torch.no_grad()
def test_the_logits_take_no_new_memory():
    step = compiled_step(toy().float().eval())
    first, second = (step.score(torch.randn(rows, step.projection.in_features)) for rows in (6, 4))
    assert first.data_ptr() == second.data_ptr()


@needs_compiler
@pytest.mark.parametrize(
    "fields", [{}, {"norm_position": "pre"}, {"attention_bias": True, "activation_function": "swish"}]
)
def test_the_compiled_step(fields, monkeypatch):
    """It is taken, and it is what the modules compute; modules that are not plain are called."""
    taken = []
    call = CompiledStep.__call__
    monkeypatch.setattr(CompiledStep, "__call__", lambda *a: (taken.append(1), call(*a))[1])
    model = toy(**fields)
    assert_equal_loops(model, monkeypatch, **sources((6, 1, 4)), num_beams=3, **ENDING)
    assert taken
    assert compiled_step(model.train()) is None  # dropout
    taken.clear()
    layer = model.eval().model.decoder.layers[1].feed_forward.fc1
    layer.forward = lambda states: type(layer).forward(layer, states) + 1.0
    assert_equal_loops(model, monkeypatch, **sources((6, 1, 4)), num_beams=3, **ENDING)
    del layer.forward
    model.model.decoder.layers[0].self_attn.out_proj = torch.nn.Sequential(
        model.model.decoder.layers[0].self_attn.out_proj
    )
    assert_equal_loops(model, monkeypatch, **sources((6, 1, 4)), num_beams=3, **ENDING)
    assert not taken


@pytest.mark.parametrize("beams", [1, 3])
def test_under_autocast(beams):
    """As in Trainer's evaluation with bf16: the modules are called, and what is found has the scores of a forced pass.

    Both are computed in numbers of 8 bits, in different orders: where two logits are nearly equal tokens may differ,
    so they are compared with the best of the forced pass, to a few roundings of the largest logit.
    """
    model, inputs = toy().float().eval(), sources((6, 1, 4))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled_step(model) is None
        found = decode(model, **inputs, num_beams=beams, eos_token_id=None, max_new_tokens=8)
        logits = model(**inputs, decoder_input_ids=found.sequences[:, :-1]).logits.float()
    chosen, rounding = found.sequences[:, 1:, None], 2.0**-8 * logits.abs().max()
    if beams == 1:
        assert (logits.amax(-1) - logits.gather(2, chosen)[..., 0] <= 8 * rounding).all()
    else:
        scores = logits.log_softmax(-1).gather(2, chosen)[..., 0].mean(1)
        assert ((scores - found.sequences_scores).abs() <= 8 * rounding).all()


@pytest.mark.parametrize("system", KINDS)
def test_autocast_around_the_models_own_forward(system):
    """As Accelerate wraps a model that is trained in bf16: the prompt has the precision of the steps behind it, and
    what is found is what the model finds by itself."""
    member = Member(system, "default", {**TINY, **FIELDS.get(system, {})})
    model, inputs = member.model(dtype=torch.float32), sources((6, 1, 4), vocabulary=29)
    arguments = {**inputs, "num_beams": 3, "eos_token_id": None, "max_new_tokens": 6}
    alone = decode(model, **arguments)
    wrapped = torch.autocast("cpu", dtype=torch.bfloat16)(type(model).forward)
    model._original_forward = model.forward
    model.forward = MethodType(convert_outputs_to_fp32(wrapped), model)
    found = decode(model, **arguments)
    assert found.sequences.tolist() == alone.sequences.tolist()
    assert torch.equal(found.sequences_scores, alone.sequences_scores)


@needs_compiler
def test_compiled_code_refuses_another_precision():
    """A cache of bfloat16 would be written over its end."""
    units = compiled_step(toy().float().eval()).units
    cache, mask = BeamCache([DynamicLayer] * 2), torch.zeros(2, 1, 1, 16)
    cache.target_layers[0].storage.begin(*torch.zeros(2, 2, 2, 0, 8, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match=r"wants torch.float32, not .*bfloat16"):
        units(torch.zeros(2, 16), 1, cache, mask, mask)


def test_memory_of_the_source_does_not_grow_with_the_beams(monkeypatch):
    seen = []
    step = SearchBatch.step

    def spy(self, *arguments):
        layers = self.state.cache.source_layers
        seen.append((len(layers[0].keys), len(self.state.source.outputs.last_hidden_state)))
        return step(self, *arguments)

    monkeypatch.setattr(SearchBatch, "step", spy)
    toy().generate(**sources((6, 1, 4)), num_beams=5, max_new_tokens=3)
    assert set(seen) <= {(3, 3), (2, 2), (1, 1)}
    assert seen
