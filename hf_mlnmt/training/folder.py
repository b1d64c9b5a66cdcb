"""The folder of a run: what may change between two starts of a run, and which products are made again after a change.

In a folder one process trains at a time, by one recipe (but for keys that may change), on one training set. Until it
holds a checkpoint (`has_begun`) recipe and text may be replaced; products that do not depend on a change are kept.

| compared with the last start | if it changed |
| --- | --- |
| the recipe (`compare`): `FREE` keys; a longer budget, more patience | what they change is done again (`MadeFrom`) |
| the recipe: other keys, and a longer budget where the schedule ends with it | refused, key by key: old -> new |
| training data and tokenizers (`check_data`) | refused |
| text of the test sets (`is_finished`) | translated and scored again |
| checkpoints and decoding (`digest_of_model`), versions (run.py) | models, translations, scores are made again |
| processor, library of products (run.py) | a warning: the library stays, the last digits may change |
| number of processes (run.py) | each accumulates as many batches as keep the size of a step |
| too few checkpoints left (run.py) | refused |

A change of the recipe is allowed where the run could have come to its present state with the new recipe too: it changes
what is done with the checkpoints, or only what comes after them.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import only_one, write_text
from hf_mlnmt.common.keys import build
from hf_mlnmt.common.made_from import Changes, MadeFrom, differences, digest, is_below
from hf_mlnmt.common.model_folder import RESULTS
from hf_mlnmt.data.corpus import RawPairs, digest_of_texts
from hf_mlnmt.recipe.reading import load_yaml
from hf_mlnmt.recipe.schema import Recipe
from hf_mlnmt.training import checkpoints

# Keys, with all keys below them, whose change leaves weights and checkpoints of the training so far as they are.
ON_CARDS = ("data.name", "data.licence", "data.domain", "data.datasets")
FREE = (
    *("logging", "decoding", "data.test", "data.processes", *ON_CARDS, "checkpoints.keep", "checkpoints.average"),
    "evaluation.before",
)
# Keys of FREE after whose change no product of a finished run has to be made again.
WITHOUT_EFFECT = ("logging", "checkpoints.keep", "data.processes")
# Schedules whose learning rate at a step depends on the step where the training ends.
ENDING = ("cosine", "linear")
# Keys of corpora, whose values are compared as a whole.
WHOLE = ("data.train", "data.dev", "data.test.*")


def changes(before: Recipe, now: Recipe) -> Changes:
    """Returns the keys whose values differ, with the value in each recipe."""
    return differences(before.to_dict(), now.to_dict(), whole=WHOLE)


def allowed_changes(before: Recipe, now: Recipe, place: str) -> Changes:
    """Returns the keys whose values differ, if each may change in a run begun with `before`; place: the run's folder.

    Raises: UserError that lists the keys whose change would make another training, old -> new.
    """
    changed = changes(before, now)
    conflicts = {key: values for key, values in changed.items() if not _is_allowed(key, values, before)}
    if not conflicts:
        return changed
    listed = "\n".join(f"  {key}: {_short(old)} -> {_short(new)}" for key, (old, new) in conflicts.items())
    reason = ""
    if any(is_below(key, ("budget",)) for key in conflicts) and before.schedule.name in ENDING:
        reason = (
            f"\nThe learning rate of schedule {before.schedule.name} comes down to its end where the budget ends: with "
            "another budget every step would have had another one. inverse_sqrt, constant and newbob can go on."
        )
    raise UserError(
        f"{place}: this folder holds a training with other settings (old -> new):\n{listed}{reason}\n"
        "Choose another --output for the new ones, or go back to the old ones. Test sets, decoding, "
        "checkpoints.average and logging may be changed at any time."
    )


def _is_allowed(key: str, values: tuple[Any, Any], before: Recipe) -> bool:
    # batch.accumulate may change with the number of processes: run.py checks that steps keep their size
    if is_below(key, (*FREE, "batch.accumulate")):
        return True
    if is_below(key, ("budget",)):
        return before.schedule.name not in ENDING
    if key == "evaluation.patience":  # with less patience the run might have ended already
        old, new = values
        return old is not None and (new is None or new >= old)
    return False


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


RECIPE, MADE_FROM = "recipe.yaml", "made_of.json"
PAIR = "pair"  # the folder that training/pair.py writes before the run begins
PRODUCTS = "products.json"  # records which library computes the matrix products of this run
ALPHAS = "alphas.json"  # with precision.int8: the scales of the linear layers' inputs


def check_output(output: Path) -> None:
    """Raises UserError for a folder with other content than a run's, or that cannot be written. Writes nothing."""
    if output.is_dir():
        others = sorted(path.name for path in output.iterdir() if path.name[0] != "." and path.name != PAIR)
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
def each_said_once() -> Iterator[None]:
    """Runs a block in which each warning of the package is shown once, although corpora are read several times."""
    said = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in said
        said.add(text)
        return new

    logs = [logging.getLogger(name) for name in [*logging.root.manager.loggerDict] if name.startswith("hf_mlnmt.")]
    for log in logs:
        log.addFilter(is_new)
    try:
        yield
    finally:
        for log in logs:
            log.removeFilter(is_new)


