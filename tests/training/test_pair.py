"""From two files to a model: what is chosen, held out, written and refused; resumed, with text, and as a recipe."""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import typer
import yaml
from helpers.power_cut import power_cut
from helpers.tiny_run import WORDS, same_weights, write_corpus
from rich.console import Console
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app as whole_command
from hf_mlnmt.cli.train import train
from hf_mlnmt.recipe import sizes as chooser
from hf_mlnmt.recipe.reading import read_recipe, recipe_of
from hf_mlnmt.recipe.sizes import Machine, Measured, choose, language_in, languages_of, stem_of
from hf_mlnmt.training import TwoFiles, run_recipe, train_pair
from hf_mlnmt.training.callbacks import DrawCurves

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = (
    "model.settings={d_model: 16, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 32, decoder_ffn_dim: 32}",
    "tokenizer.vocab_size=120",
    "tokenizer.byte_fallback=false",
    "budget.steps=8",
    "schedule={name: linear, warmup: 2}",
    "evaluation={every: 4, metrics: [], best: loss}",
    "checkpoints={keep: 2, average: 2}",
    "decoding={beams: 1, max_new_tokens: 12}",
    "precision.dtype=float32",
)
app = typer.Typer()
app.command()(train)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """train, val, test: 460 pairs in English and German, some of them twice; 60 targets have two sources."""
    folder = write_corpus(tmp_path_factory.mktemp("files"), {"train": 460, "val": 12, "test": 12})
    for code, other in (("en", "ti ti "), ("de", "")):
        path = folder / f"train.{code}"
        path.write_text("".join(f"{line}\n" for line in [*lines(path), *(other + line for line in lines(path)[:60])]))
    return folder


@pytest.fixture(autouse=True)
def without_curves():
    with mock.patch.object(DrawCurves, "draw"):
        yield


def run(data: Path, output: Path, *, settings=SMALL, dry_run=False, **asked) -> str:
    """Train train.en and train.de in a folder; what was printed."""
    text = io.StringIO()
    asked = {"pair": ("train.en", "train.de"), **asked}
    train_pair(TwoFiles(**asked), data, output, settings, dry_run=dry_run, console=Console(file=text, width=300))
    return text.getvalue()


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def whole(one_thread, files, tmp_path_factory) -> tuple[Path, str]:
    """A run with a development set held out, and what it printed."""
    output = tmp_path_factory.mktemp("whole") / "run"
    with mock.patch.object(DrawCurves, "draw"):
        return output, run(files, output, test=[("test.en", "test.de")])


# The choice


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("pairs", [300, 5_000, 29_000, 160_000, 600_000, 4_500_000, 40_000_000])
def test_every_size_has_a_whole_recipe_and_a_reason_for_each_choice(pairs, gpu):
    content, said = choose(Measured(pairs, 20 * pairs), Machine(gpu, 1))
    files = {"files": {"source": "a.en", "target": "a.de"}}
    recipe = recipe_of(
        {"languages": {"source": "en", "target": "de"}, "data": {"train": files, "dev": files}, **content},
        Path("x.yaml"),
    )
    assert recipe.schedule.warmup < recipe.budget.steps <= 110_000
    assert recipe.evaluation.every <= recipe.budget.steps
    assert [line.split(":")[0] for line in said] == ["size", "machine", "model", "vocabulary", "optimizer", "steps"]
    assert all(line.rpartition(": ")[2].strip() for line in said[2:])


def test_29_000_pairs_of_captions_are_trained_as_the_long_recipe_is():
    """As base.yaml of multi30k-ende-long says; Multi30k's German side has 322,383 words."""
    content, _ = choose(Measured(29_000, 322_383 + 29_000), Machine(False, 1))
    best = read_recipe(Path(__file__).parents[2] / "training" / "multi30k-ende-long" / "base.yaml").to_dict()
    for section in ("optimizer", "tokenizer", "batch"):
        assert content[section].items() <= best[section].items()
    assert content["model"]["settings"] == best["model"]["settings"]
    assert content["checkpoints"]["average"] == best["checkpoints"]["average"]
    assert content["budget"]["steps"] == pytest.approx(best["budget"]["steps"], rel=0.02)
    assert content["schedule"]["restart_steps"] == pytest.approx(best["schedule"]["restart_steps"], rel=0.02)


