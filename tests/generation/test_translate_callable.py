"""`Translate` goes through data sets of `datasets` as it is (of Ray Data: serving/test_ray.py)."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from datasets import Dataset
from datasets.fingerprint import Hasher
from helpers.toy_translators import SENTENCES

from hf_mlnmt import UserError
from hf_mlnmt.generation import Translate, TranslationPipeline

OPTIONS = {"device": "cpu", "max_new_tokens": 8}
TEXTS = [*SENTENCES[:6], "", None, *SENTENCES[6:9]]


@pytest.fixture(scope="module")
def expected(pipeline) -> list[str | None]:
    written = iter(pipeline([text for text in TEXTS if text is not None], max_new_tokens=8))
    return [None if text is None else next(written) for text in TEXTS]


def test_a_batch_of_columns(ours, expected):
    translate = Translate(ours, **OPTIONS)
    batch = {"id": list(range(len(TEXTS))), "text": TEXTS}
    assert translate(batch) == {**batch, "translation": expected}
    arrays = {"id": np.arange(len(TEXTS)), "said": np.array(TEXTS, dtype=object)}
    assert Translate(ours, column="said", into="said", **OPTIONS)(arrays)["said"] == expected
    assert translate({"text": [None, ""]})["translation"] == [None, ""]
    assert translate({"text": []})["translation"] == []
    two = Translate(ours, column="b", num_beams=2, num_return_sequences=2, **OPTIONS)
    lists = two({"a": ["x"], "b": [SENTENCES[0]]})["translation"]
    assert [len(of_text) for of_text in lists] == [2]
    assert all(isinstance(text, str) for text in lists[0])


@pytest.mark.parametrize(
    ("options", "batch", "message"),
    [
        (
            {"column": "texts"},
            {"text": ["a"]},
            r"column: the batch has no 'texts' \(did you mean 'text'\?\); it has text\.",
        ),
        ({}, {"text": ["a", 3]}, "column 'text', row 1 of a batch: 3 is no text"),
        ({}, {"text": ["a"], "translation": ["b"]}, "into: the batch has a column 'translation' already"),
    ],
    ids=["name", "number", "taken"],
)
def test_batches_that_cannot_be_translated_are_refused(ours, options, batch, message):
    with pytest.raises(UserError, match=message):
        Translate(ours, **options)(batch)


def test_options_are_checked_before_a_model_is_loaded():
    with pytest.raises(UserError, match="num_beams: 0"):
        Translate("nowhere", num_beams=0)


def test_the_model_is_loaded_once_and_again_when_it_changes(ours, tmp_path, monkeypatch):
    loads, load = [], TranslationPipeline.from_pretrained
    monkeypatch.setattr(TranslationPipeline, "from_pretrained", lambda *a, **k: loads.append(a) or load(*a, **k))
    model = shutil.copytree(ours, tmp_path / "model")
    for _ in range(2):
        Translate(model, **OPTIONS)({"text": ["A man."]})
    assert len(loads) == 1
    config = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps({**config, "num_beams": 3}))
    Translate(model, **OPTIONS)({"text": ["A man."]})
    assert len(loads) == 2


def test_its_fingerprint_is_that_of_its_content(ours, tmp_path):
    model = shutil.copytree(ours, tmp_path / "model")
    translate = Translate(model, **OPTIONS)
    before = Hasher.hash(translate)
    translate({"text": ["A man."]})  # a loaded model is no part of it
    assert Hasher.hash(translate) == before == Hasher.hash(Translate(model, **OPTIONS))
    assert Hasher.hash(Translate(model, num_beams=2, **OPTIONS)) != before
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert Hasher.hash(Translate(model, **OPTIONS)) != before


def test_datasets_with_two_processes(ours, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ)  # datasets put a copy in its place, which others do not see
    dataset = Dataset.from_dict({"id": list(range(len(TEXTS))), "text": TEXTS})
    dataset.save_to_disk(tmp_path / "data")  # what is not in a file is not kept
    dataset = Dataset.load_from_disk(tmp_path / "data")
    translate = Translate(ours, **OPTIONS)
    translated = dataset.map(translate, batched=True, batch_size=4, num_proc=2)
    assert translated["translation"][:] == expected
    assert translated["id"][:] == list(range(len(TEXTS)))
    again = dataset.map(Translate(ours, **OPTIONS), batched=True, batch_size=4, num_proc=2)
    assert again.cache_files == translated.cache_files
    assert len(translated.cache_files) == 2
