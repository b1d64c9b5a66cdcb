"""Rounds: each trains on what the one before translated; interrupted anywhere they end the same."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml
from helpers.model_folders import write_model
from helpers.processes import two_processes
from helpers.synthetic_corpora import write_synthetic
from helpers.tiny_run import same_weights, write_recipe
from rich.console import Console

from hf_mlnmt import UserError
from hf_mlnmt.data.corpus import read_manifest
from hf_mlnmt.generation.translating.journal import Journal
from hf_mlnmt.training import read_recipe, run_recipe
from hf_mlnmt.training.callbacks import ShowProgress
from hf_mlnmt.training.preparation import RecipeCorpora
from hf_mlnmt.training.rounds import read_rounds
from hf_mlnmt.training.sweep import plan

pytestmark = pytest.mark.usefixtures("one_thread")
ROUNDS = {
    "back": {"reverse": True, "recipe": {"budget": {"steps": 4}}},
    "first": {
        "translate": {
            "model": "back",
            "text": "train.de",
            "method": {"name": "sampling", "seed": 3},
            "tag": "<bt>",
            "settings": {"drop": [], "window": 30, "max_new_tokens": 8},
        },
        "ratio": 0.5,
    },
    "back-again": {
        "reverse": True,
        "translate": {"model": "first", "text": ["train.en"], "settings": {"drop": [], "max_new_tokens": 8}},
        "ratio": 0.5,
        "recipe": {"budget": {"steps": 4}},
    },
}


def write(path, **changes):
    tokenizer = {"vocab_size": 120, "byte_fallback": False, "tags": ["<bt>"]}
    changes = {"tokenizer": tokenizer, "budget": {"steps": 8}, "checkpoints": {"keep": 1, "average": 1}, **changes}
    return write_recipe(path, scores=False, **{"rounds": ROUNDS, **changes})


def train(recipe, data, output, dry_run=False):
    """The results of each round, and what was printed."""
    text = io.StringIO()
    return run_recipe(recipe, data, output, dry_run=dry_run, console=Console(file=text, width=200)), text.getvalue()


def changed(name: str, **keys):
    return {**ROUNDS, name: {**ROUNDS[name], **keys}}


def test_rounds_build_on_one_another_and_go_on_where_they_were_interrupted(data, tmp_path, monkeypatch):
    recipe = write(tmp_path / "recipe.yaml")
    results, text = train(recipe, data, tmp_path / "whole")
    assert list(results) == list(ROUNDS)
    assert "reading" in text, "the console is told what is translated"
    first = yaml.safe_load((tmp_path / "whole" / "first" / "recipe.yaml").read_text())
    again = yaml.safe_load((tmp_path / "whole" / "back-again" / "recipe.yaml").read_text())
    assert (first["languages"]["source"], again["languages"]["source"]) == ("en", "de")
    assert first["data"]["train"][1] == {"synthetic": str(tmp_path / "whole" / "first.synthetic"), "ratio": 0.5}
    assert again["data"]["train"][0]["reverse"]
    manifest = read_manifest(tmp_path / "whole" / "first.synthetic")
    assert manifest.content["model"]["name"] == str(tmp_path / "whole" / "back" / "average")
    assert (manifest.tag, manifest.content["method"]["name"]) == ("<bt>", "sampling")
    target = (tmp_path / "whole" / "back-again.synthetic" / "target.txt").read_text()
    assert set(target.splitlines()) <= set((data / "train.en").read_text().splitlines())

    append, show, moments = Journal.append, ShowProgress.on_step_end, {"windows": 0}

    def stop_translating(self, *arguments, **progress):
        append(self, *arguments, **progress)
        moments["windows"] += 1
        if moments["windows"] == 2:
            raise RuntimeError("power cut")

    def stop_training(self, args, state, control, **kwargs):
        if "first" in args.output_dir and state.global_step == 7:
            raise RuntimeError("power cut")
        show(self, args, state, control, **kwargs)

    for kind, name, replacement in (
        (Journal, "append", stop_translating),
        (ShowProgress, "on_step_end", stop_training),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, replacement)
            with pytest.raises(RuntimeError, match="power cut"):
                train(recipe, data, tmp_path / "cut")
    train(recipe, data, tmp_path / "cut")
    for name in ROUNDS:
        assert same_weights(tmp_path / "whole" / name, tmp_path / "cut" / name)
    _, text = train(recipe, data, tmp_path / "cut")
    assert text.count("is finished, and nothing changed since. Choose another --output") == 3
    assert text.count("synthetic is finished, and nothing changed since") == 2


def test_a_dry_run_checks_all_and_leaves_nothing(data, tmp_path):
    settings = {"text": "train.de", "model": "back", "settings": {"limit": 100}}
    recipe = write(tmp_path / "recipe.yaml", rounds=changed("first", translate=settings, ratio=2))
    results, text = train(recipe, data, tmp_path / "run", dry_run=True)
    assert results is None
    assert text.count("steps/s") == 3
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (changed("first", reverse=True), r"rounds.first.translate.model: round back translates de-en, .* other direct"),
        (changed("first", translate={"model": "first", "text": "train.de"}), "a round cannot translate for itself"),
        (changed("first", ratio=-1), r"rounds.first.ratio must be above 0, not -1"),
        (
            changed("back", translate={"model": "first", "text": "a"}),
            r"rounds.back.translate.model: round first comes l",
        ),
        (changed("first", translate={"model": "./nowhere", "text": "a"}), r"\./nowhere: no such folder"),
        (changed("back", ratio=1), "rounds.back.ratio: there is no synthetic corpus"),
        (changed("first", translate={"model": "back"}), "missing key 'rounds.first.translate.text'"),
        (changed("first", translate={"model": "back", "text": "a", "method": "beem"}), "did you mean 'beam'"),
        (changed("first", translate={"model": "back", "text": "a", "tag": "<x>"}), r"no token <x>.*tags: \['<x>'\]"),
        (changed("back", recipe={"bugdet": {}}), "unknown key .*did you mean 'budget'"),
        (changed("back", alone=True), "rounds.back.alone: there is no synthetic corpus"),
        (changed("first", after="back"), "rounds.first.after: goes on with what was translated before"),
        (ROUNDS | {"tuned": {"after": "back"}}, "rounds.tuned.after: back is no earlier round of this direction"),
        (ROUNDS | {"tuned": {"after": "fist"}}, "rounds.tuned.after: fist is no earlier round"),
        ({}, "rounds: expected names of rounds"),
    ],
)
def test_rounds_that_cannot_be(data, tmp_path, described, message):
    with pytest.raises(UserError, match=message):
        train(write(tmp_path / "recipe.yaml", rounds=described), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_of_the_wrong_direction_is_refused(data, tmp_path):
    model = write_model(tmp_path / "model")
    (model / "results.json").write_text(json.dumps({"languages": {"source": "en", "target": "de"}}))
    described = changed("first", translate={"model": str(model), "text": "train.de"})
    with pytest.raises(UserError, match="model: translates en to de, and a model of de to en is needed"):
        train(write(tmp_path / "recipe.yaml", rounds=described), data, tmp_path / "run")


def test_a_missing_text_is_found_before_the_first_round(data, tmp_path):
    described = changed("first", translate={"model": "back", "text": "nothing.de"})
    recipe = write(tmp_path / "recipe.yaml", rounds=described)
    with pytest.raises(UserError, match=r"nothing\.de: no such file"):
        train(recipe, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_recipe_with_rounds_is_given_as_its_path_and_not_to_a_sweep(tmp_path):
    path = write(tmp_path / "recipe.yaml")
    with pytest.raises(TypeError, match="given as its path"):
        run_recipe(read_recipe(path), tmp_path, tmp_path / "run")
    with pytest.raises(UserError, match="has rounds, which a sweep does not train"):
        plan([path])


def test_two_processes_train_in_rounds(data, tmp_path):
    """One of them translates, and the other waits for it."""
    settings = {"drop": [], "limit": 20, "max_new_tokens": 8}
    asked = {"model": "back", "text": "train.de", "method": {"name": "sampling", "seed": 3}, "settings": settings}
    rounds = {"back": {"reverse": True}, "first": {"translate": asked}}
    recipe = write(tmp_path / "recipe.yaml", rounds=rounds, budget={"steps": 4})
    script = tmp_path / "train.py"
    script.write_text("import typer; from hf_mlnmt.cli.train import train; typer.run(train)")
    two_processes(str(script), str(recipe), "--data", str(data), "--output", str(tmp_path / "run"))
    assert read_manifest(tmp_path / "run" / "first.synthetic").pairs == 20
    for name in rounds:
        assert json.loads((tmp_path / "run" / name / "results.json").read_text())["budget"]["processes"] == 2


def test_the_recipes_of_the_docs_are_recipes(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "monolingual-back-translation.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in page.split("```yaml\n")[1:]]
    write_recipe(tmp_path / "en-de.yaml")
    write_synthetic(tmp_path / "synthetic" / "news", ["ba do"])
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block, encoding="utf-8")
        if "rounds:" in block:
            assert list(read_rounds(path)) == ["backward", "first", "backward-2", "second"]
        else:
            RecipeCorpora(read_recipe(path), tmp_path)
    assert len(blocks) == 3
