"""Digests stay to the letter, so that nothing is made anew for nothing; and what differs between two is named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_mlnmt.common.made_from import (
    MadeFrom,
    differences,
    digest,
    identity_of_model,
    identity_of_text,
    sha256,
    sha256_of_lines,
)
from hf_mlnmt.data.corpus import CorpusSpec, RawPairs, TextSpec, digest_of_texts
from hf_mlnmt.data.encoding import origin_of
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.training.folder import digest_of_model


class Tok:
    """The name of the class is hashed too."""

    def get_vocab(self):
        return {"ä": 1, "b": 0}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.en").write_bytes(b"one\ntwo\n")
    (tmp_path / "a.de").write_bytes("eins\nzwö\n".encode())
    return tmp_path


def test_encoded_corpora(folder):
    processing = {"source": TextProcessing(language="en"), "target": TextProcessing(language="de", moses=True)}
    tokenizers = SimpleNamespace(processing=processing, source=Tok(), target=Tok())
    languages = {"source": "en", "target": "de"}
    pairs = CorpusSpec(files={"source": "a.en", "target": "a.de"}, languages=languages, limit=2)
    found = origin_of(pairs, folder, tokenizers, filter="f(1)", max_length=5, language=None).fingerprint
    assert found == "aa32044c8a77c8eb26e85439000bd28b"
    text = TextSpec(path="a.en", language="en", side="source")
    found = origin_of(text, folder, tokenizers, filter="None", max_length=None).fingerprint
    assert found == "85c104e3764ee10325a0f515f915f36c"


def test_runs(folder):
    assert digest(["ä", 1.5, None], {"b": Path("x"), "a": 2}) == "d4c04c5bdb1e4b0454f03ae3226eb152"
    saved = [folder / f"checkpoint-{step}" for step in (1, 2)]
    for step, checkpoint in enumerate(saved, start=1):
        checkpoint.mkdir()
        (checkpoint / "complete.json").write_text(json.dumps({"w": [step, 3]}))
    decoding = SimpleNamespace(to_diff_dict=lambda: {"num_beams": 2})
    assert digest_of_model(saved, decoding) == "0fb1fb9cf23a63be51ec82db563a5e43"
    assert digest_of_model(saved[:1], None) == "5793820b3bdf07d9646a8910a4eb533f"
    assert (
        digest_of_texts([RawPairs("made_up", ["a ä"], ["b"], "de", "de", "en")]) == "f88ffb469ae5d7c80be9721a8dd8ed24"
    )


def test_synthetic_corpora(folder):
    expected = "d2cd0f5a9ef4d5462d05d017854c03be1e0e856c43fde07aefec68abfb02f4bd"
    assert sha256(folder / "a.de") == identity_of_text(folder / "a.de", [])["sha256"] == expected
    model = folder / "model"
    files = {"config.json": "{}", "model.safetensors": "w", "target_tokenizer/tokenizer.json": "t", "README.md": "no"}
    for name, text in files.items():
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text(text)
    assert {name: value[:16] for name, value in identity_of_model(str(model))["files"].items()} == {
        "config.json": "44136fa355b3678a",
        "model.safetensors": "50e721e49c013f00",
        "target_tokenizer/tokenizer.json": "e3b98a4da31a127d",
    }


def test_caches():
    lines = "abbe2d7a5b0d838218098b87fddfba95036b4c692df7407bc784f283216b4eaf"
    assert sha256_of_lines(["a", "ä"]) == lines


def test_differences_are_named_by_their_keys():
    before = {"a": {"b": 1, "c": [2]}, "gone": 3, "free": {"x": 1}, "as_one": {"y": 1}, "same": {"z": 0}}
    now = {"a": {"b": 2, "c": [2]}, "free": {"x": 2}, "as_one": {"y": 2}, "same": {"z": 0}, "new": 4}
    found = differences(before, now, may_differ=["free"], whole=["as_*"])
    assert found == {"a.b": (1, 2), "gone": (3, None), "as_one": ({"y": 1}, {"y": 2}), "new": (None, 4)}
    assert list(found) == ["a.b", "gone", "as_one", "new"]
    assert differences({"freely": 1}, {"freely": 2}, may_differ=["free"]) == {"freely": (1, 2)}


def test_a_product_is_kept_as_long_as_it_is_made_from_the_same(tmp_path):
    path = tmp_path / "made_of.json"
    path.write_text("broken")
    made = MadeFrom(path)
    assert not made.same("model", "1")
    made.note("model", "1")
    assert json.loads(path.read_text()) == {"model": "1"}
    assert MadeFrom(path).same("model", "1")
    assert not MadeFrom(path).same("model", "2")
