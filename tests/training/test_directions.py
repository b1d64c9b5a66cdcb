"""Recipes of many languages: what `directions` stands for, a whole run, languages that are added, the matrix."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from helpers.tiny_run import killed, run, same_weights, write_corpus, write_recipe
from rich.console import Console
from rich.text import Text
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TrainerState
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.data import load_tokenizers
from hf_mlnmt.export import export
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.choosing.embedding import embed_texts
from hf_mlnmt.hub.publish import build_folder
from hf_mlnmt.recipe.reading import read_recipe
from hf_mlnmt.reports.matrix import read_matrix
from hf_mlnmt.training import preparation
from hf_mlnmt.training.callbacks import SHOWN, ShowProgress

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "bridge_heads": 2, "bridge_width": 8}
BETWEEN = {"between": ["de", "en", "fr"], "train": "train.<language>", "dev": "val.<language>"}
MODEL = {"system": "bridge-rnn", "shape": "tiny", "settings": SIZES}


def recipe_of(folder: Path, directions: dict, model: dict | None = None, **changes) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    data = {"train": None, "dev": None, "test": {}}
    changes = {"evaluation": {"every": 6, "best": "mean_bleu"}, "budget": {"steps": 12}, **changes}
    directions = {**BETWEEN, "test": {"made-up": "test.<language>"}, **directions}
    path = folder / "recipe.yaml"
    return write_recipe(path, data=data, model=model or MODEL, directions=directions, **changes)


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Path:
    """A corpus of three languages: the third says the first one's words backwards."""
    folder = write_corpus(tmp_path_factory.mktemp("corpus"), {"train": 120, "val": 4, "test": 5})
    for part in ("train", "val", "test"):
        lines = (folder / f"{part}.en").read_text().splitlines()
        (folder / f"{part}.fr").write_text("".join(f"{' '.join(w[::-1] for w in x.split())} !\n" for x in lines))
    return folder


@pytest.fixture(scope="module")
def finished(three, tmp_path_factory) -> tuple[Path, Path]:
    """A run of en <-> de and en <-> fr with copies, so that de <-> fr is zero-shot; and its recipe."""
    folder = tmp_path_factory.mktemp("run")
    recipe = recipe_of(folder, {"leave_out": ["de-fr"], "copies": True})
    said = run(recipe, three, folder / "run")
    assert "no code says" not in said, "the model has a decoder for each language"
    return folder / "run", recipe


def test_the_mean_of_losses_chooses_without_translations(three, tmp_path):
    """metrics: [] leaves the losses; their mean over the directions is measured all the same."""
    changes = {"evaluation": {"every": 2, "metrics": [], "best": "mean_loss"}, "budget": {"steps": 2}}
    recipe = recipe_of(tmp_path, {"pairs": ["de-en", "en-de"], "test": {}}, **changes)
    run(recipe, three, tmp_path / "run")
    (last,) = json.loads((tmp_path / "run" / "results.json").read_text())["dev"]
    assert last["eval_mean_loss"] == pytest.approx((last["eval_loss"] + last["eval_en-de_loss"]) / 2)


def test_of_many_directions_little_is_said(three, tmp_path, monkeypatch):
    """Their reports are one, the dry run shows some, the evaluation's line too; shares follow the sizes."""
    for place in ("preparation.TOLD", "dry_run.MEASURED"):
        monkeypatch.setattr(f"hf_mlnmt.training.{place}", 4)
    recipe = recipe_of(tmp_path, {"shares": {"de-en": 3.7}, "test": {}}, batch={"tokens": 60, "temperature": 5})
    text = run(recipe, three, tmp_path / "run", dry_run=True)
    assert "6 corpora\npairs read 720 " in text
    assert "train.de + train.en" not in text
    assert re.search(r"more tasks +2\n", text)
    assert text.count("epochs of its own") == 4
    assert re.search(r"task de-en .*; share 4\d\d\.\d+ of 1000, ", text), "3.7 of 8.7, in cycles of 1,000"
    assert 0 < text.count("\n") < 40


