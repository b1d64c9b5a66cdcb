"""Recipes that extend others: what is taken over, what is replaced, and every mistake named with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_mlnmt import UserError
from hf_mlnmt.training import read_recipe

ROOT = Path(__file__).resolve().parents[2]
BASE = """\
languages: {source: en, target: de}
data:
  train: {files: {source: a.en, target: a.de}}
  dev: {files: {source: b.en, target: b.de}}
  test: {one: {files: {source: c.en, target: c.de}}}
  filters: {max_length: 100}
optimizer: {learning_rate: 0.5, betas: [0.9, 0.98]}
evaluation: {metrics: [bleu, chrf]}
budget: {steps: 10}
"""


def write(folder: Path, **recipes: str) -> Path:
    """Files by stem; returns the path of the last."""
    for stem, text in recipes.items():
        (folder / f"{stem}.yaml").write_text(text, encoding="utf-8")
    return folder / f"{list(recipes)[-1]}.yaml"


def changed(recipe, base) -> dict:
    """The top-level keys in which two recipes differ, with the first one's values."""
    other = base.to_dict()
    return {key: value for key, value in recipe.to_dict().items() if value != other[key]}


def test_nothing_of_its_own_is_the_base_under_another_name(tmp_path):
    child = read_recipe(write(tmp_path, base=BASE, child="extends: base.yaml\n"))
    assert child.to_dict() == read_recipe(tmp_path / "base.yaml").to_dict()
    assert child.stem == "child"
    assert "extends" not in child.to_yaml()


def test_sections_are_laid_over_lists_and_corpora_replaced(tmp_path):
    text = """\
extends: base.yaml
optimizer: {betas: [0.8, 0.9]}
evaluation: {metrics: [ter], best: ter}
data:
  dev: {dataset: someone/pairs, split: dev}
  test: {two: {path: d.tsv}}
  filters: {max_ratio: 3}
model: {settings: {dropout: 0.3}}
"""
    child, base = read_recipe(write(tmp_path, base=BASE, child=text)), read_recipe(tmp_path / "base.yaml")
    assert changed(child, base).keys() == {"optimizer", "evaluation", "data", "model"}
    assert child.optimizer.betas == [0.8, 0.9]
    assert child.optimizer.learning_rate == 0.5
    assert child.evaluation.metrics == ["ter"]
    assert child.data.dev == {"dataset": "someone/pairs", "split": "dev"}
    assert child.data.test == {"two": {"path": "d.tsv"}}
    assert child.data.train == base.data.train
    assert child.data.filters == {"max_length": 100, "max_ratio": 3}
    assert child.model.settings == {"dropout": 0.3}


def test_a_chain_of_two_and_settings_over_it(tmp_path):
    middle = "extends: base.yaml\nseed: 5\nbatch: {tokens: 7, accumulate: 2}\n"
    path = write(tmp_path, base=BASE, middle=middle, child="extends: middle.yaml\nbatch: {tokens: 8}\n")
    recipe = read_recipe(path)
    assert (recipe.seed, recipe.batch.tokens, recipe.batch.accumulate, recipe.budget.steps) == (5, 8, 2, 10)
    recipe = read_recipe(path, ["batch.tokens=9", "data.test.three={path: e.tsv}"], seed=6)
    assert (recipe.seed, recipe.batch.tokens, recipe.batch.accumulate) == (6, 9, 2)
    assert recipe.data.test.keys() == {"one", "three"}
    assert read_recipe(tmp_path / "base.yaml").data.test.keys() == {"one"}


def test_steps_give_way_to_epochs(tmp_path):
    child = write(tmp_path, base=BASE, child="extends: base.yaml\nbudget: {steps: null, epochs: 3}\n")
    assert read_recipe(child).budget.epochs == 3


def test_a_setup_can_be_extended_from_anywhere(tmp_path):
    for name in ("wmt16-roen", "wmt16-roen/base", "wmt16-roen/base.yaml", "wmt16-roen/lm"):
        child = read_recipe(write(tmp_path, mine=f"extends: {name}\nseed: 9\n"))
        path = ROOT / "training" / "wmt16-roen" / ("lm.yaml" if name.endswith("lm") else "base.yaml")
        assert changed(child, read_recipe(path)) == {"seed": 9}


def test_another_kind_of_model_takes_the_place_of_the_bases(tmp_path):
    base = BASE + "model: {system: m-10, shape: tiny, settings: {dropout: 0.3}}\n"
    for model in ("{record: x}", "{add_to: runs/x}"):
        child = read_recipe(write(tmp_path, base=base, child=f"extends: base.yaml\nmodel: {model}\n"))
        assert (child.model.system, child.model.shape, child.model.settings) == (None, "base", {})
    child = read_recipe(write(tmp_path, base=base, child="extends: base.yaml\nmodel: null\n"))
    assert child.model == type(child.model)()
    child = read_recipe(write(tmp_path, base=base, child="extends: base.yaml\nmodel: {system: rnn, settings: null}\n"))
    assert (child.model.system, child.model.shape, child.model.settings) == ("rnn", "tiny", {})
    child = read_recipe(write(tmp_path, mine="extends: software-ende\ndata: {placeholders: null}\n"))
    assert child.data.placeholders == {}


@pytest.mark.parametrize(
    ("recipes", "message"),
    [
        ({"base": BASE, "child": "seed: 1\nextends: bsae.yaml\n"},
         r"child.yaml, line 2: extends: there is no .*bsae.yaml.*did you mean 'base.yaml'"),
        ({"child": "extends: demo-end\n"}, "did you mean 'demo-ende'"),
        ({"child": "extends: [base.yaml]\n"}, r"child.yaml, line 1: extends: expected the name of a recipe"),
        ({"child": "extends: child.yaml\n"}, "child.yaml, line 1: extends: child.yaml extends this recipe in turn"),
        ({"a": "extends: b.yaml\n", "b": "seed: 1\nextends: a.yaml\n", "child": "extends: a.yaml\n"},
         "b.yaml, line 2: extends: a.yaml extends this recipe in turn"),
        ({"base": BASE + "bacth: {}\n", "child": "extends: base.yaml\n"}, r"base.yaml, line 10: bacth: unknown key"),
        ({"base": "seed: 1\n", "child": "extends: base.yaml\n"}, "base.yaml: missing key 'languages'"),
        ({"base": BASE, "child": "extends: base.yaml\n\nbatch: {tokns: 3}\n"},
         r"child.yaml, line 3: batch.tokns: unknown key \(did you mean 'tokens'\?\)"),
        ({"base": BASE, "child": "extends: base.yaml\nseed: 3\nbudget: {}\n"},
         "child.yaml, line 3: budget: {} changes nothing of what it is laid over"),
        ({"base": BASE, "child": "extends: base.yaml\nbatch: 3\n"}, "child.yaml, line 2: batch: expected a section"),
        ({"base": BASE, "child": "extends: base.yaml\nbudget: {epochs: 2}\n"}, "child.yaml: budget: give either"),
        ({"base": BASE + "variants: {wide: {}}\n", "child": "extends: wide.yaml\n"},
         "base.yaml, line 10: variants: expected names with the keys that differ"),
        ({"base": BASE + "variants:\n  wide:\n    batch: {tokns: 3}\n", "child": "extends: wide.yaml\n"},
         r"base.yaml, line 12: batch.tokns: unknown key \(did you mean 'tokens'\?\)"),
        ({"child": BASE + "variants: {wide: {seed: 3}}\n"}, "child.yaml, line 10: variants: unknown key"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, recipes, message):
    with pytest.raises(UserError, match=message):
        read_recipe(write(tmp_path, **recipes))
