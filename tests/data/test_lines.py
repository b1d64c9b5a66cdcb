"""Reading lines: where they end, and what is said of a bad one."""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_mlnmt import documents
from hf_mlnmt.common import languages
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data import corpus
from hf_mlnmt.data.corpus import TextSpec, read_text
from hf_mlnmt.data.filters import FilterReport
from hf_mlnmt.data.formats import _BEGINS, _DOCUMENTS_BEGIN, DOCUMENTS, REFUSED, TABLES, check_output
from hf_mlnmt.data.lines import checked_lines, problem_in, read_lines, reason_of
from hf_mlnmt.data.tokenizer import LineReader
from hf_mlnmt.evaluation.outputs import read_texts
from hf_mlnmt.generation.synthetic.back_translation import text_lines
from hf_mlnmt.generation.translating.lines import file_groups, identities, text_groups


def write(path, content: bytes):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


CLEAN = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=20).map(
    lambda text: text.removeprefix("\ufeff")
)


@settings(max_examples=100, deadline=None)
@given(lines=st.lists(CLEAN, min_size=1), end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), gz=st.booleans())
def test_lines_come_back(tmp_path_factory, lines, end, last, gz):
    lines = [*lines, "end"]
    content = end.join(lines) + (end if last else "")
    path = write(tmp_path_factory.mktemp("lines") / ("a.gz" if gz else "a"), content.encode())
    assert list(read_lines(path)) == lines


def test_only_newlines_end_a_line(tmp_path):
    text = "one\u2028still\x85one"
    assert list(read_lines(write(tmp_path / "a", f"{text}\n\ntwo\n".encode()))) == [text, "", "two"]


