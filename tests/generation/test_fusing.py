"""hf_mlnmt.fuse, `hf-mlnmt model fuse`, and fused folders in the pipeline and on the command line."""

from __future__ import annotations

import json
import shutil

import pytest
from helpers.bridge_tasks import bridge_model
from helpers.fused_folders import gpt2
from helpers.model_folders import SENTENCES, small_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM
from typer.testing import CliRunner

import hf_mlnmt
from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.data.tokenizer import load_tokenizers, save_tokenizers, train_tokenizer
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.fusing import fuse_folders
from hf_mlnmt.hub import build_folder

TEXTS = ["The man sees a dog.", "A woman."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A translation model, another, a language model, and one of another tokenizer; and one fused of the first two."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer(SENTENCES, vocab_size=300)
    other = train_tokenizer([text[::-1] for text in SENTENCES], vocab_size=300)
    for name, model, words in (
        ("tm", small_model(len(tokenizer)), tokenizer),
        ("tm2", small_model(len(tokenizer)), tokenizer),
        ("lm", gpt2(len(tokenizer)), tokenizer),
        ("other-lm", gpt2(len(other)), other),
        ("small-lm", gpt2(len(tokenizer) - 1), tokenizer),
        ("masked", AutoModelForMaskedLM.from_config(small_model(len(tokenizer)).config), tokenizer),
    ):
        if name == "tm2":
            model.model.decoder.layers[0].feed_forward.fc1.weight.data *= 2
        model.save_pretrained(root / name)
        save_tokenizers(root / name, words)
    hf_mlnmt.fuse(root / "tm", root / "lm", beta=0.5).save_pretrained(root / "by-hand")
    fuse_folders([root / "lm", root / "tm"], root / "fused", lambda text: None, beta=0.5)
    return root


def test_a_folder_like_any_other(folders):
    fused = folders / "fused"
    for file in ("model.safetensors", "config.json"):
        assert (fused / file).read_bytes() == (folders / "by-hand" / file).read_bytes()
    assert json.loads((fused / "generation_config.json").read_text())["beta"] == 0.5
    translate = TranslationPipeline.from_pretrained(fused)
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 10}
    found, weaker = translate(TEXTS, **options), translate(TEXTS, **options, beta=0.25)
    assert [[one.score for one in row] for row in found] != [[one.score for one in row] for row in weaker]
    ids = translate.parts.source(TEXTS, return_tensors="pt", padding=True)
    ids = {name: ids[name] for name in ("input_ids", "attention_mask")}
    told = {**options, "return_dict_in_generate": True}
    for beta, rows in ((0.5, found), (0.25, weaker)):
        scores = translate.model.generate(**ids, **told, beta=beta).sequences_scores.view(2, 2).tolist()
        assert [[one.score for one in row] for row in rows] == [pytest.approx(row, abs=1e-4) for row in scores]


def test_models_of_other_directions_and_languages_are_refused(folders, tmp_path):
    for name, (source, target) in {"tm": ("en", "de"), "tm2": ("de", "en"), "lm": ("en", "en")}.items():
        folder = shutil.copytree(folders / name, tmp_path / name)
        (folder / "results.json").write_text(json.dumps({"languages": {"source": source, "target": target}}))
    with pytest.raises(UserError, match=r"tm2: translates de to en, but .*tm en to de. Only models of one direction"):
        hf_mlnmt.fuse([tmp_path / "tm", tmp_path / "tm2"])
    with pytest.raises(UserError, match=r"lm: a language model of en, and .*tm writes de"):
        fuse_folders([tmp_path / "lm", tmp_path / "tm"], tmp_path / "fused", lambda text: None)
    assert not (tmp_path / "fused").exists()
    fused = fuse_folders([tmp_path / "tm"], tmp_path / "of-tm", lambda text: None)
    with pytest.raises(UserError, match=r"tm2: translates de to en, but .*of-tm en to de"):
        hf_mlnmt.fuse([fused, tmp_path / "tm2"])


def test_beta_0_is_the_translation_model(folders):
    alone, fused = (TranslationPipeline.from_pretrained(folders / name) for name in ("tm", "fused"))
    draws = {"do_sample": True, "draws": "text", "seed": 1, "max_new_tokens": 10}
    assert fused(TEXTS, beta=0.0, **draws) == alone(TEXTS, **draws) != fused(TEXTS, beta=20.0, **draws)
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 10}
    for row, expected in zip(fused(TEXTS, beta=0.0, **options), alone(TEXTS, **options)):
        assert [one.text for one in row] == [one.text for one in expected]
        assert [one.score for one in row] == pytest.approx([one.score for one in expected], abs=1e-4)


