"""A synthetic corpus on disk: pairs of which one side was written by a model, and the manifest that says how.

| file | what is in it |
| --- | --- |
| source.txt, target.txt | line i of one and line i of the other are a pair |
| manifest.json | the model, the text, the method, what was counted and dropped; sizes and SHA-256 of all of these |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import Form, misfit, read_json
from hf_mlnmt.common.made_from import sha256

MANIFEST = "manifest.json"
SCHEMA = "hf_mlnmt.generation.synthetic.back_translation/1"
FILES = {"source": "source.txt", "target": "target.txt"}
COUNTS: Form = {"read": int, "kept": int, "found": {...: int}, "dropped": {...: int}}
MADE_FROM: Form = {
    "direction": str,
    "model": (None, {"name": str, "files": dict}),
    "text": [{"name": str, "lines": int, "sha256": str}],
    "method": dict,
    "tag": (None, str),
}
FORM: Form = {
    **MADE_FROM,
    "pairs": {"lines": int, **{side: {"bytes": int, "sha256": str} for side in FILES}},
    "counts": COUNTS,
}


@dataclass(frozen=True)
class Manifest:
    """The manifest in `folder`; `content` is the JSON."""

    folder: Path
    content: Mapping[str, Any]

    @property
    def pairs(self) -> int:
        """Returns the number of pairs."""
        return self.content["pairs"]["lines"]

    @property
    def tag(self) -> str | None:
        """Returns the token that is to stand before every source of these pairs."""
        return self.content["tag"]

    def summary(self) -> dict[str, Any]:
        """Returns what a results file says of it."""
        model = self.content["model"]
        return {
            "direction": self.content["direction"],
            "model": model["name"] if model else None,
            "method": self.content["method"],
            "counts": self.content["counts"],
        }


def find_synthetic(name: str | Path, root: str | Path = ".") -> Path:
    """Returns the folder of a synthetic corpus, relative to `root` or to here.

    Raises: UserError when there is none, or it is not finished.
    """
    places = [Path(root) / name, Path(name)]
    places = [place.parent if place.name == MANIFEST else place for place in places]
    for place in places:
        if (place / MANIFEST).is_file():
            return place
    if unfinished := next((place for place in places if (place / "state.json").is_file()), None):
        raise UserError(
            f"{unfinished}: this back-translation is not finished. Start the command that makes it again: it goes on."
        )
    if sharded := next((place for place in places if any(place.glob("shard-*-of-*"))), None):
        raise UserError(f"{sharded}: its shards are not put together. Start the command again without --shard.")
    raise UserError(f"{name}: no synthetic corpus there (no {MANIFEST}). Make one: hf-mlnmt back-translate.")


def check_some(manifest: Manifest) -> None:
    """Raises UserError for a synthetic corpus without pairs."""
    if not manifest.pairs:
        counts, model = manifest.content["counts"], (manifest.content["model"] or {}).get("name", "its model")
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in counts["dropped"].items()) or "there was no text"
        none = f"{manifest.folder}: of {counts['read']:,} translations none is left ({dropped})."
        raise UserError(f"{none} Is the text in the language that {model} reads?")


def read_manifest(folder: str | Path) -> Manifest:
    """Read a manifest and compare the files beside it with what it says of them.

    Raises: UserError when it is missing or not one of ours, and naming each file that changed since.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder}: no {MANIFEST} there: it is no synthetic corpus, or not a finished one.")
    content = read_json(path)
    if content.get("schema") != SCHEMA:
        raise UserError(f"{path}: not a manifest of a synthetic corpus ('schema' is not {SCHEMA}).")
    if problem := misfit(content, FORM):
        raise UserError(f"{path}: {problem} Make the corpus again in another folder.")
    problems = {file: _difference(Path(folder) / file, content["pairs"][side]) for side, file in FILES.items()}
    if changed := [f"{file}: {problem}" for file, problem in problems.items() if problem]:
        raise UserError(
            f"{path}: files changed since it was written: {'; '.join(changed)}. Put back what was there, or make the "
            "corpus again in another folder."
        )
    return Manifest(Path(folder), content)


def _difference(path: Path, told: Mapping[str, Any]) -> str | None:
    if not path.is_file():
        return "is missing"
    if (size := path.stat().st_size) != told["bytes"]:
        return f"has {size:,} bytes, {told['bytes']:,} expected"
    now = sha256(path)
    return None if now == told["sha256"] else f"its SHA-256 is {now[:12]}..., {told['sha256'][:12]}... expected"
