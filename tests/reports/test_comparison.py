"""Comparisons of runs: built run by run, over seeds, also when runs are gone; what is not comparable refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers.finished_runs import FEW, NAMES, OUTPUTS, SECOND, sentences, write_lines, write_run, write_runs
from typer.testing import CliRunner

from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import METRICS, compare
from hf_mlnmt.evaluation.comparison import in_order, read_comparison
from hf_mlnmt.evaluation.outputs import read_run
from hf_mlnmt.evaluation.results import languages_of_test
from hf_mlnmt.evaluation.scores import count_sentences
from hf_mlnmt.evaluation.significance import FEWEST_SENTENCES, TOO_FEW, compare_seeds
from hf_mlnmt.reports.comparison import add_runs
from hf_mlnmt.reports.comparison_page import page_of

ROOT = Path(__file__).resolve().parents[2]


def test_a_run_says_each_test_sets_own_language(tmp_path):
    """Of a model of several languages, with tokens of them or without; the file of its translations is named by it."""
    languages = {"source": "en", "target": "fr"}
    recipe = {"data": {"test": {"test": {"languages": languages}}}}
    folder = write_run(tmp_path / "base", "base", recipe=recipe)
    with pytest.raises(UserError, match=r"test\.average\.fr"):
        read_run(folder)
    (folder / "translations" / "test.average.de").rename(folder / "translations" / "test.average.fr")
    assert read_run(folder).outputs["test"] == OUTPUTS["base"]
    del recipe["data"]
    assert languages_of_test({"languages": {"target": "de"}, "recipe": recipe}, "test")["target"] == "de"


def test_the_numbers_are_the_paired_tests(compared):
    for protocol in ("cased", "classic"):
        systems = {name: OUTPUTS[key] for key, name in NAMES.items()}
        expected = compare(systems, sentences(0, 0), protocols=[protocol], language="de", **FEW)
        for key in ("a", "b"):
            found = read_comparison(compared).tests[NAMES[key]]["tested"]["test"][protocol]
            assert found == expected.tests[NAMES[key]]["tested"]["test"][protocol]
    assert NAMES["base"] not in read_comparison(compared).tests


def test_run_by_run_is_the_same_as_all_at_once(runs, compared, tmp_path):
    said: list[str] = []
    later = tmp_path / "later"
    (later / "b").mkdir(parents=True)
    (later / "b" / "recipe.yaml").write_text("seed: 1\n")  # still training
    folders = [runs / "base", runs / "a", later / "b"]
    assert systems_tested(folders, tmp_path / "toy", runs, said) == [NAMES["a"]]
    assert any("not finished" in line for line in said)
    shutil.copytree(runs / "b", later / "b", dirs_exist_ok=True)
    assert systems_tested(folders, tmp_path / "toy", runs, said) == [NAMES["b"]]
    assert systems_tested(folders, tmp_path / "toy", runs, said) == []
    assert contents(compared) == contents(tmp_path / "toy")
    # other settings of the tests, or other translations, are tested anew
    assert systems_tested(folders, tmp_path / "toy", runs, said, bootstrap=51)


def systems_tested(folders: list[Path], output: Path, runs: Path, said: list[str], **settings: int) -> list[str]:
    """The systems that a call tests, as it says; in the order of their names."""
    before = len(said)
    add_runs(folders, output, runs / "data", said.append, **{**FEW, **settings})
    return sorted(line.split()[1] for line in said[before:] if line.startswith("testing "))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_seed_is_added_when_the_first_ones_runs_are_gone(runs, compared, tmp_path):
    """The numbers are those of both seeds' sentences, the page has means and deviations."""
    said: list[str] = []
    second = {key: write_run(tmp_path / key, key, SECOND[key], seed=2, recipe__seed=2) for key in SECOND}
    output = shutil.copytree(compared, tmp_path / "toy")
    before = contents(output)
    assert systems_tested([second["a"]], output, runs, said) == []
    assert "no run of seed 2 yet" in said[0]
    assert before.items() <= {**contents(output), "README.md": before["README.md"]}.items()
    assert systems_tested([second["base"]], output, runs, said) == [NAMES["a"]]
    comparison = read_comparison(output)
    assert {name: list(seeds) for name, seeds in comparison.runs.items()} == {
        NAMES["base"]: [1, 2], NAMES["b"]: [1], NAMES["a"]: [1, 2],
    }  # fmt: skip
    counts = {
        key: [count_sentences(each[key], sentences(0, 0))["BLEU"] for each in (OUTPUTS, SECOND)] for key in SECOND
    }
    found = comparison.tested(NAMES["a"], "test", "cased", "BLEU")
    assert found == compare_seeds("BLEU", counts["base"], counts["a"], **FEW)
    assert found["welch"] is not None
    scores = comparison.scores(NAMES["a"], "test", "cased", "BLEU")
    page = (output / "README.md").read_text()
    assert f"{sum(scores) / 2:.2f} ± {abs(scores[0] - scores[1]) / 2**0.5:.2f} ({found['difference']:+.2f}" in page
    assert "seeds (1, 2; a run for each) and budget: 10 steps" in page
    assert f"Not all seeds are there yet of `{NAMES['b']}`." in page
    together = [runs / "base", second["base"], runs / "a", second["a"], runs / "b"]
    add_runs(together, tmp_path / "at once", runs / "data", said.append, **FEW)
    assert contents(tmp_path / "at once") == contents(output)


