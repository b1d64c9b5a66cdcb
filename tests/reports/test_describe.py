"""describe: parameters by part against a hand count, folders and configs, both outputs, bad input."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from helpers.model_folders import small_model
from rich.console import Console
from transformers import MarianConfig, MarianMTModel
from typer.testing import CliRunner

from hf_mlnmt import UserError, config_for, list_systems
from hf_mlnmt.cli.describe import describe as describe_command
from hf_mlnmt.recipe.reading import find_recipe
from hf_mlnmt.reports import describe, parameters_by_part
from hf_mlnmt.reports.description import _system as description_of_system
from hf_mlnmt.reports.description import describe_machine, render, render_machine
from hf_mlnmt.reports.parameters import model_of_config, of_a_pair
from hf_mlnmt.training import read_recipe
from hf_mlnmt.training.model_making import config_of_recipe
from hf_mlnmt.training.preflight import expected_tokenizers
from hf_mlnmt.zoo.records import results_of, trained
from hf_mlnmt.zoo.systems import find_system

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


def test_many_directions_are_short():
    description = describe(ROOT / "published" / "many")
    short = [str(line) for block in render(description) for line in block.rows]
    tests = description["results"][0]["scores"]
    assert sum(any(f"'{test}'" in line for line in short) for test in tests) == len(tests)
    assert "12 corpora" in "".join(short)
    bleu = tests["test_2016_flickr.cs-de"]["cased"]["BLEU"]
    assert any(f"{bleu['score']:.2f}" in line and bleu["signature"] not in line for line in short)


def test_the_machine():
    found = describe_machine()
    assert {"processor", "torch", "threads", "gigaflops", "onednn"} == found.keys()
    console = Console(record=True, width=120, file=io.StringIO())
    speeds = {"few": [30.2, 61.0], "many": [90.0, 80.0], "bfloat16": [180.0, 93.0]}
    for block in render_machine({**found, "gigaflops": speeds, "onednn": ["few"]}):
        console.print(block)
    text = console.export_text()
    assert found["processor"] in text
    assert "93 GFLOP/s in a training, in float32 180" in text
    assert [line.split()[1:8:2] for line in text.splitlines() if " few " in line] == [["few", "30", "61", "oneDNN"]]
    assert [line.split()[7] for line in text.splitlines() if " many " in line] == ["PyTorch"]


def test_the_command_wants_a_model_or_the_machine():
    for given in ([], ["a", "--machine"]):
        result = CliRunner().invoke(app(), given)
        assert isinstance(result.exception, UserError)
    assert "processor" in json.loads(CliRunner().invoke(app(), ["--machine", "--json"]).stdout)


def app() -> typer.Typer:
    program = typer.Typer()
    program.command()(describe_command)
    return program


def test_a_fused_config_of_no_members_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mlnmt-fusion"}')
    with pytest.raises(UserError, match="translation_models names no member"):
        describe(tmp_path / "config.json")


def test_untied_and_added_parts():
    from torch import nn

    model = small_model(V, 40)
    model.bridge = nn.Linear(3, 2)
    parts = parameters_by_part(model)
    assert parts["embeddings"] == (V + 40) * D
    assert parts["bridge"] == 8
    untied = type(model)(type(model.config)(**{**model.config.to_dict(), "tie_word_embeddings": False}))
    assert parameters_by_part(untied)["output projection"] == 40 * D


def test_what_a_pair_of_languages_uses(tmp_path):
    """The table of docs/studies/multilingual.md is what is counted: one encoder, one decoder, one bridge, by hand."""
    page = (ROOT / "docs" / "studies" / "multilingual.md").read_text(encoding="utf-8")
    recipes = {one: read_recipe(*find_recipe("multi30k-many", one)) for one in ("bridge-rnn", "bridge-transformer")}
    recipes["transformer"] = read_recipe(*find_recipe("multi30k-many"))
    made = {
        name: config_of_recipe(recipe, expected_tokenizers(recipe), ROOT, lambda text: None)
        for name, recipe in recipes.items()
    }
    tagged, configs = made["transformer"], {}
    for layers in (6, 8):
        deeper = {**tagged.to_dict(), "encoder_layers": layers, "decoder_layers": layers}
        configs[f"the same of {layers} + {layers} layers"] = type(tagged)(**deeper)
    for name in ("transformer", "bridge-rnn", "bridge-transformer"):
        configs[f"`{name}`" + " (tagged)" * (name == "transformer")] = made[name]
    for shown, config in configs.items():
        model = model_of_config(config)
        total = parameters_by_part(model)["total"]
        assert f"| {shown} | {total:,} | {of_a_pair(model):,} |" in page
    parts = parameters_by_part(model)
    assert of_a_pair(model) == (total - parts["bridge"]) // 4 + parts["bridge"], "four of each are there, one is used"
    (tmp_path / "bridge.json").write_text(json.dumps(config.to_dict()))
    found = describe(tmp_path / "bridge.json")
    assert found["parameters_of_a_pair"] == of_a_pair(model)
    console = Console(record=True, width=120)
    console.print(render(found)[1])
    assert "used by one pair of languages" in console.export_text()


def test_folder(trained_folder):
    found = describe(trained_folder)
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


def test_rendered_folder_keeps_protocols_apart(trained_folder):
    text = text_of(describe(trained_folder))
    for expected in ("encoder", "embeddings", "100.0%", "d_model", "BPE", "31.23", "nrefs:1|tok:13a", "num_beams"):
        assert expected in text
    assert text.index("31.23") < text.index("scores, classic") < text.index("37.68")


def test_a_model_that_was_trained_here():
    found = describe("multi30k-ende-short/m-10")
    of_config = describe(ROOT / "modeling" / "multi30k-ende-short" / "m-10.json")
    assert {**found, "results": []} == {**of_config, "name": found["name"]}
    assert found["architecture"] == "MultiLayerAttentionForConditionalGeneration"
    assert found["parameters"]["total"] == 3385856
    assert found["system"]["title"] == "M-10"
    assert found["system"]["paper"][0].startswith("Ampomah, McClean, Lin and Hawe 2020: Every Layer Counts")
    kept = [json.loads(path.read_text()) for path in sorted((ROOT / "results/multi30k-ende-short").glob("m-10.*.json"))]
    assert [result["scores"] for result in found["results"]] == [result["scores"] for result in kept]
    text = text_of(found)
    for result in kept:
        assert f"{result['scores']['val']['cased']['BLEU']['score']:.2f}" in text
    assert "a layer's own weights (3.8), contexts concatenated (3.11)" in text
    assert "(3.8) U0 = 1: c^i = softmax(a^i) V^i" in text


def test_every_record_has_its_scores_and_every_system_is_known_by_its_config():
    """Of a wheel, which leaves results/ out, `results_of` finds nothing."""
    assert all(results_of(*name.split("/")) for name in trained())
    for name in (*list_systems(), "ms-2", "ms-13-aif", "ms-1+enc-dc", "m-10+enc-dc", "s-agg+enc-dc"):
        sizes = {"encoder_layers": 3, "decoder_layers": 3} if "rnn" in name else {}
        architecture = find_system(name).architecture
        system = description_of_system(config_for(name, "tiny", **sizes), architecture.head_class)["system"]
        assert system["name"] == name
        assert system["paper"]
        assert system["equations"][-1].startswith("(")
    assert description_of_system(MarianConfig(), MarianMTModel) == {}


def test_bad_targets(tmp_path):
    with pytest.raises(UserError, match="not in the cache"):
        describe("nobody/nothing-of-this-name")
    with pytest.raises(UserError, match="not a Hub name"):
        describe("no such thing")
    with pytest.raises(UserError, match=r"did you mean 'multi30k-ende/transformer'"):
        describe("multi30k-ende/transfomer")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no config\.json there. Give a model folder, a Hub"):
        describe(tmp_path / "empty")
    (tmp_path / "empty" / "average").mkdir()
    (tmp_path / "empty" / "average" / "config.json").touch()
    with pytest.raises(UserError, match=r"Give a model folder, as .*average, a Hub"):
        describe(tmp_path / "empty")  # the folder of a run
    (tmp_path / "broken.json").write_text('{"model_type": "mlnmt-transformer", "d_model": "wide"}')
    with pytest.raises(UserError, match="not the config of a model"):
        describe(tmp_path / "broken.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        describe(tmp_path / "broken.json")
