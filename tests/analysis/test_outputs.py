"""Scores by source length, what is wrong with outputs, the language guesser, the sentences that differ most."""

from __future__ import annotations

import pytest

from hf_mlnmt.analysis.outputs import (
    SETS,
    analyse_outputs,
    groups_of,
    has_run,
    output_statistics,
    read_starts,
    scores_by_length,
    sentence_scores,
)
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import score
from hf_mlnmt.reports.matrix import LanguageGuesser

SOURCES = ["A dog runs.", "Two men play ball here.", "A woman.", "The red car stands there.", "Anna and Otto sleep."]
REFERENCES = [
    "Ein Hund rennt.",
    "Zwei Männer spielen hier Ball.",
    "Eine Frau.",
    "Das rote Auto steht da.",
    "Anna und Otto schlafen.",
]


def test_groups():
    wmt = groups_of([9, 10, 19, 20, 49, 50, 70], SETS["wmt"])
    assert wmt == {"<10": [0], "10-19": [1, 2], "20-29": [3], "30-39": [], "40-49": [4], "50+": [5, 6]}
    assert list(groups_of([10, 11, 40, 41], SETS["iwslt"]).values()) == [[0], [1], [], [2], [3]]
    assert list(groups_of([], [2, 3])) == ["<2", "2", "3+"]
    assert read_starts("iwslt") == [11, 21, 31, 41]
    assert read_starts("5,9") == [5, 9]
    for wrong in ("wtm", "5,5", "9,5", "0,5", ""):
        with pytest.raises(UserError, match="expected wmt, iwslt, or ascending"):
            read_starts(wrong)


def test_scores_by_length_are_scores_of_the_group():
    outputs = [
        "Ein Hund rennt.",
        "Zwei Männer spielen da Ball.",
        "Ein Mann.",
        "Das rote Auto steht da.",
        "Anna schläft.",
    ]
    rows = scores_by_length({"a": REFERENCES, "b": outputs}, REFERENCES, [3, 6, 3, 6, 5], [4, 6, 9], bootstrap=50)
    assert [row["metric"] for row in rows] == ["BLEU", "chrF"] * 8
    rows = rows[1::2]
    assert [(row["system"], row["source_length"], row["sentences"]) for row in rows] == [
        (name, group, count) for group, count in (("<4", 2), ("4-5", 1), ("6-8", 2), ("9+", 0)) for name in ("a", "b")
    ]
    expected = score([outputs[1], outputs[3]], [REFERENCES[1], REFERENCES[3]], metrics=["chrF"], bootstrap=50)
    assert rows[5]["score"] == expected["chrF"]
    assert (rows[5]["low"], rows[5]["high"]) == expected.metrics["chrF"].ci
    assert rows[3]["low"] is None  # one sentence
    assert rows[7]["score"] is None


def test_runs():
    assert not has_run("ein mann und ein mann")
    assert has_run("ein Mann, ein mann")
    assert not has_run("sehr sehr gut")
    assert has_run("sehr, sehr sehr gut")
    assert has_run("a b c d a b c d")
    assert not has_run("a b c d e a b c d e")
    assert not has_run("")


def test_statistics_by_hand():
    outputs = [
        " ",
        "two men PLAY ball here",
        "Eine Frau. Eine Frau.",
        "The red Auto stands da.",
        "Anna und Otto schlafen.",
    ]
    found = output_statistics(SOURCES, outputs, REFERENCES, lambda output: "men" in output)
    lines = {kind: found[kind]["lines"] for kind in ("empty", "copied", "repeated", "untranslated", "off_target")}
    assert lines == {"empty": [1], "copied": [2], "repeated": [3], "untranslated": [2, 4], "off_target": [2]}
    assert found["untranslated"]["share"] == 0.4
    assert found["length_ratio"] == score(outputs, REFERENCES, metrics=["BLEU"], bootstrap=0).length_ratio
    assert "off_target" not in output_statistics(SOURCES, outputs, REFERENCES)
    # what the reference has too is no fault
    assert not output_statistics(["Paris!"], ["Paris."], ["Paris."])["copied"]["lines"]
    assert not output_statistics(["ja"], ["ja ja ja"], ["ja ja ja"])["repeated"]["lines"]


def test_languages_counted():
    pytest.importorskip("sklearn")
    texts = {"de": ["der hund schläft auf dem gras", "zwei männer und eine frau"] * 3}
    texts["en"] = ["the dog is sleeping on the grass", "two men and a woman"] * 3
    guess = LanguageGuesser(texts)
    assert guess(["eine frau und der hund", "A WOMAN is sleeping"]) == ["de", "en"]
    assert guess([]) == []
    assert guess.accuracy({"de": ["der mann"], "en": ["the man", "der mann", " ", ""]}) == pytest.approx(2 / 3)
    assert guess.others(["eine frau", "the woman", " ", ""], "de") == {"the woman"}
    for given, said in (
        ({"en": ["a"]}, "at least two"),
        ({"en": ["a"], "de": [" "]}, "language 'de': there is no sentence"),
    ):
        with pytest.raises(UserError, match=said):
            LanguageGuesser(given)
    with pytest.raises(UserError, match="no sentence to measure"):
        guess.accuracy({"de": [" "]})


def test_largest_differences():
    base = ["Ein Hund rennt.", "Zwei Männer.", "Ein Mann.", "Das rote Auto steht da.", "Anna schläft."]
    new = ["Ein Hund.", "Zwei Männer spielen hier Ball.", "Eine Frau.", "Das rote Auto steht da.", "Otto."]
    before, after = sentence_scores(base, REFERENCES), sentence_scores(new, [REFERENCES, [None] * 5])
    assert before[3] == after[3] == 100
    (study,) = analyse_outputs({"base": base, "new": new, "same": base}, [REFERENCES], None, [4], shown=2).studies
    found = study.rows
    assert {one["system_name"] for one in found} == {"new"}
    assert [one["difference"] for one in found] == sorted((one["difference"] for one in found), reverse=True)
    assert {one["line"] for one in found[:2]} == {2, 3}
    assert {one["line"] for one in found[2:]} == {1, 5}
    assert found[0]["difference"] == after[found[0]["line"] - 1] - before[found[0]["line"] - 1]
    assert (found[0]["baseline"], found[0]["source"]) == (base[found[0]["line"] - 1], None)
    (study,) = analyse_outputs({"base": base, "new": new}, [REFERENCES], None, [4], shown=1).studies
    assert [one["line"] for one in study.rows] == [found[0]["line"], found[-1]["line"]]
    assert not analyse_outputs({"base": base, "new": new}, [REFERENCES], None, [4], shown=0).studies
