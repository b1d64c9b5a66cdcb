"""What the papers say of their systems, answered by a comparison of runs: confirmed, not seen, contradicted, or open.

A statement is about two systems: the first translates better than the second, or (gain: no) it does not. What the
papers print stands beside what the comparison has measured, and a rule answers, the same one for all statements:

| the paper says | here, on the test set | answer |
| --- | --- | --- |
| better | better in every seed, better on the dev set, corrected p < 0.05 | confirmed |
| better | worse in every seed, corrected p < 0.05 | contradicted |
| better | anything else | not seen |
| no better | better in every seed, corrected p < 0.05 | contradicted |
| no better | anything else | not contradicted |
| either | one seed alone | open |

    python studies/claims.py results/multi30k-ende-short

tests the pairs of systems that the papers compare with each other, in a comparison of `hf-mlnmt compare`, and
makes its page anew. From then on `compare` keeps these tests up to date, and `make report` the page.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from papers import BASELINE, reported_of

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import write_text
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.comparison import TESTED, Comparison, read_comparison
from hf_mlnmt.evaluation.outputs import COMPARISON, COUNTS
from hf_mlnmt.evaluation.scores import DEFAULT_SEED, MetricName
from hf_mlnmt.evaluation.significance import DEFAULT_TRIALS, Counted, holm, shuffled_differences, unpack_counts
from hf_mlnmt.reports.comparison import PAGE, add_runs
from hf_mlnmt.reports.comparison_page import comparison_page, own_budget
from hf_mlnmt.reports.tables import DEV, MISSING
from hf_mlnmt.zoo.records import records_root
from hf_mlnmt.zoo.systems import EXTENDED_CROSS_ATTENTION, find_system

SECTION = (
    "Differences of BLEU: what the papers print on their own tasks, and ours (classic, means over seeds). Confirmed is "
    "what is better in every seed on the test set, better on the dev set, and has p < 0.05 there (approximate "
    "randomisation over sentences, corrected for the number of lines; other seeds may say otherwise); contradicted "
    "what is so the other way in every seed; with one seed every line is open. A small model and a short training say "
    "nothing about the papers' sizes. "
    "Seen from: a true difference so large would have been better in every seed, with p < 0.05, in four of five such "
    "trainings, by the spread of all systems' seeds."
)
SIGNIFICANT = 0.05
OPEN, FEWEST_SEEDS = "open", 2
BETTER, NO_BETTER = ("confirmed", "not seen", "contradicted"), ("not contradicted", "contradicted")


@dataclass(frozen=True)
class Claim:
    """`system` translates better than `against`; gain: no says that it does not. published: the papers' differences."""

    system: str
    against: str = BASELINE
    gain: bool = True

    @property
    def text(self) -> str:
        """As the table says it."""
        return f"`{self.system}` {'better than' if self.gain else 'no better than'} `{self.against}`"

    @property
    def published(self) -> list[float]:
        """The differences of BLEU that the papers print, for each setup that has both; of dev sets if no other is."""
        own, other = (reported_of(name) for name in (self.system, self.against))
        found = []
        for setup in own.keys() & other.keys():
            scores = [[getattr(row[setup], key) for row in (own, other)] for key in ("bleu", "dev_bleu")]
            differences = [a - b for a, b in scores if a is not None and b is not None]
            found += [round(value, 2) for value in differences[:1]]
        return sorted(found)


# Thesis on joint attention: chapter 3 (an iterative combination beside one that is not; more layers read beside a model
# of that size; attention over layers beside a combination of them), chapter 4 (information flow), chapter 5 (sides).
BETWEEN = (
    Claim("iter-c-agg", "c-agg"),
    Claim("m-10", "iter-c-agg"),
    Claim("m-10", "transformer-wide"),
    Claim("m-10", "transformer-deep"),
    Claim("ms-1-aif", "ms-1"),
    Claim("ms-123-aif", "ms-123"),
    Claim("enc-dc", "dec-dc"),
    Claim("full-dc", "enc-dc", gain=False),
)

SEEN_IN, _TRAININGS = 0.8, 20_000


