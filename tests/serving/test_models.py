"""Which models serve which languages."""

from __future__ import annotations

import shutil

import pytest
from helpers.toy_translators import bpe, our_model

from hf_mlnmt import UserError
from hf_mlnmt.serving.models import ServedModels


@pytest.fixture(scope="module")
def two(pair_folders):
    return ServedModels([str(pair_folders["en-de"]), str(pair_folders["de-fr"])], device="cpu")


def test_the_results_of_a_folder_say_its_pair(two):
    assert two.names == ["en-de", "de-fr"]
    leg = two.route("en", "de").legs[0]
    assert (leg.name, leg.source, leg.target) == ("en-de", None, None)


def test_two_models_together_have_a_pair(two):
    assert two.languages() == {"en": ["de", "fr"], "de": ["fr"]}
    route = two.route("en", "fr")
    assert [leg.name for leg in route.legs] == ["en-de", "de-fr"]
    assert route.via == "de"


def test_english_goes_before_another_language_between(pair_folders, tmp_path):
    folder = shutil.copytree(pair_folders["en-de"], tmp_path / "any", ignore=shutil.ignore_patterns("results.json"))
    names = [f"{pair}={folder}" for pair in ("cs-fr", "fr-uk", "cs-en", "en-uk")]
    assert ServedModels(names, device="cpu").route("cs", "uk").via == "en"


def test_a_language_is_found_where_only_one_is_possible(two):
    assert two.route("en", "de") == two.route(None, "de")
    assert [leg.name for leg in two.route("de").legs] == ["de-fr"]
    with pytest.raises(UserError, match=r"source: say which language; known: en, de"):
        two.route()


def test_unknown_languages_and_models_are_named(two):
    with pytest.raises(UserError, match=r"target 'it' is not served.*known: de, fr"):
        two.route("en", "it")
    with pytest.raises(UserError, match=r"fr to de is not served|source 'fr' is not served"):
        two.route("fr", "de")
    with pytest.raises(UserError, match=r"model 'en-dee' is not served.*en-de"):
        two.route("en", "de", "en-dee")
    with pytest.raises(UserError, match=r"en to fr is not served|target 'fr'"):
        two.route("en", "fr", "en-de")


def test_a_tagged_model_has_the_languages_of_its_card(tagged_folder):
    models = ServedModels([str(tagged_folder)], device="cpu")
    assert models.languages() == {"de": ["fr"], "fr": ["de"], "en": ["de", "fr"]}
    leg = models.route("en", "fr").legs[0]
    assert (leg.source, leg.target) == (None, "fr")


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """A model into both Chinese scripts, two regions of Portuguese, and Serbian in Latin letters."""
    folder = tmp_path_factory.mktemp("varied")
    tokenizer = bpe(codes=[f"<2{code}>" for code in ("pt", "pt_BR", "sr_Latn", "zho_Hans", "zho_Hant")])
    tokenizer.save_pretrained(folder)
    our_model(len(tokenizer)).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlanguage:\n- en\n- zh\n---\n")
    return ServedModels([str(folder)], device="cpu")


def test_varieties_are_listed(varied):
    assert sorted(varied.languages()["en"]) == ["pt", "pt-BR", "sr", "zh-Hans", "zh-Hant"]


@pytest.mark.parametrize(
    ("asked", "own", "said"),
    [
        *[("zh", "zho_Hans", "zh-Hans"), ("zh-Hans", "zho_Hans", None), ("zho_Hans", "zho_Hans", None)],
        *[("zh-CN", "zho_Hans", "zh-Hans"), ("zh_TW", "zho_Hant", "zh-Hant"), ("zh-Hant-HK", "zho_Hant", "zh-Hant")],
        *[("pt", "pt", None), ("pt-BR", "pt_BR", None), ("pt_br", "pt_BR", None), ("pt-PT", "pt", "pt")],
        *[("sr", "sr_Latn", None), ("sr-Latn", "sr_Latn", "sr"), ("srp_Latn", "sr_Latn", "sr")],
    ],
)
def test_a_variety_is_asked_for(varied, asked, own, said):
    """Of a language alone the first variety, which is said; of another the nearest of its script."""
    if asked == "zh":  # the order of a toy's tokens is any
        first = next(code for code in varied.languages()["en"] if code.startswith("zh"))
        own, said = {"zh-Hans": "zho_Hans", "zh-Hant": "zho_Hant"}[first], first
    route = varied.route("en", asked)
    assert (route.legs[0].target, route.target) == (own, said)


@pytest.mark.parametrize("asked", ["sr-Cyrl", "srp_Cyrl", "hr"])
def test_a_script_that_is_not_served_is_refused(varied, asked):
    with pytest.raises(UserError, match=f"target '{asked}' is not served; known: "):
        varied.route("en", asked)


def test_models_of_two_varieties(pair_folders, tmp_path):
    folder = shutil.copytree(pair_folders["en-de"], tmp_path / "any", ignore=shutil.ignore_patterns("results.json"))
    models = ServedModels([f"en-zh_Hans={folder}", f"en-zh_Hant={folder}", f"zh_Hant-fr={folder}"], device="cpu")
    assert models.languages()["en"] == ["zh-Hans", "zh-Hant", "fr"]
    assert [models.route("en", code).legs[0].name for code in ("zh", "zh-TW")] == ["en-zh_Hans", "en-zh_Hant"]
    assert models.route("zh", "fr").legs[0].name == "zh_Hant-fr", "the first that is translated"


def test_codes_of_other_families_are_served_under_iso_codes(foreign_folders):
    models = ServedModels([str(folder) for folder in foreign_folders.values()], device="cpu")
    marian, nllb = models.models
    assert list(marian.pairs.values()) == [(None, None)]
    assert ("en", "de") in nllb.pairs
    leg = models.route("eng_Latn", "deu_Latn", nllb.name).legs[0]
    assert (leg.source, leg.target) == ("eng_Latn", "deu_Latn")
    assert models.route("en", "de", nllb.name).legs[0] == leg


def test_a_model_whose_languages_nothing_says(pair_folders, tmp_path):
    folder = shutil.copytree(pair_folders["en-de"], tmp_path / "anything")
    (folder / "results.json").unlink()
    with pytest.raises(UserError, match=r"nothing says which languages it translates. Name them, as in en-de="):
        ServedModels([str(folder)], device="cpu")
    assert ServedModels([f"en-de={folder}"], device="cpu").languages() == {"en": ["de"]}


def test_names_differ(pair_folders):
    assert ServedModels([f"en-de={pair_folders['en-de']}"] * 2, device="cpu").names == ["en-de", "en-de-2"]


def test_no_model():
    with pytest.raises(UserError, match=r"no model to serve"):
        ServedModels([])
