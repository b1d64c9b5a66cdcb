"""Compares systems of one or more seeds on one or more test sets, and tests each against the first, the baseline.

`compare` compares lists of translations. The command `hf-mlnmt compare` compares files, training runs and results
files, and writes a folder (reports/comparison.py) that `read_comparison` reads:

| file | content |
| --- | --- |
| `<system>.seed<n>.json` | the run's results file |
| `<system>.seed<n>.counts.gz` | the run's sentence counts, of whose sums scores are functions (significance.py) |
| `comparison.json` | the baseline, and the tests of every other system against it, over the seeds that both have; \
and of further pairs of systems, where these were asked for |
| `README.md` | the page of tables, made from the files above alone |

The folders of the runs are not needed any more. A run that is given again replaces its earlier files.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import Form, file_name, misfit, read_json
from hf_mlnmt.common.made_from import Digest
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.outputs import COMPARISON, SystemOutput, Texts, counts_of, is_recorded, score_run
from hf_mlnmt.evaluation.results import results_content
from hf_mlnmt.evaluation.scores import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_SEED,
    Lines,
    ProtocolName,
    References,
    choose_protocols,
    reference_lists,
    title_of,
    with_arrow,
)
from hf_mlnmt.evaluation.significance import (
    DEFAULT_TRIALS,
    FEWEST_SENTENCES,
    LEGEND,
    P_VALUES,
    TOO_FEW,
    compare_seeds,
    holm,
    marks,
    p_of_mark,
    pack_counts,
    unpack_counts,
    welch_test,
)

SCHEMA = "hf_mlnmt.comparison/3"
TESTED, METHODS = "tested", "methods"
_TESTS: Form = {...: {"seeds": [int], TESTED: {...: {...: {...: {"difference": float, ...: (None, float)}}}}}}
FORM: Form = {
    "baseline": str,
    "systems": _TESTS,
    "pairs?": (None, _TESTS),
    "settings": {...: int},
    "note?": (None, str),
}
Load = Callable[[str, int], bytes | None]
"""Function of system and seed that returns the run's packed sentence counts; None if there are none."""


