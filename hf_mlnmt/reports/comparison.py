"""Adds runs to a comparison and writes its folder; evaluation/comparison.py describes the files.

Training runs are comparable if they differ in nothing but the model; with `methods`, if languages, test sets, decoding
and seed are equal. For other runs only test sets, languages, references and signatures of scores must be equal.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_path, file_name, write_json, write_text
from hf_mlnmt.common.languages import same_language
from hf_mlnmt.common.made_from import differences
from hf_mlnmt.evaluation.comparison import Comparison, add_tests, check_scored, in_order, read_comparison
from hf_mlnmt.evaluation.outputs import COMPARISON, COUNTS, SystemRun, Texts, counts_of, digest_of, read_run, texts_of
from hf_mlnmt.evaluation.results import languages_of_test
from hf_mlnmt.evaluation.scores import DEFAULT_BOOTSTRAP, DEFAULT_SEED
from hf_mlnmt.evaluation.significance import DEFAULT_TRIALS, pack_counts
from hf_mlnmt.reports.comparison_page import page_of, said, with_defaults
from hf_mlnmt.reports.paths import hide_paths

# Keys that may differ between comparable runs: they do not change what is learnt, or they are what is compared.
FREE_RECIPE = ("recipe.model", "recipe.logging", "recipe.data.domain", "recipe.data.datasets")
BUDGET = ("budget.steps", "budget.processes", "budget.target_tokens")
FREE_CONFIG = ("architectures", "model_type", "transformers_version", "dtype", "auto_map")
_SIZES = ("layers", "attention_heads", "ffn_dim")
SIZES = ("d_model", *(f"{side}_{size}" for side in ("encoder", "decoder") for size in _SIZES))

PAGE = "README.md"


def add_runs(
    runs: Sequence[str | Path | SystemRun],
    output: str | Path | None,
    data: str | Path = ".",
    tell: Callable[[str], None] = print,
    methods: bool = False,
    pairs: Sequence[tuple[str, str]] | None = None,
    known_texts: dict[Path, Mapping[str, Texts]] | None = None,
    **settings: int,
) -> Comparison:
    """Adds runs to a comparison, which keeps its earlier runs, and tests every system against the baseline.

    Args:
        runs: runs of any seeds, or folders of training runs, the baseline's first; unfinished runs are skipped.
        output: folder of the comparison; None: nothing is written.
        data: folder of the corpora of training runs, for their raw references.
        methods: recipe, data and budget of the runs may differ too; in an existing comparison its own value holds.
        pairs: (system, other system than the baseline) to test, beside the pairs tested before.
        known_texts: a dict to which {origin of a run: its test sets} are added for the given runs.
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
    _check_references([(run, texts.get(key, {})) for key, run in every.items()])
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
    _check_stems(comparison.runs)
    if folder:
        _write(comparison, packed, folder)
    return comparison


def _finished(
    runs: Sequence[str | Path | SystemRun], begins: bool, tell: Callable[[str], None]
) -> dict[tuple[str, int], SystemRun]:
    """Returns {(system, seed): run} of finished runs; UserError if a new comparison's first run is not finished."""
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
    """Writes results and counts of the runs in `packed`, comparison.json and the page into the comparison's folder."""
    for (system, seed), counts in packed.items():
        stem = f"{file_name(system)}.seed{seed}"
        if counts is not None:
            with atomic_path(folder / f"{stem}{COUNTS}") as path:
                path.write_bytes(counts)
        write_json(folder / f"{stem}.json", comparison.runs[system][seed])
    write_json(folder / COMPARISON, comparison.to_dict())
    write_text(folder / PAGE, page_of(folder))


def kept_counts(folder: Path, system: str, seed: int) -> Path:
    """Returns the file of a run's sentence counts in a comparison's folder. Raises: UserError if it is missing."""
    path = folder / f"{file_name(system)}.seed{seed}{COUNTS}"
    if not path.is_file():
        raise UserError(f"{path}: no such file: what the tests of this run are made of. Give the run's folder again.")
    return path


