"""Two systems, each trained once or from several seeds: is the difference of their mean scores chance?

References: Clark et al. 2011, "Better Hypothesis Testing for Statistical Machine Translation" (several runs in one
test); Riezler and Maxwell 2005 (approximate randomisation); Koehn 2004 (paired bootstrap); Phipson and Smyth 2010 (the
p-value of a randomisation test).

A system is a list of runs, one for each seed; a run is an array of counts (sentences, numbers), see sentence_counts.py.
A system's score is the mean of its runs' scores. With one run each both tests draw what sacreBLEU draws, and the
bootstrap's p-value is sacreBLEU's; that of randomisation counts ties, too (`randomisation_test` says why).

Both tests ask what other sentences would have given. That another seed moves all sentences of a run together is not in
them: with few runs their p-values are too small for a claim about the architecture. `welch_test` asks what other seeds
would have given, from the runs' scores alone, and needs more than two or three of them to find a difference.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.protocols import MetricName
from hf_mlnmt.evaluation.scores import DEFAULT_BOOTSTRAP, DEFAULT_SEED
from hf_mlnmt.evaluation.sentence_counts import scores_of_sums
from hf_mlnmt.evaluation.significance import DEFAULT_TRIALS, FEWEST_SENTENCES

Runs = Sequence[np.ndarray]

TIE = 1e-9
"""Differences of scores (0 to 100) that are as close as this are equal.

Trials with the same counts give the same difference only up to rounding, for example when the same scores of several
runs are added in another order. Sums of counts are exact, so that is a few units in the last place of a score, below
1e-12. One matched n-gram more is far above 1e-9: in a test set of a million tokens it changes BLEU by more than 1e-6.
"""


@dataclass(frozen=True)
class SeedResult:
    """A system beside the baseline in one metric, each by the mean of its runs' scores.

    p-values are None below FEWEST_SENTENCES sentences and where the counts are equal; welch also with one run, and
    without SciPy.
    """

    scores: tuple[float, ...]
    difference: float
    approximate_randomisation: float | None
    paired_bootstrap: float | None
    welch: float | None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float | None:
        """The sample's standard deviation over seeds; None of one."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    def to_dict(self) -> dict[str, float | None]:
        """{difference, approximate_randomisation, paired_bootstrap, welch}; p-values are not rounded."""
        return {
            "difference": round(self.difference, 4),
            "approximate_randomisation": self.approximate_randomisation,
            "paired_bootstrap": self.paired_bootstrap,
            "welch": self.welch,
        }


def compare_seeds(
    metric: MetricName,
    baseline: Runs,
    system: Runs,
    *,
    trials: int = DEFAULT_TRIALS,
    bootstrap: int = DEFAULT_BOOTSTRAP,
    seed: int = DEFAULT_SEED,
) -> SeedResult:
    """All tests of a system beside the baseline. Both have as many runs, those of the same seeds at the same places."""
    check_runs(baseline, system)
    base, own = (scores_of_sums(metric, np.stack([run.sum(0) for run in runs])) for runs in (baseline, system))
    tested = len(system[0]) >= FEWEST_SENTENCES and any((a != b).any() for a, b in zip(baseline, system))
    return SeedResult(
        tuple(own.tolist()),
        float(own.mean() - base.mean()),
        randomisation_test(metric, baseline, system, trials, seed) if tested else None,
        bootstrap_test(metric, baseline, system, bootstrap, seed) if tested else None,
        welch_test(base.tolist(), own.tolist()) if tested else None,
    )


def check_runs(baseline: Runs, system: Runs) -> None:
    """UserError unless both have equally many runs, at least one, all of the same sentences."""
    if len(baseline) != len(system) or not baseline:
        raise UserError(f"{len(system)} runs beside {len(baseline)} of the baseline: give both the same seeds.")
    shapes = {run.shape for run in (*baseline, *system)}
    if len(shapes) > 1:
        raise UserError(f"runs of different test sets or metrics (sentences and numbers: {sorted(shapes)}).")


def randomisation_test(metric: MetricName, baseline: Runs, system: Runs, trials: int, seed: int) -> float:
    """The p-value of approximate randomisation.

    p is the share of trials whose difference of mean scores is at least as large as the real one, the real one counted
    as a trial. sacreBLEU counts larger ones alone. Where few sentences differ most trials are ties: of one sentence all
    are, so p is 1, and 1 / (trials + 1) by sacreBLEU's rule.
    """
    shuffled, real = shuffled_differences(metric, baseline, system, trials, seed), _difference(metric, baseline, system)
    return _p_value(shuffled >= real - TIE)


def shuffled_differences(metric: MetricName, baseline: Runs, system: Runs, trials: int, seed: int) -> np.ndarray:
    """The absolute difference of mean scores in each trial of approximate randomisation: an array (trials,).

    A trial exchanges the outputs of both systems, for each sentence of each seed or not, by a coin.
    """
    draw = np.random.default_rng(seed)
    shuffled = np.zeros((2, trials))
    for base, own in zip(baseline, system):
        kept = draw.integers(2, size=(trials, len(base)), dtype=bool)
        # As sacreBLEU: of the first pseudo-system, what is kept is the baseline's.
        first = _products(kept, base.astype(np.float64) - own) + own.sum(0)
        shuffled += scores_of_sums(metric, np.stack([first, base.sum(0) + own.sum(0) - first]))
    return np.abs(shuffled[0] - shuffled[1]) / len(system)


def bootstrap_test(metric: MetricName, baseline: Runs, system: Runs, samples: int, seed: int) -> float:
    """The p-value of the paired bootstrap, as sacreBLEU counts it.

    Sentences are drawn with replacement, the same ones for every run. p is the share of samples whose difference is
    larger than their mean difference by more than the real one. It is below 0.05 for one in eight to ten pairs of equal
    systems, so no mark is made of it.
    """
    draw = np.random.default_rng(seed)
    sentences = len(baseline[0])
    drawn = draw.choice(sentences, size=(samples, sentences), replace=True)
    times = np.stack([np.bincount(row, minlength=sentences).astype(np.uint16) for row in drawn])
    differences = np.zeros(samples)
    for base, own in zip(baseline, system):
        differences += scores_of_sums(metric, _products(times, own))
        differences -= scores_of_sums(metric, _products(times, base))
    differences = np.abs(differences / len(system))
    return _p_value(differences - differences.mean() > _difference(metric, baseline, system) + TIE)


def _products(times: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """times (samples, sentences) @ counts (sentences, numbers), exact in float64; not all samples at once."""
    parts = np.array_split(times, -(-times.size // 2**23))
    return np.concatenate([part.astype(np.float64) @ counts.astype(np.float64) for part in parts])


def _difference(metric: MetricName, baseline: Runs, system: Runs) -> float:
    sums = np.stack([[run.sum(0) for run in runs] for runs in (baseline, system)])
    first, second = scores_of_sums(metric, sums).mean(1)
    return abs(float(first - second))


def _p_value(counted: np.ndarray) -> float:
    """From which of the trials count against the difference; the difference itself is one of them."""
    return (int(counted.sum()) + 1) / (len(counted) + 1)


def welch_test(baseline: Sequence[float], system: Sequence[float]) -> float | None:
    """The two-sided p-value of Welch's t-test on the runs' scores; None with fewer than two runs, and without SciPy.

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
