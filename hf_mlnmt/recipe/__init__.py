"""Recipes: their keys (schema.py), how they are read from YAML (reading.py), checks of keys together (checks.py)."""

from hf_mlnmt.recipe.reading import read_recipe
from hf_mlnmt.recipe.schema import Recipe

__all__ = ["Recipe", "read_recipe"]
