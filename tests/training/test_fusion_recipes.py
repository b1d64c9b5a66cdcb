"""Recipes that train a fused model: a whole run of either approximation, its logs, and the mistakes that are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fused_folders import gpt2
from helpers.tiny_run import UNSCORED, killed, run, same_weights, write_corpus, write_recipe
from safetensors.torch import load_file

from hf_mlnmt import UserError
from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.fusing import fuse_folders

pytestmark = pytest.mark.usefixtures("one_thread")
THERE = {"files": {"source": "train.en", "target": "train.de"}}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Corpora, a translation model tm/ that was trained on them for a moment, and a language model lm/."""
    root = tmp_path_factory.mktemp("fusion")
    data = write_corpus(root / "data", {"train": 40, "val": 6, "test": 6})
    # Long enough that its hypotheses end: what does not end is no translation, and alone a reference has no loss.
    asked = {"budget": {"steps": 30}, "evaluation": {**UNSCORED, "every": 30}, "label_smoothing": 0.0}
    recipe = write_recipe(root / "recipe.yaml", scores=False, **asked)
    run(recipe, data, root / "run")
    (root / "run" / "average").rename(data / "tm")
    tokenizers = load_tokenizers(data / "tm")
    gpt2(len(tokenizers.target)).save_pretrained(data / "lm")
    tokenizers.save(data / "lm")
    return data


def recipe_of(folder: Path, objective: Any = "fusion-n-best", **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    fuse = {"translation": "tm", "language_model": "lm", **changes.pop("fuse", {})}
    settings = {
        "model": {"fuse": fuse},
        "tasks": {"fusion": {"data": THERE, "objective": objective}},
        "data": {"train": None, "test": {}},
        "label_smoothing": 0.0,
        "budget": {"steps": 2},
        "evaluation": {"every": 1},
        "logging": {"every": 1},
        "checkpoints": {"keep": 2, "average": 1},
        "tokenizer": {},
    }
    return write_recipe(folder / "recipe.yaml", **{**settings, **changes})


@pytest.mark.parametrize(
    "objective", [{"name": "fusion-n-best", "n": 6}, {"name": "fusion-trellis", "beams": 3}, "fusion-symbol"]
)
def test_a_whole_run(objective, data, tmp_path):
    """log q and log Z at every log; the translation model moves, the language model does not."""
    made = tmp_path / "run"
    run(recipe_of(tmp_path, objective), data, made)
    logs = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    losses = [log for log in logs if "loss" in log]
    assert len(losses) == 2
    if objective != "fusion-symbol":
        for log in losses:
            assert log["loss"] == pytest.approx(log["loss_log_z"] - log["loss_log_q"], abs=2e-4)
            assert log["loss"] >= 0
    assert sum("eval_bleu" in log for log in logs) >= 2
    before, after = load_file(data / "lm" / "model.safetensors"), load_file(made / "average" / "model.safetensors")
    for name, weight in before.items():
        assert torch.equal(after[f"language_0.{name}"], weight)
    moved = load_file(data / "tm" / "model.safetensors")
    assert any(not torch.equal(after[f"translation_0.{name}"], weight) for name, weight in moved.items())
    translate = TranslationPipeline.from_pretrained(made / "average")
    assert len(translate(["ba do"], beta=0.2)) == 1
    assert translate.model.generation_config.beta == 0.1


def test_an_interrupted_run_ends_with_the_same_weights(data, tmp_path):
    recipe = recipe_of(tmp_path, {"name": "fusion-n-best", "n": 3}, evaluation={**UNSCORED, "every": 1})
    run(recipe, data, tmp_path / "whole")
    killed(tmp_path / "whole", tmp_path / "part", 2)
    assert "going on from" in run(recipe, data, tmp_path / "part")
    assert same_weights(tmp_path / "whole", tmp_path / "part")


def test_label_smoothing_of_a_fused_model_is_refused_before_anything_is_made(data, tmp_path):
    """Of one that is fused here and of one that was, init_from, the same; without it a recipe trains either."""
    fuse_folders([data / "tm", data / "lm"], data / "fused", lambda text: None)
    begun = {
        "model": {},
        "tasks": None,
        "data": {"train": THERE, "test": {}},
        "init_from": "fused",
        "tokenizer": {"path": "fused"},
    }
    for changes in ({}, begun):
        recipe = recipe_of(tmp_path, label_smoothing=0.1, **changes)
        with pytest.raises(
            UserError, match=r"label_smoothing is 0.1: it is not defined for a fused model; set it to 0"
        ):
            run(recipe, data, tmp_path / "run")
        assert not [path for path in (tmp_path / "run").rglob("*") if path.is_dir()]
    run(recipe_of(tmp_path, budget={"steps": 1}, **begun), data, tmp_path / "run")
    assert json.loads((tmp_path / "run/average/config.json").read_text())["model_type"] == "mlnmt-fusion"


def test_mistakes_that_need_the_models(data, tmp_path):
    for number, (changes, message) in enumerate(
        [
            ({"fuse": {"language_model": "ml"}}, r"model\.fuse\.language_model: ml is neither a folder"),
            ({"fuse": {"normalization": "symbol"}}, "objective FusionNBest needs sequence-level normalization"),
            ({"model": {"system": "transformer", "shape": "tiny"}, "tokenizer": {"path": "tm"}}, "needs a fused model"),
        ]
    ):
        with pytest.raises(UserError, match=message):
            run(recipe_of(tmp_path / str(number), **changes), data, tmp_path / f"run{number}")
