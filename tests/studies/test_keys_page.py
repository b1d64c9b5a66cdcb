"""Every key is described once: the page of keys and the JSON schema are what schema.py says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from keys_page import configs, json_schema, keys_as_markdown, own_fields, sentences, settings_as_markdown

from hf_mlnmt.recipe.schema import OBJECTIVES
from hf_mlnmt.training.preparation import CLASSES
from hf_mlnmt.zoo.systems import SYSTEMS

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads(json_schema())


def problem(value: Any, schema: dict[str, Any], at: str = "") -> str | None:
    """What of a value a schema refuses; of JSON schema only what json_schema() writes."""
    if reference := schema.get("$ref"):
        return problem(value, SCHEMA if reference == "#" else SCHEMA["definitions"][reference.split("/")[-1]], at)
    if choices := schema.get("anyOf"):
        problems = [problem(value, one, at) for one in choices]
        return None if None in problems else "; ".join(filter(None, problems))
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int}
    kinds |= {"number": (int, float)}
    is_truth = isinstance(value, bool) and schema.get("type") not in (None, "boolean")
    if "type" in schema and (is_truth or not isinstance(value, kinds[schema["type"]])):
        return f"{at}: {value!r} is no {schema['type']}"
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        return f"{at}: {value!r} is not allowed"
    for name, refused in {
        "minimum": lambda limit: value < limit,
        "exclusiveMinimum": lambda limit: value <= limit,
        "maximum": lambda limit: value > limit,
        "exclusiveMaximum": lambda limit: value >= limit,
    }.items():
        if name in schema and refused(schema[name]):
            return f"{at}: {value!r}, {name} {schema[name]}"
    for name, inner in value.items() if isinstance(value, dict) else ():
        known = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
        found = f"{at}.{name}: unknown" if known is False else problem(inner, known, f"{at}.{name}")
        if found:
            return found
    items = [problem(one, schema.get("items", {}), at) for one in value] if isinstance(value, list) else []
    return next(filter(None, items), None)


@pytest.mark.parametrize("path", sorted((ROOT / "training").rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_schema_accepts_every_recipe(path):
    content = yaml.safe_load(path.read_text("utf-8"))
    assert problem(content, SCHEMA) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"bacth": {}}, ".bacth: unknown"),
        ({"batch": {"tokens": 0}}, ".batch.tokens: 0, exclusiveMinimum 0"),
        ({"batch": {"tokens": "many"}}, ".batch.tokens: 'many' is no integer"),
        ({"label_smoothing": 1}, ".label_smoothing: 1, exclusiveMaximum 1"),
        ({"batch": {"side": "left"}}, ".batch.side: 'left' is not allowed"),
        ({"data": {"dev": {"flies": {}}}}, ".data.dev.flies: unknown"),
        ({"tasks": {"a": {"objective": {"name": "fusion-n-best", "m": 3}}}}, ".tasks.a.objective.m: unknown"),
        ({"model": {"settings": {"d_model": 0}}}, ".model.settings.d_model: 0, exclusiveMinimum 0"),
        ({"rounds": {"one": {"recipe": {"sed": 1}}}}, ".rounds.one.recipe.sed: unknown"),
        ({"optimizer": {"betas": [0.9, 1]}}, ".optimizer.betas: 1, exclusiveMaximum 1"),
    ],
)
def test_the_schema_refuses_mistakes(content, message):
    assert message in (problem(content, SCHEMA) or "")


def test_the_schema_beside_the_docs_is_this_one():
    assert (ROOT / "docs" / "recipe.schema.json").read_text("utf-8") == json_schema(), "make report writes it"


def test_the_page_of_keys_is_this_one():
    assert keys_as_markdown() in (ROOT / "docs" / "recipes.md").read_text("utf-8"), "make report writes it"


def test_every_key_has_a_sentence():
    """Of a recipe, of what its keys name, and of the settings of objectives."""
    parts = [SCHEMA, *SCHEMA["definitions"].values(), *SCHEMA["definitions"]["Objective"]["anyOf"]]
    described = [
        (name, one) for part in parts for name, one in part.get("properties", {}).items() if "const" not in one
    ]
    assert len(described) > 150
    assert not [name for name, one in described if not one["description"].endswith(".")]


def test_every_field_of_a_config_has_a_sentence():
    """All that model.settings can name, on the page of keys, too."""
    assert settings_as_markdown() in (ROOT / "docs" / "recipes.md").read_text("utf-8"), "make report writes it"
    for config in configs():
        assert {item.name for item in own_fields(config)} <= sentences(config).keys()
    said = sentences(SYSTEMS["s-agg"].architecture.config_class)
    assert said["collected_layers"].startswith("the paper's n: the top n encoder layers")
    assert said["encoder_ffn_dim"] == "of the encoder (L), as those of the decoder."


def test_what_is_said_of_an_objective_holds_for_its_class():
    assert OBJECTIVES.keys() == CLASSES.keys()
    for name, kind in CLASSES.items():
        assert OBJECTIVES[name].translates == kind.translates


def test_reading_a_recipe_needs_no_torch():
    program = (
        "import sys, hf_mlnmt.recipe.schema; from hf_mlnmt.recipe import read_recipe; "
        f"read_recipe({str(ROOT / 'training' / 'demo-ende' / 'base.yaml')!r}); "
        "print({'torch', 'transformers'} & sys.modules.keys())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