def test_processes_share_the_tokens_of_a_step():
    for processes in (1, 2, 8):
        batch = choose(Measured(5_000_000, 10**8), Machine(True, processes))[0]["batch"]
        assert batch["tokens"] * batch["accumulate"] * processes == 24_576
        assert batch["tokens"] <= 4096


@pytest.mark.parametrize(
    ("name", "code", "stem"),
    [
        ("data/train.en", "en", "train"),
        ("train.pt-BR.gz", "pt-BR", "train"),
        ("corpus.en-de.de.txt.xz", "de", "corpus.en-de"),
        ("zh.txt", "zh", "zh"),
        ("zho_Hans.devtest", "zho_Hans", "devtest"),
        ("train.tsv", None, "train"),
        ("train.src", None, "train"),
        ("train.txt.gz", None, "train"),
        ("english", None, "english"),
    ],
)
def test_names_of_files_say_languages(name, code, stem):
    assert (language_in(name), stem_of(name)) == (code, stem)


@pytest.mark.parametrize(
    ("names", "named", "message"),
    [
        (("a.txt", "b.txt"), (None, None), "the name of a.txt says no language, as train.en would. Add --from"),
        (("a.en", "b.txt"), (None, None), "the name of b.txt says no language, as train.en would. Add --to"),
        (("a.en", "b.en"), (None, None), "both sides are en: a.en and b.en"),
        (("a.txt", "b.txt"), ("de", "de"), "both sides are de"),
        (("a.en", "b.de"), ("de", "en"), "--from de: the name of a.en says en. Give the source's file first"),
        (("a.txt", "b.txt"), ("german!", "en"), "--from german!: expected a language's code"),
        (("a.en-de.en", "a.en-de.fr"), (None, None), "says en and de, and the files are en and fr"),
        (("a.bpe", "a.dat"), (None, None), "the name of a.bpe says no language"),
        (("pairs.csv", "--dry-run"), (None, None), "--pair: pairs.csv is a table, and two files of text"),
        (("pairs.tsv.gz", "b.de"), ("en", None), "pairs.tsv.gz is a table"),
        (("a.en", "--dry-run"), (None, None), "expected two files, and --dry-run is an option"),
    ],
)
def test_languages_that_are_unknown_or_contradicted_are_refused(names, named, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        languages_of(names, named)


def test_a_language_may_be_said_more_exactly_than_by_the_name():
    assert languages_of(("a.zh", "b.txt"), ("zh-Hans", "nb")) == ("zh-Hans", "nb")


# The run


def test_two_files_become_a_model(whole, files):
    output, text = whole
    for said in ("held out", "subwords of both sides", "recipe: "):
        assert said in text
    assert (output / "average" / "model.safetensors").is_file()
    results = json.loads((output / "results.json").read_text())
    assert results["system"] == "train.en-de"
    assert list(results["scores"]) == ["test"]


def test_no_sentence_of_the_held_out_pairs_stays_in_training(whole, files):
    held = {
        (part, code): lines(whole[0] / "pair" / f"{part}.{code}") for part in ("train", "dev") for code in ("en", "de")
    }
    pairs = set(zip(lines(files / "train.en"), lines(files / "train.de")))
    dev = list(zip(held["dev", "en"], held["dev", "de"]))
    assert len(dev) == len(pairs) // 20 == len({source for source, _ in dev})
    assert set(dev) <= pairs
    left = {pair for pair in pairs if any(text in held["dev", code] for text, code in zip(pair, ("en", "de")))}
    assert len(left) > len(dev)
    assert {*zip(held["train", "en"], held["train", "de"])} == pairs - left


def test_the_same_again_is_finished_and_a_test_set_can_be_added(whole, files, tmp_path):
    output = shutil.copytree(whole[0], tmp_path / "run")
    with mock.patch("hf_mlnmt.training.pair.read_pairs", side_effect=AssertionError("nothing is read again")):
        assert "is finished, and nothing changed since" in run(files, output, test=[("test.en", "test.de")])
        text = run(files, output, test=[("test.en", "test.de"), ("val.en", "val.de")])
    assert "changed since the last start: data.test" in text
    assert list(json.loads((output / "results.json").read_text())["scores"]) == ["test", "val"]
    assert same_weights(output, whole[0])
    with pytest.raises(UserError, match=r"budget.steps: 8 -> 9"):
        run(files, output, settings=[*SMALL, "budget.steps=9"])


def test_a_run_that_was_interrupted_goes_on_to_the_same_weights(whole, files, tmp_path, monkeypatch):
    with power_cut(monkeypatch, 6):
        run(files, tmp_path / "run", test=[("test.en", "test.de")])
    run(files, tmp_path / "run", test=[("test.en", "test.de")])
    assert same_weights(tmp_path / "run", whole[0])


def test_the_recipe_that_is_written_trains_the_same(whole, files, tmp_path):
    written = whole[0] / "pair" / "train.en-de.yaml"
    assert "# vocabulary: " in written.read_text()
    assert yaml.safe_load((whole[0] / "recipe.yaml").read_text())["budget"]["steps"] == 8
    run_recipe(written, files, tmp_path / "again", settings=SMALL, console=Console(file=io.StringIO()))
    assert same_weights(tmp_path / "again", whole[0])


def test_what_was_chosen_stays_with_other_processes(whole, files, tmp_path, monkeypatch):
    output = shutil.copytree(whole[0], tmp_path / "run")
    two = SimpleNamespace(num_processes=2, is_main_process=True)
    monkeypatch.setattr("hf_mlnmt.training.pair.join_group", lambda: two)
    before = (output / "pair" / "train.en-de.yaml").read_bytes()
    run(files, output, test=[("test.en", "test.de")])
    assert (output / "pair" / "train.en-de.yaml").read_bytes() == before


def test_other_files_in_the_folder_of_a_run_are_refused(whole, files, tmp_path):
    output = shutil.copytree(whole[0], tmp_path / "run")
    data = shutil.copytree(files, tmp_path / "data")
    with (data / "train.en").open("a") as source, (data / "train.de").open("a") as target:
        source.write("ba\n"), target.write("baab.\n")
    with pytest.raises(UserError, match=r"holds another training \(old -> new\):\n  checksums.train.en"):
        run(data, output)
    with pytest.raises(UserError, match=r"dev: None -> \['val.en', 'val.de'\]"):
        run(files, output, dev=("val.en", "val.de"))
    for name in ("checkpoints", "results.json"):  # nothing is trained yet: what was asked last holds
        (output / name).rename(tmp_path / name)
    before = (output / "pair/asked.json").read_bytes()
    run(data, output, dry_run=True)
    assert (output / "pair/asked.json").read_bytes() == before
    run(data, output), run(data, tmp_path / "fresh")
    assert same_weights(output, tmp_path / "fresh")
    shutil.rmtree(output / "pair")
    with pytest.raises(UserError, match="holds a training by another recipe"):
        run(files, output)


def test_a_dry_run_leaves_nothing(files, tmp_path):
    text = run(files, tmp_path / "run", dry_run=True)
    for said in ("steps/s", "held out"):
        assert said in text
    assert not (tmp_path / "run").exists()


def test_a_given_development_set_is_used_and_its_sentences_are_not_trained_on(files, tmp_path):
    data = shutil.copytree(files, tmp_path / "data")
    for code in ("en", "de"):
        (data / f"val.{code}").write_text("".join(f"{line}\n" for line in lines(files / f"train.{code}")[:9]))
    text = run(data, tmp_path / "run", dev=("val.en", "val.de"), dry_run=True)
    assert "development set: val.en + val.de, 9 pairs" in text
    count = sum(
        source in lines(data / "val.en") or target in lines(data / "val.de")
        for source, target in zip(lines(data / "train.en"), lines(data / "train.de"))
    )
    assert count >= 9
    assert f"training: without the {count} pairs that hold a sentence of it" in text


def test_text_of_the_target_language_is_translated_back_and_trained_on(files, tmp_path):
    rng = random.Random(3)
    text = [" ".join(word + word[::-1] for word in rng.choices(WORDS, k=4)) + "." for _ in range(600)]
    with gzip.open(tmp_path / "news.de.gz", "wt") as news:
        news.write("".join(f"{line}\n" for line in text))
        news.write("".join(f"{line}\n" for line in lines(files / "train.de")[:100]))
    asked = {"text": str(tmp_path / "news.de.gz")}
    drawn = (
        "rounds.forward.translate.method=sampling",
        "rounds.forward.translate.settings={drop: [], max_new_tokens: 6}",
    )
    said = run(files, tmp_path / "run", settings=[*SMALL, *drawn], **asked)
    assert said.index("plan: 1. backward, de-en") < said.index("round backward: de-en") < said.index("round forward")
    held = {*lines(tmp_path / "run" / "pair" / "dev.de")}
    assert held & {*lines(files / "train.de")[:100]}
    assert not held & {*lines(tmp_path / "run" / "forward.synthetic" / "target.txt")}
    recipe = yaml.safe_load((tmp_path / "run" / "pair" / "train.en-de.yaml").read_text())
    assert recipe["rounds"]["forward"]["translate"]["tag"] == "<bt>"
    assert (tmp_path / "run" / "forward" / "average" / "model.safetensors").is_file()
    again = run(files, tmp_path / "run", settings=[*SMALL, *drawn], **asked)
    assert again.count("is finished, and nothing changed since. Choose another --output") == 2
    with pytest.raises(UserError, match=r"budget.steps: 8 -> 9"):
        run(files, tmp_path / "run", settings=[*SMALL, *drawn, "budget.steps=9"], **asked)
    with pytest.raises(UserError, match="too few to add to"):
        (tmp_path / "few.de").write_text("\n".join(text[:9]))
        run(files, tmp_path / "other", text=str(tmp_path / "few.de"))
    assert not (tmp_path / "other").exists()


# A model that is there


def tune(whole, files, output, **asked) -> str:
    """Fine-tune the model of two files on them; what was printed."""
    settings = [setting for setting in SMALL if not setting.startswith(("model", "tokenizer", "evaluation"))]
    model = str(asked.pop("init_from", whole[0] / "average"))
    asked = {"init_from": model, "settings": [*settings, "evaluation.every=4"], **asked}
    return run(files, output, **asked)


def test_a_model_is_fine_tuned_and_scored_before_and_after(whole, files, tmp_path):
    model, output, asked = whole[0] / "average", tmp_path / "run", {"test": [("test.en", "test.de")]}
    text = tune(whole, files, output, **asked)
    expected = (f"to fine-tune {model}: its weights", "50 of the pairs are held out", "learning rate 0.001", "4% typos")
    assert all(said in text for said in expected)
    results = {name: json.loads((output / name / "results.json").read_text()) for name in ("before", "average", "best")}
    assert all(list(each["scores"]) == ["dev", "test"] for each in results.values())
    assert lines(output / "translations" / "test.before.de") == lines(whole[0] / "translations" / "test.average.de")
    rows = [[cell.strip() for cell in row.split("│")[1:3]] for row in text.splitlines() if row.startswith("│ dev")]
    assert rows == [["dev", "before"], ["dev", "best"], ["dev", "average"]]
    assert "data.dev holds" not in text
    assert (output / "average" / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    begun = json.loads((output / "init_from.json").read_text())
    assert begun["loaded"]
    assert not begun["initialised"]

    assert "is finished, and nothing changed" in tune(whole, files, output, **asked)
    with pytest.raises(UserError, match=r"another training \(old -> new\):\n  init_from: .*average -> None"):
        run(files, output, test=[("test.en", "test.de")])


@pytest.mark.parametrize("positions", [64, 256, 300])
def test_lengths_are_chosen_within_the_model_s_positions(whole, files, tmp_path, positions):
    model = shutil.copytree(whole[0] / "average", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
    settings = [
        setting for setting in SMALL if not setting.startswith(("model", "tokenizer", "evaluation", "decoding"))
    ]
    text = tune(whole, files, tmp_path / "run", init_from=str(model), settings=settings, dry_run=True)
    assert (f"lengths: at most {positions} subwords" in text) == (positions < 300)


def test_a_dry_run_says_how_a_model_would_be_fine_tuned(whole, files, tmp_path):
    text = tune(whole, files, tmp_path / "run", dry_run=True)
    for said in ("to fine-tune", "0 tensors, 0 numbers", "steps/s"):
        assert said in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"system": "m-10"}, "--init-from: the model says its system"),
        ({"text": "test.de"}, "--init-from: .* leave out --system, and --text"),
        ({"pair": ("train.de", "train.en")}, "--init-from: .*average: translates en to de, and the files are de to en"),
        ({"init_from": "nowhere"}, "--init-from: nowhere is neither a folder nor to be had from the Hub"),
        ({"init_from": "."}, "--init-from: .*: no config.json there"),
    ],
)
def test_a_model_that_is_not_of_the_files_is_refused(whole, files, tmp_path, asked, message):
    with pytest.raises(UserError, match=message):
        tune(whole, files, tmp_path / "run", **asked)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["mlnmt-bridge", "mlnmt-fusion"])
