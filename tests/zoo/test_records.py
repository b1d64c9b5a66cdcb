"""The records at the root, modeling/<stem>.json, training/<stem>.yaml, model_cards/<stem>.md: in step and loadable."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from transformers import AutoConfig

from hf_mlnmt.model_folder import auto_class_of_config
from hf_mlnmt.recipe.reading import read_recipe

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"modeling": ".json", "training": ".yaml", "model_cards": ".md"}
STEMS = sorted(path.name.removesuffix(".json") for path in (ROOT / "modeling").glob("*.json"))


def test_every_stem_has_its_three_files():
    stems = {
        folder: {path.name.removesuffix(suffix) for path in (ROOT / folder).glob(f"*{suffix}")}
        for folder, suffix in KINDS.items()
    }
    assert stems["modeling"] == stems["training"] == stems["model_cards"]
    assert stems["modeling"], "no records found"


@pytest.mark.parametrize("folder", KINDS)
def test_record_folders_hold_no_python(folder: str):
    assert not list((ROOT / folder).rglob("*.py")), "a wheel must not install a package of this name"


@pytest.mark.parametrize("stem", STEMS)
def test_record_builds_its_model(stem: str):
    config = AutoConfig.from_pretrained(ROOT / "modeling" / f"{stem}.json")
    import torch

    with torch.device("meta"):
        model = getattr(transformers, auto_class_of_config(config.to_dict())).from_config(config)
    assert model.num_parameters() > 0
    assert config.architectures == [type(model).__name__]


@pytest.mark.parametrize("stem", STEMS)
def test_recipe_reads_and_names_its_record(stem: str):
    recipe = read_recipe(ROOT / "training" / f"{stem}.yaml")
    assert recipe.stem == stem
    assert recipe.model.record in (stem, None)
