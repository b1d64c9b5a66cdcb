"""Averages of checkpoints: the mean of the weights, tensor by tensor, in float64.

Reference: Vaswani et al. 2017, section 6.1 (the last 5 or 20 checkpoints are averaged).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hf_mlnmt.errors import UserError
from hf_mlnmt.model_folder import WEIGHTS, WEIGHTS_INDEX


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, Tensor]:
    """Mean weights of model folders or checkpoints, as a state dict on the CPU in the dtype of the first.

    One tensor at a time is read from each: memory for one model, whatever their number.

    Raises: UserError when there is none, a folder has no safetensors weights, or names, shapes or dtypes differ, or
    a weight is not finite.
    """
    if not paths:
        raise UserError("no checkpoints to average.")
    with ExitStack() as stack:
        readers = [open_weights(Path(path), stack) for path in paths]
        _check_same_names(paths, readers)
        return {name: _mean(name, paths, readers) for name in readers[0]}


def open_weights(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Tensor name -> the open file that holds it, of a model folder; `stack` closes the files.

    Raises: UserError when there is no folder, no safetensors weights in it, or they are broken.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the folders of checkpoints or models.")
    files = [folder / WEIGHTS]
    if (folder / WEIGHTS_INDEX).is_file():
        index = json.loads((folder / WEIGHTS_INDEX).read_text(encoding="utf-8"))
        files = [folder / name for name in sorted(set(index["weight_map"].values()))]
    tensors: dict[str, Any] = {}
    for path in files:
        if not path.is_file():
            raise UserError(f"{path}: no such file; expected a model saved as safetensors.")
        try:
            reader = stack.enter_context(safe_open(str(path), framework="pt"))
        except SafetensorError as error:
            raise UserError(f"{path}: broken or half-written ({error}). Leave this checkpoint out.") from error
        tensors |= dict.fromkeys(reader.keys(), reader)
    return tensors


def _check_same_names(paths: Sequence[str | Path], readers: Sequence[dict[str, Any]]) -> None:
    for path, reader in zip(paths, readers):
        if different := sorted(readers[0].keys() ^ reader.keys()):
            raise UserError(
                f"{path}: its weights are not those of {paths[0]}: '{different[0]}' is in one and not in the other. "
                "Only checkpoints of one architecture can be averaged."
            )


def _mean(name: str, paths: Sequence[str | Path], readers: Sequence[dict[str, Any]]) -> Tensor:
    first = readers[0][name].get_tensor(name)
    if not first.is_floating_point():
        return first
    total = torch.zeros(first.shape, dtype=torch.float64)
    for path, reader in zip(paths, readers):
        tensor = reader[name].get_tensor(name)
        if tensor.shape != first.shape:
            raise UserError(
                f"{path}: {name} has shape {list(tensor.shape)}, but {list(first.shape)} in {paths[0]}. "
                "Only checkpoints of one architecture and vocabulary can be averaged."
            )
        if not torch.isfinite(tensor).all():
            raise UserError(
                f"{path}: {name} holds NaN or infinity: its training went wrong. Leave this checkpoint out."
            )
        total += tensor
    return (total / len(readers)).to(first.dtype)
