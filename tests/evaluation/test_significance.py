"""compare() of one run each: the sacrebleu command's p-values to the last digit, and our own marks."""

from __future__ import annotations

import json

import pytest
from rich.console import Console
from sacrebleu.significance import PairedTest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import METRICS, Protocol, compare, comparison_tables, significance
from hf_mlnmt.evaluation.significance import FEWEST_SENTENCES, TOO_FEW


@pytest.fixture(scope="module")
def comparison(systems, references):
    return compare(systems, references, language="de", trials=2000)


def numbers_of(comparison, system, metric="BLEU", protocol="cased"):
    return comparison.tested(system, "test", protocol, metric)


@pytest.mark.parametrize("seed", [12345, 7])
def test_p_values_are_those_of_sacrebleu_s_tests_to_the_last_digit(systems, references, seed, monkeypatch) -> None:
    """Our randomisation counts trials that tie with the real difference; theirs leaves them out, of the same trials."""
    ours, without_ties = significance.randomisation_test, {metric: [] for metric in METRICS}

    def counted(metric, baseline, system, trials, seed):
        real = significance._difference(metric, baseline, system)
        larger = significance.shuffled_differences(metric, baseline, system, trials, seed) > real + significance.TIE
        without_ties[metric].append((larger.sum() + 1) / (trials + 1))
        return ours(metric, baseline, system, trials, seed)

    monkeypatch.setattr(significance, "randomisation_test", counted)
    comparison = compare(systems, references, bootstrap=300, trials=400, seed=seed)
    metrics = {metric: Protocol("cased").metric(metric) for metric in METRICS}
    monkeypatch.setenv("SACREBLEU_SEED", str(seed))
    for kind, count in (("bs", 300), ("ar", 400)):
        how = {"test_type": kind, "n_samples": count, "n_jobs": 1}
        theirs = PairedTest(list(systems.items()), metrics, [references], **how)()[1]
        columns = [column for key, column in theirs.items() if key != "System"]
        for metric, column in zip(METRICS, columns, strict=True):
            bootstrapped = [numbers_of(comparison, system, metric)["paired_bootstrap"] for system in "bc"]
            found = bootstrapped if kind == "bs" else without_ties[metric]
            assert found == [one.p_value for one in column[1:]], (kind, metric)
            assert numbers_of(comparison, "b", metric)["approximate_randomisation"] >= without_ties[metric][0]


def test_a_clear_difference_is_marked_and_none_is_not(systems, references) -> None:
    named = {"base": systems["a"], "same": list(systems["a"]), "worse": systems["c"]}
    comparison = compare(named, references, bootstrap=200, trials=200)
    for metric in comparison.metrics("test", "cased"):
        result = numbers_of(comparison, "worse", metric)
        assert result["approximate_randomisation"] < 0.01
        assert (result["difference"] > 0) == (metric == "TER")
        marks = {name: comparison.mark(name, "test", "cased", metric) for name in named}
        assert marks == {"base": "", "same": "", "worse": "‡"}
        assert numbers_of(comparison, "same", metric)["approximate_randomisation"] is None
    console = Console(width=100, record=True)
    console.print(*comparison_tables(comparison))
    assert "equal" in console.export_text()


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
    assert None not in (told["paired_bootstrap"], told["approximate_randomisation"])
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


def test_refused(systems, references) -> None:
    with pytest.raises(UserError, match="needs a baseline and another system"):
        compare({"a": systems["a"]}, references)
    with pytest.raises(UserError, match=r"short: Different numbers of lines \(the output: 103, reference 1: 104"):
        compare({"a": systems["a"], "short": systems["b"][1:]}, references)
    with pytest.raises(UserError, match="0 samples"):
        compare(systems, references, bootstrap=0)
