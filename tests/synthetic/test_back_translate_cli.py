"""The verb `hf-mlnmt back-translate`."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from hf_mlnmt.cli import app


def invoke(*arguments):
    return CliRunner().invoke(app, ["back-translate", *map(str, arguments)])


def test_it_writes_pairs_and_says_what_was_dropped(folder, texts, tmp_path):
    result = invoke(folder, *texts, "-o", tmp_path / "out", "--method", "top-k", "--top-k", 3, "--seed", 2,
                    "--tag", "<bt>", "--limit", 30, "--max-new-tokens", 12, "--drop", "empty,long")  # fmt: skip
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert content["method"] == {"name": "top-k", "temperature": 1.0, "top_k": 3, "seed": 2}
    assert (content["tag"], content["settings"]["drop"], content["counts"]["read"]) == ("<bt>", ["empty", "long"], 30)
    assert "pairs kept" in result.output
    again = invoke(folder, *texts, "-o", tmp_path / "out", "--method", "top-k", "--top-k", 3, "--seed", 3)
    assert "method, seed: 2 -> 3" in str(again.exception)


def test_a_text_of_blank_lines_is_refused(folder, tmp_path):
    (tmp_path / "blank.txt").write_text("\n \n")
    result = invoke(folder, tmp_path / "blank.txt", "-o", tmp_path / "out")
    assert "blank.txt: every line is blank" in str(result.exception)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_copied_takes_texts_alone_and_mistakes_come_before_the_model(texts, tmp_path):
    assert invoke(*texts, "-o", tmp_path / "out", "--method", "copied").exit_code == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["pairs"]["lines"] == manifest["counts"]["read"] - 1  # one line is empty
    assert manifest["settings"]["drop"] == ["empty", "long", "repeated"]
    refused = invoke(*texts, "-o", tmp_path / "b", "--method", "copied", "--drop", "empty,copied")
    assert "the method copied makes copies alone" in str(refused.exception)
    assert "no option of the method beam" in str(invoke("nowhere", *texts, "-o", tmp_path / "a", "--seed", 1).exception)
    assert "--output DIR is missing" in str(invoke("nowhere", *texts).exception)
    assert "drop: no reason 'copy'" in str(invoke("x", *texts, "-o", tmp_path / "a", "--drop", "copy").exception)
