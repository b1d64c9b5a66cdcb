"""compare(): several systems on one test set: scores with intervals, and both paired tests against the first system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_mlnmt.evaluation.protocols import METRICS, ProtocolName, choose_protocols
from hf_mlnmt.evaluation.results import versions
from hf_mlnmt.evaluation.scores import DEFAULT_BOOTSTRAP, DEFAULT_SEED, Lines, References, Scores, score
from hf_mlnmt.evaluation.significance import DEFAULT_TRIALS, PairedTests, paired_tests

SCHEMA = "hf_mlnmt.comparison/1"


@dataclass(frozen=True)
class Comparison:
    """`scores`: {protocol: {system: Scores}}; `tests`: {protocol: PairedTests}. The first system is the baseline."""

    scores: Mapping[ProtocolName, Mapping[str, Scores]]
    tests: Mapping[ProtocolName, PairedTests]
    seed: int
    bootstrap: int
    trials: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `hf-mlnmt compare`: everything by protocol first, so that two protocols never share a list."""
        protocols = {
            protocol: {
                "scores": {name: scores.to_dict() for name, scores in systems.items()},
                "outputs": {name: scores.outputs_to_dict() for name, scores in systems.items()},
                "significance": self.tests[protocol].to_dict(),
            }
            for protocol, systems in self.scores.items()
        }
        settings = {"seed": self.seed, "bootstrap": self.bootstrap, "trials": self.trials}
        return {"schema": SCHEMA, **settings, "versions": versions(), "protocols": protocols}


def compare(
    systems: Mapping[str, Lines],
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

    systems: {name: raw outputs}, the baseline first. protocols: both when `language` is given, else 'cased' alone.
    The other arguments and the errors are those of score() and paired_tests().
    """
    options: dict[str, Any] = {"language": language, "metrics": metrics, "bootstrap": bootstrap, "seed": seed}
    chosen = [how.name for how in choose_protocols(protocols, language)]
    # The tests first: they check every system's number of lines and name the system that has too few.
    tests = {p: paired_tests(systems, references, protocol=p, trials=trials, jobs=jobs, **options) for p in chosen}
    scores = {
        p: {name: score(lines, references, protocol=p, **options) for name, lines in systems.items()} for p in chosen
    }
    return Comparison(scores, tests, seed, bootstrap, trials)
