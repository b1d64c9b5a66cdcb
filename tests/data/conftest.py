"""A small text and tokenizers of each kind, trained once."""

from __future__ import annotations

import pytest

from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer


@pytest.fixture(scope="session")
def texts(demo) -> list[str]:
    return [text for pair in demo["train"] for text in pair]


@pytest.fixture(scope="session")
def trained(texts):
    """Tokenizers by (kind, byte fallback), with language codes."""
    return {
        (kind, byte_fallback): train_tokenizer(texts, kind, 600, ["de", "pt-BR"], byte_fallback)
        for kind in ("bpe", "unigram")
        for byte_fallback in (True, False)
    }


@pytest.fixture(scope="session")
def tokenizers(trained) -> Tokenizers:
    tokenizer = trained["bpe", True]
    return Tokenizers(tokenizer, tokenizer)
