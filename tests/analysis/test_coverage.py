"""Coverage pictures: sums of the model's own attention, for models with and without recurrence, and clear refusals."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.contract import TINY
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt.analysis.reading import Sample, between
from hf_mlnmt.analysis.source_attention import coverage_study
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer
from hf_mlnmt.generation.translating.loading import load

SENTENCE = "A dog sees the red house."
LINES = ["A man rides a red bicycle.", "The dog sees a woman on the street.", "Two children play in the house."]


def study_of(parts, text=SENTENCE, translation=None, **options):
    """Returns the study of one sentence, and its sums as {(layer, row, column): value}."""
    sample = Sample(
        [text], None if translation is None else [translation], [1], 0, options.pop("languages", (None, None))
    )
    study = coverage_study({"m": parts}, sample, **options)
    cells = [row for row in study.rows if "coverage" in row]
    return study, {(row["layer"], row["row"], row["column"]): row["coverage"] for row in cells}


def attention(parts, translation="The dog plays."):
    """Returns the model's attention over the source, a tensor (encoder layers x heads, target, source) a layer."""
    source = parts.source(SENTENCE, return_tensors="pt")
    labels = parts.target(text_target=translation, return_tensors="pt")["input_ids"]
    parts.model.set_attn_implementation("eager")
    with torch.no_grad():
        return parts.model(**source, labels=labels, output_attentions=True).cross_attentions


@pytest.mark.parametrize("system", ["transformer", "fertility"])
@pytest.mark.parametrize("head", [None, 2])
def test_sums_are_of_the_models_own_attention(folders, system, head):
    pytest.importorskip("matplotlib")
    parts = load(str(folders(system)))
    study, sums = study_of(parts, translation="The dog plays.", head=head)
    assert parts.model.config._attn_implementation == "sdpa"
    weights = attention(parts)
    assert len(weights) == TINY["decoder_layers"] == study.summary[0]["panels"]
    for layer, heads in enumerate(weights, start=1):
        expected = (heads[0].mean(0) if head is None else heads[0, head - 1]).cumsum(0)
        found = [[sums[layer, y, x] for x in range(expected.shape[1])] for y in range(expected.shape[0])]
        torch.testing.assert_close(torch.tensor(found), expected)
        torch.testing.assert_close(expected[-1].sum(), torch.tensor(float(len(expected))))
    fertilities = [row["fertility"] for row in study.rows if "fertility" in row]
    assert len(fertilities) == (expected.shape[1] if system == "fertility" else 0)
    assert all(0 < phi < 2 for phi in fertilities)
    assert list(study.figures) == ["coverage.m", "fertilities.m"][: 1 + bool(fertilities)]


@pytest.mark.parametrize(("system", "read"), [("m-10", [1, 2]), ("key-value-full", [])])
def test_of_several_encoder_layers_each_has_its_sums(folders, system, read):
    pytest.importorskip("matplotlib")
    parts = load(str(folders(system)))
    study, _ = study_of(parts, translation="The dog plays.")
    weights = attention(parts)
    rows = iter([row["coverage"] for row in study.rows])
    for layer in weights:
        for heads in layer[0] if layer.dim() == 5 else layer:
            expected = heads.mean(0).cumsum(0).flatten()
            torch.testing.assert_close(torch.tensor([next(rows) for _ in expected]), expected)
    assert next(rows, None) is None
    assert sorted({row["encoder_layer"] for row in study.rows if "encoder_layer" in row}) == read


def test_the_own_translation_ends_where_generate_ends(folders):
    pytest.importorskip("matplotlib")
    parts = load(str(folders("fertility")))
    study, sums = study_of(parts, num_beams=2)
    assert max(y for _, y, _ in sums) + 1 == len(study.summary[0]["translation"].split(" ")) > 0


def test_command(folders, tmp_path, undraw):
    pytest.importorskip("matplotlib")
    from typer.testing import CliRunner

    from hf_mlnmt.cli import app

    (tmp_path / "source").write_text(f"A man.\n{SENTENCE}\n")
    (tmp_path / "target").write_text("A man.\nThe dog plays.\n")
    asked = [f"own={folders('fertility')}", "-s", str(tmp_path / "source"), "-w", "coverage", "--sentence", "2"]
    study, sums = study_of(load(str(folders("fertility"))), translation="The dog plays.", layer=2)
    study.write(tmp_path, {})
    assert (tmp_path / "coverage.m.png").stat().st_size > 1000
    undraw()
    for out, more in (("searched", ["--beams", "2"]), ("given", ["-t", str(tmp_path / "target"), "--layer", "2"])):
        result = CliRunner().invoke(app, ["analyse", "attention", *asked, "-o", str(tmp_path / out), *more])
        assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "given" / "coverage.json").read_text())["rows"]
    own = [row for row in rows if "coverage" in row]
    assert {row["layer"] for row in own} == {2}
    assert [row["coverage"] for row in own] == pytest.approx(list(sums.values()))
    assert [row["fertility"] for row in rows if "fertility" in row] == pytest.approx(
        [row["fertility"] for row in study.rows if "fertility" in row]
    )
    searched = json.loads((tmp_path / "searched" / "coverage.json").read_text())["rows"]
    translation = study_of(load(str(folders("fertility"))), num_beams=2)[0].summary[0]["translation"]
    shown = {row["row"]: row["target"] for row in searched if "row" in row}
    assert " ".join(shown.values()) == translation


def test_refusals(folders):
    parts = load(str(folders("fertility")))
    with pytest.raises(UserError, match="layer 3: this model has 1 to 2"):
        study_of(parts, translation="The dog plays.", layer=3)
    with pytest.raises(UserError, match="head 0"):
        study_of(parts, translation="The dog plays.", head=0)
    with pytest.raises(UserError, match="sentence 1 is empty"):
        study_of(parts, "  ")
    (model,) = between({"m": load(str(folders("bridge-transformer")))}, None, None).values()
    with pytest.raises(UserError, match=r"m: .*does not attend to source positions"):
        study_of(model, translation="The dog plays.")


def test_the_source_has_the_token_that_says_the_target(tmp_path):
    """A model of several targets is told one before the source, of a search and of a given translation alike."""
    pytest.importorskip("matplotlib")
    tokenizer = train_tokenizer(LINES * 20, vocab_size=150, languages=["de", "fr"], byte_fallback=False)
    config = hf_mlnmt.config_for("transformer", "tiny", **{**TINY, "vocab_size": len(tokenizer)})
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path)
    save_tokenizers(tmp_path, tokenizer)
    sample = Sample([SENTENCE], None, [1], 0, (None, "fr"))
    study = coverage_study({"m": load(str(tmp_path))}, sample, num_beams=2)
    assert study.rows[0]["source"] == "<2fr>"
    given, _ = study_of(load(str(tmp_path)), translation="A man.", languages=(None, "fr"))
    assert given.rows[0]["source"] == "<2fr>"
