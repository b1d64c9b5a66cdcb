"""A description (description.py) for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hf_mlnmt.reports.tables import MISSING, scores_of, show, title, with_arrow

if TYPE_CHECKING:
    from rich.table import Table


def render(description: Mapping[str, Any]) -> list[Any]:
    """Tables and lines to print, in order."""
    needs = "needs the package or remote code" if description["needs_package_or_remote_code"] else "in Transformers"
    kind = f"{description['architecture']} ({description['model_type']}), {needs}"
    blocks: list[Any] = [_pairs(description["name"], {"architecture": kind})]
    blocks.append(_parameters(description["parameters"], description["parameters_beyond_baseline"]))
    blocks.append(_pairs("config", description["config"]))
    for side, facts in description.get("tokenizers", {}).items():
        blocks.append(_pairs(f"tokenizer ({side})", facts))
    if "tokenizers" in description and not description["tokenizers"]:
        blocks.append(_pairs("tokenizer", {"": "none in this folder"}))
    for name in ("processing", "generation", "recipe"):
        if description.get(name):
            blocks.append(_pairs(name, description[name]))
    blocks += _results(description["results"])
    return blocks


def _results(results: list[Mapping[str, Any]]) -> Iterator[Any]:
    if not results:
        yield _pairs("results", {"": MISSING})
    for result in results:
        yield _pairs("training", {key: value for key, value in result.items() if key != "scores"})
    scores = list(scores_of(results))
    for protocol in dict.fromkeys(score.protocol for score in scores):
        table = _table(f"scores, {title(protocol)}", "test set", "seed", "metric", "score", "signature")
        for score in scores:
            if score.protocol == protocol:
                number, signature = f"{score.score:.2f}", score.signature or MISSING
                table.add_row(score.test_set, show(score.seed), with_arrow(score.metric), number, signature)
        yield table


def _parameters(parts: Mapping[str, int], beyond: int | None) -> Table:
    table = _table("parameters", "part", "number", "share")
    table.columns[1].justify = table.columns[2].justify = "right"
    for part, number in parts.items():
        if number or part == "total":
            share = f"{number / max(parts['total'], 1):.1%}"
            table.add_row(part, f"{number:,}", share, style="bold" if part == "total" else "")
    if beyond:
        table.add_row("beyond the Transformer of its size", f"{beyond:+,}", "")
    return table


def _pairs(heading: str, facts: Mapping[str, Any]) -> Table:
    table = _table(heading, "", "")
    table.show_header = False
    for name, value in facts.items():
        text = value if isinstance(value, str) else show(value)
        table.add_row(str(name), "none" if text == MISSING and not isinstance(value, str) else text)
    return table


def _table(heading: str, *columns: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(heading, style="bold"), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
