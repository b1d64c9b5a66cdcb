"""`hf-mlnmt tokenizer`: one command, a folder that loads, a report, and mistakes that are named."""

from __future__ import annotations

import gzip

import pytest
from helpers.verbs import of_verbs
from transformers import AutoTokenizer

from hf_mlnmt.cli.tokenizer import tokenizer
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import load_tokenizers

run, _ = of_verbs(tokenizer)


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")


@pytest.fixture
def files(tmp_path, demo):
    for side, name in enumerate(("a.en", "a.de")):
        text = "".join(pair[side] + "\n" for pair in demo["train"][:500])
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path / "a.en.gz", tmp_path / "a.de.gz"


def test_joint_from_files_with_a_report(files, tmp_path):
    check = tmp_path / "check.txt"
    check.write_text("the man\n猫 the\n")
    output = run(*files, "-o", tmp_path / "out", "-v", 500, "--languages", "de, fr", "--tag", "<bt>", "--check", check)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(loaded) <= 500
    assert loaded.extra_special_tokens == ["<2de>", "<2fr>", "<bt>"]
    row = next(line for line in output.splitlines() if "check.txt" in line)
    cells = [cell.strip() for cell in row.split("│")[2:-1]]
    # the man; the beginning of a word, three bytes, the
    assert cells == [str(len(loaded)), "2", "4", "7", "1.750", "0.000%", "42.857%", "5"]
    assert sum(str(path) in output for path in files) == 2


def test_separate_unigram_with_processing_and_without_bytes(files, tmp_path):
    options = ["--separate", "--kind", "unigram", "--no-byte-fallback", "--vocab-size", 200, "--moses", "--lowercase"]
    languages = ["--from", "en", "--to", "de"]
    check = tmp_path / "check.txt"
    check.write_text("猫 the\n")
    sides = ["-s", files[0], "-t", files[1], "--check", check]
    output = run(*sides, "-o", tmp_path / "out", *options, *languages)
    loaded = load_tokenizers(tmp_path / "out")
    assert not loaded.joint
    assert loaded.processing["target"] == TextProcessing("de", moses=True, lowercase=True)
    assert "<0x00>" not in loaded.source.get_vocab()
    assert loaded.source.unk_token_id not in loaded.encode_source(["The Man"])[0]
    assert output.count("check.txt") == 2
    assert "33.333%" in output or "50.000%" in output


def test_bad_lines(files, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"the man\nthe \xff dog\n" * 20)
    with pytest.raises(UserError, match=r"bad\.txt, line 2"):
        run(bad, "-o", tmp_path / "out")
    output = run(bad, files[0], "-o", tmp_path / "out", "-v", 400, "--bad-lines", "drop")
    assert "20 bad lines were left out" in output
    assert "\ufffd" not in AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No text"),
        (["-s", "EN"], "No text"),
        (["EN", "-s", "EN", "-t", "DE"], "either FILES"),
        (["EN", "--separate"], "sides"),
        (["-s", "EN", "-t", "DE", "--moses"], "--from"),
        (["EN", "--vocab-size", "100"], "vocab_size"),
        (["EN", "--vocab-size", "1000000000000"], "vocab_size"),
        (["missing.txt"], "no such file"),
        (["BLANK"], r"blank\.txt: every line is empty"),
    ],
)
def test_mistakes(files, tmp_path, arguments, message):
    (blank := tmp_path / "blank.txt").write_text("\n \n")
    arguments = [{"EN": files[0], "DE": files[1], "BLANK": blank}.get(argument, argument) for argument in arguments]
    with pytest.raises(UserError, match=message):
        run(*arguments, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_is_not_overwritten_unless_told(files, tmp_path):
    arguments = [*files, "-o", tmp_path / "out", "-v", 400]
    run(*arguments)
    with pytest.raises(UserError, match="--overwrite"):
        run(*arguments)
    run(*arguments, "--overwrite", "-k", "unigram")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").backend_tokenizer.model.__class__.__name__ == "Unigram"


def test_remedies_are_those_of_this_command(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(
        UserError, match=r"bad.txt, line 2: invalid UTF-8 \(byte 0xff at column 1\)\. .*--bad-lines drop"
    ):
        run(tmp_path / "bad.txt", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_languages_for_nothing_are_refused(files, tmp_path):
    with pytest.raises(UserError, match=r"are for --moses.*--languages"):
        run("-s", files[0], "-t", files[1], "-o", tmp_path / "out", "--to", "de")


def test_an_output_that_is_a_file_is_refused_before_reading(files, tmp_path):
    with pytest.raises(UserError, match="is a file"):
        run(tmp_path / "missing.txt", "-o", files[0])
