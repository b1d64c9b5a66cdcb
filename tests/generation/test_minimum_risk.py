"""Minimum Bayes risk: against its definition pair by pair; utilities, commands, and the pipeline's option."""

import math
import sys
from collections import Counter

import numpy as np
import pytest
import sacrebleu

from hf_mlnmt import UserError
from hf_mlnmt.generation.choosing.commands import LineScorer
from hf_mlnmt.generation.choosing.minimum_risk import MinimumRisk, expected_utilities, utility_of
from hf_mlnmt.generation.translating.options import DecodingOptions

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


@pytest.mark.parametrize(
    ("candidate", "reference", "expected"),
    [
        (
            "a man rides a bike",
            "a man rides his old bike",
            (4 / 5 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25 * math.exp(1 - 6 / 5),
        ),
        ("the cat", "the cat", 1.0),
        ("the cat.", "the cat .", (1 / 2 * 1 / 2) ** 0.25 * math.exp(1 - 3 / 2)),
        ("", "the cat", 0.0),
    ],
)
def test_bleu_of_a_pair_adds_one_to_counts_of_several_words(candidate, reference, expected):
    assert utility_of("bleu")("", [candidate], [reference])[0][0] == pytest.approx(100 * expected, abs=1e-4)


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
        MinimumRisk(utility).best("x", SAMPLES)


def command(tmp_path, text):
    file = tmp_path / "score.py"
    file.write_text(
        f"import sys\nfor number, line in enumerate(sys.stdin):\n    parts = line[:-1].split('\\t')\n{text}"
    )
    return f"{sys.executable} -u {file}"


def test_a_command_scores_lines(tmp_path):
    """One that died is started again."""
    text = "    print(len(parts[0]) - len(parts[-1]))\n    if number == 2: sys.exit()\n"
    scorer = LineScorer(command(tmp_path, text), "utility")
    assert scorer([("abc", "x", "a"), ("", "tab\there\nand line", "abcd")]) == [2.0, -4.0]
    assert scorer([("a", "b", "c")]) == [0.0]
    assert scorer([("a", "b", "cd")] * 3) == [-1.0] * 3
    scorer.close()
    with pytest.raises(UserError, match="cannot be started"):
        LineScorer("/no/such/program at all", "utility")([("a",)])


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


def test_beams_are_candidates_too(pipeline):
    texts = ["the dog sees the ball .", "a cat ."]
    beams = pipeline(texts, num_beams=6, num_return_sequences=4)
    values = [by_definition(overlap, [each.text for each in row]) for row in beams]
    expected = [row[int(np.argmax(of_row))].text for row, of_row in zip(beams, values)]
    assert pipeline(texts, mbr=4, num_beams=6, utility=overlap) == expected


def test_sentences_of_a_text_have_the_mean_of_their_utilities(pipeline):
    sentences = ["The dog sees the ball.", "A cat plays."]
    options = {"mbr": 4, "num_beams": 4, "utility": overlap, "num_return_sequences": 2}
    alone, both = pipeline(sentences, **options), pipeline(" ".join(sentences), split="sentences", **options)
    assert [each.score for each in both] == pytest.approx([(a.score + b.score) / 2 for a, b in zip(*alone)])
    assert both[0].text == " ".join(best[0].text for best in alone)


def encoder(folder):
    """A BERT, small, with our tokenizer."""
    import torch
    from helpers.toy_translators import bpe
    from transformers import BertConfig, BertModel

    torch.manual_seed(5)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertModel(BertConfig(vocab_size=len(tokenizer := bpe()), **sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval(), tokenizer


@pytest.mark.parametrize("ours_too", [True, False])
def test_embeddings_of_any_model_against_the_pairwise_definition(ours, tmp_path, ours_too):
    import torch

    from hf_mlnmt.generation.choosing.embedding import embed_texts
    from hf_mlnmt.generation.translating.loading import load

    texts = ["A dog.", "Two men play with the ball.", "A dog.", "The red house.", "A child plays."]
    if ours_too:
        vectors = embed_texts(load(str(ours), "cpu"), texts, pooling="mean")
    else:
        model, tokenizer = encoder(tmp_path)
        with torch.no_grad():
            states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
        vectors = np.stack([of_text.mean(0).numpy() for of_text in states])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    utility = utility_of(f"embeddings={ours if ours_too else tmp_path}")
    assert expected_utilities(utility, "", texts, texts) == pytest.approx((unit @ unit.T).mean(1), abs=1e-5)
    assert utility("", ["", *texts], texts)[0][0] == pytest.approx(0 if ours_too else utility("", [""], texts)[0][0])


def test_a_command_is_started_once_for_all_calls(pipeline, tmp_path):
    number = command(tmp_path, "    print(len(parts[1]))\n")
    options = {"mbr": 2, "num_beams": 2, "utility": number}
    first, _ = pipeline("a cat .", **options), pipeline("a dog .", **options)
    asked = DecodingOptions(**options)
    assert pipeline.chooser(asked) is pipeline.chooser(asked)
    assert first == max(pipeline("a cat .", num_beams=2, num_return_sequences=2), key=lambda each: len(each.text)).text


def test_choose_takes_files_of_systems_columns_and_lists(tmp_path, capsys):
    from typer.testing import CliRunner

    from hf_mlnmt.cli import app

    def chosen(*words):
        said = CliRunner().invoke(app, ["choose", *map(str, words), "--utility", "bleu"])
        if said.exception:
            raise said.exception
        return said.stdout

    rows = [["a man rides a bike", "a cat", "a man rides a bicycle"], ["the dog", "the red dog", "the dog runs"]]
    for number, lines in enumerate(zip(*rows)):
        (tmp_path / f"{number}.de").write_text("\n".join(lines) + "\n")
    (tmp_path / "columns.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    listed = [f"{i} ||| {text} ||| -1.5\n" for i, row in enumerate(rows) for text in row]
    (tmp_path / "list").write_text("".join(listed))
    expected = "".join(f"{MinimumRisk('bleu').best('', row)}\n" for row in rows)
    assert chosen(*(tmp_path / f"{number}.de" for number in range(3))) == expected
    assert chosen(tmp_path / "columns.tsv") == chosen(tmp_path / "list") == expected
    assert chosen(tmp_path / "list", "-o", tmp_path / "out") == ""
    assert (tmp_path / "out").read_text() == expected
    (tmp_path / "short").write_text("one line\n")
    with pytest.raises(UserError, match=r"short: translations of 1 texts, .*list: of 2"):
        chosen(tmp_path / "list", tmp_path / "short")
    (tmp_path / "list").write_text("".join(listed[:2]) + "5 ||| x ||| 0\n")
    with pytest.raises(UserError, match=r"list, line 3: .*expected number, 0 or one more"):
        chosen(tmp_path / "list")
    with pytest.raises(UserError, match="1 lines, and candidates of 2 texts"):
        chosen(tmp_path / "columns.tsv", "-s", tmp_path / "short")


def test_equal_texts_are_one_candidate_at_their_first_place_and_the_last_stands_again():
    choose_among = MinimumRisk(overlap)
    for candidates, expected in (
        (["x", "a b", "a b", "a c"], [1, 3, 0, 0, 0]),
        (["a b", "x", "a b"], [0, 1, 1]),
        (["a", "a"], [0, 0, 0]),
    ):
        assert [place for place, _ in choose_among("", candidates, len(expected))] == expected
