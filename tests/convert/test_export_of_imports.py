"""Imported models go on to CTranslate2 like our own: positions, norm of the embeddings, biases and vocabularies."""

from __future__ import annotations

import pytest
from helpers.originals import MAKERS

from hf_mlnmt import import_model
from hf_mlnmt.export import export

pytest.importorskip("ctranslate2", reason="pip install 'hf-mlnmt[export]'")


@pytest.mark.parametrize("name", MAKERS)
def test_ctranslate2_computes_the_same(original, name, tmp_path):
    exported = export(import_model(original(name), tmp_path / "ours").folder, tmp_path / "out", "ctranslate2")
    found = exported.record["compared_with_generate"]
    assert found["greedy"] == found["beam 4"] == {"same_sentences": 1.0, "same_tokens": 1.0}
