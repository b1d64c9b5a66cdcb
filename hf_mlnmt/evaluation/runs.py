"""Runs of systems, whatever they come from, and whether they are comparable.

| what is given | where its translations, references and counts of sentences come from |
| --- | --- |
| the folder that `hf-mlnmt train` leaves | its translations/; the corpora that its recipe names |
| files of translations, or a model that translates | those files; the references that are given |
| a results file | counts of sentences beside it (`<stem>.counts.gz`), where there are any |

Runs of training are comparable if nothing but the model differs, or, of several methods, but for languages, test sets,
decoding and seed. Of anything else only test sets, references and signatures of scores are known, and compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import file_name, read_json
from hf_mlnmt.common.keys import build
from hf_mlnmt.common.languages import same_language
from hf_mlnmt.common.made_from import Changes, Digest, differences
from hf_mlnmt.common.model_folder import CONFIG, RESULTS
from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.evaluation.counts import Counts, scores_of_sums
from hf_mlnmt.evaluation.outputs import SystemOutput, load_system, read_references, read_texts
from hf_mlnmt.evaluation.results import Results, languages_of_test, results_content
from hf_mlnmt.evaluation.scores import Lines, Protocol, ProtocolName, check_counts, count_sentences, score_protocols
from hf_mlnmt.evaluation.significance import unpack_counts
from hf_mlnmt.generation.translating.options import DecodingOptions

COMPARISON, COUNTS = "comparison.json", ".counts.gz"
MODEL = "average"  # the model that a run's results.json is of
# What does not change what a run has learnt, and what is meant to differ.
FREE_RECIPE = ("recipe.model", "recipe.logging", "recipe.data.domain", "recipe.data.datasets")
BUDGET = ("budget.steps", "budget.processes", "budget.target_tokens")
FREE_CONFIG = ("architectures", "model_type", "transformers_version", "dtype", "auto_map")
_SIZES = ("layers", "attention_heads", "ffn_dim")
SIZES = ("d_model", *(f"{side}_{size}" for side in ("encoder", "decoder") for size in _SIZES))
TOLERANCE = 0.01  # points between a recorded score and the same from the files: more is another text
Kind = Literal["comparison", "run", "results", "outputs"]


@dataclass(frozen=True)
class Texts:
    """A test set: raw references, one list of lines for each, and the raw sources where they are known."""

    references: Sequence[Lines]
    sources: Lines | None = None


@dataclass(frozen=True)
class TextFiles:
    """The files of a test set."""

    references: tuple[str, ...]
    source: str | None = None

    def read(self) -> Texts:
        """Reads their lines. Raises: UserError where their numbers differ, naming the files."""
        references = read_references(self.references)
        sources = read_texts(self.source) if self.source else None
        if sources is not None:
            check_counts(sources, references, [str(self.source), *self.references])
        return Texts(references, sources)


@dataclass(frozen=True)
class SystemRun:
    """A run of a system.

    origin: folder or file, for messages. results: content of a results file. outputs: {test set: lines}. config: the
    model's, or {}. texts: {test set: Texts} of files of translations. counts: the file with counts of sentences that
    lies beside a results file. counted: {test set: {protocol: Counts}} of what was scored just now.
    """

    origin: Path
    results: Mapping[str, Any]
    outputs: Mapping[str, Lines] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, Texts] | None = None
    counts: Path | None = None
    counted: Mapping[str, dict[ProtocolName, Counts]] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return str(self.results["system"])

    @property
    def seed(self) -> int:
        return int(self.results.get("seed") or 1)

    @property
    def trained(self) -> bool:
        """Returns whether it says how it was trained."""
        return "recipe" in self.results

    def renamed(self, name: str) -> SystemRun:
        """Returns the run under another name; itself for none."""
        return replace(self, results={**self.results, "system": name}) if name else self


def kind_of(path: str | Path) -> Kind:
    """Tells what lies there: a comparison, a run, a results file; else translations, of a file or by a model."""
    path = Path(path)
    if (path.is_file() and path.name == COMPARISON) or (path / COMPARISON).is_file():
        return "comparison"
    if path.is_file():
        return "results" if path.suffix == ".json" else "outputs"
    if (path / CONFIG).is_file():  # a model; a fused one is kept with its translations as a run is
        is_run = (path / RESULTS).is_file() and (path / "translations").is_dir()
    else:
        is_run = any((path / name).is_file() for name in (RESULTS, "recipe.yaml"))
    return "run" if is_run else "outputs"


def text_files(references: Sequence[tuple[str, str]], sources: Sequence[tuple[str, str]]) -> dict[str, TextFiles]:
    """Returns {test set: its files} of (name, path); references without a name are of one, named as the first file.

    Raises: UserError for names and files that do not belong together.
    """
    named = {name for name, _ in references}
    if "" in named and len(named) > 1:
        raise UserError("--reference: give every test set a name, NAME=FILE, or none.")
    only = Path(references[0][1]).name.removesuffix(".gz") if references else ""
    files: dict[str, TextFiles] = {}
    for name, path in references:
        before = files.get(name or only, TextFiles(()))
        files[name or only] = TextFiles((*before.references, path))
    for name, path in sources:
        test = name or (next(iter(files)) if len(files) == 1 else "")
        if test not in files:
            known = ", ".join(files) or "none"
            raise UserError(f"--source {path}: of which test set? Give NAME=FILE; there are references of: {known}.")
        if files[test].source:
            raise UserError(f"--source {path}: there are two sources of the test set {test!r}.")
        files[test] = replace(files[test], source=path)
    return files


def read_systems(
    systems: Sequence[tuple[str, str, str]],
    files: Mapping[str, TextFiles],
    output: Path | None,
    scoring: Mapping[str, Any],
    decoding: DecodingOptions,
    device: str | None = None,
) -> list[SystemRun | Path] | Path:
    """Reads the runs of a command's arguments; of a single comparison that is to be shown, its folder.

    Args:
        systems: (the name that is given or "", what to call it otherwise, path).
        files: the test sets of translations and models.
        output: folder of a comparison, new or to be added to.
        scoring: as of `score_run`. decoding, device: as of `load_system`.

    Returns: runs, and the folders of those that are not finished.
    Raises: UserError for arguments that make no comparison.
    """
    given: list[tuple[str, str, str, Kind]] = []
    places: set[Path] = set()
    for name, label, path in systems:
        kind, place = kind_of(path), Path(path).resolve()
        if kind != "run" or place not in places:  # `runs/*` holds the baseline's folder too
            given.append((name, label, path, kind))
        places.add(place)
    kinds = [kind for *_, kind in given]
    if kinds == ["comparison"] and output is None:
        return _comparison_folder(given[0][2])
    of_outputs: dict[str, list[str]] = {}
    for name, label, path, kind in given:
        if kind != "outputs":
            continue
        if label in of_outputs and (not name or path in of_outputs[label]):
            raise UserError(f"system {label!r} is given twice; give each a name of its own with NAME=PATH.")
        of_outputs.setdefault(label, []).append(path)
    _check_enough(kinds, of_outputs, files, output)
    texts = {test: of_test.read() for test, of_test in files.items()} if of_outputs else {}
    runs: list[SystemRun | Path] = []
    for name, label, path, kind in given:
        if kind == "outputs":
            number = of_outputs[label].index(path) + 1
            runs.append(score_run(label, number, _translations(path, files, texts, decoding, device), texts, **scoring))
        elif kind == "run":
            run = read_run(path)
            runs.append(run.renamed(name) if run else Path(path))
        else:
            runs += [read_recorded(path).renamed(name)] if kind == "results" else recorded_runs(path)
    return runs


def _check_enough(
    kinds: Sequence[Kind], of_outputs: Mapping[str, list[str]], files: Mapping[str, TextFiles], output: Path | None
) -> None:
    adds = output is not None and (output / COMPARISON).is_file()
    looks = any(of_test.source for of_test in files.values())
    if len(kinds) < 2 and kinds != ["comparison"] and not adds and not looks:
        raise UserError(
            "compare needs a baseline and at least one other system; for one system use `hf-mlnmt evaluate`, or give "
            "--source to look at its translations."
        )
    if not of_outputs:
        return
    if not files:
        path = next(iter(of_outputs.values()))[0]
        raise UserError(f"{path}: translations and models are compared with references: give --reference FILE.")
    if len(of_outputs) == 1 and len(kinds) == sum(map(len, of_outputs.values())) > 1 and not adds:
        raise UserError(
            f"all runs are of one system, {next(iter(of_outputs))!r}; a comparison needs a baseline and another."
        )
    numbers = {name: len(paths) for name, paths in of_outputs.items()}
    if len(set(numbers.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in numbers.items())
        raise UserError(f"different numbers of runs ({listed}): give every system the same seeds, in the same order.")


def _translations(
    path: str,
    files: Mapping[str, TextFiles],
    texts: Mapping[str, Texts],
    decoding: DecodingOptions,
    device: str | None,
) -> dict[str, SystemOutput]:
    if len(files) > 1 and "{test}" not in path and Path(path).is_file():
        raise UserError(f"{path}: one file for {len(files)} test sets; write {{test}} where their names differ.")
    return {
        test: load_system(
            path.replace("{test}", test), of_test.source, texts[test].references, of_test.references, decoding, device
        )
        for test, of_test in files.items()
    }


def read_run(folder: str | Path) -> SystemRun | None:
    """Reads a run of training; None while it has no results.json. Raises: UserError for no run, or no translations."""
    folder = Path(folder)
    path = folder / RESULTS
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Give folders that `hf-mlnmt train` has made, such as runs/NAME.")
    if not path.is_file():
        if (folder / "recipe.yaml").is_file():
            return None
        raise UserError(f"{folder}: neither results.json nor recipe.yaml is there: not the folder of a training run.")
    results = results_content(path)
    if "recipe" not in results or not results.get("languages", {}).get("target"):
        raise UserError(f'{path}: has no "recipe" and "languages"; it was not written by `hf-mlnmt train`.')
    languages = {test: languages_of_test(results, test)["target"] for test in results["scores"]}
    names = {test: file_name(f"{test}.{MODEL}.{language}") for test, language in languages.items()}
    outputs = {test: read_texts(folder / "translations" / name) for test, name in names.items()}
    return SystemRun(folder, results, outputs, read_json(folder / MODEL / CONFIG))


def read_recorded(path: str | Path) -> SystemRun:
    """Reads a run of which there is a results file alone, or with counts of sentences beside it."""
    path = Path(path)
    counts = path.with_name(path.name.removesuffix(".json") + COUNTS)
    return SystemRun(path, results_content(path), counts=counts if counts.is_file() else None)


def recorded_runs(folder: str | Path) -> list[SystemRun]:
    """Reads the runs of a comparison's folder (comparison.py), the baseline's first."""
    folder = _comparison_folder(folder)
    baseline = read_json(folder / COMPARISON).get("baseline")
    runs = [read_recorded(path) for path in sorted(folder.glob("*.json")) if is_recorded(path)]
    return sorted(runs, key=lambda run: (run.name != baseline, run.name, run.seed))


def _comparison_folder(path: str | Path) -> Path:
    return Path(path).parent if Path(path).name == COMPARISON else Path(path)


def is_recorded(path: Path) -> bool:
    """Returns whether a JSON file of a comparison's folder is a run's: `<system>.seed<n>.json`."""
    return re.search(r"\.seed\d+$", path.stem) is not None


def score_run(
    name: str,
    number: int,
    outputs: Mapping[str, SystemOutput],
    texts: Mapping[str, Texts],
    language: str | None = None,
    **scoring: Any,
) -> SystemRun:
    """Scores {test set: translations} against their references as a run; its number stands as its seed.

    language and scoring: as score_protocols() takes them. Raises: UserError naming the system.
    """
    results, counted = Results(system=name, seed=number), {}
    for test, output in outputs.items():
        try:
            scores = score_protocols(output.lines, texts[test].references, language=language, **scoring)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        results.add_scores(test, scores)
        counted[test] = {protocol: value.counts for protocol, value in scores.items()}
        results.parameters, results.decoding = output.parameters, output.decoding
    results.extra["references"] = {test: _digest(texts[test].references) for test in outputs}
    if language:
        results.extra["languages"] = {"target": language}
    origin = Path(next(iter(outputs.values())).name)
    lines = {test: output.lines for test, output in outputs.items()}
    return SystemRun(origin, results.to_dict(), lines, texts=texts, counted=counted)


def _digest(references: Sequence[Sequence[str | None]]) -> str:
    return Digest("sha256").value([list(lines) for lines in references]).hex()


def check_comparable(
    run: SystemRun, baseline: SystemRun, other_seed: bool = False, defaults: Mapping[str, Any] | None = None
) -> None:
    """Raises UserError naming every field in which a run differs from the baseline, beyond the model and its sizes.

    other_seed: seeds may differ, and with them the tokens of a number of steps. defaults: the keys of a recipe with
        their defaults. A run that was made before there was such a key had it.
    """
    free = (*FREE_RECIPE, *(("recipe.seed", "seed", "budget.target_tokens") if other_seed else ()))
    keys = ("recipe", "seed", "data", "languages", *BUDGET)
    different = _differing(run, baseline, keys, lambda name: name not in SIZES, defaults, free)
    different += _test_set_differences(run, baseline)
    remedy = "Train both with one recipe, seed, data and budget, or compare their translations (--reference FILE)."
    _refuse(run, baseline, different, f"\n{remedy}")


def check_methods(run: SystemRun, baseline: SystemRun, other_seed: bool = False) -> None:
    """Raises UserError naming every field in which two methods' runs must not differ: their tests, and decoding."""
    keys = ("languages", "recipe.data.test", "decoding", *(() if other_seed else ("seed",)))
    _refuse(run, baseline, _differing(run, baseline, keys))


