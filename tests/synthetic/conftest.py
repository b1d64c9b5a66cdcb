"""A small model with large random weights, and a text for it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from helpers.model_folders import SENTENCES, small_model

from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer
from hf_mlnmt.generation import TranslationPipeline


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """The model's folder."""
    folder, tokenizer = tmp_path_factory.mktemp("translator"), train_tokenizer(SENTENCES, "bpe", 300, (), False)
    model = small_model(len(tokenizer))
    model.get_input_embeddings().weight.data[tokenizer.eos_token_id] *= 3  # outputs of many lengths
    model.save_pretrained(folder)
    save_tokenizers(folder, tokenizer)
    return folder


@pytest.fixture(scope="session")
def pipeline(folder) -> TranslationPipeline:
    """The model, loaded."""
    return TranslationPipeline.from_pretrained(str(folder), device="cpu")


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> list[Path]:
    """Two files, one of them compressed; a line is empty, ten are there twice."""
    place = tmp_path_factory.mktemp("texts")
    first, second = place / "first.txt", place / "second.txt.gz"
    first.write_text("".join(line + "\n" for line in [*SENTENCES[:60], "", *SENTENCES[60:70]]), encoding="utf-8")
    second.write_bytes(gzip.compress("".join(line + "\n" for line in [*SENTENCES[70:130], *SENTENCES[:10]]).encode()))
    return [first, second]
