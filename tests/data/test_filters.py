"""Filters: each reason alone, the counts add up, order is kept."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.filters import FilterReport, HeldOut, Overlap, PairFilter, Seen, plain


@pytest.mark.parametrize(
    ("settings", "pair", "reason"),
    [
        ({}, ("a", " "), "empty side"),
        ({}, ("", "\t"), "both sides empty"),
        ({}, ("a", "\u200b \u2060\u200e"), "empty side"),
        ({"min_length": 2}, ("a b", "c"), "shorter than 2 words"),
        ({"max_length": 3}, ("a b c", "a b c d"), "longer than 3 words"),
        ({"max_ratio": 2}, ("a", "a b c d"), "length ratio above 2"),
        ({"max_word": 5}, ("a", "abcdef"), "a word above 5 characters"),
        ({"drop_identical": True}, ("a b", "a b "), "target is a copy of the source"),
    ],
)
def test_each_reason(settings, pair, reason):
    assert PairFilter(**settings).reason(*pair) == reason


@pytest.mark.parametrize(
    ("settings", "pair"),
    [
        ({"drop_empty": False}, ("a", "")),
        ({"min_length": 2, "drop_empty": False}, ("", "a b")),
        ({"max_length": 3}, ("a b c", "a b c")),
        ({"max_ratio": 2}, ("a", "a b c")),
        ({"max_word": 5}, ("abcde", "a")),
        ({}, ("a b", "a b")),
    ],
)
def test_at_the_limit_a_pair_stays(settings, pair):
    assert PairFilter(**settings).reason(*pair) is None


WORDS = st.lists(st.sampled_from(["a", "b", "longer"]), max_size=6).map(" ".join)


@given(pairs=st.lists(st.tuples(WORDS, WORDS)))
def test_what_stays_is_a_subsequence_and_the_counts_add_up(pairs):
    report = FilterReport()
    keep = PairFilter(max_length=4, max_ratio=2, max_word=5, drop_duplicates=True, drop_identical=True)
    kept = list(keep(pairs, report))
    iterator = iter(pairs)
    assert all(pair in iterator for pair in kept)
    assert len(set(kept)) == len(kept) == report.kept
    assert report.read == len(pairs) == report.kept + report.dropped.total()


def test_duplicates_are_pairs_seen_before_and_not_the_same_characters():
    pairs = [("ab", "c"), ("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", ""), ("1 a", "b"), ("1", " ab"), ("ab", "x")]
    pairs += [("a\0x", "z"), ("a", "x\0z"), ("ab", "c")]
    report = FilterReport()
    kept = list(PairFilter(drop_duplicates=True, drop_empty=False, min_length=0)(pairs, report))
    assert kept == [pair for number, pair in enumerate(pairs) if number not in (2, 10)]
    assert report.dropped == {"duplicate": 2}


def test_text_is_filtered_by_what_looks_at_one_sentence():
    keep = PairFilter(min_length=2, max_length=3, max_ratio=2, max_word=4, drop_duplicates=True)
    report = FilterReport()
    texts = ["a b", "", "a", "a b c d", "a b", "a bcdef", "b a"]
    assert list(keep(texts, report)) == ["a b", "b a"]
    assert report.dropped == {
        "empty": 1, "shorter than 2 words": 1, "longer than 3 words": 1, "duplicate": 1, "a word above 4 characters": 1,
    }  # fmt: skip
    assert report.read == len(texts)
    assert str(report.table("sentences")).startswith("sentences read")
    assert list(PairFilter(drop_empty=False)([" ", "a"])) == [" ", "a"]


def test_filtering_is_lazy_and_starts_anew_each_time():
    keep = PairFilter(drop_duplicates=True)

    def endless():
        while True:
            yield "a", "b"

    assert next(keep(endless())) == next(keep(endless())) == ("a", "b")


def test_the_report_names_counts_shares_and_the_first_example():
    report = FilterReport()
    list(PairFilter(max_length=2)([("a", "b"), ("a b\x07 c", "d"), ("x y z w", "d"), ("", "b")], report))
    table = str(report.table()).splitlines()
    assert table[0].split() == ["pairs", "read", "4", "100.00%"]
    assert table[1].split() == ["pairs", "kept", "1", "25.00%"]
    assert table[2].endswith("2  50.00% a b\\x07 c ||| d")
    assert "empty side" in table[3]
    again = FilterReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert (again.read, again.kept, again.dropped) == (report.read, report.kept, report.dropped)
    assert str(again.table()).splitlines()[1] == table[1]
    assert str(FilterReport().table())


def test_bad_settings():
    with pytest.raises(UserError, match="below min_length"):
        PairFilter(min_length=5, max_length=4)
    with pytest.raises(UserError, match="at least 1, not"):
        PairFilter(max_ratio=0.5)


def test_a_set_of_hashes_is_a_set_in_8_bytes_each():
    draw, seen, known = np.random.default_rng(1), Seen(), set()
    for size in (1, 2, 4, 0, 5000, 300, 20_000, 7, 20_000):
        hashes = draw.integers(0, 9000, size, np.uint64) << np.uint64(50)
        fresh = []
        for number in hashes.tolist():
            fresh.append(number not in known)
            known.add(number)
        assert seen.add(hashes).tolist() == fresh
    assert sum(array.nbytes for arrays in seen._parts for array in arrays) == 8 * len(known)


def test_pairs_of_scored_sets_are_counted_and_left_out_while_a_corpus_is_read():
    """By case and punctuation, in every script: a first look is at ASCII letters alone."""
    scored = [("A dog.", "Ein Hund."), ("猫 3", "Katze 3"), ("İstanbul", "Istanbul")]
    corpus = [("a DOG!", "x"), scored[0], ("猫、3", "y"), ("i\u0307stanbul?", "Istanbul"), ("dog", "z"), ("Adog.", "w")]
    overlap = Overlap({"test": scored})
    assert list(overlap.watched(corpus)) == corpus
    (message,) = overlap.messages()
    counts = "exactly 1 sources, 2 targets, 1 pairs; without case and punctuation 3 sources, 2 targets, 2 pairs"
    assert message == f"holds, of the 3 pairs of test: {counts}, as: A dog. ||| Ein Hund.; İstanbul ||| Istanbul"
    assert list(overlap.watched(corpus[4:])) == corpus[4:]
    assert not list(overlap.messages())
    held = tuple(frozenset(map(plain, side)) for side in zip(*scored))
    assert list(HeldOut(held=held)(corpus, report := FilterReport())) == corpus[4:]
    assert report.dropped == {"in a development or test set": 4}