def check_tests(run: SystemRun, baseline: SystemRun) -> None:
    """Raises UserError naming what two runs must share where one of them does not say how it was trained."""
    different = _test_set_differences(run, baseline)
    for test in () if different else run.results["scores"]:
        ours, theirs = (languages_of_test(each.results, test)["target"] for each in (run, baseline))
        if not same_language(ours, theirs):
            different.append(f"language of {test} ({ours}; baseline {theirs})")
        signatures = [{f"signatures.{test}": _signatures(each.results["scores"][test])} for each in (baseline, run)]
        different += _said(differences(*signatures))
    _refuse(run, baseline, different)


def _refuse(run: SystemRun, baseline: SystemRun, different: Sequence[str], remedy: str = "") -> None:
    if different:
        listed = "\n  ".join(dict.fromkeys(different))
        raise UserError(f"{run.origin}: not comparable with {baseline.origin}; these differ:\n  {listed}{remedy}")


def _test_set_differences(run: SystemRun, baseline: SystemRun) -> list[str]:
    ours, theirs = (list(each.results["scores"]) for each in (run, baseline))
    same = sorted(ours) == sorted(theirs)
    return [] if same else [f"test sets ({', '.join(ours)}; baseline {', '.join(theirs)})"]


def check_references(runs: Sequence[tuple[SystemRun, Mapping[str, Texts]]]) -> None:
    """Raises UserError for runs whose test sets of one name have other references, as far as these are known."""
    known: dict[str, tuple[str, Path]] = {}
    for run, texts in runs:
        digests = run.results.get("references") or {
            test: _digest(of_test.references) for test, of_test in texts.items()
        }
        for test, digest in digests.items():
            first, origin = known.setdefault(test, (digest, run.origin))
            if first != digest:
                raise UserError(f"{run.origin}: not comparable with {origin}: the references of {test} are others.")


