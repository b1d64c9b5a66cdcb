"""describe: parameters by part against a hand count, folders and records, both outputs, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.model_folders import small_model, some_results
from rich.console import Console

from hf_mlnmt import UserError, config_for
from hf_mlnmt.reports import describe, parameters_by_part
from hf_mlnmt.reports.parameters import beyond_baseline, model_of_config, of_a_pair
from hf_mlnmt.reports.record_cards import card_for_record, record_config
from hf_mlnmt.reports.rendering import render

ROOT = Path(__file__).resolve().parents[2]
D, FFN, V = 16, 16, 50
ATTENTION = 4 * D * D
FEED_FORWARD = D * FFN + FFN + FFN * D + D
NORM = 2 * D


def test_parameters_by_part_match_a_hand_count():
    parts = parameters_by_part(small_model(V))
    assert parts["embeddings"] == V * D  # source, target and projection are one
    assert parts["encoder"] == ATTENTION + FEED_FORWARD + 2 * NORM
    assert parts["decoder"] == 2 * ATTENTION + FEED_FORWARD + 3 * NORM
    assert parts["output projection"] == 0
    assert parts["total"] == sum(parameter.numel() for parameter in small_model(V).parameters())


@pytest.mark.parametrize("architectures", [None, ["TransformerForMaskedLM"]])
def test_models_that_do_not_translate(architectures):
    """A language model is its own kind of config; an encoder's config says by its class what it is."""
    config = config_for("transformer" if architectures else "lm", "tiny", vocab_size=V)
    if architectures:
        config.architectures, config.is_encoder_decoder = architectures, False
    parts = parameters_by_part(model_of_config(config))
    assert parts["decoder" if architectures else "encoder"] == 0
    assert parts["encoder" if architectures else "decoder"] > 0
    assert parts["output projection"] == (V * config.d_model if architectures else 0)  # W_proj is not tied


def test_untied_and_added_parts():
    from torch import nn

    model = small_model(V, 40)
    model.bridge = nn.Linear(3, 2)
    parts = parameters_by_part(model)
    assert parts["embeddings"] == (V + 40) * D
    assert parts["bridge"] == 8
    untied = type(model)(type(model.config)(**{**model.config.to_dict(), "tie_word_embeddings": False}))
    assert parameters_by_part(untied)["output projection"] == 40 * D


def test_what_a_family_adds_to_the_baseline():
    """S-Agg adds L matrices of d x d, 1.6 million at the base shape."""
    assert beyond_baseline(config_for("transformer")) == 0
    assert beyond_baseline(config_for("s-agg")) == 6 * 512 * 512


def test_what_a_pair_of_languages_uses():
    """docs/multilingual.md's table is what is counted; one encoder, one decoder, one bridge: by hand for the bridge."""
    page = (ROOT / "docs" / "multilingual.md").read_text(encoding="utf-8")
    tagged = record_config(ROOT / "modeling" / "transformer.multi30k-many.json")
    configs = {}
    for layers in (6, 8):
        deeper = {**tagged.to_dict(), "encoder_layers": layers, "decoder_layers": layers}
        configs[f"the same of {layers} + {layers} layers"] = type(tagged)(**deeper)
    for stem in ("transformer", "bridge-rnn", "bridge-transformer"):
        name = f"{stem}.multi30k-many"
        shown = f"`{name}`" + " (tagged)" * (stem == "transformer")
        configs[shown] = record_config(ROOT / "modeling" / f"{name}.json")
    for shown, config in configs.items():
        model = model_of_config(config)
        total = parameters_by_part(model)["total"]
        assert f"| {shown} | {total:,} | {of_a_pair(model):,} |" in page
    parts = parameters_by_part(model)
    assert of_a_pair(model) == (total - parts["bridge"]) // 4 + parts["bridge"], "four of each are there, one is used"
    found = describe("bridge-transformer.multi30k-many")
    assert found["parameters_of_a_pair"] == of_a_pair(model)
    console = Console(record=True, width=120)
    console.print(render(found)[1])
    assert "used by one pair of languages" in console.export_text()


