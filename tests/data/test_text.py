"""Text of one language: the same sentences from every format, encoded like a pair's side, once; mixtures of it."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace

import pytest
from helpers.encoded_text import build

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import build as build_section
from hf_mlnmt.data.corpus import TextSpec, read_text
from hf_mlnmt.data.encoding import encode_corpus, filtered
from hf_mlnmt.data.filters import FilterReport, PairFilter
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.data.training_set import Corpora

TEXTS = ["The man sleeps.", "", 'A "cat" sings.', "猫"]


def make_lines(root):
    (root / "a.txt.gz").write_bytes(gzip.compress("".join(f"{text}\n" for text in TEXTS).encode()))
    return TextSpec(path="a.txt.gz")


def make_tsv(root):
    (root / "a.tsv").write_text("".join(f"{i}\t{text}\n" for i, text in enumerate(TEXTS)))
    return TextSpec(path="a.tsv", column=2)


def make_jsonl(root):
    (root / "a.jsonl").write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS))
    return TextSpec(path="a.jsonl", column="text")


def make_folder(root):
    (root / "set").mkdir()
    (root / "set" / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return TextSpec(dataset="set", column="text")


@pytest.mark.parametrize("make", [make_lines, make_tsv, make_jsonl, make_folder])
def test_every_format_gives_the_same_sentences(make, tmp_path):
    assert list(read_text(make(tmp_path), tmp_path)) == TEXTS


@pytest.mark.parametrize("make", [make_lines, make_jsonl])
def test_a_limit_takes_the_first(make, tmp_path):
    spec = replace(make(tmp_path), limit=2)
    assert list(read_text(spec, tmp_path)) == TEXTS[:2]
    assert spec.reading() != replace(spec, limit=3).reading()


def test_bad_lines(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good\nbad \xff\nalso good\n")
    with pytest.raises(UserError, match=r"a.txt, line 2: invalid UTF-8"):
        list(read_text(TextSpec(path="a.txt"), tmp_path))
    report = FilterReport()
    assert list(read_text(TextSpec(path="a.txt", bad_lines="drop"), tmp_path, report)) == ["good", "also good"]
    assert report.dropped == {"invalid UTF-8": 1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give one of path and dataset"),
        ({"path": "a", "dataset": "b"}, "give one of path and dataset"),
        ({"path": "a.tsv"}, "a.tsv has columns: say with column which one is the text"),
        ({"dataset": "a"}, "a train has columns"),
        ({"path": "a.txt", "column": "x"}, "a.txt has no columns"),
        ({"path": "a.txt", "weight": 0}, "weight must be above 0"),
    ],
)
def test_bad_specs(fields, message):
    with pytest.raises(UserError, match=message):
        build_section(TextSpec, fields, "text")


@pytest.mark.parametrize("side", ["source", "target"])
def test_sentences_are_encoded_like_that_side_of_a_pair(tmp_path, tokenizers, side):
    processing = {"source": TextProcessing("en"), "target": TextProcessing("de", lowercase=True)}
    own = Tokenizers(tokenizers.source, tokenizers.target, processing)
    data = build(TEXTS, own, tmp_path / "data", side=side)
    assert len(data) == len(TEXTS) == data.report.kept
    for index, text in enumerate(TEXTS):
        expected = tokenizers.source(text.lower() if side == "target" else text).input_ids
        assert data[index].keys() == {"input_ids"}
        assert data[index]["input_ids"].tolist() == expected
        assert data.source_lengths[index] == data.target_lengths[index] == len(expected)
    assert pickle.loads(pickle.dumps(data))[2]["input_ids"].tolist() == data[2]["input_ids"].tolist()


def test_it_is_filtered_cut_off_and_done_once(tmp_path, tokenizers):
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in [*TEXTS, "The man sleeps."]))
    spec, keep = TextSpec(path="a.txt", language="en", side="source"), PairFilter(drop_duplicates=True)
    assert list(filtered(spec, tmp_path, keep)) == [TEXTS[0], *TEXTS[2:]]
    longest = len(tokenizers.source(TEXTS[0]).input_ids)
    data = encode_corpus(spec, tmp_path, tokenizers, tmp_path / "data", keep, max_length=longest)
    assert data.report.dropped["empty"] == data.report.dropped["duplicate"] == 1
    assert max(data.source_lengths) <= longest
    before = (tmp_path / "data" / "meta.json").stat().st_mtime_ns
    encode_corpus(spec, tmp_path, tokenizers, tmp_path / "data", keep, max_length=longest)
    assert (tmp_path / "data" / "meta.json").stat().st_mtime_ns == before
    for change in ({"max_length": 999}, {"pair_filter": None}):
        options = {"pair_filter": keep, "max_length": longest, **change}
        again = encode_corpus(spec, tmp_path, tokenizers, tmp_path / "data", **options)
        assert again.meta["fingerprint"] != data.meta["fingerprint"]
    with (tmp_path / "a.txt").open("a") as file:
        file.write("One more.\n")
    assert len(encode_corpus(spec, tmp_path, tokenizers, tmp_path / "data")) == len(TEXTS) + 2
    with pytest.raises(UserError, match=r"no sentence is left(.|\n)*sentences read"):
        encode_corpus(spec, tmp_path, tokenizers, tmp_path / "none", PairFilter(min_length=99))


def test_a_mixture_of_text(tmp_path, tokenizers):
    parts = [build(TEXTS, tokenizers, tmp_path / name, side="source") for name in ("a", "b")]
    assert Corpora(parts).describe() == "8 sentences of 2 corpora"
    assert Corpora(parts).choose(0) is None
    mixture = Corpora(parts, [1, 2])
    assert len(mixture.choose(0)) == 12
    assert mixture[5]["input_ids"].tolist() == parts[1][1]["input_ids"].tolist()
