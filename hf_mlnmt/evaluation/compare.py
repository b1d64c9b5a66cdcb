"""compare(): several systems on one test set, each by one run or by one of each seed; tests against the first."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.protocols import METRICS, MetricName, ProtocolName, choose_protocols
from hf_mlnmt.evaluation.results import versions
from hf_mlnmt.evaluation.scores import DEFAULT_BOOTSTRAP, DEFAULT_SEED, Lines, References, Scores, score
from hf_mlnmt.evaluation.seed_tests import SeedResult, compare_seeds, holm
from hf_mlnmt.evaluation.sentence_counts import Counts, count_sentences
from hf_mlnmt.evaluation.significance import DEFAULT_TRIALS, PairedResult, PairedTests, paired_tests

SCHEMA = "hf_mlnmt.comparison/1"
TESTS = ("paired_bootstrap", "approximate_randomisation")

OfSystems = Mapping[str, Mapping[MetricName, SeedResult]]


@dataclass(frozen=True)
class Comparison:
    """The first system is the baseline. Everything is by protocol.

    `scores`: {system: Scores} of each system's first run. `tests`: against the baseline; of several runs those of the
    means. `runs`: {system: Scores of each run}. `seeds`: {system: {metric: SeedResult}}, and `single_runs`: the same of
    each seed by itself; both empty with one run.
    """

    scores: Mapping[ProtocolName, Mapping[str, Scores]]
    tests: Mapping[ProtocolName, PairedTests]
    seed: int
    bootstrap: int
    trials: int
    runs: Mapping[ProtocolName, Mapping[str, Sequence[Scores]]] = field(default_factory=dict)
    seeds: Mapping[ProtocolName, OfSystems] = field(default_factory=dict)
    single_runs: Mapping[ProtocolName, Mapping[str, Mapping[MetricName, Sequence[SeedResult]]]] = field(
        default_factory=dict
    )

    def means(self, protocol: ProtocolName, system: str, metric: MetricName) -> tuple[float, float | None]:
        """Mean of the runs' scores, and their standard deviation (None of one run)."""
        found = [scores[metric] for scores in self.runs[protocol][system]]
        return statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None

    def corrected(self, protocol: ProtocolName, metric: MetricName) -> dict[str, dict[str, float | None]]:
        """{system: {test: p-value corrected for the number of systems (Holm)}}; equal outputs count as none."""
        results = self.tests[protocol].results
        by_test = {
            test: holm(
                {name: getattr(one[metric], test) if one[metric].tested else None for name, one in results.items()}
            )
            for test in TESTS
        }
        return {name: {test: by_test[test][name] for test in TESTS} for name in results}

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `hf-mlnmt compare`: everything by protocol first, so that two protocols never share a list."""
        settings = {"seed": self.seed, "bootstrap": self.bootstrap, "trials": self.trials}
        protocols = {protocol: self._of_protocol(protocol) for protocol in self.scores}
        return {"schema": SCHEMA, **settings, "versions": versions(), "protocols": protocols}

    def _of_protocol(self, protocol: ProtocolName) -> dict[str, Any]:
        systems, tests = self.scores[protocol], self.tests[protocol]
        metrics = list(next(iter(systems.values())).metrics)
        content = {
            "scores": {name: scores.to_dict() for name, scores in systems.items()},
            "outputs": {name: scores.outputs_to_dict() for name, scores in systems.items()},
            "significance": tests.to_dict(),
            "holm": {metric: self.corrected(protocol, metric) for metric in metrics},
        }
        if self.seeds:
            content["runs"] = {name: [one.to_dict() for one in runs] for name, runs in self.runs[protocol].items()}
            content["seeds"] = {
                name: {metric: self._seeds(protocol, name, metric) for metric in metrics} for name in systems
            }
        return content

    def _seeds(self, protocol: ProtocolName, system: str, metric: MetricName) -> dict[str, Any]:
        mean, deviation = self.means(protocol, system, metric)
        content: dict[str, Any] = {"mean": mean, "standard_deviation": deviation}
        if system in self.seeds[protocol]:
            content |= _tests(self.seeds[protocol][system][metric])
            content["single_runs"] = [_tests(one) for one in self.single_runs[protocol][system][metric]]
        return content


def _tests(result: SeedResult) -> dict[str, Any]:
    p_values = {test: getattr(result, test) for test in (*TESTS, "welch")}
    return {"difference": round(result.difference, 4), **p_values}


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
    found: dict[str, Any] = {}
    if several:
        _check_runs(runs)
        over = {p: _over_seeds(runs, references, p, options, trials) for p in chosen}
        found = {"seeds": {p: each[0] for p, each in over.items()}, "single_runs": {p: x[1] for p, x in over.items()}}
    else:
        # The tests first: they check every system's number of lines and name the system that has too few.
        firsts = {name: each[0] for name, each in runs.items()}
        tests = {p: paired_tests(firsts, references, protocol=p, trials=trials, jobs=jobs, **options) for p in chosen}
    scored = {
        p: {name: [score(one, references, protocol=p, **options) for one in each] for name, each in runs.items()}
        for p in chosen
    }
    scores = {p: {name: each[0] for name, each in of.items()} for p, of in scored.items()}
    if several:
        tests = {p: _paired(list(runs), found["seeds"][p], scores[p], bootstrap, trials, seed) for p in chosen}
    return Comparison(scores, tests, seed, bootstrap, trials, scored, **found)


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


def _over_seeds(
    runs: Mapping[str, Sequence[Lines]], references: References, protocol: ProtocolName, options: Any, trials: int
) -> tuple[OfSystems, Mapping[str, Mapping[MetricName, Sequence[SeedResult]]]]:
    """Of all systems but the first: the tests over seeds, and of each seed by itself."""
    how = {key: options[key] for key in ("language", "metrics")}
    counted: dict[str, list[Counts]] = {}
    for name, each in runs.items():
        try:
            counted[name] = [count_sentences(lines, references, protocol=protocol, **how) for lines in each]
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
    baseline, *others = counted
    samples = {"trials": trials, "bootstrap": options["bootstrap"], "seed": options["seed"]}
    means: dict[str, dict[MetricName, SeedResult]] = {name: {} for name in others}
    singles: dict[str, dict[MetricName, list[SeedResult]]] = {name: {} for name in others}
    for metric in counted[baseline][0]:
        base = [counts[metric] for counts in counted[baseline]]
        for name in others:
            own = [counts[metric] for counts in counted[name]]
            means[name][metric] = compare_seeds(metric, base, own, **samples)
            singles[name][metric] = [compare_seeds(metric, [a], [b], **samples) for a, b in zip(base, own, strict=True)]
    return means, singles


def _paired(
    names: list[str], found: OfSystems, scores: Mapping[str, Scores], bootstrap: int, trials: int, seed: int
) -> PairedTests:
    """The tests of the means in the form of those of single runs."""
    baseline, *_ = names
    first = scores[baseline]
    runs = len(next(iter(next(iter(found.values())).values())).scores)
    kinds = {"paired_bootstrap": f"bs:{bootstrap}", "approximate_randomisation": f"ar:{trials}"}
    signatures = {
        test: {m: f"{kind}|seed:{seed}|runs:{runs}|{_plain(one.signature)}" for m, one in first.metrics.items()}
        for test, kind in kinds.items()
    }
    results = {
        name: {m: PairedResult(r.difference, r.paired_bootstrap, r.approximate_randomisation) for m, r in of.items()}
        for name, of in found.items()
    }
    return PairedTests(baseline, results, signatures)


def _plain(signature: str) -> str:
    """Without what it says of the interval's resamples."""
    return "|".join(part for part in signature.split("|") if not part.startswith(("bs:", "seed:")))