@dataclass
class Comparison:
    """The scores and tests of several systems.

    runs: {system: {seed: content of its results file}}, the baseline first.
    tests: {system: {"seeds", "made_of", "tested"}} of every other system against the baseline, where "tested" is
        {test set: {protocol: {metric: numbers}}} with the numbers of compare_seeds().
    settings: bootstrap, trials and seed of the tests.
    pairs: {"system > system": as in `tests`} for pairs without the baseline; None where no pairs were asked for.
    methods: whether the systems differ in their training, not in the model.
    note: a remark on how the tests were computed; dropped when they are computed again.
    """

    baseline: str
    runs: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    settings: dict[str, int] = field(default_factory=dict)
    pairs: dict[str, dict[str, Any]] | None = None
    methods: bool = False
    note: str = ""

    @property
    def first(self) -> dict[str, Any]:
        """Returns the results of the baseline's first seed."""
        return next(iter(self.runs[self.baseline].values()))

    @property
    def places(self) -> list[tuple[str, str]]:
        """Returns all pairs (test set, protocol) with scores of the baseline."""
        return [(test, protocol) for test, protocols in self.first["scores"].items() for protocol in protocols]

    @property
    def several(self) -> bool:
        """Returns whether any system has several runs."""
        return any(len(runs) > 1 for runs in self.runs.values())

    def title(self, test_set: str, protocol: str) -> str:
        """Returns the title of a table of a test set's scores under a protocol: protocol and BLEU's tokenizer."""
        return title_of(
            protocol, [entry.get("signature") for entry in self.first["scores"][test_set][protocol].values()]
        )

    def metrics(self, test_set: str, protocol: str) -> list[str]:
        """Returns the names of the metrics of a test set and protocol."""
        return list(self.first["scores"][test_set][protocol])

    def scores(self, system: str, test_set: str, protocol: str, metric: str) -> list[float]:
        """Returns the score of each seed of a system."""
        return [run["scores"][test_set][protocol][metric]["score"] for run in self.runs[system].values()]

    def interval(
        self, system: str, test_set: str, protocol: str, metric: str
    ) -> tuple[float, float | None, float | None]:
        """Returns (score, low, high): of one run with its 95 % interval, of several runs mean ± standard deviation.

        For a single run where other systems have several low and high are None, since a table has one kind of interval.
        """
        scores = self.scores(system, test_set, protocol, metric)
        if len(scores) > 1:
            mean, deviation = statistics.fmean(scores), statistics.stdev(scores)
            return mean, mean - deviation, mean + deviation
        if self.several:
            return scores[0], None, None
        (run,) = self.runs[system].values()
        low, high = run["scores"][test_set][protocol][metric].get("ci") or (None, None)
        return scores[0], low, high

    def counted(self, system: str, test_set: str, protocol: str) -> Mapping[str, Any]:
        """Returns "outputs" of the first run's results (sentences, references, empty lines, length ratio), or {}."""
        run = next(iter(self.runs[system].values()))
        return cast(Mapping[str, Any], run.get("outputs", {}).get(test_set, {}).get(protocol, {}))

    def tested(self, system: str, test_set: str, protocol: str, metric: str) -> dict[str, Any] | None:
        """Returns the result of the test of a system (`compare_seeds`); None for the baseline, and if not tested."""
        numbers: Any = self.tests.get(system, {})
        for key in (TESTED, test_set, protocol, metric):
            numbers = numbers.get(key, {})
        return numbers or None

    def p_values(self, test_set: str, protocol: str, metric: str) -> dict[str, float | None]:
        """Returns {other system: uncorrected p-value for its mark}; None for too few sentences, or without a test."""
        few = self.too_few(test_set, protocol)
        tests = {system: self.tested(system, test_set, protocol, metric) for system in self.tests}
        return {name: p_of_mark(numbers) if numbers and not few else None for name, numbers in tests.items()}

    def corrected(self, test_set: str, protocol: str, metric: str) -> dict[str, float | None]:
        """Returns `p_values`, corrected for the number of systems by Holm's method."""
        return holm(self.p_values(test_set, protocol, metric))

    def mark(self, system: str, test_set: str, protocol: str, metric: str) -> str:
        """Returns the mark of a system's significance: "†", "‡" or ""."""
        return marks(self.p_values(test_set, protocol, metric)).get(system, "")

    def too_few(self, test_set: str, protocol: str) -> bool:
        """Returns whether the test set has fewer than FEWEST_SENTENCES sentences, too few for p-values."""
        counted = self.counted(self.baseline, test_set, protocol).get("sentences")
        return counted is not None and counted < FEWEST_SENTENCES

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of comparison.json, without the runs, which have files of their own."""
        return {
            "schema": SCHEMA,
            "baseline": self.baseline,
            "settings": self.settings,
            **({"compares": METHODS} if self.methods else {}),
            "systems": self.tests,
            **({"pairs": self.pairs} if self.pairs is not None else {}),
        }


def compare(
    systems: Mapping[str, Lines | Sequence[Lines]],
    references: References,
    *,
    language: str | None = None,
    protocols: Sequence[ProtocolName] | None = None,
    metrics: Sequence[str] | None = None,
    bootstrap: int = DEFAULT_BOOTSTRAP,
    trials: int = DEFAULT_TRIALS,
    seed: int = DEFAULT_SEED,
    tokenize: str | None = None,
    test_set: str = "test",
) -> Comparison:
    """Scores every system on one test set, and tests each against the first.

    systems: {name: raw outputs}, the baseline first; or {name: [raw outputs of each run]}, equally many runs of all
    systems, in the same order of seeds. protocols: default: both if `language` is given, else 'cased' alone.
    test_set: its name in the comparison. Other arguments: those of score() and compare_seeds().
    Raises: UserError as score() does; for fewer than two systems, or different numbers of runs.
    """
    runs: dict[str, list[Lines]] = {
        name: [lines] if not len(lines) or isinstance(lines[0], str) else list(lines)  # type: ignore[list-item]
        for name, lines in systems.items()
    }
    if len(runs) < 2:
        raise UserError(f"A paired test needs a baseline and another system; got {', '.join(runs) or 'none'}.")
    numbers = {name: len(each) for name, each in runs.items()}
    if len(set(numbers.values())) > 1:
        listed = ", ".join(f"{name} {number}" for name, number in numbers.items())
        raise UserError(f"different numbers of runs ({listed}): give every system the same seeds, in the same order.")
    texts = {test_set: Texts(cast(Sequence[Lines], reference_lists(references)))}
    chosen = [protocol.name for protocol in choose_protocols(protocols, language, tokenize)]
    how: dict[str, Any] = {"metrics": metrics, "bootstrap": bootstrap, "seed": seed, "language": language}
    how |= {"tokenize": tokenize, "protocols": chosen}
    comparison = Comparison(next(iter(runs)), settings={"bootstrap": bootstrap, "trials": trials, "seed": seed})
    packed = {}
    for name, each in runs.items():
        for number, lines in enumerate(each, 1):
            run = score_run(name, number, {test_set: SystemOutput(name, list(lines))}, texts, **how)
            comparison.runs.setdefault(name, {})[number] = dict(run.results)
            packed[name, number] = pack_counts(cast(Any, counts_of(run, texts)))
    add_tests(comparison, lambda name, number: packed[name, number])
    return comparison


def add_tests(
    comparison: Comparison,
    load: Load,
    kept: Comparison | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> None:
    """Tests every system against the baseline, and chosen pairs of other systems; sets `comparison.tests` and `.pairs`.

    kept: an earlier comparison; tests of the same runs with the same settings are copied from it.
    pairs: (system, other system than the baseline) to test, beside the pairs of `kept`.
    """
    same = kept is not None and kept.settings == comparison.settings
    known = kept if kept and same else Comparison(comparison.baseline)
    for system in comparison.runs:
        if system != comparison.baseline:
            tested = _pair(comparison, system, comparison.baseline, known.tests.get(system), load, tell)
            comparison.tests |= {system: tested} if tested else {}
    before = kept.pairs if kept else None
    if before is not None or pairs is not None:
        comparison.pairs = {}
        for name in dict.fromkeys([*(before or ()), *(f"{system} > {against}" for system, against in pairs or ())]):
            system, _, against = name.partition(" > ")
            tested = _pair(comparison, system, against, (known.pairs or {}).get(name), load, tell)
            comparison.pairs |= {name: tested} if tested else {}


def _pair(
    comparison: Comparison,
    system: str,
    against: str,
    before: dict[str, Any] | None,
    load: Load,
    tell: Callable[[str], None],
) -> dict[str, Any] | None:
    """Tests a system against another over common seeds (None without any); returns `before` if its counts are equal."""
    seeds = sorted(comparison.runs[system].keys() & comparison.runs[against].keys())
    if not seeds:
        return None
    packed = [load(name, seed) for name in (against, system) for seed in seeds]
    made_of = Digest("sha256").raw(*(counts or b"" for counts in packed)).hex()
    if before and before.get("made_of") == made_of and None not in packed:
        return before
    tell(f"testing {system} against {against}" + f", seeds {', '.join(map(str, seeds))}" * comparison.several)
    tests: dict[str, Any] = {"seeds": seeds, "made_of": made_of}
    if None in packed:
        scored = [[comparison.runs[name][seed]["scores"] for seed in seeds] for name in (against, system)]
        return {**tests, TESTED: _numbers(comparison, _test_of_scores, *scored)}
    counts = [unpack_counts(cast(bytes, of_run), "the counts of a run") for of_run in packed]
    base, own = counts[: len(seeds)], counts[len(seeds) :]
    settings: dict[str, Any] = comparison.settings
    test = partial(compare_seeds, **settings)
    return {**tests, TESTED: _numbers(comparison, test, base, own)}


def _numbers(
    comparison: Comparison, test: Callable[..., dict[str, Any]], baseline: Sequence[Any], system: Sequence[Any]
) -> dict[str, Any]:
    """Calls test(metric, values of the baseline's runs, of the system's) for all scores; returns the results as {test
    set: {protocol: {metric: result}}}. baseline, system: runs, {test set: {protocol: {metric: value}}}."""
    numbers: dict[str, Any] = {}
    for place, protocol in comparison.places:
        for metric in comparison.metrics(place, protocol):
            base, own = ([run[place][protocol][metric] for run in runs] for runs in (baseline, system))
            numbers.setdefault(place, {}).setdefault(protocol, {})[metric] = test(metric, base, own)
    return numbers


def _test_of_scores(metric: str, baseline: Sequence[Any], system: Sequence[Any]) -> dict[str, Any]:
    """Tests scores alone, for runs without sentence counts: returns the difference of means, and Welch's p-value."""
    base, own = ([run["score"] for run in runs] for runs in (baseline, system))
    difference = round(statistics.fmean(own) - statistics.fmean(base), 4)
    return {**dict.fromkeys(P_VALUES[:2]), "difference": difference, "welch": welch_test(base, own)}


