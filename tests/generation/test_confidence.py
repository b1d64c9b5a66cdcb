"""Confidences against their definitions; a folder calibrated on a development set, and what translate does with it."""

import itertools
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.generation import Hypothesis, Quality, TranslationPipeline, quality_of
from hf_mlnmt.generation.choosing.confidence import calibrate, line_of_documents, words_in_reference
from hf_mlnmt.generation.translating.hypotheses import CONFIDENCE, Calibration, least_by_word


def run_command(*words, input=None):
    return CliRunner().invoke(app, [str(word) for word in words], input=input)


def some(seed=1, count=400):
    draws = np.random.default_rng(seed)
    scores = -draws.gamma(2, 0.2, count)
    return scores, np.clip(1 + scores + 0.1 * draws.standard_normal(count), 0, 1), draws


def test_of_a_translation_it_is_the_quality_that_its_score_had():
    scores, qualities, draws = some()
    words = [(float(m), bool(draws.random() < 1 / (1 + np.exp(-(2 * m + 3))))) for m in -draws.gamma(1, 1, 20_000)]
    found = calibrate(scores.tolist(), qualities.tolist(), words)
    for score in (-0.2, -0.5, -0.8):
        near = np.abs(scores - score) < 0.1
        assert found.of_translation(score) == pytest.approx(qualities[near].mean(), abs=0.05)
    grid = [found.of_translation(score) for score in np.linspace(-2, 0, 50)]
    assert grid == sorted(grid)
    assert found.word == pytest.approx([2, 3], abs=0.2)
    assert found.of_word(-1.0) == pytest.approx(1 / (1 + np.exp(-(found.word[1] - found.word[0]))))
    assert found.sentences == 400
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()


def test_extremes_are_numbers():
    found = calibrate(*(values.tolist() for values in some()[:2]), [(-0.1, True)] * 5)
    assert 0 <= found.of_translation(-1e6) <= found.of_translation(0.0) <= 1
    assert found.of_word(-1e6) == pytest.approx(1)  # all words of the development set were right
    assert Calibration([0.0], [0.5], [1.0, 0.0], 100).of_word(-1e6) == pytest.approx(0)


def test_too_few_sentences_are_refused():
    with pytest.raises(UserError, match="99 translations are too few"):
        calibrate([-1.0] * 99, [0.5] * 99, [])


def test_words_that_the_reference_has_at_their_place():
    assert words_in_reference("a red dog runs .", "the red dog is .") == [False, True, True, False, True]
    assert words_in_reference("", "a") == []


