"""Comparisons made of what a user gives and kept in a folder; evaluation/comparison.py says what one holds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hf_mlnmt.analysis.outputs import OutputAnalysis, analyse_outputs
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_path, file_name, write_json, write_text
from hf_mlnmt.evaluation.comparison import Comparison, add_smallest, add_tests, check_scored, in_order, read_comparison
from hf_mlnmt.evaluation.results import languages_of_test
from hf_mlnmt.evaluation.runs import (
    COMPARISON,
    COUNTS,
    SystemRun,
    Texts,
    check_comparable,
    check_methods,
    check_one_model,
    check_references,
    check_tests,
    counts_of,
    notes_of,
    read_run,
    texts_of,
)
from hf_mlnmt.evaluation.scores import DEFAULT_BOOTSTRAP, DEFAULT_SEED
from hf_mlnmt.evaluation.significance import DEFAULT_TRIALS, pack_counts
from hf_mlnmt.reports.comparison_page import page_of
from hf_mlnmt.reports.paths import hide_paths

PAGE = "README.md"


def add_runs(
    runs: Sequence[str | Path | SystemRun],
    output: str | Path | None,
    data: str | Path = ".",
    tell: Callable[[str], None] = print,
    methods: bool = False,
    pairs: Sequence[tuple[str, str]] | None = None,
    known_texts: dict[Path, Mapping[str, Texts]] | None = None,
    smallest: bool = False,
    **settings: int,
) -> Comparison:
    """Adds runs to a comparison and tests every system against the baseline; what is there already is kept.

    Args:
        runs: of any seeds, or folders of runs of training; the baseline's first. Unfinished ones are passed over.
        output: folder of the comparison; None: nothing is written.
        data: folder of the raw references of runs of training, as for training.
        methods: the runs may differ in recipe, data and budget too; of a comparison that is there, it is known.
        pairs: systems to test against other systems than the baseline, beside the pairs that were tested before.
        known_texts: is filled with the test sets of every run that has translations, by its origin.
        smallest: say for every test which difference it would have seen.
        settings: bootstrap, trials and seed of the tests.

    Raises: UserError for runs that are not comparable, and for pairs without runs; then nothing is written.
    """
    folder = Path(output) if output is not None else None
    kept = read_comparison(folder) if folder and (folder / COMPARISON).is_file() else None
    given = _finished(runs, kept is None, tell)
    settings = {"bootstrap": DEFAULT_BOOTSTRAP, "trials": DEFAULT_TRIALS, "seed": DEFAULT_SEED, **settings}
    name, methods = (kept.baseline, kept.methods) if kept else (next(iter(given))[0], methods)
    comparison = Comparison(name, settings=settings, methods=methods)
    every = {
        (system, seed): SystemRun(Path(f"{system}.seed{seed}"), results)
        for system, by_seed in (kept.runs if kept else {}).items()
        for seed, results in by_seed.items()
    } | given
    _check(every, comparison, tell)
    kept_files = {key: kept_counts(folder, *key) for key in every.keys() - given.keys() if folder}
    texts = {key: texts_of(run, data) if run.outputs else {} for key, run in given.items()}
    check_references([(run, texts.get(key, {})) for key, run in every.items()])
    if known_texts is not None:
        known_texts |= {run.origin: texts[key] for key, run in given.items()}
    counted = {key: counts_of(run, texts[key]) for key, run in given.items()}
    packed = {key: None if counts is None else pack_counts(counts) for key, counts in counted.items()}
    for (system, seed), run in every.items():
        comparison.runs.setdefault(system, {})[seed] = {**hide_paths(run.results), "seed": seed, "system": system}
    comparison.runs = in_order(comparison.runs, comparison.baseline, list(comparison.runs))
    if gone := {name for pair in pairs or () for name in pair} - comparison.runs.keys():
        raise UserError(f"{output}: no runs of {', '.join(sorted(gone))}, so nothing to test as a pair.")

    def load(system: str, seed: int) -> bytes | None:
        key = (system, seed)
        return kept_files[key].read_bytes() if key in kept_files else packed[key]

    add_tests(comparison, load, kept, pairs, tell)
    if smallest:
        add_smallest(comparison, load)
    _check_stems(comparison.runs)
    if folder:
        _write(comparison, packed, folder)
    return comparison


def _finished(
    runs: Sequence[str | Path | SystemRun], begins: bool, tell: Callable[[str], None]
) -> dict[tuple[str, int], SystemRun]:
    """Returns {(system, seed): run} of the runs that are finished; the first must be where a comparison begins."""
    finished: dict[tuple[str, int], SystemRun] = {}
    for number, given in enumerate(runs):
        run = given if isinstance(given, SystemRun) else read_run(given)
        if run is None and number == 0 and begins:
            raise UserError(f"{given}: the baseline's run has no results.json yet. Let it finish first.")
        if run is None:
            tell(f"{given}: not finished, passed over")
        elif (other := finished.setdefault((run.name, run.seed), run)) is not run:
            both = f"{other.origin} and {run.origin}"
            raise UserError(f"{both} are two runs of one system and seed ({run.name}, {run.seed}).")
    return finished


def _check_stems(names: Iterable[str]) -> None:
    stems: dict[str, str] = {}
    for name in names:
        if (before := stems.setdefault(file_name(name), name)) != name:
            raise UserError(f"{before!r} and {name!r} would be files of one name. Give one another name, NAME=PATH.")


def _write(comparison: Comparison, packed: Mapping[tuple[str, int], bytes | None], folder: Path) -> None:
    """Writes the files of the runs whose counts are given, the comparison and its page."""
    for (system, seed), counts in packed.items():
        stem = f"{file_name(system)}.seed{seed}"
        if counts is not None:
            with atomic_path(folder / f"{stem}{COUNTS}") as path:
                path.write_bytes(counts)
        write_json(folder / f"{stem}.json", comparison.runs[system][seed])
    write_json(folder / COMPARISON, comparison.to_dict())
    write_text(folder / PAGE, page_of(folder))


def analyses_of(
    comparison: Comparison,
    runs: Sequence[str | Path | SystemRun],
    texts: Mapping[Path, Mapping[str, Texts]],
    **about: Any,
) -> dict[str, OutputAnalysis]:
    """Returns {test set: analysis of the translations of each system's first run}, of those that are here.

    texts: by origin of a run, as `add_runs` fills `known_texts`. about: as `analyse_outputs` takes it, without
    protocol and language.
    """
    firsts: dict[str, SystemRun] = {}
    for run in runs:
        if isinstance(run, SystemRun) and run.outputs:
            firsts.setdefault(run.name, run)
    firsts = {name: firsts[name] for name in comparison.runs if name in firsts}
    analyses = {}
    for test, protocols in comparison.first["scores"].items() if firsts else ():
        known = next(iter(texts[run.origin][test] for run in firsts.values()))
        language = languages_of_test(comparison.first, test)["target"]
        outputs = {name: run.outputs[test] for name, run in firsts.items()}
        how: dict[str, Any] = {"protocol": next(iter(protocols)), "language": language, **about}
        analyses[test] = analyse_outputs(outputs, known.references, known.sources, **how)
    return analyses


def kept_counts(folder: Path, system: str, seed: int) -> Path:
    """Returns the file of a run's counts in a comparison's folder. Raises: UserError where it is not there."""
    path = folder / f"{file_name(system)}.seed{seed}{COUNTS}"
    if not path.is_file():
        raise UserError(f"{path}: no such file: what the tests of this run are made of. Give the run's folder again.")
    return path


def _check(runs: Mapping[tuple[str, int], SystemRun], comparison: Comparison, tell: Callable[[str], None]) -> None:
    """Compares how every run was made with the baseline's run of its seed, and the baseline's runs with one another."""
    from hf_mlnmt.recipe.schema import default_keys

    baseline = comparison.baseline
    defaults = default_keys()
    check_trained: Any = check_methods if comparison.methods else partial(check_comparable, defaults=defaults)
    first = next(run for (system, _), run in runs.items() if system == baseline)
    firsts: dict[str, SystemRun] = {}
    for (system, seed), run in runs.items():
        before = firsts.setdefault(system, run)
        if not comparison.methods and run.trained and before.trained:
            check_one_model(run, before, defaults)
        beside = runs.get((baseline, seed))
        if beside is None:
            tell(f"{run.origin}: the baseline has no run of seed {seed} yet; this one waits for it")
        other = first if beside is None or system == baseline else beside
        if run.trained and other.trained:
            check_trained(run, other, other_seed=beside is None or system == baseline)
            for note in notes_of(run, beside or first):
                tell(f"note: {note}")
        else:
            check_tests(run, other)
        check_scored(run.origin, run.results, first.results)
