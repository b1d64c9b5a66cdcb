"""The page of a comparison: Markdown tables of what its JSON files hold, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_mlnmt.evaluation.report import mark, p_values, with_arrow
from hf_mlnmt.evaluation.significance import FEWEST_SENTENCES, PairedResult
from hf_mlnmt.reports.language_names import language_name
from hf_mlnmt.reports.tables import MISSING, show, title
from hf_mlnmt.table import Number, Table

Contents = Mapping[str, Mapping[str, Any]]


def comparison_page(contents: Contents, own_budget: Mapping[str, Any] | None = None) -> str:
    """The page. contents: {system: results}, the baseline first; own_budget: that of the baseline's recipe."""
    baseline = next(iter(contents))
    blocks = [
        f"# {_heading(contents[baseline])}",
        f"{same_for_all(contents[baseline], own_budget)} Baseline: `{baseline}`. Made by `hf-mlnmt compare-runs` "
        "from the JSON files beside this page.",
        _overview(contents),
    ]
    for test_set, protocols in contents[baseline]["scores"].items():
        for protocol in protocols:
            heading = f"## {test_set}, protocol {title(protocol)}"
            blocks.append(f"{heading}\n\n{detail_table(contents, test_set, protocol).markdown()}")
    blocks += [_legend(contents[baseline], contents), _signatures(contents[baseline])]
    return "\n\n".join(blocks) + "\n"


def _heading(results: Mapping[str, Any]) -> str:
    languages = results["languages"]
    direction = f"{language_name(languages['source'])} to {language_name(languages['target'])}"
    return f"Systems side by side: {(results.get('data') or {}).get('name') or MISSING}, {direction}"


def same_for_all(results: Mapping[str, Any], own_budget: Mapping[str, Any] | None) -> str:
    """What the systems of a comparison share, and how their budget stands to the recipe's own."""
    budget = results["budget"]
    text = (
        f"Every system was trained once, with the same recipe, data, seed ({show(results.get('seed'))}) and budget: "
        f"{budget['steps']:,} steps, {budget['epochs']:.1f} epochs, {budget['target_tokens']:,} target tokens."
    )
    steps = (own_budget or {}).get("steps")
    if steps and steps > budget["steps"]:
        text += (
            f" That is a small budget (the recipe's own is {steps:,} steps): it compares how far the systems come with "
            "it, not what they reach."
        )
    return text


def _overview(contents: Contents) -> str:
    first = next(iter(contents.values()))
    columns = [(test, protocol) for test, protocols in first["scores"].items() for protocol in protocols]
    header = ["system", "parameters", "CPU minutes", *(f"{test}, BLEU {protocol}" for test, protocol in columns)]
    rows = []
    for name, results in contents.items():
        cells = [_with_difference(results, *column) for column in columns]
        minutes = results["budget"].get("cpu_minutes")
        rows.append([f"`{name}`", show(results.get("parameters")), f"{minutes:.1f}" if minutes else MISSING, *cells])
    return Table(header, rows).markdown()


def _with_difference(results: Mapping[str, Any], test_set: str, protocol: str) -> str:
    score = results["scores"][test_set][protocol]["BLEU"]["score"]
    tested = paired(results, test_set, protocol, "BLEU")
    return f"{score:.2f}" + (f" ({tested.difference:+.2f}{mark(tested)})" if tested else "")


def detail_table(contents: Contents, test_set: str, protocol: str) -> Table:
    """Of one test set and protocol: each metric's score, difference and both p-values side by side."""
    metrics = _metrics(contents, test_set, protocol)
    names = [name for metric in metrics for name in (with_arrow(metric), "difference", "p")]
    rows = []
    for system, results in contents.items():
        cells = [_detail(results, test_set, protocol, metric) for metric in metrics]
        rows.append([f"`{system}`", *(cell for three in cells for cell in three)])
    return Table(["system", *(Number(name) for name in names)], rows)


def narrow_tables(contents: Contents) -> list[Table]:
    """The same of every test set and protocol for the terminal: score, difference and p one below the other."""
    tables = []
    for test_set, protocols in next(iter(contents.values()))["scores"].items():
        for protocol in protocols:
            metrics = _metrics(contents, test_set, protocol)
            rows = [
                [system, *("\n".join(filter(None, _detail(results, test_set, protocol, metric))) for metric in metrics)]
                for system, results in contents.items()
            ]
            columns = ["system", *(Number(with_arrow(metric)) for metric in metrics)]
            tables.append(Table(columns, rows, f"{test_set}, {protocol}", lines=True))
    return tables


def _metrics(contents: Contents, test_set: str, protocol: str) -> list[str]:
    return list(next(iter(contents.values()))["scores"][test_set][protocol])


def _detail(results: Mapping[str, Any], test_set: str, protocol: str, metric: str) -> tuple[str, str, str]:
    """Score, difference and p-values of one system; the baseline has the score alone."""
    score, tested = results["scores"][test_set][protocol][metric]["score"], paired(results, test_set, protocol, metric)
    if tested is None:
        return f"{score:.2f}", "", ""
    return f"{score:.2f}", f"{tested.difference:+.2f}{mark(tested)}", p_values(tested)


def paired(results: Mapping[str, Any], test_set: str, protocol: str, metric: str) -> PairedResult | None:
    """The paired tests of a results file of one system; None for the baseline."""
    tests = results.get("significance", {}).get(test_set, {}).get(protocol, {}).get("systems", {})
    entry = next((metrics[metric] for metrics in tests.values() if metric in metrics), None)
    if entry is None:
        return None
    counted = results.get("outputs", {}).get(test_set, {}).get(protocol, {}).get("sentences")
    if counted is not None and counted < FEWEST_SENTENCES:  # tested before there was such a bound
        return PairedResult(entry["difference"], None, None)
    return PairedResult(**entry)


def _legend(baseline: Mapping[str, Any], contents: Contents) -> str:
    settings: Any = next((results["compared"] for results in contents.values() if results.get("significance")), {})
    return (
        "Differences are to the baseline; p is of the paired bootstrap "
        f"({show(settings.get('bootstrap'))} resamples) / of approximate randomisation "
        f"({show(settings.get('trials'))} trials); † p < 0.05, ‡ p < 0.01 in the former. Many systems are tested here: "
        "of twenty without any difference, one has p < 0.05. One seed each. CPU minutes are processor time of the "
        f"training alone. Decoding: {show(baseline.get('decoding'))}."
    )


def _signatures(baseline: Mapping[str, Any]) -> str:
    lines = []
    for protocol, metrics in next(iter(baseline["scores"].values())).items():
        lines += [f"- {protocol} {name}: `{entry['signature']}`" for name, entry in metrics.items()]
    return "Signatures:\n\n" + "\n".join(lines)
