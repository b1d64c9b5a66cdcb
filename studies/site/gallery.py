"""Writes the page of all systems: of each family the drawing, the paper, equations, and what was printed and found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from claims import claims_table
from drawings import FAMILIES
from papers import BASELINE, Reported, scores

from hf_mlnmt.common.table import Table
from hf_mlnmt.evaluation.comparison import Comparison, read_comparison, score_text
from hf_mlnmt.reports.description import equation_of, papers_of
from hf_mlnmt.reports.parameters import parameters_of_config
from hf_mlnmt.zoo.systems import FUSION, SYSTEMS, config_for, find_system
from published import numbers

COMPARED = Path(__file__).resolve().parents[2] / "results" / "multi30k-ende-short"
PLACE = ("test_2016_flickr", "classic", "BLEU")
ANSWERS = "repository/results/multi30k-ende-short/README.md#what-the-papers-say"
HEAD = f"""# Systems

Every architecture of the zoo. `hf-mlnmt describe` says more of a model, `hf-mlnmt train SETUP --system NAME` trains
one.

- million parameters: at the base shape, with 32,000 subwords on either side.
- printed: BLEU in the paper, and in brackets its distance to the paper's own baseline ([all](studies/published.md)).
- here: classic BLEU on Multi30k, English to German, {PLACE[0]}; a tiny model, 7 to 22 CPU minutes, means of two seeds;
  in brackets the distance to the baseline. Then the [answer]({ANSWERS}) to what the paper says: that the system is
  better than the baseline, or, of extended cross-attention, that it is not.

Scores of the two columns are of other data: compare distances.
"""
ELSEWHERE = {
    "rnn": "What was found here: [many languages](studies/multilingual.md).",
    "bridge": "What was found here: [many languages](studies/multilingual.md#what-the-bridge-costs). The parameters "
    "are those of one pair of languages.",
    "ssru": "No score was measured here.",
    "language_model": "What was found here: [text of one language](studies/monolingual.md).",
    "fusion": "Made of trained models by [`hf-mlnmt model fuse`](monolingual-fusion.md), so it has no name here. What "
    "was found: [text of one language](studies/monolingual.md).",
    "combinations": "Ours, of a family above and `enc-dc`: `+enc-dc` behind the name of any system of these families.",
}
NUMBER = re.compile(r"\(\w+(?:\.\d+)?\)(?:-\(\w+(?:\.\d+)?\))?")


def systems_page() -> str:
    """Returns the gallery in Markdown: a section for each family, a row for each system."""
    families: dict[str, list[str]] = {module: [] for module in FAMILIES}
    for name, system in SYSTEMS.items():
        families[system.architecture.module].append(name)
        over = system.architecture.over_dual_context
        if over and name == families[system.architecture.module][0]:
            families[over.module].append(f"{name}+enc-dc")
    return "\n".join([HEAD, *(_section(module, names) for module, names in families.items())])


def _section(module: str, names: Sequence[str]) -> str:
    drawing = FAMILIES[module]()
    architecture = find_system(names[0]).architecture if names else FUSION
    equations = f"[modeling/{module}.py](repository/hf_mlnmt/modeling/{module}.py)"
    parts = [f"## {drawing.title} {{ #family-{module.replace('_', '-')} }}", drawing.svg()]
    parts += papers_of(architecture.head_class)
    parts.append(f"Equations, by the paper's numbers: {equations}. {ELSEWHERE.get(module, '')}".strip())
    if names:
        parts.append(_table(names).markdown())
    return "\n\n".join(parts) + "\n"


def _table(names: Sequence[str]) -> Table:
    """Returns the systems of a family with those columns that say something of one of them."""
    setup, printed = printed_of(names)
    columns = {
        "system": [f"`{name}`{{ #{name.replace('+', '-')} }}" for name in names],
        "what it is": [find_system(name).clause for name in names],
        "equations": [", ".join(NUMBER.findall(equation_of(name))) for name in names],
        "million parameters": [f"{parameters(name) / 1e6:.1f}" for name in names],
        f"printed, {setup}": printed,
        "here": [found_here(name) for name in names],
    }
    columns = {title: cells for title, cells in columns.items() if any(cells)}
    return Table(columns, list(zip(*columns.values(), strict=True)))


@cache
def parameters(name: str) -> int:
    """Counts a system's parameters at the base shape without making them."""
    sizes = {"vocab_size": 32_000, "decoder_vocab_size": 32_000} if name != "lm" else {"vocab_size": 32_000}
    return parameters_of_config(config_for(name, "base", **sizes))["total"]


def printed_of(names: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the setup on which the papers print most of these systems, and what they print; "" of what they do not.

    BLEU on the test set, or where a system has none, of all on the dev set.
    """

    def printed(setup: str, key: str) -> list[float | None]:
        return [getattr(scores()[setup].get(name, Reported()), key) for name in names]

    places = [(setup, key) for setup in scores() for key in ("bleu", "dev_bleu")]
    setup, key = max(places, key=lambda place: sum(value is not None for value in printed(*place)))
    baseline = getattr(scores()[setup][BASELINE], key)
    values = printed(setup, key)
    cells = numbers(values)
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        if value is not None and name != BASELINE:
            cells[place] += f" ({value - baseline:+.{len(cells[place].partition('.')[2])}f})"
    return setup + (" (dev)" if key == "dev_bleu" else ""), cells


def found_here(name: str) -> str:
    """Returns a system's BLEU in the comparison of all, and the answer to what the papers say of it; "" of no run."""
    comparison, answers = _compared()
    run = f"{name}.{COMPARED.name}"
    if run not in comparison.runs:
        return ""
    score = score_text(comparison, run, *PLACE)
    tested = comparison.tested(run, *PLACE)
    return f"{score} ({tested['difference']:+.2f}), {answers[name]}" if tested else score


@cache
def _compared() -> tuple[Comparison, dict[str, str]]:
    """Returns the comparison, and the answer to each statement about a system and the baseline."""
    comparison = read_comparison(COMPARED)
    table = claims_table(comparison)
    assert table is not None
    found = {re.fullmatch(rf"`(\S+)` .* than `{BASELINE}`", row[0]): row[-1] for row in table.rows}
    return comparison, {match[1]: answer for match, answer in found.items() if match}
