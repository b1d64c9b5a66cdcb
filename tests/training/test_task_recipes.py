"""Recipes with tasks: what their keys do, which mistakes are named, a whole run with text and a head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_run import UNSCORED, killed, run, same_weights, write_recipe
from helpers.toy_tasks import BACK, DEV_BACK, TEXT, THERE, Tokens, TokensSettings
from helpers.training_helpers import tiny_model
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt import UserError
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.recipe.schema import OBJECTIVES, ObjectiveKey
from hf_mlnmt.training import read_recipe
from hf_mlnmt.training.preparation import CLASSES, Preparation

pytestmark = pytest.mark.usefixtures("one_thread")
UNSMOOTHED = {"name": "translation", "label_smoothing": 0.0}
GERMAN = {"source": "de", "target": "en"}


@pytest.fixture(autouse=True)
def toy_objective(monkeypatch) -> None:
    """The objective `tokens`, nameable in recipes."""

    def of(cls: type[Tokens], settings: TokensSettings, given: Any) -> Tokens:
        return cls(settings.seed, len(given.tokenizers.source))

    monkeypatch.setitem(OBJECTIVES, "tokens", ObjectiveKey(TokensSettings, "Names source tokens.", "text"))
    monkeypatch.setattr(Tokens, "of", classmethod(of))
    monkeypatch.setitem(CLASSES, "tokens", Tokens)


def recipe_of(folder: Path, tasks: Any, data: dict[str, Any] | None = None, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return write_recipe(folder / "recipe.yaml", data={"train": None, **(data or {})}, tasks=tasks, **changes)


def test_one_task_is_what_data_train_is(plain, data, tmp_path):
    """Bit for bit; and so it is with further tasks that have no share, whatever they train."""
    folder, _ = plain
    tasks = {"translation": {"data": THERE}, "back": {"data": {"path": "nowhere.tsv"}, "share": 0}}
    cloze = {"data": {"path": "nowhere.en", "language": "en"}, "objective": "encoder-cloze"}
    tasks["text"] = {**cloze, "share": 0}
    run(recipe_of(tmp_path / "a", tasks, {"test": {}}, evaluation=UNSCORED), data, tmp_path / "run")
    assert same_weights(folder, tmp_path / "run")


def test_a_run_of_tasks(data, tmp_path):
    tasks = {
        "en-de": {"data": [THERE, {**THERE, "weight": 0.5}], "share": 2},
        "de-en": {"data": BACK, "languages": GERMAN, "dev": DEV_BACK, "objective": UNSMOOTHED},
        "text": {**TEXT, "dev": {"path": "val.en", "language": "en"}},
    }  # fmt: skip
    tokenizer = {"vocab_size": 120, "byte_fallback": False, "languages": ["en", "de"]}
    changes = {
        "tokenizer": tokenizer,
        "evaluation": {"every": 4, "best": "de-en_bleu"},
        "batch": {"tokens": 60, "accumulate": 3},
        "budget": {"steps": 12},
    }
    recipe = recipe_of(tmp_path / "a", tasks, {"test": {}}, **changes)
    dry = run(recipe, data, tmp_path / "dry", dry_run=True)
    shown = "240 pairs of 2 corpora, of which an epoch shows 180"
    assert f"task en-de        Translation, en-de: {shown}; share 2 of 4, " in dry
    assert "task de-en        Translation, de-en: 120 pairs; share 1 of 4, " in dry
    assert "task text         Tokens, en: 120 sentences; share 1 of 4, " in dry
    assert "epochs of its own; tokens per epoch" in dry
    assert "development sets  dev 10, de-en 10, text 10" in dry
    text = run(recipe, data, tmp_path / "run")
    assert "train.de + train.en\npairs read" in text
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [(part["task"], part["kept"]) for part in results["data"]["train"]] == [
        ("en-de", 120), ("en-de", 120), ("de-en", 120), ("text", 120),
    ]  # fmt: skip
    expected = {"eval_loss", "eval_bleu", "eval_de-en_loss", "eval_de-en_bleu", "eval_text_loss"}
    expected |= {"eval_text_perplexity"}
    assert expected <= results["dev"][-1].keys()
    assert "eval_text_bleu" not in results["dev"][-1]
    state = json.loads((tmp_path / "run" / "checkpoints" / "checkpoint-12" / "trainer_state.json").read_text())
    assert state["best_metric"] == max(line["eval_de-en_bleu"] for line in results["dev"])
    assert {"loss_en-de", "loss_de-en", "loss_text"} <= state["log_history"][-2].keys()
    # The head is in the checkpoints alone, and no parameter of the finished model.
    saved = load_file(tmp_path / "run" / "checkpoints" / "checkpoint-12" / "model.safetensors")
    assert "objective_heads.text-head.weight" in saved
    for name in ("best", "average"):
        model, told = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / name, output_loading_info=True)
        assert not told["unexpected_keys"]
        assert model.num_parameters() == results["parameters"]
    # Begun again inside a cycle of the tasks.
    again = killed(tmp_path / "run", tmp_path / "again", 12, 8)
    assert "going on from" in run(recipe, data, again)
    assert same_weights(tmp_path / "run", again)


def test_the_order_of_tasks_decides_which_is_when(data, tmp_path):
    """A run does not go on with another, even if the corpora are the same."""
    tasks = {"a": {"data": THERE}, "b": {"data": THERE, "objective": UNSMOOTHED}}
    settings = {"data": {"test": {}}, "budget": {"steps": 1}, "evaluation": UNSCORED}
    run(recipe_of(tmp_path / "a", tasks, **settings), data, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    turned = recipe_of(tmp_path / "b", dict(reversed(tasks.items())), **settings)
    with pytest.raises(UserError, match="training data, the tokenizer"):
        run(turned, data, tmp_path / "run")


def test_objectives_and_mixtures_are_each_tasks_own(data, tmp_path, tokenizer):
    halves = {**THERE, "weight": 0.5}
    tasks = {"a": {"data": halves}, "b": {"data": halves, "objective": UNSMOOTHED}}
    recipe = read_recipe(recipe_of(tmp_path, tasks))
    preparation = Preparation(recipe, data, tmp_path / "run", lambda text: None)
    preparation.tokenizers = Tokenizers(tokenizer, tokenizer)
    sets = preparation.training_sets
    assert sets["a"].choose(0).tolist() != sets["b"].choose(0).tolist()
    made = preparation.tasks(tiny_model())
    assert [task.objective.label_smoothing for task in made] == [recipe.label_smoothing, 0.0]


def test_a_first_development_set_of_a_task(data, tmp_path):
    """Without data.dev the first task's stands without its name."""
    tasks = {"text": {**TEXT, "dev": {"path": "val.en", "language": "en"}}, "en-de": {"data": THERE, "share": 0.5}}
    recipe = recipe_of(tmp_path / "a", tasks, {"dev": None, "test": {}}, evaluation={"every": 10, "best": "loss"})
    run(recipe, data, tmp_path / "run")
    dev = json.loads((tmp_path / "run" / "results.json").read_text())["dev"]
    assert {"eval_loss", "eval_perplexity"} <= dev[0].keys()
    assert not any("bleu" in name for name in dev[0])


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"a": {"data": {**THERE, "sauce": 1}}}, "tasks.a.data.sauce: unknown key"),
        ({"a": {**TEXT, "data": THERE}}, "tasks.a.data.files: unknown key"),
        ({"a": {**TEXT, "data": {"path": "train.en"}}}, "tasks.a.data: give language as one of en and de, or side"),
        ({"a": {**TEXT, "data": {"path": "none.txt", "language": "fr"}}}, "whose vocabulary is this text to get"),
        ({"a": {**TEXT, "data": {"path": "none.en", "language": "en"}}}, "none.en: no such file"),
    ],
)
def test_mistakes_in_corpora_are_named(data, tmp_path, tasks, message):
    with pytest.raises(UserError, match=message):
        run(recipe_of(tmp_path / "a", tasks), data, tmp_path / "run")