def test_folder(published):
    found = describe(published)
    assert found["architecture"] == "TransformerForConditionalGeneration"
    assert found["parameters"]["total"] == small_model(found["config"]["vocab_size"]).num_parameters()
    assert found["config"]["d_model"] == D
    assert found["tokenizers"]["joint"]["kind"].startswith("BPE")
    assert found["tokenizers"]["joint"]["special_tokens"]["</s>"] == 1
    assert found["generation"]["num_beams"] == 2
    assert found["results"][0]["scores"]["test"]["cased"]["BLEU"]["score"] == 31.2345
    assert json.loads(json.dumps(found)) == found


def text_of(description) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"), markup=False)  # noqa: SIM115
    for block in render(description):
        console.print(block)
    return console.export_text()


def test_rendered_folder_keeps_protocols_apart(published):
    text = text_of(describe(published))
    for expected in ("encoder", "embeddings", "100.0%", "d_model", "BPE", "31.23", "nrefs:1|tok:13a", "num_beams"):
        assert expected in text
    assert text.index("31.23") < text.index("scores, classic") < text.index("37.68")


@pytest.fixture
def root(tmp_path):
    """A root folder with one record."""
    stem = "toy.toy-ende"
    config = small_model(V).config.to_dict()
    (tmp_path / "modeling").mkdir()
    (tmp_path / "training").mkdir()
    (tmp_path / "modeling" / f"{stem}.json").write_text(json.dumps(config))
    corpus = "{files: {source: train.en.gz, target: train.de.gz}}"
    (tmp_path / "training" / f"{stem}.yaml").write_text(
        "languages: {source: en, target: de}\n"
        f"data: {{name: Toy, licence: CC0-1.0, train: {corpus}, dev: {corpus}}}\n"
        f"model: {{record: {stem}}}\nbudget: {{steps: 77}}\n"
    )
    return tmp_path


def test_record_before_and_after_training(root):
    path = root / "modeling" / "toy.toy-ende.json"
    assert describe(path)["results"] == []
    before = card_for_record("toy.toy-ende", root)
    for expected in ("No results yet.", "Not trained yet.", "steps 77", "CC0-1.0", "`train.en.gz`", "- en\n- de"):
        assert expected in before
    assert "model-index" not in before
    (root / "results").mkdir()
    (root / "results" / "toy.toy-ende.json").write_text(json.dumps(some_results()))
    (root / "results" / "toy.toy-ende.seed8.json").write_text(json.dumps(some_results(seed=8)))
    after = card_for_record("toy.toy-ende", root)
    assert "No results yet." not in after
    assert "31.23" in after
    assert "| seed | 8 |" in after
    assert "77" not in after.split("## Training\n")[1].split("## Scores")[0], "the plan gives way to what was done"
    assert [result["seed"] for result in describe(path)["results"]] == [7, 8]
    assert "not recorded" not in text_of(describe(path)).split("scores")[1]


def test_bad_targets(root, tmp_path):
    with pytest.raises(UserError, match=r"did you mean 'toy\.toy-ende'"):
        card_for_record("toy.toy-end", root)
    with pytest.raises(UserError, match="not in the cache"):
        describe("nobody/nothing-of-this-name")
    with pytest.raises(UserError, match="not a Hub name"):
        describe("no such thing")
    with pytest.raises(UserError, match=r"did you mean 'transformer\.multi30k-ende'"):
        describe("transfomer.multi30k-ende")
    (root / "empty").mkdir()
    with pytest.raises(UserError, match=r"no config\.json"):
        describe(root / "empty")
    (root / "modeling" / "broken.json").write_text('{"model_type": "mlnmt-transformer", "d_model": "wide"}')
    with pytest.raises(UserError, match="not the config of a model"):
        describe(root / "modeling" / "broken.json")
    (root / "modeling" / "broken.json").write_text("{")
    with pytest.raises(UserError, match="not the config"):
        describe(root / "modeling" / "broken.json")
