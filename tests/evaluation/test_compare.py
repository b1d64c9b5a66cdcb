"""compare() with several seeds of every system: means, both tests, corrections, what is refused."""

from __future__ import annotations

import io
import json
import statistics

import pytest
from helpers.judge import disturb
from rich.console import Console
from typer.testing import CliRunner

from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import compare, comparison_tables, read_comparison, score
from hf_mlnmt.evaluation.outputs import TextFiles, read_systems, text_files
from hf_mlnmt.evaluation.significance import LEGEND, p_of_mark
from hf_mlnmt.generation import DecodingOptions
from hf_mlnmt.reports.comparison import add_runs

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


def numbers_of(comparison, system, metric="BLEU"):
    return comparison.tested(system, "test", "cased", metric)


def test_means_and_deviations_are_of_the_runs_scores(comparison, runs, references):
    own, base = ([score(lines, references, bootstrap=0)["BLEU"] for lines in runs[name]] for name in ("close", "base"))
    mean, deviation = statistics.fmean(own), statistics.stdev(own)
    found = comparison.interval("close", "test", "cased", "BLEU")
    assert found == pytest.approx((mean, mean - deviation, mean + deviation), abs=2e-4)
    assert numbers_of(comparison, "close")["difference"] == pytest.approx(mean - statistics.fmean(base), abs=6e-5)
    assert comparison.baseline == "base"
    assert comparison.several


def test_correction_for_many_systems(comparison):
    """Two of the three differ: their p-values are doubled from the smaller one on; equal outputs are no test."""
    corrected = comparison.corrected("test", "cased", "BLEU")
    assert corrected["same"] is None
    assert comparison.mark("same", "test", "cased", "BLEU") == ""
    raw = {name: p_of_mark(numbers_of(comparison, name)) for name in ("close", "worse")}
    small, large = sorted(raw, key=raw.get)
    assert corrected[small] == pytest.approx(min(1.0, 2 * raw[small]))
    assert corrected[large] == pytest.approx(max(raw[large], min(1.0, 2 * raw[small])))


def test_the_table(comparison):
    (table,) = comparison_tables(comparison)
    rows = {row[0]: row for row in table.rows}
    mean, low, _ = comparison.interval("worse", "test", "cased", "BLEU")
    lines = rows["worse"][1].splitlines()
    assert lines[0] == f"{mean:.2f} ± {mean - low:.2f}"
    assert lines[1].endswith("‡")
    assert lines[2].startswith("p ")
    assert lines[3].startswith("Holm ")
    assert lines[4].count("/") == 1  # bootstrap and Welch
    assert LEGEND in table.caption
    assert rows["same"][1].splitlines()[1] == "equal"
    assert "\n" not in rows["base"][1]
    assert "Mean of 3 runs ± standard deviation" in table.caption
    assert numbers_of(comparison, "worse")["welch"] is not None


@pytest.mark.parametrize("metrics", [["BLEU", "chrF"], ["BLEU", "chrF", "TER"]])
def test_a_table_of_80_columns_breaks_no_name(runs, references, metrics):
    named = {name: texts[:1] for name, texts in runs.items()}
    tables = comparison_tables(compare(named, references, **{**HOW, "metrics": metrics, "trials": 20}))
    console = Console(file=io.StringIO(), width=80)
    console.print(*tables)
    lines = console.file.getvalue().splitlines()
    first = [line.split("│")[1].strip() for line in lines if line.count("│") > 3]
    assert list(filter(None, first)) == list(runs)
    assert not [line for line in lines if len(line) > 80 or line.count("…")]
    shown = "\n".join(lines)
    assert all(cell in shown for row in tables[0].rows for numbers in row[1:] for cell in numbers.split("\n"))


def test_refused(runs, references):
    with pytest.raises(
        UserError, match=r"different numbers of runs \(base 3, close 2\): give every system the same seeds"
    ):
        compare({"base": runs["base"], "close": runs["close"][:2]}, references, **HOW)
    with pytest.raises(UserError, match=r"close: Different numbers of lines \(the output: 2, reference 1: 104\)"):
        compare({"base": runs["base"], "close": [*runs["close"][:2], ["x", "y"]]}, references, **HOW)


def test_arguments_that_make_no_comparison(tmp_path):
    files = {"test": TextFiles(("ref",))}
    for name in "1234":
        (tmp_path / name).write_text("x\n")
    for arguments, message in [
        (["a=1", "a=1", "b=2", "b=3"], "'a' is given twice"),
        (["a=1", "a=2"], "all runs are of one system"),
        (["a=1", "a=2", "b=3"], r"different numbers of runs \(a 2, b 1\)"),
        (["a=1"], "at least one other system"),
    ]:
        given = [(name, name, str(tmp_path / path)) for name, path in (one.split("=") for one in arguments)]
        with pytest.raises(UserError, match=message):
            read_systems(given, files, None, {}, DecodingOptions())
    for references, sources, message in [
        ([("a", "x"), ("", "y")], [], "every test set a name"),
        ([("a", "x"), ("b", "y")], [("", "z")], "of which test set"),
        ([("", "x.de.gz")], [("", "z"), ("", "z")], "two sources of the test set 'x.de'"),
    ]:
        with pytest.raises(UserError, match=message):
            text_files(references, sources)
    assert text_files([("", "x.de"), ("", "y.de")], [("", "s")]) == {"x.de": TextFiles(("x.de", "y.de"), "s")}


