"""`make records`: the configs modeling/<setup>/<system>.json and the cards model_cards/<setup>/<system>.md.

    python studies/records.py
    python studies/records.py --check

Of every model that was trained here as its recipe says: those with results/<system>.<setup>.json, or, from a sweep over
the systems of a setup, results/<setup>/<system>.<setup>.seed<n>.json. The recipes, training/, are written by hand.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from claims import comparisons

from hf_mlnmt.common.files import write_text
from hf_mlnmt.evaluation.comparison import read_comparison
from hf_mlnmt.recipe.reading import Recipe, find_recipe, read_recipe
from hf_mlnmt.reports import Facts, build_card
from hf_mlnmt.reports.facts import languages_of_results, load_results
from hf_mlnmt.training.model_making import config_of_recipe
from hf_mlnmt.training.preflight import expected_tokenizers
from hf_mlnmt.zoo.records import BASELINE, records_root, results_of, setups
from hf_mlnmt.zoo.systems import find_system


def recipe_of(setup: str, system: str) -> Recipe:
    """What `hf-mlnmt train <setup> --system <system>` trains."""
    return read_recipe(*find_recipe(setup, system))


def config_of(recipe: Recipe, **fields: Any) -> Any:
    """The config of its model, with vocabularies of the recipe's size. fields: that replace the recipe's.

    Vocabularies of a tokenizer that is taken from elsewhere are not known.
    """
    recipe.model.settings |= fields
    return config_of_recipe(recipe, expected_tokenizers(recipe), records_root(), lambda text: None)  # type: ignore[arg-type]


def setup_and_system(name: str) -> tuple[str, str] | None:
    """Returns (setup, system) of the name of a run, <system>.<setup>; None for any other name."""
    system, _, setup = name.partition(".")
    return (setup, system) if setup in setups() else None


def trained_here(root: Path) -> Iterator[tuple[str, str]]:
    """(setup, system) of every model with results."""
    names = {re.sub(r"\.seed\d+$", "", path.stem) for path in (root / "results").rglob("*.json")}
    for setup, system in sorted(filter(None, map(setup_and_system, names))):
        if results_of(setup, system, root):
            yield setup, system


def model_class_of(recipe: Recipe) -> Any:
    """The class of its model."""
    return find_system(str(recipe.model.system)).architecture.head_class


def config_text(recipe: Recipe) -> str:
    """The fields of our config classes, sorted, and the model's class."""
    from hf_mlnmt.modeling.configuration import StackConfig

    config = config_of(recipe)
    ours = [kind for kind in type(config).__mro__ if issubclass(kind, StackConfig)]
    names = {name for kind in ours for name in inspect.get_annotations(kind)} | {"model_type"}
    content = {name: value for name, value in sorted(config.to_dict().items()) if name in names}
    content["architectures"] = [model_class_of(recipe).__name__]
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def training_command(setup: str, system: str) -> str:
    """Returns the command that trains it."""
    return f"hf-mlnmt train {setup}" + ("" if system == BASELINE else f" --system {system}")


def card(setup: str, system: str, root: Path) -> str:
    """The card of a model that was trained here and is not published."""
    recipe, paths = recipe_of(setup, system), results_of(setup, system, root)
    results, config = [load_results(path) for path in paths], config_of(recipe)
    compared = [folder for folder in comparisons(root) if any(folder.glob(f"{recipe.stem}.seed*.json"))]
    return build_card(
        Facts(
            name=recipe.stem,
            config=config,
            model_class=model_class_of(recipe),
            results=results,
            languages=languages_of_results(results[0]),
            codes=tuple(recipe.tokenizer.languages),
            domain=recipe.data.domain,
            datasets=tuple(recipe.data.datasets),
            own_budget=recipe.to_dict()["budget"],
            comparisons={folder.name: read_comparison(folder, only=recipe.stem) for folder in compared},
            train=training_command(setup, system),
        )
    )


def records(root: str | Path | None = None) -> dict[Path, str]:
    """The files as they should be."""
    folder, found = Path(root) if root is not None else records_root(), {}
    for setup, system in trained_here(folder):
        found[folder / "modeling" / setup / f"{system}.json"] = config_text(recipe_of(setup, system))
        found[folder / "model_cards" / setup / f"{system}.md"] = card(setup, system, folder)
    return found


def stale(root: str | Path | None = None) -> dict[Path, str | None]:
    """Those that are missing or otherwise, with what they should hold; and what should not be there, with None."""
    folder, wanted = Path(root) if root is not None else records_root(), records(root)
    there = {*folder.glob("modeling/*/*.json"), *folder.glob("model_cards/*/*.md")}
    wrong = {path: text for path, text in wanted.items() if path not in there or path.read_text("utf-8") != text}
    return {**wrong, **dict.fromkeys(there - wanted.keys())}


def main(words: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 and name stale records")
    check, wrong = parser.parse_args(words).check, stale()
    names = ", ".join(sorted(path.relative_to(records_root()).as_posix() for path in wrong))
    if check:
        if wrong:
            print(f"stale: {names}. Make them anew with `make records`.", file=sys.stderr)
        return int(bool(wrong))
    for path, text in wrong.items():
        if text is None:
            path.unlink()
        else:
            write_text(path, text)
    print(f"made anew: {names or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
