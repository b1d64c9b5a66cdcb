"""Corpora in every format give the same pairs; what does not fit is named."""

from __future__ import annotations

import gzip
import json

import pytest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import build
from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.filters import FilterReport

PAIRS = [("The man sleeps.", "Der Mann schläft."), ("", ""), ('A "cat" sings.', 'Eine "Katze" singt.')]
LANGUAGES = {"source": "en", "target": "de"}
FILES = {"source": "a.en", "target": "a.de"}


def lines(texts) -> str:
    return "".join(f"{text}\n" for text in texts)


def rows(columns=("en", "de")):
    return [dict(zip(columns, pair)) for pair in PAIRS]


def make_files(root):
    (root / "a.en").write_text(lines(source for source, _ in PAIRS))
    (root / "a.de.gz").write_bytes(gzip.compress(lines(target for _, target in PAIRS).encode()))
    return CorpusSpec(files={"source": "a.en", "target": "a.de.gz"})


def make_tsv(root):
    (root / "a.tsv").write_text(lines("\t".join(pair) for pair in PAIRS))
    return CorpusSpec(path="a.tsv")


def make_tsv_with_header(root):
    text = lines(["id\tde\ten", *(f"{i}\t{target}\t{source}" for i, (source, target) in enumerate(PAIRS))])
    (root / "a.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return CorpusSpec(path="a.tsv.gz", columns=LANGUAGES)


def make_jsonl(root):
    (root / "a.jsonl").write_text(lines(json.dumps(row) for row in rows(("source", "target"))))
    return CorpusSpec(path="a.jsonl")


def make_jsonl_translation(root):
    (root / "a.jsonl").write_text(lines(json.dumps({"id": 1, "translation": row}) for row in rows()))
    return CorpusSpec(path="a.jsonl", languages=LANGUAGES)


def make_parquet(root):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows()), root / "a.parquet")
    return CorpusSpec(path="a.parquet", columns=LANGUAGES)


def make_saved_dataset(root):
    from datasets import Dataset, DatasetDict

    DatasetDict({"train": Dataset.from_list([{"translation": row} for row in rows()])}).save_to_disk(root / "saved")
    return CorpusSpec(dataset="saved", languages=LANGUAGES)


def make_dataset_folder(root):
    make_parquet(root)
    (root / "folder").mkdir()
    (root / "a.parquet").rename(root / "folder" / "validation.parquet")
    return CorpusSpec(dataset="folder", split="validation", columns=LANGUAGES)


MAKERS = [value for name, value in sorted(globals().items()) if name.startswith("make_")]


@pytest.mark.parametrize("make", MAKERS)
def test_every_format_gives_the_same_pairs(tmp_path, monkeypatch, make):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    spec = make(tmp_path)
    assert list(read_pairs(spec, tmp_path)) == PAIRS
    assert str(spec)


def test_streaming_data_set(tmp_path):
    spec = make_dataset_folder(tmp_path)
    spec.streaming = True
    assert list(read_pairs(spec, tmp_path)) == PAIRS


