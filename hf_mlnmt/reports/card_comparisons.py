"""Two sections of a record's card: the system beside others at a budget of the comparison's own, and in the papers."""

from __future__ import annotations

from typing import Any

from hf_mlnmt.evaluation.report import with_arrow
from hf_mlnmt.reports.comparison import RunComparison
from hf_mlnmt.reports.comparison_page import detail, same_for_all
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.tables import MISSING
from hf_mlnmt.table import Table
from hf_mlnmt.zoo.entry import Reported


def side_by_side(facts: Facts) -> list[dict[str, Any]]:
    """The comparisons that the system is part of: name, its role, what all systems share, its rows, whether tested."""
    found, stem = [], facts.name
    for name, comparison in facts.comparisons.items():
        baseline = comparison.baseline
        found.append(
            {
                "name": name,
                "role": "the baseline" if baseline == stem else f"compared with `{baseline}`",
                "what_is_the_same": same_for_all(comparison, facts.recipe.get("budget")),
                "table": _rows(comparison, stem),
                "tested": stem in comparison.tests,
                "seeds": len(comparison.runs[stem]),
            }
        )
    return found


def _rows(comparison: RunComparison, stem: str) -> Table:
    header = ["test set", "protocol", "metric", "score", "difference", "p"]
    rows = []
    for test_set, protocols in comparison.first["scores"].items():
        for protocol, metrics in protocols.items():
            for metric in metrics:
                cells = detail(comparison, stem, test_set, protocol, metric)
                rows.append([test_set, protocol, with_arrow(metric), *cells])
    return Table(header, rows)


def papers_table(facts: Facts) -> Table | None:
    """What the papers report; None where they report nothing."""
    if facts.papers is None:
        return None
    names = {"BLEU": "bleu", "parameters (million)": "parameters", "training steps a second": "steps_per_second"}
    own, baseline = facts.papers
    rows = [[name, _number(own, key), _number(baseline, key)] for name, key in names.items() if getattr(own, key)]
    return Table(["in the paper", "this system", "its baseline"], rows)


def _number(row: Reported, key: str) -> str:
    value = getattr(row, key)
    return MISSING if value is None else f"{value:g}" if key == "parameters" else f"{value:.2f}"
