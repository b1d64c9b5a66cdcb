"""compare() of one run each: the sacrebleu command's p-values to the last digit, and our own marks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.judge import sacrebleu, sacrebleu_text
from rich.console import Console
from sacrebleu.significance import PairedTest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import METRICS, Protocol, compare, comparison_tables
from hf_mlnmt.evaluation.significance import FEWEST_SENTENCES, TOO_FEW

COMMON = ("test.de", "-i", "a.txt", "b.txt", "c.txt", "-m", "bleu", "chrf", "ter")


@pytest.fixture(scope="module")
def comparison(systems, references):
    return compare(systems, references, language="de", trials=2000)


def numbers_of(comparison, system, metric="BLEU", protocol="cased"):
    return comparison.tested(system, "test", protocol, metric)


def test_randomisation_equals_the_sacrebleu_command_but_for_ties(files: Path, comparison) -> None:
    baseline, *others = sacrebleu(files, *COMMON, "--paired-ar", "--paired-ar-n", "2000")
    for name, theirs in zip("bc", others, strict=True):
        for metric, column in {"BLEU": "BLEU", "chrF": "chrF2", "TER": "TER"}.items():
            mine = numbers_of(comparison, name, metric)
            assert mine["sacrebleu_randomisation"] == theirs[column]["p_value"]
            assert mine["approximate_randomisation"] >= theirs[column]["p_value"]
            difference = theirs[column]["score"] - baseline[column]["score"]
            assert mine["difference"] == pytest.approx(difference, abs=6e-5)  # written with four digits
            assert mine["welch"] is None


def test_bootstrap_equals_the_sacrebleu_command(files: Path, comparison) -> None:
    # sacreBLEU 2.6 cannot write this table as JSON (float32 of chrF); as text it has four digits, of k/1001.
    table = sacrebleu_text(files, *COMMON, "--paired-bs", "-f", "text")
    theirs = re.findall(r"p = (\d\.\d{4})", table)
    ours = [numbers_of(comparison, name, metric)["paired_bootstrap"] for name in "bc" for metric in METRICS]
    assert [f"{p:.4f}" for p in ours] == theirs


@pytest.mark.parametrize("seed", [12345, 7])
def test_p_values_are_those_of_sacrebleu_s_tests_to_the_last_digit(systems, references, seed, monkeypatch) -> None:
    comparison = compare(systems, references, bootstrap=300, trials=400, seed=seed)
    metrics = {metric: Protocol("cased").metric(metric) for metric in METRICS}
    monkeypatch.setenv("SACREBLEU_SEED", str(seed))
    samples = {"bs": ("paired_bootstrap", 300), "ar": ("sacrebleu_randomisation", 400)}
    for kind, (name, count) in samples.items():
        how = {"test_type": kind, "n_samples": count, "n_jobs": 1}
        theirs = PairedTest(list(systems.items()), metrics, [references], **how)()[1]
        columns = [column for key, column in theirs.items() if key != "System"]
        for metric, column in zip(METRICS, columns, strict=True):
            found = [numbers_of(comparison, system, metric)[name] for system in "bc"]
            assert found == [one.p_value for one in column[1:]], (kind, metric)


def test_a_clear_difference_is_marked_and_none_is_not(systems, references) -> None:
    named = {"base": systems["a"], "same": list(systems["a"]), "worse": systems["c"]}
    comparison = compare(named, references, bootstrap=200, trials=200)
    for metric in comparison.metrics("test", "cased"):
        result = numbers_of(comparison, "worse", metric)
        assert result["approximate_randomisation"] < 0.01
        assert (result["difference"] > 0) == (metric == "TER")
        marks = {name: comparison.mark(name, "test", "cased", metric) for name in named}
        assert marks == {"base": "", "same": "", "worse": "‡"}
        assert numbers_of(comparison, "same", metric)["sacrebleu_randomisation"] is None
    console = Console(width=100, record=True)
    console.print(*comparison_tables(comparison))
    assert "equal" in console.export_text()


def test_marks_are_not_of_sacrebleus_p_values(systems, references) -> None:
    """One sentence differs: sacreBLEU's randomisation calls that significant, nothing can."""
    other = [systems["a"][0] + " Haus", *systems["a"][1:]]
    comparison = compare({"a": systems["a"], "other": other}, references, metrics=["BLEU"], bootstrap=50, trials=200)
    assert numbers_of(comparison, "other")["sacrebleu_randomisation"] < 0.01
    assert numbers_of(comparison, "other")["approximate_randomisation"] == 1
    assert comparison.mark("other", "test", "cased", "BLEU") == ""


