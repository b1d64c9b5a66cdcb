"""The finished models on test sets of text: perplexity of language models, of others the loss of their objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from accelerate import Accelerator

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.evaluation import Results
from hf_mlnmt.evaluation.perplexity import perplexity
from hf_mlnmt.model_folder import RESULTS, auto_class_of, load_model
from hf_mlnmt.table import Number, Table
from hf_mlnmt.training.dev import DevSet
from hf_mlnmt.training.objectives import Objective

if TYPE_CHECKING:
    from hf_mlnmt.training.preparation import RawPairs

SHOWN = ("per_subword", "per_word", "bits_per_byte", "loss", "per_predicted_token")


def score_texts(
    folders: Mapping[str, Path],
    results: Mapping[str, Results],
    objective: Objective,
    tokenizers: Tokenizers,
    tests: Sequence[RawPairs],
    encode: Callable[[str], Any],
) -> Table:
    """Write the key "perplexity" of each model's results.json: test set -> its numbers. Returns them as a table.

    Args:
        folders, results: of each finished model.
        objective: that they were trained with.
        encode: the encoded test set of a name.
    """
    rows = []
    for name, folder in folders.items():
        results[name].extra["perplexity"] = found = _score(folder, objective, tokenizers, tests, encode)
        results[name].write(folder / RESULTS)
        rows += [(test, name, numbers) for test, numbers in found.items()]
    shown = [number for number in SHOWN if any(number in numbers for _, _, numbers in rows)]
    cells = [
        [test, name, *(f"{numbers[one]:.3f}" if one in numbers else "" for one in shown)]
        for test, name, numbers in rows
    ]
    return Table(["test set", "model", *(Number(one.replace("_", " ")) for one in shown)], sorted(cells), "perplexity")


def _score(
    folder: Path, objective: Objective, tokenizers: Tokenizers, tests: Sequence[RawPairs], encode: Callable[[str], Any]
) -> dict[str, dict[str, float]]:
    """Perplexity (evaluation/perplexity.py) of a language model; of others loss and exp(loss) per predicted token."""
    auto_class = auto_class_of(folder)
    model = load_model(folder, getattr(transformers, auto_class)).eval()
    if auto_class == "AutoModelForCausalLM":
        return {test.name: perplexity(model, tokenizers, test.sources).to_dict() for test in tests}
    found = {}
    for test in tests:
        scores = DevSet(encode(test.name), objective=objective.measured()).evaluate(model, Accelerator(cpu=True))
        found[test.name] = {"loss": scores["loss"], "per_predicted_token": math.exp(scores["loss"])}
    return found
