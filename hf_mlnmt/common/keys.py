"""Reads what users set: keys in YAML files, of which pydantic checks and builds dataclasses; environment variables.

A section of a recipe (recipe/schema.py), a corpus or a filter (data/) is a dataclass that inherits from `Section`, and
each of its keys a field, made by `key`. `build` makes such a dataclass of a file's mapping; `_in_words` converts
pydantic's errors to messages that name file, line, key and what was expected.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import yaml
from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt

from hf_mlnmt.common.errors import UserError, suggest

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")
Lines = Mapping[tuple[str, ...], int]  # path of a key -> its line in the file, from 1
# With libyaml, where it is installed, a recipe of thousands of tasks is read and written ten times as fast.
YAMLLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
YAMLDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
REQUIRED: Any = dataclasses.MISSING  # the default of a key that must be given


@dataclass(frozen=True)
class Range(GroupedMetadata):
    """The range of a number, in `Annotated`: `low` to `high`, without `low` if `above`, without `high` if `below`.

    Args:
        more: text that ends the message, after "not <value>".
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False
    more: str = ""

    def __iter__(self) -> Iterator[Any]:
        """Yields the limits as pydantic reads them."""
        yield Gt(self.low) if self.above else Ge(self.low)
        if self.high < math.inf:
            yield Lt(self.high) if self.below else Le(self.high)

    def problem(self, value: float) -> str | None:
        """Returns the end of a message, " must be ..., not <value>.", for a value outside of the range; else None."""
        low = f"{'above' if self.above else 'at least'} {self.low:g}"
        words, below = "", f" and below {self.high:g}" if self.below else ""
        if not math.isfinite(value):
            words = "a finite number"
        elif value < self.low or (self.above and value == self.low):
            words = f"{low}{below}"
        elif value > self.high or (self.below and value == self.high):
            words = f"{low}{below}" if below else f"at most {self.high:,}"
        return f" must be {words}, not {value}{self.more}." if words else None


def key(default: Any, help: str, **more: Any) -> Any:
    """Makes a dataclass field with a default, a sentence of help, and further arguments for pydantic's Field."""
    metadata = {"description": help, **more}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    if callable(default):  # a Section class, whose keys all have defaults
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


class Section:
    """Base class of sections: dataclasses whose fields are keys that users set, but for those with exclude=True."""

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Adds to pydantic's schema a check that refuses unknown keys and suggests the nearest known one."""
        from pydantic_core.core_schema import no_info_before_validator_function

        schema = _without_conversion(handler(source))
        return no_info_before_validator_function(functools.partial(_check_names, cls), schema)


def _without_conversion(schema: Any) -> Any:
    """Returns pydantic's schema without conversions between numbers, truth values and text, and without empty text.

    Text is still converted to a truth value (YAML's off) and a number (2e-3, which YAML reads as text).
    """
    if isinstance(schema, list | tuple):
        return type(schema)(map(_without_conversion, schema))
    if not isinstance(schema, dict):
        return schema
    schema = {name: _without_conversion(part) for name, part in schema.items()}
    if schema.get("type") == "int":
        return schema | {"strict": True}
    if schema.get("type") == "str":
        return {"min_length": 1} | schema
    return _refusing(schema) if schema.get("type") in ("bool", "float") else schema


def _refusing(schema: Any) -> Any:
    """Returns the schema of a truth value that refuses numbers, or of a number that refuses truth values."""
    from pydantic_core import PydanticKnownError
    from pydantic_core.core_schema import no_info_before_validator_function

    is_truth = schema["type"] == "bool"

    def check(value: Any) -> Any:
        if isinstance(value, int | float) and isinstance(value, bool) != is_truth:
            raise PydanticKnownError("bool_type" if is_truth else "float_type")
        return value

    return no_info_before_validator_function(check, schema)


def keys_of(section: Any) -> list[str]:
    """Returns the names of a section's keys, in order."""
    return [item.name for item in dataclasses.fields(section) if not item.metadata.get("exclude")]


def _check_names(section: type, content: Any) -> Any:
    from pydantic_core import PydanticCustomError

    known = keys_of(section)
    for name in content if isinstance(content, dict) else ():
        if name not in known:
            hint = suggest(str(name), known) or f"; known here: {', '.join(known)}"
            raise PydanticCustomError("unknown_key", "unknown key", {"key": str(name), "hint": hint})
    return content


def build(kind: type[T], content: Any, file: str, at: tuple[str, ...] = (), lines: Lines | None = None) -> T:
    """Builds a dataclass of type `kind` from a mapping, checked key by key.

    Args:
        content: the mapping read from YAML.
        file, at, lines: for messages: the file, the path of keys to the mapping, the line of each key.

    Raises: UserError.
    """
    from pydantic import ValidationError

    try:
        return _adapter(cast(Any, kind)).validate_python(content)
    except ValidationError as error:
        raise _in_words(error, content, file, at, lines or {}) from error


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


