"""Coverage pictures: sums of the model's own attention, for models with and without recurrence, and clear refusals."""

from __future__ import annotations

import builtins
import json

import pytest
import torch
from helpers.contract import TINY
from transformers import AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt.analysis.coverage import coverage_study, draw, measure
from hf_mlnmt.analysis.reading import Sample
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.loading import load

SENTENCE = "A dog sees the red house."
LINES = ["A man rides a red bicycle.", "The dog sees a woman on the street.", "Two children play in the house."]


@pytest.mark.parametrize("system", ["transformer", "fertility", "m-10", "key-value-full"])
def test_sums_are_of_the_models_own_attention(folders, system):
    parts = load(str(folders(system)))
    found = measure(parts, SENTENCE, "The dog plays.")
    source = parts.source(SENTENCE, return_tensors="pt")
    labels = parts.target(text_target="The dog plays.", return_tensors="pt")["input_ids"]
    parts.model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = parts.model(**source, labels=labels, output_attentions=True).cross_attentions
    assert found.sums.shape[0] == TINY["decoder_layers"]
    assert (
        found.sums.shape[2:] == (len(found.target), len(found.source)) == (labels.shape[1], source.input_ids.shape[1])
    )
    for layer, expected in zip(found.sums, weights, strict=True):
        torch.testing.assert_close(layer[:, -1], expected[0].flatten(0, -3).sum(-2))
        torch.testing.assert_close(layer[:, 0], expected[0].flatten(0, -3)[:, 0])
    if system != "key-value-full":
        torch.testing.assert_close(
            found.sums[..., -1, :].sum(-1), torch.full(found.sums.shape[:2], len(found.target) * 1.0)
        )
    if system == "fertility":
        assert len(found.fertilities) == len(found.source)
        assert all(0 < phi < 2 for phi in found.fertilities)
    else:
        assert found.fertilities is None


def test_the_own_translation_ends_where_generate_ends(folders):
    parts = load(str(folders("fertility")))
    found = measure(parts, SENTENCE, num_beams=2)
    assert parts.model.config._attn_implementation == "sdpa"
    assert found.target
    assert found.sums.shape[2] == len(found.target)


@pytest.mark.parametrize(("layer", "head", "panels"), [(None, None, 2), (1, None, 1), (None, 2, 2), (2, 1, 1)])
def test_selection(folders, layer, head, panels):
    found = measure(load(str(folders("fertility"))), SENTENCE, "The dog plays.")
    chosen = found.select(layer, head)
    assert len(chosen) == panels
    expected = found.sums[:, :, -1] if layer is None else found.sums[layer - 1 : layer, :, -1]
    torch.testing.assert_close(chosen[:, -1], expected.mean(1) if head is None else expected[:, head - 1])


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_picture(folders, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    found = measure(load(str(folders("fertility"))), SENTENCE, "The dog plays.")
    path = draw(found, tmp_path / f"coverage.{suffix}", title="a model")
    assert path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_command(folders, tmp_path):
    pytest.importorskip("matplotlib")
    from typer.testing import CliRunner

    from hf_mlnmt.cli import app

    (tmp_path / "source").write_text(f"A man.\n{SENTENCE}\n")
    (tmp_path / "target").write_text("A man.\nThe dog plays.\n")
    models = [f"{name}={folders(system)}" for name, system in (("base", "transformer"), ("own", "fertility"))]
    command = ["analyse", "attention", *models, "-s", str(tmp_path / "source"), "-w", "coverage", "--sentence", "2"]
    for out, more in (("searched", ["--beams", "2"]), ("given", ["-t", str(tmp_path / "target"), "--layer", "2"])):
        result = CliRunner().invoke(app, [*command, "-o", str(tmp_path / out), *more])
        assert result.exit_code == 0, result.output
        assert (tmp_path / out / "coverage.own.png").stat().st_size > 1000
    rows = json.loads((tmp_path / "given" / "coverage.json").read_text())["rows"]
    measured = measure(load(str(folders("fertility"))), SENTENCE, "The dog plays.")
    own = [row for row in rows if row["system"] == "own" and "coverage" in row]
    assert {row["layer"] for row in own} == {2}
    assert [row["coverage"] for row in own] == pytest.approx(measured.select(2).flatten().tolist())
    assert [row["fertility"] for row in rows if "fertility" in row] == pytest.approx(measured.fertilities)
    searched = json.loads((tmp_path / "searched" / "coverage.json").read_text())["rows"]
    target = measure(load(str(folders("fertility"))), SENTENCE, num_beams=2).target
    shown = {row["row"]: row["target"] for row in searched if row["system"] == "own" and "row" in row}
    assert list(shown.values()) == target


def test_refusals(folders, tmp_path, monkeypatch):
    parts = load(str(folders("fertility")))
    found = measure(parts, SENTENCE, "The dog plays.")
    with pytest.raises(UserError, match="layer 3: this model has 1 to 2"):
        found.select(layer=3)
    with pytest.raises(UserError, match="head 0"):
        found.select(head=0)
    with pytest.raises(UserError, match="empty"):
        measure(parts, "  ")
    with pytest.raises(UserError, match=r"the sentence: U\+DC80 at column 2"):
        measure(parts, "a\udc80")
    with pytest.raises(UserError, match=r"ends in \.png"):
        draw(found, tmp_path / "x.jpg")
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"hf-mlnmt\[analysis\]"):
        draw(found, tmp_path / "x.png")


def test_the_source_has_the_token_that_says_the_target(tmp_path):
    """A model of several targets is told one before the source, of a search and of a given translation alike."""
    tokenizer = train_tokenizer(LINES * 20, vocab_size=150, languages=["de", "fr"], byte_fallback=False)
    config = hf_mlnmt.config_for("transformer", "tiny", **{**TINY, "vocab_size": len(tokenizer)})
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path)
    save_tokenizers(tmp_path, tokenizer)
    sample = Sample([SENTENCE], None, [1], 0, (None, "fr"))
    study = coverage_study({"m": load(str(tmp_path))}, sample, num_beams=2)
    assert study.rows[0]["source"] == "<2fr>"
    assert measure(load(str(tmp_path)), SENTENCE, "A man.", languages=(None, "fr")).source[0] == "<2fr>"
