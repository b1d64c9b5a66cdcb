"""Finished training runs side by side: what they are, and whether they are comparable.

A run is the folder that `hf-mlnmt train` leaves: results.json, translations/, average/config.json. Runs are comparable
if nothing but the model differs: recipe, seed, data, budget, and of the model what the baseline has too, but for its
sizes: baselines as large as the larger systems stand beside them. Runs of several methods (of training, of using data)
differ in all of this but in languages, test sets, decoding and seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.outputs import read_texts
from hf_mlnmt.evaluation.results import languages_of_test, read_results
from hf_mlnmt.evaluation.scores import ProtocolName
from hf_mlnmt.evaluation.significance import Counts, count_sentences, scores_of_sums
from hf_mlnmt.model_folder import CONFIG, RESULTS

MODEL = "average"  # the model that a run's results.json is of
# What does not change what a run has learnt, and what is meant to differ.
FREE_RECIPE = ("model", "logging")
BUDGET = ("steps", "processes", "target_tokens")
FREE_CONFIG = ("architectures", "model_type", "transformers_version", "dtype", "auto_map")
SIZES = (
    "d_model",
    *(f"{side}_{size}" for side in ("encoder", "decoder") for size in ("layers", "attention_heads", "ffn_dim")),
)
TOLERANCE = 0.01  # points between a recorded score and the same from the files: more is another text


@dataclass(frozen=True)
class FinishedRun:
    """`results`: results.json as it stands; `outputs`: {test set: lines}; `config`: {} if the model is not there."""

    folder: Path
    results: Mapping[str, Any]
    outputs: Mapping[str, list[str]]
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.results["system"])

    @property
    def seed(self) -> int:
        return int(self.results["seed"])

    def digests(self) -> dict[str, str]:
        """{test set: SHA-256 of the translations}."""
        return {test: hashlib.sha256("\n".join(lines).encode()).hexdigest() for test, lines in self.outputs.items()}


def read_run(folder: str | Path) -> FinishedRun | None:
    """A run; None while it has no results.json. UserError for what is no run, or lacks translations."""
    folder = Path(folder)
    path = folder / RESULTS
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Give folders that `hf-mlnmt train` has made, such as runs/NAME.")
    if not path.is_file():
        if (folder / "recipe.yaml").is_file():
            return None
        raise UserError(f"{folder}: neither results.json nor recipe.yaml is there: not the folder of a training run.")
    read_results(path)
    results = json.loads(path.read_text(encoding="utf-8"))
    if "recipe" not in results or not results.get("languages", {}).get("target"):
        raise UserError(f'{path}: has no "recipe" and "languages"; it was not written by `hf-mlnmt train`.')
    languages = {test: languages_of_test(results, test)["target"] for test in results["scores"]}
    files = {test: folder / "translations" / f"{test}.{MODEL}.{language}" for test, language in languages.items()}
    config = folder / MODEL / CONFIG
    return FinishedRun(
        folder,
        results,
        {test: read_texts(file) for test, file in files.items()},
        json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {},
    )


def check_comparable(
    run: FinishedRun, baseline: FinishedRun, other_seed: bool = False, defaults: Mapping[str, Any] | None = None
) -> None:
    """UserError naming every field in which a run differs from the baseline, beyond the model.

    Args:
        other_seed: seeds may differ, and with them the tokens of a number of steps.
        defaults: the keys of a recipe with their defaults. A run that was made before there was such a key had it.
    """
    free = ("seed", "target_tokens") if other_seed else ()
    found = [*_recipe_differences(run, baseline, free, defaults or {})]
    found += _config_differences(run, baseline, lambda name: name not in SIZES)
    for key in ("seed", "data", "languages"):
        if key not in free:
            found += _differences(key, run.results.get(key), baseline.results.get(key))
    for key in BUDGET:
        budgets = [(each.results.get("budget") or {}).get(key) for each in (run, baseline)]
        found += _differences(f"budget.{key}", *budgets) if key not in free else ()
    tests = [list(each.results["scores"]) for each in (run, baseline)]
    if sorted(tests[0]) != sorted(tests[1]):
        found.append(f"test sets ({', '.join(tests[0])}; baseline {', '.join(tests[1])})")
    if found:
        listed = "\n  ".join(dict.fromkeys(found))
        raise UserError(
            f"{run.folder}: not comparable with {baseline.folder}; these differ:\n  {listed}\n"
            "Train both with one recipe, seed, data and budget, or compare translations with `hf-mlnmt compare`."
        )


def check_methods(run: FinishedRun, baseline: FinishedRun, other_seed: bool = False) -> None:
    """UserError naming every field in which two methods' runs must not differ: what they are tested on, and how."""
    found = list(_differences("languages", run.results.get("languages"), baseline.results.get("languages")))
    tests = [each.results["recipe"].get("data", {}).get("test") for each in (run, baseline)]
    found += _differences("recipe.data.test", *tests)
    found += _differences("decoding", run.results.get("decoding"), baseline.results.get("decoding"))
    found += () if other_seed else _differences("seed", run.seed, baseline.seed)
    if found:
        listed = "\n  ".join(found)
        raise UserError(f"{run.folder}: not comparable with {baseline.folder}; these differ:\n  {listed}")