def _signatures(scores: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {name: {m: entry.get("signature") for m, entry in metrics.items()} for name, metrics in scores.items()}


def check_one_model(run: SystemRun, first: SystemRun, defaults: Mapping[str, Any] | None = None) -> None:
    """Raises UserError naming every field in which the models of two seeds of one system differ."""
    if different := _differing(run, first, ("parameters", "recipe.model"), lambda name: True, defaults, other="there"):
        listed = "\n  ".join(different)
        raise UserError(
            f"{run.origin} and {first.origin} are two seeds of {run.name}, but not of one model; these differ:\n"
            f"  {listed}\nGive one of the two recipes a name of its own."
        )


def changed_keys(run: Mapping[str, Any], baseline: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Returns what is other in the recipe of a run's results than in the baseline's, but for seed and logging."""
    before, now = (_filled(each["recipe"], defaults) for each in (baseline, run))
    return _said(differences(before, now, ("logging", "seed")))


def notes_of(run: SystemRun, baseline: SystemRun) -> list[str]:
    """Returns differences that are told, not refused: the model's sizes, versions of packages, and the device."""
    different = _differing(run, baseline, ("versions", "budget.device"), lambda name: name in SIZES)
    return [f"{run.name}: {text}" for text in different]


def _differing(
    run: SystemRun,
    baseline: SystemRun,
    keys: Sequence[str],
    of_config: Callable[[str], bool] = lambda name: False,
    defaults: Mapping[str, Any] | None = None,
    may_differ: Sequence[str] = (),
    other: str = "baseline",
) -> list[str]:
    """Returns what differs of these keys of two runs' results, which name nested ones with dots, as `_said` says it.

    of_config: of a field of the config, if both have it, whether it is compared too. defaults: of the recipe's keys.
    """
    fields = [name for name in run.config if name in baseline.config and name not in FREE_CONFIG and of_config(name)]
    facts = []
    for each in (baseline, run):
        found = {f"config.{name}": each.config[name] for name in fields}
        results = {**each.results, "recipe": _filled(each.results.get("recipe", {}), defaults or {})}
        for key in keys:
            value: Any = results
            for part in key.split("."):
                value = (value or {}).get(part)
            found[key] = value
        facts.append(found)
    before, now = facts
    return _said(differences(before, now, may_differ), other)


def _filled(recipe: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the recipe with the defaults of the keys that it lacks, in its sections too."""
    filled = {**defaults, **recipe}
    for key, value in defaults.items():
        if isinstance(value, Mapping) and isinstance(recipe.get(key), Mapping):
            filled[key] = _filled(recipe[key], value)
    return filled


def _said(changes: Changes, other: str = "baseline") -> list[str]:
    """Returns "budget.steps (20; baseline 10)" of each value that differs; other: the name of what came before."""
    return [f"{key} ({ours}; {other} {theirs})" for key, (theirs, ours) in sorted(changes.items())]


def texts_of(run: SystemRun, root: str | Path) -> Mapping[str, Texts]:
    """Returns {test set: Texts} that a run was scored with, or of the corpora under `root` that its recipe names."""
    if run.texts is not None:
        return run.texts
    languages = run.results["languages"]
    tests = run.results["recipe"]["data"]["test"]
    specs = {name: build(CorpusSpec, {"languages": languages, **tests[name]}, name) for name in run.outputs}
    pairs = {name: list(read_pairs(spec, root)) for name, spec in specs.items()}
    return {name: Texts([[target for _, target in of]], [source for source, _ in of]) for name, of in pairs.items()}


def counts_of(run: SystemRun, texts: Mapping[str, Texts]) -> dict[str, dict[ProtocolName, Counts]] | None:
    """Counts {test set: {protocol: Counts}} of a run for all that its results have scores of; None without any.

    Raises: UserError when the sums of its translations are not the scores that it recorded: these are other references.
    """
    if run.counted:
        return dict(run.counted)
    if not run.outputs:
        return unpack_counts(run.counts.read_bytes(), run.counts) if run.counts else None
    counted: dict[str, dict[ProtocolName, Counts]] = {}
    for test, by_protocol in run.results["scores"].items():
        language = languages_of_test(run.results, test)["target"]
        for protocol, metrics in by_protocol.items():
            how = Protocol(protocol, language)
            counts = count_sentences(run.outputs[test], texts[test].references, how, list(metrics))
            for metric, array in counts.items():
                score, recorded = float(scores_of_sums(metric, array.sum(0))), metrics[metric]["score"]
                if abs(score - recorded) > TOLERANCE:
                    raise UserError(
                        f"{run.origin}: {metric} on {test} ({protocol}) is {score:.2f} with the references under "
                        f"--data, but {recorded:.2f} in the run's results.json: they are not those that were scored "
                        "with."
                    )
            counted.setdefault(test, {})[protocol] = counts
    return counted
