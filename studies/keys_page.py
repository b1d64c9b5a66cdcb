"""The keys of hf_mlnmt/recipe/schema.py for people and for editors: the tables of docs/recipes.md, and a JSON schema.

`make report` writes both (studies/regions.py).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Literal, Union

import yaml

from hf_mlnmt.common.keys import Key, Range, keys_of
from hf_mlnmt.common.table import Table
from hf_mlnmt.modeling.configuration import StackConfig
from hf_mlnmt.recipe.schema import OBJECTIVES, Model, Recipe
from hf_mlnmt.zoo.systems import SYSTEMS

WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}
EXTENDED = "The name of a recipe beside this one, or of a setup, whose keys hold where this one has none."
VARIANTS = "In base.yaml: the recipes of the setup that differ from it in a few keys, name -> these keys."


@functools.cache
def _sections() -> dict[type, list[str]]:
    """A recipe and all sections that its keys lead to, in the order of the description: the paths that lead to each."""
    paths: dict[type, list[str]] = {Recipe: [""]}
    waiting: list[type] = [Recipe]
    while waiting:
        one = waiting.pop(0)
        hints = typing.get_type_hints(one)
        for name, key in keys_of(one).items():
            for inner in dict.fromkeys([*_classes(hints[name]), *_named(key)]):
                waiting += [inner] if inner not in paths else []
                between = ".NAME" if typing.get_origin(_plain(hints[name])) is dict and not key.of else ""
                paths.setdefault(inner, []).append(f"{paths[one][0]}.{name}{between}".removeprefix("."))
    return paths


def _plain(hint: Any) -> Any:
    """The type of a value that may be missing."""
    return next((one for one in typing.get_args(hint) if type(None) in typing.get_args(hint) and one), hint)


def _classes(hint: Any) -> list[type]:
    if dataclasses.is_dataclass(hint):
        return [typing.cast(type, hint)]
    return [part for inner in typing.get_args(hint) for part in _classes(inner)]


def _named(key: Key) -> list[type]:
    """The classes that `of` names."""
    parts = [one.split(":") for one in key.of if ":" in one]
    return [getattr(import_module(module), name) for module, name in parts]


def _keys(section: type) -> Iterator[tuple[str, Any, Any, Key]]:
    """Of each key its name, type, default and what is said of it."""
    hints, keys = typing.get_type_hints(section), keys_of(section)
    for item in dataclasses.fields(section):
        if (section, item.name) != (Recipe, "path"):
            yield item.name, hints[item.name], _default(item), keys[item.name]


def _default(item: dataclasses.Field[Any]) -> Any:
    factory: Any = item.default_factory
    return item.default if factory is dataclasses.MISSING else factory()


# For people


def keys_as_markdown() -> str:
    """A table of keys for each section of a recipe, and one of the objectives."""
    blocks = []
    for section, paths in _sections().items():
        prefix = f"{paths[0]}." if len(paths) == 1 and paths[0] else ""
        doc = " ".join((section.__doc__ or "").split("\n\n")[0].split())
        blocks += [f"### {_title(section)}", doc, _table(section, "key", prefix)]
    rows = [
        [f"`{name}`", one.reads, ", ".join(f"`{key}`" for key in keys_of(one.settings)) or "none", one.help]
        for name, one in OBJECTIVES.items()
    ]
    blocks += ["### Objectives", Table(["objective", "reads", "settings", "what"], rows).markdown()]
    for names, settings in _objectives_of_settings().items():
        if keys_of(settings):
            blocks += [f"Of {names}:", _table(settings, "setting")]
    return "\n\n".join(blocks)


def _objectives_of_settings() -> dict[str, type]:
    """The names of the objectives that have the same settings -> these."""
    classes = dict.fromkeys(one.settings for one in OBJECTIVES.values())
    named = {one: [f"`{name}`" for name, key in OBJECTIVES.items() if key.settings is one] for one in classes}
    return {", ".join(names): one for one, names in named.items()}


def _title(section: type) -> str:
    """The path of a section that one key leads to; else its class."""
    paths = _sections()[section]
    name = section.__name__.removesuffix("Section").removesuffix("Spec")
    return name if len(paths) > 1 or not paths[0] else paths[0]


def _link(section: type) -> str:
    title = _title(section)
    return f"[{title}](#{title.lower().replace('.', '')})"


def _table(section: type, head: str, prefix: str = "") -> str:
    """Each key of a section: what its value is, its default, what it means."""
    rows = []
    for name, hint, default, key in _keys(section):
        if default is dataclasses.MISSING or dataclasses.is_dataclass(default):
            shown = "" if default is not dataclasses.MISSING else "required"
        else:
            shown = f"`{_yaml(default)}`"
        value = ", ".join(filter(None, [_value(hint, key), _limits_of(key.range)]))
        rows.append([f"`{prefix}{name}`", value, shown, key.help])
    return Table([head, "value", "default", "what"], rows).markdown()


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


def _value(hint: Any, key: Key) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{_yaml(choice)}`" for choice in inner)
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in inner if kind is not type(None) and not (kind is int and float in inner)]
        return " or ".join(_value(kind, key) for kind in kinds)
    if dataclasses.is_dataclass(hint):
        return _link(typing.cast(type, hint))
    if origin is list:
        return f"list of {_value(inner[0], key)}"
    if origin is dict and inner[1] is not Any:
        return f"name: {_value(inner[1], key)}"
    if origin is dict:
        links = [_link(one) for one in _named(key)] + ["[an objective](#objectives)"] * ("OBJECTIVES" in key.of)
        return " or ".join(links) or "section"
    return WORDS.get(hint, "anything")


def _limits_of(allowed: Range | None) -> str:
    if allowed is None:
        return ""
    if allowed.says and allowed.high == float("inf"):
        return f"from {allowed.low:g}"
    low = f"{'above' if allowed.above else 'from'} {allowed.low:,g}"
    if allowed.high == float("inf"):
        return low
    return f"{low}, {'below' if allowed.below else 'at most'} {allowed.high:,}"


# Fields of the models' configs

# What the tokenizer, the tasks or the class of the model say, and no recipe.
GIVEN = {"vocab_size", "decoder_vocab_size", "vocab_sizes", "language_codes", "source_languages", "target_languages"}
GIVEN |= {"pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "use_cache", "is_encoder_decoder"}


def configs() -> list[type]:
    """Returns the config classes that have fields of their own, each behind those that it inherits from."""
    found: dict[type, None] = {}
    for system in SYSTEMS.values():
        kinds = reversed(system.architecture.config_class.__mro__)
        found |= dict.fromkeys(kind for kind in kinds if issubclass(kind, StackConfig) and own_fields(kind))
    return list(found)


def own_fields(config: type) -> list[dataclasses.Field[Any]]:
    """Returns the fields that `model.settings` can name and that this class declares, other defaults included."""
    own = inspect.get_annotations(config).keys() - GIVEN
    return [item for item in dataclasses.fields(config) if item.name in own]


def sentences(config: type) -> dict[str, str]:
    """Returns field -> what the docstring of a config, or of one that it inherits from, says under Args."""
    said: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        if issubclass(kind, StackConfig):
            names = "|".join(inspect.get_annotations(kind))
            text = " ".join((kind.__doc__ or "").partition("Args:")[2].split())
            parts = re.split(rf"\b((?:(?:{names}), )*(?:{names})): ", text)
            for fields, words in zip(parts[1::2], parts[2::2]):
                said |= dict.fromkeys(fields.split(", "), words.strip())
    return said


def settings_as_markdown() -> str:
    """Returns a table of the fields of each config, for `model.settings`, with the systems and the paper."""
    limits = keys_of(Model)["settings"].inside
    blocks = []
    for config in configs():
        systems = [name for name, system in SYSTEMS.items() if issubclass(system.architecture.config_class, config)]
        others = [name for name in SYSTEMS if name not in systems]
        named = ", ".join(f"`{name}`" for name in systems)
        if len(others) < len(systems):
            named = "all systems" + f" but `{'`, `'.join(others)}`" * bool(others)
        doc = inspect.getmodule(config).__doc__ or ""  # type: ignore[union-attr]
        reference = re.search(r"^Reference: (.*?)(?:\n\n|\Z)", doc, re.DOTALL | re.MULTILINE)
        paper = f" Reference: {' '.join(reference[1].split())}" if reference else ""
        said = sentences(config)
        rows = [
            [
                f"`{item.name}`",
                ", ".join(filter(None, [_value(item.type, Key()), _limits_of(limits.get(item.name))])),
                f"`{_yaml(_default(item))}`",
                said[item.name],
            ]
            for item in own_fields(config)
        ]
        blocks += [f"Of {named}.{paper}", Table(["setting", "value", "default", "what"], rows).markdown()]
    return "\n\n".join(blocks)


# For editors


def json_schema() -> str:
    """The JSON schema (draft 7) of a recipe's YAML, for completion and checks while it is written.

    Nothing is required in it: a recipe that extends another says only what is different.
    """
    top = _object(Recipe)
    variants = {"type": "object", "additionalProperties": {"$ref": "#"}, "description": VARIANTS}
    extends = {"type": "string", "description": EXTENDED}
    top["properties"] = {"extends": extends, "variants": variants, **top["properties"]}
    parts = {one.__name__: _object(one) for one in _sections() if one is not Recipe}
    named = [_object(one.settings, name={"const": name}) for name, one in OBJECTIVES.items()]
    parts["Objective"] = {"anyOf": [{"enum": list(OBJECTIVES)}, *named]}
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A recipe of hf_mlnmt"}
    return json.dumps({**head, **top, "definitions": parts}, indent=1, ensure_ascii=False) + "\n"


def _object(section: type, **more: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, hint, default, key in _keys(section):
        simple = default is not dataclasses.MISSING and not dataclasses.is_dataclass(default)
        properties[name] = {
            **_json_type(hint, key),
            "description": key.help,
            **({"default": default} if simple else {}),
        }
    return {"type": "object", "additionalProperties": False, "properties": {**properties, **more}}


def _json_type(hint: Any, key: Key) -> dict[str, Any]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if "OBJECTIVES" in key.of:
        return {"$ref": "#/definitions/Objective"}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_json_type(one, key) for one in inner]}
    if hint is type(None):
        return {"type": "null"}
    if dataclasses.is_dataclass(hint):
        return _reference(hint)
    if origin is list:
        return {"type": "array", "items": _json_type(inner[0], key)}
    if origin is dict and inner[1] is not Any:
        return {"type": "object", "additionalProperties": _json_type(inner[1], key)}
    if origin is dict:
        return _open_section(key)
    limits = _json_limits(key.range) if key.range and hint in (int, float) else {}
    return {"type": JSON_TYPES[hint], **limits} if hint in JSON_TYPES else {}


def _reference(section: Any) -> dict[str, str]:
    return {"$ref": "#" if section is Recipe else f"#/definitions/{section.__name__}"}


def _open_section(key: Key) -> dict[str, Any]:
    """A section whose keys stand elsewhere, or are not listed at all."""
    if parts := _named(key):
        return _reference(parts[0]) if len(parts) == 1 else {"anyOf": [_reference(one) for one in parts]}
    inside = {name: {"type": "number", **_json_limits(one)} for name, one in key.inside.items()}
    return {"type": "object", **({"properties": inside} if inside else {})}


def _json_limits(allowed: Range) -> dict[str, Any]:
    limits = {"exclusiveMinimum" if allowed.above else "minimum": allowed.low}
    if allowed.high != float("inf"):
        limits["exclusiveMaximum" if allowed.below else "maximum"] = allowed.high
    return limits
