"""Two sections of a record's card: the system beside others at a budget of the comparison's own, and in the papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_mlnmt.evaluation.report import p_values, with_arrow
from hf_mlnmt.reports.comparison_page import paired, same_for_all
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.tables import MISSING
from hf_mlnmt.table import Table
from hf_mlnmt.zoo.entry import Reported


def side_by_side(facts: Facts) -> dict[str, str]:
    """{heading: text} of the comparisons that the system is part of; {} without any."""
    blocks = []
    for name, results in facts.comparisons.items():
        baseline = results["compared"]["baseline"]
        role = "the baseline" if baseline == results["system"] else f"compared with `{baseline}`"
        blocks.append(
            f"In the comparison [{name}](../results/{name}/README.md), {role}. "
            f"{same_for_all(results, facts.recipe.get('budget'))}\n\n{_rows(results)}"
        )
    return {"Side by side with other systems": "\n\n".join(blocks)} if blocks else {}


def _rows(results: Mapping[str, Any]) -> str:
    header = ["test set", "protocol", "metric", "score", "95 % interval", "difference", "p"]
    rows = []
    for test_set, protocols in results["scores"].items():
        for protocol, metrics in protocols.items():
            for metric, entry in metrics.items():
                interval = "{:.2f} to {:.2f}".format(*entry["ci"]) if entry.get("ci") else MISSING
                tested = paired(results, test_set, protocol, metric)
                against = [f"{tested.difference:+.2f}", p_values(tested)] if tested else ["", ""]
                score = f"{entry['score']:.2f}"
                rows.append([test_set, protocol, with_arrow(metric), score, interval, *against])
    legend = "p: of the paired bootstrap / of approximate randomisation."
    return Table(header, rows).markdown() + ("\n\n" + legend if results.get("significance") else "")


def in_the_papers(facts: Facts) -> dict[str, str]:
    """{heading: text} of what the papers report, said to be theirs; {} where they report nothing."""
    if facts.papers is None:
        return {}
    names = {"BLEU": "bleu", "parameters (million)": "parameters", "training steps a second": "steps_per_second"}
    own, baseline = facts.papers
    rows = [[name, _number(own, key), _number(baseline, key)] for name, key in names.items() if getattr(own, key)]
    return {
        "What the paper reports": (
            "These numbers are the paper's, made with its own code, data and scoring. They are not of this model and "
            "not of this project.\n\n" + Table(["in the paper", "this system", "its baseline"], rows).markdown()
        )
    }


def _number(row: Reported, key: str) -> str:
    value = getattr(row, key)
    return MISSING if value is None else f"{value:g}" if key == "parameters" else f"{value:.2f}"
