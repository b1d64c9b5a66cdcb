"""What a synthetic corpus is made from, known by its content: the model's files and the text's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.synthetic import sha256
from hf_mlnmt.model_folder import CONFIG, GENERATION_CONFIG, TEXT_FILES, fetch_small_files

_FILES = (CONFIG, GENERATION_CONFIG, "*.safetensors", *TEXT_FILES)


def identity_of_model(name: str, **options: Any) -> dict[str, Any]:
    """The model's name, and the SHA-256 of each file that decides what it writes: config, weights, tokenizers.

    A model of the Hub must have been loaded before. `options` are the Hub's (revision).
    """
    folder = fetch_small_files(name, **options)
    paths = {path for pattern in _FILES for path in folder.glob(pattern)}
    files = {inner for path in paths for inner in ([path] if path.is_file() else path.rglob("*")) if inner.is_file()}
    return {"name": name, "files": {str(path.relative_to(folder)): sha256(path) for path in sorted(files)}}


def identity_of_text(
    paths: Sequence[str | Path], bad: str, tell: Callable[[str], Any] | None = None
) -> list[dict[str, Any]]:
    """Of each file its name, the SHA-256 of its bytes and its lines, all of which are read: what is wrong with one is
    found before the first is translated.

    Raises: UserError naming file and line.
    """
    found = []
    for path in paths:
        if tell:
            tell(f"reading {path}")
        lines = sum(1 for _ in text_lines([path], bad))
        found.append({"name": str(path), "lines": lines, "sha256": sha256(path)})
    return found


def text_lines(paths: Sequence[str | Path], bad: str) -> Iterator[str]:
    """The lines of several files, one after the other; with `bad` "drop" an unreadable one is an empty line."""
    problems: list[int] = []
    report = (lambda reason, number, text: problems.append(number)) if bad == "drop" else None
    for path in paths:
        for line in read_lines(path, report, remedy="Mend the file, or pass over such lines with bad_lines drop."):
            yield "" if problems else line
            problems.clear()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of two identities (the content of a manifest or a state) is not the same, for people to read.

    Names of models and texts, and versions, are no difference: content is.
    """
    found = [*_of_model(before["model"], now["model"]), *_of_text(before["text"], now["text"])]
    for key in ("direction", "tag", "settings"):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            found += [f"{name}: {old.get(name)} -> {new.get(name)}" for name in names]
        elif old != new:
            found.append(f"{key}: {old} -> {new}")
    old, new = before["method"], now["method"]
    found += [
        f"method, {name}: {old.get(name)} -> {new.get(name)}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    return found


def _of_model(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[str]:
    old, new = (before or {}).get("files", {}), (now or {}).get("files", {})
    for name in sorted({**old, **new}):
        if old.get(name) != new.get(name):
            what = "is new" if name not in old else "is gone" if name not in new else "has another content"
            yield f"the model's {name} {what} ({(before or now or {})['name']} -> {(now or before or {})['name']})"


def _of_text(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(before) != len(now):
        yield f"text: {len(before)} file(s) -> {len(now)}"
    for old, new in zip(before, now):
        if old["sha256"] != new["sha256"]:
            yield f"text {new['name']}: its content changed ({old['lines']:,} lines -> {new['lines']:,})"
