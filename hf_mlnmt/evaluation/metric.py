"""Loads metrics of the `evaluate` library by name, as functions for evaluation during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import variable

METRIC_PATH = Path(__file__).resolve().parent / "hf_metric"
"""Folder of our scores as an `evaluate` module: `evaluate.load(str(METRIC_PATH))`."""
OWN_NAME = "hf_mlnmt"


def load_metric(name: str, **options: Any) -> Callable[..., dict[str, float]]:
    """Loads a metric; returns a function `metric(predictions, references, sources=None) -> {name: number}`.

    name: 'hf_mlnmt' (ours, offline), any metric of `evaluate` ('sacrebleu', 'meteor', 'comet', ...), a Hub module
    'owner/name', or a module's folder or script. options: passed to each computation (`protocol="classic"`).
    The function's arguments are lists of raw texts; references: a string or a list of strings for each sentence. Its
    result has the module's numbers as '<name>_<key>', the main one ('score', '<name>') as '<name>'; ours are 'bleu',
    'chrf', 'ter'.
    Raises: UserError when the module cannot be loaded, naming the missing network or package.
    """
    module = _load(str(METRIC_PATH) if name == OWN_NAME else name)
    label = "" if name == OWN_NAME else Path(name).stem

    def metric(
        predictions: Sequence[str], references: Sequence[Any], sources: Sequence[str] | None = None
    ) -> dict[str, float]:
        inputs: dict[str, Any] = {"predictions": list(predictions), "references": _shape(module, references)}
        if any("sources" in features for features in _formats(module)):
            if sources is None:
                raise UserError(f"metric {name!r} reads the source sentences too: give sources=.")
            inputs["sources"] = list(sources)
        return _numbers(label, module.compute(**inputs, **options) or {}, len(predictions))

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
        raise UserError(
            f"metric {name!r} could not be loaded: no such file or folder, not in `evaluate`'s cache, "
            f"and {_network()}. Load it once where there is a network (it is kept in the cache), give the folder of a "
            f"copy, or use {OWN_NAME!r} (BLEU, chrF, TER), which needs none."
        ) from error


def _network() -> str:
    if switches := [key for key in ("HF_HUB_OFFLINE", "HF_EVALUATE_OFFLINE") if variable(key, bool)]:
        return f"the Hub is switched off ({', '.join(switches)})"
    return "the Hub has no such module or cannot be reached"


def _formats(module: Any) -> list[Any]:
    return module.features if isinstance(module.features, list) else [module.features]


def _shape(module: Any, references: Sequence[Any]) -> list[Any]:
    """Returns references in the module's form: lists of references, or a string each; UserError where it takes only one
    reference, and a sentence has several."""
    import datasets

    single = all(isinstance(group, str) for group in references)
    if any(not isinstance(features.get("references"), datasets.Value) for features in _formats(module)):
        return [[line] for line in references] if single else list(references)
    if single:
        return list(references)
    if any(len(group) != 1 for group in references):
        raise UserError(f"metric {module.name!r} takes one reference a sentence; these have several.")
    return [group[0] for group in references]


def _numbers(name: str, result: dict[str, Any], sentences: int) -> dict[str, float]:
    """Returns the numbers of a result, `name` in their keys; without any the means of lists by sentence (BERTScore)."""
    numbers = {key: float(value) for key, value in result.items() if isinstance(value, Real)}
    if not numbers:
        lists = {key: value for key, value in result.items() if isinstance(value, (list, tuple)) and value}
        numbers = {key: sum(map(float, each)) / sentences for key, each in lists.items() if len(each) == sentences}
    if not name:
        return numbers
    return {name if key in ("score", name) else f"{name}_{key}": value for key, value in numbers.items()}
