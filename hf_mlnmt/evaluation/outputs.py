"""Reads the systems of a comparison: files of translations, models that translate, training runs, results files.

| given | translations, references and sentence counts come from |
| --- | --- |
| the folder of a training run (`hf-mlnmt train`) | its translations/; the corpora that its recipe names |
| files of translations, or a model that translates | these files or the model; the given references |
| a results file | the sentence counts in the file beside it (`<stem>.counts.gz`), if there is one |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.common.files import file_name, read_json
from hf_mlnmt.common.keys import build
from hf_mlnmt.common.languages import check_files, check_language, language_in
from hf_mlnmt.common.made_from import Digest
from hf_mlnmt.common.model_folder import CONFIG, RESULTS
from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.words import is_visible
from hf_mlnmt.evaluation.results import Results, languages_of_test, results_content
from hf_mlnmt.evaluation.scores import (
    Counts,
    Lines,
    Protocol,
    ProtocolName,
    check_counts,
    count_sentences,
    score_protocols,
    scores_of_sums,
)
from hf_mlnmt.evaluation.significance import unpack_counts
from hf_mlnmt.generation.translating.options import DecodingOptions

COMPARISON, COUNTS = "comparison.json", ".counts.gz"
MODEL = "average"  # folder of the model whose scores are in a run's results.json
TOLERANCE = 0.01  # points; if a recomputed score differs by more from the recorded one, the references are others
Kind = Literal["comparison", "run", "results", "outputs"]


@dataclass(frozen=True)
class SystemOutput:
    """The translations of a test set by a system; if it is a model, also decoding options and number of parameters."""

    name: str
    lines: list[str]
    parameters: int | None = None
    decoding: dict[str, Any] = field(default_factory=dict)


def read_texts(path: str | Path) -> list[str]:
    """Reads the lines of a UTF-8 file, plain or packed, also empty ones, without trailing white space, as sacreBLEU.
    Raises: UserError for a missing or empty file, a broken archive, invalid UTF-8 (with the line's number)."""
    # Control characters are kept: a model with byte tokens may write any, and its output is scored unchanged.
    remedy = "Convert the file to UTF-8, for example with iconv."
    return [line.rstrip() for line in read_lines(path, max_characters=10**9, keep_controls=True, remedy=remedy)]


def read_references(paths: Sequence[str | Path]) -> list[list[str]]:
    """Reads files of references; returns a list of lines for each file. Raises: UserError, naming the files, if their
    numbers of lines differ; for a file with only blank lines."""
    references = [read_texts(path) for path in paths]
    for path, lines in zip(paths, references):
        if not any(map(is_visible, lines)):
            raise UserError(f"{path}: all {len(lines)} lines are blank: no references to score with. Check the file.")
    check_counts(references[0], references[1:], [str(path) for path in paths])
    return references


def load_system(
    path: str | Path,
    source: str | Path | None,
    references: Sequence[Lines],
    reference_names: Iterable[str | Path],
    decoding: DecodingOptions,
    device: str | None = None,
) -> SystemOutput:
    """Reads a file of translations, or translates the file `source` by a model; `path` is the file or the model.

    Before that it checks that all files have equally many lines, and that languages in file names and in the model's
    results agree. Raises: UserError if they do not, for a path that does not exist, and for a model without `source`.
    """
    is_text = Path(path).is_file()
    file = path if is_text else source
    if file is None:
        if not Path(path).exists():
            raise UserError(f"{path}: no such file or model folder.")
        raise UserError(f"{path}: a model needs the source sentences (--source).")
    reference_names = list(reference_names)
    if is_text:
        says = next(filter(language_in, reference_names), path)
        for name in (path, *reference_names):
            check_language(name, language_in(says), f"that of {says}", "Give outputs and references of one language.")
    else:
        check_files(path, [file], reference_names, (decoding.told[0], None))
    lines = read_texts(file)
    check_counts(lines, references, [str(file), *map(str, reference_names)])
    return SystemOutput(str(path), lines) if is_text else _translate(str(path), lines, decoding, device)


def _translate(model: str, sources: list[str], decoding: DecodingOptions, device: str | None) -> SystemOutput:
    """Translates the lines of a file with a model."""
    from hf_mlnmt.generation import TranslationPipeline

    pipeline = TranslationPipeline.from_pretrained(model, device=device)
    lines = list(pipeline(sources, decoding, progress=True))
    keys = ("num_beams", "length_penalty", "early_stopping", "max_new_tokens", "max_length")
    defaults = {key: getattr(pipeline.model.generation_config, key, None) for key in keys}
    search = {key: value for key, value in {**defaults, **decoding.given}.items() if value is not None}
    return SystemOutput(model, lines, pipeline.model.num_parameters(), search)


@dataclass(frozen=True)
class Texts:
    """A test set: a list of raw lines for each reference, and the raw sources, if known."""

    references: Sequence[Lines]
    sources: Lines | None = None


@dataclass(frozen=True)
class TextFiles:
    """Paths of a test set's files: one or more references and, where it is given, the source."""

    references: tuple[str, ...]
    source: str | None = None

    def read(self) -> Texts:
        """Reads the lines of all files. Raises: UserError, naming the files, if their numbers of lines differ."""
        references = read_references(self.references)
        sources = read_texts(self.source) if self.source else None
        if sources is not None:
            check_counts(sources, references, [str(self.source), *self.references])
        return Texts(references, sources)


@dataclass(frozen=True)
class SystemRun:
    """A run (seed) of a system: its results and, where they are known, translations, config, texts and sentence counts.

    origin: folder or file, for messages. results: content of a results file. outputs: {test set: translations}. config:
    the model's, or {}. texts: {test set: Texts} if files of translations were given. counts: the file with sentence
    counts beside a results file. counted: {test set: {protocol: Counts}} if the run was scored by `score_run`.
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
        """Returns whether the results are of a training run: they have its recipe."""
        return "recipe" in self.results

    def renamed(self, name: str) -> SystemRun:
        """Returns the run with another system name; unchanged if `name` is empty."""
        return replace(self, results={**self.results, "system": name}) if name else self


def kind_of(path: str | Path) -> Kind:
    """Returns the kind of a path: a comparison, a training run, a results file, else "outputs" (a file or a model)."""
    path = Path(path)
    if (path.is_file() and path.name == COMPARISON) or (path / COMPARISON).is_file():
        return "comparison"
    if path.is_file():
        return "results" if path.suffix == ".json" else "outputs"
    if (path / CONFIG).is_file():  # a model's folder; if it has results and translations (a fused model's), it is a run
        is_run = (path / RESULTS).is_file() and (path / "translations").is_dir()
    else:
        is_run = any((path / name).is_file() for name in (RESULTS, "recipe.yaml"))
    return "run" if is_run else "outputs"


def text_files(references: Sequence[tuple[str, str]], sources: Sequence[tuple[str, str]]) -> dict[str, TextFiles]:
    """Returns {test set: its files} of (name, path) pairs; if names are empty there is one test set, named after the
    first reference's file. Raises: UserError for references with and without names, and for a source that is the second
    of its test set or of a test set without references.
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
    """Reads the runs of the systems given to `hf-mlnmt compare`; for one comparison and no `output`, its folder.

    Args:
        systems: (given name or "", name to use without one, path).
        files: {test set: files} for the scores of translations and models.
        output: folder of a comparison to make or to add to; None: none.
        scoring: as of `score_run`. decoding, device: as of `load_system`.

    Returns: runs; a training run that is not finished as its folder.
    Raises: UserError for arguments that make no comparison.
    """
    given: list[tuple[str, str, str, Kind]] = []
    places: set[Path] = set()
    for name, label, path in systems:
        kind, place = kind_of(path), Path(path).resolve()
        if kind != "run" or place not in places:  # a run that was given before, as by `runs/*`, is skipped
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
    """Raises UserError for arguments that make no comparison."""
    adds = output is not None and (output / COMPARISON).is_file()
    looks = any(of_test.source for of_test in files.values())
    if len(kinds) < 2 and kinds != ["comparison"] and not adds and not looks:
        raise UserError(
            "compare needs a baseline and at least one other system; for one system use `hf-mlnmt evaluate`, or give "
            "--source to look at its translations."
        )
    numbers = {name: len(paths) for name, paths in of_outputs.items()}
    if numbers and not files:
        path = next(iter(of_outputs.values()))[0]
        raise UserError(f"{path}: translations and models are compared with references: give --reference FILE.")
    if len(numbers) == 1 and len(kinds) == sum(numbers.values()) > 1 and not adds:
        raise UserError(f"all runs are of one system, {next(iter(numbers))!r}; a comparison needs another too.")
    if len(set(numbers.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in numbers.items())
        raise UserError(f"different numbers of runs ({listed}): give every system the same seeds, in the same order.")


def _translations(
    path: str, files: Mapping[str, TextFiles], texts: Mapping[str, Texts], decoding: DecodingOptions, device: str | None
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
    """Reads a training run's folder; None if it has no results.json yet. Raises: UserError for another folder."""
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
    """Reads a run from its results file; `counts` is the file of sentence counts beside it, if there is one."""
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
    """Returns whether a file in a comparison's folder is a run's results file: `<system>.seed<n>.json`."""
    return re.search(r"\.seed\d+$", path.stem) is not None


def score_run(
    name: str,
    number: int,
    outputs: Mapping[str, SystemOutput],
    texts: Mapping[str, Texts],
    language: str | None = None,
    **scoring: Any,
) -> SystemRun:
    """Scores a system's {test set: translations} against the references; returns a run with `number` as its seed.

    language, scoring: arguments of score_protocols(). Raises: UserError naming the system.
    """
    results, counted = Results(system=name, seed=number), {}
    for test, output in outputs.items():
        with naming(name):
            scores = score_protocols(output.lines, texts[test].references, language=language, **scoring)
        results.add_scores(test, scores)
        counted[test] = {protocol: value.counts for protocol, value in scores.items()}
        results.parameters, results.decoding = output.parameters, output.decoding
    results.extra["references"] = {test: digest_of(texts[test].references) for test in outputs}
    if language:
        results.extra["languages"] = {"target": language}
    origin = Path(next(iter(outputs.values())).name)
    lines = {test: output.lines for test, output in outputs.items()}
    return SystemRun(origin, results.to_dict(), lines, texts=texts, counted=counted)


def digest_of(references: Sequence[Sequence[str | None]]) -> str:
    """Returns a SHA-256 digest of the lines of references, as hexadecimal digits."""
    return Digest("sha256").value([list(lines) for lines in references]).hex()


def texts_of(run: SystemRun, root: str | Path) -> Mapping[str, Texts]:
    """Returns {test set: Texts} that a run was scored with; if unknown, reads its recipe's corpora under `root`."""
    if run.texts is not None:
        return run.texts
    languages = run.results["languages"]
    tests = run.results["recipe"]["data"]["test"]
    specs = {name: build(CorpusSpec, {"languages": languages, **tests[name]}, name) for name in run.outputs}
    pairs = {name: list(read_pairs(spec, root)) for name, spec in specs.items()}
    return {name: Texts([[target for _, target in of]], [source for source, _ in of]) for name, of in pairs.items()}


def counts_of(run: SystemRun, texts: Mapping[str, Texts]) -> dict[str, dict[ProtocolName, Counts]] | None:
    """Returns the sentence counts {test set: {protocol: Counts}} of a run for all scores in its results, from its
    translations or from the file beside it; None if it has neither.

    Raises: UserError when a score from these counts is not the recorded one: the references are others.
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
