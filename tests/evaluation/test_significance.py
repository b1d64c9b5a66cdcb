"""paired_tests(): the sacrebleu command's p-values to the last digit; compare(): those and our own."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from helpers.judge import sacrebleu, sacrebleu_text
from rich.console import Console

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation import compare, comparison_tables, paired_tests
from hf_mlnmt.evaluation.significance import FEWEST_SENTENCES, TOO_FEW


@pytest.fixture(scope="module")
def tests(systems, references):
    return paired_tests(systems, references, trials=2000)


COMMON = ("test.de", "-i", "a.txt", "b.txt", "c.txt", "-m", "bleu", "chrf", "ter")


def test_randomisation_equals_the_sacrebleu_command(files: Path, tests) -> None:
    baseline, *others = sacrebleu(files, *COMMON, "--paired-ar", "--paired-ar-n", "2000")
    for name, theirs in zip("bc", others, strict=True):
        for metric, column in {"BLEU": "BLEU", "chrF": "chrF2", "TER": "TER"}.items():
            mine = tests.results[name][metric]
            assert mine.approximate_randomisation == theirs[column]["p_value"]
            assert mine.difference == pytest.approx(theirs[column]["score"] - baseline[column]["score"], abs=1e-9)


def test_bootstrap_equals_the_sacrebleu_command(files: Path, tests) -> None:
    # sacreBLEU 2.6 cannot write this table as JSON (float32 of chrF); as text it has four digits, of k/1001.
    table = sacrebleu_text(files, *COMMON, "--paired-bs", "-f", "text")
    theirs = re.findall(r"p = (\d\.\d{4})", table)
    ours = [f"{r.paired_bootstrap:.4f}" for name in "bc" for r in tests.results[name].values()]
    assert ours == theirs


def test_what_is_signed(tests, systems, references) -> None:
    assert tests.baseline == "a"
    assert "bs:1000|seed:12345" in tests.signatures["paired_bootstrap"]["BLEU"]
    assert "ar:2000|seed:12345" in tests.signatures["approximate_randomisation"]["TER"]
    classic = paired_tests(
        systems, references, protocol="classic", language="de", metrics=["chrF"], bootstrap=10, trials=10, seed=3
    )
    assert "ar:10|seed:3" in classic.signatures["approximate_randomisation"]["chrF"]
    assert "protocol:classic|sacremoses:" in classic.signatures["approximate_randomisation"]["chrF"]


def test_a_clear_difference_is_marked_and_none_is_not(systems, references) -> None:
    named = {"base": systems["a"], "same": list(systems["a"]), "worse": systems["c"]}
    comparison = compare(named, references, bootstrap=200, trials=200)
    theirs = comparison.sacrebleu["cased"].results
    for metric, result in comparison.tests["cased"]["worse"].items():
        assert result.approximate_randomisation < 0.01
        assert (result.difference > 0) == (metric == "TER")
        assert comparison.marks("cased", metric) == {"same": "", "worse": "‡"}
        # sacreBLEU's p-value of equal outputs
        assert (theirs["same"][metric].difference, theirs["same"][metric].paired_bootstrap) == (0, 1 / 201)
    console = Console(width=100, record=True)
    console.print(*comparison_tables(comparison))
    assert "equal" in console.export_text()


def test_marks_are_not_of_sacrebleus_p_values(systems, references) -> None:
    """One sentence differs: sacreBLEU's randomisation calls that significant, nothing can."""
    other = [systems["a"][0] + " Haus", *systems["a"][1:]]
    comparison = compare({"a": systems["a"], "other": other}, references, metrics=["BLEU"], bootstrap=50, trials=200)
    assert comparison.sacrebleu["cased"].results["other"]["BLEU"].approximate_randomisation < 0.01
    assert comparison.tests["cased"]["other"]["BLEU"].approximate_randomisation == 1
    assert comparison.marks("cased", "BLEU") == {"other": ""}


