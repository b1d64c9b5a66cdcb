"""score(): the sacrebleu command's numbers, multi-bleu's by plain loops, counts, and what is refused."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.judge import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import compare, moses, score, score_protocols, scores

NAMES = {"BLEU": "bleu", "chrF2": "chrf", "TER": "ter"}


@pytest.mark.parametrize("reference_files", [["test.de"], ["test.de", "second.de"]])
def test_cased_equals_the_sacrebleu_command(files: Path, systems, reference_files) -> None:
    references = [(files / name).read_text(encoding="utf-8").splitlines() for name in reference_files]
    ours = score(systems["a"], references)
    arguments = ("-i", "a.txt", "-m", "bleu", "chrf", "ter", "--confidence", "-w", "9")
    for theirs in sacrebleu(files, *reference_files, *arguments):
        name = {"chrF2": "chrF"}.get(theirs["name"], theirs["name"])
        mine = ours.metrics[name]
        assert mine.score == pytest.approx(theirs["score"], abs=1e-8)
        assert mine.signature == theirs["signature"]
        assert sum(mine.ci) / 2 == pytest.approx(theirs["confidence_mean"], abs=1e-5)
        assert (mine.ci[1] - mine.ci[0]) / 2 == pytest.approx(theirs["confidence_var"], abs=1e-5)
    assert ours.references == len(reference_files)


def test_classic_equals_sacrebleu_on_text_prepared_beforehand(files: Path, systems, references) -> None:
    for name, lines in {"ref.tok": references, "hyp.tok": systems["b"]}.items():
        (files / name).write_text("".join(moses(line, "de") + "\n" for line in lines), encoding="utf-8")
    options = ("-m", "bleu", "chrf", "ter", "-tok", "none", "--force", "-w", "9")
    theirs = sacrebleu(files, "ref.tok", "-i", "hyp.tok", *options)
    ours = score(systems["b"], references, protocol="classic", language="de", bootstrap=0)
    assert [ours["BLEU"], ours["chrF"], ours["TER"]] == pytest.approx([row["score"] for row in theirs], abs=1e-8)
    assert all(metric.ci is None for metric in ours.metrics.values())


def multi_bleu(hypotheses: list[str], references: list[list[str]]) -> float:
    """multi-bleu.perl by plain loops: no smoothing, the closest reference length, the shorter of two as close."""
    correct, total, hypothesis_length, reference_length = [0] * 4, [0] * 4, 0, 0
    for i, hypothesis in enumerate(hypotheses):
        words = hypothesis.split()
        others = [reference[i].split() for reference in references]
        hypothesis_length += len(words)
        reference_length += min((abs(len(other) - len(words)), len(other)) for other in others)[1]
        for n in range(1, 5):
            grams = Counter(tuple(words[j : j + n]) for j in range(len(words) - n + 1))
            for gram, count in grams.items():
                seen = max(sum(tuple(o[j : j + n]) == gram for j in range(len(o) - n + 1)) for o in others)
                correct[n - 1] += min(count, seen)
                total[n - 1] += count
    if 0 in correct:
        return 0.0
    penalty = min(1.0, math.exp(1 - reference_length / hypothesis_length))
    return 100 * penalty * math.exp(sum(math.log(c / t) for c, t in zip(correct, total)) / 4)


@pytest.mark.parametrize("count", [1, 2])
def test_classic_bleu_is_multi_bleu_on_moses_text(systems, references, count) -> None:
    raw = [references, systems["c"]][:count]
    prepared = [[moses(line, "de") for line in lines] for lines in raw]
    expected = multi_bleu([moses(line, "de") for line in systems["a"]], prepared)
    assert score(systems["a"], raw, protocol="classic", language="de", bootstrap=0)["BLEU"] == pytest.approx(expected)


def test_the_protocols_differ_and_say_so(systems, references) -> None:
    both = score_protocols([line.upper() for line in systems["a"]], references, language="de", bootstrap=0)
    assert list(both) == ["cased", "classic"]
    assert both["classic"]["BLEU"] > both["cased"]["BLEU"] + 10
    for metric in both["classic"].metrics.values():
        assert "protocol:classic" in metric.signature
        assert "sacremoses:" in metric.signature
        assert "case:lc" in metric.signature
        assert "tok:moses-de" in metric.signature
    assert all("classic" not in metric.signature for metric in both["cased"].metrics.values())
    assert list(score_protocols(systems["a"], references, bootstrap=0)) == ["cased"]
    assert list(score_protocols(systems["a"], references, language="deu_Latn", bootstrap=0)) == ["cased"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(alphabet="abcdr .,DMr\"'ÄÖ“(5)", min_size=1), min_size=1, max_size=5), st.randoms())
def test_classic_reads_no_case_and_no_order_of_sentences(lines, rng) -> None:
    references = [line[::-1] for line in lines]
    options = {"protocol": "classic", "language": "de", "bootstrap": 0}
    plain = score(lines, references, **options)
    pairs = list(zip([line.upper() for line in lines], references))
    rng.shuffle(pairs)
    shuffled = score([p[0] for p in pairs], [p[1] for p in pairs], **options)
    for name in plain.metrics:
        assert shuffled[name] == pytest.approx(plain[name])


def test_moses_text_is_multi30k_s() -> None:
    # Lines of the published test_2016_flickr.lc.norm.tok.de, whose &quot; stands for the character here.
    assert moses("Eine Frau auf einem Boot namens „El Corazon“ lässt es fallen.", "de") == (
        'eine frau auf einem boot namens " el corazon " lässt es fallen .'
    )
    assert moses("Ein Boston Terrier läuft über saftig-grünes Gras.", "de") == (
        "ein boston terrier läuft über saftig-grünes gras ."
    )
    assert moses("Une borne d’arcade.", "fr") == "une borne d' arcade ."
    assert moses("A man's hat & “mine”", "en") == 'a man \'s hat & " mine "'


def test_moses_text_is_lower_cased_before_it_is_tokenised() -> None:
    """At the end of a sentence inside a line Moses leaves the full stop where a small letter follows: here always."""
    assert moses("Ein Hund läuft. Er bellt.", "de") == "ein hund läuft. er bellt ."


def test_counts(systems, references) -> None:
    short = score([line.split(" ")[0] for line in references], references, metrics=["chrf"], bootstrap=0)
    assert list(short.metrics) == ["chrF"]
    assert short.length_ratio < 0.2
    assert short.sentences == 104
    found = score(["", " ", *references[2:]], [references, ["", *references[1:]]], bootstrap=0)
    assert (found.empty_outputs, found.empty_references, found.references) == (2, 1, 2)
    assert score(references, references, bootstrap=0).length_ratio == 1
    assert score([""], ["Ein Hund."], bootstrap=10)["BLEU"] == 0


def test_a_reference_may_be_missing(references) -> None:
    worse = [line.replace("e", "a") for line in references]
    several = score(references, [worse, [None, *references[1:]]], bootstrap=0)
    assert 90 < several["chrF"] < 100
    assert "nrefs:var" in several.metrics["BLEU"].signature


def test_the_seed_decides_and_the_environment_is_left_as_it_was(systems, references, monkeypatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    first, again, other = (score(systems["a"], references, metrics=["BLEU"], seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert "seed:1|" in first.metrics["BLEU"].signature
    assert os.environ["SACREBLEU_SEED"] == "99"
    with pytest.raises(UserError, match="positive"):
        score(systems["a"], references, seed=0)


@pytest.mark.parametrize(
    ("hypotheses", "references", "options", "message"),
    [
        (["a", "b"], ["a"], {}, r"the output: 2, reference 1: 1"),
        (["a", "b"], [["a", "b"], ["a"]], {}, r"the output: 2, reference 1: 2, reference 2: 1"),
        (["a", "b", "c"], [["a"], ["b"], ["c"]], {}, r"zip\(\*references\)"),
        ([], [[]], {}, "No lines"),
        ([], [], {}, "No lines"),
        (["a"], "a", {}, "references: expected a list of lines"),
        ("a", ["a"], {}, "one string"),
        (["a"], ["a"], {"protocol": "clasic"}, "did you mean 'classic'"),
        (["a"], ["a"], {"metrics": ["chrE"]}, "did you mean 'chrF'"),
        (["a"], ["a"], {"protocol": "classic"}, "two-letter code"),
        (["a"], ["a"], {"protocol": "classic", "language": "deu_Latn"}, "two-letter code"),
        (["a"], ["a"], {"tokenize": "flores20"}, "did you mean 'flores200'"),
        (["a"], ["a"], {"tokenize": "intl", "protocol": "classic", "language": "de"}, "is of the protocol cased"),
        (["a"], ["a"], {"bootstrap": 10**7}, "10,000,000 samples: expected 0 to 1,000,000"),
    ],
)
def test_refused(hypotheses, references, options, message) -> None:
    with pytest.raises(UserError, match=message):
        score(hypotheses, references, **options)


def test_outputs_with_hardly_a_right_character_have_an_interval():
    """Resamples of chrF with and without a right character are more than sacreBLEU's own bootstrap can add up."""
    found = score(["q", "q"], ["z", "zq zq"], bootstrap=200)
    low, high = found.metrics["chrF"].ci
    assert low < found["chrF"] < high


