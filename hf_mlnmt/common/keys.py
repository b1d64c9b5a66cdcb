"""Keys that users write: what is said of each beside its type and default, and how YAML becomes typed dataclasses.

A key is a field of a dataclass, made by `key`. The sections of a recipe (recipe/schema.py) and the corpora and filters
that recipes name (data/) are such dataclasses. `build` makes them of the mappings that a file holds, so that an unknown
or mistyped key is an error that names the line and the right key.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
import shlex
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union

import yaml

from hf_mlnmt.common.errors import UserError, naming, suggest

T = TypeVar("T")
Lines = Mapping[tuple[str, ...], int]  # path of a key -> line, from 1
# libyaml, where it is, reads and writes the recipe of thousands of tasks ten times as fast.
YAMLLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
YAMLDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
REQUIRED: Any = dataclasses.MISSING  # the default of a key that must be given
NO_KEY = {"key": None}  # the metadata of a field that users cannot write


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both allowed unless they are said to be `above` and `below`.

    Args:
        says, more: other words of the message, before and behind "not <value>".
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False
    says: str | None = None
    more: str = ""

    def problem(self, value: float) -> str | None:
        """Returns the end of a message that begins with the key, for a value that is not in the range; else None."""
        words = self._words(value)
        return words and f" {self.says or words}, not {value}{self.more}."

    def _words(self, value: float) -> str | None:
        if not math.isfinite(value):
            return "must be a finite number"
        low = f"{'above' if self.above else 'at least'} {self.low:g}"
        if value < self.low or (self.above and value == self.low):
            return f"must be {low}" + (f" and below {self.high:g}" if self.below else "")
        if value > self.high or (self.below and value == self.high):
            return f"must be {low} and below {self.high:g}" if self.below else f"must be at most {self.high:,}"
        return None


@dataclass(frozen=True)
class Key:
    """The facts of a key, beside its type and default.

    Args:
        help: a plain sentence for people.
        range: of the number, or of every number of a list.
        inside: of numbers in a section whose keys are not listed: key -> range.
        of: "module:class", the dataclasses of which one has the keys of this section, or of each section of a list;
            "OBJECTIVES" for the name of an objective with its settings.
        check: value -> the end of a message that begins with the key, or None; for what is no range.
    """

    help: str = ""
    range: Range | None = None
    inside: Mapping[str, Range] = field(default_factory=dict)
    of: tuple[str, ...] = ()
    check: Callable[[Any], str | None] | None = None


def key(default: Any, help: str, range: Range | None = None, **more: Any) -> Any:
    """Makes a field of a dataclass, with its default; the other arguments are as of `Key`."""
    said: dict[str, Any] = {"metadata": {"key": Key(help, range, **more)}}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.copy(default), **said)
    if callable(default):  # the class of a section, all keys of which have defaults
        return field(default_factory=default, **said)
    return field(default=default, **said)


def fields_of(section: Any) -> dict[str, dataclasses.Field[Any]]:
    """Returns the fields of a dataclass that are keys, in order."""
    return {item.name: item for item in dataclasses.fields(section) if item.metadata != NO_KEY}


def keys_of(section: type) -> dict[str, Key]:
    """Returns the keys of a section in order, with what is said of each."""
    return {name: item.metadata.get("key", Key()) for name, item in fields_of(section).items()}


# From the environment


def variable(name: str, kind: Any = str, default: Any = None) -> Any:
    """Returns what an environment variable says, `default` where it is not set or empty.

    kind: str, int (0 or more), bool, list (a command's words) or the words of which it is one.
    Raises: UserError naming the variable, what it holds and what was expected; without one where it is REQUIRED.
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
    except ValueError:  # quotes without an end
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


# From YAML

_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a section with keys"}
_NAMES |= {list: "a list", tuple: "a list", type(None): "nothing"}


@dataclass(frozen=True)
class _Place:
    """The place of a value, for messages: the file, the keys that lead to the value, and the lines of known keys."""

    file: str
    at: tuple[str, ...]
    lines: Lines

    def __str__(self) -> str:
        line = f", line {self.lines[self.at]}" if self.at in self.lines else ""
        return f"{self.file}{line}: {'.'.join(self.at)}" if self.at else self.file

    def below(self, key: Any) -> _Place:
        return _Place(self.file, (*self.at, str(key)), self.lines)

    def expected(self, kind: Any, value: Any) -> UserError:
        return UserError(f"{self}: expected {_NAMES.get(kind, kind)}, not {value!r}.")


def truth(value: Any) -> Any:
    """Returns the value; true or false for YAML 1.1's further words, which are read as text, for no is a language."""
    return {"yes": True, "on": True, "no": False, "off": False}.get(str(value).lower(), value)


def build(kind: type[T], content: Any, file: str, at: tuple[str, ...] = (), lines: Lines | None = None) -> T:
    """Builds a dataclass of type `kind` from a mapping, checked key by key and type by type.

    Args:
        content: what the YAML holds there.
        file, at, lines: for messages: the file, the path of keys down to here, the line of each key.

    Raises: UserError.
    """
    return _section(content, kind, _Place(file, at, lines or {}))


def _section(content: Any, kind: Any, place: _Place) -> Any:
    if not isinstance(content, dict):
        raise place.expected(dict, content)
    fields = fields_of(kind)
    for key in content:
        if key not in fields:
            hint = suggest(str(key), fields) or f"; known here: {', '.join(fields)}"
            raise UserError(f"{place.below(key)}: unknown key{hint}")
    for name, item in sorted(fields.items()):
        if name not in content and item.default is REQUIRED and item.default_factory is REQUIRED:
            raise UserError(f"{place}: missing key '{'.'.join(place.below(name).at)}'.")
    hints = _hints(kind)
    values = {name: _convert(content[name], hints[name], place.below(name)) for name in content}
    with naming(str(place)):
        return kind(**values)


_hints = functools.cache(typing.get_type_hints)  # of a dataclass, asked for at every corpus and task


def _convert(value: Any, hint: Any, place: _Place) -> Any:
    """Converts `value` to the type that `hint` asks."""
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint is Any:
        return value
    if kind is Literal:
        if value not in inner:
            choices = [str(choice) for choice in inner]
            raise UserError(f"{place}: {value!r} is not one of {', '.join(choices)}{suggest(str(value), choices)}.")
        return value
    if kind in (Union, types.UnionType):
        return _one_of(value, inner, place)
    if dataclasses.is_dataclass(hint):
        return _section(value, hint, place)
    if kind is dict:
        if not isinstance(value, dict):
            raise place.expected(dict, value)
        of_key, of_value = inner or (Any, Any)
        places = {key: place.below(key) for key in value}
        return {_convert(key, of_key, at): _convert(value[key], of_value, at) for key, at in places.items()}
    if kind in (list, tuple):
        if not isinstance(value, list | tuple):
            raise place.expected(kind, value)
        return kind(_convert(item, inner[0] if inner else Any, place) for item in value)
    if kind is bool:
        value = truth(value)
    if kind is float and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 reads 2e-3 as text
        except (TypeError, ValueError):
            raise place.expected(kind, value) from None
    if type(value) is kind or (kind is str and isinstance(value, str)):
        return value
    raise place.expected(kind, value)


def _one_of(value: Any, choices: tuple[Any, ...], place: _Place) -> Any:
    if value is None and type(None) in choices:
        return None
    choices = tuple(choice for choice in choices if choice is not type(None))
    for choice in choices:
        try:
            return _convert(value, choice, place)
        except UserError:
            if len(choices) == 1:
                raise
    names = " or ".join(_NAMES.get(typing.get_origin(choice) or choice, str(choice)) for choice in choices)
    raise UserError(f"{place}: expected {names}, not {value!r}.")
