"""Hides local paths in texts that this package publishes, and finds local paths in texts that others wrote."""

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
# Home folders, which no published text may have, whichever machine it was written on.
_SOMEONES_HOME = re.compile(r"""(?<![\w:/.~<-])/(?:home|Users|root)/[\w.-]+|[A-Za-z]:\\\\?Users\\""")
_TELLING = re.compile(r"[/\\]|hf_")  # texts without a match have neither a path nor a token
SECRET = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")


def hide_paths(value: Any) -> Any:
    """Returns a text or JSON value whose strings have absolute paths cut to their last part, and Hub tokens masked."""
    return _hidden(value, [(_bounded(root), Path(root).name) for root in machine_roots()])


def _hidden(value: Any, roots: Sequence[tuple[str, str]]) -> Any:
    if isinstance(value, dict):
        return {_hidden(key, roots): _hidden(item, roots) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item, roots) for item in value]
    return _hide(value, roots) if isinstance(value, str) and _TELLING.search(value) else value


def _hide(text: str, roots: Sequence[tuple[str, str]]) -> str:
    for root, name in roots:  # roots may have spaces, at which the patterns below end
        text = re.sub(root + r"/?(?=[\s\"',;:)\]]|$)", name, text)
        text = re.sub(root + "/", "", text)
    for pattern in (_ABSOLUTE, _HOME):
        text = pattern.sub(lambda match: match[0].rstrip("/").rsplit("/", 1)[-1], text)
    text = _WINDOWS.sub(lambda match: match[0].rstrip("\\").rsplit("\\", 1)[-1], text)
    return SECRET.sub("hf_***", text)


def find_paths(text: str, roots: Iterable[str]) -> list[str]:
    """Returns the roots of this machine (`roots`) and the home folders of any user that a text names."""
    homes = {match[0] for match in _SOMEONES_HOME.finditer(text)}
    return sorted(homes | {root for root in roots if re.search(_bounded(root) + r"(?![\w.-])", text)})


def machine_roots(*folders: str | Path) -> list[str]:
    """Returns folders that identify this machine, longest first: home, working, temporary folder, Python's, `folders`.

    A folder of one part ("/work", "/tmp") is left out, since too many harmless texts name it.
    """
    here = [Path.home(), Path.cwd(), Path(tempfile.gettempdir()), Path(sys.prefix), *map(Path, folders)]
    paths = {str(path.absolute()) for path in here} | {str(path.resolve()) for path in here}
    return sorted((path for path in paths if len(Path(path).parts) > 2), key=len, reverse=True)


def _bounded(root: str) -> str:
    return r"(?<![\w:/.~-])" + re.escape(root)