def test_the_line_of_an_evaluation_is_short():
    text = io.StringIO()
    scores = {"eval_loss": 1.0, **{f"eval_aa-{number}_bleu": 2.0 for number in range(9900)}, "eval_mean_bleu": 2.0}
    ShowProgress(Console(file=text, width=500)).on_log(None, TrainerState(global_step=3), None, scores)
    assert len(text.getvalue()) < 700
    assert text.getvalue().rstrip().endswith("mean_bleu 2, and 9881 more in metrics.jsonl")


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_keeps_steps_and_time(width):
    screen, state = io.StringIO(), TrainerState(global_step=123_456, max_steps=500_000)
    progress = ShowProgress(Console(file=screen, width=width, force_terminal=True, color_system=None))
    progress.on_train_begin(None, state, None)
    progress.on_log(None, state, None, {"loss": 2.5, "target_tokens_per_second": 23456.0, "learning_rate": 1e-3})
    progress.on_log(None, state, None, {"eval_loss": 1.5, **{f"eval_metric{i}": 31.25 for i in range(SHOWN)}})
    screen.seek(screen.truncate(0))
    progress.bar.refresh()
    progress.close()
    assert re.search(r"training .* 123456/500000 0:00:0\d left -:--:--", Text.from_ansi(screen.getvalue()).plain)


def test_a_run(finished, three, tmp_path):
    """Trained, measured in every trained direction, tested in all; going on is exact."""
    folder, recipe = finished
    results = json.loads((folder / "results.json").read_text())
    assert set(results["scores"]) == {
        f"made-up.{a}-{b}" for a in BETWEEN["between"] for b in BETWEEN["between"] if a != b
    }
    last = results["dev"][-1]
    own = [value for name, value in last.items() if name.endswith("_bleu") and "mean" not in name]
    assert len(own) == 4
    assert last["eval_mean_bleu"] == pytest.approx(sum(own) / 4)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "average")
    assert model.config.source_languages == model.config.target_languages == ["de", "en", "fr"]
    again = killed(folder, tmp_path / "again", 12)
    assert "going on from" in run(recipe, three, again)
    assert same_weights(folder, again)


def test_the_pipeline_between_any_two(finished):
    """Also de -> fr, never trained; lists of languages are grouped, and the order is kept."""
    translate = TranslationPipeline.from_pretrained(str(finished[0] / "average"))
    assert translate.languages == ["de", "en", "fr"]
    texts = ["ba do", "ki lu me", "no", "pa ro su"]
    sources, targets = ["en", "de", "en", "de"], ["de", "fr", "fr", "en"]
    mixed = translate(texts, source_language=sources, target_language=targets, num_return_sequences=2, num_beams=2)
    for text, source, target, found in zip(texts, sources, targets, mixed):
        alone = translate([text], source_language=source, target_language=target, num_return_sequences=2, num_beams=2)
        assert [one.text for one in found] == [one.text for one in alone[0]]
        assert [one.score for one in found] == pytest.approx([one.score for one in alone[0]], abs=1e-4)
    with pytest.raises(UserError, match=r"target_language: unknown code 'xx'.*knows: de, en, fr"):
        translate(texts, source_language="de", target_language="xx")
    with pytest.raises(UserError, match="source_language: needed by this model"):
        translate(texts, target_language="de")
    with pytest.raises(UserError, match="source_language: 1 codes for 4 texts"):
        translate(texts, source_language=["de"], target_language="fr")


def test_the_matrix(finished, three, tmp_path):
    matrix = read_matrix(finished[0], data=three)
    assert (matrix.sources, matrix.targets, sorted(matrix.zero_shot)) == (
        ["de", "en", "fr"], ["de", "en", "fr"], ["de-fr", "fr-de"],
    )  # fmt: skip
    assert len(matrix.scores) == len(matrix.off_target) == 6
    assert 0.9 < matrix.classifier_accuracy <= 1.0
    cells = matrix.table().rows[0]
    assert cells[0] == "de"
    assert cells[1] == ""
    assert cells[3].endswith("*")
    assert not cells[2].endswith("*")
    assert matrix.mean(zero_shot=True) == pytest.approx((matrix.scores["de-fr"] + matrix.scores["fr-de"]) / 2)
    result = CliRunner().invoke(
        app, ["evaluate", str(finished[0] / "average"), "--matrix", "-o", str(tmp_path), "-m", "chrF"]
    )
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "matrix.json").read_text())["zero_shot"] == ["de-fr", "fr-de"]
    assert (tmp_path / "matrix.png").stat().st_size > 1000
    with pytest.raises(UserError, match="no such file"):
        read_matrix(tmp_path)
    with pytest.raises(UserError, match="no xyz under the protocol classic; there are"):
        read_matrix(finished[0], metric="xyz")


