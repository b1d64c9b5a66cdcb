"""Training, development and test sets: divided by project, so that a test set is of texts that training never saw."""

from __future__ import annotations

import csv
import hashlib
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hf_mlnmt.data.placeholders import without_key
from hf_mlnmt.generation import TranslationMemory

# Whole projects. Of descriptions, which are all of Debian, packages by the first letters of their names.
TESTS = {
    "interface": {"gnucash", "evolution"},
    "documentation": {"debian-reference"},
    "descriptions": {"debian-descriptions"},
    "stories": {"wesnoth"},
}
DEV = {"kmymoney", "maint-guide", "debian-descriptions", "freedroidrpg"}
_BY_LETTERS, _LETTERS, _PARTS = "debian-descriptions", 4, 24  # the first part is for the test, the second for dev
TEST_SIZE, DEV_SIZE = 1000, 300  # pairs of a test set, and of a project in dev
LEAST_WORDS = 3  # shorter strings are in all projects: they stay in training, and are a test set of their own
NEAR = 0.9  # a test source with a match of this share among the training's is "near"


class Row(NamedTuple):
    """A pair, with the project and the package that it is of, and its place there."""

    project: str
    package: str
    key: str
    source: str
    target: str


def part_of(row: Row) -> str:
    """Returns the set that a pair belongs to: a test set, "dev" or "train"."""
    if row.project == _BY_LETTERS:
        number = int(hashlib.sha256(row.key[:_LETTERS].encode()).hexdigest(), 16) % _PARTS
        return {0: "descriptions", 1: "dev"}.get(number, "train")
    test = next((name for name, projects in TESTS.items() if row.project in projects), None)
    return test or ("dev" if row.project in DEV else "train")


def divide(rows: Iterable[Row], seed: int = 1) -> tuple[dict[str, list[Row]], Counter[str]]:
    """Returns {set: pairs}, and how many pairs training lost and gained.

    The sets are train, dev, a `test.*` for each of TESTS, `test.short` of their strings below LEAST_WORDS, and
    `memory.*`: what else the projects of a test set hold, as a translator's memory would. Equal pairs of a set are one.
    """
    distinct: dict[str, dict[tuple[str, ...], Row]] = defaultdict(dict)
    for row in sorted(rows):
        distinct[part_of(row)].setdefault(row[-2:], row)
    parts = defaultdict(list[Row], {name: list(part.values()) for name, part in distinct.items()})
    draw, sets, short = random.Random(seed), defaultdict[str, list[Row]](list), list[Row]()
    for name in TESTS:
        sets[f"test.{name}"] = _sample(parts[name], TEST_SIZE, draw)
        sources = {row.source for row in sets[f"test.{name}"]}
        sets[f"memory.{name}"] = [row for row in parts[name] if row.source not in sources]
        short += [row for row in parts[name] if len(row.source.split()) < LEAST_WORDS]
    sets["test.short"] = _sample(short, TEST_SIZE, draw, least=1)
    tested = [row for name in TESTS for row in sets[f"test.{name}"]]
    seen = {row.source for row in tested} | {row.target for row in tested}
    dev = [row for row in parts["dev"] if not seen & {*row[-2:]}]
    for name in sorted(DEV):
        sets["dev"] += _sample([row for row in dev if row.project == name], DEV_SIZE, draw)
    seen |= {text for row in sets["dev"] for text in row[-2:]}
    changes, training = Counter[str](), dict[tuple[str, ...], Row]()
    for row in parts["train"]:
        if seen & {*row[-2:]}:
            changes["left out: stands in a test or development set"] += 1
            continue
        training[row[-2:]] = row
        if (bare := without_key(*row[-2:])) and (*bare,) not in training and not seen & {*bare}:
            training[*bare] = row._replace(source=bare[0], target=bare[1])
            changes["added: labels without their accelerators"] += 1
    sets["train"] = list(training.values())
    draw.shuffle(sets["train"])
    return sets, changes


def _sample(rows: Iterable[Row], size: int, draw: random.Random, least: int = LEAST_WORDS) -> list[Row]:
    """Returns so many rows with different sources of at least so many words, by lot and in their order."""
    found = {row.source: row for row in sorted(rows)[::-1] if len(row.source.split()) >= least}.values()
    return sorted(draw.sample(list(found), min(size, len(found))))


def near(tests: dict[str, list[str]], training: Iterable[str]) -> dict[str, list[float]]:
    """Returns the best matches of test sets' texts among training's, as a translation memory counts; 0 below NEAR."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "training.csv"
        with table.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows((text, text) for text in training)
        memory = TranslationMemory(table, source="en", target="en-GB")

        def match(text: str) -> float:
            found = max((match.percent for match in memory.matches(text, most=1)), default=0) / 100
            return min(found, 1.0) if found >= NEAR else 0.0

        return {name: list(map(match, texts)) for name, texts in tests.items()}
