"""Embeddings of texts by models that are told their languages in other ways than by modules."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from helpers.toy_translators import SENTENCES
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.generation.choosing.embedding import embed_texts
from hf_mlnmt.generation.translating.loading import load


def test_a_token_says_the_target(ours_multilingual):
    """It stands before every text and is a position like the others; without it there is none."""
    parts = load(str(ours_multilingual), "cpu")
    for text, options in ((f"<2fr>{SENTENCES[0]}", {"target_language": "fr"}), (SENTENCES[0], {})):
        expected = parts.model.embed(**parts.source([text], return_tensors="pt")).detach().numpy()
        found = embed_texts(parts, [SENTENCES[0], SENTENCES[1]], "en", "mean", **options)
        np.testing.assert_allclose(found[:1], expected, rtol=0, atol=1e-5)
    with pytest.raises(UserError, match=r"unknown code 'xx'.*knows: de, fr"):
        embed_texts(parts, SENTENCES[:1], pooling="mean", target_language="xx")


@pytest.mark.parametrize(("family", "language"), [("marian", None), ("nllb", "fra_Latn"), ("m2m100", "fr")])
def test_models_of_other_packages(foreign, family, language):
    """The mean of the encoder's states over a text's own positions, its language told to the tokenizer."""
    parts = load(str(foreign[family]), "cpu")
    found = embed_texts(parts, SENTENCES[:2], language, "mean")
    if language is not None:
        parts.source.src_lang = language
    for text, vector in zip(SENTENCES[:2], found, strict=True):
        with torch.no_grad():
            states = parts.model.get_encoder()(**parts.source([text], return_tensors="pt")).last_hidden_state
        np.testing.assert_allclose(vector, states[0].mean(0).numpy(), rtol=0, atol=1e-5)
    missing = {"marian": ("de", "no language codes")}.get(family, (None, "source_language: needed"))
    with pytest.raises(UserError, match=missing[1]):
        embed_texts(load(str(foreign[family]), "cpu"), SENTENCES[:1], pooling="mean", target_language=missing[0])
    with pytest.raises(UserError, match="without an attention bridge"):
        embed_texts(parts, SENTENCES[:1], language, "flat")


def test_a_language_that_would_be_ignored_is_refused(ours, ours_multilingual, tmp_path):
    (tmp_path / "text").write_text("A man.\n")
    for folder, more in ((ours, []), (ours_multilingual, []), (ours_multilingual, ["--to", "de"])):
        arguments = ["analyse", "embed", folder, tmp_path / "text", "-o", tmp_path / "it.npy", "--from", "zz", *more]
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert "source_language 'zz': the model is not told the language of a text" in str(result.exception)
    assert not (tmp_path / "it.npy").exists()


@pytest.mark.skipif(os.name == "nt", reason="no such limits")
def test_a_file_that_cannot_grow_is_named(ours, tmp_path):
    import resource

    (tmp_path / "text").write_text("A man.\n" * 100)
    arguments = ["analyse", "embed", ours, tmp_path / "text", "-o", tmp_path / "it.npy"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))
    try:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"{tmp_path / 'it.npy'}: cannot be written (File too large)" in str(result.exception)
    assert CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code == 0
    assert np.load(tmp_path / "it.npy").shape == (100, 16)