def test_a_language_is_added(three, tmp_path):
    """Everything that was there is the same afterwards, bit for bit; what is new is trained."""
    short = {"budget": {"steps": 4}, "evaluation": {"every": 2, "best": "loss"}}
    first = recipe_of(tmp_path / "a", {"between": ["de", "en"]}, **short)
    run(first, three, tmp_path / "two")
    model = tmp_path / "two" / "average"
    second = recipe_of(tmp_path / "b", {"between": ["en", "fr"]}, model={}, tokenizer={}, seed=2, **short)
    own = ["--data", str(three), "--set", f"model.add_to={model}"]
    command = ["train", str(second), *own, "-o", str(tmp_path / "three")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    before, after = (load_file(path / "model.safetensors") for path in (model, tmp_path / "three" / "average"))
    assert before.keys() < after.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value), name
    added = {name.split("of_")[1].split(".")[0] for name in after.keys() - before.keys()}
    assert added == {"fr"}
    early = load_file(tmp_path / "three" / "checkpoints" / "checkpoint-2" / "model.safetensors")
    name = "model.encoders.of_fr.embed_tokens.weight"
    assert not torch.equal(early[name], after[name])
    grown = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "three" / "average")
    assert grown.config.source_languages == grown.config.target_languages == ["de", "en", "fr"]
    assert grown.lm_heads["of_fr"].weight is grown.model.decoders["of_fr"].embed_tokens.weight
    command = ["train", str(first), *own, "-o", str(tmp_path / "x")]
    result = CliRunner().invoke(app, command)
    assert "has all languages of the tasks already" in str(result.exception)


def test_a_run_with_language_codes(three, tmp_path):
    """The recipe's codes become the model's: plain tokenizer and generate() do as the pipeline with names."""
    keys = {"tokenizer": {"vocab_size": 300, "languages": ["de", "en", "fr"]}, "budget": {"steps": 2}}
    evaluation = {"every": 2, "best": "loss"}
    folder = tmp_path / "run"
    run(recipe_of(tmp_path, {"pairs": ["de-en", "en-fr"]}, evaluation=evaluation, **keys), three, folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "average")
    tokenizer = AutoTokenizer.from_pretrained(folder / "average")
    assert model.config.language_codes == {x: tokenizer.convert_tokens_to_ids(f"<2{x}>") for x in ("de", "en", "fr")}
    text = (three / "test.de").read_text().splitlines()[0]
    written = model.generate(**tokenizer([f"<2de><2fr>{text}"], return_tensors="pt"), num_beams=1, max_new_tokens=8)
    found = TranslationPipeline.from_pretrained(folder / "average")(
        text, source_language="de", target_language="fr", num_beams=1, max_new_tokens=8
    )
    assert tokenizer.decode(written[0], skip_special_tokens=True).strip() == found


def test_a_tokenizer_with_codes_for_one_pair(three, tmp_path):
    """The sources begin with the target's code, in test sets too, though the recipe names no codes."""
    short = {"budget": {"steps": 2}, "evaluation": {"every": 2, "best": "loss"}}
    codes = {"vocab_size": 300, "languages": ["de", "en", "fr"]}
    run(recipe_of(tmp_path / "a", {"pairs": ["en-fr"]}, tokenizer=codes, **short), three, tmp_path / "first")
    given = {"path": str(tmp_path / "first" / "tokenizer")}
    model = {"system": "rnn", "shape": "tiny", "settings": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1}}
    run(recipe_of(tmp_path / "b", {"pairs": ["de-en"]}, model, tokenizer=given, **short), three, tmp_path / "run")
    (written,) = (tmp_path / "run" / "translations").glob("*.average.en")
    translate = TranslationPipeline.from_pretrained(tmp_path / "run" / "average")
    found = translate((three / "test.de").read_text().splitlines(), target_language="en")
    assert written.read_text().splitlines() == found


