"""Tests the difference of two systems over sentences and seeds, sets the marks † and ‡, and packs sentence counts.

Each system was trained with one or several seeds; its score is the mean of its runs' scores. The tests read sentence
counts, which are saved beside a run's scores, so that runs can be tested without their translations. sacreBLEU's paired
tests read translations, of one run of each system, and draw the same samples.

Approximate randomisation and the paired bootstrap test whether the difference would hold on other sentences, not with
other seeds: with few runs their p-values are too small for a claim about the architecture. `welch_test` tests from the
runs' scores alone whether the difference would hold with other seeds.

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
    products,
    resamples,
    scores_of_sums,
)

LEGEND = (
    "† p < 0.05, ‡ p < 0.01 of approximate randomisation, and of several seeds of the Welch test too, corrected for "
    "the number of systems that were compared with the baseline (Holm)."
)
"""The explanation of the marks † and ‡ in all tables and pages."""


def p_of_mark(tested: Mapping[str, Any]) -> float | None:
    """Returns the p-value that decides a mark: the larger of approximate randomisation (None without it) and Welch."""
    p, of_seeds = tested.get("approximate_randomisation"), tested.get("welch")
    return p if p is None or of_seeds is None else max(p, of_seeds)


def marks(p_values: Mapping[str, float | None]) -> dict[str, str]:
    """Returns {system: "†" (p < .05), "‡" (p < .01) or ""} for systems compared with a baseline, by Holm's correction.

    p_values: {system: uncorrected p-value of `p_of_mark`}, of all these systems; None: not tested.
    """
    corrected = {name: 1.0 if p is None else p for name, p in holm(p_values).items()}
    return {name: "‡" if p < 0.01 else "†" if p < 0.05 else "" for name, p in corrected.items()}


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns p-values corrected for their number, to bound the chance of any false alarm (Holm 1979); None stays."""
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    corrected: dict[str, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for rank, (p, name) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[name] = largest
    return corrected


# The file of sentence counts: safetensors in gzip, {"<test set>/<protocol>/<metric>": integers (sentences, numbers)}.


def pack_counts(counts: Mapping[str, Mapping[ProtocolName, Counts]]) -> bytes:
    """Returns the content of a file of {test set: {protocol: Counts}}; equal numbers give equal bytes."""
    from safetensors.numpy import save

    arrays = {
        f"{test}/{protocol}/{metric}": _smallest(array)
        for test, protocols in counts.items()
        for protocol, by_metric in protocols.items()
        for metric, array in by_metric.items()
    }
    return gzip.compress(save(dict(sorted(arrays.items()))), mtime=0)


def unpack_counts(packed: bytes, path: str | Path) -> dict[str, dict[ProtocolName, Counts]]:
    """Reads the content of the file `path`, as `pack_counts` makes it. Raises: UserError for another content."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(gzip.decompress(packed))
    except (SafetensorError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a file of sentence counts ({error}).") from error
    counts: dict[str, dict[Any, Counts]] = {}
    for name, array in arrays.items():
        test, protocol, metric = ["", "", *name.rsplit("/", 2)][-3:]
        if array.ndim != 2 or array.shape[1] != NUMBERS.get(metric) or not np.isfinite(array).all():
            said = f"expected {NUMBERS[metric]} counts a sentence" if metric in NUMBERS else "no metric of that name"
            raise UserError(f"{path}: '{name}': {said}. Give the run again.")
        counts.setdefault(test, {}).setdefault(protocol, {})[metric] = array  # type: ignore[index]
    return counts


def _smallest(array: np.ndarray) -> np.ndarray:
    if (array != np.floor(array)).any():
        return array.astype(np.float64)
    kind = np.min_scalar_type(int(array.max(initial=0)))
    return array.astype(kind if kind in (np.uint8, np.uint16) else np.int64)


P_VALUES = ("approximate_randomisation", "paired_bootstrap", "welch")
DEFAULT_TRIALS = 10_000
FEWEST_SENTENCES = 100
"""Test sets with fewer sentences get no p-values: tests find too many equal systems different (docs/scores.md)."""
TOO_FEW = f"fewer than {FEWEST_SENTENCES} sentences: no test"

Counted = Sequence[np.ndarray]
"""Sentence counts (sentences, numbers) of each run of a system."""

TIE = 1e-9
"""Score differences that are this close count as equal: rounding is below 1e-12, the effect of an n-gram above 1e-6."""


def compare_seeds(
    metric: MetricName,
    baseline: Counted,
    system: Counted,
    *,
    trials: int = DEFAULT_TRIALS,
    bootstrap: int = DEFAULT_BOOTSTRAP,
    seed: int = DEFAULT_SEED,
) -> dict[str, float | None]:
    """Returns the difference of two systems' mean scores over their runs, rounded, and the p-values named in P_VALUES.

    p-values are None below FEWEST_SENTENCES sentences and where all counts are equal; welch also for single runs, and
    without SciPy.

    Args:
        baseline, system: sentence counts of equally many runs, in the same order of seeds.

    Raises: UserError unless both have equally many runs, at least one, of the same sentences; for 0 samples or trials.
    """
    if len(baseline) != len(system) or not baseline:
        raise UserError(f"{len(system)} runs beside {len(baseline)} of the baseline: give both the same seeds.")
    check_samples(seed, trials, bootstrap)
    if not trials or not bootstrap:
        raise UserError("0 samples for a paired test: expected at least 1.")
    shapes = {run.shape for run in (*baseline, *system)}
    if len(shapes) > 1:
        raise UserError(f"runs of different test sets or metrics (sentences and numbers: {sorted(shapes)}).")
    base, own = (scores_of_sums(metric, np.stack([run.sum(0) for run in runs])) for runs in (baseline, system))
    found: dict[str, float | None] = {"difference": round(float(own.mean() - base.mean()), 4)}
    if len(system[0]) < FEWEST_SENTENCES or all((a == b).all() for a, b in zip(baseline, system)):
        return {**found, **dict.fromkeys(P_VALUES)}
    return {
        **found,
        "approximate_randomisation": randomisation_test(metric, baseline, system, trials, seed),
        "paired_bootstrap": bootstrap_test(metric, baseline, system, bootstrap, seed),
        "welch": welch_test(base.tolist(), own.tolist()),
    }


def randomisation_test(metric: MetricName, baseline: Counted, system: Counted, trials: int, seed: int) -> float:
    """Returns the p-value of approximate randomisation.

    It is the share of trials whose difference of mean scores is at least as large as the real difference, which counts
    as a trial too. sacreBLEU counts only larger differences: where few sentences differ most trials are ties, and with
    a single differing sentence sacreBLEU's p-value is 1 / (trials + 1) instead of 1.
    """
    shuffled = shuffled_differences(metric, baseline, system, trials, seed)
    return _p_value(shuffled >= _difference(metric, baseline, system) - TIE)


def shuffled_differences(metric: MetricName, baseline: Counted, system: Counted, trials: int, seed: int) -> np.ndarray:
    """Returns the absolute difference of mean scores in each trial of approximate randomisation: (trials,).

    A trial swaps, for each sentence of each seed with probability 0.5, the outputs of both systems.
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
    """Returns the p-value of the paired bootstrap, as sacreBLEU computes it.

    Sentences are drawn with replacement, the same for all runs. p is the share of samples whose difference exceeds the
    samples' mean difference by more than the real difference. Of equal systems one pair in eight to ten has p below
    0.05, so this p-value decides no mark.
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
    """Returns (true values + 1) / (trials + 1): the real difference counts as one more trial."""
    return (int(counted.sum()) + 1) / (len(counted) + 1)


def welch_test(baseline: Sequence[float], system: Sequence[float]) -> float | None:
    """Returns the two-sided p-value of Welch's t-test on the scores of runs; None for a system with one run, for equal
    scores, and without SciPy.

    Reference: Welch 1947. It tests whether the difference would hold with other seeds on the same test set.
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
