"""Minimum Bayes risk: against its definition pair by pair; utilities, pruning, commands, and the pipeline's option."""

import sys
from collections import Counter

import numpy as np
import pytest
import sacrebleu

from hf_mlnmt import UserError
from hf_mlnmt.generation import minimum_risk
from hf_mlnmt.generation.commands import LineScorer
from hf_mlnmt.generation.minimum_risk import MinimumRisk, bleu, choose, expected_utilities, utility_of
from hf_mlnmt.generation.options import DecodingOptions

SAMPLES = ["a man rides a bike", "a man rides a bicycle", "man on bike", "a man rides a bike", "", "the cat", "a a a a"]


def overlap(source, candidates, references):
    """The share of a candidate's words that a reference has."""
    sets = [[set(text.split()) for text in side] for side in (candidates, references)]
    return [[len(mine & theirs) / max(1, len(mine)) for theirs in sets[1]] for mine in sets[0]]


def by_definition(utility, texts):
    """Equation 1, a pair at a time."""
    return [np.mean([utility("", [c], [r])[0][0] for r in texts]) for c in texts]


@pytest.mark.parametrize("utility", [overlap, utility_of("bleu"), utility_of("chrf-pairwise")])
def test_the_expected_utility_is_the_mean_over_all_samples_equal_ones_too(utility):
    expected = by_definition(utility, SAMPLES)
    assert expected_utilities(utility, "", SAMPLES, SAMPLES) == pytest.approx(expected, abs=1e-4)
    ranked = MinimumRisk(utility)("", SAMPLES, 3)
    different = dict(zip(SAMPLES, expected))
    best = sorted(different.values(), reverse=True)[:3]
    assert [value for _, value in ranked] == pytest.approx(best, abs=1e-4)
    assert SAMPLES[ranked[0][0]] == max(different, key=different.get)


def test_aggregated_chrf_is_fastchrf_s_of_all_samples_equal_ones_too():
    import fastchrf

    expected = fastchrf.aggregate_chrf([sorted(set(SAMPLES))], [SAMPLES])[0]
    assert expected_utilities(utility_of("chrf"), "", sorted(set(SAMPLES)), SAMPLES) == pytest.approx(expected)


def test_chrf_of_a_pair_is_sacrebleu_s():
    value = utility_of("chrf-pairwise")("", ["a man rides"], ["the man rides a bike"])[0][0]
    assert value == pytest.approx(sacrebleu.sentence_chrf("a man rides", ["the man rides a bike"]).score)


@pytest.mark.parametrize("candidate", SAMPLES)
def test_bleu_of_a_pair_is_sacrebleu_s_with_one_added(candidate):
    reference = "a man rides his old bike and a cat"
    expected = sacrebleu.BLEU(smooth_method="add-k", smooth_value=1, effective_order=False, tokenize="none")
    assert bleu([candidate], [reference])[0][0] == pytest.approx(
        expected.sentence_score(candidate, [reference]).score if candidate else 0.0, abs=1e-4
    )


def test_pruning_keeps_the_best_and_compares_less():
    draws, pairs = np.random.default_rng(1), 0
    truth = np.linspace(0, 1, 64)
    texts = [str(i) for i in range(64)]

    def noisy(source, candidates, references):
        nonlocal pairs
        pairs += len(candidates) * len(references)
        return [[truth[int(c)] + 0.1 * draws.standard_normal() for _ in references] for c in candidates]

    values = expected_utilities(noisy, "", texts, texts, prune=0.9)
    assert int(values.argmax()) >= 60
    assert pairs < 64 * 64 / 2
    assert np.isinf(values).sum() > 40


@pytest.mark.parametrize(
    ("utility", "message"),
    [
        ("chfr", "unknown 'chfr'.*chrf"),
        (lambda *_: [[1.0]], "shape"),
        (lambda s, c, r: [[np.nan] * len(r)] * len(c), "not finite"),
    ],
)
def test_a_wrong_utility_is_one_message(utility, message):
    with pytest.raises(UserError, match=message):
        choose(["x"], [SAMPLES], utility)


