"""Finds this project's recipes and its records of trained models, in a checkout or a wheel.

| file | content |
| --- | --- |
| training/<setup>/base.yaml | a setup: how every system is trained on one corpus; by itself, the baseline's recipe |
| `variants` in base.yaml | recipes of the setup that differ from it in a few keys: name -> these keys |
| training/<setup>/<system>.yaml | the recipe of a system, or of a way of training, that differs in more |
| modeling/<setup>/<system>.json | the config of a model that was trained here |
| results/, results/<setup>/ | the model's results files, one for each seed; only in a checkout |
| model_cards/<setup>/<system>.md | the model's card, with the scores of its seeds; only in a checkout |

A folder training/<setup>/ with a base.yaml of a user's own is a setup too.
"""

from __future__ import annotations

import re
from pathlib import Path

BASE = "base.yaml"
BASELINE = "transformer"


def records_root() -> Path:
    """Returns the folder that contains modeling/ and training/: in an installed wheel, else the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "records"
    return installed if installed.is_dir() else package.parent


def setups() -> list[str]:
    """Returns the names of this project's setups: the folders in training/ with a base.yaml."""
    return sorted(path.parent.name for path in (records_root() / "training").glob(f"*/{BASE}"))


def trained() -> list[str]:
    """Returns the names <setup>/<system> of all models trained here, whose configs are in modeling/."""
    folder = records_root() / "modeling"
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.json"))


def results_of(setup: str, system: str, root: Path | None = None) -> list[Path]:
    """Returns the results files of a model that was trained here, ordered by seed; [] in a wheel, which has none."""
    name, results = f"{system}.{setup}", (root or records_root()) / "results"
    for folder in (results, results / setup):
        files = [
            path for path in folder.glob(f"{name}*.json") if re.fullmatch(rf"{re.escape(name)}(\.seed\d+)?", path.stem)
        ]
        if files:
            return sorted(files, key=lambda path: (len(path.name), path.name))
    return []


def run_name(path: Path, system: str | None) -> str:
    """Returns the name of a recipe's runs: <file>.<setup> for a file in training/<setup>/, elsewhere the file's name.

    system: the recipe's system, which replaces the name of base.yaml; None: the file's name is used.
    """
    path = path.resolve()
    if path.parent.parent.name != "training" or not path.with_name(BASE).is_file():
        return path.stem
    return f"{system if system and path.name == BASE else path.stem}.{path.parent.name}"
