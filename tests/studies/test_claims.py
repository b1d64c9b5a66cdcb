"""What the papers say, answered by a comparison: the rule, what is stated, and the table."""

import json

import numpy as np
import pytest
from claims import Claim, answer, claims, claims_table, main, pairs_to_test, smallest_seen
from helpers.finished_runs import compare, write_runs

from hf_mlnmt.evaluation.comparison import Comparison
from hf_mlnmt.evaluation.significance import randomisation_test

BETTER, NO_BETTER = Claim("ms-1"), Claim("fertility", gain=False)


@pytest.mark.parametrize(
    ("claim", "seeds", "dev", "p", "expected"),
    [
        (BETTER, [0.5, 0.2], 0.1, 0.01, "confirmed"),
        (BETTER, [0.5], 0.1, 0.01, "open"),  # one seed says nothing of the next
        (NO_BETTER, [0.5], 0.1, 0.01, "open"),
        (BETTER, [0.5, -0.2], 0.1, 0.01, "not seen"),  # not in every seed
        (BETTER, [0.5, 0.2], -0.1, 0.01, "not seen"),  # not on the dev set
        (BETTER, [0.5, 0.2], 0.1, 0.05, "not seen"),
        (BETTER, [0.5, 0.2], 0.1, None, "not seen"),  # nothing was tested
        (BETTER, [0.5, 0.2], None, 0.01, "confirmed"),  # no dev set among the scores
        (BETTER, [-0.5, -0.2], 0.1, 0.01, "contradicted"),
        (BETTER, [-0.5, 0.2], 0.1, 0.01, "not seen"),
        (BETTER, [-0.5, -0.2], 0.1, 0.2, "not seen"),
        (NO_BETTER, [0.5, 0.2], 0.1, 0.01, "contradicted"),
        (NO_BETTER, [0.5, -0.2], 0.1, 0.01, "not contradicted"),
        (NO_BETTER, [-0.5, -0.2], -0.1, 0.01, "not contradicted"),
        (NO_BETTER, [0.5, 0.2], 0.1, 0.3, "not contradicted"),
    ],
)
def test_the_rule(claim, seeds, dev, p, expected):
    assert answer(claim, seeds, dev, p) == expected


def test_what_is_stated():
    """Numbers of three tables: thesis on joint attention 4.2 to 4.4 and 4.6, on monolingual data 5.5 and 5.6."""
    stated = {
        claim.text: claim
        for claim in claims(["transformer", "ms-1", "ms-1-aif", "fertility", "key-value-full", "s-agg", "rnn"])
    }
    assert stated["`ms-1` better than `transformer`"].published == [0.34, 0.70, 0.74, 0.80]
    assert stated["`ms-1-aif` better than `ms-1`"].published == [-0.03, 0.25, 0.25, 0.32]
    assert stated["`fertility` no better than `transformer`"].published == [0.3, 0.4]
    assert stated["`key-value-full` no better than `transformer`"].published == [0.1, 0.3]  # of dev sets
    assert stated["`s-agg` better than `transformer`"].published == [-0.13, 0.33]
    assert len(stated) == 6  # nothing of rnn, and nothing of systems that were not compared
    (wide,) = claims(["transformer-wide"])
    assert not wide.gain
    assert wide.published == [0.12]


def comparison(own: dict[int, float], other: dict[int, float], p: float | None) -> Comparison:
    """Two systems beside a baseline at 30, with the same scores on both sets."""

    def run(score: float) -> dict:
        return {"scores": {name: {"classic": {"BLEU": {"score": score}}} for name in ("val", "test")}}

    def tested(difference: float) -> dict:
        numbers = {"difference": difference, "approximate_randomisation": p}
        return {"tested": {name: {"classic": {"BLEU": numbers}} for name in ("val", "test")}}

    runs = {"transformer.x": dict.fromkeys((1, 2), run(30.0))}
    runs |= {"ms-1.x": {k: run(v) for k, v in own.items()}, "ms-1-aif.x": {k: run(v) for k, v in other.items()}}
    tests = {"ms-1.x": tested(1.0), "ms-1-aif.x": tested(2.0)}
    return Comparison("transformer.x", runs, tests, {}, {"ms-1-aif.x > ms-1.x": tested(1.0)})


def test_the_table():
    table = claims_table(comparison({1: 31.0, 2: 31.0}, {1: 32.0, 2: 30.5}, 0.01))
    assert [row[0] for row in table.rows] == [
        "`ms-1` better than `transformer`",
        "`ms-1-aif` better than `transformer`",
        "`ms-1-aif` better than `ms-1`",
    ]
    # Three lines: p is three times as large (Holm).
    assert table.rows[0][1:] == ["+0.34 to +0.80 (4 tasks)", "+1.00", "+1.00", "2 of 2", "0.030", "confirmed"]
    assert table.rows[2][3:] == ["+1.00", "1 of 2", "0.030", "not seen"]
    assert [row[-1] for row in claims_table(comparison({1: 31.0, 2: 30.5}, {1: 32.0}, 0.02)).rows] == [
        "not seen",
        "open",
        "open",
    ]


