"""What `hf-mlnmt train <setup> --system <system>` names, and the files in training/, modeling/ and model_cards/."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.recipe.reading import find_recipe, read_recipe, recipes_beside
from hf_mlnmt.training.model_making import config_of_recipe
from hf_mlnmt.training.preflight import expected_tokenizers
from hf_mlnmt.zoo.records import BASE, run_name, setups, trained
from hf_mlnmt.zoo.systems import SYSTEMS, architecture_of, find_system

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "training").glob("*/*.yaml"))
BASES = [path for path in FILES if path.name == BASE]
RECIPES = [*BASES, *(base.with_name(f"{name}.yaml") for base in BASES for name in recipes_beside(base))]


def names() -> dict[str, list[str]]:
    """{setup: its systems and ways of training} of all recipes; the older ones were called <system>.<setup> before."""
    text = (Path(__file__).parent / "names.txt").read_text(encoding="utf-8").replace("\n  ", " ")
    return {setup: systems.split() for setup, systems in (line.split(": ") for line in text.splitlines())}


def config_of(recipe):
    return config_of_recipe(recipe, expected_tokenizers(recipe), ROOT, lambda text: None)


def test_no_name_is_forgotten():
    assert sum(map(len, names().values())) == 279
    assert sorted(names()) == setups()


@pytest.mark.parametrize("setup", names())
def test_every_name_is_trained_by_one_command(setup):
    """A system without a recipe of its own is trained like the baseline; it and all others have a model."""
    base = read_recipe(ROOT / "training" / setup / BASE)
    for system in names()[setup]:
        recipe = read_recipe(*find_recipe(setup, system))
        assert recipe.stem == f"{system}.{setup}"
        if recipe.path.name == BASE:
            assert {**recipe.to_dict(), "model": None} == {**base.to_dict(), "model": None}
            assert recipe.model.settings == base.model.settings
            assert recipe.model.system == system
        if recipe.model.fuse is None:
            config = config_of(recipe)
            if system in SYSTEMS:
                wanted = find_system(system)
                assert architecture_of(config) is wanted.architecture
                assert {name: getattr(config, name) for name in wanted.fields} == wanted.fields


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_of_its_own_is_there_for_a_reason(path):
    """It, a file or a variant, says more than the name of a system of the zoo."""
    recipe = read_recipe(path)
    if path.name == BASE:
        assert recipe.model.system in SYSTEMS
        assert recipe.to_dict() == read_recipe(*find_recipe(path.parent.name, recipe.model.system)).to_dict()
    elif path.stem in SYSTEMS:
        other = read_recipe(path.with_name(BASE), [f"model.system={path.stem}"])
        assert recipe.to_dict() != other.to_dict()


def test_variants():
    def config(setup, system):
        return config_of(read_recipe(*find_recipe(setup, system)))

    assert config("multi30k-ende", "transformer-deep").encoder_layers == 7
    assert config("wmt14-ende", "transformer-deep").decoder_layers == 10
    assert config("wmt14-ende", "transformer-wide").encoder_ffn_dim == 4096
    assert config("wmt14-ende", "m-10-top-3").attended_layers == 3
    assert [config(setup, "enc-dc").encoder_ffn_dim for setup in ("iwslt-envi", "wmt14-ende")] == [512, 2048]
    assert config("iwslt-envi", "m-00").encoder_ffn_dim == 1024


def test_a_folder_of_ones_own_is_a_setup(tmp_path):
    base = tmp_path / "training" / "mine-ende" / BASE
    base.parent.mkdir(parents=True)
    base.write_text("extends: multi30k-ende\nseed: 5\n")
    base.with_name("large.yaml").write_text("extends: base.yaml\nmodel: {shape: base}\n")
    names = (None, "m-10", "large", "deep")
    with base.open("a") as file:
        file.write("variants:\n  deep: {model: {settings: {encoder_layers: 9}}}\n")
    recipes = {system: read_recipe(*find_recipe(base.parent, system)) for system in names}
    called = [f"{system}.mine-ende" for system in ("transformer", "m-10", "large", "deep")]
    assert [recipe.stem for recipe in recipes.values()] == called
    assert {recipe.seed for recipe in recipes.values()} == {5}
    assert (recipes["m-10"].model.shape, recipes["large"].model.shape) == ("tiny", "base")
    assert recipes["deep"].model.settings == {**recipes[None].model.settings, "encoder_layers": 9}
    deeper = base.with_name("deeper.yaml")
    deeper.write_text("extends: deep.yaml\nmodel: {settings: {decoder_layers: 8}}\n")
    assert read_recipe(deeper).model.settings == {**recipes["deep"].model.settings, "decoder_layers": 8}
    for path in (base.parent.parent / "mine.yaml", tmp_path / "base.yaml"):
        assert run_name(path, "m-10") == path.stem
    alone = tmp_path / "alone.yaml"
    alone.write_text("extends: multi30k-ende\n")
    assert read_recipe(*find_recipe(alone, "m-10")).model.system == "m-10"


@pytest.mark.parametrize(
    ("name", "system", "message"),
    [
        ("multi30k-ened", None, r"no setup of that name \(did you mean 'multi30k-ende'\?\)\. Setups: demo-ende, "),
        ("nowhere.yaml", None, "nowhere.yaml: no such file"),
        ("multi30k-ende", "m10", r"system 'm10' is unknown \(did you mean 'm-10'\?\).* ms-<layers>"),
        ("multi30k-ende", "transformer-dep", r"did you mean 'transformer-deep'\?\); recipes of the setup: .*-deep, "),
        ("multi30k-ende", "base", "system 'base' is unknown"),
    ],
)
def test_mistakes_are_named(name, system, message):
    with pytest.raises(UserError, match=message):
        find_recipe(name, system)


def test_the_command(tmp_path):
    """The recipe of a setup's system is read: the first thing that is missing is its data."""
    for words, message in (
        (["multi30k-ende", "--system", "m-10"], "train.en.gz: no such file"),
        (["multi30k-ende", "--system", "m10"], "did you mean 'm-10'"),
    ):
        result = CliRunner().invoke(app, ["train", *words, "--data", str(tmp_path), "--output", str(tmp_path / "run")])
        assert isinstance(result.exception, UserError)
        assert message in str(result.exception)


def test_a_config_and_a_card_of_every_trained_model():
    cards = {path.relative_to(ROOT / "model_cards").with_suffix("").as_posix(): path
             for path in (ROOT / "model_cards").glob("*/*.md")}  # fmt: skip
    assert sorted(cards) == trained()
    assert len(FILES) + 2 * len(cards) <= 180
    for path in cards.values():
        text = path.read_text(encoding="utf-8")
        assert "model-index" in text
        assert "not recorded" not in text.split("## Training\n")[1].split("## Scores")[0]


@pytest.mark.parametrize("name", trained())
def test_a_config_builds_its_model(name):
    import transformers
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(ROOT / "modeling" / f"{name}.json")
    with torch.device("meta"):
        model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    assert config.architectures == [type(model).__name__]