def claims(systems: Collection[str]) -> list[Claim]:
    """The statements about these systems: each beside the baseline, where a paper prints both, then BETWEEN.

    A system of which the papers print more than the baseline on average is said to be better; not so the larger
    baselines, whose gain they call marginal, and first-order attention, whose gain they take for noise.
    """
    found = []
    for system in systems:
        if system != BASELINE and (differences := Claim(system).published):
            larger_baseline = system.startswith(f"{BASELINE}-")
            proposed = not larger_baseline and find_system(system).architecture != EXTENDED_CROSS_ATTENTION
            found.append(Claim(system, gain=proposed and statistics.fmean(differences) > 0))
    return found + [claim for claim in BETWEEN if {claim.system, claim.against} <= set(systems)]


def claims_table(comparison: Comparison, folder: Path | None = None) -> Table | None:
    """A line for each statement about the compared systems; None where there is none, or no test set beside dev.

    Nor is there one of a comparison whose pairs of systems were not tested. folder: where it lies, with the counts that
    say which difference would have been seen where none was.
    """
    if comparison.pairs is None or comparison.methods:
        return None
    suffix = comparison.baseline.removeprefix(BASELINE)
    tests = {test: test in DEV for test in comparison.first["scores"]}
    test, dev = (next((name for name, is_dev in tests.items() if is_dev == wanted), None) for wanted in (False, True))
    stated = claims([name.removesuffix(suffix) for name in comparison.runs if name.endswith(suffix)])
    measured = {claim: _tested(comparison, claim, suffix) for claim in stated}
    measured = {claim: found for claim, found in measured.items() if found}
    if not measured or test is None:
        return None
    place = ("classic", "BLEU")
    raw = {claim.text: _at(found, test, *place)["approximate_randomisation"] for claim, found in measured.items()}
    corrected = holm(dict.fromkeys(raw) if comparison.too_few(test, place[0]) else raw)
    columns = ["the papers say", Number("published"), *(Number(name) for name in (dev, test) if name)]
    columns += ["seeds better", Number("p, corrected"), *([Number("seen from")] if folder else []), "at this scale"]
    rows = []
    for claim, found in measured.items():
        seeds = _by_seed(comparison, claim, suffix, test)
        p = corrected[claim.text]
        on_dev = _at(found, dev, *place)["difference"] if dev else None
        cells = [f"{_at(found, name, *place)['difference']:+.2f}" for name in (dev, test) if name]
        better = f"{sum(value > 0 for value in seeds)} of {len(seeds)}"
        shown = f"{p:.3f}" if p is not None else MISSING
        said, seen = answer(claim, seeds, on_dev, p), ""
        if folder and said in (BETTER[1], NO_BETTER[0]):
            names = tuple(f"{name}{suffix}" for name in (claim.against, claim.system))
            common = tuple(seed for seed in comparison.runs[names[0]] if seed in comparison.runs[names[1]])
            spread = _deviation(comparison, test, *place)
            seen = f"{_smallest(folder, names, common, (test, *place), spread, len(raw)):.2f}"
        rows.append([claim.text, _range(claim.published), *cells, better, shown, *([seen] if folder else []), said])
    return Table(columns, rows)


@functools.cache
def _smallest(
    folder: Path,
    names: tuple[str, str],
    seeds: tuple[int, ...],
    place: tuple[str, str, str],
    deviation: float,
    lines: int,
) -> float:
    """The smallest difference that the rule sees in four of five such trainings, of the counts that are kept."""
    test, protocol, metric = place
    counts = [[_counts(folder / f"{name}.seed{seed}{COUNTS}") for seed in seeds] for name in names]
    base, own = ([run[test][protocol][metric] for run in runs] for runs in counts)
    return smallest_seen(cast(Any, metric), base, own, deviation, tests=lines, every_seed=True)


def smallest_seen(
    metric: MetricName,
    baseline: Counted,
    system: Counted,
    deviation: float,
    *,
    tests: int = 1,
    every_seed: bool = False,
    seed: int = DEFAULT_SEED,
) -> float:
    """Returns the smallest true difference that would have been seen in four of five such trainings (`SEEN_IN`).

    Seen is what has p < 0.05 of approximate randomisation on these very sentences, with as many runs, corrected for
    `tests` (Bonferroni's bound, which Holm's correction does not exceed), and, if `every_seed`, the same sign in every
    seed. What changes from training to training is the score of a run, by `deviation`, its standard deviation over
    seeds, whose scores are taken as normal.
    """
    needed = np.quantile(shuffled_differences(metric, baseline, system, DEFAULT_TRIALS, seed), 1 - 0.05 / tests)
    drawn = np.random.default_rng(seed).standard_normal((_TRAININGS, len(system))) * deviation * 2**0.5
    missing = needed - drawn.mean(1)
    return float(np.quantile(np.maximum(missing, -drawn.min(1)) if every_seed else missing, SEEN_IN))


