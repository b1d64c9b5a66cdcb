"""`hf-mlnmt import`: the folder's name on stdout, what happened on stderr, mistakes in one line."""

from __future__ import annotations

import sys

import pytest

from hf_mlnmt.cli import main


def run(monkeypatch, capsys, *arguments):
    """Exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["hf-mlnmt", "import", *map(str, arguments)])
    code = 0
    with pytest.raises(SystemExit) as stopped:
        main()
    code = stopped.value.code or 0
    return code, *capsys.readouterr()


def test_a_folder_is_imported(original, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    code, stdout, stderr = run(monkeypatch, capsys, original("marian"), "-o", out)
    assert (code, stdout.strip()) == (0, str(out))
    assert "parameters from" in stderr
    assert "largest difference of logits" in stderr
    assert {"config.json", "model.safetensors", "generation_config.json", "import.json", "vocab.json"} <= {
        path.name for path in out.iterdir()
    }


def test_a_mistake_is_one_message(tmp_path, monkeypatch, capsys):
    code, stdout, stderr = run(monkeypatch, capsys, tmp_path / "nothing", "-o", tmp_path / "out")
    assert (code, stdout) == (1, "")
    assert "Give a model folder or a Hub name" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("junk.pt", b"nothing of PyTorch's", "not a checkpoint of PyTorch, or a damaged one"),
        ("text.txt", b"words", "no checkpoint that can be read"),
        ("model.ckpt", None, "there is no such file or folder"),
    ],
)
def test_files_that_are_no_checkpoints(name, content, message, tmp_path, monkeypatch, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, stdout, stderr = run(monkeypatch, capsys, tmp_path / name, "-o", tmp_path / "out")
    assert (code, stdout) == (1, "")
    assert message in stderr
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_says_what_is_expected(tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    code, _, stderr = run(monkeypatch, capsys, tmp_path / "empty", "-o", tmp_path / "out")
    assert code == 1
    assert "A folder with config.json" in stderr
