"""† and ‡: false alarms among equal systems, p-values of few differing sentences, one function, one legend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hf_mlnmt.evaluation.comparison import Comparison
from hf_mlnmt.evaluation.significance import LEGEND, holm, marks, randomisation_test

ROOT = Path(__file__).resolve().parents[2]
PAIRS, SENTENCES, TRIALS = 300, 1000, 199


def sentences(draw: np.random.Generator, count: int) -> np.ndarray:
    """Counts of BLEU of outputs of ten tokens: each 1- to 4-gram matches with a chance of its own."""
    matched = draw.binomial([10, 9, 8, 7], [0.7, 0.5, 0.35, 0.25], (count, 4))
    return np.concatenate([np.full((count, 2), 10), matched, np.full((count, 4), [10, 9, 8, 7])], 1)


def equal_systems(draw: np.random.Generator, differing: int) -> tuple[np.ndarray, np.ndarray]:
    """Two systems that differ in so many sentences, both outputs of which are drawn alike."""
    base = sentences(draw, SENTENCES)
    own = base.copy()
    own[:differing] = sentences(draw, differing)
    return base, own


@pytest.mark.parametrize("differing", [1, 3, 10, 100, 1000])
def test_of_equal_systems_one_in_twenty_is_marked_at_most(differing) -> None:
    at_most = 0.05 + 3 * (0.05 * 0.95 / PAIRS) ** 0.5  # three standard errors of the simulation
    draw, alarms = np.random.default_rng(differing), 0
    for pair in range(PAIRS):
        base, own = equal_systems(draw, differing)
        alarms += randomisation_test("BLEU", [base], [own], TRIALS, pair) < 0.05
    assert alarms / PAIRS <= at_most
    if differing >= 100:
        assert alarms / PAIRS >= 0.05 - 3 * (0.05 * 0.95 / PAIRS) ** 0.5, "no mark at all would be no test"


@pytest.mark.parametrize("metric", ["BLEU", "chrF", "TER"])
@pytest.mark.parametrize(("differing", "expected"), [(1, 1), (2, 0.5), (3, 0.25), (5, 0.0625)])
def test_few_differing_sentences_that_are_all_better(metric, differing, expected) -> None:
    """A sentence more doubles the exchanges, of which none and all alone give as large a difference."""
    base = {"BLEU": [[10, 10, 6, 4, 3, 2, 10, 9, 8, 7]], "chrF": [[40, 40, 20] * 6], "TER": [[4, 31 / 3]]}[metric]
    better = {"BLEU": [[10, 10, 7, 5, 4, 3, 10, 9, 8, 7]], "chrF": [[40, 40, 21] * 6], "TER": [[3, 31 / 3]]}[metric]
    base = np.array(base).repeat(SENTENCES, 0)
    own = base.copy()
    own[7 : 7 + differing] = better
    found = randomisation_test(metric, [base], [own], 10_000, 12345)
    assert found == pytest.approx(expected, abs=5 * (expected * (1 - expected) / 10_000) ** 0.5 + 1e-4)
    if differing == 1:
        assert found == 1
        assert randomisation_test(metric, [base, base], [own, own], 10_000, 1) == pytest.approx(0.5, abs=0.025)


@pytest.mark.parametrize("metric", ["BLEU", "chrF"])
def test_a_tie_is_one_whatever_rounding_does(metric) -> None:
    """One sentence of one of three runs differs: every exchange is a tie, and no mean of three is exact."""
    draw = np.random.default_rng(3)
    for seed in range(20):
        base = [sentences(draw, 200) if metric == "BLEU" else draw.integers(1, 90, (200, 18)) for _ in range(3)]
        own = [run.copy() for run in base]
        own[1][seed] += 1
        assert randomisation_test(metric, base, own, 50, seed) == 1


def test_marks_are_of_corrected_p_values() -> None:
    p_values = {"a": 0.0099, "b": 0.01, "c": 0.0499, "d": 0.05, "none": None}
    for name, expected in zip(p_values, ("‡", "†", "†", "", ""), strict=True):
        assert marks({name: p_values[name]}) == {name: expected}
    assert marks(p_values) == {"a": "†", "b": "†", "c": "", "d": "", "none": ""}  # .0396, .0396, .0998, .0998


@pytest.mark.parametrize(
    ("sentences", "seeds", "mark"),
    [
        (0.0005, None, "‡"),  # one seed
        (0.0005, 0.67, ""),
        (0.0005, 0.03, "†"),
        (0.03, 0.0005, "†"),
        (0.0005, 0.0005, "‡"),
        (0.3, 0.0005, ""),
        (None, 0.0005, ""),  # equal, or too few sentences
    ],
)
def test_the_mark_is_that_of_the_weaker_test_where_several_seeds_are_there(sentences, seeds, mark) -> None:
    tested = {"difference": 0.46, "approximate_randomisation": sentences, "welch": seeds}
    runs = {name: {1: {"scores": {"t": {"cased": {"BLEU": {"score": 30.0}}}}}} for name in "ab"}
    comparison = Comparison("a", runs, {"b": {"tested": {"t": {"cased": {"BLEU": tested}}}}})
    assert comparison.mark("b", "t", "cased", "BLEU") == mark
    comparison.tests["c"] = {}
    assert comparison.corrected("t", "cased", "BLEU")["b"] == (sentences and max(sentences, seeds or 0))


def test_holm() -> None:
    # Worked by hand: .01 * 4, .02 * 3, max(.06, .022 * 2), max(.06, .5).
    found = holm({"w": 0.5, "x": 0.01, "none": None, "y": 0.022, "z": 0.02})
    assert {name: p and round(p, 12) for name, p in found.items()} == {
        "w": 0.5, "x": 0.04, "none": None, "y": 0.06, "z": 0.06,
    }  # fmt: skip
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize(
    "page", ["README.md", "docs/scores.md", "docs/studies/results.md", "docs/studies/monolingual.md"]
)
def test_pages_with_marks_say_what_they_are_in_the_same_words(page) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert LEGEND in text
    assert text.replace(LEGEND, "").count("‡ p < 0.01") == 0