@pytest.mark.parametrize("bad", ['{"source": "a"', "\xff"])
def test_a_line_that_is_no_record_is_named(tmp_path, monkeypatch, bad):
    """Of a data set its folder is, since `datasets` names no line."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    good = json.dumps({"source": "The man.", "target": "Der Mann."})
    (tmp_path / "set" / "train.jsonl").write_bytes("\n".join([good, good, bad, good]).encode("latin-1"))
    for streaming in (True, False):
        with pytest.raises(UserError, match=r"set.*: (cannot be loaded|what follows record 0 cannot be read)"):
            list(read_pairs(CorpusSpec(dataset="set", streaming=streaming), tmp_path))
    with pytest.raises(UserError, match=r"set/train\.jsonl, line 3: .*bad_lines: drop"):
        list(read_pairs(CorpusSpec(path="set/train.jsonl"), tmp_path))
    assert len(list(read_pairs(CorpusSpec(path="set/train.jsonl", bad_lines="drop"), tmp_path))) == 3


@pytest.mark.parametrize(("source", "target"), [(5, 3), (3, 5), (4, 1)])
def test_sides_of_different_length(tmp_path, source, target):
    (tmp_path / "a.en").write_text("x\n" * source)
    (tmp_path / "a.de").write_text("y\n" * target)
    with pytest.raises(UserError, match=rf"a\.en has {source} lines and .*a\.de has {target}:"):
        list(read_pairs(CorpusSpec(files=FILES), tmp_path))


def test_bad_lines_are_dropped_with_their_partners_and_counted(tmp_path):
    (tmp_path / "a.en").write_bytes(b"one\ntw\xffo\nthree\nfour\n")
    (tmp_path / "a.de").write_bytes(b"eins\nzwei\ndr\x00ei\nvier\n")
    with pytest.raises(UserError, match=r"a\.en, line 2: invalid UTF-8"):
        list(read_pairs(CorpusSpec(files=FILES), tmp_path))
    report = FilterReport()
    spec = CorpusSpec(files=FILES, bad_lines="drop")
    assert list(read_pairs(spec, tmp_path, report)) == [("one", "eins"), ("four", "vier")]
    assert report.dropped == {"invalid UTF-8": 1, "NUL character": 1}


def test_a_record_is_minded_like_a_line(tmp_path):
    texts = ("a", "b\0", "c\nd", "e\udc00")
    (tmp_path / "a.jsonl").write_text(lines(json.dumps({"source": s, "target": "x"}) for s in texts))
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: NUL"):
        list(read_pairs(CorpusSpec(path="a.jsonl"), tmp_path))
    report = FilterReport()
    spec = CorpusSpec(path="a.jsonl", bad_lines="drop")
    assert list(read_pairs(spec, tmp_path, report)) == [("a", "x"), ("c d", "x")]
    assert report.dropped == {"NUL character": 1, "half of a character": 1}


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("a.tsv", "a\tb\nc\n", {}, r"a\.tsv, line 2: .*1 columns, 2 expected"),
        (
            "a.tsv",
            "en\tde\nc\td\n",
            {"columns": {"source": "en", "target": "deu"}},
            r"no column 'deu'.*did you mean 'de'",
        ),
        ("a.tsv", "a\tb\n", {"columns": {"source": 0, "target": 1}}, "counted from 1"),
        ("a.jsonl", '{"source": "a", "target": "b"}\n{"sour\n', {}, r"a\.jsonl, line 2: not valid JSON"),
        (
            "a.jsonl",
            '{"source": "a", "target": "b\\ud800"}\n',
            {},
            r"line 1: half of a character \(U\+D800 at column 2\)",
        ),
        ("a.tsv", "en\tde\nc\td\n", {}, r"line 1: looks like a header \(en, de\).*columns: \{source: en, target: de\}"),
        ("a.tsv", "id\tGerman\tEnglish\n1\tc\td\n", {}, "looks like a header"),
        ("a.jsonl", "[1]\n", {}, "line 1: no object with fields"),
        ("a.jsonl", '{"en": "a", "de": "b"}\n', {}, r"'source' and 'target' expected, found en, de"),
        ("a.jsonl", '{"source": "a", "target": null}\n', {}, "field 'target' is null"),
        ("a.parquet", "no parquet", {}, "cannot be read as parquet"),
        ("a.xml", "a,b\n", {}, r"\.tsv, \.csv, \.jsonl"),
    ],
)
def test_bad_files(tmp_path, name, content, fields, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        list(read_pairs(CorpusSpec(path=name, **fields), tmp_path))


@pytest.mark.parametrize(
    ("header", "languages"), [("Target\tid\tSource", None), ("tgt\tx\tsrc", None), ("de\tid\ten", LANGUAGES)]
)
def test_a_tsv_header_that_names_the_sides_is_taken_and_said(tmp_path, caplog, header, languages):
    (tmp_path / "a.tsv").write_text(f"{header}\nHaus\t1\thouse\n")
    assert list(read_pairs(CorpusSpec(path="a.tsv", languages=languages), tmp_path)) == [("house", "Haus")]
    assert "line 1: is a header" in caplog.text


def test_first_lines_that_are_pairs_stay_pairs(tmp_path, caplog):
    for first, fields in [
        ("Is\tDe", {}),  # codes, were they in small letters
        ("the source\tthe target", {}),
        ("source\tla source", {}),
        ("en\tde", {"columns": {"source": 1, "target": 2}}),
    ]:
        (tmp_path / "a.tsv").write_text(f"{first}\nHaus\thouse\n")
        assert next(read_pairs(CorpusSpec(path="a.tsv", **fields), tmp_path)) == tuple(first.split("\t"))
    assert caplog.text == ""


def test_missing_files_and_data_sets(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no such file"):
        list(read_pairs(CorpusSpec(files=FILES), tmp_path))
    with pytest.raises(UserError, match="no such file"):
        list(read_pairs(CorpusSpec(path="a.parquet"), tmp_path))
    make_saved_dataset(tmp_path)
    with pytest.raises(UserError, match="data set 'saved test': cannot be loaded"):
        list(read_pairs(CorpusSpec(dataset="saved", split="test", languages=LANGUAGES), tmp_path))
    with pytest.raises(UserError, match="data set 'nobody/nothing train': cannot be loaded"):
        list(read_pairs(CorpusSpec(dataset="nobody/nothing"), tmp_path))

    def refuse(*args, **options):
        raise ConnectionError  # without a text

    monkeypatch.setattr("datasets.load_dataset", refuse)
    with pytest.raises(UserError, match=r"cannot be loaded \(ConnectionError: ConnectionError\)"):
        list(read_pairs(CorpusSpec(dataset="nobody/nothing"), tmp_path))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "one of files, path, dataset and synthetic, not none"),
        ({"path": "a", "dataset": "b"}, "not path and dataset"),
        ({"files": {"source": "a"}}, "files needs 'source' and 'target'"),
        ({"files": {"source": "a", "target": 3}}, "train: files.target: expected text, not 3"),
        ({"path": "a", "weight": 0}, "weight must be above 0"),
        ({"path": "a", "limit": 0}, "limit must be at least 1"),
        ({"path": "a", "weight": float("nan")}, "weight must be a finite number"),
        ({"path": "a", "weight": 1e12}, "weight must be at most 1,000, not 1000000000000.0"),
        (
            {"path": "a", "columns": {"source": 1, "target": 1}, "languages": {"source": "en", "target": "de"}},
            "columns: both sides are 1, and the languages are en and de",
        ),
        ({"path": "a", "bad_lines": "skip"}, "'skip' is not one of error, drop"),
        ({"path": "a", "langauges": {}}, r"langauges: unknown key \(did you mean 'languages'\?\)"),
    ],
)
def test_bad_specs(fields, message):
    with pytest.raises(UserError, match=message):
        build(CorpusSpec, fields, "train")


def test_files_are_read_in_the_languages_that_their_names_say(tmp_path):
    for code in ("en", "de", "txt"):
        (tmp_path / f"a.{code}").write_text(f"{code}\n")
    languages = {"source": "en", "target": "de"}
    for files in (("a.en", "a.de"), ("a.en", "a.txt"), ("a.en", "a.en")):  # copies are trained on, too
        spec = CorpusSpec(files=dict(zip(languages, files)), languages=languages)
        assert list(read_pairs(spec, tmp_path)) == [tuple(name[2:] for name in files)]
    files = {"source": "a.de", "target": "a.en"}
    with pytest.raises(UserError, match=r"a.de: its name says de, but it is read as en. Mend .*reverse: true"):
        CorpusSpec(files=files, languages=languages)
    assert list(read_pairs(CorpusSpec(files=files, languages=languages, reverse=True), tmp_path)) == [("en", "de")]
