"""The package's files of Python, parsed once for all tests that read them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "hf_mlnmt"
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def nodes_of(file: str) -> tuple[ast.AST, ...]:
    """The file itself first."""
    return tuple(ast.walk(ast.parse(FILES[file].read_text("utf-8"))))