def test_without_candidates_there_is_nothing_to_choose():
    with pytest.raises(UserError, match="text 2: there are none"):
        choose(["x", "y"], [["a"], []], overlap)


def command(tmp_path, text):
    file = tmp_path / "score.py"
    file.write_text(
        f"import sys\nfor number, line in enumerate(sys.stdin):\n    parts = line[:-1].split('\\t')\n{text}"
    )
    return f"{sys.executable} -u {file}"


def test_a_command_scores_lines(tmp_path):
    scorer = LineScorer(command(tmp_path, "    print(len(parts[0]) - len(parts[-1]))\n"), "utility")
    assert scorer([("abc", "x", "a"), ("", "tab\there\nand line", "abcd")]) == [2.0, -4.0]
    assert scorer([("a", "b", "c")]) == [0.0]
    scorer.close()


def test_a_command_that_died_is_started_again(tmp_path):
    scorer = LineScorer(command(tmp_path, "    print(number)\n    if number == 2: sys.exit()\n"), "utility")
    assert scorer([("a",)] * 3) == [0.0, 1.0, 2.0]
    assert scorer([("a",)]) == [0.0]
    scorer.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("    print('nan')\n", "'nan' for line 1, not a number"),
        ("    sys.exit()\n", "ended after 0 of 3 lines, twice"),
        ("    print(1); number == 1 and sys.exit()\n", "ended after 2 of 3 lines, twice"),
        ("    pass\n", "wrote nothing for 0.5 s"),
    ],
)
def test_a_command_that_fails_is_one_message(tmp_path, text, message):
    scorer = LineScorer(command(tmp_path, text), "utility", seconds=0.5)
    with pytest.raises(UserError, match=message):
        scorer([("a",)] * 3)
    scorer.close()


def test_lines_that_nobody_asked_for_are_refused(tmp_path):
    scorer = LineScorer(command(tmp_path, "    print(1)\n    print(2)\n    print(3)\n"), "utility")
    assert scorer([("a",)]) == [1.0]
    with pytest.raises(UserError, match="for which there is no line"):
        while True:  # until its second number has arrived
            scorer([])
    scorer.close()


def test_no_such_command():
    with pytest.raises(UserError, match="cannot be started"):
        LineScorer("/no/such/program at all", "utility")([("a",)])


def test_the_pipeline_chooses_among_its_samples(pipeline):
    texts = ["the dog sees the ball .", "", "a cat ."]
    drawn = pipeline(texts, do_sample=True, draws="row", num_return_sequences=16, seed=3)
    chosen = pipeline(texts, mbr=16, utility=overlap, seed=3)
    for best, samples in zip(chosen, drawn):
        counts = Counter(sample.text for sample in samples)
        assert best in counts
        values = by_definition(overlap, [sample.text for sample in samples])
        assert values[[sample.text for sample in samples].index(best)] == pytest.approx(max(values))
    ranked = pipeline(texts, mbr=16, utility=overlap, num_return_sequences=2, seed=3)
    assert [two[0].text for two in ranked] == chosen
    assert ranked[0][0].score >= ranked[0][1].score


@pytest.mark.parametrize(
    "asked",
    [
        {"mbr": 8, "num_beams": 4},
        {"mbr": 8, "do_sample": True},
        {"mbr": 8, "num_return_sequences": 9},
        {"mbr": 8, "draws": "text", "num_return_sequences": 1},
        {"utility": "bleu"},
        {"mbr": 1},
        {"min_p": 0.1},
        {"mbr": 8, "epsilon_cutoff": 1.5},
    ],
)
def test_what_does_not_go_together_is_refused(asked):
    with pytest.raises(UserError):
        DecodingOptions(**asked)


def test_names_that_the_help_shows_are_those_that_there_are():
    from dataclasses import fields

    shown = next(field for field in fields(DecodingOptions) if field.name == "utility").metadata["choices"]
    assert tuple(shown) == minimum_risk.NAMES
