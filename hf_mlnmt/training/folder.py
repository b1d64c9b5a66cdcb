"""A run's folder: one process at a time, one recipe and one training set for its whole life."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from hf_mlnmt.errors import UserError
from hf_mlnmt.files import write_json, write_text
from hf_mlnmt.training.recipe import Recipe

# Keys that may change between two starts of one run: they change neither its weights nor its checkpoints.
FREE_KEYS = ("logging", "decoding")


@contextmanager
def alone(output: Path) -> Iterator[None]:
    """Refuse to run beside another process that trains in the same folder. A killed process holds nothing."""
    output.mkdir(parents=True, exist_ok=True)
    with (output / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{output}: another training is running in this folder. Wait for it, or choose another --output."
            ) from error
        yield


def claim(output: Path, recipe: Recipe, command: str) -> None:
    """Clean up after a killed process and keep the recipe; refuse a folder that another recipe was trained in."""
    for path in [*output.glob(".*.part"), *output.glob(".*.old"), *output.glob("data/.*.part")]:
        shutil.rmtree(path, ignore_errors=True)
    kept = output / "recipe.yaml"
    if not kept.is_file():
        write_text(kept, f"# {command}\n{recipe.to_yaml()}")
        return
    before, now = yaml.safe_load(kept.read_text(encoding="utf-8")), yaml.safe_load(recipe.to_yaml())
    for key in sorted(before.keys() | now.keys()):
        if key not in FREE_KEYS and before.get(key) != now.get(key):
            raise UserError(
                f"{output}: a training with another '{key}' is in this folder ({before.get(key)}, now {now.get(key)}). "
                "Choose another --output for the new settings, or delete the folder."
            )


def check_data(output: Path, fingerprints: list[str]) -> None:
    """Refuse to go on with other training data or tokenizers than the run began with."""
    kept = output / "data" / "fingerprints.json"
    if kept.is_file() and json.loads(kept.read_text(encoding="utf-8")) != fingerprints:
        raise UserError(
            f"{output}: the training data or the tokenizer changed since this run began. Put back what was there, or "
            "choose another --output for the new data."
        )
    write_json(kept, fingerprints)
