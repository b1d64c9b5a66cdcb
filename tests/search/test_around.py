"""What is put around a model counts in a search as it does in Transformers' loops."""

from __future__ import annotations

import pytest
import torch
from helpers.contract import TINY, Member, assert_same
from helpers.searching import ENDING, assert_equal_loops, decode, sources, toy
from peft import PrefixTuningConfig, get_peft_model
from torch.nn.modules.module import register_module_forward_hook
from transformers.utils import output_capturing

from hf_mlnmt import TransformerForConditionalGeneration, explain


class OtherTokens(TransformerForConditionalGeneration):
    """Shows the decoder other tokens."""

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        return {**inputs, "decoder_input_ids": 199 - inputs["decoder_input_ids"]}


class OtherLogits(TransformerForConditionalGeneration):
    def _update_model_kwargs_for_generation(self, outputs, *args, **kwargs):
        outputs.logits = outputs.logits + torch.arange(200) / 50
        return super()._update_model_kwargs_for_generation(outputs, *args, **kwargs)


def of_class(kind):
    def changed(model):
        model.__class__ = kind

    return changed


def favour(module, given, output):
    """The last position's state, or logits, are others."""
    states = output if isinstance(output, torch.Tensor) else output[0]
    states[:, -1] += torch.linspace(3, 0, states.shape[-1], dtype=states.dtype)


def patched(model):
    plain = model.prepare_inputs_for_generation
    model.prepare_inputs_for_generation = lambda ids, **kwargs: plain(199 - ids, **kwargs)


def own_forward(model):
    plain = model.forward

    def forward(*args, **kwargs):
        output = plain(*args, **kwargs)
        favour(model, args, output)
        return output

    model.forward = forward


AROUND = {
    "hook on the model": lambda model: model.register_forward_hook(favour),
    "hook on model.model": lambda model: model.model.register_forward_hook(favour),
    "hook on a layer": lambda model: model.model.decoder.layers[0].feed_forward.register_forward_hook(favour),
    "hook before the model": lambda model: model.register_forward_pre_hook(
        lambda module, args, given: (args, {**given, "decoder_input_ids": 199 - given["decoder_input_ids"]}),
        with_kwargs=True,
    ),
    "a class's preparation": of_class(OtherTokens),
    "a class's update": of_class(OtherLogits),
    "an object's preparation": patched,
    "an object's forward": own_forward,
}


@pytest.mark.parametrize("around", AROUND)
def test_it_counts(around, monkeypatch):
    assert_it_counts(toy(), AROUND[around], {**ENDING, "num_beams": 3}, monkeypatch)


def test_it_counts_with_a_recurrent_model(monkeypatch):
    model = Member("rnn", "plain", {**TINY, "vocab_size": 200}).model()
    assert_it_counts(model, AROUND["an object's preparation"], {**ENDING, "num_beams": 3}, monkeypatch)


def assert_it_counts(model, put_around, options, monkeypatch):
    inputs = sources((6, 1, 4))
    plain = decode(model, **inputs, **options).sequences.tolist()
    put_around(model)
    output = assert_equal_loops(model, monkeypatch, fast=False, **inputs, **options)
    assert output.sequences.tolist() != plain


def test_a_hook_on_every_module_counts(monkeypatch):
    model, inputs = toy(), sources((6, 1, 4))
    hook = register_module_forward_hook(lambda module, *given: favour(module, *given) if module is model else None)
    try:
        assert_equal_loops(model, monkeypatch, fast=False, **inputs, **ENDING)
    finally:
        hook.remove()


def test_prefix_tuning_counts(monkeypatch):
    model, inputs, options = toy().float(), sources((6, 1, 4)), {**ENDING, "num_beams": 3}
    plain = decode(model, **inputs, **options).sequences.tolist()
    torch.manual_seed(0)
    tuned = get_peft_model(model, PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=4)).eval()
    torch.nn.init.normal_(tuned.prompt_encoder["default"].embedding.weight, std=3.0)
    output = assert_equal_loops(tuned, monkeypatch, fast=False, **inputs, **options)
    assert output.sequences.tolist() != plain


def test_hooks_on_the_encoder_leave_the_search_fast(monkeypatch):
    """It is called once, as a module."""
    model = toy()
    model.get_encoder().register_forward_pre_hook(lambda module, given: None)
    assert_equal_loops(model, monkeypatch, **sources((6, 1, 4)), **ENDING)


def test_hooks_that_record_leave_the_search_fast(monkeypatch):
    """Transformers leaves them after a forward that was asked for attentions and states; asked, it records still."""
    model, inputs = toy().float(), sources((6, 1, 4))
    asked = {"output_attentions": True, "output_hidden_states": True}
    before = [explain(model, sentences, num_beams=3, max_new_tokens=9) for sentences in (1, 2)]
    recorded = [decode(model, **inputs, **ENDING, **asked) for _ in range(2)]
    assert any(module._forward_hooks for module in model.get_decoder().modules())
    assert [explain(model, sentences, num_beams=3, max_new_tokens=9) for sentences in (1, 2)] == before
    assert_equal_loops(model, monkeypatch, **inputs, **ENDING)
    assert_same(recorded[1].decoder_hidden_states, recorded[0].decoder_hidden_states)
    with monkeypatch.context() as patch:
        patch.setattr(output_capturing._active_collector, "get", lambda: {"attentions": []})
        assert "because of forward hooks" in explain(model, num_beams=3, max_new_tokens=9)
    model.get_decoder().layers[0].register_forward_hook(favour)
    assert "because of forward hooks" in explain(model, num_beams=3, max_new_tokens=9)
