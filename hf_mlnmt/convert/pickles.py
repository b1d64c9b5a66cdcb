"""Checkpoints of PyTorch's, read without running anything that stands in them."""

from __future__ import annotations

import argparse
import pickle
import re
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.errors import UserError
from hf_mlnmt.model_folder import first_line

_OLD_VOCABULARY = (
    "It holds vocabularies as objects of torchtext, as OpenNMT-py before version 3 wrote them: reading those means "
    "running code. OpenNMT-py 3 or CTranslate2's converter for OpenNMT-py can read them, where OpenNMT-py is installed."
)


def load(path: Path) -> dict[str, Any]:
    """The checkpoint, with nothing in it but tensors, plain values and argparse's Namespace.

    Raises: UserError for a file that is none, and for a pickle that asks for anything else.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise UserError(f"{path}: {_reason(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: a checkpoint is a mapping, this is a {type(content).__name__}.")
    return content


def _reason(error: Exception) -> str:
    """What is wrong with a file that cannot be loaded; torch's own words go on with advice that is not ours."""
    asked = re.search(r"GLOBAL ([\w.]+)", str(error))
    if asked is None:
        return f"not a checkpoint of PyTorch, or a damaged one ({first_line(error).partition('. ')[0].rstrip('.')})."
    more = f" {_OLD_VOCABULARY}" if asked[1].startswith(("torchtext", "onmt")) else ""
    return (
        "holds more than weights and plain settings, and what else a pickle holds is never run: it asks for "
        f"{asked[1]}.{more}"
    )
