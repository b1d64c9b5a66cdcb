"""Checkpoints, whole or absent: written to a temporary folder, listed with checksums, renamed; broken ones are ignored.

A checkpoint is a folder checkpoint-<step> with the model, the states of optimizer, schedule and random generators, and
`complete.json`, which lists every file with its size and CRC-32. `write_model` writes a model folder with the mean of
checkpoints' weights, computed tensor by tensor in float64.

Reference: Vaswani et al. 2017, section 6.1 (the last 5 or 20 checkpoints are averaged).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_folder, follow_umask, read_json, size_and_crc, write_json
from hf_mlnmt.common.languages import check_same_direction, keep_direction
from hf_mlnmt.common.made_from import differences
from hf_mlnmt.common.model_folder import (
    ADAPTER,
    CONFIG,
    TEXT_FILES,
    WEIGHTS,
    auto_class_of,
    check_model_folder,
    copy_all_but_weights,
    open_weights,
    read_part,
)
from hf_mlnmt.data.tokenizer import begin_texts, identity_of, load_tokenizers, read_masks
from hf_mlnmt.training import adapters
from hf_mlnmt.training.tasks import is_head

MANIFEST, STATE, METER = "complete.json", "trainer_state.json", "meter.json"
NAME = re.compile(r"checkpoint-(\d+)$")
# Fields of config.json that say nothing about the weights' shapes and meaning.
NO_ARCHITECTURE = {"transformers_version", "dtype", "torch_dtype", "_name_or_path", "use_cache", "auto_map"}
NO_ARCHITECTURE |= {"architectures", "output_attentions", "output_hidden_states", "return_dict"}
NO_ARCHITECTURE |= {"tokenizers", "dropout", "attention_dropout", "activation_dropout"}


def step_of(checkpoint: str | Path) -> int:
    """Returns the optimizer step in a checkpoint folder's name. UserError for another name."""
    match = NAME.search(str(checkpoint))
    if not match:
        raise UserError(f"{checkpoint}: not a checkpoint folder; its name should be checkpoint-<step>.")
    return int(match.group(1))


def checkpoints(run: str | Path) -> list[Path]:
    """Returns the checkpoint folders of a run by step, whole or not."""
    return sorted((path for path in Path(run).glob("checkpoint-*") if NAME.search(path.name)), key=step_of)


def finish(staging: Path, checkpoint: Path) -> None:
    """Lists the files of `staging` with their checksums, renames it to `checkpoint` and replaces an older one."""
    files = (path for path in sorted(staging.rglob("*")) if path.is_file() and path.name != MANIFEST)
    write_json(staging / MANIFEST, {path.relative_to(staging).as_posix(): size_and_crc(path) for path in files})
    follow_umask(staging)
    shutil.rmtree(checkpoint, ignore_errors=True)
    os.replace(staging, checkpoint)


def what_is_wrong(checkpoint: Path) -> str | None:
    """Returns why a checkpoint cannot be used, or None when all its files are as they were written."""
    if not (checkpoint / MANIFEST).is_file():
        return f"{MANIFEST} is missing: it was not written to the end"
    try:
        expected = read_json(checkpoint / MANIFEST, {...: [int]})
        there = {name: size_and_crc(path) for name in expected if (path := checkpoint / name).is_file()}
        for name in differences(expected, there):
            return f"{name} is missing or not as it was written (size or checksum differs)"
        with ExitStack() as stack:
            open_weights(checkpoint, stack)
    except UserError as error:
        return str(error).removesuffix(".")
    return None


def checkpoints_to_average(paths: list[Path], last: int | None) -> list[Path]:
    """Returns `paths`, or with `last` the `last` newest whole checkpoints of the run `paths[0]`. UserError for folders
    with different vocabularies, for `last` with several folders, and for too few whole checkpoints."""
    if last is None:
        _check_same_vocabularies(paths)
        return paths
    if len(paths) != 1:
        raise UserError("--last takes the folder of one run, not several folders.")
    run = paths[0] / "checkpoints" if (paths[0] / "checkpoints").is_dir() else paths[0]
    whole = [path for path in checkpoints(run) if what_is_wrong(path) is None]
    if len(whole) < last:
        raise UserError(f"{run}: {last} checkpoints asked for, {len(whole)} whole ones found.")
    return whole[-last:]


def _check_same_vocabularies(paths: Sequence[Path]) -> None:
    """Raises UserError for tokenizers that give other ids than the first folder's; skips folders without tokenizers."""
    first = None
    for path in paths:
        if not any(any(path.glob(name)) for name in TEXT_FILES):
            continue
        tokenizers = load_tokenizers(path)
        each = {"source": tokenizers.source, "target": tokenizers.target, **tokenizers.each}
        ids = {side: identity_of(tokenizer, around=False) for side, tokenizer in each.items()}
        first = first or (path, ids, tokenizers.processing)
        if (ids, tokenizers.processing) != first[1:]:
            raise UserError(
                f"{path}: its tokenizer is not that of {first[0]}: the same rows of the embeddings are of other words. "
                "Only checkpoints of one vocabulary can be averaged."
            )


