"""`precision.compile`: whether torch.compile works on a training's steps.

| value | a CPU | an accelerator |
| --- | --- | --- |
| true | yes, if there is a C++ compiler | yes |
| auto | no: there it has not brought back what it costs (docs/training.md) | no: nothing was measured there |
| false | no | no |
"""

from __future__ import annotations

import os
import shutil

from hf_mlnmt.training.recipe_keys import Recipe


def is_compiled(recipe: Recipe, on_cpu: bool) -> bool:
    """Whether the steps of this recipe's training are compiled on this machine."""
    return recipe.precision.compile is True and not lacks_compiler(on_cpu)


def lacks_compiler(on_cpu: bool) -> bool:
    """On a CPU torch.compile writes C++, and asks $CXX, g++ or clang++ to compile it."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return on_cpu and not any(name and shutil.which(name) for name in names)


def remark(recipe: Recipe, on_cpu: bool) -> str | None:
    """A line for the user of a training that is not compiled though that was asked for."""
    if recipe.precision.compile is True and lacks_compiler(on_cpu):
        return "precision.compile: no C++ compiler here (g++, clang++ or $CXX), so torch.compile stays off"
    return None
