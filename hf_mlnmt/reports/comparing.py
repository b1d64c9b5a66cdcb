"""Taking runs into a comparison (comparison.py says what its folder holds), and testing them against the baseline."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.runs import (
    FinishedRun,
    check_comparable,
    check_methods,
    check_one_model,
    counts_of,
    notes_of,
    read_run,
    references_of,
)
from hf_mlnmt.evaluation.scores import DEFAULT_BOOTSTRAP, DEFAULT_SEED
from hf_mlnmt.evaluation.significance import DEFAULT_TRIALS, compare_seeds, read_counts, write_counts
from hf_mlnmt.files import write_json, write_text
from hf_mlnmt.reports.comparison import (
    COMPARISON,
    COUNTS,
    METHODS,
    PAGE,
    SCHEMA,
    SEEDS,
    TESTED,
    RunComparison,
    in_order,
    read_comparison,
)
from hf_mlnmt.reports.comparison_page import page_of
from hf_mlnmt.reports.paths import hide_paths


def add_runs(
    folders: Sequence[str | Path],
    output: str | Path,
    data: str | Path = ".",
    tell: Callable[[str], None] = print,
    methods: bool = False,
    pairs: Sequence[tuple[str, str]] | None = None,
    **settings: int,
) -> list[str]:
    """Take runs into a comparison and test every system against the baseline; what is there already is kept.

    Args:
        folders: runs of any seeds. The first is one of the baseline's, unless `output` has a baseline already.
            Unfinished ones are passed over, to be added by a later call.
        output: folder of the comparison.
        data: folder of the raw references, as for training.
        methods: the runs may differ in recipe, data and budget too; of a comparison that is there, it is known.
        pairs: systems to test against other systems than the baseline, beside the pairs that were tested before.
        settings: bootstrap, trials and seed of the tests.

    Returns: the systems that were tested anew.
    Raises: UserError for runs that are not comparable, and for pairs without runs; then nothing is written.
    """
    output = Path(output)
    new = [run for run in (_read(folder, tell) for folder in folders) if run is not None]
    kept = read_comparison(output) if (output / COMPARISON).is_file() else None
    if kept is None and (not new or new[0].folder != Path(folders[0])):
        raise UserError(f"{folders[0]}: the baseline's run has no results.json yet. Let it finish first.")
    settings = {"bootstrap": DEFAULT_BOOTSTRAP, "trials": DEFAULT_TRIALS, "seed": DEFAULT_SEED, **settings}
    name, methods = (kept.baseline, kept.methods) if kept else (new[0].name, methods)
    comparison = RunComparison(name, settings=settings, methods=methods)
    given: dict[tuple[str, int], FinishedRun] = {}
    for run in new:
        if given.setdefault((run.name, run.seed), run) is not run:
            other = given[run.name, run.seed].folder
            raise UserError(f"{other} and {run.folder} are two runs of one system and seed ({run.name}, {run.seed}).")
    every = {**_kept_runs(kept), **given}
    _check(every, comparison, tell)
    for system, seed in every.keys() - given.keys():
        _counts_path(output, system, seed)
    counts = {run: counts_of(found, references_of(found, data)) for run, found in given.items()}
    for (system, seed), run in every.items():
        comparison.runs.setdefault(system, {})[seed] = hide_paths(dict(run.results))
    comparison.runs = in_order(comparison.runs, comparison.baseline)
    if gone := {name for pair in pairs or () for name in pair} - comparison.runs.keys():
        raise UserError(f"{output}: no runs of {', '.join(sorted(gone))}, so nothing to test as a pair.")
    for (system, seed), found in counts.items():
        write_counts(output / f"{system}.seed{seed}{COUNTS}", found)
        write_json(output / f"{system}.seed{seed}.json", comparison.runs[system][seed])
    tested = _test(comparison, kept, pairs, output, tell)
    write_json(output / COMPARISON, _content(comparison))
    write_text(output / PAGE, page_of(output))
    return tested


def _read(folder: str | Path, tell: Callable[[str], None]) -> FinishedRun | None:
    run = read_run(folder)
    if run is None:
        tell(f"{folder}: not finished, passed over")
    return run


def _kept_runs(kept: RunComparison | None) -> dict[tuple[str, int], FinishedRun]:
    runs = kept.runs if kept else {}
    return {
        (system, seed): FinishedRun(Path(f"{system}.seed{seed}"), results, {}, {})
        for system, by_seed in runs.items()
        for seed, results in by_seed.items()
    }


def _check(runs: Mapping[tuple[str, int], FinishedRun], comparison: RunComparison, tell: Callable[[str], None]) -> None:
    """Every run beside the baseline's of its seed, and the baseline's beside one another."""
    from hf_mlnmt.training.recipe_keys import default_keys

    baseline = comparison.baseline
    defaults = default_keys()
    check = check_methods if comparison.methods else partial(check_comparable, defaults=defaults)
    first = next(run for (system, _), run in runs.items() if system == baseline)
    firsts: dict[str, FinishedRun] = {}
    for (system, seed), run in runs.items():
        if not comparison.methods:
            check_one_model(run, firsts.setdefault(system, run), defaults)
        beside = runs.get((baseline, seed))
        if system == baseline:
            check(run, first, other_seed=True)
        elif beside is None:
            tell(f"{run.folder}: the baseline has no run of seed {seed} yet; this one waits for it")
            check(run, first, other_seed=True)
        else:
            check(run, beside)
        for note in notes_of(run, beside or first):
            tell(f"note: {note}")


def _test(
    comparison: RunComparison,
    kept: RunComparison | None,
    pairs: Sequence[tuple[str, str]] | None,
    output: Path,
    tell: Callable[[str], None],
) -> list[str]:
    """Fill `comparison.tests` and `.pairs`; returns the systems whose numbers are not those that were kept."""
    same = kept and kept.settings == comparison.settings and kept.ties_counted
    known = kept if kept and same else RunComparison(comparison.baseline)
    tested = []
    for system in comparison.runs:
        found = system != comparison.baseline and _pair(
            comparison, system, comparison.baseline, known.tests.get(system), output, tell
        )
        if found:
            comparison.tests[system] = found
            tested += [system] if found is not known.tests.get(system) else []
    before = kept.pairs if kept else None
    if before is not None or pairs is not None:
        comparison.pairs = {}
        for name in dict.fromkeys([*(before or ()), *(f"{system} > {against}" for system, against in pairs or ())]):
            system, _, against = name.partition(" > ")
            if found := _pair(comparison, system, against, (known.pairs or {}).get(name), output, tell):
                comparison.pairs[name] = found
    return tested


def _pair(
    comparison: RunComparison,
    system: str,
    against: str,
    before: dict[str, Any] | None,
    output: Path,
    tell: Callable[[str], None],
) -> dict[str, Any] | None:
    """The tests of a system against another over the seeds that both have; None without such; `before` if it holds."""
    seeds = sorted(comparison.runs[system].keys() & comparison.runs[against].keys())
    if not seeds:
        return None
    base, own = ([_counts_path(output, name, seed) for seed in seeds] for name in (against, system))
    made_of = hashlib.sha256(b"".join(path.read_bytes() for path in (*base, *own))).hexdigest()
    if before and before["made_of"] == made_of:
        return before
    tell(f"testing {system} against {against}, seeds {', '.join(map(str, seeds))}")
    return {SEEDS: seeds, "made_of": made_of, TESTED: _numbers(base, own, comparison)}


def _numbers(baseline: Sequence[Path], system: Sequence[Path], comparison: RunComparison) -> dict[str, Any]:
    base, own = ([read_counts(path) for path in paths] for paths in (baseline, system))
    return {
        test: {
            protocol: {
                metric: compare_seeds(
                    metric,
                    [run[test][protocol][metric] for run in base],
                    [run[test][protocol][metric] for run in own],
                    **comparison.settings,
                ).to_dict()
                for metric in metrics
            }
            for protocol, metrics in protocols.items()
        }
        for test, protocols in comparison.first["scores"].items()
    }


def _counts_path(folder: Path, system: str, seed: int) -> Path:
    path = folder / f"{system}.seed{seed}{COUNTS}"
    if not path.is_file():
        raise UserError(f"{path}: no such file: what the tests of this run are made of. Give the run's folder again.")
    return path


def _content(comparison: RunComparison) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "baseline": comparison.baseline,
        "settings": comparison.settings,
        **({"compares": METHODS} if comparison.methods else {}),
        "systems": comparison.tests,
        **({"pairs": comparison.pairs} if comparison.pairs is not None else {}),
    }
