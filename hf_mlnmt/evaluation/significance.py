"""sacreBLEU's own tests of a difference to the baseline: paired bootstrap and approximate randomisation.

`compare` shows their p-values beside ours, to be compared with what others got from sacreBLEU. No mark is made of
them: its bootstrap calls 10 to 12 % of equal systems different at 0.05, and its randomisation does not count ties
(seed_tests.py).

References: Koehn 2004 (paired bootstrap); Riezler and Maxwell 2005 (approximate randomisation).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.protocols import METRICS, MetricName, Protocol, ProtocolName, metric_named
from hf_mlnmt.evaluation.scores import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_SEED,
    Lines,
    References,
    check_counts,
    reference_lists,
    sacrebleu_seed,
)

DEFAULT_TRIALS = 10_000
FEWEST_SENTENCES = 100
"""Below it no p-value is given: of equal systems the tests would call too many different (docs/scores.md, measured)."""
TOO_FEW = f"fewer than {FEWEST_SENTENCES} sentences: no test"

Columns = dict[MetricName, list[Any]]
"""For each metric sacreBLEU's Result of every system, the baseline first."""


@dataclass(frozen=True)
class PairedResult:
    """One system against the baseline in one metric: difference (system - baseline), the two tests' p-values.

    A p-value says nothing where the difference is 0: sacreBLEU counts resamples that differ by *more* than the systems
    do, so equal outputs get the smallest p there is.
    Both are None where there are fewer than `FEWEST_SENTENCES`.
    """

    difference: float
    paired_bootstrap: float | None
    approximate_randomisation: float | None

    def to_dict(self) -> dict[str, float | None]:
        """{difference, paired_bootstrap, approximate_randomisation}; p-values are not rounded."""
        return {
            "difference": round(self.difference, 4),
            "paired_bootstrap": self.paired_bootstrap,
            "approximate_randomisation": self.approximate_randomisation,
        }


@dataclass(frozen=True)
class PairedTests:
    """Every system but the first against the first. `signatures`: {test: {metric: signature}}."""

    baseline: str
    results: Mapping[str, Mapping[MetricName, PairedResult]]
    signatures: Mapping[str, Mapping[MetricName, str]]

    def to_dict(self) -> dict[str, Any]:
        """{baseline, signatures, systems: {name: {metric: {difference, and the two p-values}}}}."""
        systems = {name: {m: r.to_dict() for m, r in results.items()} for name, results in self.results.items()}
        return {
            "baseline": self.baseline,
            "signatures": {k: dict(v) for k, v in self.signatures.items()},
            "systems": systems,
        }


def paired_tests(
    systems: Mapping[str, Lines],
    references: References,
    *,
    protocol: ProtocolName = "cased",
    language: str | None = None,
    metrics: Sequence[str] = METRICS,
    bootstrap: int = DEFAULT_BOOTSTRAP,
    trials: int = DEFAULT_TRIALS,
    seed: int = DEFAULT_SEED,
    jobs: int = 1,
) -> PairedTests:
    """Test every system against the first one given.

    systems: {name: raw outputs}, the baseline first. bootstrap: resamples; trials: shufflings.
    jobs: processes, which share the systems (the numbers do not depend on it). They are started afresh: a script that
    asks for more than one guards what it does with `if __name__ == "__main__"`, as always with multiprocessing.
    Raises UserError as score() does, and with fewer than two systems.
    """
    if len(systems) < 2:
        raise UserError(
            f"A paired test needs a baseline and at least one other system; got {', '.join(systems) or 'none'}."
        )
    reference_sets = reference_lists(references)
    for name, lines in systems.items():
        check_counts(lines, reference_sets, [name, *(f"reference {i + 1}" for i in range(len(reference_sets)))])
    how = Protocol(protocol, language)
    prepared = [(name, how.prepare(lines)) for name, lines in systems.items()]
    prepared_references = [how.prepare(lines) for lines in reference_sets]
    sacre = {name: how.metric(name, prepared_references) for name in map(metric_named, metrics)}
    bootstrapped, bootstrap_signatures = _run(how, prepared, sacre, "bs", bootstrap, seed, jobs)
    shuffled, trial_signatures = _run(how, prepared, sacre, "ar", trials, seed, jobs)
    baseline, *others = systems
    enough = len(reference_sets[0]) >= FEWEST_SENTENCES
    results = {
        name: {
            m: PairedResult(
                column[i].score - column[0].score,
                column[i].p_value if enough else None,
                shuffled[m][i].p_value if enough else None,
            )
            for m, column in bootstrapped.items()
        }
        for i, name in enumerate(others, 1)
    }
    signatures = {"paired_bootstrap": bootstrap_signatures, "approximate_randomisation": trial_signatures}
    return PairedTests(baseline, results, signatures)


def _run(
    how: Protocol, systems: list[Any], metrics: dict[Any, Any], kind: str, samples: int, seed: int, jobs: int
) -> tuple[Columns, dict[MetricName, str]]:
    """One of sacreBLEU's tests: its results and its signatures by metric."""
    if samples < 1:
        raise UserError(f"{samples} samples for a paired test: expected at least 1.")
    baseline, *others = systems
    jobs = min(jobs, len(others))
    if jobs == 1:
        columns, signatures = _paired_test(systems, metrics, kind, samples, seed)
    else:
        # Fresh processes, not sacreBLEU's own: those are forks, and a fork of a process with threads can wait for ever.
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            shares = [[baseline, *others[i::jobs]] for i in range(jobs)]
            done = list(pool.map(_paired_test, shares, *map(repeat, (metrics, kind, samples, seed))))
        columns, signatures = done[0]
        for metric, column in columns.items():
            column[1:] = [done[i % jobs][0][metric][1 + i // jobs] for i in range(len(others))]
    return columns, {metric: how.sign(signature) for metric, signature in signatures.items()}


def _paired_test(
    systems: list[Any], metrics: dict[Any, Any], kind: str, samples: int, seed: int
) -> tuple[Columns, dict[MetricName, Any]]:
    """sacreBLEU's test of these systems against the first of them."""
    from sacrebleu.significance import PairedTest

    with sacrebleu_seed(seed):
        signed, table = PairedTest(systems, metrics, references=None, test_type=kind, n_samples=samples, n_jobs=1)()
    # sacreBLEU renames its metrics ('CHRF' becomes 'chrF2') and keeps their order.
    columns: Any = [column for key, column in table.items() if key != "System"]
    return dict(zip(metrics, columns, strict=True)), dict(zip(metrics, signed.values(), strict=True))
