"""YAML into typed dataclasses: unknown, repeated or mistyped keys are errors that name the line and the right key."""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from hf_mlnmt.errors import UserError, suggest

T = TypeVar("T")
Lines = dict[tuple[str, ...], int]  # path of a key -> line, from 1
NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a section with keys"}
NAMES |= {list: "a list", type(None): "nothing"}


def load_yaml(path: Path) -> tuple[dict[str, Any], Lines]:
    """The content of a YAML file and the line of each key.

    Raises: UserError for a missing, empty, invalid file, or a key given twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file. Recipes are in the folder training/.") from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: is a folder; a recipe is a YAML file.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}).") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not valid YAML ({getattr(error, 'problem', error)}).") from error
    if not isinstance(content, dict) or not isinstance(tree, yaml.MappingNode):
        raise UserError(
            f"{path}: expected keys and values, found {'nothing' if content is None else 'something else'}."
        )
    lines: Lines = {}
    _collect_lines(tree, (), lines, path)
    return content, lines


def _collect_lines(node: yaml.MappingNode, outer: tuple[str, ...], lines: Lines, path: Path) -> None:
    for key, value in node.value:
        name, line = (*outer, str(key.value)), key.start_mark.line + 1
        if name in lines:
            raise UserError(f"{path}, line {line}: {'.'.join(name)} is given twice (first in line {lines[name]}).")
        lines[name] = line
        if isinstance(value, yaml.MappingNode):
            _collect_lines(value, name, lines, path)


def build(
    kind: type[T],
    content: Any,
    file: str,
    at: tuple[str, ...] = (),
    lines: Lines | None = None,
    hidden: typing.Collection[str] = (),
) -> T:
    """A dataclass of type `kind` from a mapping, checked key by key and type by type.

    Args:
        content: what the YAML holds there.
        file, at, lines: for messages: the file, the path of keys down to here, the line of each key.
        hidden: fields that are not keys.

    `DROPPED` of the class, if there is one, holds keys of earlier versions, each with the value by which it did
    nothing. With that value a key is passed over, so that what was written then is still read; with another it is
    refused.

    Raises: UserError.
    """
    lines = lines or {}
    if not isinstance(content, dict):
        raise UserError(f"{_place(file, at, lines)}: expected {NAMES[dict]}, not {content!r}.")
    fields = {item.name: item for item in dataclasses.fields(kind) if item.init and item.name not in hidden}  # type: ignore[arg-type]
    dropped = getattr(kind, "DROPPED", {})
    for key, value in content.items():
        if key in dropped:
            if value != dropped[key]:
                raise UserError(
                    f"{_place(file, (*at, key), lines)}: this key of earlier versions was dropped. Leave it out."
                )
        elif key not in fields:
            hint = suggest(str(key), fields) or f"; known here: {', '.join(fields)}"
            raise UserError(f"{_place(file, (*at, str(key)), lines)}: unknown key{hint}")
    required = {
        name
        for name, item in fields.items()
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - content.keys()):
        raise UserError(f"{_place(file, at, lines)}: missing key '{'.'.join((*at, missing[0]))}'.")
    hints = typing.get_type_hints(kind)
    values = {
        name: convert(value, hints[name], file, (*at, name), lines) for name, value in content.items() if name in fields
    }
    return kind(**values)


def convert(value: Any, hint: Any, file: str, at: tuple[str, ...], lines: Lines) -> Any:
    """`value` as the type `hint` asks, or UserError."""
    if hint is Any:
        return value
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value in inner:
            return value
        hint_text = suggest(str(value), [str(choice) for choice in inner])
        raise UserError(f"{_place(file, at, lines)}: {value!r} is not one of {', '.join(map(str, inner))}{hint_text}.")
    if origin in (Union, types.UnionType):
        return _convert_union(value, inner, file, at, lines)
    if dataclasses.is_dataclass(hint):
        return build(hint, value, file, at, lines)  # type: ignore[arg-type]
    if origin in (list, tuple, dict) or hint in (list, tuple, dict):
        return _convert_collection(value, origin or hint, inner, file, at, lines)
    if hint is Path:
        return Path(convert(value, str, file, at, lines))
    return _convert_scalar(value, hint, file, at, lines)


def _convert_union(value: Any, choices: tuple[Any, ...], file: str, at: tuple[str, ...], lines: Lines) -> Any:
    if value is None and type(None) in choices:
        return None
    real = [choice for choice in choices if choice is not type(None)]
    for choice in real:
        try:
            return convert(value, choice, file, at, lines)
        except UserError:
            if len(real) == 1:
                raise
    names = " or ".join(NAMES.get(typing.get_origin(choice) or choice, str(choice)) for choice in real)
    raise UserError(f"{_place(file, at, lines)}: expected {names}, not {value!r}.")


def _convert_collection(
    value: Any, kind: Any, inner: tuple[Any, ...], file: str, at: tuple[str, ...], lines: Lines
) -> Any:
    if kind is dict:
        if not isinstance(value, dict):
            raise UserError(f"{_place(file, at, lines)}: expected {NAMES[dict]}, not {value!r}.")
        key_hint, value_hint = inner or (Any, Any)
        return {
            convert(key, key_hint, file, (*at, str(key)), lines): convert(
                item, value_hint, file, (*at, str(key)), lines
            )
            for key, item in value.items()
        }
    if not isinstance(value, list | tuple):
        raise UserError(f"{_place(file, at, lines)}: expected {NAMES[list]}, not {value!r}.")
    items = [convert(item, inner[0] if inner else Any, file, at, lines) for item in value]
    return tuple(items) if kind is tuple else items


def _convert_scalar(value: Any, hint: Any, file: str, at: tuple[str, ...], lines: Lines) -> Any:
    if hint is float and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 reads 2e-3 as text
        except (TypeError, ValueError):
            pass
    elif type(value) is hint or (hint is str and isinstance(value, str)):
        return value
    raise UserError(f"{_place(file, at, lines)}: expected {NAMES.get(hint, hint)}, not {value!r}.")


def _place(file: str, at: tuple[str, ...], lines: Lines) -> str:
    line = f", line {lines[at]}" if at in lines else ""
    return f"{file}{line}: {'.'.join(at)}" if at else file
