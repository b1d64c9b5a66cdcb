"""The page of a comparison: Markdown tables of what its JSON files hold, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_mlnmt.evaluation.report import mark, p_values
from hf_mlnmt.evaluation.significance import FEWEST_SENTENCES, PairedResult
from hf_mlnmt.reports.language_names import language_name
from hf_mlnmt.reports.tables import MISSING, show, table, title, with_arrow

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
            blocks.append(f"{heading}\n\n{table(*detail_rows(contents, test_set, protocol))}")
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
    return table(header, rows)


def _with_difference(results: Mapping[str, Any], test_set: str, protocol: str) -> str:
    score = results["scores"][test_set][protocol]["BLEU"]["score"]
    tested = paired(results, test_set, protocol, "BLEU")
    return f"{score:.2f}" + (f" ({tested.difference:+.2f}{mark(tested)})" if tested else "")


def detail_rows(contents: Contents, test_set: str, protocol: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of one test set and protocol: each metric's score, difference and both p-values."""
    first = next(iter(contents.values()))
    metrics = list(first["scores"][test_set][protocol])
    header = ["system"]
    for metric in metrics:
        header += [with_arrow(metric), "difference", "p"]
    rows = []
    for name, results in contents.items():
        row = [f"`{name}`"]
        for metric in metrics:
            tested = paired(results, test_set, protocol, metric)
            row.append(f"{results['scores'][test_set][protocol][metric]['score']:.2f}")
            row += [f"{tested.difference:+.2f}{mark(tested)}", p_values(tested)] if tested else ["", ""]
        rows.append(row)
    return header, rows


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
