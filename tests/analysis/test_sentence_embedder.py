"""A model as a module of sentence-transformers: what our own command finds; saved and loaded."""

from __future__ import annotations

import numpy as np
import pytest

from hf_mlnmt.generation.choosing.embedding import embed_texts
from hf_mlnmt.generation.translating.loading import load

sentence_transformers = pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
TEXTS = ["A man rides a red bicycle.", "", "The dog sees a woman on the street.", "A dog."]


@pytest.mark.parametrize("system", ["bridge-rnn", "transformer"])
def test_it_is_what_our_command_finds(folders, tmp_path, system):
    from hf_mlnmt.analysis.sentence_embedder import sentence_transformer

    folder, bridge = str(folders(system)), system == "bridge-rnn"
    poolings = ["flat", "mean", 1] if bridge else ["mean"]
    for pooling in poolings:
        expected = embed_texts(load(folder, "cpu"), TEXTS, "en" if bridge else None, pooling)
        embedder = sentence_transformer(folder, "en" if bridge else None, pooling, "cpu")
        found = embedder.encode(TEXTS, batch_size=3)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert embedder.get_embedding_dimension() == expected.shape[1]
    assert not found[1].any()
    embedder.save(str(tmp_path))
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), found, rtol=1e-4, atol=1e-5)
    if bridge:
        assert np.allclose(loaded.encode(TEXTS, language="en"), found, rtol=1e-4, atol=1e-5)
        with pytest.raises(ValueError, match="'xx' is unknown"):
            loaded.encode(TEXTS, language="xx")
