"""Filters of OpusFilter's and OpusCleaner's configurations, as those of filters.py; what these lack is refused by name.

| OpusFilter (YAML, `steps`) | OpusCleaner (JSON, `filters`) | here |
| --- | --- | --- |
| LengthFilter, in words | max_length | min_length, max_length |
| LengthRatioFilter, in words | src_trg_ratio, without LOG | max_ratio, which adds one word to both sides |
| LongWordFilter | max_word_length | max_word |
| remove_duplicates, of whole pairs | | drop_duplicates |
| | remove_empty_lines | drop_empty |

Steps that only bring the corpora (opus_read, download, concatenate, write) are passed over: `data.train` names them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import YAMLLoader

log = logging.getLogger(__name__)
Keys = dict[str, Any]

_INSTEAD = "filter the corpus by that program first, take this out, and name the filtered files in data.train"
_HINTS = {
    "SimilarityFilter": "drop_identical: true under data.filters drops targets that are their sources; or ",
    "LongestCommonSubstringFilter": "drop_identical: true under data.filters drops targets that are their sources; or ",
    "preprocess": "tokenizer.processing says what is done to text; or ",
    "head": "limit: N of a corpus takes its first N pairs; or ",
}
_BRINGING = ("opus_read", "download", "concatenate", "write")


def read_filters(path: Path) -> Keys:
    """Returns the keys of `PairFilter` that a configuration asks for, the strictest where it asks twice.

    Raises: UserError for a file of neither program, and naming the filter, step or parameter that has no counterpart.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), YAMLLoader)  # JSON is YAML
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as YAML or JSON ({' '.join(str(error).split())}).") from error
    try:
        steps, filters = map(content.get, ("steps", "filters")) if isinstance(content, dict) else (None, None)
        if isinstance(steps, list):
            found = list(_of_opusfilter(steps))
        elif isinstance(filters, list):
            found = [_of_opuscleaner(**step) for step in filters]
        else:
            raise UserError("expected `steps`, as in OpusFilter's YAML, or `filters`, as in OpusCleaner's JSON.")
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (TypeError, ValueError, AttributeError, KeyError, ZeroDivisionError) as error:
        raise UserError(f"{path}: not a configuration of OpusFilter or OpusCleaner ({error}).") from error
    keys: Keys = {}
    for each in found:
        for name, value in each.items():
            strictest: Callable[..., Any] = max if name.startswith(("min", "drop")) else min
            keys[name] = strictest(keys.get(name, value), value)
    if "max_ratio" in keys:
        log.warning(
            "%s: max_ratio: %g adds one word to both sides, and spares short sentences", path, keys["max_ratio"]
        )
    return keys


def _of_opusfilter(steps: list[Mapping[str, Any]]) -> Iterator[Keys]:
    made: set[str] = set()  # by a step that filters
    filtered = False
    for step in steps:
        kind, given = step["type"], dict(step.get("parameters") or {})
        if kind in _BRINGING:
            continue
        inputs, outputs = given.pop("inputs", []), given.pop("outputs", [])
        if kind not in ("filter", "remove_duplicates"):
            raise _refused(f"a step of the type {kind}", kind)
        if filtered and not made & set(inputs):
            raise UserError(f"{', '.join(inputs)}: filtered apart from the corpus before: give each a file of its own.")
        filtered, made = True, made | set(outputs)
        if kind == "remove_duplicates":
            _expect(
                given, "remove_duplicates", compare="all", lowercase=False, letters_only=False, overlap=None, hash=...
            )
            yield {"drop_duplicates": True}
            continue
        for entry in given.pop("filters"):
            ((name, settings),) = entry.items() if isinstance(entry, dict) else [(entry, {})]
            yield _opusfilter(name, dict(settings or {}))
        _expect(given, "filter", filterfalse=False)


def _opusfilter(name: str, given: Keys) -> Keys:
    if name == "LengthFilter":
        least, most = _number(given, "min_length", 1), _number(given, "max_length", 100)
        _expect(given, name, unit="word", pass_empty=False)
        return {"min_length": max(1, least), "max_length": most}
    if name == "LengthRatioFilter":
        ratio = float(given.pop("threshold", 3))
        _expect(given, name, unit="word")
        return {"max_ratio": ratio}
    if name == "LongWordFilter":
        longest = _number(given, "threshold", 40) - 1  # there a word of the threshold is too long
        _expect(given, name)
        return {"max_word": longest}
    raise _refused(name, name)


def _of_opuscleaner(filter: str, parameters: Mapping[str, Any] | None = None, language: Any = None) -> Keys:
    given = dict(parameters or {})
    if filter == "max_length":
        keys: Keys = {
            "min_length": max(1, _number(given, "MINLENGTH", 1)),
            "max_length": _number(given, "MAXLENGTH", 150),
        }
    elif filter == "max_word_length":
        keys = {"max_word": _number(given, "MAXWORDLENGTH", 150)}
    elif filter == "src_trg_ratio":
        keys = {"max_ratio": 1 / float(given.pop("RATIO", 0.6))}
    elif filter == "remove_empty_lines":
        keys = {"drop_empty": True}
    else:
        raise _refused(filter, filter)
    _expect({**given, "language": language}, filter, language=None, LOG=False)
    return keys


def _number(given: Keys, name: str, default: int) -> int:
    value = given.pop(name, default)
    if isinstance(value, list):  # one a side
        raise _refused(f"{name}: {value}, another number for each side", "")
    return int(value)


def _expect(given: Mapping[str, Any], name: str, **known: Any) -> None:
    """Raises UserError for a parameter of another value than the one that has a counterpart; `...` takes any."""
    for key, value in given.items():
        if key not in known or (known[key] is not ... and value != known[key]):
            raise _refused(f"{name} with {key}: {value}", name)


def _refused(what: str, name: str) -> UserError:
    return UserError(f"{what}: there is no such filter here: {_HINTS.get(name, '')}{_INSTEAD}.")
