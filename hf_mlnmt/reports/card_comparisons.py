"""A section of a record's card: the system beside others, at a budget of the comparison's own."""

from __future__ import annotations

from typing import Any

from hf_mlnmt.evaluation.report import with_arrow
from hf_mlnmt.reports.comparison import RunComparison
from hf_mlnmt.reports.comparison_page import detail, same_for_all
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.table import Table


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
                "systems": len(comparison.tests),
                "note": comparison.note,
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
