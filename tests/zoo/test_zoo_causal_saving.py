"""The contract of every causal language model, saving: with this package and, by the code beside it, without."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.causal_contract import TextBatch, causal_members
from helpers.contract import assert_same
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM

ALL = pytest.mark.parametrize("one", causal_members(), ids=str)
BATCH = TextBatch.draw()


def logits_of(model):
    with torch.no_grad():
        return model(**BATCH.inputs).logits


@ALL
def test_round_trip_is_exact_and_ties_what_the_config_says(one, tmp_path):
    model = one.model()
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(model)
    assert not any(report.values()), report
    assert torch.equal(logits_of(loaded), logits_of(model))
    for each in (model, loaded):
        tied = each.lm_head.weight is each.get_input_embeddings().weight
        assert tied == model.config.tie_word_embeddings
    assert sum(value.numel() for value in load_file(tmp_path / "model.safetensors").values()) == model.num_parameters()
    for name, value in model.named_buffers():
        assert torch.equal(dict(loaded.named_buffers())[name], value.to(loaded.dtype)), name
    config = json.loads((tmp_path / "config.json").read_text())
    assert not [name for name in config if name.startswith("encoder")], "a model without encoder has no such field"


@ALL
def test_missing_weights_begin_like_new_ones(one, tmp_path):
    torch.manual_seed(0)
    fresh = dict(AutoModelForCausalLM.from_config(one.config()).named_parameters())
    AutoModelForCausalLM.from_config(one.config()).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({k: v for k, v in load_file(path).items() if "layers.0" not in k}, path, metadata={"format": "pt"})
    for name, value in AutoModelForCausalLM.from_pretrained(tmp_path).named_parameters():
        assert value.isfinite().all()
        deviations = [float(one.detach().std(unbiased=False)) for one in (value, fresh[name])]
        assert deviations[0] == pytest.approx(deviations[1], rel=0.4), name


@ALL
def test_base_model_and_head_share_a_checkpoint(one, tmp_path):
    model = one.model()
    model.save_pretrained(tmp_path / "head")
    base = AutoModel.from_pretrained(tmp_path / "head").eval()
    states = base(**BATCH.inputs).last_hidden_state
    assert_same(model.lm_head(states), logits_of(model))
    base.save_pretrained(tmp_path / "base")
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path / "base").model(**BATCH.inputs)[0], states)


@ALL
def test_resized_vocabulary(one, tmp_path):
    model = one.model()
    before = logits_of(model)
    model.resize_token_embeddings(35)
    assert logits_of(model).shape[-1] == model.config.vocab_size == 35
    assert_same(logits_of(model)[..., :29], before)
    model.save_pretrained(tmp_path)
    assert_same(logits_of(AutoModelForCausalLM.from_pretrained(tmp_path)), logits_of(model))
