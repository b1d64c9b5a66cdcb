"""Weights of a reranker: the best step along a line, and the best weights, against brute force; the command."""

import json
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.toy_translators import SENTENCES, WORDS, bpe, our_model
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.analysis.tuning import best_along, candidates_of, search
from hf_mlnmt.cli import app
from hf_mlnmt.evaluation import score
from hf_mlnmt.generation import TranslationPipeline


def some(seed, sentences=12, most=5, features=2):
    """Candidates that are the reference with some words replaced; features that know of that, with noise."""
    draw = np.random.default_rng(seed)
    references = [" ".join(draw.choice(WORDS, 8)) for _ in range(sentences)]
    rows = []
    for reference in references:
        rows.append([])
        for _ in range(draw.integers(2, most + 1)):
            wrong = draw.random(8) < draw.random()
            text = " ".join(np.where(wrong, draw.choice(WORDS, 8), reference.split()))
            noisy = tuple(draw.standard_normal(features) * 2 - wrong.sum())
            rows[-1].append(SimpleNamespace(text=text, features=noisy))
    return rows, references


def chosen(rows, weights):
    return [max(row, key=lambda each: float(np.dot(each.features, weights))).text for row in rows]


@pytest.mark.parametrize("metric", ["BLEU", "chrF"])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_step_along_a_line_is_that_of_brute_force(metric, seed):
    rows, references = some(seed, features=3)
    weights, direction = np.random.default_rng(seed).standard_normal((2, 3))
    crossings = sorted(
        float(np.dot(np.subtract(b.features, a.features), weights)) / step
        for row in rows
        for a in row
        for b in row
        if (step := float(np.dot(np.subtract(a.features, b.features), direction)))
    )
    middles = [crossings[0] - 1, *((a + b) / 2 for a, b in pairwise(crossings)), crossings[-1] + 1]
    outputs = {tuple(chosen(rows, weights + t * direction)) for t in middles}
    expected = max(score(list(lines), references, metrics=[metric], bootstrap=0)[metric] for lines in outputs)
    step, found = best_along(candidates_of(rows, references, metric, None), weights, direction, metric)
    assert found == pytest.approx(expected)
    lines = chosen(rows, weights + step * direction)
    assert score(lines, references, metrics=[metric], bootstrap=0)[metric] == pytest.approx(expected)


def test_the_weights_found_are_those_of_brute_force_and_the_same_again():
    rows, references = some(7, sentences=20)
    candidates = candidates_of(rows, references, "chrF", None)
    weights = search(candidates, np.array([1.0, 0.0]), "chrF", 3)
    angles = np.linspace(0, 2 * math.pi, 3_000)
    expected = max(candidates.score(np.array([math.cos(a), math.sin(a)]), "chrF") for a in angles)
    assert candidates.score(weights, "chrF") >= expected - 1e-6 > candidates.score(np.array([1.0, 0.0]), "chrF")
    assert (search(candidates, np.array([1.0, 0.0]), "chrF", 3) == weights).all()
    assert np.abs(weights).max() == 1


def test_candidates_that_differ_in_nothing_leave_the_weights():
    rows = [[SimpleNamespace(text="a b", features=(1.0, 2.0))] * 2] * 3
    assert search(candidates_of(rows, ["a b"] * 3, "BLEU", None), np.array([1.0, 0.0]), "BLEU", 1).tolist() == [1, 0]


def test_the_command_says_what_the_file_was_made_from(tmp_path):
    model = str(tmp_path / "model")
    our_model(len(tokenizer := bpe())).save_pretrained(model)
    tokenizer.save_pretrained(model)
    texts = [*SENTENCES[:100], "", SENTENCES[100]]
    (tmp_path / "val.en").write_text("\n".join(texts) + "\n")
    (tmp_path / "val.de").write_text("\n".join(text for text in texts) + "\n")

    def run(name, *words):
        words = ["-s", tmp_path / "val.en", "-r", tmp_path / "val.de", "-o", tmp_path / name, "-b", 4, *words]
        said = CliRunner().invoke(app, ["model", "reranker", model, *map(str, words), "--max-new-tokens", "6"])
        if said.exception:
            raise said.exception
        return json.loads((tmp_path / name).read_text())

    made = run("r.json", "--feature", "score", "--feature", "length", "--metric", "chrF")
    assert run("again.json", "--feature", "score", "--feature", "length", "--metric", "chrF") == made
    said, real = made["made_from"], [i for i, text in enumerate(texts) if text]
    pipeline = TranslationPipeline.from_pretrained(model, device="cpu")
    references = [texts[i] for i in real]
    for name, options in (("search_alone", {"num_beams": 4}), ("reranked", {"rerank": str(tmp_path / "r.json")})):
        lines = pipeline([texts[i] for i in real], max_new_tokens=6, **options)
        assert said[name] == pytest.approx(score(lines, references, metrics=["chrF"], bootstrap=0)["chrF"], abs=1e-3)
    assert said["reranked"] > said["search_alone"]
    assert (made["decoding"], said["source"]["lines"], said["seed"]) == ({"num_beams": 4}, 102, 1)
    with pytest.raises(UserError, match="one beam is one candidate"):
        run("b.json", "-b", "1")
    (tmp_path / "val.de").write_text("one\n")
    with pytest.raises(UserError, match="102"):
        run("b.json")
    assert not (tmp_path / "b.json").exists()
