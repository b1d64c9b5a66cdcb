"""The contract of every model, part four: layers are called, so that adapters (PEFT) and weights in int8 count.

Right is: an adapter computes what the model computes into which it is merged, in logits, losses and searches, and gets
its gradient. What PEFT cannot adapt it refuses, naming the module.
"""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.contract import DECODING, Member, assert_same, assert_same_decoding, gradients, members, redraw
from peft import AdaLoraConfig, IA3Config, LoHaConfig, LoraConfig, VeraConfig, get_peft_model

from hf_mlnmt.search.cpu.int8 import Int8Linear, in_int8

SYSTEMS = list({member.system: member for member in members()}.values())
each_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda member: member.system)
# merge_and_unload() would merge an adapter of the output projection into tied embeddings too.
UNTIED = {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False, "attention_bias": True}
ATTENTION = ["qkv_proj", "q_proj", "kv_proj", "out_proj", "global_proj", "local_proj"]
TARGETS = {"all": None, "attention": ATTENTION, "output": r"lm_head|lm_heads\.of_\w+"}
# Unless told (zoo/registration.py) all layers hold an adapter, in every system; some of them alone in one system of
# each file whose layers are called otherwise.
CASES = [(system, "all") for system in SYSTEMS]
CASES += [(s, "attention") for s in SYSTEMS if s.system in ("transformer", "m-10", "full-dc", "key-value-full")]
CASES += [(s, "output") for s in SYSTEMS if s.system in ("transformer", "ms-1-aif", "bridge-rnn", "bridge-transformer")]


def adapted(system: Member, targets, **options):
    """A float64 model in training mode, without dropout, with an adapter that does something."""
    model = system.model(**UNTIED, dropout=0.0).train()
    torch.manual_seed(0)
    return get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False, **options))


@pytest.mark.parametrize(("system", "targets"), CASES, ids=str)
def test_an_adapter_is_what_it_is_merged_into(system, targets, batch):
    if targets == "attention" and system.system.startswith("m-"):
        with pytest.raises(ValueError, match=r"PerLayerLinear.* is not supported"):
            adapted(system, TARGETS[targets])
        return
    model = adapted(system, TARGETS[targets])
    training = [{**batch.training, "loss_only": loss_only, "smoothing": 0.1} for loss_only in (False, True)]
    outputs, found = [], []
    for given in training:
        outputs.append(model(**given))
        outputs[-1].loss.backward()
        found.append(gradients(model))
    assert found[0].keys() == {name for name, _ in model.named_parameters() if "lora" in name}
    assert all(gradient.abs().max() > 1e-9 for gradient in found[0].values())
    assert_same(found[1], found[0])
    searched = model.eval().generate(**batch.encoder_inputs, **{**DECODING, "min_new_tokens": 3, "max_new_tokens": 3})
    merged = model.train().merge_and_unload()
    with torch.no_grad():
        for out, given in zip(outputs, training, strict=True):
            expected = merged(**given)
            assert_same(out.logits, expected.logits)
            assert_same(out.loss, expected.loss)
            assert_same(out.losses, expected.losses)
        logits = merged.eval()(**batch.encoder_inputs, decoder_input_ids=searched.sequences[:, :-1]).logits
    assert_same(torch.stack(searched.logits, 1), logits, 1e-5)


def test_names_of_layers_that_a_model_lacks_are_warned_of(recwarn):
    """As every page about LoRA has them: self-attention is one product here, so that they adapt q_proj alone."""
    with pytest.warns(UserWarning, match="no layer of Transformer.* is called v_proj: an adapter is in 1 of"):
        adapted(SYSTEMS[0], ["q_proj", "v_proj"])
    recwarn.clear()
    adapted(SYSTEMS[0], ["feed_forward.fc1", "q_proj"])
    assert not [warning for warning in recwarn if "target_modules" in str(warning.message)]


def test_an_adapter_with_a_bias_of_its_own(batch):
    """It cannot be merged; the scan over a whole target equals the steps of a search, which call the layers."""
    system = next(member for member in SYSTEMS if member.system == "previous-context-full")
    model = adapted(system, ["context_proj", "context_q_proj", "kv_proj"], lora_bias=True).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name and name.endswith("bias"):
                parameter.normal_()
    cached, plain = (
        model.generate(**batch.encoder_inputs, **DECODING, num_beams=3, use_cache=cache) for cache in (True, False)
    )
    assert_same_decoding(cached, plain)


@each_system
def test_int8_is_close_to_float32(system, batch):
    """The same logits, but for the rounding.

    Rounding a matrix to 255 steps between its extremes (3 deviations) leaves an error of 0.7 % of the deviation, and
    rounding inputs, to 127 steps, 1.4 %: 1.5 % a product, the square root of 20 times that behind 20 of them, 7 %.
    """
    exact = system.model(dtype=torch.float32)
    redraw(exact, std=None)  # larger weights amplify the rounding, in the recurrent members without limit
    rounded = in_int8(exact)
    assert any(isinstance(module, Int8Linear) for module in rounded.modules())
    with torch.no_grad():
        logits, expected = rounded(**batch.inputs).logits, exact(**batch.inputs).logits
    assert 0 < (logits - expected).abs().mean() < 0.1 * expected.std()
    assert len(rounded.generate(**batch.encoder_inputs, num_beams=3, max_new_tokens=2)) == 4


# One system of each file whose layers hand on something of their own; of the baseline the encoder stays in memory too.
KINDS = ("transformer", "m-10", "ms-1-aif", "full-dc", "key-value-full", "bridge-rnn", "bridge-transformer")
KINDS += ("previous-context-head", "previous-weight", "key-value-head")
ON_DISK = [(system, {"": "disk"}) for system in SYSTEMS if system.system in KINDS]
ON_DISK += [(ON_DISK[0][0], {"model.encoder": "cpu", "model.decoder": "disk", "lm_head": "disk"})]


@pytest.mark.parametrize(("system", "places"), ON_DISK, ids=str)
def test_weights_on_the_disk(system, places, batch, tmp_path):
    """Accelerate fetches a module's weights when it is called, and moves what it is called with, modules too."""
    model = system.model(**UNTIED)
    options = {**DECODING, "min_new_tokens": 2, "max_new_tokens": 2}
    calls = [lambda m: m(**batch.training).loss, lambda m: m.generate(**batch.encoder_inputs, **options)]
    loss, decoded = (call(model) for call in calls)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "offloaded")
    assert sum(weight.is_meta for weight in loaded.parameters()) > 5
    assert_same(calls[0](loaded), loss)
    assert_same_decoding(calls[1](loaded), decoded)


@pytest.mark.parametrize(
    "config",
    [AdaLoraConfig(total_step=9), IA3Config(), LoHaConfig(), VeraConfig()],
    ids=lambda config: type(config).__name__,
)
@pytest.mark.parametrize("system", [s for s in SYSTEMS if s.system == "transformer"], ids=str)
def test_other_adapters_too_need_not_be_told_their_layers(system, config):
    found = get_peft_model(system.model(**UNTIED), copy.deepcopy(config)).base_model.targeted_module_names
    assert {name.rpartition(".")[2] for name in found} >= {"qkv_proj", "kv_proj", "fc2"}
    assert not any("lm_head" in name for name in found)
