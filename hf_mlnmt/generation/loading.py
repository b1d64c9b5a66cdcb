"""Load what translation needs from a folder or Hub name: model, tokenizers, the text processing to apply and undo."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.model_folder import fetch_small_files, load_model


class Parts(NamedTuple):
    """A loaded translation system; `target` is `source` when there is one tokenizer for both sides."""

    model: Any
    source: Any
    target: Any
    source_processing: TextProcessing | None = None
    target_processing: TextProcessing | None = None


def load(name: str, device: str | None = None, dtype: str = "auto", **options: Any) -> Parts:
    """Load a system from a folder or a Hub name; `options` go to from_pretrained (revision, trust_remote_code...).

    dtype: auto, float32, bfloat16, float16; or int8: linear layers with weights in int8 and inputs rounded to int8 as
    they come, on a CPU (docs/decoding.md says when that is faster).

    Raises UserError when it is not there, is not a translation model, or its vocabulary does not fit.
    """
    rounded = dtype == "int8"
    if dtype not in ("auto", "int8") and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UserError(f"dtype {dtype!r} is not known: use auto, float32, bfloat16, float16 or int8.")
    model = load_model(name, dtype="float32" if rounded else dtype, **options)
    folder = fetch_small_files(name, **options)
    source, target, processing = _tokenizers(name, folder, options)
    parts = Parts(model, source, target, processing.get("source"), processing.get("target"))
    check_vocabulary(name, parts)
    try:
        model.to(torch.device("cpu") if rounded and device is None else choose_device(device)).eval()
    except RuntimeError as error:
        raise UserError(f"device {device!r}: {error}") from error
    return parts._replace(model=_in_int8(model)) if rounded else parts


def _in_int8(model: Any) -> Any:
    """The model with its linear layers in int8."""
    if model.device.type != "cpu":
        raise UserError(f"dtype int8 is for a CPU, not for device {model.device}: use bfloat16 or float16 there.")
    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao's successor is a package of its own
        model = quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    token = torch.tensor([[model.config.decoder_start_token_id]])
    try:
        with torch.no_grad():
            model(input_ids=token, decoder_input_ids=token)
    except (AttributeError, TypeError) as error:  # a rounded layer has no weight to be read
        raise UserError(
            f"dtype int8: {type(model).__name__} computes with its layers' own weights; use float32."
        ) from error
    return model


def choose_device(device: str | None) -> torch.device:
    """The device asked for, or a GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device {device!r} is not known: use cpu, cuda, cuda:0, mps...") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r}: no CUDA device is usable here. Leave the option out or say cpu.")
    return chosen


def _tokenizers(name: str, folder: Path, options: dict[str, Any]) -> tuple[Any, Any, dict[str, TextProcessing]]:
    if not options.get("trust_remote_code"):
        loaded = load_tokenizers(folder)
        return loaded.source, loaded.target, {side: p for side, p in loaded.processing.items() if not p.identity}
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{name}: its tokenizer cannot be loaded. {error}") from error
    return tokenizer, tokenizer, {}


def check_vocabulary(name: str, parts: Parts) -> None:
    """Raises: UserError when a tokenizer has more entries than the model has embeddings."""
    config = parts.model.config
    sides = [(parts.source, config.vocab_size, "source")]
    if parts.target is not parts.source:
        sides.append((parts.target, getattr(config, "decoder_vocab_size", None) or config.vocab_size, "target"))
    for tokenizer, rows, side in sides:
        if len(tokenizer) > rows:
            raise UserError(
                f"{name}: the {side} tokenizer has {len(tokenizer)} entries, the model {rows} embeddings. "
                "They are not of one model: train or download both together."
            )
