"""Comparisons of training runs as they are kept, in a folder results/<name>/ that can grow run by run.

| file | what it holds |
| --- | --- |
| `<system>.seed<n>.json` | a run's own results file, whole |
| `<system>.seed<n>.counts.gz` | what its scores are sums of, for each sentence (evaluation/significance.py) |
| `comparison.json` | the baseline, and the tests of every other system against it, over the seeds that both have; \
and of further pairs of systems, where these were asked for |
| `README.md` | the page of tables, made from the files above and from nothing else |

The runs' own folders need not be kept: a system or a seed can be added in another year. A run that is given again
replaces what is there of it, and what depends on it is tested anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.results import read_results
from hf_mlnmt.evaluation.significance import FEWEST_SENTENCES, marks
from hf_mlnmt.files import read_json

PAGE = "README.md"
COMPARISON = "comparison.json"
SCHEMA = "hf_mlnmt.comparison_of_runs/2"
TIES_NOT_COUNTED = "hf_mlnmt.comparison_of_runs/1"  # can be read; its tests are made again when it is added to
COUNTS = ".counts.gz"
SEEDS = "seeds"
TESTED = "tested"
METHODS = "methods"
OLD_RULE = (
    " The p-values of approximate randomisation in this comparison are older than our rule for ties: they leave out "
    "trials that differ by exactly as much as the systems do, so they are a little too small. `compare-runs` makes "
    "them anew where the counts of the sentences are kept."
)


@dataclass
class RunComparison:
    """What a comparison's folder holds.

    runs: {system: {seed: content of its results file}}, the baseline first, the others in the zoo's order.
    tests: {system: {"seeds", "made_of", "tested": {test set: {protocol: {metric: numbers of a SeedResult}}}}}.
    settings: bootstrap, trials and seed of the tests.
    pairs: {"system > system": ...} as `tests`, of two systems neither of which is the baseline; None where nobody has
        asked for such tests.
    methods: whether the systems differ in how they were trained, and not in the model.
    ties_counted: whether approximate randomisation counted trials that differ by as much as the systems do; not before
        there was schema 2.
    """

    baseline: str
    runs: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    settings: dict[str, int] = field(default_factory=dict)
    pairs: dict[str, dict[str, Any]] | None = None
    methods: bool = False
    ties_counted: bool = True

    @property
    def first(self) -> dict[str, Any]:
        """The results of the baseline's first seed."""
        return next(iter(self.runs[self.baseline].values()))

    @property
    def note(self) -> str:
        """What is to be said of p-values of before ties were counted; "" of others."""
        return "" if self.ties_counted else OLD_RULE

    def tested(self, system: str, test_set: str, protocol: str, metric: str) -> dict[str, Any] | None:
        """The numbers of one test; None for the baseline, and where nothing was tested."""
        found: Any = self.tests.get(system, {}).get(TESTED, {})
        for key in (test_set, protocol, metric):
            found = found.get(key, {})
        return found or None

    def p_values(self, test_set: str, protocol: str, metric: str) -> dict[str, float | None]:
        """{system: p of approximate randomisation, not corrected}, of all but the baseline; None from few sentences."""
        few = self.too_few(test_set, protocol)
        tests = {system: self.tested(system, test_set, protocol, metric) for system in self.tests}
        return {name: one["approximate_randomisation"] if one and not few else None for name, one in tests.items()}

    def mark(self, system: str, test_set: str, protocol: str, metric: str) -> str:
        """†, ‡ or nothing."""
        return marks(self.p_values(test_set, protocol, metric)).get(system, "")

    def too_few(self, test_set: str, protocol: str) -> bool:
        """Whether the test set has too few sentences for p-values."""
        counted = self.first.get("outputs", {}).get(test_set, {}).get(protocol, {}).get("sentences")
        return counted is not None and counted < FEWEST_SENTENCES

    def scores(self, system: str, test_set: str, protocol: str, metric: str) -> list[float]:
        """One score for each seed."""
        return [run["scores"][test_set][protocol][metric]["score"] for run in self.runs[system].values()]


def read_comparison(folder: str | Path, only: str | None = None) -> RunComparison:
    """Read a comparison's folder; `only`: one system's runs, beside the baseline's.

    Raises: UserError for another folder, and for files that do not belong together.
    """
    folder = Path(folder)
    content = read_json(folder / COMPARISON)
    if content.get("schema") not in (SCHEMA, TIES_NOT_COUNTED):
        raise UserError(f"{folder}: no {COMPARISON} with schema {SCHEMA!r} in it: not a folder of `compare-runs`.")
    found: dict[str, dict[int, dict[str, Any]]] = {}
    wanted = None if only is None else (f"{only}.seed", f"{content['baseline']}.seed")
    for path in sorted(folder.glob("*.json")):
        if path.name != COMPARISON and (wanted is None or path.name.startswith(wanted)):
            read_results(path)
            run = read_json(path)
            found.setdefault(run["system"], {})[run["seed"]] = run
    if content["baseline"] not in found:
        raise UserError(f"{folder}: no run of the baseline, {content['baseline']}.")
    runs = in_order(found, content["baseline"])
    methods = content.get("compares") == METHODS
    tested = (content["systems"], content["settings"], content.get("pairs"))
    ties = content["schema"] == SCHEMA
    return RunComparison(content["baseline"], runs, *tested, methods=methods, ties_counted=ties)


def in_order(runs: Mapping[str, Mapping[int, Any]], baseline: str) -> dict[str, dict[int, Any]]:
    """The baseline first, the others in the zoo's order, each beside those of its classes; seeds by number."""
    names = sorted(runs, key=lambda name: (name != baseline, _place(name.split(".")[0]), name))
    return {name: dict(sorted(runs[name].items())) for name in names}


def _place(system: str) -> tuple[int, int, str]:
    """Where a system stands in the zoo's order: that of its classes, then its own; last what the zoo does not know."""
    from hf_mlnmt.zoo.systems import SYSTEMS, VARIANTS, architectures, find_system

    known, classes = [*SYSTEMS, *VARIANTS], list(architectures())
    try:
        entry = VARIANTS[system] if system in VARIANTS else find_system(system)
    except UserError:
        return len(classes), 0, system
    return classes.index(entry.architecture), known.index(system) if system in known else len(known), system


def comparisons_of_record(stem: str, root: str | Path) -> dict[str, RunComparison]:
    """{name: comparison} of the folders in results/ that have the record, each with it and its baseline alone."""
    folders = [folder for folder in comparisons(root) if any(folder.glob(f"{stem}.seed*.json"))]
    return {folder.name: read_comparison(folder, only=stem) for folder in folders}


def comparisons(root: str | Path) -> list[Path]:
    """The folders in results/, at any depth, that hold a comparison."""
    return sorted(path.parent for path in (Path(root) / "results").rglob(COMPARISON))
