"""An adapter in a recipe: it alone is trained, goes on to the same bits, is averaged, merged, and loaded by itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from helpers.power_cut import power_cut
from helpers.tiny_run import run, same_weights, write_recipe
from huggingface_hub import metadata_load
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_mlnmt import UserError
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.hub import build_folder
from hf_mlnmt.training.adapters import merged
from hf_mlnmt.training.checkpoints import write_model

pytestmark = pytest.mark.usefixtures("one_thread")
A = "model.encoder.layers.0.feed_forward.fc1.lora_A.default.weight"


def tune(whole, folder: Path, **changes) -> str:
    """An adapter of the finished run, 8 steps, two checkpoints averaged; what was printed."""
    changes = {"adapter": {"r": 2, "alpha": 8}, "init_from": str(whole[0] / "average"), **changes}
    short = {"budget": {"steps": 8}, "checkpoints": {"keep": 2, "average": 2}, "schedule": {"warmup": 2}}
    short["decoding"] = {"beams": 3, "max_new_tokens": 20}  # of the base: 2
    folder.mkdir(exist_ok=True)
    recipe = write_recipe(
        folder / "recipe.yaml", scores=False, tokenizer={"path": str(whole[0] / "average")}, **{**short, **changes}
    )
    return run(recipe, whole[1].parent / "data", folder / "run")


@pytest.fixture(scope="module")
def tuned(whole, tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("tuned")
    return folder / "run", tune(whole, folder)


def test_the_adapter_alone_is_trained_and_merged_as_peft_does(whole, tuned):
    output, text = tuned
    assert "parameters and an adapter of 992, which alone is trained, training on cpu" in text
    base, merged = (load_file(folder / "average" / "model.safetensors") for folder in (whole[0], output))
    last, first = (load_file(output / "checkpoints" / f"checkpoint-{step}" / "model.safetensors") for step in (8, 4))
    frozen = {name.replace(".base_layer.", "."): weight for name, weight in last.items()}
    assert all(torch.equal(frozen[name], weight) for name, weight in base.items())
    assert merged.keys() == base.keys()
    adapter = load_file(output / "average" / "adapter" / "adapter_model.safetensors")
    mean = adapter["base_model.model." + A.replace(".default", "")]
    assert torch.equal(mean, ((last[A].double() + first[A].double()) / 2).float())
    assert not torch.equal(last[A], first[A])

    model = AutoModelForSeq2SeqLM.from_pretrained(whole[0] / "average")
    theirs = PeftModel.from_pretrained(model, output / "average" / "adapter").merge_and_unload().state_dict()
    for name, weight in merged.items():
        torch.testing.assert_close(weight, theirs[name])
    assert not torch.equal(
        merged["model.encoder.layers.0.feed_forward.fc1.weight"], base["model.encoder.layers.0.feed_forward.fc1.weight"]
    )


def test_a_folder_of_the_adapter_translates_as_the_merged_model(whole, tuned):
    texts = ["ba do", "su ti ki me", "pa"]
    both = [TranslationPipeline.from_pretrained(str(tuned[0] / name)) for name in ("average", "average/adapter")]
    assert both[1](texts) == both[0](texts)
    assert both[1].model.generation_config.num_beams == 3


def test_interrupted_it_goes_on_to_the_same_bits(whole, tuned, tmp_path, monkeypatch):
    with power_cut(monkeypatch, 6):
        tune(whole, tmp_path)
    assert "going on from" in tune(whole, tmp_path)
    assert same_weights(tuned[0], tmp_path / "run")
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tuned[0] / "best/adapter" / file).read_bytes() == (tmp_path / "run/best/adapter" / file).read_bytes()


def test_checkpoints_are_averaged_without_the_run(tuned, tmp_path):
    each = [tuned[0] / "checkpoints" / f"checkpoint-{step}" for step in (4, 8)]
    write_model(tmp_path / "mean", each[1], each)
    written, expected = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "mean", tuned[0] / "average")
    )
    assert all(torch.equal(written[name], weight) for name, weight in expected.items())


def test_an_adapter_is_published_by_itself(whole, tuned, tmp_path):
    adapter = tuned[0] / "average" / "adapter"
    with pytest.raises(UserError, match=r"nobody can use an adapter without its base model.*: --base-model OWNER/NAME"):
        build_folder(adapter, tmp_path / "published")
    for _ in range(2):  # an earlier one is replaced
        built = build_folder(adapter, tmp_path / "published", name="me/adapter", base_models=["me/base"])
    assert not [warning for warning in built.warnings if "parameters" in warning]
    said = metadata_load(built.folder / "README.md")
    assert [said["library_name"], said["base_model"], said["base_model_relation"]] == ["peft", ["me/base"], "adapter"]
    assert {path.name for path in built.folder.iterdir()} >= {
        "results.json",
        "tokenizer.json",
        "adapter_model.safetensors",
    }

    config = json.loads((built.folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "me/base"
    config["base_model_name_or_path"] = str(whole[0] / "average")  # where nothing is on the Hub
    (built.folder / "adapter_config.json").write_text(json.dumps(config))
    tokenizer = AutoTokenizer.from_pretrained(built.folder)
    batch = tokenizer(["ba do", "su ti ki me"], return_tensors="pt", padding=True)
    folders = built.folder, tuned[0] / "average"
    one, other = (AutoModelForSeq2SeqLM.from_pretrained(folder)(**batch, labels=batch.input_ids) for folder in folders)
    torch.testing.assert_close(one.logits, other.logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_from": None}, "adapter: it is of one trained model: name that in init_from"),
        ({"init_from": {"encoder": "x"}}, "adapter: it is of one trained model"),
        (
            {"adapter": {"modules": ["v_proj"]}},
            r"adapter.modules: \['v_proj'\]: .* linear layers are fc1, fc2, kv_proj",
        ),
        ({"adapter": {"modules": "("}}, r"adapter.modules: \(: .* linear layers are fc1, fc2, kv_proj"),
        ({"adapter": {"modules": ["lm_head"]}}, "the output projection is the token embeddings too"),
        ({"adapter": {"kind": "ia3"}}, "adapter.kind: 'ia3' is not one of lora"),
        ({"adapter": {"r": 0}}, "adapter.r"),
    ],
)
def test_what_cannot_be_adapted_is_refused(whole, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        tune(whole, tmp_path, **changes)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_without_peft_its_extra_is_named(whole, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"adapter: PEFT is not installed: pip install 'hf-mlnmt\[peft\]'"):
        tune(whole, tmp_path)


@pytest.mark.parametrize(("alpha", "r"), [(1.0, 4), (4.0, 4), (32.0, 4)])
def test_merged_is_alpha_by_r_times_the_product(alpha, r):
    weight, a, b = (torch.randn(size, dtype=torch.float64) for size in ((3, 5), (r, 5), (3, r)))
    named = {"x.base_layer.weight": weight, "x.lora_A.default.weight": a, "x.lora_B.default.weight": b}
    torch.testing.assert_close(merged(named, {"lora_alpha": alpha, "r": r})["x.weight"], weight + alpha / r * (b @ a))
