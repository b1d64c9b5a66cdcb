"""What can be known beforehand is refused before anything is made, with one message; also by a dry run."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from helpers.tiny_run import run, run_in, same_weights, write_corpus, write_recipe

from hf_mlnmt import UserError
from hf_mlnmt.recipe import read_recipe
from hf_mlnmt.recipe.schema import saved_steps
from hf_mlnmt.training import preflight

pytestmark = pytest.mark.usefixtures("one_thread")


def refused(recipe: Path, data: Path, output: Path, settings: list[str], dry_run: bool) -> str:
    """The one message; nothing was made."""
    with pytest.raises(UserError) as caught:
        run(recipe, data, output, settings=settings, dry_run=dry_run)
    assert not output.exists() or {path.name for path in output.iterdir()} <= {".lock"}
    return str(caught.value)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.learning_rate=.nan", "optimizer.learning_rate must be a finite number, not nan"),
        ("optimizer.clip=-1", "optimizer.clip must be at least 0, not -1"),
        ("seed=99999999999", "seed must be at most 2,147,483,647"),
        ("data.filters={max_lenght: 50}", r"data.filters.max_lenght: unknown key .*max_length"),
        ("arguments.debug=nonesuch", "precision or arguments: .*nonesuch"),
        ("arguments.learning_rat=1", "no such field .*learning_rate"),
        ("arguments.weight_decay_x=.inf", "arguments.weight_decay_x must be a finite number"),
        ("arguments.seed=3", "arguments.seed: this is what seed says. Set that in its place"),
        ("arguments.per_device_train_batch_size=3", "arguments.per_device_train_batch_size: .* batch.tokens says"),
        ("arguments.use_cpu=maybe", "arguments.use_cpu: expected true or false, not 'maybe'"),
        ("arguments.dataloader_num_workers=99999", "arguments.dataloader_num_workers must be at most 1,000"),
        ("model.settings.vocab_size=7", r"model.settings.vocab_size: this is as the tokenizer says \(\d+\)"),
        ("model.settings.nonesuch=7", "recipe.yaml: model: TransformerConfig has no field 'nonesuch'"),
        ("model.settings.d_model=1000000", "model.settings.d_model must be at most 65,536"),
        ("model.settings.dropout=1.5", r"model.settings.dropout=1.5: must be in \[0, 1\)"),
        ("model.settings.d_model=18", "model.settings.decoder_attention_heads=4: d_model=18 must be a multiple of it"),
        ("model.settings.d_model=big", "model.settings.d_model: expected int, got str"),
        ("model.settings.init_std=1", r"model.settings.init_std: expected float, got int .*as in 1\.0"),
        ("model.settings.activation_function=foo", "model.settings.activation_function='foo': must be one of gelu"),
        ("model={system: ms-9, shape: tiny}", r"model.settings.auxiliary_layers=\[9\]"),
        ("model={record: nonesuch}", "there is no .*nonesuch.json"),
        (
            "model={record: multi30k-ende-short/enc-dc, settings: {kernel_size: 9}}",
            "model.settings.kernel_size=9: must be from 2 to 8",
        ),
        ("model.settings.max_position_embeddings=30", "max_position_embeddings is 30"),
        ("evaluation.metrics=[bleu, nonesuch]", "evaluation.metrics: .*nonesuch"),
        ("logging.trackers=[nonesuch]", "logging.trackers.*nonesuch"),
        ("logging.trackers=[wandb]", "logging.trackers: .*wandb"),
        ("data.test={../../evil: {path: a.tsv}}", "data.test...*: expected a name that files can have: .*evil"),
        ("languages.target=../de", "languages.target: expected a language's code"),
        ("data.test.new.files={source: test.en, target: nowhere.de}", "data.test.new: .*nowhere.de: no such file"),
        ("data.train={path: nowhere.tsv}", "nowhere.tsv: no such file.*--data, now .*/data; .*docs/install"),
        ("data.test.new.files={source: test.en, target: val.de}", "data.test.new: .* has 12 lines and .* has 10"),
        ("data.dev.files.source=test.en", "data.dev: .*test.en has 12 lines and .*val.de has 10"),
        ("data.train.files.target=val.de", "data.train .*train.en has 120 lines and .*val.de has 10"),
        ("data.train.files.target=short.de", "data.train .*train.en has 120 lines and .*short.de has 110"),
        ("data.train.files.target=broken.gz", "broken.gz: broken gz file"),
        ("data.dev.files={source: blank.en, target: blank.de}", "data.dev: .*every source sentence is blank"),
        ("data.train={path: header.csv}", "data.train header.csv.*: no pairs"),
        ("data.train={path: none.json}", "data.train none.json.*: no pairs"),
        ("data.test.new={path: header.csv}", "data.test.new: header.csv: no pairs"),
        ("data.dev={path: two.tsv, columns: {source: 1, target: 3}}", "two.tsv, line 1: .*2 columns, 3 expected"),
        ("data.bpe_dropout=0.1 tokenizer.kind=unigram", "data.bpe_dropout leaves out merges of BPE"),
        ("data.train.streaming=true", "data.train: .*train.de: streaming is of a data set"),
        ("data.train.columns={source: 1, target: 2}", "data.train: .*train.de: columns is of a table"),
        ("tokenizer.languages=[it, en]", "target language is 'de', .* codes of it, en alone"),
        ("init_from=nowhere", r"init_from: nowhere is neither a folder nor to be had from the Hub \([^L]"),
        ("tokenizer.path=nowhere", "nowhere: no such folder; as a Hub name it is not"),
    ],
)  # fmt: skip
def test_it_is_refused_before_anything_is_made(tmp_path, setting, message, dry_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    data, recipe = write_corpus(tmp_path / "data", SIZES), write_recipe(tmp_path / "recipe.yaml")
    (data / "broken.gz").write_bytes(gzip.compress(b"one\ntwo\n" * 5000)[:-9])
    (data / "short.de").write_text("baab.\n" * 110)
    for name in ("blank.en", "blank.de"):
        (data / name).write_text(" \n\n")
    (data / "two.tsv").write_text("ba\tdo\n")
    (data / "header.csv").write_text("source,target\n")
    (data / "none.json").write_text("[]")
    settings = re.split(r" (?=[a-z_.]+=)", setting)
    text = refused(recipe, data, tmp_path / "run", settings, dry_run)
    assert re.search(message, text), text
    assert "Traceback" not in text
    assert len(text) < 600


SIZES = {"train": 120, "val": 10, "test": 12}


def test_a_model_or_a_step_beyond_the_memory_is_refused_with_the_estimate(tmp_path, data, monkeypatch):
    recipe = write_recipe(tmp_path / "recipe.yaml")
    run(recipe, data, tmp_path / "run", dry_run=True)
    monkeypatch.setattr(preflight, "memory_of_machine", lambda on_cpu: 2.0**17)
    text = refused(recipe, data, tmp_path / "run", ["model.settings.d_model=64"], True)
    assert "parameters with their gradients and the optimizer's state take" in text
    assert "this machine has 0.0" in text
    with pytest.raises(UserError, match="each in 4 processes"):
        preflight.check_memory(read_recipe(recipe), 10_000, 4)


def test_what_passes_with_a_word(tmp_path):
    """Suspicious, but possible: a warning each, and a good recipe has none."""
    odd = {"schedule": {"warmup": 50}, "checkpoints": {"keep": 9, "average": 9}}
    odd |= {"data": {"licence": "apache2.0", "temperature": 5.0}, "batch": {"tokens": 60, "temperature": 5.0}}
    said = run_in(tmp_path / "odd", dry_run=True, **odd).replace("\n", " ")
    for text in (
        "schedule.warmup is 50 steps but the training has 20",
        "checkpoints.average is 9, but this training saves 5",
        "data.licence 'apache2.0' .*did you mean 'apache-2.0'",
        "data.temperature has no effect",
        "batch.temperature has no effect",
    ):
        assert re.search(text, said)
    files = {"source": "train.en", "target": "train.de"}
    copies = {"files": {"source": "train.en", "target": "train.en"}, "languages": {"source": "de", "target": "en"}}
    said = run_in(tmp_path / "copies", dry_run=True, data={"train": [{"files": files}, copies]}).replace("\n", " ")
    assert "the training pairs are into de and en, and no code says into which" in said
    good = run_in(tmp_path / "good", dry_run=True, data={"licence": "CC-BY-NC-SA-4.0"})
    assert not any(word in good for word in ("but this training", "warmup", "licence", "same", "into", "effect"))


def test_dev_or_test_sets_that_are_training_data(tmp_path):
    """The same files, or files of the same content, plain or gz."""
    data = write_corpus(tmp_path / "data")
    for side in ("en", "de"):
        text = (data / f"train.{side}").read_bytes()
        (data / f"copy.{side}.gz").write_bytes(gzip.compress(text))
    recipe = write_recipe(tmp_path / "recipe.yaml")
    for name, setting in {
        "data.dev": "data.dev.files={source: copy.en.gz, target: copy.de.gz}",
        "data.test.made_up": "data.test.made_up.files={source: train.en, target: train.de}",
    }.items():
        text = run(recipe, data, tmp_path / "run", settings=[setting, "data.max_length=39"], dry_run=True)
        assert re.search(rf"data.train train.en \+ train.de holds, of the (\d+) pairs of {name}: exactly \1 ", text)
    (data / "same.de").write_bytes((data / "val.en").read_bytes())
    same = "data.dev.files={source: val.en, target: same.de}"
    assert "data.dev: source and target are the same" in run(
        recipe, data, tmp_path / "r", settings=[same], dry_run=True
    )


def test_pairs_of_scored_sets_in_training_corpora_are_counted_and_left_out(tmp_path):
    """Exactly and but for case and punctuation, by side, with examples; test sets against each other too."""
    data, long = write_corpus(tmp_path / "data"), [f"ba do ki lu {word * 3}" for word in ("me", "no", "pa", "ro", "su")]
    target = [f"baab dood {source[-6:]}." for source in long]
    (data / "test.en").write_text("".join(f"{line}\n" for line in long))
    (data / "test.de").write_text("".join(f"{line}\n" for line in target))
    more = [(long[0], target[0]), (f"{long[1].upper()}!", "xa"), ("xu", target[2].upper()), (long[3], "xi"), ("x", "x")]
    for side, (name, lines) in enumerate((("train.en", "val.en"), ("train.de", "val.de"))):
        with (data / name).open("a") as file:
            file.writelines(f"{pair[side]}\n" for pair in more)
        with (data / lines).open("a") as file:
            file.write(f"{(long[4], target[4])[side]}\n")
    made_up = "holds, of the 5 pairs of data.test.made_up: exactly"
    recipe, run_folder = write_recipe(tmp_path / "recipe.yaml"), tmp_path / "run"
    said = run(recipe, data, run_folder, dry_run=True).replace("\n", " ")
    assert (
        f"data.train train.en + train.de {made_up} 2 sources, 1 targets, 1 pairs; without case and punctuation "
        f"3 sources, 2 targets, 1 pairs, as: {long[0]} ||| {target[0]} (data.drop_test_pairs set to true"
    ) in said
    assert f"data.dev {made_up} 1 sources, 1 targets, 1 pairs;" in said
    before = int(re.search(r"pairs kept +(\d+)", said)[1])
    drop = ["data.drop_test_pairs=true"]
    said = run(recipe, data, run_folder, dry_run=True, settings=drop).replace("\n", " ")
    dropped = int(re.search(r"dropped: in a development or test set +(\d+)", said)[1])
    assert dropped >= 4
    assert int(re.search(r"pairs kept +(\d+)", said)[1]) == before - dropped
    how = [*drop, "budget.steps=4"]
    run(recipe, data, run_folder, settings=how)
    weights = (run_folder / "average" / "model.safetensors").read_bytes()
    run(recipe, data, run_folder, settings=[*how, "data.test.more.files={source: train.en, target: train.de}"])
    assert (run_folder / "average" / "model.safetensors").read_bytes() == weights  # a test set may be added
    assert json.loads((run_folder / "results.json").read_text())["scores"].keys() == {"made_up", "more"}


@pytest.mark.parametrize("dry_run", [False, True])
def test_weights_that_do_not_fit_in_the_model(plain, data, tmp_path, dry_run):
    """init_from with the tokenizer of that model: known before anything is encoded. A run that has begun goes on."""
    average = plain[0] / "average"
    recipe = write_recipe(tmp_path / "r.yaml", scores=False, tokenizer={"path": str(average)}, init_from=str(average))
    text = refused(recipe, data, tmp_path / "run", ["model.settings.d_model=32"], dry_run)
    assert "d_model" in text
    if not dry_run:
        copy = shutil.copytree(average, tmp_path / "copy")
        settings = [f"init_from={copy}", "budget.steps=4"]
        run(recipe, data, tmp_path / "run", settings=settings)
        (tmp_path / "run" / "results.json").unlink()
        shutil.rmtree(copy)
        run(recipe, data, tmp_path / "run", settings=settings)


def test_how_many_checkpoints_there_will_be(tmp_path):
    recipe = read_recipe(write_recipe(tmp_path / "r.yaml"))
    assert saved_steps(recipe.schedule, 4, 20) == [4, 8, 12, 16, 20]
    assert saved_steps(recipe.schedule, 4, 10) == [4, 8, 10]
    assert saved_steps(recipe.schedule, 4, 3) == [3]


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_output_that_cannot_be(tmp_path, data, dry_run, monkeypatch):
    recipe = write_recipe(tmp_path / "recipe.yaml")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    cases = {"file": "is a file", "file/run": "is a file", "folder": "is no folder of a training.*thesis.tex"}
    for name, message in cases.items():
        with pytest.raises(UserError, match=message):
            run(recipe, data, tmp_path / name, dry_run=dry_run)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["thesis.tex"]
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(UserError, match=r"cannot be written\. Choose another --output"):
        run(recipe, data, tmp_path / "new", dry_run=dry_run)


def test_a_run_killed_as_it_began_can_be_started_again(tmp_path, data):
    output = tmp_path / "run"
    output.mkdir()
    (output / ".lock").touch()
    (output / ".recipe.yaml.12.part").write_text("half")
    run(write_recipe(tmp_path / "recipe.yaml", scores=False, budget={"steps": 4}), data, output)
    assert (output / "results.json").is_file()
    assert not list(output.glob(".*.part"))
    shutil.rmtree(output)


SHORT = ["model.settings.max_position_embeddings=7", "data.max_length=7", "decoding.max_new_tokens=6"]


@pytest.mark.parametrize(
    ("wrong", "message", "mended", "kept"),
    [
        (["tokenizer.vocab_size=21"], "take as many", ["tokenizer.vocab_size=90"], ""),
        (SHORT, "the model reads 7", ["data.max_length=7", "optimizer.learning_rate=0.02"], "tokenizer data"),
        (SHORT, "the model reads 7", ["data.max_length=9"], "tokenizer"),
        (SHORT, "the model reads 7", ["data.max_length=9", "data.filters={max_ratio: 9}"], ""),
        (SHORT, "the model reads 7", ["data.max_length=9", "tokenizer.vocab_size=90"], ""),
        (SHORT, "the model reads 7", ["data.max_length=7", "logging.every=1"], "text"),
    ],
)
def test_until_a_step_is_trained_recipe_and_text_are_free(tmp_path, data, wrong, message, mended, kept):
    """What they leave as it was is kept, and the run ends as one that began with them."""
    recipe, output = write_recipe(tmp_path / "recipe.yaml", scores=False, budget={"steps": 4}), tmp_path / "run"
    data = shutil.copytree(data, tmp_path / "data")
    with pytest.raises(UserError, match=message):
        run(recipe, data, output, settings=wrong)
    if kept == "text":
        (data / "train.de").write_text((data / "train.de").read_text().replace("ba", "zy"))
    made = {name: (output / name).stat().st_ino for name in ("tokenizer", "data/train0") if (output / name).exists()}
    run(recipe, data, output, settings=mended)
    left = [name for name, inode in made.items() if (output / name).stat().st_ino == inode]
    assert " ".join(name.removesuffix("/train0") for name in left) == kept.removeprefix("text")
    run(recipe, data, tmp_path / "fresh", settings=mended)
    assert same_weights(output, tmp_path / "fresh")
    assert (output / "recipe.yaml").read_text().split("\n", 1)[1] == (tmp_path / "fresh/recipe.yaml").read_text().split(
        "\n", 1
    )[1]


def test_a_recipe_that_was_made_and_not_read_is_checked_too(tmp_path, data):
    recipe = dataclasses.replace(read_recipe(write_recipe(tmp_path / "recipe.yaml")), label_smoothing=2.0)
    with pytest.raises(UserError, match="label_smoothing must be below 1"):
        run(recipe, data, tmp_path / "run", dry_run=True)


def test_a_warning_about_a_corpus_is_said_once_however_often_it_is_read(tmp_path, caplog):
    data, recipe = write_corpus(tmp_path / "data"), tmp_path / "recipe.yaml"
    rows = zip((data / "train.en").read_text().splitlines(), (data / "train.de").read_text().splitlines())
    (data / "pairs.tsv").write_text("source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in rows))
    write_recipe(recipe, data={"train": {"path": "pairs.tsv"}})
    run(recipe, data, tmp_path / "run", dry_run=True)
    assert [
        record.getMessage().split(": ", 1)[1] for record in caplog.records if "pairs.tsv" in record.getMessage()
    ] == ["is a header; columns 'source' and 'target' are read"]
