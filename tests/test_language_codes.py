"""Languages: which codes are one language, what names of files and model folders say, small letters."""

from __future__ import annotations

import copy
import json
import shlex
from pathlib import Path

import pytest
import yaml
from helpers.tiny_run import write_recipe
from safetensors.torch import save_file
from typer.main import get_command
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.common.languages import (
    base_language,
    check_language,
    check_same_direction,
    direction_of,
    language_in,
    language_tag,
    lower,
    same_language,
)
from hf_mlnmt.generation.choosing.reranking import Reranker
from hf_mlnmt.recipe import read_recipe
from hf_mlnmt.training.preparation import RecipeCorpora

ENDE, DEEN = {"source": "en", "target": "de"}, {"source": "de", "target": "en"}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *[("train.en", "en"), ("data.de/train.en.gz", "en"), ("corpus.en-de.de.txt.xz", "de"), ("zh.txt", "zh")],
        *[("train.pt-BR.gz", "pt-BR"), ("train.pt-br", "pt-br"), ("test.zh_CN", "zh_CN"), ("flores.khm", "khm")],
        *[
            ("zho_Hans.devtest", "zho_Hans"),
            ("ceb_Latn.dev.gz", "ceb_Latn"),
            ("news.hsb", "hsb"),
            ("a.es-419", "es-419"),
        ],
        # An ending is no language because ISO 639-3 has one of 7,900 under it; two languages are none.
        *[(f"train.{end}", None) for end in ("tsv", "csv", "bpe", "dat", "raw", "src", "tgt", "txt")],
        *[(f"train.{end}", None) for end in ("xx", "qqq", "bak", "run", "min", "aa")],
        *[("train.en.bak", "en"), ("a.de-en", None), ("de", None), ("english", None), ("train.DE", None)],
    ],
)
def test_a_files_name_says_a_language(name, code):
    assert language_in(name) == code


def test_codes_of_one_language():
    for code, base in {
        "deu_Latn": "de",
        "ger": "de",
        "pt-BR": "pt",
        "arb_Arab": "ar",
        "nb": "no",
        "ceb": "ceb",
    }.items():
        assert base_language(code) == base
    assert same_language("zho_Hant", "zh-CN")
    assert same_language(None, "de")
    assert not same_language("yue_Hant", "zh")
    assert not same_language("de", "en")


def test_small_letters_of_turkish():
    assert lower("IĞDIR İL", "tr") == lower("IĞDIR İL", "tur_Latn") == lower("IĞDIR İL", "az") == "ığdır il"
    assert lower("IN IT", "de") == lower("IN IT", None) == "in it"


def write(folder, **content):
    folder.mkdir(parents=True)
    for name, value in content.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_a_model_folder_says_its_direction(tmp_path):
    ours = write(tmp_path / "ours", results={"languages": ENDE})
    marian = write(tmp_path / "marian", tokenizer_config={"source_lang": "deu", "target_lang": "en"})
    several = {"languages": ENDE, "recipe": {"tokenizer": {"languages": ["de", "en"]}}}
    silent = {
        "tokens": write(tmp_path / "tokens", results=several),
        "bridge": write(tmp_path / "bridge", results={"languages": ENDE}, config={"source_languages": ["de", "en"]}),
        "romance": write(tmp_path / "romance", tokenizer_config={"source_lang": "en", "target_lang": "ROMANCE"}),
        "nothing": tmp_path / "nothing",
    }
    checkpoint = write(tmp_path / "run" / "checkpoints" / "checkpoint-9")
    (tmp_path / "run" / "recipe.yaml").write_text("languages: {source: de, target: en}\n")
    assert [*map(direction_of, (ours, marian, checkpoint))] == [("en", "de"), ("deu", "en"), ("de", "en")]
    assert {name: direction_of(folder) for name, folder in silent.items()} == dict.fromkeys(silent)
    check_same_direction([checkpoint, silent["bridge"], marian], "")
    with pytest.raises(UserError, match=r"marian: translates deu to en, but .*ours en to de. One alone."):
        check_same_direction([silent["nothing"], ours, marian], "One alone.")


