"""The queue of studies/multilingual.py: its rows are recipes with equal updates of each direction; table and page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from hf_mlnmt.files import write_json
from hf_mlnmt.training.recipe import read_recipe

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture(scope="module")
def study_module():
    sys.path.insert(0, str(STUDIES))
    try:
        import multilingual

        yield multilingual
    finally:
        sys.path.remove(str(STUDIES))


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
    assert gone == ["tokenizer", "train", "matrix", "retrieve"]
    assert not any("/copies.seed1" in command[1] or command[1].endswith("/copies.yaml") for command in left)
    assert left[0][0] == "train"


def test_the_table(study, study_module, tmp_path):
    scores = {f"test_2016_flickr.{pair}": {"classic": {"BLEU": {"score": 10.0}}} for pair in ("de-en", "de-fr")}
    content = {"budget": {"steps": 100}, "scores": scores}
    run = tmp_path / "runs" / "left-out.seed1"
    run.mkdir(parents=True)
    write_json(run / "results.json", content)
    write_json(run / "matrix.json", {"zero_shot": ["de-fr"], "off_target": {"de-en": 0.0, "de-fr": 0.5}})
    write_json(run / "retrieval.json", {"accuracy": {"de-en": 0.25}})
    found = study.keep()
    assert (tmp_path / "results" / "left-out.seed1.json").is_file()
    (line,) = study_module.table(found).rows
    assert line == ["bridge, without de-fr", "100", "10.00", "", "10.00*", "", "", "25.0", "25.0"]
    page = study_module.page(found, study.options)
    assert "--updates 10" in page
    assert "Not run yet: bridge, many-to-many with A -> A;" in page
