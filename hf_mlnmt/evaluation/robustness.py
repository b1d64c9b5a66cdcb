"""BLEU of a test set under changes that people make (data/changes.py), beside that of its plain text.

Where the translation must keep a change the references have it too. Each change is drawn by (seed, change, line);
"sentences" joins line 2i - 1 with line 2i.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.changes import changed
from hf_mlnmt.evaluation.scores import score

ROWS = {
    "upper": "CAPITALS",
    "title": "Title Case",
    "lower": "small letters",
    "unpunctuated": "no final punctuation",
    "typos": "typos, 5 % of the words",
    "emoji": "an emoji behind",
    "sentences": "two sentences in a line",
}
WORDS = 0.05  # with a slip


def robustness(
    translate: Callable[[list[str]], list[str]],
    sources: Sequence[str],
    references: Sequence[Sequence[str | None]],
    plain: Sequence[str],
    languages: tuple[str | None, str | None],
    seed: int,
    tokenize: str | None = None,
) -> dict[str, Any]:
    """Returns cased BLEU of the translations of the plain text and of each change in ROWS; its signature; the seed."""
    found, signature = {}, None
    for change in ("plain", *ROWS):
        lines = range(0, len(sources), 2) if change == "sentences" else range(len(sources))
        pairs = [[_changed(change, sources, own, line, languages, seed) for line in lines] for own in references]
        outputs = list(plain) if change == "plain" else translate([source for source, _ in pairs[0]])
        how: dict[str, Any] = {"language": languages[1], "tokenize": tokenize, "metrics": ["BLEU"], "bootstrap": 0}
        scored = score(outputs, [[target for _, target in own] for own in pairs], **how).metrics["BLEU"]
        found[change], signature = round(scored.score, 2), scored.signature
    return {"scores": found, "signature": signature, "seed": seed}


def _changed(
    change: str,
    sources: Sequence[str],
    references: Sequence[str | None],
    line: int,
    languages: tuple[str | None, str | None],
    seed: int,
) -> tuple[str, str | None]:
    source, target = sources[line], references[line]
    if change == "plain" or (change == "sentences" and line + 1 == len(sources)):
        return source, target
    other = (sources[line + 1], references[line + 1] or "") if change == "sentences" else ("", "")
    draw = random.Random(f"{seed} {change} {line}")
    new = changed(change, (source, target or ""), draw, languages, other, WORDS)
    return new[0], None if target is None else new[1]


def robustness_table(of_tests: Mapping[str, Mapping[str, Any]]) -> Table:
    """Makes a table of `robustness` of test sets: a row for each, a column for each change."""
    columns = ["test set", Number("plain"), *map(Number, ROWS.values())]
    scores = {test: found["scores"] for test, found in of_tests.items()}
    shown = ("plain", *ROWS)
    rows = [[test, *(f"{own[name]:.1f}" if name in own else "" for name in shown)] for test, own in scores.items()]
    return Table(columns, rows, "BLEU (cased) under changes")
