"""`translate --shard i/n`: the parts joined are, to the byte, the whole."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import typer
from helpers.toy_translators import SENTENCES
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli.translate import translate
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.lines import Shard

app = typer.Typer()
app.command()(translate)


@pytest.fixture(autouse=True)
def loaded(monkeypatch, pipeline, one_thread):
    """The model is loaded once for all tests."""
    monkeypatch.setattr(TranslationPipeline, "from_pretrained", classmethod(lambda *_, **__: pipeline))


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> list[Path]:
    """44 lines in two files, in 7 windows of 8 lines at most; an empty one, several sentences in one."""
    folder = tmp_path_factory.mktemp("texts")
    first, second = folder / "first.txt", folder / "second.txt.gz"
    lines = [*SENTENCES[:20], "", f"{SENTENCES[20]} {SENTENCES[21]}", *SENTENCES[22:44]]
    first.write_text("".join(line + "\n" for line in lines[:30]))
    second.write_bytes(gzip.compress("".join(line + "\n" for line in lines[30:]).encode()))
    return [first, second]


def run(*arguments) -> bytes:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout_bytes


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--beams", 2], 1),
        (["--beams", 2], 6),
        (["--sample", "--seed", 5, "--draws", "text"], 6),
        (["--beams", 3, "--n-best", 2], 3),
        (["--jsonl", "--scores"], 3),
    ],
    ids=["one", "beam", "sampling", "n-best", "jsonl"],
)
def test_translations_of_shards_joined_are_the_whole(ours, texts, options, count):
    command = [ours, *texts, "--window", 8, "--max-new-tokens", 12, *options]
    shards = [run(*command, "--shard", f"{number}/{count}") for number in range(1, count + 1)]
    assert all(shards)
    assert b"".join(shards) == run(*command)


def test_packed_shards_joined_unpack_to_the_whole(ours, texts, tmp_path):
    command = [ours, *texts, "--window", 8, "--max-new-tokens", 5]
    for number in (1, 2, 3):
        run(*command, "--shard", f"{number}/3", "-o", tmp_path / f"{number}.gz")
    joined = b"".join((tmp_path / f"{number}.gz").read_bytes() for number in (1, 2, 3))
    assert gzip.decompress(joined) == run(*command)


@pytest.mark.parametrize("lines", [1, 7, 8, 9, 64, 1000])
def test_every_line_is_in_one_shard(lines):
    sizes = [min(8, lines - start) for start in range(0, lines, 8)]
    for count in range(1, min(len(sizes), 20) + 1):
        parts = [Shard(number, count).windows(sizes) for number in range(1, count + 1)]
        assert [window for windows, _ in parts for window in windows] == list(range(len(sizes)))
        assert [number for _, numbers in parts for number in numbers] == list(range(lines))
        assert max(len(windows) for windows, _ in parts) - min(len(windows) for windows, _ in parts) <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard", "0/4"], r"--shard 0/4: shards count from 1, so these are 1/4 to 4/4"),
        (["--shard", "5/4"], r"--shard 5/4: expected I/N with I from 1 to N"),
        (["--shard", "2"], r"--shard 2: expected I/N"),
        (["--shard", "1/0"], r"--shard 1/0: expected I/N"),
        (["--shard", "1/7"], r"44 lines are 6 windows of 8, .* 7 shards. Give every shard --window 6\."),
        (["--shard", "1/45"], r"45 shards. Take fewer shards"),
        (["--shard", "1/2", "--sample", "--seed", 1], r"--shard with --sample needs --draws text"),
        (["--draws", "text"], r"draws only acts when sampling"),
    ],
)
def test_shards_that_cannot_be_are_refused(ours, texts, options, message):
    with pytest.raises(UserError, match=message):
        run(ours, *texts, "--window", 8, *options)


def test_standard_input_has_no_shards(ours):
    with pytest.raises(UserError, match="give the names of files"):
        run(ours, "--shard", "1/2")
