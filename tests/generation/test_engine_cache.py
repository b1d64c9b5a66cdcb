"""Converted models in the cache: made once, by one at a time; damaged ones and those of other versions made anew."""

from __future__ import annotations

import json
import threading
import time

import pytest
import torch
from helpers.export_toys import joint_tokenizer, toy_model

from hf_mlnmt.generation.translating import ctranslate2


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2", reason="pip install 'hf-mlnmt[export]'")
    monkeypatch.setenv("HF_MLNMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ctranslate2" / "name"


class Build:
    """Writes two files, and counts."""

    def __init__(self, pause=0.0):
        self.pause, self.times, self.told = pause, 0, []

    def __call__(self, target):
        self.times += 1
        (target / "model.bin").write_bytes(b"numbers")
        time.sleep(self.pause)
        (target / "config.json").write_text("{}")

    def get(self):
        with ctranslate2.entry("name", self, self.told.append) as found:
            return sorted(path.name for path in found.iterdir())


def test_made_once_and_said(folder):
    build = Build()
    for _ in range(2):
        assert build.get() == ["config.json", "entry.json", "model.bin"]
    assert build.times == 1
    (line,) = build.told
    assert line.startswith("made once, kept in ")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.bin").write_bytes(b"numbars"),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "more").write_text("x"),
        lambda folder: (folder / "entry.json").write_text("{"),
        lambda folder: edit(folder / "entry.json", ctranslate2="4.0.0"),
        lambda folder: edit(folder / "entry.json", layout=0),
    ],
    ids=["changed", "lost", "added", "no JSON", "another CTranslate2", "another layout"],
)
def test_damaged_and_old_entries_are_made_anew(folder, damage):
    build = Build()
    build.get()
    damage(folder)
    assert build.get() == ["config.json", "entry.json", "model.bin"]
    assert build.times == 2
    assert (folder / "model.bin").read_bytes() == b"numbers"
    assert build.told[1].startswith("making it again")


def edit(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_several_at_once_make_it_once(folder):
    """Each has a lock of its own, as processes do."""
    build, found = Build(pause=0.2), []
    threads = [threading.Thread(target=lambda: found.append(build.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.times == 1
    assert found == [["config.json", "entry.json", "model.bin"]] * 4


def test_nothing_is_left_of_one_that_fails(folder):
    def build(target):
        (target / "model.bin").write_bytes(b"half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError), ctranslate2.entry("name", build, print):
        pass
    assert [path.name for path in folder.parent.iterdir()] == [".locks"]


def test_the_hash_is_of_the_content():
    tokenizers = joint_tokenizer()
    tokens = [["a", "b"], ["a", "b"]]
    first = ctranslate2.content_hash(toy_model(tokenizers), tokens)
    assert ctranslate2.content_hash(toy_model(tokenizers), tokens) == first
    assert ctranslate2.content_hash(toy_model(tokenizers, norm_position="pre"), tokens) != first
    assert ctranslate2.content_hash(toy_model(tokenizers), [["a", "b"], ["b", "a"]]) != first
    changed = toy_model(tokenizers)
    with torch.no_grad():
        changed.model.decoder.layers[0].feed_forward.fc1.bias[0] += 1e-6
    assert ctranslate2.content_hash(changed, tokens) != first