def test_few_sentences_give_no_p_value(systems, references) -> None:
    few = FEWEST_SENTENCES - 1
    options = {"metrics": ["BLEU"], "bootstrap": 200, "trials": 400}
    enough, short = (
        compare({name: lines[:count] for name, lines in systems.items()}, references[:count], **options)
        for count in (FEWEST_SENTENCES, few)
    )
    result, told = (each.tests["cased"]["c"]["BLEU"] for each in (short, enough))
    assert (result.paired_bootstrap, result.approximate_randomisation) == (None, None)
    assert result.difference == pytest.approx(short.scores["cased"]["c"]["BLEU"] - short.scores["cased"]["a"]["BLEU"])
    assert None not in (told.paired_bootstrap, told.approximate_randomisation)
    assert [each.marks("cased", "BLEU")["c"] for each in (short, enough)] == ["", "‡"]
    for part in ("significance", "sacrebleu"):
        written = short.to_dict()["protocols"]["cased"][part]["systems"]["c"]["BLEU"]
        assert (written["paired_bootstrap"], written["approximate_randomisation"]) == (None, None)
    texts = []
    for comparison in (short, enough):
        console = Console(width=150, record=True)
        console.print(*comparison_tables(comparison))
        texts.append(console.export_text())
    assert TOO_FEW in texts[0]
    assert f"{result.difference:+.2f}" in texts[0]
    assert not any(sign in texts[0] for sign in ("†", "‡", "p of", "p .", "p /"))
    assert TOO_FEW not in texts[1]


def test_jobs_change_nothing(systems, references, monkeypatch) -> None:
    def fork() -> None:
        raise AssertionError("a fork of a process with threads, of which this one has some, can wait for ever")

    monkeypatch.setattr(os, "fork", fork)
    four = {**systems, "d": [line.lower() for line in systems["b"]]}
    options = {"metrics": ["BLEU"], "bootstrap": 50, "trials": 50}
    alone = paired_tests(four, references, **options)
    assert len({alone.results[name]["BLEU"].difference for name in "bcd"}) == 3
    for jobs in (2, 5):
        assert paired_tests(four, references, jobs=jobs, **options) == alone


@pytest.fixture(scope="module")
def comparison(systems, references):
    return compare(systems, references, language="de", bootstrap=100, trials=100)


def test_comparison_json_keeps_protocols_apart(comparison) -> None:
    content = json.loads(json.dumps(comparison.to_dict()))
    assert content["schema"] == "hf_mlnmt.comparison/2"
    assert (content["seed"], content["bootstrap"], content["trials"]) == (12345, 100, 100)
    assert list(content["protocols"]) == ["cased", "classic"]
    for protocol, part in content["protocols"].items():
        assert list(part) == ["scores", "outputs", "significance", "holm", "sacrebleu"]
        assert list(part["scores"]) == ["a", "b", "c"]
        assert list(part["significance"]["systems"]) == ["b", "c"]
        assert part["outputs"]["c"]["empty_outputs"] == 1
        signatures = [metric["signature"] for scores in part["scores"].values() for metric in scores.values()]
        assert all(("protocol:classic" in signature) == (protocol == "classic") for signature in signatures)


def test_tables_can_be_read_at_80_columns(comparison) -> None:
    console = Console(width=80, record=True)
    console.print(*comparison_tables(comparison), sep="\n")
    text = console.export_text()
    best = comparison.scores["cased"]["a"].metrics["BLEU"]
    assert f"{best.score:.2f} ± {(best.ci[1] - best.ci[0]) / 2:.2f}" in text
    assert "‡" in text
    assert "in brackets sacreBLEU's own: paired bootstrap (100) / approximate" in text
    assert "‡" not in next(line for line in text.splitlines() if line.startswith("│ a "))
    assert "protocol:classic" in text.replace("\n", "")
    assert text.index("cased:") < text.index("classic:")


def test_refused(systems, references) -> None:
    with pytest.raises(UserError, match="at least one other"):
        paired_tests({"a": systems["a"]}, references)
    with pytest.raises(UserError, match="short: 103, reference 1: 104"):
        compare({"a": systems["a"], "short": systems["b"][1:]}, references)
    with pytest.raises(UserError, match="0 samples"):
        paired_tests(systems, references, bootstrap=0)