def read_comparison(folder: str | Path, only: str | None = None) -> Comparison:
    """Reads a comparison from its folder; with `only`, no other runs than those of this system and the baseline.
    Raises: UserError for another folder, and for runs that lack a score of the baseline."""
    folder = Path(folder)
    content = read_json(folder / COMPARISON)
    if content.get("schema") != SCHEMA:
        raise UserError(f"{folder}: no {COMPARISON} with schema {SCHEMA!r} in it: not a folder of `hf-mlnmt compare`.")
    if problem := misfit(content, FORM):
        raise UserError(f"{folder / COMPARISON}: {problem} It was not written by `hf-mlnmt compare`: make it again.")
    baseline, tests = content["baseline"], content["systems"]
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    wanted = "" if only is None else tuple(f"{file_name(name)}.seed" for name in (only, baseline))
    for path in sorted(folder.glob("*.json")):
        if is_recorded(path) and path.name.startswith(wanted):
            run = results_content(path)
            if not isinstance(seed := run.get("seed"), int):
                raise UserError(f"{path}: seed: expected a whole number, not {seed!r}.")
            runs.setdefault(run["system"], {})[seed] = run
    if baseline not in runs:
        raise UserError(f"{folder}: no run of the baseline, {baseline}.")
    comparison = Comparison(baseline, in_order(runs, baseline, list(tests)), tests, content["settings"])
    for system, seeds in runs.items():
        for seed, run in seeds.items():
            check_scored(folder / f"{file_name(system)}.seed{seed}.json", run, comparison.first)
    comparison.pairs, comparison.methods = content.get("pairs"), content.get("compares") == METHODS
    comparison.note = content.get("note") or ""
    return comparison


