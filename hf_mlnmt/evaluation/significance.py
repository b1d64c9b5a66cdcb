"""Tests of the difference of two systems over sentences and seeds, the marks † and ‡, and the file of sentence counts.

Each system was trained once or from several seeds; its score is the mean of its runs' scores. Counts of sentences, kept
beside a run's scores, let runs be tested when their translations are gone, or may not be published; sacreBLEU's paired
tests read texts, of one run each, and then draw the same samples.

Approximate randomisation and the paired bootstrap ask what other sentences would have given, not what other seeds: with
few runs their p-values are too small for a claim about the architecture. `welch_test` asks what other seeds would have
given, from the runs' scores alone.

References: Clark et al. 2011, "Better Hypothesis Testing for Statistical Machine Translation" (several runs in one
test); Riezler and Maxwell 2005 (approximate randomisation); Koehn 2004 (paired bootstrap); Phipson and Smyth 2010 (the
p-value of a randomisation test); Holm 1979 (correction for many systems).
"""

from __future__ import annotations

import gzip
import statistics
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation.scores import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_SEED,
    NUMBERS,
    Counts,
    MetricName,
    ProtocolName,
    check_samples,
    coins,
    metric_named,
    products,
    resamples,
    scores_of_sums,
)

LEGEND = (
    "† p < 0.05, ‡ p < 0.01 of approximate randomisation, and of several seeds of the Welch test too, corrected for "
    "the number of systems that were compared with the baseline (Holm)."
)
"""What every table, page and document with marks says of them."""


def p_of_mark(tested: Mapping[str, Any]) -> float | None:
    """Returns the larger p-value of approximate randomisation and Welch's test; None if the first was not computed."""
    p, of_seeds = tested.get("approximate_randomisation"), tested.get("welch")
    return p if p is None or of_seeds is None else max(p, of_seeds)


