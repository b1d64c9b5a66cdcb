"""The keys of hf_mlnmt/recipe/schema.py for people and for editors: the tables of docs/recipes.md, and a JSON schema.

Both are made from pydantic's JSON schema of the sections. `make report` writes both (studies/regions.py).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any

import yaml
from pydantic import TypeAdapter

from hf_mlnmt.common.keys import keys_of
from hf_mlnmt.common.table import Table
from hf_mlnmt.modeling.configuration import StackConfig
from hf_mlnmt.recipe import schema
from hf_mlnmt.recipe.reading import CLEARED
from hf_mlnmt.recipe.schema import OBJECTIVES, SIZES, Recipe
from hf_mlnmt.zoo.systems import SYSTEMS

WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
LIMITS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
EXTENDED = "The name of a recipe beside this one, or of a setup, whose keys hold where this one has none."
VARIANTS = "In base.yaml: the recipes of the setup that differ from it in a few keys, name -> these keys."
DEFINITIONS = "#/definitions/"


@functools.cache
def _sections() -> dict[type, list[str]]:
    """Returns section -> the paths of keys that lead to it: a recipe and all below it, in the order of the page."""
    paths: dict[type, list[str]] = {Recipe: [""]}
    waiting: list[type] = [Recipe]
    while waiting:
        one = waiting.pop(0)
        for name, said in _object(one)["properties"].items():
            for inner in map(_class, dict.fromkeys(_references(said))):
                waiting += [inner] if inner not in paths else []
                between = ".NAME" if "additionalProperties" in json.dumps(said) and inner in _own_sections() else ""
                paths.setdefault(inner, []).append(f"{paths[one][0]}.{name}{between}".removeprefix("."))
    return paths


def _own_sections() -> list[Any]:
    return [one for one in vars(schema).values() if dataclasses.is_dataclass(one)]


_ELSEWHERE: dict[str, type] = {}  # sections that `keys_of` names


def _class(name: str) -> type:
    return _ELSEWHERE.get(name) or getattr(schema, name)


def _references(said: Any) -> Iterator[str]:
    """Yields the names of the sections that a schema refers to."""
    for name, value in said.items() if isinstance(said, dict) else ():
        if name == "$ref":
            yield from [value.removeprefix(DEFINITIONS)] if value not in ("#", f"{DEFINITIONS}Objective") else []
        yield from _references(value)
    for value in said if isinstance(said, list) else ():
        yield from _references(value)


@functools.cache
def _object(section: type) -> dict[str, Any]:
    """Returns the JSON schema of a section, whose keys lead to definitions; nothing is required in it."""
    said = TypeAdapter(section).json_schema(ref_template=f"{DEFINITIONS}{{model}}")
    properties = {}
    for item in dataclasses.fields(section):
        if item.name in keys_of(section):
            properties[item.name] = {**_plain(said["properties"][item.name]), **item.metadata}
            default = _default(item)
            if default is not dataclasses.MISSING and not dataclasses.is_dataclass(default):
                properties[item.name]["default"] = default
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain(said: Any) -> Any:
    """Returns a schema without titles, and with references in the place of the classes that `keys_of` names."""
    if isinstance(said, list):
        return [_plain(inner) for inner in said]
    if not isinstance(said, dict):
        return said
    named = []
    for module, _, name in (one.partition(":") for one in said.get("keys_of", ())):
        if name and name != "Recipe":
            _ELSEWHERE[name] = getattr(import_module(module), name)
        named.append({"$ref": "#" if name == "Recipe" else f"{DEFINITIONS}{name or 'Objective'}"})
    kept = {
        name: _plain(value)
        for name, value in said.items()
        if name not in ("keys_of", "title") and (name, value) != ("additionalProperties", True)
    }
    return {**kept, **(named[0] if len(named) == 1 else {"anyOf": named} if named else {})}


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


def _table(section: type, head: str, prefix: str = "") -> str:
    """Each key of a section: what its value is, its default, what it means."""
    fields = {item.name: item for item in dataclasses.fields(section)}
    rows = []
    for name, said in _object(section)["properties"].items():
        required = _default(fields[name]) is dataclasses.MISSING
        shown = f"`{_yaml(said['default'])}`" if "default" in said else "required" if required else ""
        rows.append([f"`{prefix}{name}`", _value(said), shown, said["description"]])
    return Table([head, "value", "default", "what"], rows).markdown()


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


def _value(said: dict[str, Any]) -> str:
    """Returns what a schema allows, in words."""
    if said.get("$ref") == f"{DEFINITIONS}Objective":
        return "text or [an objective](#objectives)"
    if "$ref" in said:
        title = _title(next(map(_class, _references(said)), Recipe))
        return f"[{title}](#{title.lower().replace('.', '')})"
    if choices := said.get("enum", [said["const"]] if "const" in said else []):
        return ", ".join(f"`{_yaml(choice)}`" for choice in choices)
    if kinds := [kind for kind in said.get("anyOf", ()) if kind.get("type") != "null"]:
        whole = {"type": "integer"} if {"type": "number"} in kinds else None
        return " or ".join(_value(kind) for kind in kinds if kind != whole)
    if said.get("type") == "array":
        return f"list of {_value(said['items'])}"
    if said.get("type") == "object":
        return f"name: {_value(said['additionalProperties'])}" if "additionalProperties" in said else "section"
    limits = [f"{words} {_number(said[name])}" for name, words in LIMITS.items() if name in said]
    return ", ".join([WORDS.get(said.get("type", ""), "anything"), *limits])


def _number(limit: float) -> str:
    return f"{int(limit) if float(limit).is_integer() else limit:,}"


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
                _value(
                    _plain(
                        TypeAdapter(
                            Annotated[item.type, *[SIZES[item.name]]] if item.name in SIZES else item.type  # type: ignore[arg-type]
                        ).json_schema()
                    )
                ),
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
    top = {**top, "properties": {"extends": extends, "variants": variants, **top["properties"]}}
    parts = {one.__name__: copy.deepcopy(_object(one)) for one in _sections() if one is not Recipe}
    objects = {name: _object(one.settings) for name, one in OBJECTIVES.items()}
    named = [{**one, "properties": {**one["properties"], "name": {"const": name}}} for name, one in objects.items()]
    parts["Objective"] = {"anyOf": [{"enum": list(OBJECTIVES)}, *named]}
    for section, key in sorted(path for path in CLEARED if len(path) == 2):  # which null removes
        properties = parts[top["properties"][section]["$ref"].removeprefix(DEFINITIONS)]["properties"]
        of_key = dict(properties[key])
        said = {name: of_key.pop(name) for name in ("description", "default") if name in of_key}
        properties[key] = {"anyOf": [of_key, {"type": "null"}], **said}
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A recipe of hf_mlnmt"}
    return json.dumps({**head, **top, "definitions": parts}, indent=1, ensure_ascii=False) + "\n"
