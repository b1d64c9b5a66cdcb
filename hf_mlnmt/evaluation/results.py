"""A results file, `results/<stem>.json`: what a system is, how it was made, its scores. Schema `hf_mlnmt.results/1`.

    {"schema", "system", "data", "seed", "budget", "command", "versions", "parameters", "steps_per_second", "decoding",
     "scores":       {test set: {protocol: {metric: {"score", "signature", "ci": [low, high] or null}}}},
     "outputs":      {test set: {protocol: {"sentences", "references", "empty_outputs", "empty_references",
                                            "length_ratio"}}}}

Stable: a key keeps its meaning for good, new keys may come, and keys that this version does not know are kept when a
file is read and written again. The number in the schema rises only if an old reader would misread a file.
"""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import Form, check_file, misfit, write_json
from hf_mlnmt.common.model_folder import RESULTS_SCHEMA
from hf_mlnmt.evaluation.scores import ProtocolName, Scores

if TYPE_CHECKING:
    from hf_mlnmt.evaluation.outputs import SystemOutput

SCHEMA = RESULTS_SCHEMA
_LARGEST, _LARGEST_SCORE = 1e15, 1e6  # nothing that is measured here comes near them
_COUNTED = ("steps", "epochs", "seconds", "cpu_minutes", "target_tokens", "processes")  # of a budget
FORM: Form = {
    "scores?": {...: {...: {...: {"score": float, "ci?": (None, [float, float]), "signature?": str}}}},
    "outputs?": {...: {...: dict}},
    "robustness?": {...: {"scores": {...: float}, "signature?": str, "seed?": int}},
    "budget?": (None, {f"{name}?": (None, float) for name in _COUNTED}),
    "seed?": (None, int),
    "parameters?": (None, int),
    "data?": (None, str, {"train?": (None, str, dict, list)}),
    "languages?": {"source?": (None, str), "target?": (None, str)},
    **dict.fromkeys(("versions?", "decoding?", "significance?", "recipe?"), dict),
}
PACKAGES = ("torch", "transformers", "tokenizers", "sacrebleu", "sacremoses")
installed = functools.cache(metadata.version)  # which parses a file


@dataclass
class Results:
    """The results file of one system. Fields that nobody has measured stay None and are written as null."""

    system: str
    data: Any = None
    seed: int | None = None
    budget: Any = None
    command: str | None = None
    versions: dict[str, str] = field(default_factory=lambda: versions())
    parameters: Any = None
    steps_per_second: float | None = None
    decoding: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    """Keys that this version does not know."""

    def add_scores(self, test_set: str, scores: Mapping[ProtocolName, Scores]) -> None:
        """Adds the scores of a test set; replaces those of the same test set and protocol."""
        for protocol, value in scores.items():
            if value.protocol != protocol:
                raise ValueError(f"scores of protocol {value.protocol!r} filed under {protocol!r}")
            self.scores.setdefault(test_set, {})[protocol] = value.to_dict()
            self.outputs.setdefault(test_set, {})[protocol] = value.outputs_to_dict()

    def add_system(self, system: SystemOutput, command: str) -> None:
        """Sets command, parameters and decoding where training has not written them."""
        self.command = self.command or command
        self.parameters = self.parameters or system.parameters
        self.decoding = system.decoding or self.decoding

    def to_dict(self) -> dict[str, Any]:
        """Returns the file's content, keys in the documented order."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        return {"schema": SCHEMA, **known, **self.extra}

    def write(self, path: str | Path) -> Path:
        """Writes the file atomically."""
        return write_json(path, self.to_dict())


def results_content(path: str | Path) -> dict[str, Any]:
    """Reads the content of a results file. Raises: UserError if it is missing, is no JSON, or has another schema."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file ({error}).") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA or not isinstance(content.get("system"), str):
        raise UserError(f'{path}: expected a results file (schema {SCHEMA!r} and a "system"), found schema {schema!r}.')
    if problem := misfit(content, FORM) or next(_problems(content), None):
        raise UserError(f"{path}: {problem} Was it written by `hf-mlnmt train` or `evaluate`?")
    return content


def _problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields messages on a negative seed, on names that would break a page, and on numbers that nobody measures."""
    seed = content.get("seed")
    if seed is not None and seed < 0:
        yield f"seed: expected a whole number from 0, not {seed!r}."
    yield from filter(None, map(_problem_of_name, (content["system"], *content.get("scores", {}))))
    for place in _absurd(content):
        yield f"{place}, which is no measured number."


def _absurd(value: Any, place: str = "") -> Iterator[str]:
    """Yields place and value of each number that is not finite, or larger than any measured one."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _absurd(each, f"{place}.{key}" if place else str(key))
    largest = _LARGEST_SCORE if place.startswith("scores.") and place.endswith(".score") else _LARGEST
    if isinstance(value, int | float) and not abs(value) <= largest:
        yield f"{place} is {value}"


def _problem_of_name(name: str) -> str | None:
    wrong = not name.isprintable() or "`" in name
    return f"the name {name!r} has a line break, a control character or a backtick." if wrong else None


def read_results(path: str | Path) -> Results:
    """Reads a results file. Raises as `results_content` does."""
    content = results_content(path)
    del content["schema"]
    known = {f.name for f in fields(Results)} - {"extra"}
    extra = {key: content.pop(key) for key in list(content) if key not in known}
    return Results(**content, extra=extra)


def open_results(path: str | Path, name: str, named: bool, test_set: str) -> Results:
    """Opens the results file, old or new, to add scores of a test set to. `named`: the user says it is `name`'s.

    Raises: UserError if it is not, and for names that no results file may have.
    """
    path = Path(path)
    check_file(path)
    if problem := _problem_of_name(name) or _problem_of_name(test_set):
        raise UserError(f"{path}: {problem} Give others: --name, --test-set.")
    if not path.exists():
        return Results(system=name)
    results = read_results(path)
    if named and results.system != name:
        raise UserError(f"{path}: holds the results of {results.system!r}, not of {name!r}. Give another --output.")
    return results


def languages_of_test(results: Mapping[str, Any], test_set: str) -> dict[str, str | None]:
    """Returns {"source", "target"} of a test set of a results file; each test set of a multilingual model has its own.

    They are what the recipe in the file says of the test set's corpus, else those of the whole run.
    """
    own = inside(results, "recipe", "data", "test", test_set, "languages")
    languages = own or inside(results, "languages")
    return {side: languages.get(side) for side in ("source", "target")}


def inside(content: Any, *keys: str) -> Mapping[str, Any]:
    """Returns the mapping at the keys, one below the other; {} where there is none."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content if isinstance(content, Mapping) else {}


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that can change a number."""
    from hf_mlnmt import __version__  # not from the metadata: a checkout need not be installed

    known = {"python": platform.python_version(), "hf_mlnmt": __version__}
    for package in PACKAGES:
        try:
            known[package] = installed(package)
        except metadata.PackageNotFoundError:
            continue
    return known