_EXPECTED = {"int": "a whole number", "float": "a number", "string": "text", "bool": "true or false", "list": "a list"}
_EXPECTED |= {"dict": "a section with keys", "dataclass": "a section with keys", "tuple": "a list"}
_LIMITS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def _in_words(error: ValidationError, content: Any, file: str, at: tuple[str, ...], lines: Lines) -> UserError:
    """Converts the first mistake that pydantic found to an error with file, line, key and the expected value."""
    mistakes = [(_path(each["loc"], content), each) for each in error.errors(include_url=False)]
    first = mistakes[0][0]
    # Pydantic reports a mistake for each allowed type: the deepest path belongs to the type that fits best.
    path = max((path for path, _ in mistakes if path[: len(first)] == first), key=len)
    here = [each for other, each in mistakes if other == path]
    kinds = [_EXPECTED.get(each["type"].split("_")[0]) for each in here]
    mistake = next((each for each, kind in zip(here, kinds) if kind is None), here[0])
    kind, value, said = mistake["type"], mistake["input"], mistake.get("ctx", {})
    text = str(said.get("error", ""))
    # The text of an error about a mapping may begin with one of its keys, which then belongs to the path.
    inside = value if isinstance(value, dict) and kind == "value_error" else ()
    key = said.get("key") or next((str(name) for name in inside if text.startswith((f"{name}:", f"{name} must "))), "")
    full = (*at, *path, *([key] if key else []))
    line = f", line {lines[full]}" if full in lines else ""
    where = f"{file}{line}: {'.'.join(full)}" if full else file
    if kind == "unknown_key":
        return UserError(f"{where}: unknown key{said['hint']}")
    if kind == "missing":
        return UserError(f"{where}: missing key '{'.'.join((*full, str(mistake['loc'][-1])))}'.")
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in re.findall(r"'[^']*'|\w+(?= or |, |$)", said["expected"])]
        return UserError(f"{where}: {value!r} is not one of {', '.join(choices)}{suggest(str(value), choices)}.")
    if kind == "finite_number":
        return UserError(f"{where} must be a finite number, not {value}.")
    if kind == "too_short":
        return UserError(f"{where}: {value!r} has too few entries: give at least {said['min_length']}.")
    if kind == "too_long":
        return UserError(f"{where}: {value!r} has too many entries: give at most {said['max_length']}.")
    if limit := next((name for name in _LIMITS if name in said), None):
        number = int(said[limit]) if float(said[limit]).is_integer() else said[limit]
        return UserError(f"{where} must be {_LIMITS[limit]} {number:,}, not {value}.")
    if kind == "value_error":
        return UserError(f"{where}{text.removeprefix(key) if key else f': {text}'}".removesuffix(".") + ".")
    expected = " or ".join(dict.fromkeys(filter(None, kinds)))
    return UserError(f"{where}: expected {expected or mistake['msg']}, not {value!r}.")


def _path(location: tuple[int | str, ...], content: Any) -> tuple[str, ...]:
    """Returns the keys in pydantic's location of a mistake, without names of union members and list indices."""
    path = []
    for part in location:
        if isinstance(content, dict) and part in content:
            path.append(str(part))
            content = content[part]
        elif isinstance(content, list | tuple) and isinstance(part, int):
            content = content[part]
    return tuple(path)


# Environment variables


def variable(name: str, kind: Any = str, default: Any = None) -> Any:
    """Returns an environment variable's value converted to `kind`; `default` where it is not set or empty.

    kind: str, int (0 or more), bool, list (a command's words) or a tuple of the allowed words.
    Raises: UserError with variable, value and what was expected; also for one not set whose default is REQUIRED.
    """
    text = os.environ.get(name, "").strip()
    if not text and default is not REQUIRED:
        return default
    words: Any = {"1": True, "true": True, "yes": True, "on": True} if kind is bool else {}
    words |= dict.fromkeys(("0", "false", "no", "off"), False) if words else {}
    try:
        if text and kind is list:
            return shlex.split(text)
        if text.isdecimal() if kind is int else text and kind is str:
            return kind(text)
    except ValueError:  # by shlex for a quote without end: an error is raised below
        pass
    if words and text.lower() in words:
        return words[text.lower()]
    if isinstance(kind, tuple) and text in kind:
        return text
    known = {int: "a whole number", bool: "1 or 0", list: "a command", str: "text"}
    expected = known[kind] if isinstance(kind, type) else f"one of {', '.join(kind)}"
    holds = f"is {text!r}, and {expected} was expected" if text else f"is not set, and {expected} was expected"
    unset = "" if default is REQUIRED else ", or unset it"
    raise UserError(f"the environment variable {name} {holds}. Set it right{unset}.")