def test_beside_what_is_not_seen_stands_what_would_have_been_seen(tmp_path, monkeypatch):
    both, asked = comparison({1: 31.0, 2: 30.5}, {1: 32.0, 2: 32.5}, 0.01), []

    def smallest(metric, baseline, system, deviation, **how):
        asked.append((metric, baseline, system, round(deviation, 3), how))
        return 1.5

    monkeypatch.setattr("claims.smallest_seen", smallest)
    monkeypatch.setattr("claims._counts", lambda path: {"test": {"classic": {"BLEU": path.name.split(".counts")[0]}}})
    table = claims_table(both, tmp_path)
    assert [str(column) for column in table.columns][-3:] == ["p, corrected", "seen from", "at this scale"]
    assert [row[-2:] for row in table.rows] == [["", "confirmed"], ["", "confirmed"], ["", "confirmed"]]
    table = claims_table(comparison({1: 31.0, 2: 29.0}, {1: 32.0, 2: 32.5}, 0.01), tmp_path)
    assert [row[-2:] for row in table.rows] == [["1.50", "not seen"], ["", "confirmed"], ["", "confirmed"]]
    # The pooled deviation of three systems: variances 0, 2 and 0.125.
    names = ["transformer.x.seed1", "transformer.x.seed2"], ["ms-1.x.seed1", "ms-1.x.seed2"]
    assert asked == [("BLEU", *names, round((2.125 / 3) ** 0.5, 3), {"tests": 3, "every_seed": True})]


def test_seeds_that_one_lacks_are_left_out():
    table = claims_table(comparison({1: 31.0, 2: 31.0}, {1: 32.0}, 0.01))
    assert [row[4] for row in table.rows] == ["2 of 2", "1 of 1", "1 of 1"]


def test_pairs_and_other_baselines():
    both = comparison({1: 31.0}, {1: 32.0}, 0.01)
    assert list(pairs_to_test(both)) == [("ms-1-aif.x", "ms-1.x")]
    both.runs = {"other.x": both.runs.pop("transformer.x"), **both.runs}
    both.baseline = "other.x"
    assert not list(pairs_to_test(both))
    assert claims_table(both) is None


def test_the_command_tests_the_pairs_and_makes_the_page(tmp_path, capsys):
    folder = compare(write_runs(tmp_path / "runs"), tmp_path / "results" / "toy")
    assert "papers" not in (folder / "README.md").read_text()
    assert main([str(folder)]) == 0
    assert json.loads((folder / "comparison.json").read_text())["pairs"] == {}, "of these two the papers compare none"
    page = (folder / "README.md").read_text()
    assert "| `m-10` better than `transformer` | +0.13 to +0.71 (2 tasks) |" in page
    assert main([str(tmp_path / "runs")]) == 1
    assert "not a folder of `hf-mlnmt compare`" in capsys.readouterr().err


def test_the_smallest_difference_that_would_have_been_seen() -> None:
    """Without spread it is the one whose p is 0.05; with it what a normal distribution says; and it is found again."""
    draw = np.random.default_rng(0)
    base = [draw.integers([0, 10], [9, 11], (400, 2)) for _ in range(3)]  # edits in sentences of ten words
    own = [draw.integers([0, 10], [9, 11], (400, 2)) for _ in range(3)]
    threshold = smallest_seen("TER", base, own, 0.0)
    for edits, significant in ((0.93, False), (1.07, True)):  # a system worse by a little less and more than that
        more = edits * threshold / 10 - (_mean_ter(own) - _mean_ter(base)) / 10
        worse = [run + np.array([more, 0]) for run in own]
        assert (randomisation_test("TER", base, worse, 10_000, 1) < 0.05) == significant
    spread = 2 * threshold
    one = smallest_seen("TER", base[:1], own[:1], 0.0)
    assert smallest_seen("TER", base[:1], own[:1], spread) == pytest.approx(one + 0.8416 * 2**0.5 * spread, rel=0.03)
    assert smallest_seen("TER", base, own, 0.0, tests=20) == pytest.approx(threshold * 3.0233 / 1.96, rel=0.05)
    found = smallest_seen("TER", base, own, spread, every_seed=True)
    trained = found + np.random.default_rng(9).standard_normal((40_000, 3)) * spread * 2**0.5
    seen = (trained.mean(1) > threshold) & (trained.min(1) > 0)
    assert seen.mean() == pytest.approx(0.8, abs=0.01)


def _mean_ter(runs) -> float:
    return float(np.mean([100 * run[:, 0].sum() / run[:, 1].sum() for run in runs]))
