"""The contract of every causal language model, saving: with this package and, by the code beside it, without."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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


READER = """
import json, sys, torch
sys.modules['hf_mlnmt'] = None
from transformers import AutoModel, AutoModelForCausalLM
for folder in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    inputs = torch.load(sys.argv[1], weights_only=True)
    with torch.no_grad():
        logits = model(**inputs).logits
    tokens = model.generate(inputs["input_ids"][:1], num_beams=3, max_new_tokens=8, no_repeat_ngram_size=1)
    result = {"module": type(model).__module__, "logits": logits.tolist(), "tokens": tokens.tolist()}
    json.dump(result, open(f"{folder}/result.json", "w"))
"""


def test_loads_from_hub_code_without_the_package(tmp_path):
    members = causal_members()
    for one in members:
        model = one.model()
        model.config.register_for_auto_class()
        type(model).register_for_auto_class("AutoModelForCausalLM")
        try:
            model.save_pretrained(tmp_path / str(one))
        finally:
            type(model)._auto_class = type(model.config)._auto_class = None
    torch.save(BATCH.inputs, tmp_path / "inputs.pt")
    folders = [str(tmp_path / str(one)) for one in members]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HOME": str(tmp_path / "hf_home")}
    command = [sys.executable, "-I", "-c", READER, str(tmp_path / "inputs.pt"), *folders]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for one, folder in zip(members, folders):
        with open(f"{folder}/result.json") as file:
            result = json.load(file)
        model = one.model()
        assert result["module"].startswith("transformers_modules.")
        assert_same(torch.tensor(result["logits"], dtype=torch.float64), logits_of(model), 1e-6)
        prompt = BATCH.tokens[:1]
        expected = model.generate(prompt, num_beams=3, max_new_tokens=8, no_repeat_ngram_size=1)
        assert result["tokens"] == expected.tolist()
