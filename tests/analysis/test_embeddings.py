"""Sentence embeddings and retrieval."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.contract import FIELDS, TINY, Batch, Member, assert_same

from hf_mlnmt import UserError
from hf_mlnmt.analysis.embeddings import retrieval


def build(system: str, **fields):
    return Member(system, "post", {**TINY, **FIELDS.get(system, {}), **fields}).model()


@pytest.mark.parametrize("system", ["bridge-rnn", "bridge-transformer"])
def test_of_the_bridge(system):
    """M flattened, its mean, one row; padding and the batch change nothing."""
    model, batch = build(system, source_languages=["de", "en"]), Batch.draw()
    memory = model.pair("en", "de").get_encoder()(**batch.encoder_inputs).memory
    names = {"source_language": "en"}
    assert_same(model.embed(**batch.encoder_inputs, **names), memory.flatten(1))
    assert_same(model.embed(**batch.encoder_inputs, **names, pooling="mean"), memory.mean(1))
    assert_same(model.embed(**batch.encoder_inputs, **names, pooling=2), memory[:, 2])
    alone = model.embed(input_ids=batch.source[2:3, :3], **names)
    assert_same(alone, memory.flatten(1)[2:3])
    for pooling in (3, -1, "max", True):
        with pytest.raises(ValueError, match="give flat, mean, or a row's number from 0 to 2"):
            model.embed(**batch.encoder_inputs, **names, pooling=pooling)
    with pytest.raises(ValueError, match="source_language is missing"):
        model.embed(**batch.encoder_inputs)


@pytest.mark.parametrize("system", ["transformer", "rnn"])
def test_of_any_other_model(system):
    model, batch = build(system), Batch.draw()
    states = model.get_encoder()(**batch.encoder_inputs).last_hidden_state
    expected = torch.stack([states[i, : int(batch.source_mask[i].sum())].mean(0) for i in range(4)])
    assert_same(model.embed(**batch.encoder_inputs), expected)
    with pytest.raises(ValueError, match="without an attention bridge"):
        model.embed(**batch.encoder_inputs, pooling="flat")


def test_retrieval():
    """By cosine: lengths do not matter; and each direction by itself."""
    english = np.eye(3, dtype=np.float32)
    german = np.array([[9, 0, 0], [0, 0, 1], [0, 1, 2]], np.float32)
    found = retrieval({"en": english, "de": german})
    assert found == {"en-de": pytest.approx(1 / 3), "de-en": pytest.approx(1 / 3 * 2)}
    assert retrieval({"a": english, "b": english * 5}) == {"a-b": 1.0, "b-a": 1.0}
    with pytest.raises(UserError, match=r"different numbers of lines \(a 3, b 2\)"):
        retrieval({"a": english, "b": english[:2]})