def check_one_model(run: FinishedRun, first: FinishedRun, defaults: Mapping[str, Any] | None = None) -> None:
    """UserError naming every field in which the models of two seeds of one system differ.

    defaults: as of `check_comparable`.
    """
    models = [_filled(each.results["recipe"], defaults or {}).get("model") for each in (run, first)]
    found = [
        *_differences("parameters", run.results.get("parameters"), first.results.get("parameters"), other="there"),
        *_differences("recipe.model", *models, other="there"),
        *_config_differences(run, first, lambda name: True, other="there"),
    ]
    if found:
        listed = "\n  ".join(found)
        raise UserError(
            f"{run.folder} and {first.folder} are two seeds of {run.name}, but not of one model; these differ:\n"
            f"  {listed}\nGive one of the two recipes a name of its own."
        )


def changed_keys(run: Mapping[str, Any], baseline: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """What is other in a run's recipe than in the baseline's, of two results: "budget.steps (20; baseline 10)" ...

    defaults: as of `check_comparable`.
    """
    here, there = (_filled(each["recipe"], defaults) for each in (run, baseline))
    return [
        text
        for key in sorted(here.keys() | there.keys())
        if key not in ("logging", "seed")
        for text in _differences(key, here.get(key), there.get(key))
    ]


def notes_of(run: FinishedRun, baseline: FinishedRun) -> list[str]:
    """Differences that are told, not refused: the model's sizes, versions of packages, and the device."""
    found = [*_config_differences(run, baseline, lambda name: name in SIZES)]
    found += _differences("versions", run.results.get("versions"), baseline.results.get("versions"))
    devices = [(each.results.get("budget") or {}).get("device") for each in (run, baseline)]
    return [f"{run.name}: {text}" for text in [*found, *_differences("budget.device", *devices)]]


def _recipe_differences(
    run: FinishedRun, baseline: FinishedRun, free: Sequence[str], defaults: Mapping[str, Any]
) -> Iterator[str]:
    here, there = (_filled(each.results["recipe"], defaults) for each in (run, baseline))
    for key in sorted(here.keys() | there.keys()):
        if key not in (*FREE_RECIPE, *free):
            yield from _differences(f"recipe.{key}", here.get(key), there.get(key))


def _filled(recipe: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with the defaults of the keys that it lacks, in its sections too."""
    found = {**defaults, **recipe}
    for key, value in defaults.items():
        if isinstance(value, Mapping) and isinstance(recipe.get(key), Mapping):
            found[key] = _filled(recipe[key], value)
    return found


def _config_differences(
    run: FinishedRun, baseline: FinishedRun, counts: Callable[[str], bool], other: str = "baseline"
) -> Iterator[str]:
    for key in sorted(run.config.keys() & baseline.config.keys()):
        if key not in FREE_CONFIG and counts(key):
            yield from _differences(f"config.{key}", run.config[key], baseline.config[key], other=other)


def _differences(name: str, here: Any, there: Any, *, other: str = "baseline") -> Iterator[str]:
    """ "budget.steps (20; baseline 10)", one for each value that differs at any depth; other: what `there` is of."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in sorted(here.keys() | there.keys()):
            yield from _differences(f"{name}.{key}", here.get(key), there.get(key), other=other)
    elif here != there:
        yield f"{name} ({here}; {other} {there})"


def references_of(run: FinishedRun, root: str | Path) -> dict[str, list[str]]:
    """{test set: raw references}, of the corpora that the run's recipe names, under `root`."""
    languages = run.results["languages"]
    tests = run.results["recipe"]["data"]["test"]
    specs = {name: CorpusSpec.from_dict({"languages": languages, **tests[name]}, name) for name in run.outputs}
    return {name: [target for _, target in read_pairs(spec, root)] for name, spec in specs.items()}


def counts_of(run: FinishedRun, references: Mapping[str, Sequence[str]]) -> dict[str, dict[ProtocolName, Counts]]:
    """{test set: {protocol: Counts}} of a run's translations, for all that results.json has scores of.

    Raises: UserError when their sums are not the scores that the run recorded: these are other references.
    """
    found: dict[str, dict[ProtocolName, Counts]] = {}
    for test, by_protocol in run.results["scores"].items():
        language = languages_of_test(run.results, test)["target"]
        for protocol, metrics in by_protocol.items():
            how: dict[str, Any] = {"protocol": protocol, "language": language, "metrics": list(metrics)}
            counts = count_sentences(run.outputs[test], references[test], **how)
            for metric, array in counts.items():
                score, recorded = float(scores_of_sums(metric, array.sum(0))), metrics[metric]["score"]
                if abs(score - recorded) > TOLERANCE:
                    raise UserError(
                        f"{run.folder}: {metric} on {test} ({protocol}) is {score:.2f} with the references under "
                        f"--data, but {recorded:.2f} in the run's results.json: they are not those that were scored "
                        "with."
                    )
            found.setdefault(test, {})[protocol] = counts
    return found
