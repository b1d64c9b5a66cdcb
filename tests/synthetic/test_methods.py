"""Methods and their options, the noise, and what is found wrong with outputs."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from hf_mlnmt import UserError
from hf_mlnmt.generation.synthetic.back_translation import Method
from hf_mlnmt.generation.synthetic.methods import Counts, Judge
from hf_mlnmt.generation.translating import detection
from hf_mlnmt.generation.translating.detection import Detected

WORDS = [f"w{i}" for i in range(40)]
TEXT = " ".join(WORDS)


def test_defaults_are_the_methods_own():
    assert Method("beam").to_dict() == {"name": "beam", "beams": 5}
    assert Method("top-k").to_dict() == {"name": "top-k", "temperature": 1.0, "top_k": 10, "seed": 1}
    assert Method("noised", drop=0.2).to_dict() == {
        "name": "noised", "beams": 5, "drop": 0.2, "replace": 0.1, "swap": 3, "filler": "_", "seed": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "sample"}, "did you mean 'sampling'"),
        ({"name": "beam", "top_k": 5}, "top_k is no option of the method beam, but of top-k"),
        ({"name": "greedy", "seed": 1}, "seed is no option of the method greedy"),
        ({"name": "noised", "drop": 1.0}, "drop must be at least 0 and below 1"),
        ({"name": "noised", "swap": -1}, "swap must be at least 0, not -1"),
        ({"name": "noised", "filler": "two words"}, "filler must be one word"),
        ({"name": "beam", "beams": 0}, "beams must be at least 1"),
        ({"name": "noised", "seed": 2**64}, "seed must be at most 18,446,744,073,709,551,615"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UserError, match=message):
        Method(**options)


def test_each_noise_by_itself():
    """Counts within five standard deviations over 500 lines; a word moves by at most `swap` places."""
    lines, bound = range(500), 5 * math.sqrt(500 * 40 * 0.2 * 0.8)
    dropped = [Method("noised", drop=0.2, replace=0.0, swap=0).change(TEXT, line).split() for line in lines]
    assert all(words == sorted(words, key=WORDS.index) for words in dropped)
    assert abs(sum(map(len, dropped)) - 500 * 40 * 0.8) < bound
    replaced = [Method("noised", drop=0.0, replace=0.2, swap=0).change(TEXT, line).split() for line in lines]
    assert all(word in (WORDS[i], "_") for words in replaced for i, word in enumerate(words))
    assert abs(sum(words.count("_") for words in replaced) - 500 * 40 * 0.2) < bound
    swapped = [Method("noised", drop=0.0, replace=0.0, swap=3).change(TEXT, line).split() for line in lines]
    moves = Counter(abs(i - WORDS.index(word)) for words in swapped for i, word in enumerate(words))
    assert set(moves) == {0, 1, 2, 3}
    assert all(sorted(words, key=WORDS.index) == WORDS for words in swapped)


def test_noise_follows_from_seed_and_line():
    method = Method("noised")
    assert method.change(TEXT, 7) == method.change(TEXT, 7)
    assert len({method.change(TEXT, line) for line in range(20)}) == 20
    assert method.change(TEXT, 7) != Method("noised", seed=2).change(TEXT, 7)
    assert all(Method("noised", drop=0.99).change("one", line) in ("one", "_") for line in range(20))
    assert method.change("", 1) == ""


@pytest.mark.parametrize(
    ("text", "output", "finished", "reason"),
    [
        ("", "", True, "empty or unreadable line of the text"),
        ("a b", "c\x00d", True, "control characters in the output"),
        ("a b", " ", True, "empty"),
        ("a b", "c d", False, "long"),
        ("a b", "a b c d e f g h i", True, "long"),
        ("a b c", "x x x x", True, "repeated"),
        ("a b c d e", "the dog the dog the dog the dog", True, "repeated"),
        ("A b", "a  B", True, "copied"),
        ("a b c", "x x x", True, None),
        ("a b", "a b c d e f g h", True, None),
        ("a b c", "xx x xx x", True, None),
    ],
)
def test_what_is_wrong_with_an_output(text, output, finished, reason):
    judge = Judge(("empty", "long", "repeated", "copied"), 3.0, Counts())
    assert judge.keeps(text, output, finished, output) == (reason is None)
    assert judge.counts.dropped == ({reason: 1} if reason else {})
    lenient = Judge((), 3.0, Counts())
    always = reason is not None and len(reason) > 10
    assert lenient.keeps(text, output, finished, output) != always, "only what can be of no use goes unasked"
    assert (lenient.counts.found == {reason: 1}) if reason else not lenient.counts.found


def test_an_output_in_the_language_of_the_text(monkeypatch):
    """Which py3langid tells (tests/serving); its model takes seconds to load."""
    found = {True: [Detected("en", 90.0), Detected("de", 0.0)], False: [Detected("de", 90.0), Detected("en", 0.0)]}
    monkeypatch.setattr(detection, "rank", lambda text, served: found["bicycle" in text])
    english, german = "a man is riding his bicycle through the streets of the old town", "zwei kleine Hunde spielen"
    german += " zusammen auf der großen grünen Wiese hinter dem Haus"
    judge = Judge(("language",), 3.0, Counts(), ("de", "en"))
    assert [judge.keeps(english, output, True, output) for output in (german, english[2:], "two dogs")] == [1, 0, 1]
    assert judge.counts.dropped == {"language": 1}
    assert Judge((), 3.0, Counts(), ("de", "en")).keeps(german, english, True, english)


def test_a_pair_that_was_there_before():
    judge = Judge(("duplicate",), 3.0, Counts())
    pairs = [("a", "x"), ("a", "y"), ("b", "x"), ("a", "x"), ("ax", ""), ("a", "x")]
    assert [judge.keeps(text, output, True, output) for text, output in pairs] == [True, True, True, False, True, False]
    assert judge.counts.dropped == {"duplicate": 2}
