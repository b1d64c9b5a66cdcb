"""What was given by mistake and taken in silence, or ended in a traceback: each is refused at the door of its kind."""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata

import pytest
from helpers.tiny_run import write_recipe
from helpers.toy_translators import bpe, our_model
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.cli.options import NamedPath
from hf_mlnmt.common.model_folder import fetch_small_files
from hf_mlnmt.data import train_tokenizer
from hf_mlnmt.documents import read
from hf_mlnmt.evaluation import figures, score
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.constraints.lexical_constraints import Terms, phrases_of
from hf_mlnmt.generation.translating.options import DecodingOptions
from hf_mlnmt.training import read_recipe


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["translate", ""], "an argument"),
        (["translate", "model", "text.en", "--to", ""], "--to"),
        (["translate", "model", "--must="], "--must"),
        (["tokenizer", "text.en", "-o", ""], "-o"),
        (["evaluate", "-i", "text.de", "-r", "text.de", "--language", ""], "--language"),
        (["compare", "", "b"], "an argument"),
        (["model", "average", "a", "b", "--output="], "--output"),
    ],
)
def test_an_empty_argument_is_a_variable_that_was_not_set(arguments, name):
    """Taken for a path it was the folder here, into which a tokenizer was written."""
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, UserError)
    assert str(error).startswith(f"{name}: is empty")
    assert NamedPath.parse("a=") == NamedPath("a=")


def test_set_may_empty_a_key(tmp_path):
    path = write_recipe(tmp_path / "recipe.yaml")
    result = CliRunner().invoke(app, ["train", str(path), "--set", "evaluation.patience=", "--data", str(tmp_path)])
    assert "is empty" not in str(result.exception)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.name=''", "data.name: expected text, not ''"),
        ("data.licence=''", "data.licence: expected text, not ''"),
        ("tokenizer.path=''", "tokenizer.path: expected text, not ''"),
        ("init_from=''", "init_from: expected text"),
        ("data.placeholders={'': number}", "data.placeholders"),
        ("tokenizer.languages=['']", "tokenizer.languages"),
        ("tokenizer.languages=['x y']", "expected a language's code, such as de or pt-BR, not 'x y'"),
        ("data.datasets=['x y']", "data.datasets: expected a name of the Hub, owner/name, not 'x y'"),
        ("data.datasets=[multi30k]", "data.datasets: expected a name of the Hub, owner/name, not 'multi30k'"),
        ("optimizer.eps=0", "optimizer.eps must be above 0"),
    ],
)
def test_values_of_a_recipe_that_cannot_be_meant(tmp_path, setting, message):
    with pytest.raises(UserError, match=message):
        read_recipe(write_recipe(tmp_path / "recipe.yaml"), [setting])


def test_an_empty_tag_is_none(tmp_path):
    """Of a synthetic corpus: its manifest's is not put before its sources then."""
    setting = "data.train={files: {source: a.en, target: a.de}, tag: ''}"
    assert read_recipe(write_recipe(tmp_path / "recipe.yaml"), [setting]).data.train["tag"] == ""


def test_a_version_of_xliff_that_is_not_read():
    for version in ("3.0", "0.9", "x"):
        with pytest.raises(UserError, match=rf"is XLIFF {version}; versions 1.0 to 2.1 are read"):
            read(f'<xliff version="{version}"><file/></xliff>', ".xliff")


@pytest.fixture(scope="module")
def pipeline():
    tokenizer = bpe()
    return TranslationPipeline(our_model(len(tokenizer)), tokenizer)


def test_terms_and_phrases_in_either_form_of_unicode(pipeline):
    """Marks that stand apart (NFD) in a glossary, in the text, or in a phrase that must not be there."""
    whole, apart = "Café", unicodedata.normalize("NFD", "Café")
    assert phrases_of(apart, "x") == phrases_of(whole, "x") == ((whole,),)
    for term in (whole, apart):
        terms = Terms({term: ["Haus"]}, False, None, None)
        assert [terms.found(f"Ein {form}.") for form in (whole, apart)] == [[whole], [whole]]


