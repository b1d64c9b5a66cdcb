"""CTranslate2 as a format to export to: which systems it takes, and the check that it computes what generate() does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.export.check import LENGTH, Search, Sentences, check_scores, compare_searches
from hf_mlnmt.generation.ctranslate2 import Request, Translator, lacks, single_decoder
from hf_mlnmt.generation.ctranslate2 import write as write_model


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
    sentences, strict = Sentences.of(model, tokenizers), dtype == "float32"
    scores = translator.log_probabilities(sentences.sources, [ids[1:] for ids in sentences.targets])
    difference = check_scores(list(map(torch.tensor, scores)), model, sentences, strict)
    searches = []
    for name, beams in (("greedy", 1), ("beam 4", 4)):
        rows = translator.search(sentences.sources, Request(beams, 1, 1.0, LENGTH, (), None))
        searches.append(Search(name, beams, [best for (best,) in rows]))
    agreement = compare_searches(model, sentences, searches, strict)
    return {"largest_difference_of_log_probabilities": difference, **agreement}
