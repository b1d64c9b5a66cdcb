"""Probing: how well a classifier reads a property of the sentence from a frozen encoder's vector of it.

References: thesis on joint attention, sections 4.5.4 (table 4.8) and 5.6.1 (table 5.5); Conneau et al. 2018.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from hf_mlnmt.analysis.classifiers import MlpSettings, train_logistic_regression, train_mlp
from hf_mlnmt.analysis.embeddings import embed_texts
from hf_mlnmt.analysis.features import cached_states, fingerprint
from hf_mlnmt.analysis.probing_tasks import PARTS, ProbingTask
from hf_mlnmt.generation.loading import Parts

Classifier = Literal["mlp", "logistic"]
CLASSIFIERS: tuple[Classifier, ...] = get_args(Classifier)


def wilson_interval(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): low and high, each from 0 to 1."""
    share, square = right / count, z * z / count
    middle = share + square / 2
    width = z * (share * (1 - share) / count + square / (4 * count)) ** 0.5
    return (middle - width) / (1 + square), (middle + width) / (1 + square)


def probe_key(
    parts: Parts, task: ProbingTask, layer: int | str, classifier: Classifier, settings: MlpSettings, seed: int
) -> str:
    """A digest of all that a probe's result depends on, to recognise one that is done."""
    texts = [(part, task.texts[part], task.labels[part]) for part in PARTS]
    used = {**asdict(settings), "seed": seed} if classifier == "mlp" else {}
    content = json.dumps([fingerprint(parts.model), layer, classifier, used, task.classes, texts], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def probe(
    parts: Parts,
    task: ProbingTask,
    layer: int | str,
    classifier: Classifier,
    settings: MlpSettings,
    seed: int = 1,
    cache: str | Path | None = None,
    **reading: Any,
) -> dict[str, Any]:
    """One row: accuracy on the test part in percent with its 95 % interval, and what it is to be compared with.

    layer: of the encoder, 0 the embeddings; or the pooling of `embed_texts`: "flat", "mean", "row 3".
    `majority`: the accuracy of the most frequent class; `epoch`: the perceptron's best, by `dev_accuracy`; `train`,
    `dev`, `test`: sentences. `reading`: batch_tokens, source_language, target_language of `cached_states`.
    """
    vectors = {part: _vectors(parts, task.texts[part], layer, cache, **reading) for part in PARTS}
    labels = {part: torch.tensor(task.labels[part]) for part in PARTS}
    if classifier == "mlp":
        found = train_mlp(vectors, labels, len(task.classes), settings, seed)
    else:
        found = train_logistic_regression(vectors, labels)
    right, count = int((found.test == labels["test"]).sum()), len(labels["test"])
    low, high = wilson_interval(right, count)
    sizes = {str(part): len(task.texts[part]) for part in PARTS}
    scores = {"accuracy": right / count, "low": low, "high": high, "majority": task.majority}
    scores["dev_accuracy"] = found.dev_accuracy
    return {
        "task": task.name,
        "layer": layer,
        "classifier": classifier,
        **{name: 100 * value for name, value in scores.items()},
        "epoch": found.epoch or None,
        "classes": len(task.classes),
        **sizes,
    }


def _vectors(
    parts: Parts, texts: Sequence[str], layer: int | str, cache: str | Path | None = None, **reading: Any
) -> torch.Tensor:
    """(sentences, width): a layer's mean states, or the model's embeddings, which are not kept."""
    if isinstance(layer, int):
        return cached_states(parts, texts, [layer], cache, **reading)[layer]
    pooling = int(layer.removeprefix("row ")) if layer.startswith("row ") else layer
    found = embed_texts(parts, texts, reading.get("source_language"), pooling, reading.get("batch_tokens") or 4096)
    return torch.from_numpy(found)