def test_a_name_that_contradicts():
    """No false alarm: a name that says the language too, one within the other, a backup, a pair of which it is one."""
    for name, language in (
        *[("a.de", "deu_Latn"), ("a.txt", "fr"), ("a.de", None), ("a.nb", "no"), ("a.nn", "no"), ("a.arz", "ar")],
        *[
            ("a.en.de.gz", "en"),
            ("a.de-en.tsv", "en"),
            ("a.zh_TW", "zho_Hant"),
            ("a.no-dup.src", "de"),
            ("a.run", "de"),
        ],
        *[
            ("a.bak", "en"),
            ("a.en.bak", "en"),
            ("a.de.1", "de"),
            ("a.pt-br", "pt"),
            ("a.cmn_Hans.gz", "zh"),
            ("de", "fr"),
        ],
    ):
        check_language(name, language, "this is", "")
    for name, language in (
        ("a.de.bak", "en"),
        ("a.nb", "sv"),
        ("a.yue", "ja"),
        ("a.cs-en.tsv", "de"),
        ("x.hr.gz", "sr"),
    ):
        with pytest.raises(UserError, match="its name says"):
            check_language(name, language, "this is", "")
    with pytest.raises(UserError, match=r"x/a\.de: its name says de, but this is en. Change it."):
        check_language("x/a.de", "en", "this is", "Change it.")


@pytest.mark.parametrize(
    ("code", "tag"),
    [
        *[("sr_Latn", "sr-Latn"), ("srp_Cyrl", "sr-Cyrl"), ("uz_Cyrl", "uz-Cyrl"), ("az_Arab", "az-Arab")],
        *[("es-419", "es-419"), ("deu_Latn", "de"), ("zho_Hant", "zh-Hant"), ("zh_CN", "zh-CN"), ("en_XX", "en")],
        *[("nob_Latn", "nb"), ("arb_Arab", "ar"), ("arb_Latn", "ar-Latn"), ("pt_br", "pt-BR"), ("ger", "de")],
        *[("sr-Latn-RS", "sr-Latn-RS"), ("ca-valencia", "ca-valencia"), ("yue_Hant", "yue-Hant")],
        ("ace_Arab", "ace-Arab"),
        *[("ru_RU", "ru-RU"), ("nb", "nb"), ("hsb", "hsb"), ("romance", "und"), ("my own", "und")],
    ],
)
def test_a_code_as_documents_name_a_language(code, tag):
    assert language_tag(code) == tag


