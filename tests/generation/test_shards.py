"""`--shard i/n` of translate and back-translate: the parts joined are, to the byte, the whole."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from pathlib import Path

import pytest
import typer
from helpers.toy_translators import SENTENCES
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli.translate import translate
from hf_mlnmt.data.corpus import find_synthetic
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.synthetic.back_translation import Method, Settings, back_translate
from hf_mlnmt.generation.synthetic.journal import STATE, Journal
from hf_mlnmt.generation.translating.lines import Shard

app = typer.Typer()
app.command()(translate)
CORPUS = ("source.txt", "target.txt", "manifest.json")
FEW = Settings(window=8, max_new_tokens=12, drop=("empty", "long"))


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


@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize(
    "options",
    [
        ["--beams", 2],
        ["--sample", "--seed", 5, "--draws", "text"],
        ["--beams", 3, "--n-best", 2],
        ["--jsonl", "--scores"],
    ],
    ids=["beam", "sampling", "n-best", "jsonl"],
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


def whole_and_parts(texts, tmp_path, method=None, settings=FEW, count=3, **more) -> tuple[Path, Path]:
    """A corpus made at once, and the folder of its shards, made in another order."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    model = None if method and method.name == "copied" else tmp_path
    if not whole.exists():
        back_translate(model, texts, whole, method, settings, **more)
    for number in random.Random(1).sample(range(1, count + 1), count):
        back_translate(model, texts, parts, method, settings, shard=Shard(number, count), **more)
    return whole, parts


@pytest.mark.parametrize(
    ("method", "settings", "more"),
    [
        (Method("sampling", seed=3), FEW, {"tag": "<bt>"}),
        (Method("noised", beams=2, seed=3), Settings(window=5, limit=33, max_new_tokens=12), {"forward": True}),
        (Method("copied"), Settings(window=8, drop=("long",)), {}),
    ],
    ids=["sampling", "noised", "copied"],
)
def test_a_corpus_put_together_of_shards_is_the_whole(texts, tmp_path, monkeypatch, method, settings, more):
    monkeypatch.setattr(
        "hf_mlnmt.generation.synthetic.back_translation.doubts_about_language", lambda *arguments: ["a doubt"]
    )
    whole, parts = whole_and_parts(texts, tmp_path, method, settings, **more)
    with pytest.raises(UserError, match="its shards are not put together"):
        find_synthetic(parts)
    model = None if method.name == "copied" else tmp_path
    manifest = back_translate(model, texts, parts, method, settings, **more)
    assert manifest.folder == parts
    for name in CORPUS:
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
        if name != "manifest.json":
            joined = b"".join((parts / f"shard-{number}-of-3" / name).read_bytes() for number in (1, 2, 3))
            assert joined == (whole / name).read_bytes()
    assert find_synthetic(parts) == parts
    # A shard that is started again, after its folder is deleted too, has nothing to do.
    shutil.rmtree(parts / "shard-1-of-3")
    assert back_translate(model, texts, parts, method, settings, shard=Shard(1, 3), **more).folder == parts


def test_an_interrupted_shard_goes_on_and_so_does_the_putting_together(texts, tmp_path, monkeypatch):
    method = Method("sampling", seed=3)
    append = Journal.append

    def stop_after_one(self, *arguments, **more):
        append(self, *arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", stop_after_one)
    with pytest.raises(KeyboardInterrupt):
        back_translate(tmp_path, texts, tmp_path / "parts", method, FEW, shard=Shard(2, 3))
    monkeypatch.setattr(Journal, "append", append)
    with pytest.raises(UserError, match=r"shard-1-of-3: this shard is not finished. .* --shard 1/3"):
        back_translate(tmp_path, texts, tmp_path / "parts", method, FEW)
    whole, parts = whole_and_parts(texts, tmp_path, method)

    replace = os.replace

    def stop_at_target(source, target):
        if Path(target).name == "target.txt":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", stop_at_target)
    with pytest.raises(KeyboardInterrupt):
        back_translate(tmp_path, texts, parts, method, FEW)
    assert (parts / STATE).exists()
    monkeypatch.setattr(os, "replace", replace)
    back_translate(tmp_path, texts, parts, method, FEW)
    for name in CORPUS:
        assert (parts / name).read_bytes() == (whole / name).read_bytes()


def test_shards_of_something_else_are_refused(texts, tmp_path, monkeypatch):
    out, method = tmp_path / "out", Method("copied")
    settings = Settings(window=8, drop=())

    def make(shard=None, settings=settings, output=out):
        return back_translate(None, texts, output, method, settings, shard=shard)

    make(Shard(1, 2))
    make(Shard(2, 2), Settings(window=8, drop=("long",)))
    with pytest.raises(UserError, match=r"shard-2-of-2: holds a corpus \(finished\) of something else:\n  drop"):
        make()
    make(Shard(1, 3))
    with pytest.raises(UserError, match=r"out: holds shards of 2, of 3\. Delete those"):
        make()
    with pytest.raises(UserError, match=r"6 windows of 8.* 9 shards"):
        make(Shard(1, 9))
    with pytest.raises(UserError, match="Leave duplicate out"):
        make(Shard(1, 2), Settings(drop=("duplicate",)))
    monkeypatch.setattr(Journal, "finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(output=tmp_path / "begun")
    with pytest.raises(UserError, match="begun: was begun without --shard"):
        make(Shard(1, 2), output=tmp_path / "begun")
