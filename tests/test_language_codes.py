"""Languages: which codes are one language, what names of files and model folders say, small letters."""

from __future__ import annotations

import json

import pytest

from hf_mlnmt import UserError
from hf_mlnmt.languages import (
    base_language,
    check_language,
    check_same_direction,
    direction_of,
    language_in,
    lower,
    same_language,
)

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
        *[
            (f"train.{ending}", None)
            for ending in ("tsv", "csv", "bpe", "dat", "raw", "src", "tgt", "txt", "xx", "qqq")
        ],
        *[("a.de-en", None), ("de", None), ("english", None), ("train.DE", None)],
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
    for name, language in (("a.de", "deu_Latn"), ("a.txt", "fr"), ("a.de", None)):
        check_language(name, language, "this is", "")
    with pytest.raises(UserError, match=r"x/a\.de: its name says de, but this is en. Change it."):
        check_language("x/a.de", "en", "this is", "Change it.")
