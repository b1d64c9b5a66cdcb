"""Joint attention and multi-level supervision over a dual-context encoder: each is both of its families."""

from __future__ import annotations

import pytest
import torch
from helpers import contract
from helpers.contract import DECODING, TINY, Batch, assert_same, assert_same_decoding, gradients
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt import TransformerForConditionalGeneration, UserError
from hf_mlnmt.modeling import DualContextForConditionalGeneration
from hf_mlnmt.modeling.dual_context import DualContextAttention
from hf_mlnmt.zoo import find_system

SIZES = {**TINY, "encoder_layers": 3, "kernel_size": 4, "dual_layers": [2, 3]}
BEAMS = {**DECODING, "num_beams": 3}
# Every system that can have such an encoder; of multi-level supervision members that the sizes here suit.
COMBINED = [name for name in hf_mlnmt.list_systems("translation") if find_system(name).architecture.over_dual_context]
SYSTEMS = ["ms-12", "ms-12-aif", *(name for name in COMBINED if not name.startswith("ms-"))]


def build(system: str, seed: int = 0, **fields):
    """A float64 model in evaluation mode with large weights and no dropout."""
    return contract.build(hf_mlnmt.config_for(system, "tiny", **{"dropout": 0.0, **fields}), seed=seed)


def combined(system: str, seed: int = 0, **fields):
    return build(f"{system}+enc-dc", seed, **{**SIZES, **fields})


def logits_of(model, inputs: dict):
    with torch.no_grad():
        return model(**inputs).logits


@pytest.fixture(params=SYSTEMS)
def system(request) -> str:
    return request.param


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_without_the_local_half_it_is_the_joint_family(system, norm):
    """W_z = [0 ; W_o] in every dual-context layer."""
    model = combined(system, norm_position=norm)
    plain_sizes = {name: value for name, value in SIZES.items() if name not in ("kernel_size", "dual_layers")}
    plain = build(system, 1, **plain_sizes, norm_position=norm)
    modules, width = dict(plain.named_modules()), TINY["d_model"]
    weights = plain.state_dict()
    with torch.no_grad():
        for path, module in model.named_modules():
            if isinstance(module, DualContextAttention):
                module.global_proj.weight[width:].copy_(weights.pop(f"{path}.qkv_proj.weight"))
                module.out_proj.weight.copy_(nn.functional.pad(weights.pop(f"{path}.out_proj.weight"), (width, 0)))
                module.out_proj.bias.zero_()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(
        isinstance(model.get_submodule(name.split(".self_attn.")[0]).self_attn, DualContextAttention)
        for name in missing
    )
    assert len(modules) > 1
    batch = Batch.draw()
    assert_same(logits_of(model, batch.inputs), logits_of(plain, batch.inputs))
    if norm == "post":
        beams = {**BEAMS, "max_new_tokens": 5}
        assert_same_decoding(*(m.generate(**batch.encoder_inputs, **beams) for m in (model, plain)))


def test_encoder_is_the_dual_context_models(system):
    model = combined(system)
    dual = build("enc-dc", 1, **SIZES)
    missing, _ = dual.model.encoder.load_state_dict(model.model.encoder.state_dict(), strict=False)
    assert not missing
    batch = Batch.draw()
    with torch.no_grad():
        ours = model.model.encoder(**batch.encoder_inputs, output_hidden_states=True)
        theirs = dual.model.encoder(**batch.encoder_inputs, output_hidden_states=True)
    assert_same(ours.hidden_states, theirs.hidden_states)


def test_every_parameter_gets_a_gradient(system):
    model, batch = combined(system).train(), Batch.draw()
    model(**batch.training, loss_only=True).loss.backward()
    found = gradients(model)
    assert set(found) == {name for name, _ in model.named_parameters()}
    assert all(gradient.abs().max() > 1e-7 for gradient in found.values())


def test_save_and_load(system, tmp_path):
    model, batch = combined(system), Batch.draw()
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is type(model.config)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert_same(logits_of(loaded, batch.inputs), logits_of(model, batch.inputs), 0.0)
    assert type(AutoModel.from_pretrained(tmp_path)) is type(model.model)
    assert len(model.citation.split()) == 2


def test_attention_weights_of_both_families():
    model, batch = combined("m-10"), Batch.draw()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**batch.inputs, output_attentions=True)
    assert [weights.shape[1:-2] for weights in out.encoder_attentions] == [(2,), (2, 2), (2, 2)]
    assert [weights.shape[1:-2] for weights in out.cross_attentions] == [(3, 2), (3, 2)]


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("fusion", ["", "-aif"])
def test_each_auxiliary_translates_by_itself(layer, fusion):
    """Below the range of dual layers as a Transformer, in it as a dual-context model of fewer layers."""
    model, batch = combined(f"ms-12{fusion}").train(), Batch.draw()
    with torch.no_grad():
        states = model.model(**batch.inputs).auxiliary_states[layer - 1]
        expected = model.lm_head(states)
    single = model.auxiliary_translator(layer).eval()
    assert type(single) is (TransformerForConditionalGeneration if layer == 1 else DualContextForConditionalGeneration)
    assert_same(logits_of(single, batch.inputs), expected)


def test_dropping_the_auxiliaries():
    model, batch = combined("ms-12"), Batch.draw()
    single = model.drop_auxiliaries()
    assert type(single) is DualContextForConditionalGeneration
    assert (single.config.dual_layers, single.config.kernel_size) == ([2, 3], 4)
    assert_same(logits_of(single, batch.inputs), logits_of(model, batch.inputs), 0.0)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("ms-3", {}, "auxiliary_layers"),
        ("ms-1", {"kernel_size": 9}, "kernel_size=9"),
        ("m-10", {"dual_layers": [2, 4]}, "encoder_layers=3"),
        ("m-10", {"attended_layers": 4}, "attended_layers=4"),
        ("s-agg", {"collected_layers": 0}, "collected_layers=0"),
        ("s-agg", {"dual_context": "Full-DC"}, "dual_context"),
    ],
)
def test_bad_configurations_are_refused(name, fields, message):
    with pytest.raises(Exception, match=message):
        combined(name, **fields)


def test_names():
    assert hf_mlnmt.config_for("ms-1+enc-dc").model_type == "mlnmt-dual-context-supervision"
    for name in ("transformer+enc-dc", "enc-dc+enc-dc", "m-12+enc-dc"):
        with pytest.raises(UserError, match="unknown"):
            hf_mlnmt.config_for(name)
