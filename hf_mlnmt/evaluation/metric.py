"""Loads metrics of the `evaluate` library by name, as functions for evaluation during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import variable


def load_metric(name: str) -> Callable[..., dict[str, float]]:
    """Loads a metric; returns a function `metric(predictions, references, sources=None) -> {name: number}`.

    name: a metric of `evaluate` ('meteor', 'comet', ...), a Hub module 'owner/name', or a module's folder or script.
    The function's arguments are lists of raw texts, one reference for each sentence. Its result has the module's
    numbers as '<name>_<key>', the main one ('score', '<name>') as '<name>'.
    Raises: UserError when the module cannot be loaded, naming the missing network or package.
    """
    module = _load(name)
    formats = module.features if isinstance(module.features, list) else [module.features]

    def metric(
        predictions: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> dict[str, float]:
        import datasets

        several = any(not isinstance(features.get("references"), datasets.Value) for features in formats)
        given = [[line] for line in references] if several else list(references)
        inputs: dict[str, Any] = {"predictions": list(predictions), "references": given}
        if any("sources" in features for features in formats):
            if sources is None:
                raise UserError(f"metric {name!r} reads the source sentences too: give sources=.")
            inputs["sources"] = list(sources)
        return _numbers(Path(name).stem, module.compute(**inputs) or {}, len(predictions))

    return metric


def _load(name: str) -> Any:
    try:
        import evaluate
    except ImportError as error:
        raise UserError(f"metric {name!r} needs the package `evaluate`: pip install 'hf-mlnmt[evaluate]'.") from error
    try:
        return evaluate.load(name)
    except ImportError as error:
        raise UserError(f"metric {name!r} needs a package that is not installed: {error}") from error
    except (OSError, TypeError) as error:
        switches = [key for key in ("HF_HUB_OFFLINE", "HF_EVALUATE_OFFLINE") if variable(key, bool)]
        off = f"the Hub is switched off ({', '.join(switches)})"
        raise UserError(
            f"metric {name!r} could not be loaded: no such file or folder, not in `evaluate`'s cache, "
            f"and {off if switches else 'the Hub has no such module or cannot be reached'}. Load it once where there "
            "is a network (it is kept in the cache), give the folder of a copy, or use bleu, chrf or ter."
        ) from error


def _numbers(name: str, result: dict[str, Any], sentences: int) -> dict[str, float]:
    """Returns the numbers of a result, `name` in their keys; without any the means of lists by sentence (BERTScore)."""
    numbers = {key: float(value) for key, value in result.items() if isinstance(value, Real)}
    if not numbers:
        lists = {key: value for key, value in result.items() if isinstance(value, (list, tuple)) and value}
        numbers = {key: sum(map(float, each)) / sentences for key, each in lists.items() if len(each) == sentences}
    return {name if key in ("score", name) else f"{name}_{key}": value for key, value in numbers.items()}
