"""Broken files and empty texts: one message that says what is wrong, and nothing printed that is no score."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.finished_runs import write_run, write_runs
from typer.testing import CliRunner

from hf_mlnmt.cli import app
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.evaluation import compare, comparison_tables, read_comparison, score
from hf_mlnmt.evaluation.significance import pack_counts, unpack_counts
from hf_mlnmt.reports.matrix import read_matrix


def write(path: Path, *lines: str) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def run(*arguments: object) -> None:
    CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_blank_references_are_refused(tmp_path, verb) -> None:
    outputs, blank = write(tmp_path / "a.de", "x", "y"), write(tmp_path / "r.de", "\u200b", " ")
    given = ["-i", outputs] if verb == "evaluate" else [outputs, f"b={outputs}"]
    with pytest.raises(UserError, match=r"r\.de: all 2 lines are blank"):
        run(verb, *given, "-r", blank)


@pytest.mark.parametrize("given", [{"--test-set": "a\nb"}, {"--name": "a`b"}])
def test_scores_are_not_written_under_a_name_that_is_refused_when_they_are_read(tmp_path, given) -> None:
    text = write(tmp_path / "a.de", "x")
    with pytest.raises(UserError, match=r"the name .* a line break, a control character or a backtick"):
        run("evaluate", "-i", text, "-r", text, "-o", tmp_path / "o.json", *next(iter(given.items())))
    assert not (tmp_path / "o.json").exists()


def test_some_blank_references_are_told() -> None:
    lines = ["Ein Haus.", "Ein Hund.", "Eine Frau."]
    table = comparison_tables(compare({"a": lines, "b": lines}, ["Ein Haus.", "", " "], bootstrap=2, trials=2))[0]
    assert "3 sentences, 1 reference, 2 empty." in table.caption


GOOD = {"schema": "hf_mlnmt.comparison/3", "baseline": "a", "settings": {"trials": 1}, "systems": {}}


def tested(**numbers: object) -> dict:
    return {"seeds": [1], "made_of": "", "tested": {"t": {"cased": {"BLEU": numbers}}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"baseline": None}, "baseline: expected a text, not null"),
        ({"systems": []}, r"systems: expected a JSON object, not \[\]"),
        ({"settings": None}, "settings: expected a JSON object"),
        ({"settings": {"trials": "many"}}, 'settings.trials: expected a whole number, not "many"'),
        ({"pairs": "b > a"}, "pairs: expected a JSON object"),
        ({"systems": {"b": []}}, "systems.b: expected a JSON object"),
        ({"systems": {"b": {**tested(), "tested": None}}}, "systems.b.tested: expected a JSON object"),
        (
            {"systems": {"b": tested(difference="1")}},
            r'systems.b.tested.t.cased.BLEU.difference: expected a number, not "1"',
        ),
        (
            {"pairs": {"b > c": tested(difference=1, p=np.nan)}},
            "pairs.b > c.tested.t.cased.BLEU.p: expected a number, not NaN",
        ),
        *(({"seed": seed}, "seed: expected a whole number") for seed in (None, "one", [1])),
    ],
)
def test_a_broken_comparison_or_run_of_it_is_named(tmp_path, change, message) -> None:
    (tmp_path / "comparison.json").write_text(json.dumps({**GOOD, **change}))
    results = {"schema": "hf_mlnmt.results/1", "system": "a", "seed": change.get("seed"), "scores": {}}
    (tmp_path / "a.seed1.json").write_text(json.dumps(results))
    with pytest.raises(UserError, match=message):
        read_comparison(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("budget", "x", 'budget: expected a JSON object, not "x"'),
        ("budget__cpu_minutes", [None], r"budget.cpu_minutes: expected a number, not \[null\]"),
        ("languages", 3, "languages: expected a JSON object, not 3"),
        ("recipe", [None], "recipe: expected a JSON object"),
        ("seed", True, "seed: expected a whole number, not true"),
        ("scores__test__cased__TER__ci", True, "TER.ci: expected a list, not true"),
        ("scores__test__cased__TER__ci", [1.0], "TER.ci: expected a list of 2"),
        ("scores__test__cased__TER__ci", [1.0, np.inf], "TER.ci.1: expected a number, not Infinity"),
        ("scores__test__cased", {}, "has no score of test, cased, "),
    ],
)
def test_a_run_whose_results_are_of_other_types(tmp_path, key, value, message) -> None:
    runs = write_runs(tmp_path)
    write_run(runs / "a", "a", **{key: value})
    with pytest.raises(UserError, match=rf"/a\b.*{message}"):
        run("compare", runs / "base", runs / "a", "--data", runs / "data", "--trials", 2, "--bootstrap", 2)


def test_a_comparison_without_bleu_shows_what_it_has(tmp_path) -> None:
    runs = write_runs(tmp_path)
    for name in ("base", "a"):
        path = runs / name / "results.json"
        results = json.loads(path.read_text())
        for metrics in results["scores"]["test"].values():
            del metrics["BLEU"]
        path.write_text(json.dumps(results))
    few = ("--data", runs / "data", "--trials", 2, "--bootstrap", 2)
    run("compare", runs / "base", runs / "a", *few, "-o", tmp_path / "out")
    assert "test, chrF cased" in (tmp_path / "out" / "README.md").read_text()


RESULTS = {"schema": "hf_mlnmt.results/1", "system": "a", "scores": {}}
NAN = {**RESULTS, "scores": {"t.en-de": {"classic": {"BLEU": {"score": float("nan")}}}}}


@pytest.mark.parametrize(
    ("recipe", "results", "message"),
    [
        *[(text, json.dumps(RESULTS), r"recipe\.yaml") for text in ("[]", "null", "text", "\x00")],
        ("a: !!python/name:os.system x", json.dumps(RESULTS), r"recipe\.yaml"),
        ("tasks: [1]", json.dumps(RESULTS), r"recipe\.yaml: tasks and data"),
        *[("tasks: {}", text, r"results\.json") for text in ("[]", "text", "{}", '{"schema": "hf_mlnmt.results/1"}')],
        ("tasks: {}", json.dumps(NAN), r"t\.en-de"),
    ],
)
def test_a_matrix_of_a_broken_run(tmp_path, recipe, results, message) -> None:
    (tmp_path / "average").mkdir()
    (tmp_path / "average" / "results.json").write_text(results)
    (tmp_path / "recipe.yaml").write_text(recipe)
    with pytest.raises(UserError, match=message):
        read_matrix(tmp_path)


@pytest.mark.parametrize("shape", [(3, 9), (3, 0)])
def test_counts_of_another_metric_are_refused(shape) -> None:
    packed = pack_counts({"test": {"cased": {"BLEU": np.ones(shape)}}})
    with pytest.raises(UserError, match="'test/cased/BLEU': expected 10 counts a sentence"):
        unpack_counts(packed, "x.counts.gz")


def test_a_model_without_numbers_has_no_perplexity() -> None:
    from types import SimpleNamespace

    from hf_mlnmt.evaluation import perplexity as module

    model = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=False))
    tokenizers = SimpleNamespace(encode_target=lambda texts: [np.array([1, 2])] * len(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "negative_logs", lambda *batch: torch.tensor(float("nan")))
        with pytest.raises(UserError, match="probabilities are not numbers"):
            module.perplexity(model, tokenizers, ["a", "b"])


def test_texts_of_other_forms(caplog):
    """Marks apart from their characters (NFD), generators, and what is no text."""
    import unicodedata

    lines = ["Über Äcker läuft ein Hündchen.", "Zwei Hunde rennen über das grüne Feld."]
    apart = [unicodedata.normalize("NFD", line) for line in lines]
    for outputs, references in ((apart, lines), (lines, apart), (lines, [apart]), (lines, (line for line in lines))):
        assert score(outputs, references, bootstrap=0)["BLEU"] == pytest.approx(100)
    assert "compared joined (NFC)" in caplog.text
    for outputs, references, message in (
        ([None, "a"], lines, r"hypotheses, line 1: expected a text, not NoneType"),
        (["a", 3], lines, r"hypotheses, line 2: expected a text, not int"),
        (lines, [1, 2], r"references: expected a list of lines"),
    ):
        with pytest.raises((UserError), match=message):
            score(outputs, references, bootstrap=0)


@pytest.mark.parametrize(
    "cut", [lambda word: f"{word[:2]}@@ {word[2:]}", lambda word: f"\u2581{word[:2]} {word[2:]}"], ids=["bpe", "spm"]
)
def test_text_that_was_cut_into_pieces_is_said(cut, caplog):
    from hf_mlnmt.data import train_tokenizer

    whole = ["Zwei Hunde rennen über das grüne Feld.", "Ein Mann @@ steht."] * 5
    pieces = [" ".join(map(cut, line.split())) for line in whole]
    score(whole, whole, bootstrap=0)
    train_tokenizer(whole, vocab_size=400)
    assert "was cut" not in caplog.text
    score(pieces, whole, bootstrap=0)
    score(whole, [pieces], bootstrap=0)
    train_tokenizer(iter(pieces), vocab_size=400)
    for what in ("the outputs", "the references", "the text of the tokenizer"):
        assert f"{what}: " in caplog.text
    assert "of the words end in @@" in caplog.text or "of the words begin with \u2581" in caplog.text
