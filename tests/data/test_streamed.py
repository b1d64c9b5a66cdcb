"""A data set that is trained on while it is encoded: blocks as they come, the same after any stop."""

from __future__ import annotations

import json
import pickle
import threading

import numpy as np
import pytest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data import encoding, training_set
from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.encoded import Encoded
from hf_mlnmt.data.encoding import encode_corpus
from hf_mlnmt.data.filters import PairFilter
from hf_mlnmt.data.training_set import Streamed

PAIRS = 230


@pytest.fixture
def stream(tokenizers, tmp_path, monkeypatch):
    """Makes a stream over a data set of 230 pairs in blocks of 50, that is read as far as it is let through."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoding, "_CHUNK", 10)
    monkeypatch.setattr(encoding, "_SHARD", 1)
    monkeypatch.setattr("os.fsync", lambda file: None)
    monkeypatch.setattr(training_set, "BLOCK", 50)
    monkeypatch.setattr(training_set, "_LOOK_AFTER", 0.001)
    (tmp_path / "set").mkdir()
    records = [{"source": f"The man {i}.", "target": f"Der Mann {i}." if i != 33 else None} for i in range(PAIRS)]
    (tmp_path / "set" / "train.jsonl").write_text("\n".join(map(json.dumps, records)))
    spec = CorpusSpec(dataset="set", streaming=True, bad_lines="drop")
    read = []

    def make(let: threading.Semaphore | None = None, folder="data") -> Streamed:
        def encode(hear):
            def progress(done, total):
                read.append(done)
                hear(done, total)
                if let is not None:
                    let.acquire(timeout=20)
                    hear(done, total)

            return encode_corpus(
                spec, tmp_path, tokenizers, tmp_path / folder, PairFilter(drop_duplicates=True), 99, 1, progress
            )

        return Streamed(tmp_path / folder, encode, 99)

    make.read = read
    return make


def numbers(data: Streamed, epoch: int) -> list[list[int]]:
    indices = data.choose(epoch)
    assert data.source_lengths[indices].tolist() == list(map(len, data.gather(indices).columns["input_ids"]))
    return [row.tolist() for row in data.gather(indices).columns["labels"]]


def test_training_begins_with_the_first_block_and_goes_on_after_a_stop(stream, tmp_path):
    let = threading.Semaphore(12)  # each block is heard of when it is read, and when it is encoded
    data = stream(let)
    assert len(data) < PAIRS / 2, "it waits for no more than a block"
    first = numbers(data, 0)
    assert len(data.parts[0]) == len(data)
    assert data.parts[0].meta["fingerprint"]
    assert numbers(pickle.loads(pickle.dumps(data)), 0) == first, "another process looks for itself"
    assert data.source_lengths.max() == 99
    data._stop.set()
    let.release()
    data.close()
    stream.read.clear()
    again = stream()
    assert stream.read[0] > 50, "what is encoded is not read again"
    blocks = [numbers(again, epoch) for epoch in range(10)]
    assert blocks[0] == first
    whole = stream(folder="whole")
    assert [numbers(whole, epoch) for epoch in range(10)] == blocks
    assert blocks[5:] == blocks[:5], "from the start again"
    assert len({tuple(row) for block in blocks[:5] for row in block}) == PAIRS - 1
    assert all(len(block) == 50 for block in blocks)
    for data in (again, whole):
        data.close()
    both = [[item["labels"].tolist() for item in Encoded(tmp_path / name)] for name in ("data", "whole")]
    assert both[0] == both[1]
    assert Encoded(tmp_path / "data").report.dropped == {"no text": 1}


def test_what_is_wrong_with_a_stream_is_said_where_it_is_waited_for(tmp_path):
    def encode(hear):
        raise UserError("no such data set")

    with pytest.raises(UserError, match="no such data set"):
        Streamed(tmp_path / "data", encode, 9)


def test_a_block_is_no_more_than_there_is(stream, monkeypatch):
    monkeypatch.setattr(training_set, "BLOCK", 10**6)
    data = stream()
    assert np.array_equal(data.choose(3), np.arange(PAIRS - 1))
    data.close()


def test_the_last_block_is_filled_up_from_the_start(stream):
    data = stream()
    assert data.choose(4).tolist() == [*range(200, PAIRS - 1), *range(251 - PAIRS)]
    data.close()


@pytest.mark.parametrize("bad", ["no json", '{"source": "a"', '{"source": "a", "target": "b"} x', "[1, 2]", "\xff"])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_line_of_a_data_set_that_is_no_record_is_named(tmp_path, monkeypatch, bad, streaming):
    """As of a file that is given as path."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    good = json.dumps({"source": "The man.", "target": "Der Mann."})
    text = "\n".join([good, good, bad, good]) + "\n"
    (tmp_path / "set" / "train.jsonl").write_bytes(text.encode("latin-1"))
    said = []
    for spec in (CorpusSpec(dataset="set", streaming=streaming), CorpusSpec(path="set/train.jsonl")):
        with pytest.raises(UserError, match=r"set/train\.jsonl, line 3: .*bad_lines: drop") as found:
            list(read_pairs(spec, tmp_path))
        said.append(str(found.value).split(". Mend")[0])
    assert said[0] == said[1]