# Verbs that are given a model and files, or models, and files of one of whose languages the model is not. M: en to de.
VERBS = {
    "translate": ["M x.fr", "M x.de", "M x.en --from fr", "M x.en --prefix-file x.fr"],
    "back-translate": [
        *["M x.fr -o out", "M x.de -o out", "M x.en -o out --forward -r x.en", "M x.txt -o out --from fr --to de"],
        *["M x.en -o out --reverse M", "M x.en -o out -r x.fr"],
    ],
    "choose": ["x.de x.en", "x.txt x.de x.en", "x.de y.de --to fr"],
    "evaluate": [
        *["M -s x.fr -r x.de", "M -s x.en -r x.fr", "M -s x.de -r x.en", "M -s x.txt -r x.de -r x.en"],
        *["--hypothesis x.de -r x.en", "--hypothesis x.de -r x.txt -r y.de -r x.de -r x.en", "L -r x.en"],
        *["M --perplexity -r x.en -s x.de", "M --perplexity -r x.fr -s x.en", "M -s x.en -r x.de --from fr"],
    ],
    "export": [
        "M --format firefox -o out --calibrate x.de",
        "M --format firefox -o out --shortlist-text x.fr",
        "M --format firefox -o out --shortlist-text x.en --shortlist-teacher B",
    ],
    "compare": ["a=M b=M --source x.fr --reference x.de"],
    "publish": ["M -o out --from de --to en", "M -o out --from en --to fr"],
    "serve": ["de-en=M"],
    "tokenizer": ["-s x.en -t x.de -o out --moses --from de --to en"],
    "memory tune": ["M --memory x.tsv -s x.fr -r x.de", "M --memory x.tsv -s x.en -r x.fr"],
    "model calibrate": ["M -s x.de -r x.en", "M -s x.en -r x.fr", "M -s x.en -r x.de --from cs"],
    "model reranker": ["M -s x.de -r x.de -o r.json", "M -s x.en -r x.en -o r.json"],
    "analyse attention": ["M -s x.de -t x.en -o out --what entropy", "M -s x.en -t x.fr -o out --what entropy"],
    "analyse masking": ["M -s x.de -r x.en -o out", "M -s x.en -r x.cs -o out"],
    "analyse fusion-grid": ["M -s x.de -r x.en -o out", "M -s x.en -r x.cs -o out"],
    "analyse embed": ["M x.de -o x.npy", "M x.en --from de -o x.npy"],
    "analyse retrieve": ["M de=x.en en=x.en"],
    "analyse probe": ["M --text x.de -o out", "M --pairs x.cs.tsv -o out"],
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two models, M of en to de and B back, a language model L of de, and 120 lines in files of many names."""
    monkeypatch.chdir(tmp_path)
    for name, languages in (("M", ENDE), ("B", DEEN), ("L", {"source": "de", "target": "de"})):
        config = {"model_type": "gpt2"} if name == "L" else {"model_type": "mlnmt-transformer"}
        write(Path(name), results={"languages": languages}, config=config)
        save_file({}, Path(name, "model.safetensors"))
    for name in ("x.en", "x.de", "y.de", "x.fr", "x.cs", "x.txt", "x.cs.tsv"):
        Path(name).write_text("a b\ta b\t1\n" if name.endswith("tsv") else "a b\n" * 120)


@pytest.mark.parametrize("command", [f"{verb} {asked}" for verb, every in VERBS.items() for asked in every])
def test_verbs_refuse_files_and_models_of_other_languages(files, command):
    result = CliRunner().invoke(app, shlex.split(command))
    assert isinstance(result.exception, UserError), result.output
    assert any(each in str(result.exception) for each in ("its name says", "is needed.")), str(result.exception)
    assert not any(map(Path.exists, map(Path, ("out", "r.json", "x.npy"))))


def test_no_verb_with_a_model_and_files_is_forgotten():
    others = {"train", "sweep", "demo", "import", "describe", "model average", "model fuse", "model drop-auxiliaries"}
    others |= {"analyse cost", "analyse curves"}  # which read no text, or recipes (below)
    others |= {"model trim", "model add-language"}  # text of any language to keep, or of a new one
    others |= {"memory analyse"}  # without a model
    top = dict(get_command(app).commands)
    groups = {name: command.commands for name, command in top.items() if hasattr(command, "commands")}
    verbs = {name for name in top if name not in groups}
    verbs |= {f"{group} {name}" for group, inside in groups.items() for name in inside}
    assert verbs - others == set(VERBS)


@pytest.mark.parametrize("feature", ["translation=B", "reverse=M", "language-model=L"])
def test_a_reranker_refuses_models_of_other_directions(files, feature):
    languages = ("de", "en") if feature.startswith("language") else ("en", "de")
    with pytest.raises(UserError, match=f"{feature}: translates .* is needed"):
        Reranker({"features": {feature: 1.0}}, languages=languages)


# Keys of a recipe from en to de that are given text of another language.
FR, SIDES = {"files": {"source": "x.en", "target": "x.fr"}}, {"files": {"source": "x.de", "target": "x.en"}}
LM, COPY = {"path": "x.en", "language": "de"}, {"files": {"source": "x.fr", "target": "x.fr"}}
TABLE, MORE = {"path": "x.jsonl", "columns": {"source": "en", "target": "fr"}}, {"path": "x.de", "language": "de"}
RECIPES = {
    "data.train": [{"data": {"train": corpus}} for corpus in (FR, SIDES, COPY, TABLE, {"path": "x.en-fr.tsv"})],
    "data.train, several": [{"data": {"train": [{"files": {"source": "x.en", "target": "x.de"}}, FR]}}],
    "data.dev": [{"data": {"dev": corpus}} for corpus in (FR, SIDES)],
    "data.test": [{"data": {"test": {"mine": corpus}}} for corpus in (FR, {**FR, "reverse": True}, TABLE)],
    "languages": [{"languages": {"source": "en", "target": "fr"}}, {"languages": {"source": "de", "target": "en"}}],
    "tasks.*.data": [{"data": {"train": None}, "tasks": {"mine": {"data": corpus}}} for corpus in (FR, SIDES)],
    "tasks.*.languages": [{"data": {"train": None}, "tasks": {"mine": {"data": FR, "languages": ENDE}}}],
    "tasks.*.dev": [{"data": {"train": None}, "tasks": {"mine": {"data": SIDES, "languages": DEEN, "dev": FR}}}],
    "tasks.copy.data": [{"data": {"train": None}, "tasks": {"copy": {"data": COPY}}}],
    "tasks.*.data of one language": [
        {"data": {"train": None}, "tasks": {"mine": {"data": text, "objective": "decoder-lm"}}}
        for text in (
            LM,
            [MORE, LM],
            {"path": "x.fr", "side": "target"},
            {"path": "x.jsonl", "column": "en", "language": "de"},
        )
    ],
    "objective: decoder-lm": [
        {"objective": "decoder-lm", "data": {"train": text, "dev": dev}} for text, dev in ((LM, MORE), (MORE, LM))
    ],
}


@pytest.mark.parametrize(("key", "changes"), [(key, each) for key, every in RECIPES.items() for each in every])
def test_recipes_refuse_text_of_other_languages(tmp_path, key, changes):
    recipe = yaml.safe_load(write_recipe(tmp_path / "recipe.yaml").read_text())
    changes = copy.deepcopy(changes)
    recipe["data"] |= changes.pop("data", {})
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe | changes))
    with pytest.raises(UserError, match=r"recipe.yaml: (data|tasks)\.\S+: \S+: its name says \w\w, but it is read as"):
        RecipeCorpora(read_recipe(path), tmp_path)