def test_a_word_is_as_sure_as_its_least_sure_subword(pipeline):
    tokenizer = pipeline.parts.target
    text = "the dogs play"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    logs = [-0.1 * (1 + i) for i in range(len(ids))]
    least = least_by_word(tokenizer, ids, logs, text)
    starts = [len(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in ("", "the", "the dogs", text)]
    assert least == pytest.approx([min(logs[a:b]) for a, b in itertools.pairwise(starts)])


@pytest.mark.parametrize(
    "damaged", [{}, 5, {"scores": [0, -1], "values": [0, 1]}, {"word": [1]}, {"values": [0.5, float("nan")]}]
)
def test_a_damaged_calibration_is_refused(damaged, pipeline, monkeypatch):
    good = calibrate(*(values.tolist() for values in some()[:2]), [(-0.1, True)]).to_dict()
    given = {**good, **damaged} if isinstance(damaged, dict) and damaged else damaged
    monkeypatch.setattr(pipeline.model.generation_config, CONFIDENCE, given, raising=False)
    with pytest.raises(UserError, match="is no calibration"):
        pipeline("a")


@pytest.fixture(scope="module")
def calibrated(ours, tmp_path_factory):
    """A copy of a toy's folder, calibrated on its own translations, of which every third is another's."""
    import shutil

    folder = tmp_path_factory.mktemp("calibrated") / "model"
    shutil.copytree(ours, folder)
    words = ["dog", "man", "cat", "ball", "men", "red", "green", "women", "plays", "house", "tree"]
    texts = [f"the {word} sees the {other} ." for word in words for other in words]
    right = TranslationPipeline.from_pretrained(str(folder))(texts, num_beams=2, max_new_tokens=12)
    right = [text if number % 3 else "something else" for number, text in enumerate(right)]
    for name, lines in (("source", texts), ("reference", right)):
        (folder.parent / name).write_text("\n".join([*lines, ""]), "utf-8")
    options = ["--source", folder.parent / "source", "--reference", folder.parent / "reference"]
    done = run_command("model", "calibrate", folder, *options, "--beams", 2, "--max-new-tokens", 12)
    assert done.exit_code == 0, done.output
    return folder


def test_a_calibrated_folder(calibrated):
    kept = json.loads((calibrated / "generation_config.json").read_text())[CONFIDENCE]
    assert kept["sentences"] == 121
    settings = json.loads((calibrated / "generation_config.json").read_text())
    sides = [(calibrated.parent / name).read_text("utf-8").splitlines() for name in ("reference", "source")]
    assert settings["length_ratio"] == round(sum(map(len, sides[0])) / sum(map(len, sides[1])), 3)
    translate = TranslationPipeline.from_pretrained(str(calibrated))
    asked = {"num_beams": 2, "max_new_tokens": 12, "confidence": True}
    (best,) = translate("the dog sees the man .", **asked)
    assert best.confidence == pytest.approx(Calibration.of(translate.model.generation_config).of_translation(
        best.log_probability / best.length))  # fmt: skip
    assert len(best.word_confidences) == len(best.text.split())


def test_translate_marks_or_leaves_what_it_is_not_sure_of(calibrated):
    text = "the dog sees the man ."
    asked = ["--beams", 2, "--max-new-tokens", 12]
    plain = run_command("translate", calibrated, *asked, input=f"{text}\n").stdout
    marked = run_command("translate", calibrated, *asked, "--below", 1, "--mark", "?? ", input=f"{text}\n").stdout
    assert marked == f"?? {plain}"
    assert (
        run_command("translate", calibrated, *asked, "--below", 1, "--leave", input=f"{text}\n").stdout == f"{text}\n"
    )
    sure = run_command("translate", calibrated, *asked, "--below", 0, "--leave", input=f"{text}\n").stdout
    assert sure == plain
    record = json.loads(run_command("translate", calibrated, *asked, "--confidence", "--jsonl", input=text).stdout)
    assert 0 <= record["confidence"] <= 1
    for wrong in (["--below", 0.5], ["--leave"], ["--below", 0.5, "--leave", "--mark", "x"], ["--confidence"]):
        assert run_command("translate", calibrated, *wrong, input=text).exit_code


def test_the_quality_of_a_document():
    """The mean of the texts' confidences, weighted by characters; what a memory had is sure; the thresholds."""
    known = Calibration([-2.0, 0.0], [0.0, 1.0], [1.0, 0.0], 100, [80.0, 10.0, 3.0])
    texts = [Hypothesis("a" * 30, -1, -4.0, 4), Hypothesis("b" * 60, -1, -1.0, 2), Hypothesis("c" * 10, 0, 0.0, 0)]
    found = Quality(known, [*texts, Hypothesis("", 0, 0.0, 0)])
    assert found.chrf == pytest.approx(80 * (30 * 0.5 + 60 * 0.75 + 10) / 100 + 10)
    assert found.to_dict() == {
        **{"projected_chrf": 66.0, "deviation": 3.0, "verdict": "usable", "texts": 3},
        **{"usable_from": 60.0, "anew_below": 40.0},
    }
    verdicts = {
        score: Quality(known, [Hypothesis("a", -1, score, 1)]).verdict for score in (-0.75, -0.76, -1.25, -1.26)
    }
    assert [*verdicts.values()] == ["usable", "needs work", "needs work", "start anew"]
    assert Quality(known).chrf == 10
    assert Quality(known, [Hypothesis("a", -1, 0.0, 1)]).chrf == 90
    text = "the dog sees a cat"
    best = [Hypothesis(text, -1, -0.2 * 5, 5)] * 40 + [Hypothesis(text, -1, -1.6 * 5, 5)] * 40  # confidences .9 and .2
    a, b, deviation = line_of_documents(known, best, [text] * 40 + ["xyzzy"] * 40)
    assert (a * 0.9 + b, a * 0.2 + b, deviation) == (pytest.approx(100, abs=0.1), pytest.approx(0, abs=0.1), 0)


def test_the_projected_quality_is_that_of_documents(calibrated):
    """On the development set itself; translate says the same as Python, of lines and of a document."""
    from sacrebleu import CHRF

    texts, right = ((calibrated.parent / name).read_text().splitlines() for name in ("source", "reference"))
    translate = TranslationPipeline.from_pretrained(str(calibrated))
    best = [row[0] for row in translate(texts, num_beams=2, max_new_tokens=12, confidence=True)]
    found = quality_of(translate.model, best)
    assert quality_of(translate.model, [*best, Hypothesis("a", 0.0, 0.0, 1)]) is None
    assert found.chrf == pytest.approx(CHRF().corpus_score([each.text for each in best], [right]).score, abs=5)
    source = calibrated.parent / "source"
    asked = ["--beams", 2, "--max-new-tokens", 12, "--summary"]
    assert f"{found}\n" in run_command("translate", calibrated, source, *asked).stderr
    (page := calibrated.parent / "page.md").write_text("\n\n".join(texts))
    said = run_command("translate", calibrated, page, *asked).stderr
    assert f"of {len(texts)} texts: {found.verdict} (usable: from 60, needs work: from 40, start anew: below)" in said


def test_without_a_calibration_there_is_no_confidence(pipeline):
    with pytest.raises(UserError, match="is not calibrated"):
        pipeline("a", confidence=True)
    assert quality_of(pipeline.model, []) is None


def test_log_probabilities_of_given_translations_are_those_of_the_search(pipeline):
    """Whatever the decoder started with."""
    from hf_mlnmt.generation.translating.batches import generate, token_logs_of

    sequences, start = [pipeline.parts.source(text)["input_ids"] for text in ("the dog", "a man plays")], 5
    asked = {"num_beams": 2, "num_return_sequences": 1, "max_new_tokens": 6}
    for more in ({}, {"decoder_start_token_id": start}, {"decoder_input_ids": torch.tensor([[start], [start + 1]])}):
        scored = [row[0] for row in generate(pipeline.parts, sequences, {**asked, **more}, 0, True)]
        found = token_logs_of(pipeline.parts, sequences, scored, {**asked, **more}, 0).sum(1).tolist()
        assert found == pytest.approx([each.log_probability for each in scored], abs=1e-4)


def test_where_no_word_was_right_none_is_sure():
    found = calibrate(*(values.tolist() for values in some()[:2]), [(-0.1, False)] * 5)
    assert found.of_word(0.0) == pytest.approx(0, abs=1e-6)