def test_few_sentences_give_no_p_value(systems, references) -> None:
    few = FEWEST_SENTENCES - 1
    options = {"metrics": ["BLEU"], "bootstrap": 200, "trials": 400}
    enough, short = (
        compare({name: lines[:count] for name, lines in systems.items()}, references[:count], **options)
        for count in (FEWEST_SENTENCES, few)
    )
    result = numbers_of(short, "c")
    numbers = {name: value for name, value in result.items() if name != "difference"}
    assert set(numbers.values()) == {None}
    scores = [short.scores(name, "test", "cased", "BLEU")[0] for name in "ca"]
    assert result["difference"] == pytest.approx(scores[0] - scores[1], abs=2e-4)
    told = numbers_of(enough, "c")
    assert None not in (told["paired_bootstrap"], told["approximate_randomisation"], told["sacrebleu_randomisation"])
    assert [each.mark("c", "test", "cased", "BLEU") for each in (short, enough)] == ["", "‡"]
    texts = []
    for comparison in (short, enough):
        console = Console(width=150, record=True)
        console.print(*comparison_tables(comparison))
        texts.append(console.export_text())
    assert TOO_FEW in texts[0]
    assert f"{result['difference']:+.2f}" in texts[0]
    assert not any(sign in texts[0] for sign in ("†", "‡", "p of", "p .", "p /"))
    assert TOO_FEW not in texts[1]


def test_protocols_are_kept_apart(comparison) -> None:
    content = json.loads(json.dumps(comparison.to_dict()))
    assert content["schema"] == "hf_mlnmt.comparison/3"
    assert content["settings"] == {"seed": 12345, "bootstrap": 1000, "trials": 2000}
    assert list(content["systems"]) == ["b", "c"]
    assert comparison.places == [("test", "cased"), ("test", "classic")]
    for test, protocol in comparison.places:
        assert comparison.counted("c", test, protocol)["empty_outputs"] == 1
        for system in "abc":
            for metric, entry in comparison.runs[system][1]["scores"][test][protocol].items():
                assert ("protocol:classic" in entry["signature"]) == (protocol == "classic"), metric


def test_tables_can_be_read_at_80_columns(comparison) -> None:
    console = Console(width=80, record=True)
    console.print(*comparison_tables(comparison), sep="\n")
    text = console.export_text()
    score, low, high = comparison.interval("a", "test", "cased", "BLEU")
    assert f"{score:.2f} ± {(high - low) / 2:.2f}" in text
    assert "‡" in text
    assert "in brackets of the paired bootstrap (1000)" in text
    assert "‡" not in next(line for line in text.splitlines() if line.startswith("│ a "))
    assert "protocol:classic" in text.replace("\n", "")
    assert text.index("cased:") < text.index("classic:")


def test_refused(systems, references) -> None:
    with pytest.raises(UserError, match="at least one other"):
        compare({"a": systems["a"]}, references)
    with pytest.raises(UserError, match="short: 103, reference 1: 104"):
        compare({"a": systems["a"], "short": systems["b"][1:]}, references)
    with pytest.raises(UserError, match="0 samples"):
        compare(systems, references, bootstrap=0)
