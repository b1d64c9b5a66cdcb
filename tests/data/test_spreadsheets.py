"""Corpora as people have them: packed, quoted, of uneven widths, with nothing where a text should be."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import pyarrow
import pytest

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.corpus import CorpusSpec, TextSpec, read_pairs, read_text
from hf_mlnmt.data.filters import FilterReport
from hf_mlnmt.data.lines import checked_lines, read_lines

TEXT = "Ein Haus\nमेरा घर\n"


def zipped(content: bytes, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names or ("a.txt",):
            archive.writestr(name, content)
    return file.getvalue()


def tarred(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("a.txt")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zip": zipped}


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_packed_text_is_told_by_its_first_bytes(tmp_path, pack):
    (tmp_path / "text").write_bytes(pack(TEXT.encode()))
    assert list(read_lines(tmp_path / "text")) == TEXT.splitlines()


@pytest.mark.parametrize("suffix", PACKERS)
def test_packed_tables_are_tables(tmp_path, suffix):
    (tmp_path / f"a.tsv{suffix}").write_bytes(PACKERS[suffix](b"a house\tein Haus\n"))
    assert list(read_pairs(CorpusSpec(path=f"a.tsv{suffix}"), tmp_path)) == [("a house", "ein Haus")]
    assert list(read_text(TextSpec(path=f"a.tsv{suffix}", column=2), tmp_path)) == ["ein Haus"]


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_damaged_packed_file_is_named(tmp_path, suffix):
    packed = PACKERS[suffix](TEXT.encode() * 1000)
    (tmp_path / "a").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match=rf"a: broken {suffix[1:]} file"):
        list(checked_lines(tmp_path / "a", None))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped(b"x\n", "a.txt", "b.txt"), r"holds 2 files \(a\.txt, b\.txt\).*one"),
        (b"7z\xbc\xaf\x27\x1c" + b"\0" * 90, "a 7z archive"),
        (b"Rar!\x1a\x07" + b"\0" * 90, "a rar archive"),
        (b"PAR1\x15" + b"\0" * 90, "parquet"),
        (b"%PDF-1.7\n", "PDF"),
        (tarred(b"x\n"), "a tar archive"),
        (gzip.compress(tarred(b"x\n")), "a tar archive"),
        (b"\xd0\xcf\x11\xe0" + b"\0" * 90, "Office"),
        ("größe\n".encode("utf-16"), "UTF-16"),
    ],
    ids=["zip", "7z", "rar", "parquet", "pdf", "tar", "tar.gz", "office", "utf-16"],  # the bytes hold times
)
def test_what_is_no_text_is_called_by_its_name_and_never_dropped_line_by_line(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(checked_lines(tmp_path / "a", None))


def test_zst(tmp_path):
    frames = [
        pyarrow.compress(line.encode() * 9999, codec="zstd", asbytes=True) for line in TEXT.splitlines(keepends=True)
    ]
    (tmp_path / "a").write_bytes(b"".join(frames))
    assert list(read_lines(tmp_path / "a")) == [line for line in TEXT.splitlines() for _ in range(9999)]
    (tmp_path / "a").write_bytes(b"".join(frames)[:-9])
    with pytest.raises(UserError, match="a: broken zst file"):
        list(read_lines(tmp_path / "a"))


def pairs(tmp_path, name, content, **fields):
    """The pairs of a file, and why others were dropped."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    report = FilterReport()
    return list(read_pairs(CorpusSpec(path=name, **fields), tmp_path, report)), dict(report.dropped)


QUOTED = '"He said ""no""\tto me."\t"Er sagte ""nein"" zu mir."\n"two\nlines"\t"zwei\nZeilen"\nplain\tschlicht\n'
UNQUOTED = [('He said "no"\tto me.', 'Er sagte "nein" zu mir.'), ("two lines", "zwei Zeilen"), ("plain", "schlicht")]


