"""Reads and writes results files, `results/<stem>.json`: a system, how it was made, its scores. Schema:
`hf_mlnmt.results/1`.

    {"schema", "system", "data", "seed", "budget", "command", "versions", "parameters", "steps_per_second", "decoding",
     "scores":       {test set: {protocol: {metric: {"score", "signature", "ci": [low, high] or null}}}},
     "outputs":      {test set: {protocol: {"sentences", "references", "empty_outputs", "empty_references",
                                            "length_ratio"}}}}

The format is stable: the meaning of a key never changes, keys may be added, and keys that this version does not know
are kept when a file is read and written again. The schema's number rises only if an old reader would misread a file.
"""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Mapping
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
_COUNTED = ("steps", "epochs", "seconds", "cpu_minutes", "target_tokens", "processes")  # numeric keys of "budget"
FORM: Form = {
    "scores?": {...: {...: {...: {"score": float, "ci?": (None, [float, float]), "signature?": str}}}},
    "outputs?": {...: {...: dict}},
    "robustness?": {...: {"scores": {...: float}, "signature?": str, "seed?": int}},
    "budget?": (None, {f"{name}?": (None, float) for name in _COUNTED}),
    "seed?": (None, int),
    "parameters?": (None, int),
    "data?": (None, str, {"train?": (None, str, dict, list)}),
    "languages?": {"source?": (None, str), "target?": (None, str)},
    "steps_per_second?": (None, float),
    **dict.fromkeys(("versions?", "decoding?", "significance?", "recipe?"), dict),
}
PACKAGES = ("torch", "transformers", "tokenizers", "sacrebleu", "sacremoses")
installed = functools.cache(metadata.version)  # cached, since each call parses a file


@dataclass
class Results:
    """The content of a system's results file; fields that are not measured are None, and null in the file."""

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
    """Values of keys that are no field of this class."""

    def add_scores(self, test_set: str, scores: Mapping[ProtocolName, Scores]) -> None:
        """Adds the scores of a test set; replaces those of the same test set and protocol."""
        for protocol, value in scores.items():
            self.scores.setdefault(test_set, {})[protocol] = value.to_dict()
            self.outputs.setdefault(test_set, {})[protocol] = value.outputs_to_dict()

    def add_system(self, system: SystemOutput, command: str) -> None:
        """Sets command and parameters unless they are set already, and decoding if `system` has any."""
        self.command = self.command or command
        self.parameters = self.parameters or system.parameters
        self.decoding = system.decoding or self.decoding

    def to_dict(self) -> dict[str, Any]:
        """Returns the file's content, with the keys in the order of the schema above."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        return {"schema": SCHEMA, **known, **self.extra}

    def write(self, path: str | Path) -> Path:
        """Writes the results file; meanwhile readers see the whole old or the whole new file. Returns the path."""
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
    names = map(_problem_of_name, (content["system"], *content.get("scores", {})))
    if problem := misfit(content, FORM) or next(filter(None, names), None):
        raise UserError(f"{path}: {problem} Was it written by `hf-mlnmt train` or `evaluate`?")
    return content


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
    """Reads a results file, to which scores of `test_set` will be added; if there is no file, makes new `Results` of
    system `name`. named: whether the user gave `name`. Raises: UserError if the file is of another system than the user
    named, and for names with control characters."""
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
    """Returns {"source": code, "target": code} of a test set in a results file: the languages of its corpus in the
    recipe (multilingual models have several), else those of the whole run; None if unknown."""
    own = inside(results, "recipe", "data", "test", test_set, "languages")
    languages = own or inside(results, "languages")
    return {side: languages.get(side) for side in ("source", "target")}


def inside(content: Any, *keys: str) -> Mapping[str, Any]:
    """Returns the mapping at content[key][key]... of nested mappings; {} where there is none."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content if isinstance(content, Mapping) else {}


def versions() -> dict[str, str]:
    """Returns the versions of Python, this package, and the packages that can change a result."""
    from hf_mlnmt import __version__  # not from metadata, since a checkout need not be installed

    known = {"python": platform.python_version(), "hf_mlnmt": __version__}
    for package in PACKAGES:
        try:
            known[package] = installed(package)
        except metadata.PackageNotFoundError:
            continue
    return known