def _check(runs: Mapping[tuple[str, int], SystemRun], comparison: Comparison, tell: Callable[[str], None]) -> None:
    """Raises UserError for a run not comparable with the baseline's run of its seed, or with its system's first run."""
    baseline, firsts = comparison.baseline, dict[str, SystemRun]()
    first = next(run for (system, _), run in runs.items() if system == baseline)
    for (system, seed), run in runs.items():
        before = firsts.setdefault(system, run)
        if not comparison.methods and run.trained and before.trained:
            _check_one_model(run, before)
        beside = runs.get((baseline, seed))
        if beside is None:
            tell(f"{run.origin}: the baseline has no run of seed {seed} yet; this one waits for it")
        other = first if beside is None or system == baseline else beside
        _check_comparable(run, other, comparison.methods, other_seed=beside is None or system == baseline)
        if run.trained and other.trained:
            known = beside or first
            for note in _differing(run, known, ("versions", "budget.device"), [n for n in run.config if n in SIZES]):
                tell(f"note: {run.name}: {note}")
        check_scored(run.origin, run.results, first.results)


def _check_comparable(run: SystemRun, baseline: SystemRun, methods: bool, other_seed: bool) -> None:
    """Raises UserError naming every field in which a run differs from the baseline's, but must be equal.

    methods: recipe, data and budget may differ. other_seed: seeds may differ, and with them the number of tokens in the
    same number of steps.
    """
    remedy = ""
    tests = [sorted(each.results["scores"]) for each in (run, baseline)]
    other_tests = [f"test sets ({', '.join(tests[0])}; baseline {', '.join(tests[1])})"] * (tests[0] != tests[1])
    if not (run.trained and baseline.trained):
        different = other_tests
        for test in () if different else run.results["scores"]:
            ours, theirs = (languages_of_test(each.results, test)["target"] for each in (run, baseline))
            if not same_language(ours, theirs):
                different.append(f"language of {test} ({ours}; baseline {theirs})")
            different += said(differences(_signatures(baseline, test), _signatures(run, test)))
    elif methods:
        keys = ("languages", "recipe.data.test", "decoding", *(() if other_seed else ("seed",)))
        different = _differing(run, baseline, keys)
    else:
        free = (*FREE_RECIPE, *(("recipe.seed", "seed", "budget.target_tokens") if other_seed else ()))
        fields = [name for name in run.config if name not in SIZES]
        different = _differing(run, baseline, ("recipe", "seed", "data", "languages", *BUDGET), fields, free)
        different += other_tests
        remedy = (
            "\nTrain both with one recipe, seed, data and budget, or compare their translations (--reference FILE)."
        )
    if different:
        listed = "\n  ".join(dict.fromkeys(different))
        raise UserError(f"{run.origin}: not comparable with {baseline.origin}; these differ:\n  {listed}{remedy}")


def _signatures(run: SystemRun, test: str) -> dict[str, str]:
    scores = run.results["scores"][test].items()
    return {f"signatures.{test}.{name}.{m}": entry.get("signature") for name, of in scores for m, entry in of.items()}


def _check_references(runs: Sequence[tuple[SystemRun, Mapping[str, Texts]]]) -> None:
    """Raises UserError for runs whose test sets of the same name have different references, where these are known."""
    known: dict[str, tuple[str, Path]] = {}
    for run, texts in runs:
        digests = run.results.get("references") or {test: digest_of(of.references) for test, of in texts.items()}
        for test, digest in digests.items():
            first, origin = known.setdefault(test, (digest, run.origin))
            if first != digest:
                raise UserError(f"{run.origin}: not comparable with {origin}: the references of {test} are others.")


def _check_one_model(run: SystemRun, first: SystemRun) -> None:
    """Raises UserError, naming all fields that differ, if the models of two seeds of a system are not the same."""
    if different := _differing(run, first, ("parameters", "recipe.model"), list(run.config), other="there"):
        listed = "\n  ".join(different)
        raise UserError(
            f"{run.origin} and {first.origin} are two seeds of {run.name}, but not of one model; these differ:\n"
            f"  {listed}\nGive one of the two recipes a name of its own."
        )


def _differing(
    run: SystemRun,
    baseline: SystemRun,
    keys: Sequence[str],
    config_fields: Sequence[str] = (),
    may_differ: Sequence[str] = (),
    other: str = "baseline",
) -> list[str]:
    """Returns messages on the differences between two runs' results in these keys (nested keys: with dots).

    A key that a run's recipe lacks has its default. config_fields: fields of the models' configs to compare too.
    """
    fields = [name for name in config_fields if name in baseline.config and name not in FREE_CONFIG]
    facts = []
    for each in (baseline, run):
        found = {f"config.{name}": each.config[name] for name in fields}
        results = {**each.results, "recipe": with_defaults(each.results.get("recipe", {}))}
        for key in keys:
            value: Any = results
            for part in key.split("."):
                value = (value or {}).get(part)
            found[key] = value
        facts.append(found)
    return said(differences(facts[0], facts[1], may_differ), other)