def test_a_note_on_the_tests_stands_on_the_page_until_they_are_made_again(runs, compared, tmp_path):
    output = shutil.copytree(compared, tmp_path / "toy")
    content = json.loads((output / "comparison.json").read_text())
    for tests in content["systems"].values():
        tests["made_of"] = ""
    (output / "comparison.json").write_text(json.dumps({**content, "note": "Made by an older rule."}))
    assert "is 2. Made by an older rule. Both" in page_of(output)
    assert systems_tested([runs / "base"], output, runs, []) == sorted([NAMES["a"], NAMES["b"]])
    assert contents(output) == contents(compared)


def test_pairs_without_the_baseline_are_tested_when_asked_for_and_again_when_runs_change(runs, compared, tmp_path):
    assert "pairs" not in json.loads((compared / "comparison.json").read_text())
    output, said = shutil.copytree(compared, tmp_path / "toy"), []
    add_runs([], output, runs / "data", said.append, pairs=[(NAMES["a"], NAMES["b"])], **FEW)
    name = f"{NAMES['a']} > {NAMES['b']}"
    assert said == [f"testing {NAMES['a']} against {NAMES['b']}"]
    found = read_comparison(output).pairs
    scores = [read_comparison(output).scores(NAMES[key], "test", "cased", "BLEU")[0] for key in "ab"]
    assert found[name]["tested"]["test"]["cased"]["BLEU"]["difference"] == pytest.approx(scores[0] - scores[1])
    assert (output / "README.md").read_text() == (compared / "README.md").read_text()
    other = write_run(tmp_path / "b", "b", SECOND["a"])
    add_runs([other], output, runs / "data", said.append, **FEW)
    assert read_comparison(output).pairs[name]["made_of"] != found[name]["made_of"]
    with pytest.raises(UserError, match=r"no runs of rnn\.multi30k-ende"):
        add_runs([], output, runs / "data", pairs=[(NAMES["a"], "rnn.multi30k-ende")], **FEW)


def test_a_comparison_without_counts_shows_its_tests_and_takes_no_seed(runs, compared, tmp_path):
    output = shutil.copytree(compared, tmp_path / "toy")
    for path in output.glob("*.gz"):
        path.unlink()
    assert page_of(output) == (compared / "README.md").read_text()
    other = write_run(tmp_path / "b", "b", SECOND["a"])
    with pytest.raises(UserError, match=r"base\.seed1\.counts\.gz|ende\.seed1\.counts\.gz: no such file"):
        add_runs([other], output, runs / "data", **FEW)


def test_the_page_says_what_the_files_say(compared):
    page = (compared / "README.md").read_text(encoding="utf-8")
    assert page == page_of(compared)
    comparison = read_comparison(compared)
    assert list(comparison.runs) == [NAMES["base"], NAMES["b"], NAMES["a"]]  # the zoo's order
    rows = [line for line in page.splitlines() if line.startswith(f"| `{NAMES['a']}`")]
    assert len(rows) == 3  # overview, cased, classic
    assert "1,234,567 | 2.5 | 1 |" in rows[0]
    for row, protocol in zip(rows[1:], ("cased", "classic"), strict=True):
        for metric in METRICS:
            tested = comparison.tested(NAMES["a"], "test", protocol, metric)
            (score,) = comparison.scores(NAMES["a"], "test", protocol, metric)
            assert f"{score:.2f} | {tested['difference']:+.2f}" in row
            assert f"{tested['approximate_randomisation']:.3f} / {tested['paired_bootstrap']:.3f} |" in row
    assert "†" in rows[1]
    assert "the recipe's own is 4,000 steps" in page
    assert "99 target tokens" in page


def test_notes_on_a_budget_stand_on_the_page(compared, tmp_path):
    folder = shutil.copytree(compared, tmp_path / "compared")
    assert "Notes on the budgets" not in page_of(folder)
    path = folder / f"{NAMES['a']}.seed1.json"
    results = json.loads(path.read_text())
    results["budget"]["note"] = "two threads"
    path.write_text(json.dumps(results))
    assert f"Notes on the budgets:\n\n- `{NAMES['a']}`, seed 1: two threads\n\n## " in page_of(folder)


def test_systems_stand_beside_those_of_their_classes():
    systems = ("unknown", "ms-123", "m-10", "enc-dc", "ms-1", "transformer-wide", "transformer")
    names = [f"{system}.toy" for system in systems]
    expected = ["m-10", "transformer", "transformer-wide", "ms-1", "ms-123", "enc-dc", "unknown"]
    assert [name.split(".")[0] for name in in_order({name: {} for name in names}, "m-10.toy")] == expected


