"""Paths of this machine in texts that are published: hidden where we write them, searched for where others do."""

import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# An absolute path of two or more parts that begins a word: not "https://x/y", "and/or", "3/4" or "a/b/c".
_ABSOLUTE = re.compile(r"""(?<![\w:/.~<-])/[\w.@+~%-]+(?:/[\w.@+~%-]+)+/?""")
_WINDOWS = re.compile(r"""(?<![\w])[A-Za-z]:\\[^\s"'<>|]+""")
_HOME = re.compile(r"""(?<![\w:/.~<-])~/[\w.@+/~%-]+""")
# What no published text may hold, wherever it was made: someone's home.
_SOMEONES_HOME = re.compile(r"""(?<![\w:/.~<-])/(?:home|Users|root)/[\w.-]+|[A-Za-z]:\\\\?Users\\""")
_TELLING = re.compile(r"[/\\]|hf_")  # without one of these a text has neither a path nor a token
SECRET = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")


def hide_paths(value: Any) -> Any:
    """Returns `value` (text, or JSON of any depth) with every absolute path cut to its last part, and tokens masked."""
    return _hidden(value, [(_bounded(root), Path(root).name) for root in machine_roots()])


def _hidden(value: Any, roots: Sequence[tuple[str, str]]) -> Any:
    if isinstance(value, dict):
        return {_hidden(key, roots): _hidden(item, roots) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item, roots) for item in value]
    return _hide(value, roots) if isinstance(value, str) and _TELLING.search(value) else value


def _hide(text: str, roots: Sequence[tuple[str, str]]) -> str:
    for root, name in roots:  # these may hold spaces, which the expressions below take for an end
        text = re.sub(root + r"/?(?=[\s\"',;:)\]]|$)", name, text)
        text = re.sub(root + "/", "", text)
    for pattern in (_ABSOLUTE, _HOME):
        text = pattern.sub(lambda match: match[0].rstrip("/").rsplit("/", 1)[-1], text)
    text = _WINDOWS.sub(lambda match: match[0].rstrip("\\").rsplit("\\", 1)[-1], text)
    return SECRET.sub("hf_***", text)


def find_paths(text: str, roots: Iterable[str]) -> list[str]:
    """Returns the absolute paths of this machine (under `roots`) or of anyone's home in a text."""
    homes = {match[0] for match in _SOMEONES_HOME.finditer(text)}
    return sorted(homes | {root for root in roots if re.search(_bounded(root) + r"(?![\w.-])", text)})


def machine_roots(*folders: str | Path) -> list[str]:
    """Returns folders whose names tell of this machine, longest first: the given, home, working, temporary, Python's.

    A root of one part ("/work", "/tmp") is left out: it stands in too many innocent texts.
    """
    here = [Path.home(), Path.cwd(), Path(tempfile.gettempdir()), Path(sys.prefix), *map(Path, folders)]
    paths = {str(path.absolute()) for path in here} | {str(path.resolve()) for path in here}
    return sorted((path for path in paths if len(Path(path).parts) > 2), key=len, reverse=True)


def _bounded(root: str) -> str:
    return r"(?<![\w:/.~-])" + re.escape(root)