@functools.cache
def _counts(path: Path) -> dict[str, Any]:
    return unpack_counts(path.read_bytes(), path)


def page_with_claims(folder: Path, root: Path) -> str:
    """README.md of a comparison's folder, with what the papers say of its systems behind the overview."""
    comparison = read_comparison(folder)
    table = claims_table(comparison, folder)
    sections = [f"## What the papers say\n\n{SECTION}\n\n{table.markdown()}"] if table else []
    return comparison_page(comparison, own_budget(comparison.baseline, root), sections)


def comparisons(root: str | Path) -> list[Path]:
    """The folders in results/, at any depth, that hold a comparison."""
    return sorted(path.parent for path in (Path(root) / "results").rglob(COMPARISON))


def comparison_pages(root: Path) -> dict[Path, str]:
    """The pages of all comparisons in results/, as they should be."""
    return {folder / PAGE: page_with_claims(folder, root) for folder in comparisons(root)}


def answer(claim: Claim, seeds: list[float], dev: float | None, p: float | None) -> str:
    """The rule above. seeds: the differences of each seed on the test set; dev: that of the means; p: corrected."""
    if len(seeds) < FEWEST_SEEDS:
        return OPEN
    significant = p is not None and p < SIGNIFICANT
    better = significant and min(seeds) > 0
    if not claim.gain:
        return NO_BETTER[better]
    if better and (dev is None or dev > 0):
        return BETTER[0]
    return BETTER[2 if significant and max(seeds) < 0 else 1]


def pairs_to_test(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """The pairs of record names, neither the baseline's, that statements compare."""
    suffix = comparison.baseline.removeprefix(BASELINE)
    if comparison.baseline != f"{BASELINE}{suffix}":
        return
    for claim in BETWEEN:
        pair = (f"{claim.system}{suffix}", f"{claim.against}{suffix}")
        if set(pair) <= comparison.runs.keys():
            yield pair


def _tested(comparison: Comparison, claim: Claim, suffix: str) -> dict[str, Any]:
    """{test set: {protocol: {metric: numbers}}}, empty where nothing was tested."""
    if claim.against == BASELINE:
        found = comparison.tests.get(claim.system + suffix, {})
    else:
        found = (comparison.pairs or {}).get(f"{claim.system}{suffix} > {claim.against}{suffix}", {})
    return dict(found.get(TESTED, {}))


def _deviation(comparison: Comparison, test: str, protocol: str, metric: str) -> float:
    """The standard deviation of a score over seeds, pooled over all systems; 0 where none has two."""
    several = [comparison.scores(system, test, protocol, metric) for system in comparison.runs]
    several = [scores for scores in several if len(scores) > 1]
    squares = sum((len(scores) - 1) * statistics.variance(scores) for scores in several)
    return float(squares / max(1, sum(len(scores) - 1 for scores in several))) ** 0.5


def _at(found: dict[str, Any], test: str, protocol: str, metric: str) -> dict[str, Any]:
    return dict(found[test][protocol][metric])


def _by_seed(comparison: Comparison, claim: Claim, suffix: str, test: str) -> list[float]:
    """The difference of each seed that both systems have, on the test set."""
    own, other = (comparison.runs[f"{name}{suffix}"] for name in (claim.system, claim.against))
    place = (test, "classic", "BLEU", "score")
    return [_score(own[seed], place) - _score(other[seed], place) for seed in own if seed in other]


def _score(results: Any, place: tuple[str, ...]) -> float:
    found = results["scores"]
    for key in place:
        found = found[key]
    return float(found)


def _range(values: list[float]) -> str:
    if not values:
        return MISSING
    if len(values) == 1:
        return f"{values[0]:+.2f}"
    return f"{min(values):+.2f} to {max(values):+.2f} ({len(values)} tasks)"


def main(words: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of a comparison")
    options = parser.parse_args(words)
    try:
        comparison = read_comparison(options.folder)
        settings: dict[str, Any] = dict(comparison.settings)
        add_runs([], options.folder, pairs=list(pairs_to_test(comparison)), **settings)
        write_text(options.folder / PAGE, page_with_claims(options.folder, records_root()))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
