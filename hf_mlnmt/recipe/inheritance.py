"""A recipe that extends another: `extends: transformer.multi30k-ende.yaml`, then only what is different.

Sections are laid over those of the other recipe key by key; everything else, lists and corpora too, takes its place.
A value that may be missing is taken away with `null`: `budget: {steps: null, epochs: 3}`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.recipe.building import Lines, build, load_yaml
from hf_mlnmt.zoo.records import record_path, stems

KEY = "extends"
# Laid over one another these would be neither corpus: files of the one, data set of the other.
CORPORA = {("data", "train"), ("data", "dev"), ("data", "test"), ("objective",)}
OF_TASKS = ("data", "dev", "objective")  # the same holds for these of a task


def load(path: Path, kind: type, above: tuple[Path, ...] = ()) -> tuple[dict[str, Any], Lines]:
    """The content of a recipe over that of the one it extends, and the line of each of its own keys.

    Args:
        kind: the dataclass of a whole recipe; every recipe that is extended must be one by itself.
        above: the recipes that extend this one.

    Raises: UserError as load_yaml, and for a recipe that is not there, is wrong, or extends itself.
    """
    content, lines = load_yaml(path)
    if KEY not in content:
        return content, lines
    named, where = content.pop(KEY), f"{path}, line {lines[(KEY,)]}: {KEY}"
    base = _find(named, path, where)
    chain = (*above, path.resolve())
    if base.resolve() in chain:
        raise UserError(f"{where}: {named} extends this recipe in turn. Let one of them hold all keys.")
    below, base_lines = load(base, kind, chain)
    build(kind, below, str(base), lines=base_lines, hidden={"path"})  # its errors name its own lines
    return lay_over(below, content), lines


def _find(named: Any, path: Path, where: str) -> Path:
    """The file beside `path`, else the record of that name."""
    if not isinstance(named, str):
        raise UserError(f"{where}: expected the name of a recipe beside this one, or of a record; not {named!r}.")
    if (beside := path.parent / named).is_file():
        return beside
    if named.removesuffix(".yaml") in stems():
        return record_path("training", named)
    known = [*(other.name for other in sorted(path.parent.glob("*.yaml")) if other != path), *stems()]
    raise UserError(
        f"{where}: there is no {beside}, and no record of that name{suggest(named, known)}. "
        "Give the name of a recipe beside this one, or of a record."
    )


def lay_over(below: dict[str, Any], content: dict[str, Any], at: tuple[str, ...] = ()) -> dict[str, Any]:
    """`below` with the keys of `content` in their place, as one recipe extends another."""
    merged = dict(below)
    for key, value in content.items():
        inner, here = merged.get(key), (*at, key)
        whole = here in CORPORA or (here[0] == "tasks" and len(here) == 3 and key in OF_TASKS)
        if isinstance(inner, dict) and isinstance(value, dict) and not whole:
            merged[key] = lay_over(inner, value, here)
        else:
            merged[key] = value
    return merged
