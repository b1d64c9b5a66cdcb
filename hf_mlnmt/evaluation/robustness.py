"""BLEU of a test set with changed text (capitals, typos, emoji ...; data/changes.py), beside BLEU of the plain text.

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
_WORDS = 0.05  # share of the words that get a typo


def score_changes(
    translate: Callable[[list[str]], list[str]],
    sources: Sequence[str],
    references: Sequence[Sequence[str | None]],
    plain: Sequence[str],
    languages: tuple[str | None, str | None],
    seed: int,
    tokenize: str | None = None,
) -> dict[str, Any]:
    """Translates and scores the test set under each change in ROWS; returns {"scores", "signature", "seed"}: cased BLEU
    of each change, and of `plain`, the translations of the unchanged text."""
    how: dict[str, Any] = {"language": languages[1], "tokenize": tokenize, "metrics": ["BLEU"], "bootstrap": 0}
    found, signature = {}, None
    for change in ("plain", *ROWS):
        lines = range(0, len(sources), 2 if change == "sentences" else 1)
        pairs = [list(zip(sources, own)) for own in references]
        sets = [[_changed(change, own, line, languages, seed) for line in lines] for own in pairs]
        outputs = plain if change == "plain" else translate([source for source, _ in sets[0]])
        scored = score(list(outputs), [[target for _, target in own] for own in sets], **how).metrics["BLEU"]
        found[change], signature = round(scored.score, 2), scored.signature
    return {"scores": found, "signature": signature, "seed": seed}


def _changed(change: str, pairs: Sequence[Any], line: int, languages: Any, seed: int) -> tuple[str, str | None]:
    (source, target), (other, more) = pairs[line], pairs[min(line + 1, len(pairs) - 1)]
    if change == "plain" or (change == "sentences" and line + 1 == len(pairs)):
        return source, target
    draw = random.Random(f"{seed} {change} {line}")
    source, new = changed(change, (source, target or ""), draw, languages, (other, more or ""), _WORDS)
    return source, None if target is None else new


def robustness_table(of_tests: Mapping[str, Mapping[str, Any]]) -> Table:
    """Makes a table of `score_changes` of test sets: a row for each, a column for each change."""
    scores = {test: found["scores"] for test, found in of_tests.items()}
    names = ("plain", *ROWS)
    rows = [[test, *(f"{own[name]:.1f}" if name in own else "" for name in names)] for test, own in scores.items()]
    return Table(["test set", *(Number(ROWS.get(name, name)) for name in names)], rows, "BLEU (cased) under changes")