@pytest.mark.parametrize("separator", ["\t", ","])
def test_quotes_of_a_csv_file_are_read_whatever_separates_its_fields(tmp_path, separator):
    found, dropped = pairs(tmp_path, "a.csv", QUOTED.replace("\t", separator))
    assert (found, dropped) == ([(source.replace("\t", separator), target) for source, target in UNQUOTED], {})


def test_fields_that_look_quoted_are_said(tmp_path, caplog):
    line = '"He said ""no"" to me."\t"Er sagte ""nein"" zu mir."\n'
    plain = '"Yes."\t"Ja."\n'
    assert len(pairs(tmp_path, "a.tsv", plain + line)[0]) == 2
    assert all(said in caplog.text for said in ("line 2", "Name the file .csv"))
    caplog.clear()
    pairs(tmp_path, "a.tsv", plain)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("a.tsv", "A house\tis red.\tEin Haus ist rot.\n", {}, r"line 1: .*3 columns.*columns: \{source: 2, target: 3"),
        ("a.tsv", "http://a\thttp://b\tA dog.\tEin Hund.\n", {}, r"line 1: .*4 columns.*columns:"),
        ("a.tsv", "a\tb\nA house\tis red.\tEin Haus ist rot.\n", {}, r"line 2: .*3 columns.*2 expected"),
        ("a.tsv", "1\ta\tb\n2\tc\n", {"columns": {"source": 2, "target": 3}}, r"line 2: .*2 columns.*3 expected"),
        ("a.tsv", "1\ta\tb\n2\tc\td\te\n", {"columns": {"source": 2, "target": 3}}, r"line 2: .*4 columns"),
        ("a.csv", 'a\tb\n"open\tc\n', {}, r"line 2: .*quot"),
        ("a.csv", 'a,"b\nb\nb"\nx,y,z\n', {}, r"line 4: .*3 columns"),
        ("a.csv", "source,target\na,b,c\n", {}, r"line 2: .*3 columns"),
        ("a.json", '[{"source": "a", "target": "b"}, {"source": "a"}]', {}, r"record 2: "),
        ("a.json", '[{"source": "a", "target": "b"}, ', {}, r"a\.json: not valid JSON"),
    ],
)
def test_rows_of_other_widths_are_said(tmp_path, name, content, fields, message):
    with pytest.raises(UserError, match=message):
        pairs(tmp_path, name, content, **fields)


@pytest.mark.parametrize(
    ("name", "content", "dropped"),
    [
        ("a.tsv", "a\tb\nA house\tis red.\tEin Haus ist rot.\nalone\nc\td\n", {"another number of columns": 2}),
        ("a.tsv", "a\tb\n\nc\td\n\n", {"blank line": 2}),
        (
            "a.csv",
            "source,target\na,b\n,,\nc,d\n\n",
            {"another number of columns": 1, "blank line": 1},
        ),
        ("a.csv", 'source;target\na;b\n"x" y;z\nc;d\n', {"broken quoting": 1}),
        (
            "a.jsonl",
            '{"source": "a", "target": "b"}\n{"source": null, "target": "b"}\n{"source": 3, "target": "b"}\n'
            '{"source": NaN, "target": "x"}\n{"sour\n[1]\n{"source": "x"}\n{"source": "c", "target": "d"}\n\n',
            {"no text": 3, "not valid JSON": 1, "no object with fields": 1, "fields missing": 1, "blank line": 1},
        ),
        (
            "a.json",
            json.dumps([{"source": s, "target": t} for s, t in (("a", "b"), (None, "e"), ("c", "d"))], indent=1),
            {"no text": 1},
        ),
    ],
)  # fmt: skip
def test_malformed_rows_are_dropped_and_counted(tmp_path, name, content, dropped):
    assert pairs(tmp_path, name, content, bad_lines="drop") == ([("a", "b"), ("c", "d")], dropped)


