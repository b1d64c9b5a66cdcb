"""BLEU under changes: what is translated and what it is compared with, in results and on cards."""

from __future__ import annotations

import re

from helpers.model_folders import small_model, some_results

from hf_mlnmt.evaluation.robustness import ROWS, robustness_table, score_changes
from hf_mlnmt.reports import Facts, build_card

SOURCES = [f"Two dogs number {word} play in the wet snow outside." for word in ["one", "two", "three", "four", "five"]]
TARGETS = [f"Zwei Hunde Nummer {word} spielen da im nassen Schnee!" for word in ["ein", "zwei", "drei", "vier", "acht"]]


def scored(translate, seed=1):
    return score_changes(translate, SOURCES, [TARGETS], TARGETS, ("en", "de"), seed)


def test_changes_that_a_translation_keeps_are_in_the_references():
    seen: list[list[str]] = []

    def perfect(texts: list[str]) -> list[str]:
        seen.append(texts)
        change = [*ROWS][len(seen) - 1]
        plain = TARGETS if change != "sentences" else [*map(" ".join, zip(TARGETS[::2], TARGETS[1::2])), TARGETS[-1]]
        if change == "emoji":
            return [f"{target} {text[-1]}" for target, text in zip(plain, texts, strict=True)]
        keep = {"upper": str.upper, "title": str.title, "unpunctuated": lambda text: text.rstrip("!")}
        return list(map(keep.get(change, str), plain))

    found = scored(perfect)
    assert found["scores"] == dict.fromkeys(["plain", *ROWS], 100.0)
    assert found["seed"] == 1
    assert "tok:13a" in found["signature"]
    by_change = dict(zip(ROWS, seen, strict=True))
    assert by_change["upper"][0] == SOURCES[0].upper()
    assert by_change["sentences"] == [f"{SOURCES[0]} {SOURCES[1]}", f"{SOURCES[2]} {SOURCES[3]}", SOURCES[4]]
    assert by_change["typos"] != SOURCES
    assert all(text[-1] > "\u2600" for text in by_change["emoji"])
    again: list[list[str]] = []
    other: list[list[str]] = []
    assert scored(lambda texts: again.append(texts) or ["x y z w"] * len(texts))["scores"]["upper"] < 5
    scored(lambda texts: other.append(texts) or texts, seed=2)
    assert (again == seen, other == seen) == (True, False)


def test_it_is_a_row_in_the_card():
    found = {"newstest": {"scores": dict.fromkeys(["plain", *ROWS], 31.25) | {"upper": 7.5}, "seed": 1}}
    assert robustness_table(found).rows == [["newstest", "31.2", "7.5", *["31.2"] * 6]]
    model = small_model(50)
    for results, shown in ((some_results(robustness=found), True), (some_results(), False)):
        card = build_card(Facts("anna/toy", model.config, type(model), [results], languages=("en", "de")))
        assert bool(re.search(r"under changes\n\n\| test set \| plain \| CAPITALS", card)) == shown
        assert ("| newstest | 31.2 | 7.5 |" in card) == shown
