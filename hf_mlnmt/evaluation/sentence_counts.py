"""What the metrics add up over sentences: enough for scores, intervals and tests, without the text itself.

BLEU, chrF and TER of a test set are functions of sums: of matched and possible n-grams and lengths, of edits. The
numbers of each sentence are sacreBLEU's own "sufficient statistics". Kept beside a run's scores they let runs be
compared when their translations are gone, or may not be published.

| metric | numbers of a sentence |
| --- | --- |
| BLEU | output tokens, reference tokens, matched 1- to 4-grams, 1- to 4-grams of the output |
| chrF | for each of 1 to 6 characters: n-grams of the output, of the reference, matched |
| TER | edits, reference tokens (the mean over references) |
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.protocols import METRICS, MetricName, Protocol, ProtocolName, metric_named
from hf_mlnmt.evaluation.scores import Lines, References, check_counts, reference_lists
from hf_mlnmt.files import atomic_path

Counts = dict[MetricName, np.ndarray]
"""For each metric an array (sentences, numbers)."""


def count_sentences(
    outputs: Lines,
    references: References,
    *,
    protocol: ProtocolName = "cased",
    language: str | None = None,
    metrics: Sequence[str] = METRICS,
) -> Counts:
    """The numbers of every sentence of raw outputs beside raw references. Arguments and errors as of score()."""
    sets = reference_lists(references)
    check_counts(outputs, sets)
    how = Protocol(protocol, language)
    prepared, prepared_references = how.prepare(outputs), [how.prepare(lines) for lines in sets]
    counts: Counts = {}
    for name in map(metric_named, metrics):
        found = how.metric(name, prepared_references)._extract_corpus_statistics(prepared, None)
        counts[name] = np.array(found, np.float64 if name == "TER" else np.int64)
    return counts


def scores_of_sums(metric: MetricName, sums: np.ndarray) -> np.ndarray:
    """Scores (...,), 0 to 100 and more, from sums over sentences (..., numbers): sacreBLEU's, for many at a time.

    Sums in which a metric must smooth (no match of some n, nothing to match) are given to sacreBLEU one by one.
    """
    rows = sums.reshape(-1, sums.shape[-1]).astype(np.float64)
    plain = (rows > 0).all(1) if metric != "TER" else rows[:, 1] > 0
    scores = np.empty(len(rows))
    scores[plain] = _FORMULAS[metric](rows[plain])
    if not plain.all():
        one = Protocol("cased").metric(metric, [["-"]])
        scores[~plain] = [one._compute_score_from_stats(row.tolist()).score for row in rows[~plain]]
    return scores.reshape(sums.shape[:-1])


def _bleu(rows: np.ndarray) -> np.ndarray:
    lengths, references, matched, possible = rows[:, 0], rows[:, 1], rows[:, 2:6], rows[:, 6:10]
    brevity = np.exp(np.minimum(0, 1 - references / lengths))
    return 100 * brevity * np.exp(np.log(matched / possible).mean(1))  # type: ignore[no-any-return]


def _chrf(rows: np.ndarray, beta: float = 2) -> np.ndarray:
    outputs, references, matched = rows[:, 0::3], rows[:, 1::3], rows[:, 2::3]
    precision, recall = (matched / outputs).mean(1), (matched / references).mean(1)
    return 100 * (1 + beta**2) * precision * recall / (beta**2 * precision + recall)  # type: ignore[no-any-return]


def _ter(rows: np.ndarray) -> np.ndarray:
    return 100 * rows[:, 0] / rows[:, 1]  # type: ignore[no-any-return]


_FORMULAS = {"BLEU": _bleu, "chrF": _chrf, "TER": _ter}


# The file: safetensors of small integers, packed with gzip: "<test set>/<protocol>/<metric>" -> (sentences, numbers).

TestSets = Mapping[str, Mapping[ProtocolName, Counts]]


def write_counts(path: str | Path, counts: TestSets) -> Path:
    """Write {test set: {protocol: Counts}} as one file, the same bytes for the same numbers."""
    from safetensors.numpy import save

    arrays = {
        f"{test}/{protocol}/{metric}": _smallest(array)
        for test, protocols in counts.items()
        for protocol, by_metric in protocols.items()
        for metric, array in by_metric.items()
    }
    with atomic_path(path) as new:
        new.write_bytes(gzip.compress(save(dict(sorted(arrays.items()))), mtime=0))
    return Path(path)


def read_counts(path: str | Path) -> dict[str, dict[ProtocolName, Counts]]:
    """What `write_counts` has written. UserError for another file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(gzip.decompress(Path(path).read_bytes()))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except (SafetensorError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a file of sentence counts ({error}).") from error
    found: dict[str, dict[Any, Counts]] = {}
    for name, array in arrays.items():
        parts = name.rsplit("/", 2)
        if len(parts) != 3 or array.ndim != 2:
            raise UserError(f"{path}: '{name}' is not <test set>/<protocol>/<metric>: not a file of sentence counts.")
        found.setdefault(parts[0], {}).setdefault(parts[1], {})[metric_named(parts[2])] = array
    return found


def _smallest(array: np.ndarray) -> np.ndarray:
    if (array != np.floor(array)).any():
        return array.astype(np.float64)
    kind = np.min_scalar_type(int(array.max(initial=0)))
    return array.astype(kind if kind in (np.uint8, np.uint16) else np.int64)
