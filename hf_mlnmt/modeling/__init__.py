"""Architectures, a file for each paper's idea. Each class can be imported from here: `from hf_mlnmt.modeling import X`.

Importing hf_mlnmt registers them with Transformers' Auto classes (hf_mlnmt/zoo/registration.py).
"""

import importlib
import re
from pathlib import Path
from typing import Any


def __getattr__(name: str) -> Any:
    """Imports and returns the class `name` from the file of this folder that defines it."""
    if name[:1].isupper() and name.isidentifier():
        defined = re.compile(rf"^(class {name}\b|(\w+, )?{name}\b.* = encoder_heads)", re.MULTILINE)
        for path in sorted(Path(__file__).parent.glob("*.py")):
            if defined.search(path.read_text(encoding="utf-8")):
                return getattr(importlib.import_module(f"{__name__}.{path.stem}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
