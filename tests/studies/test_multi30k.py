"""The script that checks and fetches Multi30k, against an Internet made of a dictionary."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
from pathlib import Path

import pytest

STUDY = "multi30k"
ROOT = Path(__file__).resolve().parents[2]
TEXTS = {"val.en.gz": b"A dog.\nA cat.\n", "monolingual/train.de.gz": b"Ein Hund.\nEin Ball.\nEin Kind.\n"}


@pytest.fixture
def program(study_module, monkeypatch):
    """The program, with two small files, as the Internet has them: captions of task 2 in five parts, some twice."""
    there = {"task1/raw/val.en.gz": TEXTS["val.en.gz"], "task2/raw/train.1.de.gz": b"Ein Hund.\nEin Ball.\nEin Hund.\n"}
    there |= {f"task2/raw/train.{number}.de.gz": b"Ein Hund.\nEin Kind.\n" for number in range(2, 6)}

    def urlopen(address: str, timeout: int) -> io.BytesIO:
        name = address.removeprefix(study_module.SOURCE + "/")
        if name not in there:
            raise OSError("no route")
        return io.BytesIO(gzip.compress(there[name]))

    files = {name: (text.count(b"\n"), hashlib.sha256(text).hexdigest()) for name, text in TEXTS.items()}
    monkeypatch.setattr(study_module, "FILES", files)
    monkeypatch.setattr(study_module.urllib.request, "urlopen", urlopen)
    study_module.there = there
    return study_module


def test_it_names_what_is_wrong_and_fetches_it(program, tmp_path, capsys):
    (tmp_path / "val.en.gz").write_bytes(gzip.compress(b"A horse.\n"))
    assert program.main([str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert "val.en.gz is another text: 1 lines, where 2 are expected" in errors
    assert "monolingual/train.de.gz is missing" in errors
    (tmp_path / "val.en.gz").write_bytes(b"no gzip")
    assert program.main([str(tmp_path)]) == 1
    assert "val.en.gz is no gzip file" in capsys.readouterr().err
    assert program.main([str(tmp_path), "--fetch"]) == 0
    assert {name: gzip.decompress((tmp_path / name).read_bytes()) for name in TEXTS} == TEXTS
    program.there.clear()  # what is right is not fetched again
    assert program.main([str(tmp_path), "--fetch"]) == 0


def test_a_wrong_text_and_no_network_leave_nothing(program, tmp_path, capsys):
    program.there["task1/raw/val.en.gz"] = b"Another.\n"
    assert program.main([str(tmp_path), "--fetch"]) == 1
    assert "Nothing was written" in capsys.readouterr().err
    program.there.clear()
    assert program.main([str(tmp_path), "--fetch"]) == 1
    assert "cannot be fetched (no route)" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.gz"))


def test_the_recipes_ask_for_no_other_file(study_module):
    named = {
        file
        for path in (ROOT / "training").glob("multi30k-*/*.yaml")
        for file in re.findall(r"(?<=[ {])(?:monolingual/)?[a-z0-9_]+\.(?:en|de|fr|cs)\.gz", path.read_text("utf-8"))
    }
    assert {"train.en.gz", "monolingual/train.de.gz"} <= named <= set(study_module.FILES)


def test_every_page_that_says_dir_says_what_it_is():
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text("utf-8")
        if re.search(r"\bDIR\b", text) and page.name not in ("install.md", "recipes.md"):
            assert "install.md#multi30k)" in text, page
