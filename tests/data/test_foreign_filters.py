"""Configurations of OpusFilter and OpusCleaner: what has a counterpart is read, anything else is refused by name."""

from __future__ import annotations

import json

import pytest

from hf_mlnmt import UserError
from hf_mlnmt.data.filters import PairFilter, read_filters

OPUSFILTER = """
common: {output_directory: out}
steps:
- {type: opus_read, parameters: {corpus_name: ParaCrawl, source_language: fi, target_language: en}}
- type: remove_duplicates
  parameters: {inputs: [p.fi.gz, p.en.gz], outputs: [d.fi.gz, d.en.gz]}
- type: filter
  parameters:
    inputs: [d.fi.gz, d.en.gz]
    outputs: [f.fi.gz, f.en.gz]
    filters:
    - LengthFilter: {unit: word, min_length: 2, max_length: 100}
    - LengthRatioFilter: {unit: word, threshold: 3}
    - LongWordFilter: {threshold: 40}
    - LengthFilter
"""


def read(tmp_path, content):
    path = tmp_path / "filters.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_filters(path)


def test_opusfilter(tmp_path, caplog):
    keys = read(tmp_path, OPUSFILTER)
    assert keys == {"drop_duplicates": True, "min_length": 2, "max_length": 100, "max_ratio": 3, "max_word": 39}
    assert "adds one word to both sides" in caplog.text
    kept = PairFilter(**keys)(
        [("a", "b"), ("a b", "x y"), ("a b", "x y"), ("a b", "x " + 40 * "y"), ("a b", 39 * "y" + " x")]
    )
    assert list(kept) == [("a b", "x y"), ("a b", 39 * "y" + " x")]


def test_opuscleaner(tmp_path):
    steps = [
        {"filter": "remove_empty_lines", "parameters": {}, "language": None},
        {"filter": "max_length", "parameters": {"MAXLENGTH": 150, "MINLENGTH": 1}, "language": None},
        {"filter": "max_word_length", "parameters": {}},
        {"filter": "src_trg_ratio", "parameters": {"RATIO": 0.5, "LOG": False}},
    ]
    keys = read(tmp_path, {"version": 1, "files": ["a.en.gz", "a.de.gz"], "filters": steps})
    assert keys == {"drop_empty": True, "min_length": 1, "max_length": 150, "max_word": 150, "max_ratio": 2}
    PairFilter(**keys)


def opusfilter(*filters, kind="filter", **parameters):
    return {"steps": [{"type": kind, "parameters": {"filters": list(filters), **parameters}}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (opusfilter({"LanguageIDFilter": {"languages": ["fi", "en"]}}), "LanguageIDFilter: there is no such filter"),
        (opusfilter({"SimilarityFilter": {}}), "SimilarityFilter: .* drop_identical: true"),
        (opusfilter({"LengthFilter": {"unit": "char"}}), "LengthFilter with unit: char: .* name the filtered files"),
        (opusfilter({"LengthFilter": {"max_length": [80, 100]}}), r"max_length: \[80, 100\], another number for each"),
        (opusfilter("LongWordFilter", filterfalse=True), "filter with filterfalse: True"),
        (opusfilter(kind="preprocess"), "a step of the type preprocess: .*tokenizer.processing"),
        ({"steps": 2 * opusfilter(inputs=["a"], outputs=["b"])["steps"]}, "a: filtered apart from the corpus before"),
        ({"filters": [{"filter": "fasttext_filter", "parameters": {}}]}, "fasttext_filter: there is no such"),
        ({"filters": [{"filter": "src_trg_ratio", "parameters": {"LOG": True}}]}, "src_trg_ratio with LOG: True"),
        ({"filters": [{"filter": "max_length", "parameters": {}, "language": "en"}]}, "max_length with language: en"),
        ({"filters": [{"filter": "max_length", "parameters": {"MAXLENGTH": "x"}}]}, "not a configuration"),
        ({"filters": [3]}, "not a configuration of OpusFilter"),
        ([1], "expected `steps`, as in OpusFilter"),
        ("{", "cannot be read as YAML or JSON"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_named(tmp_path, content, message):
    with pytest.raises(UserError, match=rf"filters\.json: {message}"):
        read(tmp_path, content)


def test_a_recipe_names_the_file(tmp_path):
    from helpers.tiny_run import write_recipe

    from hf_mlnmt.recipe import read_recipe
    from hf_mlnmt.training.preparation import RecipeCorpora

    (tmp_path / "opusfilter.yaml").write_text(OPUSFILTER)
    recipe = read_recipe(
        write_recipe(tmp_path / "r.yaml"), ["data.filters_from=opusfilter.yaml", "data.filters={max_word: 30}"]
    )
    made = RecipeCorpora(recipe, tmp_path).filter
    assert (made.max_word, made.max_length, made.drop_duplicates) == (30, 100, True)


def test_of_two_limits_the_stricter_holds(tmp_path):
    filters = [
        {name: settings}
        for name, all_settings in {
            "LengthFilter": [
                {"min_length": 1, "max_length": 90},
                {"min_length": 3, "max_length": 50},
                {"max_length": 70},
            ],
            "LengthRatioFilter": [{"threshold": 4}, {"threshold": 2}, {"threshold": 3}],
            "LongWordFilter": [{"threshold": 40}, {"threshold": 20}, {"threshold": 30}],
        }.items()
        for settings in all_settings
    ]
    for given in (filters, filters[::-1]):
        keys = read(tmp_path, opusfilter(*given))
        assert keys == {"min_length": 3, "max_length": 50, "max_ratio": 2, "max_word": 19}
