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
