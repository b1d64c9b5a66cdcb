"""Scores as tables: one table per protocol, so that no row holds numbers of two."""

from __future__ import annotations

from collections.abc import Mapping

from hf_mlnmt.evaluation.compare import Comparison
from hf_mlnmt.evaluation.scores import MetricName, ProtocolName, Scores
from hf_mlnmt.evaluation.significance import FEWEST_SENTENCES, LEGEND, TOO_FEW
from hf_mlnmt.table import Number, Table

TITLES: dict[ProtocolName, str] = {
    "cased": "cased: detokenised text as it is, sacreBLEU 13a",
    "classic": "classic: lower-cased, Moses-normalised and -tokenised",
}


def score_tables(scores: Mapping[ProtocolName, Scores]) -> list[Table]:
    """One table per protocol: a row per metric with score, 95 % interval and signature."""
    columns = ["metric", Number("score"), Number("95 % interval"), "signature"]
    tables = []
    for protocol, value in scores.items():
        rows = []
        for name, metric in value.metrics.items():
            interval = "" if metric.ci is None else f"{metric.ci[0]:.1f} to {metric.ci[1]:.1f}"
            rows.append([with_arrow(name), f"{metric.score:.2f}", interval, metric.signature])
        tables.append(Table(columns, rows, TITLES[protocol], _counts(value)))
    return tables


def comparison_tables(comparison: Comparison) -> list[Table]:
    """One table per protocol: a row per system, under each score its difference with a mark, and p-values.

    Of systems with several runs the mean and standard deviation of their scores; of many systems also the p-value
    corrected for their number.
    """
    tables = []
    for protocol, systems in comparison.scores.items():
        first = next(iter(systems.values()))
        numbers = [*map(with_arrow, first.metrics), "length\nratio", "empty"]
        rows = []
        for system, scores in systems.items():
            cells = [
                "\n".join([_score(comparison, protocol, system, name), *_test(comparison, protocol, system, name)])
                for name in scores.metrics
            ]
            rows.append([system, *cells, f"{scores.length_ratio:.3f}", str(scores.empty_outputs)])
        columns = ["system", *(Number(name) for name in numbers)]
        tables.append(Table(columns, rows, TITLES[protocol], _legend(comparison, protocol), lines=True))
    return tables


def _score(comparison: Comparison, protocol: ProtocolName, system: str, name: MetricName) -> str:
    """Score and half of its interval; of several runs mean and standard deviation."""
    if comparison.several:
        mean, deviation = comparison.means(protocol, system, name)
        return f"{mean:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")
    metric = comparison.scores[protocol][system].metrics[name]
    return f"{metric.score:.2f}" + (f" ± {(metric.ci[1] - metric.ci[0]) / 2:.2f}" if metric.ci else "")


def _test(comparison: Comparison, protocol: ProtocolName, system: str, name: MetricName) -> list[str]:
    """The lines below the score; none for the baseline."""
    tests = comparison.tests[protocol]
    if system not in tests:
        return []
    tested = tests[system][name]
    if tested.difference == 0:
        return ["equal"]
    if tested.approximate_randomisation is None:
        return [f"{tested.difference:+.2f}"]
    mark = comparison.marks(protocol, name)[system]
    lines = [f"{tested.difference:+.2f}{mark}", f"p {_p(tested.approximate_randomisation)}"]
    if len(tests) > 1:
        lines.append(f"Holm {_p(comparison.corrected(protocol, name)[system])}")
    return [*lines, f"({_beside(comparison, protocol, system, name)})"]


def _beside(comparison: Comparison, protocol: ProtocolName, system: str, name: MetricName) -> str:
    """The p-values that no mark is made of: sacreBLEU's own two; of several runs that of the paired bootstrap."""
    if comparison.several:
        return _p(comparison.tests[protocol][system][name].paired_bootstrap)
    theirs = comparison.sacrebleu[protocol].results[system][name]
    return f"{_p(theirs.paired_bootstrap)}/{_p(theirs.approximate_randomisation)}"


def _p(value: float | None) -> str:
    return "" if value is None else "<.001" if value < 0.0005 else f"{value:.3f}".removeprefix("0")


def with_arrow(metric: str) -> str:
    """The metric's name and where better is."""
    return f"{metric} {'↓' if metric.upper() == 'TER' else '↑'}"


def _what(comparison: Comparison, protocol: ProtocolName) -> str:
    if not comparison.several:
        return "Score ± half of the 95 % interval"
    runs = len(next(iter(comparison.runs[protocol].values())))
    return f"Mean ± standard deviation of {runs} runs"


def _size(scores: Scores) -> str:
    return f"{scores.sentences} sentences, {scores.references} reference{'s' if scores.references > 1 else ''}"


def _counts(scores: Scores) -> str:
    text = f"{_size(scores)}, length ratio {scores.length_ratio:.3f}, {scores.empty_outputs} empty outputs"
    return text + (f", {scores.empty_references} empty references" if scores.empty_references else "")


def _legend(comparison: Comparison, protocol: ProtocolName) -> str:
    first = next(iter(comparison.scores[protocol].values()))
    beside = f"in brackets that of the paired bootstrap ({comparison.bootstrap})"
    if not comparison.several:
        beside = (
            f"in brackets sacreBLEU's own: paired bootstrap ({comparison.bootstrap}) / approximate randomisation "
            f"({comparison.trials} trials)"
        )
    tests = [f"p of approximate randomisation ({comparison.trials} trials);", f"{beside};", LEGEND]
    if len(comparison.tests[protocol]) > 1:
        tests.append(f"Holm: the first p-value corrected for {len(comparison.tests[protocol])} systems.")
    if comparison.several:
        tests.append(
            "They ask what other sentences would have given; what other seeds would, Welch's test in the JSON."
        )
    if first.sentences < FEWEST_SENTENCES:
        tests = [f"{TOO_FEW}. What so few differ by is mostly chance (docs/scores.md)."]
    lines = [
        f"{_size(first)}. {_what(comparison, protocol)}; difference to {comparison.baseline};",
        *tests,
        *(f"{name}: {metric.signature}" for name, metric in first.metrics.items()),
    ]
    return "\n".join(lines)
