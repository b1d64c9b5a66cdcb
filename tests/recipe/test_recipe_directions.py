"""Recipes of many languages: what `directions` stands for, and every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from helpers.tiny_run import write_recipe

from hf_mlnmt import UserError
from hf_mlnmt.recipe import read_recipe

BETWEEN = {"between": ["de", "en", "fr"], "train": "train.<language>", "dev": "val.<language>"}


def recipe_of(folder: Path, directions: dict, **changes) -> Path:
    data = {"train": None, "dev": None, "test": {}}
    directions = {**BETWEEN, "test": {"made-up": "test.<language>"}, **directions}
    return write_recipe(folder / "recipe.yaml", data=data, directions=directions, **changes)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "de-en de-fr en-de en-fr fr-de fr-en"),
        ({"pairs": "to-en"}, "de-en fr-en"),
        ({"pairs": "from-en"}, "en-de en-fr"),
        ({"pairs": "with-en", "copies": True}, "de-en en-de en-fr fr-en de-de en-en fr-fr"),
        ({"pairs": "to-en", "copies": True}, "de-en fr-en de-de en-en fr-fr"),
        ({"leave_out": ["fr-de"]}, "de-en en-de en-fr fr-en"),
        ({"pairs": ["de-fr"], "shares": {"de-fr": 2}}, "de-fr"),
    ],
)
def test_the_tasks_of_directions(tmp_path, keys, expected):
    recipe = read_recipe(recipe_of(tmp_path, keys, evaluation={"every": 6, "best": "loss"}))
    assert list(recipe.tasks) == expected.split()
    assert recipe.directions is None, "what is kept in the run's folder says the tasks"
    for name, task in recipe.tasks.items():
        source, target = name.split("-")
        assert task.data["files"] == {"source": f"train.{source}", "target": f"train.{target}"}
        assert (task.languages.source, task.languages.target) == (source, target)
        assert (task.dev is None) == (source == target)
        assert task.share == keys.get("shares", {}).get(name, 1.0)
    sources, targets = ({name.split("-")[side] for name in recipe.tasks} for side in (0, 1))
    tested = {name.partition(".")[2] for name in recipe.data.test}
    assert tested == {f"{a}-{b}" for a in sources for b in targets if a != b}, "pairs that are not trained too"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pairs": "into-en"}, r"directions.pairs: 'into-en' is none of all, to-X"),
        ({"pairs": "to-xx"}, r"X one of de, en, fr"),
        ({"pairs": ["de-xx"]}, r"directions.pairs: 'de-xx': expected two of de, en, fr"),
        ({"leave_out": ["de-de"]}, r"directions.leave_out: 'de-de'"),
        ({"between": ["de"]}, r"at least two languages"),
        ({"between": ["de", "zh-Hans"]}, r"'zh-Hans': a code of letters and digits"),
        ({"train": "train.en"}, r"train: 'train.en' has no <language>"),
        ({"pairs": ["de-en"], "leave_out": ["de-en"]}, r"no pair of languages is left"),
        ({"shares": {"de-ne": 2}}, r"directions.shares: there is no task de-ne"),
        ({"paris": "all"}, r"paris"),
    ],
)
def test_wrong_directions_are_named(tmp_path, keys, message):
    with pytest.raises(UserError, match=message):
        read_recipe(recipe_of(tmp_path, keys))


def test_directions_beside_tasks_are_refused(tmp_path):
    path = recipe_of(tmp_path, {})
    content = yaml.safe_load(path.read_text())
    content["data"]["dev"] = {"files": {"source": "val.en", "target": "val.de"}}
    path.write_text(yaml.safe_dump(content))
    assert read_recipe(path).data.dev, "one set for all directions"
    content["data"]["train"] = content["data"]["dev"]
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=r"takes the place of tasks and data\.train"):
        read_recipe(path)