def test_null_in_parquet_is_dropped_and_counted(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"source": "a", "target": "b"}, {"source": None, "target": "x"}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    report = FilterReport()
    assert list(read_pairs(CorpusSpec(path="a.parquet", bad_lines="drop"), tmp_path, report)) == [("a", "b")]
    assert report.dropped == {"no text": 1}


def test_blank_lines_of_tables_hold_no_pair(tmp_path):
    for name, content in [
        ("a.tsv", "a\tb\n\n"),
        ("a.csv", "source,target\na,b\n\n"),
        ("a.csv", "\nsource,target\na,b\n"),
        ("a.jsonl", '{"source": "a", "target": "b"}\n\n'),
    ]:
        assert pairs(tmp_path, name, content) == ([("a", "b")], {"blank line": 1})
    columns = {"source": "English", "target": "Deutsch"}
    assert pairs(tmp_path, "a.tsv", "\nEnglish\tDeutsch\na\tb\n", columns=columns) == ([("a", "b")], {"blank line": 1})


@pytest.mark.parametrize("bad", ['"open,offen', 'a "house,"Haus"er', '"x" y,z'])
def test_a_quote_that_is_not_closed_costs_its_own_row_alone(tmp_path, bad):
    good = [f"a{i},b{i}" for i in range(5000)] + ['"c ""q""","d\ne"']
    content = "\n".join([*good[:2], bad, *good[2:]]) + "\n"
    rows = [(f"a{i}", f"b{i}") for i in range(5000)] + [('c "q"', "d e")]
    kept, dropped = pairs(tmp_path, "a.csv", content, bad_lines="drop", columns={"source": 1, "target": 2})
    assert kept == rows
    assert dropped == {"broken quoting": 1}
    with pytest.raises(UserError, match="line 3: broken quoting"):
        pairs(tmp_path, "a.csv", content, columns={"source": 1, "target": 2})


def test_many_quotes_that_are_not_closed(tmp_path):
    kept, dropped = pairs(tmp_path, "a.csv", '"x,y\n' * 3000 + "a,b\n", bad_lines="drop")
    assert (kept, dropped) == ([("a", "b")], {"broken quoting": 3000})


@pytest.mark.parametrize("content", ["source\ttarget\na, b\tc\n", "en-US;de_AT\na, b;c\n"])
def test_what_spreadsheets_put_into_a_csv_file(tmp_path, content):
    languages = {"source": "en", "target": "de"}
    assert pairs(tmp_path, "a.csv", content, languages=languages) == ([("a, b", "c")], {})


def test_the_sign_that_makes_pairs_separates(tmp_path):
    assert pairs(tmp_path, "a.csv", "Hello, you;Hallo, du\n") == ([("Hello, you", "Hallo, du")], {})


def test_a_column_is_named_by_the_first_row(tmp_path):
    (tmp_path / "a.tsv").write_text("words\na\n")
    assert list(read_text(TextSpec(path="a.tsv", column="words"), tmp_path)) == ["a"]
    with pytest.raises(UserError, match=r"line 1: no column 'word' \(did you mean 'words'"):
        list(read_text(TextSpec(path="a.tsv", column="word"), tmp_path))


def test_columns_that_hold_nothing_are_not_proposed(tmp_path):
    with pytest.raises(UserError, match=r"columns: \{source: 1, target: 2\}"):
        pairs(tmp_path, "a.csv", "a,b,,\nc,d,,\n")
    with pytest.raises(UserError, match=r"columns: \{source: 2, target: 3\}"):
        pairs(tmp_path, "a.csv", "1,a,b,\n2,c,d,\n")


@pytest.mark.parametrize("content", ['[{"source": "a", "target": "b"}]', '{"source": "a", "target": "b"}\n'])
def test_json_behind_a_byte_order_mark(tmp_path, content):
    (tmp_path / "a.json").write_text(content, encoding="utf-8-sig")
    assert list(read_pairs(CorpusSpec(path="a.json"), tmp_path)) == [("a", "b")]
