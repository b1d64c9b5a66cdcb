"""Coverage pictures: sums of the model's own attention, for models with and without recurrence, and clear refusals."""

from __future__ import annotations

import builtins

import pytest
import torch
from helpers.contract import TINY

from hf_mlnmt.analysis.coverage import draw, measure
from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.loading import load

SENTENCE = "A dog sees the red house."


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

    arguments = ["coverage", str(folders("transformer")), SENTENCE, "-o", str(tmp_path / "x.png"), "--beams", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "x.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [(["-o", "x.jpg"], r"ends in \.png"), (["-o", "nothing.png/x.png"], "nothing.png is not a folder")],
)
def test_a_picture_that_cannot_be_is_refused_before_the_model_is_loaded(tmp_path, monkeypatch, options, message):
    from typer.testing import CliRunner

    from hf_mlnmt.cli import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing.png").write_text("")
    result = CliRunner().invoke(app, ["coverage", "nowhere/at/all", SENTENCE, *options])
    with pytest.raises(UserError, match=message):
        raise result.exception


def test_refusals(folders, tmp_path, monkeypatch):
    parts = load(str(folders("fertility")))
    found = measure(parts, SENTENCE, "The dog plays.")
    with pytest.raises(UserError, match="layer 3: this model has 2"):
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