@pytest.mark.parametrize("metric", ["BLEU", "chrF", "TER"])
def test_the_interval_is_that_of_resampled_test_sets(systems, references, metric) -> None:
    """Text that is drawn line by line and scored, and nothing of how samples are added up."""
    draw, rows, few = np.random.default_rng(7), [], (systems["a"][:20], references[:20])
    for drawn in draw.choice(20, size=(50, 20), replace=True):
        lines = [[texts[i] for i in drawn] for texts in few]
        rows.append(score(*lines, metrics=[metric], bootstrap=0)[metric])
    half = (sorted(rows)[-2] - sorted(rows)[1]) / 2
    ci = score(*few, metrics=[metric], bootstrap=50, seed=7).metrics[metric].ci
    assert ci == pytest.approx((np.mean(rows) - half, np.mean(rows) + half), abs=1e-9)


def test_blocks_of_text_and_samples_change_nothing(systems, references, monkeypatch) -> None:
    sets = [references, [None if i % 3 else line for i, line in enumerate(references)]]
    whole = score(systems["a"], sets, bootstrap=30)
    tests = compare(systems, references, bootstrap=30, trials=100).tests
    monkeypatch.setattr(scores, "CHUNK", 10)
    monkeypatch.setattr(scores, "_BLOCK", 1)
    assert score(systems["a"], sets, bootstrap=30) == whole
    assert "nrefs:var" in whole.metrics["BLEU"].signature
    assert compare(systems, references, bootstrap=30, trials=100).tests == tests