def test_gz_is_told_by_content_and_a_byte_order_mark_goes(tmp_path):
    content = b"\xef\xbb\xbfa\nb\n"
    named_gz = tmp_path / "plain.gz"
    named_gz.write_bytes(content)
    assert list(read_lines(named_gz)) == ["a", "b"]
    unnamed = tmp_path / "packed"
    unnamed.write_bytes(gzip.compress(content))
    assert list(read_lines(unnamed)) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a\.txt: the file is empty"),
        (b"good\nb\xe9d\n", r"a\.txt, line 2: invalid UTF-8 \(byte 0xe9 at column 2\)\. Mend the file\.$"),
        (b"good\nx\x00y\n", r"line 2: NUL character \(U\+0000 at column 2\)"),
        (b"bell\x07\n", r"line 1: control character \(U\+0007 at column 5\)"),
        (b"one\rtwo\n", r"line 1: control character \(U\+000D"),
        (b"ok\nok\n" + b"x" * 100_000 + b"\nok\n", r"line 3: over 20,000 characters"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_bad_content(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message.replace(r"a\.txt", name.replace(".", r"\."))):
        list(read_lines(path))


def test_a_block_and_a_line_have_the_same_control_characters(tmp_path):
    """A block's bytes are looked at together, a sentence alone by its characters."""
    for code in range(0x250):
        line = f"x{chr(code)}y"
        if line != "x\ny":
            path = write(tmp_path / "a", f"{line}\nz\n".encode())
            problem = problem_in(line)
            assert list(checked_lines(path, None)) == [(line, problem and reason_of(problem)), ("z", None)]


def test_bad_lines_can_be_reported_instead_and_keep_their_place(tmp_path):
    content = b"good\nb\xe9d\nx\x00y\n" + "é".encode() * 30_000 + b"\nlast\n"
    lines, problems = zip(*checked_lines(write(tmp_path / "a", content), None))
    assert problems == (None, "invalid UTF-8", "NUL character", "over 20,000 characters", None)
    assert [lines[0], lines[4]] == ["good", "last"]
    assert len(lines) == 5


@pytest.mark.parametrize("length", [19_999, 20_000])
def test_the_longest_line_allowed_passes(tmp_path, length):
    for letter in ("x", "猫", "😀"):
        assert list(read_lines(write(tmp_path / "a", (letter * length + "\nb").encode()))) == [letter * length, "b"]


def test_files_that_cannot_be_read(tmp_path):
    write(tmp_path / "train.en", b"x\n")
    with pytest.raises(UserError, match=r"no such file \(did you mean 'train\.en'\?\)"):
        list(read_lines(tmp_path / "trian.en"))
    with pytest.raises(UserError, match="no folder"):
        list(read_lines(tmp_path / "nowhere" / "train.en"))
    with pytest.raises(UserError, match="folder"):
        list(read_lines(tmp_path))


def test_reading_is_lazy(tmp_path):
    path = write(tmp_path / "a", b"one\ntwo\nb\xe9d\n")
    lines = read_lines(path)
    assert [next(lines), next(lines)] == ["one", "two"]


BEGINNINGS = {".arb": b"{", ".ts": b"<!DOCTYPE TS>", ".ps": b"%!PS", ".org": b"* A"}
BEGINNINGS |= {".sub": b"{1}{25}A man.", ".lrc": b"[00:12.00]A man.", ".ass": b"[Script Info]", ".smi": b"<SAMI>"}
DOORS = {
    "translate": lambda path: [identities([str(path)]), *text_groups([str(path)], 5)],
    "a file beside it": lambda path: [*file_groups(path, 5)],
    "as a document": documents.read_file,
    "evaluate": read_texts,
    "back-translate": lambda path: [*text_lines([path], "drop")],
    "tokenizer": lambda path: [*LineReader(True)(path)],
    "corpus": lambda path: [*corpus.side_by_side([path, path], True, FilterReport())],
    "text": lambda path: [*read_text(TextSpec(str(path)))],
}


@pytest.mark.parametrize("door", DOORS)
def test_what_is_known_to_be_no_lines_is_refused_by_name_at_every_door(tmp_path, door):
    """Also packed, and in capitals."""
    read = {"as a document"} - {door}
    for ending in [*REFUSED, *TABLES, *(DOCUMENTS if read else ())]:
        for name in (f"a{ending}", f"a.en{ending.upper()}.gz"):
            path = write(tmp_path / name, BEGINNINGS.get(ending, b"A man.\n"))
            if ending in TABLES and door == "text":  # has columns
                with pytest.raises(UserError, match="say with column"):
                    DOORS[door](path)
                continue
            with pytest.raises(UserError, match=rf"{name}.*(--format text|packed)"):
                DOORS[door](path)
    for content in (b"<?xml version='1.0'?><tmx/>", b"\xef\xbb\xbf\n<!DOCTYPE html>", b"<html><p>A man.</p></html>"):
        with pytest.raises(UserError, match=r"a\.en: is XML or HTML"):
            DOORS[door](write(tmp_path / "a.en", content))


def test_other_endings_are_lines(tmp_path):
    """Of every language, and what people name parts of corpora; and what is said to be text."""
    others = ("txt", "text", "raw", "bpe", "hyp", "ref", "tok", "out", "tc", "clean", "dev", "test", "32k", "spm", "1")
    told = {*_BEGINS, *_DOCUMENTS_BEGIN} - {".xml", ".json", ".csv"}  # these are refused, or tables, otherwise
    for ending in [*languages._CODES, *others, *(ending[1:] for ending in told)]:
        assert list(read_lines(write(tmp_path / f"a.{ending}", b"A <b>man</b>.\n"))) == ["A <b>man</b>."], ending
    for ending in [*REFUSED, *TABLES, *DOCUMENTS]:
        path = write(tmp_path / f"a{ending}", b"A man.\n")
        assert list(text_groups([str(path)], 5, "any")) == [["A man."]]


def test_the_tables_of_endings_are_those_of_the_readers():
    assert {*DOCUMENTS, ".txt", ".xml", ".json", ".csv"} == documents.FORMATS.keys()
    assert {*TABLES} == corpus.FORMATS.keys()
    assert not REFUSED.keys() & {*DOCUMENTS, *TABLES}
    told = _BEGINS.keys() | _DOCUMENTS_BEGIN.keys()
    assert BEGINNINGS.keys() == told - {".xml", ".json", ".csv"}
    assert not {f".{code}" for code in languages._CODES} & ((REFUSED.keys() | {*DOCUMENTS}) - told)


@pytest.mark.parametrize(
    "ending", sorted({*DOCUMENTS, *REFUSED, ".csv", ".parquet"} - _BEGINS.keys() - _DOCUMENTS_BEGIN.keys() | {".csv"})
)
def test_lines_are_not_written_under_the_name_of_another_format(ending):
    with pytest.raises(UserError, match=rf"out{ending}.gz: what is written are lines of text.* Name it \.txt"):
        check_output(f"out{ending}.gz", "a.en")
    check_output(f"out{ending}", f"in{ending}")  # read with --format text
    documents.check_endings("in.srt", "out.SRT.gz")
    with pytest.raises(UserError, match="written in its own format"):
        documents.check_endings("in.srt" if ending != ".srt" else "in.vtt", f"out{ending}")


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (lzma.compress(b"A man.\n", format=lzma.FORMAT_ALONE), ["A man."]),
        (zipped(**{"a.en": "A man.\n", "._a.en": "x", "__MACOSX/._a.en": "x", "b/.DS_Store": "x"}), ["A man."]),
        (zipped(), r"a\.packed: this zip holds no file\. Pack it again\."),
        (zipped(**{"a.en": "a", "a.de": "b"}), r"holds 2 files \(a\.en, a\.de\), and one is read"),
        (b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X", "what macOS keeps beside a file: give the one without"),
    ],
)
def test_what_is_packed(tmp_path, content, expected):
    path = tmp_path / "a.packed"
    path.write_bytes(content)
    if isinstance(expected, list):
        assert list(read_lines(path)) == expected
        return
    with pytest.raises(UserError, match=expected):
        list(read_lines(path))
