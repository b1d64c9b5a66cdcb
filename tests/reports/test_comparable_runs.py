"""Which runs may stand in one comparison: what may differ, what is told, what is refused and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.finished_runs import FEW, NAMES, OUTPUTS, SECOND, write_run

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation.outputs import kind_of
from hf_mlnmt.reports.comparison import add_runs, read_comparison
from hf_mlnmt.reports.comparison_page import page_of


def config_of(folder: Path, **fields: Any) -> Path:
    (folder / "average" / "config.json").write_text(json.dumps({"d_model": 16, "model_type": "b", **fields}))
    return folder


def test_methods_may_differ_in_all_but_what_they_are_tested_on(runs, tmp_path):
    other = {"recipe__batch__tokens": 8, "budget__steps": 20, "data__name": "more", "recipe__init_from": "text/best"}
    other |= {"made_by": ["searched with hf-mlnmt model fuse"]}
    folders = [runs / "base", write_run(tmp_path / "a", "a", **other)]
    with pytest.raises(UserError, match="not comparable"):
        add_runs(folders, tmp_path / "toy", runs / "data", **FEW)
    add_runs(folders, tmp_path / "toy", runs / "data", methods=True, **FEW)
    later = write_run(tmp_path / "b", "b", budget__steps=30)
    add_runs([later], tmp_path / "toy", runs / "data", **FEW)  # the folder knows what it compares
    page = (tmp_path / "toy" / "README.md").read_text()
    row = f"- `{NAMES['a']}` (20 steps): batch.tokens (8; baseline 7); init_from (text/best; baseline None); searched"
    assert row in page
    assert "same recipe" not in page
    assert page == page_of(tmp_path / "toy")
    for key, value in {"decoding__beams": 3, "recipe__data__test__test__files__source": "other.en"}.items():
        with pytest.raises(UserError, match=key.split("__")[-1]):
            add_runs([write_run(tmp_path / key, "b", **{key: value})], tmp_path / "toy", runs / "data", **FEW)


def test_the_seeds_of_a_method_may_be_made_of_other_folders(runs, tmp_path):
    """A fused model of each seed's translation model."""
    folders = [runs / "base", write_run(tmp_path / "base2", "base", SECOND["base"], seed=2, recipe__seed=2)]
    for seed in (1, 2):
        made_of = {"fuse": {"translation": f"runs/base.seed{seed}"}}
        changes = {"seed": seed, "recipe__seed": seed, "recipe__model": made_of}
        folders.append(write_run(tmp_path / f"a{seed}", "a", (OUTPUTS, SECOND)[seed - 1]["a"], **changes))
    add_runs(folders, tmp_path / "toy", runs / "data", methods=True, **FEW)
    assert sorted(read_comparison(tmp_path / "toy").runs[NAMES["a"]]) == [1, 2]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"recipe__seed": 2}, r"recipe.seed \(2; baseline 1\)"),
        ({"budget__steps": 20}, r"budget.steps \(20; baseline 10\)"),
        ({"budget__target_tokens": 98}, "budget.target_tokens"),
        ({"data": {"name": "other"}}, "data.name"),
        ({"recipe__batch": {"tokens": 8}}, r"recipe.batch.tokens \(8; baseline 7\)"),
    ],
)
def test_what_is_not_comparable_is_refused_and_named(runs, tmp_path, change, field):
    other = write_run(tmp_path / "b", "b", **change)
    with pytest.raises(UserError, match=field):
        add_runs([runs / "base", other], tmp_path / "out", runs / "data", **FEW)
    assert not (tmp_path / "out").exists()


def test_versions_and_sizes_are_told(runs, tmp_path):
    other = write_run(tmp_path / "b", "b", versions={"torch": "3"}, recipe__model={"settings": {"kernel_size": 3}})
    config_of(other, d_model=32, kernel_size=3)
    said: list[str] = []
    add_runs([runs / "base", other], tmp_path / "out", runs / "data", said.append, **FEW)
    assert "versions.torch (3; baseline 2)" in said[1]
    assert said[0] == f"note: {NAMES['b']}: config.d_model (32; baseline 16)"


def test_what_else_the_baselines_model_has_is_the_same(runs, tmp_path):
    base = config_of(write_run(tmp_path / "base", "base"), dropout=0.1)
    other = config_of(write_run(tmp_path / "b", "b"), dropout=0.3)
    with pytest.raises(UserError, match=r"config.dropout \(0.3; baseline 0.1\)"):
        add_runs([base, other], tmp_path / "out", runs / "data", **FEW)


@pytest.mark.parametrize(
    ("change", "fields", "named"),
    [
        ({"parameters": 7}, {}, r"parameters \(7; there 1234567\)"),
        ({"recipe__model": {"settings": {"kernel_size": 3}}}, {}, r"recipe.model.settings.kernel_size \(3; there None"),
        ({}, {"d_model": 32}, r"config.d_model \(32; there 16\)"),
    ],
)
def test_the_seeds_of_a_system_are_of_one_model(runs, tmp_path, change, fields, named):
    one = config_of(write_run(tmp_path / "b", "b"))
    two = config_of(write_run(tmp_path / "b2", "b", seed=2, **change), **fields)
    with pytest.raises(UserError, match=named):
        add_runs([runs / "base", one, two], tmp_path / "out", runs / "data", **FEW)


def test_a_key_that_came_later_has_its_default(runs, tmp_path):
    """Runs of an older version lack it; another value than the default is a difference still."""
    same, another = (write_run(tmp_path / f"{value}", "a", recipe__reverse=value) for value in (False, True))
    add_runs([runs / "base", same], tmp_path / "out", runs / "data", **FEW)
    with pytest.raises(UserError, match=r"recipe\.reverse \(True; baseline False\)"):
        add_runs([runs / "base", another], tmp_path / "out2", runs / "data", **FEW)


def test_what_lies_in_a_folder_says_what_it_is(runs, compared, tmp_path):
    """A fused model is kept with its translations, as a run is; a run's model has a results file, too."""
    model = runs / "base" / "average"
    fused = shutil.copytree(runs / "base", tmp_path / "fused")
    shutil.copyfile(model / "config.json", fused / "config.json")
    (tmp_path / "model").mkdir()
    for name in (model / "config.json", runs / "base" / "results.json", runs / "base" / "recipe.yaml"):
        shutil.copyfile(name, tmp_path / "model" / name.name)
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "recipe.yaml").write_text("seed: 1\n")
    of_kind = {
        "run": [runs / "base", fused, tmp_path / "later"],
        "outputs": [model, tmp_path / "model", runs / "data" / "test.de", "someone/on-the-hub"],
        "comparison": [compared, compared / "comparison.json"],
        "results": [compared / f"{NAMES['a']}.seed1.json"],
    }
    for kind, paths in of_kind.items():
        assert [kind_of(path) for path in paths] == [kind] * len(paths)