def alone(output: Path) -> AbstractContextManager[None]:
    """Locks a run's folder for a block; UserError if another process trains there. A lock ends with its process."""
    return only_one(
        output, f"{output}: another training is running in this folder. Wait for it, or choose another --output."
    )


def has_begun(output: Path) -> bool:
    """Returns whether a run's folder has results or a checkpoint, its own or a round's; until then all may change."""
    saved = (path for at in ("", "*/") for path in output.glob(f"{at}checkpoints/checkpoint-*"))
    return (output / RESULTS).is_file() or any(saved)


def compare(output: Path, recipe: Recipe) -> Changes:
    """Returns the changed keys after which products must be made again. UserError for a key that must not change, or
    that needs checkpoints which are deleted."""
    path = output / RECIPE
    if not path.is_file():
        return {}
    try:
        before = build(Recipe, load_yaml(path)[0], str(path))
    except UserError as error:
        raise UserError(
            f"{error}\n{output} is the folder of another version's training, or of none: choose another --output."
        ) from error
    allowed = allowed_changes(before, recipe, str(output)) if has_begun(output) else changes(before, recipe)
    changed = {key: values for key, values in allowed.items() if not is_below(key, WITHOUT_EFFECT)}
    if changed and (output / RESULTS).is_file() and not checkpoints.checkpoints(output / "checkpoints"):
        raise UserError(
            f"{output}: {', '.join(changed)} cannot be changed: this run is finished and its checkpoints are gone. "
            f"Score {output / 'average'} with `hf-mlnmt evaluate`, or choose another --output."
        )
    return changed


def is_finished(output: Path, changes: Changes, tests: Callable[[], Sequence[RawPairs]]) -> bool:
    """Returns whether the run is complete: there are results, no key changed, and test sets have the same text."""
    if changes or not (output / RESULTS).is_file():
        return False
    now = digest_of_texts(tests())
    return made_from(output).digests.get("tests", now) == now


def clean(output: Path) -> None:
    """Deletes temporary files (.part, .old) that a killed process left."""
    for path in [*output.glob(".*.part"), *output.glob(".*.old"), *output.glob("*/.*.part")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def keep_recipe(output: Path, recipe: Recipe, command: str, amended: bool = False) -> None:
    """Writes the recipe if the folder has none; `amended`: replaces it and deletes results.json, which marks a finished
    run."""
    if amended:
        (output / RESULTS).unlink(missing_ok=True)
    if amended or not (output / RECIPE).is_file():
        write_text(output / RECIPE, f"# {command}\n{recipe.to_yaml()}")


def check_data(output: Path, fingerprints: list[str]) -> None:
    """Raises UserError if training data or tokenizers are not those the run began with; else records their digest."""
    made, now = made_from(output), digest(fingerprints)
    if has_begun(output) and made.digests.get("data", now) != now:
        raise UserError(
            f"{output}: the training data, the tokenizer, or how they are read, changed since this run began. Put back "
            "what was there, or choose another --output for the new data."
        )
    made.note("data", now)


def digest_of_model(folders: Sequence[Path], generation: Any) -> str:
    """Returns a digest of what a model folder is made from: its checkpoints' lists of checksums, and the decoding."""
    manifests = [(folder / checkpoints.MANIFEST).read_text(encoding="utf-8") for folder in folders]
    return digest(manifests, {} if generation is None else generation.to_diff_dict())


def made_from(output: Path) -> MadeFrom:
    """Returns the digests of what the run's products were made from: model/<name>, translations/<file>, data..."""
    return MadeFrom(output / MADE_FROM)
