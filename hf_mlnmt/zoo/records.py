"""The places of this project's recipes and records, in a checkout or a wheel, and the recipe of a setup and a system.

| file | what |
| --- | --- |
| training/<setup>/base.yaml | a setup: how every system is trained on one corpus; by itself, the baseline's recipe |
| training/<setup>/<system>.yaml | the recipe of a system, or of a way of training, that differs in more than its name |
| modeling/<setup>/<system>.json | the config of a model that was trained here |
| model_cards/<setup>/<system>.md | its card, with the scores of its seeds |

A folder training/<setup>/ with a base.yaml of a user's own is a setup too.
"""

from __future__ import annotations

from pathlib import Path

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.zoo.systems import find_system, list_systems

BASE = "base.yaml"
BASELINE = "transformer"


def records_root() -> Path:
    """Returns the folder of modeling/, training/ and model_cards/: inside an installed wheel, else the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "records"
    return installed if installed.is_dir() else package.parent


def setups() -> list[str]:
    """Returns the names of this project's setups."""
    return sorted(path.parent.name for path in (records_root() / "training").glob(f"*/{BASE}"))


def trained(root: Path | None = None) -> list[str]:
    """Returns the names <setup>/<system> of all records below `root`, by default this project's own."""
    folder = (root or records_root()) / "modeling"
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.json"))


def project_recipe(name: str | Path) -> Path | None:
    """Returns this project's file of <setup> or <setup>/<system>, with or without .yaml; None for any other name."""
    path = records_root() / "training" / name
    return next((file for file in (path / BASE, path, path.parent / f"{path.name}.yaml") if file.is_file()), None)


def find_recipe(name: str | Path, system: str | None = None) -> tuple[Path, list[str]]:
    """Returns the recipe of `hf-mlnmt train <name> --system <system>`, and the settings that it is read with.

    Args:
        name: a recipe's file, a folder with a base.yaml, or one of this project's setups.
        system: what is trained in it: the setup's own recipe of that name where there is one, else a system of the
            zoo, by the settings, in the place of the recipe's own.

    Raises: UserError naming the nearest setup or system.
    """
    path = next((file for file in (Path(name), Path(name) / BASE) if file.is_file()), None) or project_recipe(name)
    if path is None:
        known = setups()
        raise UserError(
            f"{name}: no such file, and no setup of that name{suggest(str(name), known)}. Setups: {', '.join(known)}."
        )
    if system is None:
        return path, []
    if path.name == BASE and (own := path.with_name(f"{system}.yaml")) != path and own.is_file():
        return own, []
    try:
        find_system(system)
    except UserError as error:
        beside = sorted(file.stem for file in path.parent.glob("*.yaml") if path.name == BASE and file != path)
        there = f" recipes of the setup: {', '.join(beside)};" if beside else ""
        raise UserError(
            f"{name}: system '{system}' is unknown{suggest(system, [*beside, *list_systems()])};{there} systems of the "
            f"zoo: {', '.join(list_systems())}, ms-<layers>"
        ) from error
    return path, [f"model.system={system}"]


def run_name(path: Path, system: str | None) -> str:
    """Names the runs of a recipe: in training/<setup>/ <system>.<setup>, anywhere else as its file.

    system: of the recipe's model; the name of base.yaml, which may be any system's.
    """
    path = path.resolve()
    if path.parent.parent.name != "training" or not path.with_name(BASE).is_file():
        return path.stem
    return f"{system if system and path.name == BASE else path.stem}.{path.parent.name}"
