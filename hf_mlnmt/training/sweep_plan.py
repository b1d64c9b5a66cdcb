"""The runs of a sweep: every recipe with every combination of values and every seed, each with a folder of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

from hf_mlnmt.errors import UserError
from hf_mlnmt.training.recipe import Recipe, read_recipe
from hf_mlnmt.zoo.records import record_path

Order = Literal["values", "seeds"]
MOST = 10_000  # values of a range; more is a slip of the pen
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER}))?")


@dataclass(frozen=True)
class Job:
    """One training: a recipe, the keys replaced in it and the values of the point, and a seed."""

    name: str
    path: Path
    stem: str
    seed: int
    point: Mapping[str, Any]
    settings: tuple[str, ...] = field(default=())
    """What `--set` gets: those of the whole sweep, then the point's."""

    def recipe(self) -> Recipe:
        """Read and checked. UserError."""
        return read_recipe(self.path, self.settings, self.seed)


def plan(
    recipes: Sequence[str | Path],
    over: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    order: str = "values",
) -> list[Job]:
    """All runs, in the order in which they are started.

    Args:
        recipes: paths of recipes, or names of records.
        over: "key.sub=values" of read_values; several are combined, all with all.
        seeds: of each point; None: the recipe's own.
        settings: "key.sub=value" for all runs.
        order: "values" does every seed of a point before the next point, "seeds" every point with the first seed first.

    Raises: UserError for bad values, one key or recipe twice, and for recipes that are wrong at any of the points.
    """
    if order not in ("values", "seeds"):
        raise UserError(f"--order {order}: expected values or seeds.")
    axes = _axes(over)
    paths = [record_path("training", recipe) for recipe in recipes]
    _check_once([path.stem for path in paths], "recipe")
    _check_once([str(seed) for seed in seeds or ()], "seed")
    points = [dict(zip(axes, values)) for values in product(*axes.values())]
    jobs = [
        _job(path, point, seed, settings, list(axes))
        for path in paths
        for point in points
        for seed in seeds or [None]  # type: ignore[list-item]
    ]
    _check_once([job.name for job in jobs], "run")
    if order == "seeds" and seeds:
        jobs.sort(key=lambda job: list(seeds).index(job.seed))
    return jobs


def _job(path: Path, point: dict[str, Any], seed: int | None, settings: Sequence[str], keys: list[str]) -> Job:
    own = [f"{key}={as_yaml(value)}" for key, value in point.items()]
    everything = (*settings, *own)
    number = read_recipe(path, everything, seed).seed
    name = ".".join([path.stem, *(f"{_short(key, keys)}-{_in_a_name(point[key])}" for key in keys), f"seed{number}"])
    return Job(name, path, path.stem, number, point, everything)


def _axes(over: Sequence[str]) -> dict[str, list[Any]]:
    """{key: its values}"""
    axes: dict[str, list[Any]] = {}
    for text in over:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UserError(f"--over {text}: expected KEY=VALUES, as in --over model.settings.kernel_size=2..8.")
        if key == "seed":
            raise UserError(f"--over {text}: seeds have an option of their own, --seeds 1,2,3.")
        if key in axes:
            raise UserError(f"--over {key}: is given twice; give all its values at once.")
        axes[key] = read_values(values, f"--over {text}")
    return axes


def read_values(text: str, where: str = "values") -> list[Any]:
    """2..8 (whole numbers, both ends included), 0.1..0.5..0.1 (with a step), a,b,c, [1],[1,2] and mixtures of them.

    Values are read as YAML. Raises: UserError for none, broken ones, and a value twice.
    """
    values: list[Any] = []
    for piece in _split(text):
        match = _RANGE.fullmatch(piece)
        values += _range(match, where) if match else [_value(piece, where)]
    if not values:
        raise UserError(f"{where}: no values. Expected a range such as 2..8, or values such as 2,4,8.")
    _check_once([as_yaml(value) for value in values], f"{where}: value")
    return values


def _range(match: re.Match[str], where: str) -> list[Any]:
    whole = all(part is None or re.fullmatch(r"[+-]?\d+", part) for part in match.groups())
    if match[3] is None and not whole:
        raise UserError(f"{where}: {match[0]} needs a step, as in {match[0]}..0.1.")
    low, high, step = (float(part) for part in (match[1], match[2], match[3] or "1"))
    if step <= 0 or high < low:
        raise UserError(f"{where}: {match[0]} holds no number; expected LOW..HIGH with a step above 0.")
    count = math.floor((high - low) / step + 1e-9) + 1
    if count > MOST:
        raise UserError(f"{where}: {match[0]} holds {count:,} numbers; at most {MOST:,}.")
    if whole:
        return [int(match[1]) + number * int(match[3] or 1) for number in range(count)]
    return [float(f"{low + number * step:.12g}") for number in range(count)]


def _value(piece: str, where: str) -> Any:
    try:
        value = yaml.safe_load(piece)
    except yaml.YAMLError as error:
        raise UserError(f"{where}: {piece!r} is not valid YAML ({error}).") from error
    if isinstance(value, str) and re.fullmatch(_NUMBER, value):
        return float(value)  # 1e-3, which YAML 1.1 takes for text
    return value


def _split(text: str) -> Iterator[str]:
    """At the commas outside all brackets and quotes; nothing for an empty text."""
    depth, quote, piece = 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        depth += (letter in "[{") - (letter in "]}") if not quote else 0
        if letter == "," and not depth and not quote:
            yield piece.strip()
            piece = ""
        else:
            piece += letter
    if piece.strip():
        yield piece.strip()


def as_yaml(value: Any) -> str:
    """A value in one line, as `--set` reads it back."""
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()


def _short(key: str, keys: list[str]) -> str:
    """The last part of a key, where it tells it from the others."""
    last = key.rsplit(".", 1)[-1]
    return last if [other.rsplit(".", 1)[-1] for other in keys].count(last) == 1 else key


def _in_a_name(value: Any) -> str:
    text = re.sub(r"[^\w.+-]+", "-", as_yaml(value)).strip("-")
    return text or "none"


def _check_once(names: Sequence[str], what: str) -> None:
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise UserError(f"{what} {twice}: is there twice.")