def test_a_model_made_of_several_is_refused(whole, files, tmp_path, monkeypatch, kind):
    monkeypatch.setattr("hf_mlnmt.training.pair.read_config", lambda folder: SimpleNamespace(model_type=kind))
    with pytest.raises(UserError, match=r"--init-from: .*average: is made of several models"):
        tune(whole, files, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_into_other_languages_is_refused(whole, files, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_mlnmt.training.pair.codes_of", lambda tokenizer: ["cs", "fr"])
    with pytest.raises(UserError, match=r"--init-from: .*average: translates into cs, fr, not into de. Say --to"):
        tune(whole, files, tmp_path / "run")


@pytest.mark.parametrize(("width", "rate"), [(None, 1e-3), (128, 1e-3), (192, 1e-3), (512, 1e-4), (1024, 4e-5)])
def test_wider_models_are_fine_tuned_at_smaller_rates(width, rate):
    assert chooser.tune(Measured(1000, 20_000), Machine(False), "x", width)[0]["optimizer"]["learning_rate"] == rate


def broken(folder: Path, name: str) -> Path:
    """A folder with train.en and train.de, in one way broken."""
    write_corpus(folder, {"train": 300})
    source, target = folder / "train.en", folder / "train.de"
    if name == "missing":
        target.unlink()
    elif name == "unequal":
        target.write_text("".join(f"{line}\n" for line in lines(target)[:-1]))
    elif name == "empty":
        source.write_text("")
    elif name == "small":
        write_corpus(folder, {"train": 50})
    elif name == "short words":
        source.write_text("a b c d e f g h i j\n" * 300)
        source.with_suffix(".de").write_text("a\n" * 300)
    elif name == "latin-1":
        source.write_bytes("größe\n".encode("latin-1") * 300)
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", r"train.de: no such file"),
        ("unequal", r"train.en has 300 lines and .*train.de has 299"),
        ("empty", r"train.en: the file is empty"),
        ("small", r"distinct pairs, and at least 200 are needed"),
        ("short words", r"0 distinct pairs, and at least 200(.|\n)*dropped: length ratio above 4"),
        ("latin-1", r"train.en, line 1: invalid UTF-8"),
    ],
)
def test_corpora_that_cannot_be_trained_on_are_refused_and_leave_nothing(tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        run(broken(tmp_path / "data", name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"pair": ("train.en", "./train.en"), "target": "en-GB"}, "train.en is given twice"),
        ({"dev": ("train.en", "train.de")}, "--dev: is the training corpus"),
        ({"dev": ("val.en", "nowhere.de")}, "nowhere.de: no such file"),
        ({"text": "nowhere.de"}, "nowhere.de: no such file"),
        ({"dev": ("val.de", "val.en")}, "val.de: its name says de, but this side of --dev is en. Give sources first"),
        ({"test": [("test.de", "test.en")]}, "test.de: its name says de, but this side of --test is en"),
        ({"text": "val.en"}, "val.en: its name says en, but --text is read as de. It is text of the target"),
        ({"dev": ("dev.jsonl", "val.de")}, "--dev: dev.jsonl is a table"),
    ],
)
def test_files_that_do_not_go_together_are_refused(files, tmp_path, asked, message):
    with pytest.raises(UserError, match=message):
        run(files, tmp_path / "run", **asked)
    assert not (tmp_path / "run").exists()


