"""Reading lines: where they end, and what is said of a bad one."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_mlnmt.data.lines import checked_lines, problem_in, read_lines, reason_of
from hf_mlnmt.errors import UserError


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
        ("größe\n".encode("utf-16"), "UTF-16"),
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
    whole = gzip.compress(b"some text\n" * 1000)
    (tmp_path / "half.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="broken gz"):
        list(read_lines(tmp_path / "half.gz"))


def test_reading_is_lazy(tmp_path):
    path = write(tmp_path / "a", b"one\ntwo\nb\xe9d\n")
    lines = read_lines(path)
    assert [next(lines), next(lines)] == ["one", "two"]


def test_tabs_are_no_problem():
    assert problem_in("a\tb") is None
    assert problem_in("a\x7fb") is not None
