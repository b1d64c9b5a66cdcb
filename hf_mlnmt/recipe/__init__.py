"""Recipes: their keys, how they are read, and what keys ask of one another."""

from hf_mlnmt.recipe.reading import read_recipe
from hf_mlnmt.recipe.schema import Recipe

__all__ = ["Recipe", "read_recipe"]
