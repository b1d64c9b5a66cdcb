"""The queue of studies/multilingual.py: its rows are recipes with equal updates of each direction; table and page."""

from __future__ import annotations

import argparse

import pytest
from multilingual_tables import study_tables

from hf_mlnmt.common.files import write_json
from hf_mlnmt.recipe.reading import read_recipe

STUDY = "multilingual"


@pytest.fixture
def study(study_module, tmp_path, monkeypatch):
    """Of all rows, in a folder."""
    monkeypatch.chdir(tmp_path)
    given = {"data": "data", "output": "runs", "results": "results", "seed": 1, "updates": 10, "learning_rate": 0.004}
    return study_module.Study(argparse.Namespace(**given, rows=",".join(study_module.ROWS)))


def test_every_row_is_a_recipe_with_the_same_updates_of_each_direction(study, study_module, tmp_path):
    list(study.commands())
    for row in study.rows:
        recipe = read_recipe(tmp_path / "runs" / "recipes" / f"{row.name}.yaml")
        assert recipe.budget.steps == 10 * row.times * len(recipe.tasks), row.name
        assert recipe.tokenizer.path == "runs/tokenizer"
    tasks = {row.name: read_recipe(tmp_path / "runs" / "recipes" / f"{row.name}.yaml").tasks for row in study.rows}
    assert len(tasks["copies"]) == 16
    assert not {"de-fr", "fr-de"} & tasks["left-out"].keys()
    assert list(tasks["bridge.de-en"]) == ["de-en"]


def test_what_is_done_is_not_done_again(study, tmp_path):
    words = [command[:3] for command in study.commands()]
    assert words[0][0] == "tokenizer"
    (tmp_path / "runs" / "tokenizer").mkdir(parents=True)
    (run := tmp_path / "runs" / "copies.seed1").mkdir(parents=True)
    for name in ("results", "matrix", "retrieval"):
        write_json(run / f"{name}.json", {})
    left = [command[:3] for command in study.commands()]
    gone = [command[0] for command in words if command not in left]
    assert gone == ["tokenizer", "train", "evaluate", "analyse"]
    assert not any("/copies.seed1" in " ".join(command[1:]) or command[1].endswith("/copies.yaml") for command in left)
    assert left[0][0] == "train"


def test_what_is_kept_and_its_tables(study, study_module, tmp_path):
    languages = ("cs", "de", "en", "fr")
    pairs = [f"{source}-{target}" for source in languages for target in languages if source != target]
    for name, tested in (("copies", pairs), ("left-out", ["de-en", "de-fr"]), ("rnn.de-en", ["de-en"])):
        (run := tmp_path / "runs" / f"{name}.seed1").mkdir(parents=True)
        scores = {"classic": {"BLEU": {"score": 10.0}}, "cased": {"BLEU": {"score": 9.0}}}
        tests = {f"test_2016_flickr.{pair}": scores for pair in tested}
        write_json(run / "results.json", {"budget": {"steps": 1000}, "scores": tests})
        if name == "rnn.de-en":
            continue
        zero = ["de-fr"] if name == "left-out" else []
        write_json(run / "matrix.json", {"zero_shot": zero, "off_target": {"de-en": 0.0, "de-fr": 0.5}})
        write_json(run / "retrieval.json", {"accuracy": dict.fromkeys(pairs, 0.25)})
    study.keep()
    results = tmp_path / "results"
    assert sorted(path.name for path in results.glob("*.seed1.json")) == [
        "copies.seed1.json",
        "left-out.seed1.json",
        "rnn.de-en.seed1.json",
    ]
    tables = study_tables(results)
    assert tables["many-overview"].rows == [
        ["bridge, many-to-many with A -> A", "1,000", *["10.00"] * 5, "9.00", "25.0", "25.0", "1"],
        ["bridge, without de-fr", "1,000", "10.00", "", "10.00*", "", "", "", "25.0", "25.0", "1"],
    ]
    assert tables["many-pairs"].rows == [["no bridge", "de-en", "1,000", "10.00", "9.00", "1"]]
    assert tables["many-matrix"].rows[1] == ["de", "10.0 (25)", "", "10.0 (25)", "10.0 (25)"]
    page = study_module.page(study.options)
    assert "--updates 10" in page
    assert tables["many-overview"].markdown() in page
    assert "Not run yet: no bridge, x4, de-en;" in page


def test_nothing_is_kept_yet(tmp_path):
    assert study_tables(tmp_path) == {}