def test_a_phrase_cannot_be_there_and_not_be_there(pipeline):
    with pytest.raises(UserError, match=r"force_phrases of line 1: 'ein Mann' has what must not be there"):
        pipeline("A man.", force_phrases="ein Mann", bad_phrases="Mann", num_beams=4)
    pipeline("A man.", force_phrases="Mann|||Haus", bad_phrases="Mann", num_beams=4, max_new_tokens=9)


@pytest.mark.parametrize("languages", [{"target_language": 3}, {"source_language": b"en"}, {"target_language": [3]}])
def test_languages_are_texts(languages):
    with pytest.raises(UserError, match=r"_language: .* is no code of a language"):
        DecodingOptions(**languages)


@pytest.mark.parametrize("dtype", ["int4", "double", "complex64", "nn", ""])
def test_types_of_numbers(dtype, tmp_path):
    with pytest.raises(UserError, match=rf"dtype '{dtype}' is not known: use auto, float32"):
        TranslationPipeline.from_pretrained(str(tmp_path), dtype=dtype)


def test_a_folder_has_no_revision(tmp_path):
    with pytest.raises(UserError, match="a folder, and revision main is of the Hub"):
        fetch_small_files(tmp_path, revision="main")


def test_an_address_of_the_hub_that_is_none(monkeypatch):
    def refuse(*names, **options):
        raise RuntimeError("Request URL is missing an 'http://' or 'https://' protocol.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(UserError, match=r"not found on the Hub \(Request URL is missing"):
        fetch_small_files("someone/something")


LINES = ["Ein Mann.", "Zwei Hunde."]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((None, LINES), {}, "hypotheses: expected a list of lines, not None"),
        ((LINES, None), {}, "references: expected a list of lines.*got nothing"),
        ((LINES, 3), {}, "references: expected a list of lines.*got 3"),
        ((LINES, [[None, "x"], [None, "y"]]), {}, "references, line 1: is None in all"),
        ((LINES, LINES), {"language": 3}, "language and tokenizer: expected their names, not 3"),
        ((LINES, LINES), {"tokenize": 3}, "language and tokenizer: expected their names, not 3"),
        ((LINES, LINES), {"metrics": [3]}, "metric 3: expected one of BLEU"),
        ((LINES, LINES), {"bootstrap": -1}, "seed and samples: expected whole numbers of at least 0, not -1"),
        ((LINES, LINES), {"bootstrap": 1.5}, "seed and samples: expected whole numbers"),
        ((LINES, LINES), {"seed": "x"}, "seed and samples: expected whole numbers"),
    ],
)
def test_what_is_no_text_cannot_be_scored(given, options, message):
    with pytest.raises(UserError, match=message):
        score(*given, **options)
    assert list(score(LINES, LINES, metrics="BLEU", bootstrap=0).metrics) == ["BLEU"]


@pytest.mark.parametrize("name", ["languages", "tags", "keep"])
def test_a_text_is_no_list(name):
    """ "de" was taken for the languages d and e."""
    with pytest.raises(UserError, match=f"{name}: expected a list, not 'de'"):
        train_tokenizer(LINES, **{name: "de"})


def test_figures_say_which_setting_matplotlib_refuses():
    code = "from hf_mlnmt.evaluation.figures import new_figure; new_figure(1, 1)"
    process = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "MPLBACKEND": "foo"}, capture_output=True, text=True
    )
    assert "UserError: matplotlib: Key backend: 'foo'" in process.stderr
    assert figures.new_figure(1, 1)


def test_standard_output_that_lacks_a_letter_is_one_message():
    code = "from hf_mlnmt import cli; cli.app = lambda: print('f\u00e4hrt'); cli.main()"
    process = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True
    )
    assert process.returncode == 1
    assert "error: standard output is ascii, which has no" in process.stderr
    assert "Traceback" not in process.stderr
