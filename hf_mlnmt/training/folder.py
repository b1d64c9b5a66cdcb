"""A run's folder: one process at a time, one recipe (but for what may be amended), one training set for its life."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hf_mlnmt.errors import UserError
from hf_mlnmt.files import is_full_disk, only_one, write_json, write_text
from hf_mlnmt.model_folder import RESULTS
from hf_mlnmt.recipe.building import build, load_yaml
from hf_mlnmt.recipe.schema import Recipe
from hf_mlnmt.training import checkpoints
from hf_mlnmt.training.amending import WITHOUT_EFFECT, Changes, allowed_changes, is_below

RECIPE, FINGERPRINTS = "recipe.yaml", "data/fingerprints.json"
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)


def check_output(output: Path) -> None:
    """Refuse a folder that cannot become, or is not, the folder of a run. Writes nothing.

    Raises: UserError for a file, a folder of other things, and one that cannot be written.
    """
    if output.is_dir():
        others = sorted(path.name for path in output.iterdir() if not path.name.startswith("."))
        if others and not (output / RECIPE).is_file():
            raise UserError(
                f"{output}: is no folder of a training: it has no {RECIPE}, but {', '.join(others[:3])}"
                f"{' and more' if len(others) > 3 else ''}. Choose another --output, which need not exist."
            )
    existing = next(path for path in (output, *output.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"{existing}: is a file; --output {output} must be a folder. Choose another.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{existing}: cannot be written. Choose another --output than {output}.")


@contextmanager
def explained(output: Path) -> Iterator[None]:
    """Turn what the system says of a full disk or a folder that cannot be written into one message."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError):
            raise
        if is_full_disk(error, output):
            raise UserError(
                f"{getattr(error, 'filename', None) or output}: no space left on the device. What was finished is "
                "kept: free some space and run the same command again."
            ) from error
        if isinstance(error, OSError) and error.errno in REFUSED:
            raise UserError(
                f"{error.filename or output}: cannot be read or written ({error.strerror}). Check who may, or choose "
                "another --output."
            ) from error
        raise


@contextmanager
def temporary() -> Iterator[Path]:
    """A temporary folder, removed at the end. Raises: UserError where none can be made."""
    try:
        folder = tempfile.TemporaryDirectory()
    except OSError as error:
        raise UserError(
            f"no folder for temporary files can be written ({error}). Set TMPDIR to one that can."
        ) from error
    with folder as name:
        yield Path(name)


def alone(output: Path) -> AbstractContextManager[None]:
    """Refuse to run beside another process that trains in the same folder. A killed process holds nothing."""
    return only_one(
        output, f"{output}: another training is running in this folder. Wait for it, or choose another --output."
    )


def kept_recipe(output: Path) -> Recipe | None:
    """The recipe that a run was last started with; None in a new folder."""
    path = output / RECIPE
    if not path.is_file():
        return None
    try:
        return build(Recipe, load_yaml(path)[0], str(path), hidden={"path"})
    except UserError as error:
        raise UserError(
            f"{error}\n{output} is the folder of another version's training, or of none: choose another --output."
        ) from error


def compare(output: Path, recipe: Recipe) -> Changes:
    """The keys that change something in this folder, all of which may; none for a new folder.

    Raises: UserError for a conflict, see `allowed_changes`, and for changes of a run whose checkpoints are gone.
    """
    before = kept_recipe(output)
    if before is None:
        return {}
    found = allowed_changes(before, recipe, str(output))
    found = {key: values for key, values in found.items() if not is_below(key, WITHOUT_EFFECT)}
    if found and (output / RESULTS).is_file() and not checkpoints.checkpoints(output / "checkpoints"):
        raise UserError(
            f"{output}: {', '.join(found)} cannot be changed: this run is finished and its checkpoints are gone. Score "
            f"{output / 'average'} with `hf-mlnmt evaluate`, or choose another --output."
        )
    return found


def clean(output: Path) -> None:
    """Clean up after a killed process."""
    for path in [*output.glob(".*.part"), *output.glob(".*.old"), *output.glob("data/.*.part")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def keep_recipe(output: Path, recipe: Recipe, command: str, amended: bool = False) -> None:
    """Write the recipe; of an amended run, take away the results file, which says that the run is finished."""
    if amended:
        (output / RESULTS).unlink(missing_ok=True)
    if amended or not (output / RECIPE).is_file():
        write_text(output / RECIPE, f"# {command}\n{recipe.to_yaml()}")


def check_data(output: Path, fingerprints: list[str]) -> None:
    """Refuse to go on with other training data or tokenizers than the run began with."""
    kept = output / FINGERPRINTS
    if kept.is_file() and json.loads(kept.read_text(encoding="utf-8")) != fingerprints:
        raise UserError(
            f"{output}: the training data or the tokenizer changed since this run began. Put back what was there, or "
            "choose another --output for the new data."
        )
    write_json(kept, fingerprints)