def test_a_development_set_that_is_all_of_the_corpus_is_refused(files, tmp_path):
    for code in ("en", "de"):
        shutil.copy(files / f"train.{code}", tmp_path / f"copy.{code}")
    with pytest.raises(
        UserError, match=r"0 distinct pairs that hold no sentence of the development set.*\n.*pairs of the"
    ):
        run(files, tmp_path / "run", dev=(str(tmp_path / "copy.en"), str(tmp_path / "copy.de")))


# The command


def call(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pair", "a.en", "a.de", "multi30k-ende"), "give either --pair or multi30k-ende"),
        (("--pair", "a.en", "a.de", "--test", "t.en"), "each --test need two files"),
        (("--pair", "a.en", "a.de", "--test", "t.en", "my.yaml"), "give either --pair or my.yaml"),
        (("multi30k-ende", "--dev", "a", "b"), "--dev: is of --pair"),
        ((), "expected one recipe"),
        (("one", "two"), "expected one recipe .*, not 2"),
    ],
)
def test_a_recipe_and_two_files_exclude_each_other(arguments, message):
    assert call(*arguments).exception.args[0]
    with pytest.raises(UserError, match=message):
        raise call(*arguments).exception


def test_test_sets_are_given_as_two_files_each(monkeypatch):
    asked = []
    monkeypatch.setattr("hf_mlnmt.training.train_pair", lambda what, *_: asked.append(what))
    arguments = ("--test", "a.en", "a.de", "--pair", "t.en", "t.de", "--test", "b.en", "b.de", "--dev", "d.en", "d.de")
    assert call(*arguments).exit_code == 0
    assert asked == [TwoFiles(("t.en", "t.de"), dev=("d.en", "d.de"), test=(("a.en", "a.de"), ("b.en", "b.de")))]


