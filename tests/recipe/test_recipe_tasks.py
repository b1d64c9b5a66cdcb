"""Recipes with tasks, objectives and fused models: what their keys do, and every mistake named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.tiny_run import write_recipe
from helpers.toy_tasks import BACK, DEV_BACK, TEXT, THERE, TokensSettings

from hf_mlnmt import UserError
from hf_mlnmt.recipe import read_recipe
from hf_mlnmt.recipe.reading import turn_round
from hf_mlnmt.recipe.schema import OBJECTIVES, ObjectiveKey
from hf_mlnmt.training.arguments import higher_is_better

GERMAN = {"train": {"path": "train.de"}, "dev": {"path": "val.de"}, "test": {"made_up": {"path": "test.de"}}}


@pytest.fixture(autouse=True)
def toy_objective(monkeypatch) -> None:
    """The objective `tokens`, nameable in recipes."""
    monkeypatch.setitem(OBJECTIVES, "tokens", ObjectiveKey(TokensSettings, "Names source tokens.", "text"))


def recipe_of(folder: Path, tasks: Any, data: dict[str, Any] | None = None, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return write_recipe(folder / "recipe.yaml", data={"train": None, **(data or {})}, tasks=tasks, **changes)


def fused(folder: Path, objective: Any = "fusion-n-best", **changes: Any) -> Path:
    fuse = {"translation": "tm", "language_model": "lm", **changes.pop("fuse", {})}
    settings = {"model": {"fuse": fuse}, "label_smoothing": 0.0, "tokenizer": {}, **changes}
    return recipe_of(folder, {"fusion": {"data": THERE, "objective": objective}}, **settings)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({}, "tasks: none has a share above 0"),
        ({"a": {"data": THERE, "share": 0}}, "tasks: none has a share above 0"),
        ({"a": {"share": 1}}, "tasks.a: missing key 'tasks.a.data'"),
        ({"a": {"data": THERE, "shares": 1}}, r"tasks.a.shares: unknown key \(did you mean 'share'\?\)"),
        ({"a": {"data": THERE, "share": -1}}, "tasks.a.share must be at least 0, not -1"),
        ({"a_b": {"data": THERE}}, "tasks.a_b: expected a task's name: letters, digits"),
        ({"dev": {"data": THERE}}, "tasks.dev: .* not 'dev', which is data.dev"),
        ({"a": {"data": []}}, r"tasks.a.data: \[\] has too few entries"),
        ({"a": {"data": THERE, "objective": "translatoin"}}, r"tasks.a.objective: .*mean 'translation'"),
        ({"a": {"data": THERE, "objective": {"label_smoothing": 0}}}, "tasks.a.objective: there is no objective None"),
        ({"a": {"data": THERE, "objective": {"name": "translation", "x": 0}}}, "tasks.a.objective.x: unknown key"),
        (
            {"a": {"data": THERE, "objective": {"name": "translation", "label_smoothing": 1}}},
            "tasks.a.objective.label_smoothing must be below 1, not 1",
        ),
        ({"a": {"data": THERE, "languages": {"source": "en"}}}, "tasks.a.languages: missing key"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, tasks, message):
    with pytest.raises(UserError, match=f"recipe.yaml(, line [0-9]+)?: {message}"):
        read_recipe(recipe_of(tmp_path, tasks))


def test_train_and_tasks_and_dev(tmp_path):
    both = write_recipe(tmp_path / "both.yaml", tasks={"a": {"data": THERE}})
    with pytest.raises(UserError, match=r"give either data.train, for one task, or tasks"):
        read_recipe(both)
    with pytest.raises(UserError, match=r"give either data.train, for one task, or tasks"):
        read_recipe(recipe_of(tmp_path, None))
    with pytest.raises(UserError, match=r"data.dev is missing: give it, or a dev set to one of the tasks"):
        read_recipe(recipe_of(tmp_path, {"a": {"data": THERE}}, {"dev": None}))
    for value, message in (
        ({"encodr": "x"}, r"init_from.encodr: 'encodr' is not one of encoder, .*did you mean 'encoder'"),
        ({}, "init_from: {} has too few entries"),
    ):
        with pytest.raises(UserError, match=message):
            read_recipe(write_recipe(tmp_path / "i.yaml", init_from=value))


def test_what_evaluation_best_may_name(tmp_path):
    tasks = {"a": {"data": THERE, "dev": DEV_BACK}, "text": {**TEXT, "dev": {"path": "val.en", "language": "en"}}}
    for best, higher in (
        ("bleu", True),
        ("loss", False),
        ("a_bleu", True),
        ("a_loss", False),
        ("text_perplexity", False),
    ):
        recipe = read_recipe(recipe_of(tmp_path, tasks, evaluation={"best": best}))
        assert higher_is_better(recipe) is higher
    for best in ("dev_bleu", "text_bleu", "b_bleu"):
        with pytest.raises(
            UserError, match=f"evaluation.best is '{best}', which is not measured: use one of a_bleu, a_loss"
        ):
            read_recipe(recipe_of(tmp_path, tasks, evaluation={"best": best}))


def test_tasks_are_inherited_key_by_key_and_their_corpora_whole(tmp_path):
    write_recipe(
        tmp_path / "base.yaml", data={"train": None}, tasks={"a": {"data": THERE, "share": 2}, "b": {"data": BACK}}
    )
    other = {"path": "pairs.tsv"}
    content = {"extends": "base.yaml", "tasks": {"a": {"data": other}, "b": {"share": 3}, "c": {"data": THERE}}}
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(content))
    tasks = read_recipe(tmp_path / "more.yaml").to_dict()["tasks"]
    assert [(name, task["data"], task["share"]) for name, task in tasks.items()] == [
        ("a", other, 2.0), ("b", BACK, 3.0), ("c", THERE, 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "decoder-lm", "tasks": {"a": {"data": THERE}}, "data": {"train": None}}, "objective is of data"),
        ({"objective": "cloze"}, "there is no objective 'cloze'"),
        ({"objective": {"name": "encoder-cloze", "distorted": 2.0}}, "objective.distorted must be at most 1, not 2"),
        ({"objective": "decoder-lm", "data": {**GERMAN, "bpe_dropout": 0.1}}, "data.bpe_dropout is for pairs"),
        ({"objective": "decoder-lm", "data": GERMAN, "augment": {"upper": 0.1}}, "augment: is for pairs"),
    ],
)
def test_objectives_that_are_refused(changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read_recipe(write_recipe(tmp_path / "recipe.yaml", evaluation={"every": 4, "metrics": []}, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fuse": {"beta": -0.5}}, "model.fuse: beta=-0.5: must be a number of at least 0"),
        ({"fuse": {"alpha": float("nan")}}, "model.fuse.alpha must be a finite number"),
        ({"model": {"fuse": {"translation": "tm", "language_model": "lm"}, "system": "m-10"}}, "model.system beside"),
        ({"init_from": "tm"}, "init_from beside model.fuse"),
        ({"objective": {"name": "fusion-n-best", "n": 0}}, "n must be at least 1"),
        ({"objective": "fusion-nbest"}, "did you mean 'fusion-n-best'"),
    ],
)
def test_fused_models_that_are_refused(changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read_recipe(fused(tmp_path, **changes))


def test_what_is_turned_of_tasks_text_and_processing(tmp_path):
    recipe = read_recipe(write_recipe(
        tmp_path / "recipe.yaml",
        reverse=True,
        data={"train": None, "max_length": 40},
        tokenizer={"processing": {"source": {"lowercase": True}}},
        tasks={"de-en": {"data": {"path": "a.tsv", "languages": {"source": "de", "target": "en"}, "reverse": True},
                         "languages": {"source": "de", "target": "en"}}},
    ))  # fmt: skip
    task = recipe.tasks["de-en"]
    assert task.data == {"path": "a.tsv", "languages": {"source": "en", "target": "de"}, "reverse": False}
    assert (task.languages.source, task.languages.target) == ("en", "de")
    assert recipe.tokenizer.processing == {"target": {"lowercase": True}}
    text = {"path": "a.de", "side": "target"}
    content = {"reverse": True, "objective": "decoder-lm", "data": {"train": text, "dev": {"path": "b.de"}}}
    turn_round(content)
    assert content["data"] == {"train": {"path": "a.de", "side": "source"}, "dev": {"path": "b.de"}}
    with pytest.raises(UserError, match="directions names several"):
        turn_round({"reverse": True, "directions": {"pairs": []}})
