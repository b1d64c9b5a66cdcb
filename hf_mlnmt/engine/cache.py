"""Converted models in the user's cache: made once for the same weights and vocabularies, by one process at a time.

`<cache>/ctranslate2/<hash>-<dtype>/` holds the model and entry.json: the versions that made it, and size and CRC-32 of
every file. What does not fit its entry.json, or was made by other versions, is made anew. `<cache>` is
`$HF_MLNMT_CACHE`, else `$XDG_CACHE_HOME/hf_mlnmt`, else `~/.cache/hf_mlnmt`; it may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.files import atomic_folder, cache_folder, size_and_crc, write_json

ENTRY = "entry.json"
LAYOUT = 1  # to be raised when conversion.py writes something else


def content_hash(model: Any, vocabularies: Sequence[Sequence[str]]) -> str:
    """Of everything that a converted model is made of: the config, every weight, the tokens of both sides."""
    found = hashlib.blake2b(digest_size=16)
    settings = {name: value for name, value in model.config.to_dict().items() if not name.startswith(("_", "transf"))}
    found.update(json.dumps([settings, *vocabularies], sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


@contextmanager
def entry(name: str, build: Callable[[Path], None], tell: Callable[[str], None]) -> Iterator[Path]:
    """The folder of this name in the cache, whole; `build` fills it if it is not there, damaged or of other versions.

    Nobody else changes it while the context lasts. Raises: OSError or UserError where nothing can be written.
    """
    from filelock import FileLock

    folder = cache_folder() / "ctranslate2" / name
    locks = folder.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{name}.lock"):
        if not is_whole(folder):
            tell(f"{'making it again' if folder.exists() else 'made once'}, kept in {folder.parent}")
            with atomic_folder(folder) as new:
                build(new)
                write_json(new / ENTRY, _record(new))
        yield folder


def is_whole(folder: Path) -> bool:
    """Whether every file is as it was written, by these versions."""
    try:
        return json.loads((folder / ENTRY).read_text(encoding="utf-8")) == _record(folder)
    except (OSError, ValueError):
        return False


def _record(folder: Path) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ENTRY)
    return {
        "schema": "hf_mlnmt.engine/1",
        "layout": LAYOUT,
        "ctranslate2": importlib.metadata.version("ctranslate2"),
        "files": {path.relative_to(folder).as_posix(): size_and_crc(path) for path in files},
    }
