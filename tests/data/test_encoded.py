"""Encoded pairs: what goes in comes out, also in other processes; built whole or not at all, and only when needed."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
import sys
import tracemalloc
from functools import lru_cache

import numpy as np
import psutil
import pytest

from hf_mlnmt.data import encoded
from hf_mlnmt.data.corpus import CorpusSpec
from hf_mlnmt.data.encoded import Encoded, encode_corpus, filtered, fingerprint_of
from hf_mlnmt.data.filters import FilterReport, PairFilter
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.errors import UserError

PAIRS = [("The man sleeps.", "Der Mann schläft."), ("", ""), ("猫", "Katze")]
FILES = {"source": "a.en", "target": "a.de"}
LANGUAGES = {"source": "en", "target": "de"}


def write(root, pairs):
    for side, name in enumerate(("a.en", "a.de")):
        (root / name).write_text("".join(pair[side] + "\n" for pair in pairs))
    return CorpusSpec(files=FILES)


def test_what_goes_in_comes_out(tokenizers, demo, tmp_path):
    pairs = [*demo["train"], *PAIRS]  # more than one chunk
    data = Encoded.build(iter(pairs), tokenizers, tmp_path / "data")
    assert len(data) == len(pairs) == data.report.kept == data.report.read
    for index in (0, 1, 1999, 2000, len(pairs) - 2, -1):
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
    assert data.source_lengths.dtype == data.target_lengths.dtype == np.int32
    with pytest.raises(IndexError):
        data[len(pairs)]


def test_items_may_be_written_to(tokenizers, tmp_path):
    data = Encoded.build(PAIRS, tokenizers, tmp_path / "data")
    data[0]["labels"][:] = -100
    assert (data[0]["labels"] >= 0).all()


def test_too_long_pairs_are_counted_and_the_code_counts_too(tokenizers, tmp_path):
    lengths = [len(tokenizers.source(source).input_ids) for source, _ in PAIRS]
    longest = max(*lengths, *(len(tokenizers.target(target).input_ids) for _, target in PAIRS))
    data = Encoded.build(PAIRS, tokenizers, tmp_path / "a", max_length=longest)
    assert len(data) == 3
    data = Encoded.build(PAIRS, tokenizers, tmp_path / "b", max_length=longest - 1)
    assert len(data) == 2
    assert data.report.dropped == {f"longer than {longest - 1} subwords": 1}
    assert (data.report.read, data.report.kept) == (3, 2)
    coded = Encoded.build(PAIRS, tokenizers, tmp_path / "c", language="de")
    assert coded[0]["input_ids"].tolist() == [5, *tokenizers.source(PAIRS[0][0]).input_ids]
    assert coded.source_lengths.tolist() == [length + 1 for length in lengths]
    with pytest.raises(UserError, match="'fr'"):
        Encoded.build(PAIRS, tokenizers, tmp_path / "d", language="fr")


def _length(data: Encoded, queue: multiprocessing.Queue) -> None:
    queue.put(data[0]["labels"].tolist())


def test_other_processes_map_the_file_instead_of_getting_a_copy(tokenizers, demo, tmp_path):
    data = Encoded.build(demo["train"], tokenizers, tmp_path / "data")
    assert len(pickle.dumps(data)) < sum(data._side(side)[1].nbytes for side in data.sides)
    again = pickle.loads(pickle.dumps(data))
    assert all((again[0][key] == data[0][key]).all() for key in data[0])
    assert isinstance(again._side("source")[1].base, np.memmap)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_length, args=(data, queue))
    process.start()
    assert queue.get(timeout=60) == data[0]["labels"].tolist()
    process.join()


@pytest.mark.skipif(sys.platform == "win32", reason="counts file descriptors")
def test_of_many_corpora_few_files_are_open(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(encoded, "_mapped", lru_cache(4)(encoded._mapped.__wrapped__))
    first = Encoded.build(PAIRS, tokenizers, tmp_path / "0").folder
    folders = [first, *(shutil.copytree(first, tmp_path / str(number)) for number in range(1, 9))]
    before = psutil.Process().num_fds()
    corpora = [Encoded(folder) for folder in folders]
    monkeypatch.chdir(tmp_path)
    read = [[corpus[index]["labels"].tolist() for index in range(3)] for corpus in corpora]
    assert all(items == read[0] for items in read)
    assert psutil.Process().num_fds() <= before + 2 * 4


def test_building_does_not_hold_the_corpus(tokenizers, tmp_path):
    """Eight times the pairs take about as much memory."""

    def peak(count: int) -> int:
        pairs = ((f"The man sees the dog {i}.", f"Der Mann sieht den Hund {i}.") for i in range(count))
        tracemalloc.start()
        Encoded.build(pairs, tokenizers, tmp_path / str(count))
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    assert peak(32_000) < 1.6 * peak(4000) + 16 * 32_000


def test_a_second_run_reads_nothing(tokenizers, tmp_path):
    built = Encoded.build(PAIRS, tokenizers, tmp_path / "data", fingerprint="one")

    def forbidden():
        raise AssertionError("read again")
        yield

    again = Encoded.build(forbidden(), tokenizers, tmp_path / "data", fingerprint="one")
    assert len(again) == len(built) == again.report.kept
    with pytest.raises(AssertionError):
        Encoded.build(forbidden(), tokenizers, tmp_path / "data", fingerprint="two")
    assert len(Encoded(tmp_path / "data")) == 3  # the failure left the old data
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_half_written_data_is_made_again(tokenizers, tmp_path, caplog):
    Encoded.build(PAIRS, tokenizers, tmp_path / "data", fingerprint="one")
    file = tmp_path / "data" / "target.bin"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"no intact encoded text \(target\.bin has"):
        Encoded(tmp_path / "data")
    data = Encoded.build(PAIRS, tokenizers, tmp_path / "data", fingerprint="one")
    assert data[2]["labels"].tolist() == tokenizers.target("Katze").input_ids
    assert "Encoding again" in caplog.text
    with pytest.raises(UserError):
        Encoded(tmp_path / "nothing")


@pytest.mark.parametrize("change", [{"checksums": []}, {"checksums": {"source.bin": 3}}, {"report": 1}, {"report": {}}])
def test_data_whose_meta_is_of_another_form_is_made_again(tokenizers, tmp_path, caplog, change):
    Encoded.build(PAIRS, tokenizers, tmp_path / "data", fingerprint="one")
    meta = tmp_path / "data" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | change))
    with pytest.raises(UserError, match=r"no intact encoded text \(.*Delete this folder"):
        Encoded(tmp_path / "data")
    assert len(Encoded.build(PAIRS, tokenizers, tmp_path / "data", fingerprint="one")) == 3
    assert "Encoding again" in caplog.text


@pytest.mark.parametrize("name", ["source.bin", "target.bin", "source_offsets.npy", "target_offsets.npy"])
def test_damaged_data_is_noticed_and_made_again(tokenizers, tmp_path, caplog, name):
    """As many bytes as before, one of them another: nothing but a checksum tells."""
    built = Encoded.build(PAIRS, tokenizers, tmp_path / "data", fingerprint="one")
    labels = [built[i]["labels"].tolist() for i in range(3)]
    file = tmp_path / "data" / name
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} is damaged.*Delete this folder and run again"):
        Encoded(tmp_path / "data")
    data = Encoded.build(PAIRS, tokenizers, tmp_path / "data", fingerprint="one")
    assert f"{tmp_path / 'data'} cannot be used ({name} is damaged" in caplog.text
    assert "Encoding again" in caplog.text
    assert "Delete" not in caplog.text, "there is nothing for the user to do"
    assert [data[i]["labels"].tolist() for i in range(3)] == labels
    assert len(Encoded(tmp_path / "data")) == 3


def test_workers_do_not_read_everything_again(tokenizers, tmp_path, monkeypatch):
    data = Encoded.build(PAIRS, tokenizers, tmp_path / "data")
    monkeypatch.setattr("hf_mlnmt.data.encoded.size_and_crc", lambda path: pytest.fail("read again"))
    assert pickle.loads(pickle.dumps(data))[2]["labels"].tolist() == tokenizers.target("Katze").input_ids


def test_nothing_at_all_can_be_encoded(tokenizers, tmp_path):
    data = Encoded.build([], tokenizers, tmp_path / "data")
    assert len(data) == len(data.source_lengths) == 0


def test_processing_comes_before_the_tokenizer(trained, tmp_path):
    tokenizer = trained["bpe", True]
    lower = Tokenizers(tokenizer, tokenizer, {"source": TextProcessing(lowercase=True)})
    data = Encoded.build([("The Man", "Der Mann")], lower, tmp_path / "data")
    assert data[0]["input_ids"].tolist() == tokenizer("the man").input_ids
    assert data[0]["labels"].tolist() == tokenizer("Der Mann").input_ids


def test_fingerprints_follow_content_and_settings(tokenizers, trained, tmp_path):
    spec = write(tmp_path, PAIRS)
    first = fingerprint_of(spec, tmp_path, tokenizers, max_length=5)
    assert first == fingerprint_of(spec, str(tmp_path), tokenizers, max_length=5)
    other = Tokenizers(tokenizers.source, trained["unigram", True])
    processed = Tokenizers(tokenizers.source, tokenizers.target, {"source": TextProcessing(lowercase=True)})
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", [*PAIRS[:2], ("猫", "Katzf")])
    different = {
        fingerprint_of(spec, tmp_path, tokenizers, max_length=6),
        fingerprint_of(spec, tmp_path, other, max_length=5),
        fingerprint_of(spec, tmp_path, processed, max_length=5),
        fingerprint_of(spec, tmp_path / "other", tokenizers, max_length=5),
        fingerprint_of(CorpusSpec(files=FILES, bad_lines="drop"), tmp_path, tokenizers, max_length=5),
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
    keys = {fingerprint_of(CorpusSpec(path=name), tmp_path, tokenizers) for name in ("a.tsv", "a.csv")}
    assert len(keys) == 2
    (tmp_path / "b.tsv").write_text("a house\tein Haus\n")
    spec, folder = CorpusSpec(path="b.tsv"), tmp_path / "data"
    made = encode_corpus(spec, tmp_path, tokenizers, folder)
    meta = json.loads((folder / "meta.json").read_text())
    for earlier in (1, 2):  # formats in which lengths were counted, and tables read, in other ways
        (folder / "meta.json").write_text(json.dumps({**meta, "format": earlier, "note": "earlier"}))
        assert "note" not in encode_corpus(spec, tmp_path, tokenizers, folder).meta
    assert encode_corpus(spec, tmp_path, tokenizers, folder).meta == made.meta
