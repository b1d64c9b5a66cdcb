"""Encoded pairs: what goes in comes out, also in other processes; built whole or not at all, and only when needed."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import sys
import tracemalloc
from functools import lru_cache, partial

import datasets
import numpy as np
import psutil
import pytest
from helpers.encoded_text import build

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.made_from import Digest
from hf_mlnmt.data import encoded, encoding, processing
from hf_mlnmt.data.corpus import CorpusSpec
from hf_mlnmt.data.encoded import Encoded, Rows
from hf_mlnmt.data.encoding import encode_corpus, filtered, origin_of
from hf_mlnmt.data.filters import FilterReport, PairFilter
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer

PAIRS = [("The man sleeps.", "Der Mann schläft."), ("", ""), ("猫", "Katze")]
FILES = {"source": "a.en", "target": "a.de"}
LANGUAGES = {"source": "en", "target": "de"}


def write(root, pairs):
    for side, name in enumerate(("a.en", "a.de")):
        (root / name).write_text("".join(pair[side] + "\n" for pair in pairs))
    return CorpusSpec(files=FILES)


def test_what_goes_in_comes_out(tokenizers, demo, tmp_path, monkeypatch):
    monkeypatch.setattr(encoded, "_AT_ONCE", 700)
    monkeypatch.setattr(encoding, "_SHARD", 1)
    pairs = [*demo["train"], *PAIRS]  # more than one shard
    data = build(iter(pairs), tokenizers, tmp_path / "data")
    assert len(data) == len(pairs) == data.report.kept == data.report.read
    for index in (0, 1, 999, 1000, len(pairs) - 2, -1):
        item = data[index]
        assert item["input_ids"].tolist() == tokenizers.source(pairs[index][0]).input_ids
        assert item["labels"].tolist() == tokenizers.target(text_target=pairs[index][1]).input_ids
        assert item["labels"].dtype == np.int32
        assert data.source_lengths[index] == len(item["input_ids"])
        assert data.target_lengths[index] == len(item["labels"])
        (gathered,) = data.gather(np.array([index % len(data)]))
        assert {name: ids.tolist() for name, ids in item.items()} == {
            name: ids.tolist() for name, ids in gathered.items()
        }
    for number, lengths in enumerate((data.source_lengths, data.target_lengths)):
        every = np.array([len(item[("input_ids", "labels")[number]]) for item in data])
        assert lengths.dtype == lengths[:].dtype == lengths[every > 9].dtype == np.int32
        assert np.asarray(lengths).tolist() == every.tolist()
        assert lengths[every > 9].tolist() == every[every > 9].tolist()
        assert lengths[3:-1].tolist() == every[3:-1].tolist()
        assert lengths.max() == every.max()
    with pytest.raises(IndexError):
        data[len(pairs)]


def test_rows_in_a_file_are_padded_as_copies_of_them_are():
    rows = Rows(np.arange(10, 20, dtype=np.int32), np.array([3, 5, 1]), np.array([4, 0, 9]))  # the last one ends it
    assert [row.tolist() for row in rows] == [[14, 15, 16], [10, 11, 12, 13, 14], [19]]
    expected = [[14, 15, 16, 0, 0], [10, 11, 12, 13, 14], [19, 0, 0, 0, 0]]
    for each in (rows, Rows(rows.packed(), rows.lengths)):
        assert each.padded(0).tolist() == expected
        for longest in (5, 40):
            more = each.followed(longest, 2)
            assert list(map(len, more)) == [3, 5, 1, longest, longest]
            assert more.padded(0)[:3, :5].tolist() == expected


def test_items_may_be_written_to(tokenizers, tmp_path):
    data = build(PAIRS, tokenizers, tmp_path / "data")
    data[0]["labels"][:] = -100
    assert (data[0]["labels"] >= 0).all()


def test_too_long_pairs_are_counted_and_the_code_counts_too(tokenizers, tmp_path):
    lengths = [len(tokenizers.source(source).input_ids) for source, _ in PAIRS]
    longest = max(*lengths, *(len(tokenizers.target(target).input_ids) for _, target in PAIRS))
    data = build(PAIRS, tokenizers, tmp_path / "a", max_length=longest)
    assert len(data) == 3
    data = build(PAIRS, tokenizers, tmp_path / "b", max_length=longest - 1)
    assert len(data) == 2
    assert data.report.dropped == {f"longer than {longest - 1} subwords": 1}
    assert (data.report.read, data.report.kept) == (3, 2)
    coded = build(PAIRS, tokenizers, tmp_path / "c", language="de")
    assert coded[0]["input_ids"].tolist() == [5, *tokenizers.source(PAIRS[0][0]).input_ids]
    assert coded.source_lengths[:].tolist() == [length + 1 for length in lengths]
    with pytest.raises(UserError, match="'fr'"):
        build(PAIRS, tokenizers, tmp_path / "d", language="fr")


def test_other_processes_map_the_files_and_check_nothing_again(tokenizers, demo, tmp_path, monkeypatch):
    data = build(demo["train"], tokenizers, tmp_path / "data")
    expected, shard = data[2]["labels"].tolist(), data._shard(0)["labels"][1]
    assert data.source_lengths.max() > 0
    assert len(pickle.dumps(data)) < shard.nbytes
    assert not shard.flags.writeable
    monkeypatch.setattr(encoded, "size_and_crc", lambda path: pytest.fail("read again"))
    assert pickle.loads(pickle.dumps(data))[2]["labels"].tolist() == expected


def test_shards_are_files_of_datasets(tokenizers, tmp_path):
    data = build(PAIRS, tokenizers, tmp_path / "data")
    (name,) = data.meta["shards"]
    read = datasets.Dataset.from_file(str(tmp_path / "data" / name))
    assert read[2]["labels"] == data[2]["labels"].tolist()
    assert read.features["input_ids"].feature.dtype == "uint16"


@pytest.mark.skipif(sys.platform == "win32", reason="counts file descriptors")
def test_of_many_corpora_few_files_are_open(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(encoded, "_mapped", lru_cache(4)(encoded._mapped.__wrapped__))
    first = build(PAIRS, tokenizers, tmp_path / "0").folder
    folders = [first, *(shutil.copytree(first, tmp_path / str(number)) for number in range(1, 9))]
    before = psutil.Process().num_fds()
    corpora = [Encoded(folder) for folder in folders]
    monkeypatch.chdir(tmp_path)
    read = [[corpus[index]["labels"].tolist() for index in range(3)] for corpus in corpora]
    assert all(items == read[0] for items in read)
    assert psutil.Process().num_fds() <= before + 2 * 4


def test_building_does_not_hold_the_corpus(tokenizers, tmp_path, monkeypatch):
    """Eight times the pairs take about as much memory."""
    monkeypatch.setattr(encoding, "_CHUNK", 100)
    monkeypatch.setattr(encoding, "_SHARD", 5)

    def peak(count: int) -> int:
        pairs = ((f"The man sees the dog {i}.", f"Der Mann sieht den Hund {i}.") for i in range(count))
        tracemalloc.start()
        build(pairs, tokenizers, tmp_path / str(count))
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    peak(500)  # what is made at first
    assert peak(4000) < 1.6 * peak(500)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("short", "00000.arrow has"),
        ("damaged", "00000.arrow is damaged"),  # as many bytes, one of them another: nothing but a checksum tells
        ("gone", "00000.arrow"),
        ({"shards": []}, "shards"),
        ({"shards": {"00000.arrow": 3}}, "shards"),
        ({"report": {}}, "report"),
    ],
)
def test_what_is_not_intact_is_said_and_made_again(tokenizers, tmp_path, caplog, fault, problem):
    how = (write(tmp_path, PAIRS), tmp_path, tokenizers, tmp_path / "data")
    made = encode_corpus(*how)
    labels = [item["labels"].tolist() for item in made]
    file, meta = tmp_path / "data" / "00000.arrow", tmp_path / "data" / "meta.json"
    content = bytearray(file.read_bytes())
    if fault == "short":
        file.write_bytes(content[:-4])
    elif fault == "damaged":
        content[-30] ^= 1
        file.write_bytes(content)
    elif fault == "gone":
        file.unlink()
    else:
        meta.write_text(json.dumps(json.loads(meta.read_text()) | fault))
    with pytest.raises(UserError, match=rf"no intact encoded text \(.*{problem}.*Delete this folder and run again"):
        Encoded(tmp_path / "data")
    again = encode_corpus(*how)
    assert [item["labels"].tolist() for item in again] == labels
    assert f"{tmp_path / 'data'} cannot be used (" in caplog.text
    assert "Encoding again" in caplog.text
    with pytest.raises(UserError, match="no meta"):
        Encoded(tmp_path / "nothing")


def test_what_fails_leaves_the_old_data(tokenizers, tmp_path):
    build(PAIRS, tokenizers, tmp_path / "data")

    def failing():
        yield PAIRS[0]
        raise UserError("a bad line")

    with pytest.raises(UserError, match="a bad line"):
        build(failing(), tokenizers, tmp_path / "data")
    assert len(Encoded(tmp_path / "data")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_nothing_at_all_can_be_encoded(tokenizers, tmp_path):
    data = build([], tokenizers, tmp_path / "data")
    assert len(data) == len(data.source_lengths) == 0


def test_processing_comes_before_the_tokenizer(trained, tmp_path):
    tokenizer = trained["bpe", True]
    lower = Tokenizers(tokenizer, tokenizer, {"source": TextProcessing(lowercase=True)})
    data = build([("The Man", "Der Mann")], lower, tmp_path / "data")
    assert data[0]["input_ids"].tolist() == tokenizer("the man").input_ids
    assert data[0]["labels"].tolist() == tokenizer("Der Mann").input_ids


def test_fingerprints_follow_content_and_settings(tokenizers, trained, tmp_path):
    spec = write(tmp_path, PAIRS)
    first = origin_of(spec, tmp_path, tokenizers, max_length=5).fingerprint
    assert first == origin_of(spec, str(tmp_path), tokenizers, max_length=5).fingerprint
    other = Tokenizers(tokenizers.source, trained["unigram", True])
    processed = Tokenizers(tokenizers.source, tokenizers.target, {"source": TextProcessing(lowercase=True)})
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", [*PAIRS[:2], ("猫", "Katzf")])
    different = {
        origin_of(spec, tmp_path, tokenizers, max_length=6).fingerprint,
        origin_of(spec, tmp_path, other, max_length=5).fingerprint,
        origin_of(spec, tmp_path, processed, max_length=5).fingerprint,
        origin_of(spec, tmp_path / "other", tokenizers, max_length=5).fingerprint,
        origin_of(CorpusSpec(files=FILES, bad_lines="drop"), tmp_path, tokenizers, max_length=5).fingerprint,
    }
    assert len(different) == 5
    assert first not in different


def test_a_corpus_in_one_call(tokenizers, tmp_path):
    spec = write(tmp_path, [*PAIRS, PAIRS[0]])
    spec.languages = LANGUAGES
    keep = PairFilter(drop_duplicates=True)
    data = encode_corpus(spec, tmp_path, tokenizers, tmp_path / "out", keep, max_length=50)
    assert [len(data), data.report.read] == [2, 4]
    assert data.report.dropped == {"both sides empty": 1, "duplicate": 1}
    assert data[0]["input_ids"][0] == tokenizers.source.convert_tokens_to_ids("<2de>")
    stamp = (tmp_path / "out" / "meta.json").stat().st_mtime_ns
    again = encode_corpus(spec, tmp_path, tokenizers, tmp_path / "out", keep, max_length=50)
    assert again.report.dropped == data.report.dropped
    assert (tmp_path / "out" / "meta.json").stat().st_mtime_ns == stamp
    # a development set keeps all
    assert len(encode_corpus(spec, tmp_path, tokenizers, tmp_path / "dev")) == 4
    with pytest.raises(UserError, match=r"no pair is left[\s\S]*longer than 1 words"):
        encode_corpus(spec, tmp_path, tokenizers, tmp_path / "none", PairFilter(max_length=1, max_ratio=1), 1)


def test_filtered_pairs_are_what_a_tokenizer_is_trained_on(tmp_path):
    spec, report = write(tmp_path, PAIRS), FilterReport()
    assert list(filtered(spec, tmp_path, PairFilter(), report)) == [PAIRS[0], PAIRS[2]]
    assert report.read == 3
    assert list(filtered(spec, tmp_path)) == PAIRS


def test_data_that_are_read_otherwise_are_encoded_again(tmp_path):
    tokenizers = Tokenizers(*[train_tokenizer(["a house ein Haus"] * 9, vocab_size=300)] * 2)
    for name in ("a.tsv", "a.csv"):
        (tmp_path / name).write_text('"a\thouse",ein\tHaus\n' * 2)
    keys = {origin_of(CorpusSpec(path=name), tmp_path, tokenizers).fingerprint for name in ("a.tsv", "a.csv")}
    assert len(keys) == 2
    (tmp_path / "b.tsv").write_text("a house\tein Haus\n")
    spec, folder = CorpusSpec(path="b.tsv"), tmp_path / "data"
    made = encode_corpus(spec, tmp_path, tokenizers, folder)
    meta = json.loads((folder / "meta.json").read_text())
    for earlier in (1, 3):  # formats in which tables were read, and ids written, in other ways
        (folder / "meta.json").write_text(json.dumps({**meta, "format": earlier, "note": "earlier"}))
        assert "note" not in encode_corpus(spec, tmp_path, tokenizers, folder).meta
    again = encode_corpus(spec, tmp_path, tokenizers, folder).meta
    assert again["fingerprint"] == made.meta["fingerprint"]


# Encoding by chunks, in several processes, from where it was stopped

KEEP = PairFilter(max_length=6, drop_duplicates=True)


@pytest.fixture
def many(tmp_path, monkeypatch):
    """A corpus of 20 chunks, four a shard, with duplicates, long sides and lines that are dropped."""
    monkeypatch.setattr(encoding, "_CHUNK", 10)
    monkeypatch.setattr(encoding, "_SHARD", 4)
    monkeypatch.setattr("os.fsync", lambda file: None)
    monkeypatch.setattr(processing, "MANY", 2)
    lines = [f"The man {i % 70} sees {'a ' * (i % 4)}dog." for i in range(200)]
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines).replace("man 33", "man \x07"))
    return CorpusSpec(files=FILES, bad_lines="drop")


def made(folder) -> dict[str, bytes]:
    assert (folder / "meta.json").is_file()
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "meta.json"}


def test_the_same_bytes_come_from_any_number_of_processes(many, tokenizers, tmp_path):
    told = []
    how = (many, tmp_path, tokenizers)
    alone = encode_corpus(*how, tmp_path / "1", KEEP, 11, processes=1)
    several = encode_corpus(*how, tmp_path / "n", KEEP, 11, 3, lambda *done: told.append(done))
    assert made(tmp_path / "1") == made(tmp_path / "n")
    assert alone.report == several.report
    reasons = {"duplicate", "control character", "longer than 6 words", "longer than 11 subwords"}
    assert set(alone.report.dropped) == reasons
    assert len(alone) > 20
    assert told[-1] == (197, 197)
    assert (60, 200) in told
    assert told.count((0, 200)) == 4, "a stop is heard while a shard is read"


class Stop(Exception):
    pass


@pytest.mark.parametrize("fault", ["killed", "lost", "damaged", "no hashes", "bad hashes", "changed", "full"])
def test_a_start_goes_on_where_one_was_stopped(many, tokenizers, tmp_path, monkeypatch, caplog, fault):
    how = (many, tmp_path, tokenizers, tmp_path / "data", KEEP, 12, 1)
    whole = encode_corpus(*how[:3], tmp_path / "whole", KEEP, 12, 1)
    error = OSError(errno.ENOSPC, "No space left on device") if fault == "full" else Stop()

    def stop(done, total):
        if done == 140:
            raise error

    with pytest.raises(UserError if fault == "full" else Stop, match="no space left" if fault == "full" else None):
        encode_corpus(*how, stop)
    part = tmp_path / "data.part"
    assert not (tmp_path / "data").exists()
    assert list(json.loads((part / "meta.json").read_text())["shards"]) == [f"0000{i}.arrow" for i in range(3)]
    if fault == "lost":
        (part / "00001.arrow").unlink()
    elif fault == "damaged":
        (part / "00001.arrow").write_bytes(bytes((part / "00001.arrow").stat().st_size))
    elif fault == "no hashes":  # of the pairs of a shard, by which duplicates are known
        (part / "00001.arrow.hashes.npy").write_bytes(b"")
    elif fault == "bad hashes":
        content = (part / "00001.arrow.hashes.npy").read_bytes()
        (part / "00001.arrow.hashes.npy").write_bytes(content[:-8] + bytes(8))
    elif fault == "changed":
        (tmp_path / "a.en").write_text((tmp_path / "a.en").read_text().replace("dog", "dot"))
    else:  # a clock that goes wrong: what is there is compared
        os.utime(tmp_path / "a.en", (2**32, 2**32))
    told = []
    again = encode_corpus(*how, lambda done, total: told.append(done))
    assert not part.exists()
    assert told[0] == (120 if fault in ("killed", "full") else 0)
    assert (fault in ("lost", "damaged", "no hashes", "bad hashes")) == ("cannot be gone on from" in caplog.text)
    if fault != "changed":
        assert made(tmp_path / "data") == made(tmp_path / "whole")
        assert again.report == whole.report
        assert again.meta["fingerprint"] == whole.meta["fingerprint"]


def test_long_texts_make_small_chunks(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "_LONG", 90)
    monkeypatch.setattr(encoding, "_SHARD", 3)
    data = build([("a man " * 8, "ein Mann")] * 10, tokenizers, tmp_path / "data")
    assert [shard["items"] for shard in data.meta["shards"].values()] == [6, 4]


def test_a_tokenizer_that_cannot_be_sent_stays_in_this_process(tokenizers):
    sides = [
        processing.Side(side.processing, lambda texts: [[1, 2]] * len(texts)) for side in tokenizers.sides().values()
    ]
    with processing.in_processes(processing.Encoder(sides), 2) as encode:
        (made, *_) = encode([[("a dog", "a man")]] * processing.MANY)
    assert [ids.tolist() for ids, _ in made.sides] == [[1, 2], [1, 2]]


def test_a_killed_process_that_encodes_is_one_message():
    encoder = processing.Encoder([processing.Side(TextProcessing(), partial(sorted, key=eval))])
    with pytest.raises(UserError, match=r"was killed.*data\.processes"), processing.in_processes(encoder, 2) as encode:
        list(encode([["__import__('os')._exit(9)"]] * processing.MANY))


def test_sizes_and_times_tell_whether_text_is_read_again(tokenizers, tmp_path, monkeypatch):
    spec, folder, read = write(tmp_path, PAIRS), tmp_path / "data", []
    encode_corpus(spec, tmp_path, tokenizers, folder)
    reading = Digest.file
    monkeypatch.setattr(Digest, "file", lambda digest, path: (read.append(path), reading(digest, path))[1])
    monkeypatch.setattr(encoding, "grow", lambda *how: pytest.fail("encoded again"))
    assert encode_corpus(spec, tmp_path, tokenizers, folder).found.endswith("the same sizes and times")
    assert not read
    for name in ("a.en", "data/00000.arrow"):  # a clock that goes wrong, a copy: the content decides
        os.utime(tmp_path / name, (2**32, 2**32))
        assert encode_corpus(spec, tmp_path, tokenizers, folder).found.endswith("the same content")
        assert encode_corpus(spec, tmp_path, tokenizers, folder).found.endswith("the same sizes and times")
    assert len(read) == 2
    os.utime(tmp_path / "a.en", (2**31, 2**31))
    encode_corpus(spec, tmp_path, tokenizers, folder)
    (tmp_path / "a.en").write_text((tmp_path / "a.en").read_text().replace("man", "men"))
    os.utime(tmp_path / "a.en", (2**31, 2**31))
    encode_corpus(spec, tmp_path, tokenizers, folder)
    with pytest.raises(pytest.fail.Exception, match="encoded again"):
        encode_corpus(spec, tmp_path, tokenizers, folder, check=True)


def test_text_that_changes_while_it_is_read_is_named(many, tokenizers, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"a\.de: changed while they were read"):
        encode_corpus(
            many, tmp_path, tokenizers, tmp_path / "data", None, None, 1, lambda *_: os.utime(tmp_path / "a.de", (5, 5))
        )
    assert not list(tmp_path.glob("data*"))


def test_a_share_of_a_corpus_is_drawn_by_the_seed(many, tmp_path):
    def drawn(share: float, seed: int) -> list:
        return list(filtered(many, tmp_path, None, None, share, seed))

    whole = drawn(1, 1)
    assert whole == list(filtered(many, tmp_path))
    half = drawn(0.5, 1)
    assert half == drawn(0.5, 1) != drawn(0.5, 2)
    assert abs(len(half) - len(whole) / 2) < 4 * (len(whole) / 4) ** 0.5
    assert set(half) <= set(whole)
