"""Computes digests of the inputs and settings that results are made from, and differences between two of them.

A result that is kept for reuse has a record of its inputs beside it. Before it is reused, the record is compared with
the present inputs; where nothing differs it is used.

| result | its inputs | file of the record | if they differ |
| --- | --- | --- | --- |
| a run (training/folder.py) | recipe | recipe.yaml | some keys: the steps they change are run again; others: refused |
| its corpora and tokenizers | text, tokenizers, filters | made_of.json | refused |
| its models, outputs and scores | checkpoints, decoding, test sets, versions | made_of.json | made again |
| an encoded corpus (data/encoding.py) | text, tokenizers, filters | meta.json | made again |
| a synthetic corpus (synthetic/back_translation.py) | model, text, method | state.json, manifest.json | refused |
| a file of translations (generation/translating/lines.py) | model, text, options | OUTPUT.part/state.json | refused |
| the weights of a reranker (analysis/tuning.py) | models; search, text and metric are said | the file | refused |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.common.model_folder import MODEL_FILES, fetch_small_files

Changes = dict[str, tuple[Any, Any]]
"""key -> (old value, new value), None where the key is missing; "a.b" is the key b of the mapping a."""


class Digest:
    """Computes a digest of values that are added one after the other: BLAKE2b of 16 bytes, or SHA-256."""

    def __init__(self, algorithm: Literal["blake2b", "sha256"] = "blake2b") -> None:
        self._hash: Any = hashlib.blake2b(digest_size=16) if algorithm == "blake2b" else hashlib.sha256()

    def raw(self, *parts: bytes | memoryview) -> Self:
        """Adds bytes to the digest; returns this object."""
        for part in parts:
            self._hash.update(part)
        return self

    def text(self, text: str) -> Self:
        """Adds text, as UTF-8, to the digest; returns this object."""
        return self.raw(text.encode())

    def value(self, value: Any) -> Self:
        """Adds a value to the digest as JSON with sorted keys; objects that JSON lacks are added as their str()."""
        return self.text(json.dumps(value, sort_keys=True, default=str))

    def file(self, path: Path) -> Self:
        """Adds the bytes of a file to the digest; returns this object."""
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                self.raw(block)
        return self

    def weights(self, weights: Mapping[str, Any], shapes: bool = True) -> Self:
        """Adds tensors to the digest, sorted by name: names and bytes, and with `shapes` their dtypes and shapes."""
        import torch

        for name, tensor in sorted(weights.items()):
            self.text(f"{name} {tensor.dtype} {tuple(tensor.shape)}" if shapes else name)
            self._hash.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return self

    def hex(self) -> str:
        """Returns the digest of all added values, in hexadecimal."""
        return self._hash.hexdigest()


def digest(*values: Any) -> str:
    """Returns a digest of the values, 32 hexadecimal digits, which is equal for equal values."""
    return Digest().value(values).hex()


def sha256(path: str | Path) -> str:
    """Returns the SHA-256 of a file's bytes, as `sha256sum` prints it."""
    return Digest("sha256").file(Path(path)).hex()


def sha256_of_lines(lines: Iterable[str]) -> str:
    """Returns the SHA-256 of lines, joined by line breaks."""
    return Digest("sha256").text("\n".join(lines)).hex()


def sha256_of_files(folder: Path, patterns: Iterable[str]) -> dict[str, str]:
    """Returns {path in the folder: SHA-256} of files that match the patterns, and of all files in folders that do."""
    paths = {path for pattern in patterns for path in folder.glob(pattern)}
    files = {inner for path in paths for inner in ([path] if path.is_file() else path.rglob("*")) if inner.is_file()}
    return {str(path.relative_to(folder)): sha256(path) for path in sorted(files)}


def stamps(paths: Iterable[Path]) -> list[list[int]]:
    """Returns [bytes, time of modification in ns] of each of the files that exist."""
    stats = [path.stat() for path in paths if path.is_file()]
    return [[stat.st_size, stat.st_mtime_ns] for stat in stats]


