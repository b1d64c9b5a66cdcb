"""Scores as tables: one table per protocol, so that no row holds numbers of two."""

from __future__ import annotations

from collections.abc import Mapping

from hf_mlnmt.evaluation.compare import Comparison
from hf_mlnmt.evaluation.protocols import MetricName, ProtocolName
from hf_mlnmt.evaluation.scores import Scores
from hf_mlnmt.evaluation.significance import FEWEST_SENTENCES, TOO_FEW, PairedResult
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
    """One table per protocol: a row per system, under each score its difference and both p-values.

    Of systems with several runs the mean and standard deviation of their scores; of many systems also both p-values
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
    if comparison.seeds:
        mean, deviation = comparison.means(protocol, system, name)
        return f"{mean:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")
    metric = comparison.scores[protocol][system].metrics[name]
    return f"{metric.score:.2f}" + (f" ± {(metric.ci[1] - metric.ci[0]) / 2:.2f}" if metric.ci else "")


def _test(comparison: Comparison, protocol: ProtocolName, system: str, name: MetricName) -> list[str]:
    """The lines below the score; none for the baseline."""
    results = comparison.tests[protocol].results
    if system not in results:
        return []
    paired = results[system][name]
    if paired.difference == 0:
        return ["equal"]
    if not paired.tested:
        return [f"{paired.difference:+.2f}"]
    p_values = f"p {_p(paired.paired_bootstrap)}/{_p(paired.approximate_randomisation)}"
    lines = [f"{paired.difference:+.2f}{sign(comparison, protocol, system, name)}", p_values]
    if len(results) > 1:
        corrected = comparison.corrected(protocol, name)[system]
        lines.append(f"Holm {_p(corrected['paired_bootstrap'])}/{_p(corrected['approximate_randomisation'])}")
    return lines


def mark(paired: PairedResult) -> str:
    """The papers' signs, by the paired bootstrap as they do it: ‡ for p < 0.01, † for p < 0.05."""
    # sacreBLEU gives equal outputs the smallest p there is (significance.py says why); few sentences have none.
    if not paired.tested or paired.paired_bootstrap is None:
        return ""
    return "‡" if paired.paired_bootstrap < 0.01 else "†" if paired.paired_bootstrap < 0.05 else ""


def sign(comparison: Comparison, protocol: ProtocolName, system: str, metric: MetricName) -> str:
    """The same for a system of a comparison; of several seeds by approximate randomisation, corrected (Holm)."""
    if not comparison.seeds:
        return mark(comparison.tests[protocol].results[system][metric])
    p = comparison.corrected(protocol, metric)[system]["approximate_randomisation"]
    return "" if p is None else "‡" if p < 0.01 else "†" if p < 0.05 else ""


def p_values(tested: PairedResult) -> str:
    """ "0.012 / 0.015": of the paired bootstrap and of approximate randomisation; or why there are none."""
    if tested.difference == 0:  # see PairedResult
        return "equal"
    if tested.paired_bootstrap is None or tested.approximate_randomisation is None:
        return TOO_FEW
    return f"{tested.paired_bootstrap:.3f} / {tested.approximate_randomisation:.3f}"


def _p(value: float | None) -> str:
    return "" if value is None else "<.001" if value < 0.0005 else f"{value:.3f}".removeprefix("0")


def with_arrow(metric: str) -> str:
    """The metric's name and where better is."""
    return f"{metric} {'↓' if metric.upper() == 'TER' else '↑'}"


def which_sign(comparison: Comparison) -> str:
    """Of which p-value the signs are."""
    return "in the latter, corrected for the number of systems" if comparison.seeds else "in the former"


def _what(comparison: Comparison, protocol: ProtocolName) -> str:
    if not comparison.seeds:
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
    tests = [
        f"p of paired bootstrap ({comparison.bootstrap}) / of approximate randomisation ({comparison.trials} trials);",
        f"† p < 0.05, ‡ p < 0.01 {which_sign(comparison)}.",
    ]
    if len(comparison.tests[protocol].results) > 1:
        tests.append(f"Holm: both p-values corrected for {len(comparison.tests[protocol].results)} systems.")
    if comparison.seeds:
        tests.append(
            "Both ask what other sentences would have given; what other seeds would, Welch's test in the JSON."
        )
    if first.sentences < FEWEST_SENTENCES:
        tests = [f"{TOO_FEW}. What so few differ by is mostly chance (docs/scores.md)."]
    lines = [
        f"{_size(first)}. {_what(comparison, protocol)}; difference to {comparison.tests[protocol].baseline};",
        *tests,
        *(f"{name}: {metric.signature}" for name, metric in first.metrics.items()),
    ]
    return "\n".join(lines)
