"""Which models serve which languages."""

from __future__ import annotations

import shutil

import pytest

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


def test_english_goes_before_another_language_between(pair_folders):
    folder = pair_folders["en-de"]
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


def test_a_model_that_cannot_be_loaded_again_stays(pair_folders, tmp_path):
    folder = shutil.copytree(pair_folders["en-de"], tmp_path / "m")
    models = ServedModels([str(folder), str(pair_folders["de-fr"])], device="cpu")
    before = [model.pipeline for model in models.models]
    shutil.rmtree(folder)
    (problem,) = models.reload()
    assert "not loaded again, the one that was loaded stays" in problem
    after = [model.pipeline for model in models.models]
    assert after[0] is before[0]
    assert after[1] is not before[1]
    assert models.route("en", "de").legs[0].pipeline is before[0]


def test_no_model():
    with pytest.raises(UserError, match=r"no model to serve"):
        ServedModels([])
