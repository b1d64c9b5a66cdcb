"""Checkpoints that are whole or absent: written aside, listed with checksums, renamed; broken ones are passed over.

A checkpoint is a folder checkpoint-<step> with the model, the states of optimizer, schedule and random generators, and
`complete.json`, which lists every file with its size and CRC-32.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.files import follow_umask, is_full_disk, size_and_crc, write_json
from hf_mlnmt.model_folder import CONFIG

MANIFEST = "complete.json"
NAME = re.compile(r"checkpoint-(\d+)$")
# Fields of config.json that say nothing about the weights' shapes and meaning.
NO_ARCHITECTURE = {"transformers_version", "dtype", "torch_dtype", "_name_or_path", "use_cache", "auto_map"}
NO_ARCHITECTURE |= {"architectures", "output_attentions", "output_hidden_states", "return_dict"}
NO_ARCHITECTURE |= {"dropout", "attention_dropout", "activation_dropout"}


def step_of(checkpoint: str | Path) -> int:
    """The optimizer step in a checkpoint folder's name."""
    match = NAME.search(str(checkpoint))
    if not match:
        raise UserError(f"{checkpoint}: not a checkpoint folder; its name should be checkpoint-<step>.")
    return int(match.group(1))


def checkpoints(run: str | Path) -> list[Path]:
    """The checkpoint folders of a run by step, whole or not."""
    return sorted((path for path in Path(run).glob("checkpoint-*") if NAME.search(path.name)), key=step_of)


def staging_folder(checkpoint: Path) -> Path:
    """Where a checkpoint is written before it gets its name; all processes agree on it."""
    return checkpoint.with_name(f".{checkpoint.name}.part")


def finish(staging: Path, checkpoint: Path) -> None:
    """List the files of `staging` with their checksums and give it the name of `checkpoint` (an old one goes away)."""
    files = (path for path in sorted(staging.rglob("*")) if path.is_file() and path.name != MANIFEST)
    write_json(staging / MANIFEST, {path.relative_to(staging).as_posix(): size_and_crc(path) for path in files})
    follow_umask(staging)
    shutil.rmtree(checkpoint, ignore_errors=True)
    os.replace(staging, checkpoint)


def what_is_wrong(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be used, or None when all its files are as they were written."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{MANIFEST} is missing: it was not written to the end"
    except (ValueError, OSError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if size_and_crc(path) != list(expected):
            return f"{name} is not as it was written (size or checksum differs)"
    return None


def checkpoints_to_average(paths: list[Path], last: int | None) -> list[Path]:
    """The folders named, or the last whole checkpoints of the one run named.

    Raises: UserError when there are not that many, or `last` comes with several folders.
    """
    if last is None:
        return paths
    if len(paths) != 1:
        raise UserError("--last takes the folder of one run, not several folders.")
    run = paths[0] / "checkpoints" if (paths[0] / "checkpoints").is_dir() else paths[0]
    whole = [path for path in checkpoints(run) if what_is_wrong(path) is None]
    if len(whole) < last:
        raise UserError(f"{run}: {last} checkpoints asked for, {len(whole)} whole ones found.")
    return whole[-last:]


def last_good(run: str | Path, tell: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint of a run, or None; `tell` hears of each newer one that is broken, and why."""
    for checkpoint in reversed(checkpoints(run)):
        problem = what_is_wrong(checkpoint)
        if problem is None:
            return checkpoint
        tell(f"{checkpoint}: {problem}. It is ignored; training goes on from the one before it.")
    return None


def remove_leftovers(run: str | Path) -> None:
    """Delete what a killed process left half-written."""
    for path in Path(run).glob(".checkpoint-*.part"):
        shutil.rmtree(path, ignore_errors=True)


def rotate(run: str | Path, keep: set[int]) -> None:
    """Delete all checkpoints of a run but those of the steps in `keep`."""
    for checkpoint in checkpoints(run):
        if step_of(checkpoint) not in keep:
            # First the manifest: a deletion that is cut short must not leave something that looks whole.
            (checkpoint / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(checkpoint, ignore_errors=True)


def check_same_model(checkpoint: Path, config: Any) -> None:
    """Refuse a checkpoint whose architecture or vocabulary is not the model's.

    Raises: UserError naming the first differing field of config.json.
    """
    try:
        theirs = json.loads((checkpoint / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{checkpoint / CONFIG}: cannot be read ({error}); it is not a checkpoint.") from error
    ours = json.loads(config.to_json_string(use_diff=False))
    for name in sorted(ours.keys() & theirs.keys() - NO_ARCHITECTURE, key=lambda name: (name != "model_type", name)):
        if ours[name] != theirs[name]:
            raise UserError(
                f"{checkpoint}: {name} is {theirs[name]!r} in this checkpoint but {ours[name]!r} in the model to "
                "be trained. A run cannot go on from a checkpoint of another architecture or vocabulary: use the "
                "settings it was trained with, or another --output folder."
            )


@contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Around writing `folder`: turn the many exceptions of a full disk into one message; other exceptions pass."""
    try:
        yield
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)  # half-written; its space may be what is missing
        if isinstance(error, UserError) or not is_full_disk(error, folder):
            raise
        raise UserError(
            f"{folder}: no space left on the device while writing a checkpoint. Earlier checkpoints are untouched: "
            "free some space (or lower checkpoints.keep) and run the same command again."
        ) from error