def check_scored(origin: Path, run: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Raises UserError where a run's results lack a score that the baseline's first run has."""
    for test, protocols in first.get("scores", {}).items():
        for protocol, metrics in protocols.items():
            for metric in metrics.keys() - run.get("scores", {}).get(test, {}).get(protocol, {}).keys():
                raise UserError(f"{origin}: has no score of {test}, {protocol}, {metric}, as the baseline: score it.")


def in_order(
    runs: Mapping[str, Mapping[int, Any]], baseline: str, given: Sequence[str] = ()
) -> dict[str, dict[int, Any]]:
    """Sorts runs: the baseline first, other systems in the zoo's order, same classes together; seeds ascending.

    given: order of the systems that the zoo does not know, which come last; others are sorted by name.
    """
    places = {name: place for place, name in enumerate(given)}

    def place(name: str) -> tuple[Any, ...]:
        return name != baseline, _place(name.split(".")[0], runs[name]), places.get(name, len(places)), name

    names = sorted(runs, key=place)
    return {name: dict(sorted(runs[name].items())) for name in names}


def _place(system: str, seeds: Mapping[int, Any]) -> tuple[int, int, int]:
    """Returns the sort key of a system: number of its classes in the zoo, its own number, and parameters.

    A variant, such as transformer-wide, has the classes of the system that its name begins with, and comes after all
    systems of these, by number of parameters. Systems that the zoo does not know come last.
    """
    from hf_mlnmt.zoo.systems import SYSTEMS, architectures, find_system

    known, classes = list(SYSTEMS), list(architectures())
    try:
        entry, size = find_system(system), 0
    except UserError:
        family = max((name for name in known if system.startswith(f"{name}-")), key=len, default=None)
        if family is None:
            return len(classes), 0, 0
        entry, size = SYSTEMS[family], next((run.get("parameters") or 0 for run in seeds.values()), 0)
    return classes.index(entry.architecture), known.index(system) if system in known else len(known), size


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Makes a table for each test set and protocol: a row per system with scores, differences, marks and p-values.

    Several runs are shown as mean and standard deviation; for several systems the corrected p-value is shown too.
    """
    tables: list[Table] = []
    several_tests = len(comparison.first["scores"]) > 1
    for test, protocol in comparison.places:
        metrics = comparison.metrics(test, protocol)
        rows = []
        for system in comparison.runs:
            place = (system, test, protocol)
            cells = ["\n".join([score_text(comparison, *place, m), *_test(comparison, *place, m)]) for m in metrics]
            cells = [cell.replace(" ±", "\n±", 1) for cell in cells] if len(metrics) > 2 else cells
            counted = comparison.counted(*place)
            ratio = f"{counted['length_ratio']:.3f}" if "length_ratio" in counted else ""
            rows.append([system, *cells, ratio, str(counted.get("empty_outputs", ""))])
        columns = ["system", *(Number(name) for name in [*map(with_arrow, metrics), "length\nratio", "empty"])]
        title = f"{test}, " * several_tests + comparison.title(test, protocol)
        tables.append(Table(columns, rows, title, _caption(comparison, test, protocol), lines=True))
    if comparison.tests and (legend := _legend(comparison)):
        tables[-1].caption += f"\n{legend}"
    return tables


def score_text(comparison: Comparison, system: str, test_set: str, protocol: str, metric: str) -> str:
    """Returns "score ± half of its interval"; of several runs "mean ± standard deviation"."""
    value, low, high = comparison.interval(system, test_set, protocol, metric)
    return f"{value:.2f}" + (f" ± {(high - low) / 2:.2f}" if low is not None and high is not None else "")


def _test(comparison: Comparison, system: str, test_set: str, protocol: str, metric: str) -> list[str]:
    """Returns the lines below a system's score in a table: difference with mark, p-values; [] for the baseline."""
    tested = comparison.tested(system, test_set, protocol, metric)
    if tested is None:
        return []
    if not tested["difference"]:
        return ["equal"]
    difference = f"{tested['difference']:+.2f}{comparison.mark(system, test_set, protocol, metric)}"
    if comparison.p_values(test_set, protocol, metric)[system] is None:
        return [difference]
    lines = [difference, f"p {_p(tested['approximate_randomisation'])}"]
    if len(comparison.tests) > 1:
        lines.append(f"Holm {_p(comparison.corrected(test_set, protocol, metric)[system])}")
    beside = [_p(tested[name]) for name in ("paired_bootstrap", "welch") if tested.get(name) is not None]
    return [*lines, f"({'/'.join(beside)})"]


def _p(value: float | None) -> str:
    return "" if value is None else "<.001" if value < 0.0005 else f"{value:.3f}".removeprefix("0")


def scores_are(comparison: Comparison) -> str:
    """Returns the words that explain a table's scores: scores with intervals, or means over runs with deviations."""
    runs = max(map(len, comparison.runs.values()))
    return f"mean of {runs} runs ± standard deviation" if runs > 1 else "score ± half of its 95 % interval"


def _caption(comparison: Comparison, test_set: str, protocol: str) -> str:
    counted, entries = comparison.counted(comparison.baseline, test_set, protocol), comparison.first["scores"]
    first = scores_are(comparison).capitalize() + (
        f"; difference to {comparison.baseline}." if comparison.tests else "."
    )
    if "sentences" in counted:
        plural = "s" if counted["references"] > 1 else ""
        blank = f", {counted['empty_references']} empty" if counted.get("empty_references") else ""
        first = f"{counted['sentences']} sentences, {counted['references']} reference{plural}{blank}. {first}"
    lines = [first]
    if comparison.too_few(test_set, protocol):
        lines.append(f"{TOO_FEW}. What so few differ by is mostly chance (docs/scores.md).")
    return "\n".join(
        lines + [f"{name}: {entry.get('signature', '')}" for name, entry in entries[test_set][protocol].items()]
    )


def _legend(comparison: Comparison) -> str:
    """Returns the explanation of p-values and marks below the last table; "" if all test sets are too small."""
    if all(comparison.too_few(*place) for place in comparison.places):
        return ""
    bootstrap, trials = (comparison.settings.get(name, "?") for name in ("bootstrap", "trials"))
    welch = " / of Welch's test on the seeds' scores" * comparison.several
    lines = [
        f"p of approximate randomisation ({trials} trials);",
        f"in brackets of the paired bootstrap ({bootstrap}), which is sacreBLEU's{welch}.",
        LEGEND + comparison.note,
    ]
    if len(comparison.tests) > 1:
        larger = " or, if larger, Welch's" * comparison.several
        lines.append(f"Holm: the first p-value{larger}, corrected for {len(comparison.tests)} systems.")
    if comparison.several:
        lines.append("The first two ask what other sentences would have given; Welch's asks what other seeds would.")
    return "\n".join(lines)