class Origin:
    """The files and settings that a result is made from, to be compared with the record of an earlier result.

    Equal sizes and times of modification count as equal files; where only times differ, contents are compared. (Times
    are compared for equality only: clocks may differ.)
    """

    def __init__(self, settings: Any, files: Iterable[Path] = ()) -> None:
        self.settings, self.files = settings, [path for path in files if path.is_file()]
        self.stamps = stamps(self.files)

    @cached_property
    def fingerprint(self) -> str:
        """Returns the digest of the settings and of the files' content; reads the files at the first call."""
        return digest([Digest().file(path).hex() for path in self.files], self.settings)

    def record(self) -> dict[str, Any]:
        """Returns digests of settings and files, and files' sizes and times: stored beside the result, for `holds`."""
        return {"settings": digest(self.settings), "files": self.stamps, "fingerprint": self.fingerprint}

    def holds(self, record: Mapping[str, Any], check: bool = False) -> bool:
        """Returns whether the result with this `record` was made from these inputs; `check`: always read contents."""
        if record["settings"] != digest(self.settings):
            return False
        if record["files"] == self.stamps and not check:
            self.__dict__["fingerprint"] = record["fingerprint"]  # so that `record` need not read the files
            return True
        sizes = [[size for size, _ in files] for files in (record["files"], self.stamps)]
        return sizes[0] == sizes[1] and record["fingerprint"] == self.fingerprint

    def check_unchanged(self) -> None:
        """Raises UserError for files that have changed since this object was made."""
        if stamps(self.files) != self.stamps:
            names = ", ".join(map(str, self.files))
            raise UserError(f"{names}: changed while they were read. Run the same command again.")


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], may_differ: Collection[str] = (), whole: Collection[str] = ()
) -> Changes:
    """Returns {key: (old value, new value)} of the keys whose values differ, in the order of the keys.

    Args:
        may_differ: keys that are ignored, with all keys below them.
        whole: patterns of keys, as "data.test.*", whose mappings are compared as a whole.
    """
    return {key: values for key, values in _differences(before, now, "", whole) if not is_below(key, may_differ)}


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any], at: str, whole: Collection[str]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for key in {**before, **now}:
        old, new, name = before.get(key), now.get(key), f"{at}{key}"
        as_one = any(fnmatchcase(name, pattern) for pattern in whole)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and not as_one:
            yield from _differences(old, new, f"{name}.", whole)
        elif old != new:
            yield name, (old, new)


def is_below(key: str, names: Collection[str]) -> bool:
    """Returns whether a key is one of `names` or below one: "a.b" is below "a"."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


class MadeFrom:
    """Records the digest of the inputs of each product in a folder, as {product: digest} in a JSON file.

    A product whose digest is unchanged need not be made again. A missing or broken file counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.digests = read_json(path)
        except (OSError, UserError):
            self.digests = {}

    def same(self, product: str, value: str) -> bool:
        """Returns whether a product was made from inputs with the digest `value`."""
        return self.digests.get(product) == value

    def note(self, product: str, value: str) -> None:
        """Stores the digest of a product's inputs; called after the product was made."""
        if not self.same(product, value):
            self.digests[product] = value
            write_json(self.path, self.digests)


def identity_of_model(name: str, **options: Any) -> dict[str, Any]:
    """Returns a model's name, and the SHA-256 of each file on which its outputs depend: config, weights, tokenizers.

    A model from the Hub must have been loaded before. options: the Hub's, as revision.
    """
    folder = fetch_small_files(name, **options)
    return {"name": name, "files": sha256_of_files(folder, MODEL_FILES)}


def identity_of_text(path: str | Path, lines: Iterable[str]) -> dict[str, Any]:
    """Returns a file's name, the SHA-256 of its bytes and the number of its `lines`.

    Reads all lines, so that an error in one (a UserError naming file and line) is raised before work begins.
    """
    return {"name": str(path), "lines": sum(1 for _ in lines), "sha256": sha256(path)}


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], what: str, remedy: str) -> None:
    """Raises UserError if two identities (contents of a manifest or a state) differ, and names each difference.

    Names of models and texts, and versions, may differ, contents may not. `what` begins the message, `remedy` ends it.
    """
    changed, models = list[str](), (before["model"] or {}, now["model"] or {})
    names = " -> ".join((one or other).get("name", "") for one, other in (models, models[::-1]))
    for name, (old, new) in sorted(differences(*(model.get("files", {}) for model in models)).items()):
        how = "is new" if old is None else "is gone" if new is None else "has another content"
        changed.append(f"the model's {name} {how} ({names})")
    if len(before["text"]) != len(now["text"]):
        changed.append(f"text: {len(before['text'])} file(s) -> {len(now['text'])}")
    for old, new in zip(before["text"], now["text"]):
        if old["sha256"] != new["sha256"]:
            changed.append(f"text {new['name']}: its content changed ({old['lines']:,} lines -> {new['lines']:,})")
    old, new = ({key: about.get(key) for key in ("direction", "tag", "settings", "method")} for about in (before, now))
    for key, (was, is_now) in differences(old, new).items():
        changed.append(f"{key.removeprefix('settings.').replace('method.', 'method, ')}: {was} -> {is_now}")
    if changed:
        raise UserError(f"{what} of something else:\n  " + "\n  ".join(changed) + f"\n{remedy}, or go back to that.")
