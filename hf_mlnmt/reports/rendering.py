"""A description (description.py) as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hf_mlnmt.evaluation.scores import with_arrow
from hf_mlnmt.reports.tables import MISSING, scores_of, show, title
from hf_mlnmt.table import Number, Table


def render(description: Mapping[str, Any]) -> list[Table]:
    """What to print, in order."""
    needs = "needs the package or remote code" if description["needs_package_or_remote_code"] else "in Transformers"
    kind = f"{description['architecture']} ({description['model_type']}), {needs}"
    blocks = [_pairs(description["name"], {"architecture": kind})]
    further = (description["parameters_of_a_pair"], description["parameters_beyond_baseline"])
    blocks.append(_parameters(description["parameters"], *further))
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


def _results(results: list[Mapping[str, Any]]) -> Iterator[Table]:
    if not results:
        yield _pairs("results", {"": MISSING})
    for result in results:
        yield _pairs("training", {key: value for key, value in result.items() if key != "scores"})
    scores = list(scores_of(results))
    columns = ["test set", "seed", "metric", Number("score"), "signature"]
    for protocol in dict.fromkeys(score.protocol for score in scores):
        rows = [
            [one.test_set, show(one.seed), with_arrow(one.metric), f"{one.score:.2f}", one.signature or MISSING]
            for one in scores
            if one.protocol == protocol
        ]
        yield Table(columns, rows, f"scores, {title(protocol)}")


def _parameters(parts: Mapping[str, int], of_a_pair: int, beyond: int | None) -> Table:
    shown = [(part, number) for part, number in parts.items() if number or part == "total"]
    rows = [[part, f"{number:,}", f"{number / max(parts['total'], 1):.1%}"] for part, number in shown]
    total = [index for index, (part, _) in enumerate(shown) if part == "total"]
    if of_a_pair != parts["total"]:
        rows.append(["used by one pair of languages", f"{of_a_pair:,}", f"{of_a_pair / parts['total']:.1%}"])
    if beyond:
        rows.append(["beyond the Transformer of its size", f"{beyond:+,}", ""])
    columns = ["part", Number("number"), Number("share")]
    return Table(columns, rows, "parameters", bold=total)


def _pairs(heading: str, facts: Mapping[str, Any]) -> Table:
    rows = []
    for name, value in facts.items():
        text = value if isinstance(value, str) else show(value)
        rows.append([str(name), "none" if text == MISSING and not isinstance(value, str) else text])
    return Table(["", ""], rows, heading)