def test_other_mistakes_are_named(runs, compared, tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        add_runs([runs / "base", runs / "nothing"], tmp_path, runs / "data")
    with pytest.raises(UserError, match="not the folder of a training run"):
        add_runs([runs / "base", runs / "data"], tmp_path, runs / "data")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "recipe.yaml").write_text("seed: 1\n")
    with pytest.raises(UserError, match="the baseline's run has no results"):
        add_runs([tmp_path / "later", runs / "a"], tmp_path / "out", runs / "data")
    with pytest.raises(UserError, match="of one system and seed"):
        add_runs([runs / "base", write_run(tmp_path / "twin", "base")], tmp_path / "out", runs / "data")
    wrong = tmp_path / "data"
    write_lines(wrong / "test.en", sentences(0, 0))
    write_lines(wrong / "test.de", sentences(9, 0.5))
    with pytest.raises(UserError, match="not those that were scored with"):
        add_runs([runs / "base", runs / "a"], tmp_path / "out", wrong, **FEW)
    assert not (tmp_path / "out").exists()


def test_the_command(runs, compared, tmp_path):
    arguments = ["compare", runs / "base", runs / "base", runs / "a", runs / "b", "--output", tmp_path / "toy"]
    arguments += ["--data", runs / "data", "--bootstrap", 50, "--trials", 100]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert "classic: lower-cased" in result.output
    assert contents(tmp_path / "toy") == contents(compared)
    result = CliRunner().invoke(app, ["compare", str(runs / "base"), "-o", str(tmp_path)])
    assert isinstance(result.exception, UserError)


def test_a_run_beside_a_file_of_translations(runs, tmp_path):
    """Of the same test set and references, whatever made the file; the page in HTML has both, and their sentences."""
    write_lines(tmp_path / "other.de", SECOND["a"])
    arguments = ["compare", runs / "base", f"other={tmp_path / 'other.de'}", "-r", f"test={runs / 'data' / 'test.de'}"]
    arguments += ["--data", runs / "data", "--bootstrap", 20, "--trials", 50, "--html", tmp_path / "page.html"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert SECOND["a"][0] in page
    assert OUTPUTS["base"][0] in page
    write_lines(tmp_path / "wrong.de", sentences(9, 0.5))
    arguments[4] = f"test={tmp_path / 'wrong.de'}"
    with pytest.raises(UserError, match="the references of test"):
        CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_no_p_value_from_few_sentences_wherever_one_is_shown(runs, compared, tmp_path):
    """Nor from a file that was written before there was such a bound."""
    shutil.copytree(compared, tmp_path / "few")
    for path in (tmp_path / "few").glob("*.seed1.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        content["outputs"] = {"test": {name: {"sentences": FEWEST_SENTENCES - 1} for name in ("cased", "classic")}}
        path.write_text(json.dumps(content), encoding="utf-8")
    page = page_of(tmp_path / "few")
    assert TOO_FEW in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert not any(sign in line for line in tables for sign in ("†", "‡", "0.0"))


@pytest.mark.parametrize("name", ["../../../x", "/tmp/hf-mlnmt-x", "<script>alert(1)</script>", "x" * 400])
def test_names_of_results_files_are_no_paths_and_no_html(tmp_path, name):
    folder = write_runs(tmp_path / "runs")
    write_run(folder / "a", "a", system=name)
    before = sorted(path for path in tmp_path.parent.rglob("*") if "out" not in path.parts)
    add_runs([folder / "base", folder / "a"], tmp_path / "out", folder / "data", **FEW)
    assert sorted(path for path in tmp_path.parent.rglob("*") if "out" not in path.parts) == before
    assert all(path.is_file() and path.parent == tmp_path / "out" for path in (tmp_path / "out").rglob("*"))
    page = (tmp_path / "out" / "README.md").read_text()
    assert f"`{name}`" in page
    assert "<script>" not in re.sub(r"`[^`\n]*`", "", page)
    assert list(read_comparison(tmp_path / "out", only=name).runs) == [NAMES["base"], name]
    add_runs([folder / "b"], tmp_path / "out", folder / "data", **FEW)  # its counts are found again


def test_systems_whose_files_would_have_one_name_are_refused(tmp_path):
    folder = write_runs(tmp_path / "runs")
    write_run(folder / "a", "a", system="a/b")
    write_run(folder / "b", "b", system="a b")
    with pytest.raises(UserError, match="'a/b' and 'a b' would be files of one name"):
        add_runs([folder / "base", folder / "a", folder / "b"], tmp_path / "out", folder / "data", **FEW)
    assert not (tmp_path / "out").exists()


def test_a_test_set_of_a_results_file_is_read_in_the_run_s_folder_alone(tmp_path):
    write_lines(tmp_path / "secret.average.de", OUTPUTS["a"])
    folder = write_run(tmp_path / "run", "a")
    content = json.loads((folder / "results.json").read_text())
    content["scores"] = {"../../secret": content["scores"]["test"]}
    (folder / "results.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"translations/-\.-\.\.-secret"):
        read_run(folder)
