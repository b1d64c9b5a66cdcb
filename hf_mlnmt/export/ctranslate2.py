"""CTranslate2 as a format to export to: which systems it takes, and the check that it computes what generate() does."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.export.check import LENGTH, compare
from hf_mlnmt.generation.translating.ctranslate2 import Request, Translator, lacks, single_decoder
from hf_mlnmt.generation.translating.ctranslate2 import write as write_model


def exportable(model: Any) -> Any:
    """Returns the baseline's model to export: this one, or multi-level supervision without its auxiliary decoders.

    Raises: UserError that says what CTranslate2 lacks.
    """
    model = single_decoder(model)
    if reason := lacks(model):
        raise UserError(
            f"{type(model).__name__} cannot be exported to CTranslate2, which lacks {reason}. Use generate() or "
            "`hf-mlnmt translate`, which run every system, or export --format onnx."
        )
    return model


def write(model: Any, tokenizers: Tokenizers, folder: Path, dtype: str) -> dict[str, Any]:
    """Saves the model and checks it. Returns and raises: as `check`."""
    if dtype != "float32":  # rounded weights can only be compared loosely: check what they are rounded from
        with tempfile.TemporaryDirectory() as scratch:
            write(model, tokenizers, Path(scratch), "float32")
    write_model(model, tokenizers, folder, dtype)
    return check(folder, model, tokenizers, dtype)


def check(folder: Path, model: Any, tokenizers: Tokenizers, dtype: str) -> dict[str, Any]:
    """Loads the folder and compares with `model`: log probabilities of given targets, greedy and beam search.

    Returns: the differences, for the record. Raises: UserError if float32 differs; rounded weights are reported only.
    """
    # A CPU has no float16 arithmetic: the rounded weights, computed in float32.
    translator = Translator(folder, model, tokenizers, "int8" if dtype == "int8" else "float32")

    def scores(sources: list[list[int]], targets: list[list[int]]) -> list[torch.Tensor]:
        return list(map(torch.tensor, translator.log_probabilities(sources, [ids[1:] for ids in targets])))

    def search(sources: list[list[int]], beams: int) -> list[list[int]]:
        return [best for (best,) in translator.search(sources, Request(beams, 1, 1.0, LENGTH, (), None))]

    return compare(model, tokenizers, scores, search, strict=dtype == "float32")
