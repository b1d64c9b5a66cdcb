"""compare(): several systems on one test set, each by one run or by one of each seed; tests against the first."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.results import versions
from hf_mlnmt.evaluation.scores import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_SEED,
    METRICS,
    Lines,
    MetricName,
    ProtocolName,
    References,
    Scores,
    choose_protocols,
    score,
)
from hf_mlnmt.evaluation.significance import (
    DEFAULT_TRIALS,
    Counts,
    PairedTests,
    SeedResult,
    compare_seeds,
    count_sentences,
    holm,
    marks,
    paired_tests,
)

SCHEMA = "hf_mlnmt.comparison/2"

Tests = Mapping[str, Mapping[MetricName, SeedResult]]
"""{system: {metric: SeedResult}} of every system but the baseline."""


@dataclass(frozen=True)
class Comparison:
    """The first system is the baseline. Everything is by protocol.

    `scores`: {system: Scores} of each system's first run. `runs`: {system: Scores of each run}. `tests`: of each system
    beside the baseline, over all runs; `single_runs`: the same of each seed by itself, empty with one run. `sacrebleu`:
    sacreBLEU's own two tests, empty with several runs.
    """

    scores: Mapping[ProtocolName, Mapping[str, Scores]]
    runs: Mapping[ProtocolName, Mapping[str, Sequence[Scores]]]
    tests: Mapping[ProtocolName, Tests]
    seed: int
    bootstrap: int
    trials: int
    single_runs: Mapping[ProtocolName, Mapping[str, Mapping[MetricName, Sequence[SeedResult]]]] = field(
        default_factory=dict
    )
    sacrebleu: Mapping[ProtocolName, PairedTests] = field(default_factory=dict)

    @property
    def baseline(self) -> str:
        """Its name."""
        return next(iter(next(iter(self.scores.values()))))

    @property
    def several(self) -> bool:
        """Whether the systems have several runs."""
        return bool(self.single_runs)

    def means(self, protocol: ProtocolName, system: str, metric: MetricName) -> tuple[float, float | None]:
        """Mean of the runs' scores, and their standard deviation (None of one run)."""
        found = [scores[metric] for scores in self.runs[protocol][system]]
        return statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None

    def corrected(self, protocol: ProtocolName, metric: MetricName) -> dict[str, float | None]:
        """{system: p of approximate randomisation, corrected for the number of systems (Holm)}."""
        return holm(p_values(self.tests[protocol], metric))

    def marks(self, protocol: ProtocolName, metric: MetricName) -> dict[str, str]:
        """{system: "†", "‡" or ""}."""
        return marks(p_values(self.tests[protocol], metric))

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `hf-mlnmt compare`: everything by protocol first, so that two protocols never share a list."""
        settings = {"seed": self.seed, "bootstrap": self.bootstrap, "trials": self.trials}
        protocols = {protocol: self._of_protocol(protocol) for protocol in self.scores}
        return {"schema": SCHEMA, **settings, "versions": versions(), "protocols": protocols}

    def _of_protocol(self, protocol: ProtocolName) -> dict[str, Any]:
        systems = self.scores[protocol]
        metrics = list(next(iter(systems.values())).metrics)
        tested = {
            name: {metric: result.to_dict() for metric, result in of.items()}
            for name, of in self.tests[protocol].items()
        }
        content = {
            "scores": {name: scores.to_dict() for name, scores in systems.items()},
            "outputs": {name: scores.outputs_to_dict() for name, scores in systems.items()},
            "significance": {"baseline": self.baseline, "systems": tested},
            "holm": {metric: self.corrected(protocol, metric) for metric in metrics},
        }
        if self.several:
            content["runs"] = {name: [one.to_dict() for one in runs] for name, runs in self.runs[protocol].items()}
            content["seeds"] = {
                name: {metric: self._seeds(protocol, name, metric) for metric in metrics} for name in systems
            }
        else:
            content["sacrebleu"] = self.sacrebleu[protocol].to_dict()
        return content

    def _seeds(self, protocol: ProtocolName, system: str, metric: MetricName) -> dict[str, Any]:
        mean, deviation = self.means(protocol, system, metric)
        content: dict[str, Any] = {"mean": mean, "standard_deviation": deviation}
        if system != self.baseline:
            content["single_runs"] = [one.to_dict() for one in self.single_runs[protocol][system][metric]]
        return content


def p_values(tests: Tests, metric: MetricName) -> dict[str, float | None]:
    """{system: p of approximate randomisation, not corrected}."""
    return {name: results[metric].approximate_randomisation for name, results in tests.items()}


def compare(
    systems: Mapping[str, Lines | Sequence[Lines]],
    references: References,
    *,
    language: str | None = None,
    protocols: Sequence[ProtocolName] | None = None,
    metrics: Sequence[str] = METRICS,
    bootstrap: int = DEFAULT_BOOTSTRAP,
    trials: int = DEFAULT_TRIALS,
    seed: int = DEFAULT_SEED,
    jobs: int = 1,
) -> Comparison:
    """Score every system and test it against the first.

    systems: {name: raw outputs}, the baseline first; or {name: [raw outputs of a run, ...]}, as many runs of every
    system, those of one seed at one place. protocols: both when `language` is given, else 'cased' alone.
    The other arguments and the errors are those of score() and paired_tests().
    """
    options: dict[str, Any] = {"language": language, "metrics": metrics, "bootstrap": bootstrap, "seed": seed}
    chosen = [how.name for how in choose_protocols(protocols, language)]
    runs = {name: _runs(lines) for name, lines in systems.items()}
    several = any(len(each) > 1 for each in runs.values())
    further: dict[str, Any] = {}
    if several:
        _check_runs(runs)
    else:
        # sacreBLEU's first: they check every system's number of lines and name the system that has too few.
        firsts = {name: each[0] for name, each in runs.items()}
        how = {"trials": trials, "jobs": jobs, **options}
        further["sacrebleu"] = {p: paired_tests(firsts, references, protocol=p, **how) for p in chosen}
    counted = {p: _counted(runs, references, p, language, metrics) for p in chosen}
    samples = {"trials": trials, "bootstrap": bootstrap, "seed": seed}
    tests = {p: _tests(counted[p], **samples) for p in chosen}
    if several:
        further["single_runs"] = {p: _single_runs(counted[p], **samples) for p in chosen}
    scored = {
        p: {name: [score(one, references, protocol=p, **options) for one in each] for name, each in runs.items()}
        for p in chosen
    }
    scores = {p: {name: each[0] for name, each in of.items()} for p, of in scored.items()}
    return Comparison(scores, scored, tests, seed, bootstrap, trials, **further)


def significance_tests(
    systems: Mapping[str, Lines],
    references: References,
    *,
    protocol: ProtocolName = "cased",
    language: str | None = None,
    metrics: Sequence[str] = METRICS,
    **samples: int,
) -> Tests:
    """The tests of `compare` alone, of one run of each system. samples: trials, bootstrap and seed."""
    runs = {name: [lines] for name, lines in systems.items()}
    return _tests(_counted(runs, references, protocol, language, metrics), **samples)


def _runs(lines: Lines | Sequence[Lines]) -> list[Lines]:
    return [lines] if not len(lines) or isinstance(lines[0], str) else list(lines)  # type: ignore[list-item]


def _check_runs(runs: Mapping[str, Sequence[Lines]]) -> None:
    if len(runs) < 2:
        raise UserError(f"A paired test needs a baseline and at least one other system; got {', '.join(runs)}.")
    baseline = next(iter(runs))
    for name, each in runs.items():
        if len(each) != len(runs[baseline]):
            raise UserError(
                f"{name}: {len(each)} runs, but {baseline} has {len(runs[baseline])}. Give every system the same "
                "seeds, in the same order."
            )


def _counted(
    runs: Mapping[str, Sequence[Lines]],
    references: References,
    protocol: ProtocolName,
    language: str | None,
    metrics: Sequence[str],
) -> dict[str, list[Counts]]:
    how: dict[str, Any] = {"protocol": protocol, "language": language, "metrics": metrics}
    counted = {}
    for name, each in runs.items():
        try:
            counted[name] = [count_sentences(lines, references, **how) for lines in each]
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
    return counted


def _tests(counted: Mapping[str, Sequence[Counts]], **samples: int) -> Tests:
    """All runs of each system beside all runs of the first."""
    baseline, *others = counted.values()
    return {
        name: {
            metric: compare_seeds(metric, [run[metric] for run in baseline], [run[metric] for run in own], **samples)
            for metric in baseline[0]
        }
        for name, own in zip(list(counted)[1:], others)
    }


def _single_runs(
    counted: Mapping[str, Sequence[Counts]], **samples: int
) -> dict[str, dict[MetricName, list[SeedResult]]]:
    """The same of each seed by itself."""
    by_seed = [
        _tests({name: [each[seed]] for name, each in counted.items()}, **samples)
        for seed in range(len(next(iter(counted.values()))))
    ]
    return {
        name: {metric: [one[name][metric] for one in by_seed] for metric in results}
        for name, results in by_seed[0].items()
    }