# A file of both languages


def memory(path: Path, pairs: list[tuple[str, str]]) -> Path:
    """A memory of TMX, with a unit whose target is empty."""
    units = "".join(
        f'<tu><tuv xml:lang="en-US"><seg>{source}</seg></tuv><tuv xml:lang="de"><seg>{target}</seg></tuv></tu>'
        for source, target in [*pairs, ("empty", "")]
    )
    path.write_text(f'<tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>')
    return path


def test_a_memory_is_a_corpus_as_two_files_are(files, whole, tmp_path):
    """The same is chosen, held out and trained on; the command takes one name; what was dropped can be looked at."""
    sides = [lines(files / f"train.{code}") for code in ("en", "de")]
    memory(tmp_path / "m.tmx", list(zip(*sides)))
    memory(tmp_path / "dev.tmx", list(zip(*[lines(files / f"val.{code}") for code in ("en", "de")])))
    given = ["--pair", "m.tmx", "--from", "en", "--to", "de", "--data", tmp_path, "-o", tmp_path / "run"]
    set_ = [word for setting in SMALL for word in ("--set", setting)]
    for dev in ([], ["--dev", "dev.tmx", "--test", "dev.tmx"]):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        result = CliRunner().invoke(whole_command, ["train", *map(str, [*given, *dev, *set_])])
        assert result.exit_code == 0, result.output
        held = tmp_path / "run/pair"
        chosen = yaml.safe_load((held / "m.en-de.yaml").read_text())["data"]
        assert chosen["name"] == "m.tmx"
        assert "empty target\tempty" in lines(held / "dropped.tsv")
        kept = [lines(held / f"{part}.{code}") for part in ("train", "dev") for code in ("en", "de")]
        if dev:
            assert kept[2:] == [lines(files / f"val.{code}") for code in ("en", "de")]
        else:
            assert kept == [
                lines(whole[0] / f"pair/{part}.{code}") for part in ("train", "dev") for code in ("en", "de")
            ]
    assert json.loads((tmp_path / "run/results.json").read_text())["scores"].keys() >= {"dev"}


def test_bad_lines_are_dropped_where_that_is_asked_for(files, tmp_path):
    for code in ("en", "de"):
        (tmp_path / f"train.{code}").write_text(
            (files / f"train.{code}").read_text() + "a\vb\n" * (code == "en") + "c\n"
        )
    (tmp_path / "train.de").write_text((tmp_path / "train.de").read_text() + "d\n")
    with pytest.raises(UserError, match=r"line 521: control character .*--bad-lines drop of --pair"):
        run(tmp_path, tmp_path / "run")
    said = run(tmp_path, tmp_path / "run", bad_lines="drop", dry_run=True)
    assert "dropped: control character: 1" in said
    with pytest.raises(UserError, match=r"--pair: train\.en alone is no corpus\. Give two files.*\.tmx.*a zip"):
        run(tmp_path, tmp_path / "run", pair=("train.en", "train.en"), source="en", target="de")
    with pytest.raises(UserError, match=r"--pair: which languages of m\.tmx\? Add their codes"):
        run(tmp_path, tmp_path / "run", pair=("m.tmx", "m.tmx"))