def test_a_vocabulary_for_each_language(three, tmp_path, forks):
    """Trained, tested, translated, embedded, published, and grown by a language, each with its own tokenizer."""
    own = {"joint": False, "byte_fallback": False, "vocab_size": 60}
    short = {"budget": {"steps": 2}, "evaluation": {"every": 2, "best": "loss"}}
    first = recipe_of(tmp_path / "a", {"between": ["de", "en"], "copies": True}, tokenizer=own, **short)
    said = run(first, three, tmp_path / "two")
    assert said.count("training a bpe tokenizer of 60 subwords for") == 2
    model = tmp_path / "two" / "average"
    assert not (model / "tokenizer.json").exists()
    tokenizers = {code: AutoTokenizer.from_pretrained(model / "tokenizers" / code) for code in ("de", "en")}
    assert tokenizers["de"].get_vocab() != tokenizers["en"].get_vocab()
    text = (three / "val.de").read_text().splitlines()[0]
    batch = tokenizers["de"]([text], return_tensors="pt")
    translate = TranslationPipeline.from_pretrained(str(model))
    found = translate.model.generate(**batch, source_language="de", target_language="en", max_new_tokens=6)
    named = {"source_language": "de", "target_language": "en", "max_new_tokens": 6}
    assert translate([text], **named) == [tokenizers["en"].batch_decode(found, skip_special_tokens=True)[0].strip()]
    vectors = embed_texts(translate.parts, [text], "de")
    with pytest.raises(UserError, match="the encoders of this model see no target"):
        embed_texts(translate.parts, [text], "de", target_language="en")
    expected = translate.model.embed(**batch, source_language="de")
    torch.testing.assert_close(torch.from_numpy(vectors), expected)
    second = recipe_of(
        tmp_path / "b",
        {"between": ["en", "fr"]},
        model={},
        tokenizer={"byte_fallback": False, "vocab_size": 70},
        **short,
    )
    run(second, three, tmp_path / "three", settings=[f"model.add_to={model}"])
    grown = tmp_path / "three" / "average"
    before, after = (load_file(path / "model.safetensors") for path in (model, grown))
    assert before.keys() < after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    for code in ("de", "en"):
        assert AutoTokenizer.from_pretrained(grown / "tokenizers" / code).get_vocab() == tokenizers[code].get_vocab()
    sizes = AutoModelForSeq2SeqLM.from_pretrained(grown).config.vocab_sizes
    assert sizes == {
        **translate.model.config.vocab_sizes,
        "fr": len(AutoTokenizer.from_pretrained(grown / "tokenizers/fr")),
    }
    published = build_folder(grown, tmp_path / "hub", licence="mit", languages=("de", "fr")).folder
    assert 'subfolder="tokenizers/de"' in (published / "README.md").read_text()
    pair = AutoModelForSeq2SeqLM.from_pretrained(published).pair("de", "fr")
    pair.save_pretrained(tmp_path / "pair")
    load_tokenizers(published).between("de", "fr").save(tmp_path / "pair")
    alone, both = (TranslationPipeline.from_pretrained(str(path)) for path in (tmp_path / "pair", published))
    assert alone([text], max_new_tokens=6) == both([text], **{**named, "target_language": "fr"})
    with pytest.raises(UserError, match="an export is of one pair"):
        export(published, tmp_path / "onnx", "onnx")
    files = [f"{code}={three / f'val.{code}'}" for code in ("de", "fr")]
    table = tmp_path / "retrieval.json"
    command = ["analyse", "retrieve", str(grown), *files, "--also", f"hub={published}", "-o", str(table)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    found = json.loads(table.read_text())["models"]
    assert found["three"] == found["hub"]
    assert found["hub"].keys() == {"de-fr", "fr-de"}
    result = CliRunner().invoke(app, [*command, "--also", "hub=x"])
    assert "two models are called 'hub'" in str(result.exception)
    shutil.rmtree(grown / "tokenizers" / "en")
    with pytest.raises(UserError, match="there is no tokenizer of en, only of de, fr"):
        TranslationPipeline.from_pretrained(str(grown))


@pytest.mark.parametrize(("lowercase", "lines"), [(False, 360), (True, 720)])
def test_a_tokenizer_reads_a_file_once_whatever_tasks_have_it(three, tmp_path, monkeypatch, lowercase, lines):
    """Of nine directions between three languages two are read, and a language's text once; where the sides' text is
    processed in different ways, once for each side."""
    processing = {"source": {"lowercase": True}} if lowercase else {}
    own = {"sample": 60, "byte_fallback": False, "vocab_size": 60, "processing": processing}
    recipe = recipe_of(tmp_path, {"copies": True}, {"system": "transformer", "shape": "tiny"}, tokenizer=own)
    told, read = [], []
    reads = preparation.filtered
    monkeypatch.setattr(preparation, "filtered", lambda spec, *how: (read.append(spec), reads(spec, *how))[1])
    _ = preparation.Preparation(read_recipe(recipe), three, tmp_path / "run", told.append).tokenizers
    assert f"for both sides, from 60 of {lines} lines" in told[0]
    assert len(read) == (3 if lowercase else 2)
    assert len({file for spec in read for file in spec.files.values()}) == 3


@pytest.mark.parametrize("key", [{"languages": ["de", "en"]}, {"processing": {"source": {"lowercase": True}}}])
def test_what_a_vocabulary_for_each_language_cannot_have(three, tmp_path, key):
    recipe = recipe_of(
        tmp_path, {"between": ["de", "en"]}, tokenizer={"joint": False, "byte_fallback": False, "vocab_size": 60, **key}
    )
    with pytest.raises(UserError, match=rf"tokenizer\.{next(iter(key))} is for one vocabulary of all languages"):
        run(recipe, three, tmp_path / "run", dry_run=True)
