"""Counts of sentences, and tests over seeds: enumeration with few sentences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import Protocol, score
from hf_mlnmt.evaluation.scores import count_sentences, products, scores_of_sums
from hf_mlnmt.evaluation.significance import (
    bootstrap_test,
    compare_seeds,
    pack_counts,
    randomisation_test,
    unpack_counts,
    welch_test,
)


@pytest.fixture(scope="module")
def counts(systems, references):
    return {name: count_sentences(systems[name], references) for name in "abc"}


def test_sums_that_float32_lacks_are_exact():
    counts = np.array([[2**24], [1], [0]])
    assert products(np.ones((1, 3), bool), counts).tolist() == [[2**24 + 1]]
    assert products(np.ones((1, 300), np.int64), np.full((300, 1), 200, np.uint8)).tolist() == [[60_000]]


@pytest.mark.parametrize("protocol", ["cased", "classic"])
def test_sums_give_the_scores(systems, references, protocol) -> None:
    options = {"protocol": protocol, "language": "de"}
    expected = score(systems["b"], references, **options, bootstrap=0)
    for metric, array in count_sentences(systems["b"], references, Protocol(protocol, "de")).items():
        assert scores_of_sums(metric, array.sum(0)) == pytest.approx(expected[metric], abs=1e-9)
        some = np.stack([array[:7].sum(0), array[3:40].sum(0)])
        for found, chosen in zip(scores_of_sums(metric, some), (slice(7), slice(3, 40)), strict=True):
            part = score(systems["b"][chosen], references[chosen], **options, bootstrap=0)
            assert found == pytest.approx(part[metric], abs=1e-9)


def test_sums_that_must_be_smoothed() -> None:
    for output, reference in (("one two", "three four"), ("", "some words"), ("a b", "a b"), ("x", "a b c d e f g h")):
        for metric, array in count_sentences([output], [reference]).items():
            expected = score([output], [reference], metrics=[metric], bootstrap=0)[metric]
            assert scores_of_sums(metric, array.sum(0)) == pytest.approx(expected, abs=1e-9)


def test_randomisation_over_seeds_is_the_share_of_all_exchanges() -> None:
    draw = np.random.default_rng(0)
    base, own = (list(draw.integers([0, 1], [9, 11], (2, 3, 2))) for _ in range(2))  # 2 seeds, 3 sentences
    real = _mean_ter(base) - _mean_ter(own)
    as_large = 0
    for swaps in itertools.product((False, True), repeat=6):
        swap = np.array(swaps).reshape(2, 3, 1)
        pseudo = [np.where(swap, a, b) for a, b in ((own, base), (base, own))]
        as_large += abs(_mean_ter(pseudo[0]) - _mean_ter(pseudo[1])) >= abs(real) - 1e-9
    found = randomisation_test("TER", base, own, 40_000, 5)
    assert found == pytest.approx(as_large / 64, abs=5 * (0.25 / 40_000) ** 0.5)


def _mean_ter(runs) -> float:
    return float(np.mean([100 * run[:, 0].sum() / run[:, 1].sum() for run in runs]))


def test_bootstrap_over_seeds_draws_the_same_sentences_for_all() -> None:
    draw = np.random.default_rng(1)
    base, own = (list(draw.integers(1, 9, (3, 5, 2))) for _ in range(2))
    indices = np.random.default_rng(7).choice(5, size=(200, 5), replace=True)
    differences = np.array([abs(_mean_ter([r[i] for r in own]) - _mean_ter([r[i] for r in base])) for i in indices])
    real = abs(_mean_ter(own) - _mean_ter(base))
    expected = ((differences - differences.mean() > real).sum() + 1) / 201
    assert bootstrap_test("TER", base, own, 200, 7) == expected


def test_more_seeds_of_the_same_difference_say_more(counts) -> None:
    one = compare_seeds("BLEU", [counts["a"]["BLEU"]], [counts["b"]["BLEU"]], trials=500, bootstrap=50)
    doubled = compare_seeds("BLEU", [counts["a"]["BLEU"]] * 2, [counts["b"]["BLEU"]] * 2, trials=500, bootstrap=50)
    assert doubled["difference"] == pytest.approx(one["difference"])
    assert doubled["approximate_randomisation"] <= one["approximate_randomisation"]
    assert doubled["paired_bootstrap"] == one["paired_bootstrap"]  # a seed drawn twice is no second seed to it


def test_equal_runs_and_few_sentences_have_no_p_value(counts) -> None:
    a, b = counts["a"]["BLEU"], counts["b"]["BLEU"]
    same = compare_seeds("BLEU", [a, b], [a, b])
    few = compare_seeds("BLEU", [a[:50]], [b[:50]])
    for result in (same, few):
        assert result["approximate_randomisation"] is result["paired_bootstrap"] is result["welch"] is None
    assert same["difference"] == 0
    assert few["difference"] != 0


def test_runs_must_match(counts) -> None:
    a = counts["a"]["BLEU"]
    with pytest.raises(UserError, match="2 runs beside 1 of the baseline: give both the same seeds"):
        compare_seeds("BLEU", [a], [a, a])
    with pytest.raises(UserError, match="different test sets"):
        compare_seeds("BLEU", [a], [a[:-1]])


def test_welch() -> None:
    assert welch_test([1, 2, 3.5], [4, 3, 6.0]) == pytest.approx(0.13341535915437838)  # R: t.test, by SciPy here
    assert welch_test([1.0], [2.0]) is None
    assert welch_test([1.0, 1.0], [2.0, 2.0]) == 0


def test_the_file_keeps_every_number_and_gives_the_same_bytes(counts) -> None:
    counts = {"val": {"cased": counts["a"]}, "a/b": {"classic": {"TER": np.array([[1.5, 2], [300, 4]])}}}
    packed = pack_counts(counts)
    again = unpack_counts(packed, "x")
    assert again.keys() == counts.keys()
    for test, protocols in counts.items():
        for protocol, arrays in protocols.items():
            for metric, array in arrays.items():
                np.testing.assert_array_equal(again[test][protocol][metric], array)
    assert pack_counts(again) == packed


@pytest.mark.parametrize("content", [b"", b"not gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"])
def test_another_file_is_refused(content) -> None:
    with pytest.raises(UserError, match="x: not a file of sentence counts"):
        unpack_counts(content, "x")