def test_the_command_with_seeds(files, tmp_path, references, undraw):
    undraw()
    for seed in (1, 2):
        for name, rate in (("a", 0.2), ("b", 0.4)):
            lines = disturb(references, rate, seed)
            (tmp_path / f"{name}{seed}").write_text("".join(f"{line}\n" for line in lines))
    systems = [f"{name}={tmp_path / f'{name}{seed}'}" for name in "ab" for seed in (1, 2)]
    out = tmp_path / "out"
    quick = ["--protocol", "cased", "-m", "BLEU", "--trials", "50", "--bootstrap", "50"]
    arguments = ["compare", *systems, "-r", files / "test.de", "-s", files / "second.de", "-o", out, *quick]
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    found = read_comparison(out)
    assert {name: list(seeds) for name, seeds in found.runs.items()} == {"a": [1, 2], "b": [1, 2]}
    assert numbers_of_test(found, "test.de", "b")["difference"] < 0
    for stem in ("lengths", "statistics"):
        assert {row["system"] for row in json.loads((out / f"{stem}.json").read_text())["rows"]} == {"a", "b"}
    rows = json.loads((out / "differences.json").read_text())["rows"]
    assert rows[0]["difference"] >= rows[-1]["difference"]
    page = (out / "README.md").read_text()
    assert "# Systems side by side: test.de" in page
    assert "| `b` | 2 |" in page
    # a third seed of both is added, when the files of the first two are gone; and a system by its results file
    for name, rate in (("a", 0.2), ("b", 0.4)):
        (tmp_path / f"{name}1").unlink()
        (tmp_path / f"{name}2").write_text("".join(f"{line}\n" for line in disturb(references, rate, 7)))
    again = [f"{name}={tmp_path / f'{name}2'}" for name in "ab"]
    arguments = ["compare", *again, "-r", files / "test.de", "-o", tmp_path / "other", *quick]
    assert CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False).exit_code == 0
    recorded = [tmp_path / "out" / "comparison.json", f"c={tmp_path / 'other' / 'b.seed1.json'}"]
    few = ["--trials", "50", "--bootstrap", "50", "-o", tmp_path / "third"]
    result = CliRunner().invoke(app, list(map(str, ["compare", *recorded, *few])), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    third = read_comparison(tmp_path / "third")
    assert third.tested("b", "test.de", "cased", "BLEU") == found.tested("b", "test.de", "cased", "BLEU")
    assert third.tested("c", "test.de", "cased", "BLEU")["approximate_randomisation"] is not None
    shown = CliRunner().invoke(app, ["compare", str(tmp_path / "third")], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "│ c " in shown.output


def numbers_of_test(comparison, test, system):
    return comparison.tested(system, test, "cased", "BLEU")


def test_a_results_file_without_counts_has_differences_and_welchs_test_alone(comparison, tmp_path):
    for name in ("base", "close"):
        for seed, results in comparison.runs[name].items():
            (tmp_path / f"{name}{seed}.json").write_text(json.dumps(results))
    paths = [(name, name, str(tmp_path / f"{name}{seed}.json")) for name in ("base", "close") for seed in (1, 2, 3)]
    found = add_runs(read_systems(paths, {}, None, {}, DecodingOptions()), None)
    numbers, whole = numbers_of(found, "close"), numbers_of(comparison, "close")
    assert numbers["difference"] == pytest.approx(whole["difference"], abs=2e-4)
    assert numbers["welch"] == pytest.approx(whole["welch"], rel=1e-2)
    assert numbers["approximate_randomisation"] is None
    assert [table.rows[1][1].splitlines()[1] for table in comparison_tables(found)] == [f"{numbers['difference']:+.2f}"]


def test_what_is_scored_otherwise_is_not_compared(references, runs, tmp_path):
    one, two = (
        compare({"base": lines, "other": lines}, wanted, **HOW).runs["other"][1]
        for lines, wanted in ((runs["base"][0], references), (runs["base"][0], runs["close"][0]))
    )
    changed = json.loads(json.dumps(one))
    changed["scores"]["test"]["cased"]["BLEU"]["signature"] += "|x"
    for results, message in ((two, "the references of test"), (changed, "signatures.test.cased.BLEU")):
        (tmp_path / "a.json").write_text(json.dumps({**one, "system": "a"}))
        (tmp_path / "b.json").write_text(json.dumps({**results, "system": "b"}))
        given = [("", name, str(tmp_path / f"{name}.json")) for name in "ab"]
        with pytest.raises(UserError, match=message):
            add_runs(read_systems(given, {}, None, {}, DecodingOptions()), None)
