"""compare() with several seeds of every system: means, both tests, corrections, what is refused."""

from __future__ import annotations

import json
import statistics

import pytest
from helpers.judge import disturb
from typer.testing import CliRunner

from hf_mlnmt.cli import app
from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation import compare, comparison_tables, score
from hf_mlnmt.evaluation.outputs import name_systems
from hf_mlnmt.evaluation.significance import LEGEND

HOW = {"trials": 200, "bootstrap": 100, "protocols": ["cased"], "metrics": ["BLEU", "chrF"]}


@pytest.fixture(scope="module")
def runs(references):
    """Three runs each; "same" is the baseline's own, "worse" is worse."""
    of = {name: [disturb(references, rate, 10 * seed + 1) for seed in range(3)] for name, rate in RATES.items()}
    return {**of, "same": of["base"]}


RATES = {"base": 0.2, "close": 0.22, "worse": 0.5}


@pytest.fixture(scope="module")
def comparison(runs, references):
    return compare(runs, references, **HOW)


def test_means_and_deviations_are_of_the_runs_scores(comparison, runs, references):
    scores = [score(lines, references, bootstrap=0)["BLEU"] for lines in runs["close"]]
    assert comparison.means("cased", "close", "BLEU") == pytest.approx(
        (statistics.fmean(scores), statistics.stdev(scores))
    )
    base = [score(lines, references, bootstrap=0)["BLEU"] for lines in runs["base"]]
    found = comparison.tests["cased"]["close"]["BLEU"]
    assert found.difference == pytest.approx(statistics.fmean(scores) - statistics.fmean(base))
    assert comparison.baseline == "base"


def test_each_seed_by_itself_is_tested_as_one_run_is(comparison, runs, references):
    for seed in (0, 2):
        pair = {"base": runs["base"][seed], "close": runs["close"][seed]}
        alone = compare(pair, references, **HOW)
        theirs = alone.sacrebleu["cased"].results["close"]
        for metric in ("BLEU", "chrF"):
            mine = comparison.single_runs["cased"]["close"][metric][seed]
            assert mine == alone.tests["cased"]["close"][metric]
            assert mine.difference == pytest.approx(theirs[metric].difference)
            assert mine.paired_bootstrap == theirs[metric].paired_bootstrap


def test_correction_for_many_systems(comparison):
    """Two of the three differ: their p-values are doubled from the smaller one on; equal outputs are no test."""
    corrected = comparison.corrected("cased", "BLEU")
    assert corrected["same"] is None
    assert comparison.marks("cased", "BLEU")["same"] == ""
    raw = {name: comparison.tests["cased"][name]["BLEU"].approximate_randomisation for name in ("close", "worse")}
    small, large = sorted(raw, key=raw.get)
    assert corrected[small] == pytest.approx(min(1.0, 2 * raw[small]))
    assert corrected[large] == pytest.approx(max(raw[large], min(1.0, 2 * raw[small])))


def test_equal_outputs_are_no_test_to_correct_for(runs, references):
    """Counted among two, they would double the other's p-value."""
    one = {"base": runs["base"][0], "same": runs["base"][0], "worse": runs["worse"][0]}
    found = compare(one, references, **HOW)
    raw = found.tests["cased"]["worse"]["BLEU"].approximate_randomisation
    assert found.corrected("cased", "BLEU") == {"same": None, "worse": raw}


def test_the_table_and_the_json(comparison):
    (table,) = comparison_tables(comparison)
    rows = {row[0]: row for row in table.rows}
    mean, deviation = comparison.means("cased", "worse", "BLEU")
    lines = rows["worse"][1].splitlines()
    assert lines[0] == f"{mean:.2f} ± {deviation:.2f}"
    assert lines[1].endswith("‡")
    assert lines[2].startswith("p ")
    assert lines[3].startswith("Holm ")
    assert LEGEND in table.caption
    assert rows["same"][1].splitlines()[1] == "equal"
    assert "\n" not in rows["base"][1]
    assert "Mean ± standard deviation of 3 runs" in table.caption
    content = comparison.to_dict()["protocols"]["cased"]
    assert len(content["runs"]["close"]) == 3
    of = content["seeds"]["worse"]["BLEU"]
    assert of["mean"] == mean
    assert set(of) == {"mean", "standard_deviation", "single_runs"}
    assert len(of["single_runs"]) == 3
    assert content["significance"]["systems"]["worse"]["BLEU"]["welch"] is not None
    assert content["holm"]["BLEU"]["same"] is None
    assert "sacrebleu" not in content


def test_refused(runs, references):
    with pytest.raises(UserError, match=r"close: 2 runs, but base has 3\. Give every system the same seeds"):
        compare({"base": runs["base"], "close": runs["close"][:2]}, references, **HOW)
    with pytest.raises(UserError, match=r"close: Different numbers of lines"):
        compare({"base": runs["base"], "close": [*runs["close"][:2], ["x"]]}, references, **HOW)


def test_names_given_several_times_are_runs(tmp_path):
    assert name_systems(["a=1", "a=2", "b=3", "b=4"]) == {"a": ["1", "2"], "b": ["3", "4"]}
    for arguments, message in [
        (["a=1", "a=1", "b=2", "b=3"], "'a' is given twice"),
        (["a=1", "a=2"], "all runs are of one system"),
        (["a=1", "a=2", "b=3"], r"different numbers of runs \(a 2, b 1\)"),
    ]:
        with pytest.raises(UserError, match=message):
            name_systems(arguments)


def test_the_command_with_seeds(files, tmp_path, references):
    for seed in (1, 2):
        for name, rate in (("a", 0.2), ("b", 0.4)):
            lines = disturb(references, rate, seed)
            (tmp_path / f"{name}{seed}").write_text("".join(f"{line}\n" for line in lines))
    systems = [f"{name}={tmp_path / f'{name}{seed}'}" for name in "ab" for seed in (1, 2)]
    out = tmp_path / "c.json"
    quick = ["-p", "cased", "-m", "BLEU", "--trials", "50", "--bootstrap", "50"]
    arguments = ["compare", *systems, "-r", files / "test.de", "-s", files / "second.de", "-o", out, *quick]
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    content = json.loads(out.read_text())
    assert content["protocols"]["cased"]["significance"]["systems"]["b"]["BLEU"]["difference"] < 0
    assert {row["system"] for row in content["lengths"]} == {"a", "b"}
    assert {row["system"] for row in content["statistics"]} == {"a", "b"}
    assert content["differences"]["b"][0]["difference"] >= content["differences"]["b"][-1]["difference"]