def last_good(run: str | Path, tell: Callable[[str], None]) -> Path | None:
    """Returns the newest whole checkpoint of a run, or None; `tell` is called with what is wrong with newer ones."""
    for checkpoint in reversed(checkpoints(run)):
        problem = what_is_wrong(checkpoint)
        if problem is None:
            return checkpoint
        tell(f"{checkpoint}: {problem}. It is ignored; training goes on from the one before it.")
    return None


def rotate(run: str | Path, keep: set[int]) -> None:
    """Deletes all checkpoints of a run but those of the steps in `keep`."""
    for checkpoint in checkpoints(run):
        if step_of(checkpoint) not in keep:
            # Deletes the manifest first, so that an interrupted deletion leaves no folder that looks whole.
            (checkpoint / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(checkpoint, ignore_errors=True)


def check_same_model(checkpoint: Path, config: Any) -> None:
    """Raises UserError, naming the first differing field, for a checkpoint of another architecture or vocabulary."""
    theirs, ours = read_part(checkpoint, CONFIG), json.loads(config.to_json_string(use_diff=False))
    if name := _other_field(theirs, ours):
        raise UserError(
            f"{checkpoint}: {name} is {theirs[name]!r} in this checkpoint but {ours[name]!r} in the model to "
            "be trained. A run cannot go on from a checkpoint of another architecture or vocabulary: use the "
            "settings it was trained with, or another --output folder."
        )


def _other_field(config: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Returns a field that differs in two config.json and changes the weights' shapes or meaning; None without one."""
    changed = differences(config, other, may_differ=NO_ARCHITECTURE, whole=["*"]).keys() & config.keys() & other.keys()
    return min(changed, key=lambda name: (name != "model_type", name), default=None)


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, Tensor]:
    """Returns the mean weights of model folders or checkpoints, as a state dict on the CPU in the dtype of the first.

    One tensor at a time is read from each folder. Raises: UserError without paths, or where weights, configs or
    directions differ.
    """
    if not paths:
        raise UserError("no checkpoints to average.")
    with ExitStack() as stack:
        readers = [open_weights(Path(path), stack) for path in paths]
        said = PreTrainedConfig().to_dict()  # default values of a config, which config.json leaves out
        configs = [{**said, **read_part(Path(path), CONFIG)} for path in paths]
        for path, reader, config in zip(paths, readers, configs):
            if different := sorted(readers[0].keys() ^ reader.keys()):
                raise UserError(
                    f"{path}: its weights are not those of {paths[0]}: '{different[0]}' is in one and not in the "
                    "other. Only checkpoints of one architecture can be averaged."
                )
            if field := _other_field(configs[0], config):
                raise UserError(
                    f"{path}: {field} is {config[field]!r} in its {CONFIG}, but {configs[0][field]!r} in that of "
                    f"{paths[0]}. Only checkpoints of one architecture can be averaged."
                )
        check_same_direction(paths, "Only checkpoints of one direction can be averaged.")
        return {name: _mean(name, readers) for name in readers[0]}


def _mean(name: str, readers: Sequence[dict[str, Any]]) -> Tensor:
    first = readers[0][name].get_tensor(name)
    if not first.is_floating_point():
        return first
    total = torch.zeros(first.shape, dtype=torch.float64)
    for reader in readers:
        total += reader[name].get_tensor(name).double()  # torch cannot add a float8 tensor to one of another dtype
    return (total / len(readers)).to(first.dtype)


def write_model(
    folder: Path, checkpoint: Path, weights_of: list[Path], generation: GenerationConfig | None = None
) -> Path:
    """Writes a model folder from a checkpoint's config and tokenizers and the mean weights of `weights_of`; atomically.

    Heads of objectives are left out; an adapter is merged, and also written by itself into adapter/. `generation`
    replaces the checkpoint's generation_config.
    """
    check_model_folder(checkpoint)
    with atomic_folder(folder) as new:
        copy_all_but_weights(checkpoint, new)
        if generation is not None:
            generation.save_pretrained(new)
        else:  # not a run's model: a run writes the direction into its results
            keep_direction(weights_of, new, Path(folder).name)
        if auto_class_of(new) == "AutoModelForCausalLM":
            begin_texts(new)
        if auto_class_of(new) == "AutoModelForMaskedLM":
            read_masks(new)
        weights = load_file(checkpoint / WEIGHTS) if weights_of == [checkpoint] else average_checkpoints(weights_of)
        weights = {name: tensor for name, tensor in weights.items() if not is_head(name)}
        if config := read_part(checkpoint, ADAPTER):
            adapters.write_adapter(new, checkpoint, weights)
            weights = adapters.merged(weights, config)
        save_file(weights, new / WEIGHTS, metadata={"format": "pt"})
    return folder


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Reads a checkpoint's state of the trainer and, as "meter", the seconds and target tokens of training so far."""
    return {**read_json(checkpoint / STATE), "meter": read_json(checkpoint / METER)}