def test_members_of_either_kind_in_any_number(folders):
    names = [folders / name for name in ("tm", "lm", "tm2")]
    fuse_folders(names, folders / "three", lambda text: None, weights=[0.3, 2.0, 0.6], normalization="symbol")
    config = json.loads((folders / "three" / "config.json").read_text())
    assert config["translation_weights"] == [0.3, 0.6]
    assert config["language_weights"] == [2.0]
    with pytest.raises(UserError, match="2 weights for 3 models"):
        fuse_folders(names, folders / "no", lambda text: None, weights=[0.3, 2.0])
    settings = folders / "three" / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "num_beams": 7, "max_new_tokens": 30}))
    # its translation models, another language model
    again = hf_mlnmt.fuse(folders / "three", folders / "lm", alpha=0.5)
    assert (again.generation_config.num_beams, again.generation_config.max_new_tokens) == (7, 30), "as it was searched"
    assert again.generation_config.alpha == 0.5
    assert [type(one).__name__ for one in again.translation_models] == ["TransformerForConditionalGeneration"] * 2
    assert again.config.translation_weights == [0.5, 0.5]
    assert again.config.alpha == 0.5


def test_another_tokenizer_is_refused_naming_entries(folders):
    first, other = (load_tokenizers(folders / name).source for name in ("tm", "other-lm"))
    number = next(i for i in range(300) if first.convert_ids_to_tokens(i) != other.convert_ids_to_tokens(i))
    wanted = f"entry {number} is {other.convert_ids_to_tokens(number)!r} there and "
    with pytest.raises(UserError) as error:
        hf_mlnmt.fuse(folders / "tm", folders / "other-lm")
    assert wanted + repr(first.convert_ids_to_tokens(number)) in str(error.value)
    assert "tokenizer.path" in str(error.value)
    with pytest.raises(UserError, match="predicts 299 tokens, the translation model 300"):
        hf_mlnmt.fuse(folders / "tm", folders / "small-lm")
    translation = AutoModelForSeq2SeqLM.from_pretrained(folders / "tm")
    with pytest.raises(UserError, match="predicts 299 tokens"):
        hf_mlnmt.fuse(translation, gpt2(299))
    with pytest.raises(UserError, match="TransformerForMaskedLM: a masked language model"):
        hf_mlnmt.fuse(translation, AutoModelForMaskedLM.from_pretrained(folders / "masked"))


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        (["tm", "lm"], {"alpha": -1.0}, "alpha=-1.0: must be a number of at least 0"),
        (["tm", "lm"], {"beta": float("nan")}, "beta=nan: must be a number"),
        (["tm", "lm"], {"alpha": 0.0}, "alpha=0: sequence-level"),
        (["tm", "lm"], {"normalization": "word"}, "choose symbol or sequence"),
        (["tm", "lm"], {"beta": 1e300}, r"beta=1e\+300: must be a number of at least 0 and at most 10,000"),
        (["tm", "lm"], {"alpha": 1e-5, "beta": 1.0}, "beta=1.0 / alpha=1e-05, gamma=.*: must be a number"),
        (["tm", "lm"], {"beta": 1e-40}, "beta=1e-40: float32 does not hold it; give 0"),
        (["tm", "lm"], {"weights": [1.0, -2.0]}, "language_weights=-2.0: must be a number of at least 0"),
        (["tm", "lm"], {"weights": [0.0, 0.0]}, "all scales and weights are 0.*Give one above 0"),
        (["tm", "lm"], {"weights": [0.0, 1.0], "beta": 0.0}, "all scales and weights are 0"),
        (["tm", "lm"], {"alpha": 0.0, "beta": 0.0, "normalization": "symbol"}, "all scales and weights are 0"),
        (["lm"], {}, "no translation model"),
        (["tm", "masked"], {}, "masked: a masked language model"),
        (["tm", "ml"], {}, "no such folder"),
    ],
)
def test_bad_input(folders, models, settings, message, monkeypatch):
    monkeypatch.chdir(folders)
    with pytest.raises(UserError, match=message):
        fuse_folders([f"./{name}" for name in models], folders / "no", lambda text: None, **settings)
    assert not (folders / "no").exists()


