"""Recipes: how a model is trained, as a YAML file that is checked key by key before anything begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hf_mlnmt.errors import UserError
from hf_mlnmt.recipe.building import Lines, build
from hf_mlnmt.recipe.checks import check
from hf_mlnmt.recipe.directions import expand
from hf_mlnmt.recipe.inheritance import load
from hf_mlnmt.recipe.reversal import turn_round
from hf_mlnmt.recipe.schema import Recipe
from hf_mlnmt.recipe.task_checks import check_tasks, dev_names, translates


def read_recipe(path: str | Path, settings: list[str] | tuple[str, ...] = (), seed: int | None = None) -> Recipe:
    """Read and check a recipe.

    Args:
        path: a YAML file. Its key `extends` names another, whose keys hold wherever it has none (inheritance.py).
        settings: "key.sub=value" strings that replace keys; values are read as YAML.
        seed: replaces the recipe's.

    Raises:
        UserError: naming file, line and key, what was expected, and the nearest right key.
    """
    content, lines = read_content(path, settings, seed)
    turn_round(content)
    return recipe_of(content, Path(path), lines)


def read_content(
    path: str | Path, settings: list[str] | tuple[str, ...] = (), seed: int | None = None
) -> tuple[dict[str, Any], Lines]:
    """What a recipe's YAML says, with `settings` and `seed` in their place; and the line of each key."""
    content, lines = load(Path(path), Recipe)
    for setting in settings:
        _apply(content, setting)
    if seed is not None:
        content["seed"] = seed
    return content, lines


def recipe_of(content: dict[str, Any], path: Path, lines: Lines | None = None) -> Recipe:
    """The recipe that a YAML's content says, checked; `path` is its place, for messages and for its records."""
    recipe = build(Recipe, content, str(path), lines=lines, hidden={"path"})
    recipe.path = path
    expand(recipe)
    if recipe.model.add_to is not None and recipe.tokenizer.path is None:
        recipe.tokenizer.path = recipe.model.add_to
    if not any(translates(recipe, name) for name in dev_names(recipe)):
        recipe.evaluation.metrics = []
        if "best" not in (content.get("evaluation") or {}):
            recipe.evaluation.best = "loss"
    if recipe.model.fuse is not None and recipe.tokenizer.path is None:
        first = recipe.model.fuse.translation
        recipe.tokenizer.path = first if isinstance(first, str) else first[0] if first else None
    check_tasks(recipe)
    check(recipe)
    return recipe


def _apply(content: dict[str, Any], setting: str) -> None:
    """Put one "key.sub=value" into the content."""
    name, equals, text = setting.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--set {setting}: expected key=value or key.sub=value, as in --set batch.tokens=2048.")
    *outer, last = name.strip().split(".")
    for key in outer:
        inner = content.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {setting}: '{key}' is a value, not a section with keys of its own.")
        content = inner
    try:
        content[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set {setting}: the value is not valid YAML ({error}).") from error