def marks(p_values: Mapping[str, float | None]) -> dict[str, str]:
    """Returns the mark of each system that was compared with one baseline; "" for none.

    p_values: {system: `p_of_mark`, not corrected}, of all these systems; None: not tested.
    """
    corrected = {name: 1.0 if p is None else p for name, p in holm(p_values).items()}
    return {name: "‡" if p < 0.01 else "†" if p < 0.05 else "" for name, p in corrected.items()}


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns p-values corrected for their number (Holm 1979), the chance of any false alarm; None stays None."""
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    corrected: dict[str, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for rank, (p, name) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[name] = largest
    return corrected


# The file: safetensors of small integers, packed with gzip: "<test set>/<protocol>/<metric>" -> (sentences, numbers).


def pack_counts(counts: Mapping[str, Mapping[ProtocolName, Counts]]) -> bytes:
    """Packs {test set: {protocol: Counts}} as the content of one file, the same bytes for the same numbers."""
    from safetensors.numpy import save

    arrays = {
        f"{test}/{protocol}/{metric}": _smallest(array)
        for test, protocols in counts.items()
        for protocol, by_metric in protocols.items()
        for metric, array in by_metric.items()
    }
    return gzip.compress(save(dict(sorted(arrays.items()))), mtime=0)


def unpack_counts(packed: bytes, path: str | Path) -> dict[str, dict[ProtocolName, Counts]]:
    """Unpacks the content of the file `path` that `pack_counts` made. Raises: UserError for another content."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(gzip.decompress(packed))
    except (SafetensorError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a file of sentence counts ({error}).") from error
    counts: dict[str, dict[Any, Counts]] = {}
    for name, array in arrays.items():
        parts = name.rsplit("/", 2)
        if len(parts) != 3 or array.ndim != 2:
            raise UserError(f"{path}: '{name}' is not <test set>/<protocol>/<metric>: not a file of sentence counts.")
        metric = metric_named(parts[2])
        if array.shape[1] != NUMBERS[metric] or not np.isfinite(array).all():
            raise UserError(f"{path}: '{name}': expected {NUMBERS[metric]} counts a sentence. Give the run again.")
        counts.setdefault(parts[0], {}).setdefault(parts[1], {})[metric] = array
    return counts


def _smallest(array: np.ndarray) -> np.ndarray:
    if (array != np.floor(array)).any():
        return array.astype(np.float64)
    kind = np.min_scalar_type(int(array.max(initial=0)))
    return array.astype(kind if kind in (np.uint8, np.uint16) else np.int64)


P_VALUES = ("approximate_randomisation", "paired_bootstrap", "welch")
DEFAULT_TRIALS = 10_000
FEWEST_SENTENCES = 100
"""Below it no p-value is given: of equal systems the tests would call too many different (docs/scores.md, measured)."""
TOO_FEW = f"fewer than {FEWEST_SENTENCES} sentences: no test"

Counted = Sequence[np.ndarray]
"""The counts of sentences of the runs of one system."""

TIE = 1e-9
"""Differences of scores that are as close as this are equal: rounding is below 1e-12, one n-gram above 1e-6."""


def compare_seeds(
    metric: MetricName,
    baseline: Counted,
    system: Counted,
    *,
    trials: int = DEFAULT_TRIALS,
    bootstrap: int = DEFAULT_BOOTSTRAP,
    seed: int = DEFAULT_SEED,
) -> dict[str, float | None]:
    """Returns the difference of the means of the runs' scores, and p-values, which are not rounded.

    p-values are None below FEWEST_SENTENCES sentences and where the counts are equal; welch also with one run, and
    without SciPy.

    Args:
        baseline, system: counts of as many runs, those of the same seeds at the same places.

    Raises: UserError unless both have equally many runs, at least one, all of the same sentences.
    """
    if len(baseline) != len(system) or not baseline:
        raise UserError(f"{len(system)} runs beside {len(baseline)} of the baseline: give both the same seeds.")
    check_samples(seed, trials, bootstrap)
    shapes = {run.shape for run in (*baseline, *system)}
    if len(shapes) > 1:
        raise UserError(f"runs of different test sets or metrics (sentences and numbers: {sorted(shapes)}).")
    base, own = (scores_of_sums(metric, np.stack([run.sum(0) for run in runs])) for runs in (baseline, system))
    tested = len(system[0]) >= FEWEST_SENTENCES and any((a != b).any() for a, b in zip(baseline, system))
    numbers: list[float | None] = [None] * len(P_VALUES)
    if tested:
        randomisation = randomisation_test(metric, baseline, system, trials, seed)
        bootstrapped = bootstrap_test(metric, baseline, system, bootstrap, seed)
        numbers = [randomisation, bootstrapped, welch_test(base.tolist(), own.tolist())]
    return {"difference": round(float(own.mean() - base.mean()), 4), **dict(zip(P_VALUES, numbers, strict=True))}


def randomisation_test(metric: MetricName, baseline: Counted, system: Counted, trials: int, seed: int) -> float:
    """Returns the p-value of approximate randomisation.

    It is the share of trials whose difference of mean scores is at least as large as the real one, the real one counted
    as a trial. sacreBLEU counts larger ones alone: where few sentences differ most trials are ties, and its p-value of
    one differing sentence is 1 / (trials + 1) in place of 1.
    """
    shuffled = shuffled_differences(metric, baseline, system, trials, seed)
    return _p_value(shuffled >= _difference(metric, baseline, system) - TIE)


def shuffled_differences(metric: MetricName, baseline: Counted, system: Counted, trials: int, seed: int) -> np.ndarray:
    """Returns the absolute difference of mean scores in each trial of approximate randomisation: (trials,).

    A trial exchanges the outputs of both systems, for each sentence of each seed or not, by a coin.
    """
    draw = np.random.default_rng(seed)
    shuffled = np.zeros((2, trials))
    for base, own in zip(baseline, system):
        # As in sacreBLEU: where the coin is 1, the first pseudo-system has the baseline's output.
        kept = coins(draw, trials, len(base))
        first = np.concatenate([products(block, base.astype(np.float64) - own) for block in kept]) + own.sum(0)
        shuffled += scores_of_sums(metric, np.stack([first, base.sum(0) + own.sum(0) - first]))
    return np.abs(shuffled[0] - shuffled[1]) / len(system)


def bootstrap_test(metric: MetricName, baseline: Counted, system: Counted, samples: int, seed: int) -> float:
    """Returns the p-value of the paired bootstrap, as sacreBLEU counts it.

    Sentences are drawn with replacement, the same ones for every run. p is the share of samples whose difference is
    larger than their mean difference by more than the real one. It is below 0.05 for one in eight to ten pairs of equal
    systems, so no mark is made of it.
    """
    differences = np.concatenate(
        [
            sum(
                scores_of_sums(metric, products(times, own)) - scores_of_sums(metric, products(times, base))
                for base, own in zip(baseline, system)
            )
            for times in resamples(len(baseline[0]), samples, seed)
        ]
    )
    differences = np.abs(differences / len(system))
    return _p_value(differences - differences.mean() > _difference(metric, baseline, system) + TIE)


def _difference(metric: MetricName, baseline: Counted, system: Counted) -> float:
    sums = np.stack([[run.sum(0) for run in runs] for runs in (baseline, system)])
    first, second = scores_of_sums(metric, sums).mean(1)
    return abs(float(first - second))


def _p_value(counted: np.ndarray) -> float:
    """Returns the share of trials that count against the difference; the difference itself is one of them."""
    return (int(counted.sum()) + 1) / (len(counted) + 1)


def welch_test(baseline: Sequence[float], system: Sequence[float]) -> float | None:
    """Returns the two-sided p-value of Welch's t-test on scores; None with fewer than two runs, and without SciPy.

    Reference: Welch 1947. It asks whether another set of seeds would give the other sign, on this very test set.
    """
    try:
        from scipy.stats import ttest_ind
    except ImportError:
        return None
    if min(len(baseline), len(system)) < 2 or list(baseline) == list(system):
        return None
    if statistics.variance(baseline) == statistics.variance(system) == 0:
        return 0.0
    return float(ttest_ind(system, baseline, equal_var=False).pvalue)