def test_a_member_that_is_missing(folders, tmp_path):
    broken = shutil.copytree(folders / "fused", tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    kept = {name: one for name, one in weights.items() if not name.startswith("language_0")}
    save_file(kept, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"are missing \(language_0\."):
        TranslationPipeline.from_pretrained(broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "translation_models": [], "translation_weights": []}))
    with pytest.raises(UserError, match="at least one translation model"):
        TranslationPipeline.from_pretrained(broken)
    config["language_models"][0]["model_type"] = "of-a-package-that-is-not-here"
    (broken / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="unknown here: install"):
        TranslationPipeline.from_pretrained(broken)


def test_options_of_the_pipeline(folders):
    fused, alone = (TranslationPipeline.from_pretrained(folders / name) for name in ("fused", "tm"))
    for option in ({"beta": -0.1}, {"alpha": float("nan")}, {"beta": "much"}):
        with pytest.raises(UserError, match=r"must be at least 0|is not a number"):
            fused(TEXTS, **option)
    with pytest.raises(UserError, match="alpha=0: sequence-level"):
        fused(TEXTS, alpha=0)
    for option in ({"beta": 1e300}, {"beta": 1e10, "num_beams": 2}, {"alpha": 1e-20}):
        with pytest.raises(UserError, match="must be a number of at least 0 and at most 10,000"):
            fused(TEXTS, **option)
    with pytest.raises(UserError, match="is no fused model; make one with hf-mlnmt model fuse"):
        alone(TEXTS, beta=0.1)


def test_commands(folders):
    out, run = folders / "by-command", CliRunner()
    said = run.invoke(app, ["model", "fuse", str(folders / "tm"), str(folders / "lm"), "-o", str(out), "--beta", "0.5"])
    assert said.exit_code == 0
    assert str(out) in said.output
    assert (out / "model.safetensors").read_bytes() == (folders / "fused" / "model.safetensors").read_bytes()
    again = run.invoke(app, ["model", "fuse", str(folders / "tm"), "-o", str(out)])
    assert isinstance(again.exception, UserError)
    assert "is there already" in str(again.exception)
    options = ["-b", "3", "--max-new-tokens", "10"]
    expected = TranslationPipeline.from_pretrained(out)(TEXTS, num_beams=3, max_new_tokens=10, alpha=0.5, beta=2.0)
    scales = ["--alpha", "0.5", "--beta", "2"]
    said = run.invoke(app, ["translate", str(out), *options, *scales], input="\n".join(TEXTS))
    assert said.exit_code == 0
    assert said.stdout.splitlines() == expected


def test_published_with_the_code_of_all_members(folders, tmp_path, forks):
    """Loaded again in fresh processes, with the package and by its own code, beams and all."""
    ensemble = tmp_path / "ensemble"
    dual = hf_mlnmt.config_for("enc-dc", "tiny", vocab_size=300, d_model=16, max_position_embeddings=64)
    model = AutoModelForSeq2SeqLM.from_config(dual).eval()
    hf_mlnmt.fuse([small_model(300), model], gpt2(300)).save_pretrained(ensemble)
    load_tokenizers(folders / "tm").save(ensemble)
    settings = json.loads((ensemble / "generation_config.json").read_text())
    settings |= {"num_beams": 3, "max_new_tokens": 12}
    (ensemble / "generation_config.json").write_text(json.dumps(settings))
    published = build_folder(ensemble, tmp_path / "published").folder
    assert {"fusion.py", "dual_context.py", "transformer.py"} <= {path.name for path in published.iterdir()}
    card = (published / "README.md").read_text()
    assert "sequence-level normalization, alpha 1.0, beta 0.1, of mlnmt-transformer" in card
    assert "gpt2" in card


def test_a_model_of_modules_for_each_language_is_not_fused(folders, tmp_path):
    shutil.copytree(folders / "tm", tmp_path / "bridge")
    bridge_model().save_pretrained(tmp_path / "bridge")
    with pytest.raises(UserError, match="bridge: has modules of single languages"):
        fuse_folders([tmp_path / "bridge", folders / "lm"], tmp_path / "out", print)
