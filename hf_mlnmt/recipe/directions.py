"""Recipes of many languages: `directions:` is short for a task for each pair of languages, with its own test sets.

directions:
  between: [cs, de, en, fr]
  train: train.<language>.gz  #  line i of one translates line i of every other
  dev: val.<language>.gz
  test: {flickr2016: test_2016_flickr.<language>.gz}
  pairs: all                    # or to-en, from-en, with-en (both), or a list: [de-en, en-de]
  leave_out: [de-fr]            # both directions: not trained, and tested all the same (zero-shot)
  copies: true                  # also en -> en and so on, of the same corpus
"""

from __future__ import annotations

import itertools
from typing import Any

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.recipe.schema import Directions, Languages, Recipe, TaskSection

PLACE = "<language>"


def expand(recipe: Recipe) -> None:
    """Put the tasks and test sets that `directions` stands for into the recipe, in its place.

    Raises: UserError naming the field.
    """
    directions, where = recipe.directions, f"{recipe.path}: directions"
    if directions is None:
        return
    if recipe.tasks is not None or recipe.data.train is not None or recipe.data.dev is not None:
        raise UserError(f"{where}: takes the place of tasks, data.train and data.dev: give one or the other.")
    _check(directions, where)
    trained = trained_pairs(directions, where)
    copied = list(dict.fromkeys(itertools.chain(*trained))) if directions.copies else []
    recipe.tasks = {}
    for source, target in [*trained, *((language, language) for language in copied)]:
        name = f"{source}-{target}"
        recipe.tasks[name] = TaskSection(
            _files(directions.train, source, target),
            share=directions.shares.get(name, 1.0),
            languages=Languages(source, target),
            dev=_files(directions.dev, source, target) if directions.dev and source != target else None,
        )
    if unknown := [name for name in directions.shares if name not in recipe.tasks]:
        raise UserError(f"{where}.shares: there is no task {unknown[0]}{suggest(unknown[0], recipe.tasks)}.")
    sources, targets = (dict.fromkeys(task.split("-")[side] for task in recipe.tasks) for side in (0, 1))
    for name, pattern in directions.test.items():
        for source, target in itertools.product(sources, targets):
            if source != target:
                languages = {"source": source, "target": target}
                corpus = {**_files(pattern, source, target), "languages": languages}
                recipe.data.test[f"{name}.{source}-{target}"] = corpus
    recipe.directions = None


def trained_pairs(directions: Directions, where: str) -> list[tuple[str, str]]:
    """The ordered pairs of two languages that are trained."""
    every = list(itertools.permutations(directions.between, 2))
    kind = directions.pairs
    if isinstance(kind, list):
        found = [_pair(name, directions, f"{where}.pairs") for name in kind]
    elif kind == "all":
        found = every
    else:
        how, _, language = kind.partition("-")
        if how not in ("to", "from", "with") or language not in directions.between:
            raise UserError(
                f"{where}.pairs: {kind!r} is none of all, to-X, from-X and with-X, X one of "
                f"{', '.join(directions.between)}, and no list of pairs."
            )
        sides = {"to": (1,), "from": (0,), "with": (0, 1)}[how]
        found = [pair for pair in every if any(pair[side] == language for side in sides)]
    left = {frozenset(_pair(name, directions, f"{where}.leave_out")) for name in directions.leave_out}
    found = [pair for pair in found if frozenset(pair) not in left]
    if not found:
        raise UserError(f"{where}: no pair of languages is left to train.")
    return found


def _check(directions: Directions, where: str) -> None:
    if len(set(directions.between)) < max(2, len(directions.between)):
        raise UserError(f"{where}.between: give at least two languages, each once, not {directions.between}.")
    if bad := [code for code in directions.between if "-" in code or not code.isalnum()]:
        raise UserError(f"{where}.between: {bad[0]!r}: a code of letters and digits is expected, as in task names.")
    for key, pattern in {"train": directions.train, "dev": directions.dev, **directions.test}.items():
        if pattern is not None and PLACE not in pattern:
            raise UserError(f"{where}: {key}: {pattern!r} has no {PLACE}, which stands for the language.")


def _pair(name: str, directions: Directions, where: str) -> tuple[str, str]:
    source, _, target = name.partition("-")
    if source == target or not {source, target} <= set(directions.between):
        raise UserError(
            f"{where}: {name!r}: expected two of {', '.join(directions.between)}, as "
            f"{directions.between[0]}-{directions.between[1]}."
        )
    return source, target


def _files(pattern: str, source: str, target: str) -> dict[str, Any]:
    return {"files": {"source": pattern.replace(PLACE, source), "target": pattern.replace(PLACE, target)}}