def test_it_tells_how_far_it_is(systems, references, monkeypatch) -> None:
    monkeypatch.setattr(scores, "CHUNK", 60)
    told = []
    score(systems["a"], references, metrics=["TER"], progress=lambda *begun: told.append(begun) or told.append)
    assert told == [("cased TER", 104), 60, 44, ("cased BLEU", 104), 60, 44]


def test_ter_of_very_many_sentences_is_scored_when_it_is_asked_for(caplog, monkeypatch) -> None:
    monkeypatch.setattr("hf_mlnmt.evaluation.scores.MOST_FOR_TER", 3)
    lines = ["Ein Hund läuft über das Gras."] * 4
    assert list(score(lines[:3], lines[:3], bootstrap=0).metrics) == ["BLEU", "chrF", "TER"]
    assert not caplog.text
    for _ in range(2):
        assert list(score_protocols(lines, lines, language="de", bootstrap=0)["classic"].metrics) == ["BLEU", "chrF"]
    assert caplog.text.count("4 sentences: TER is left out") == 1
    assert list(score(lines, lines, metrics=["ter"], bootstrap=0).metrics) == ["TER"]


def test_turkish_letters_in_the_classic_protocol() -> None:
    assert moses("IŞIK İL", "tr") == "ışık il"


def test_scoring_imports_no_torch() -> None:
    """It takes seconds, which text that is scored alone need not wait."""
    code = "import sys, hf_mlnmt.evaluation.comparison as _; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
