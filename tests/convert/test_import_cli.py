"""`hf-mlnmt import`: the folder's name on stdout, what happened on stderr, mistakes in one line."""

from __future__ import annotations

import os
import pickle
import sys

import pytest
import torch

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
        ("junk.pt", b"nothing of PyTorch's", "not a checkpoint of weights alone, or a damaged one"),
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


class Program:
    """In a pickle it would run a command."""

    def __reduce__(self):
        return os.system, ("echo run > it_ran",)


PROGRAMS = {
    "protocol 0": lambda path: path.write_bytes(pickle.dumps({"model": Program()}, protocol=0)),
    "protocol 2": lambda path: path.write_bytes(pickle.dumps({"model": Program()}, protocol=2)),
    "protocol 4": lambda path: path.write_bytes(pickle.dumps({"model": Program()}, protocol=4)),
    "an instruction": lambda path: path.write_bytes(b"(S'echo run > it_ran'\nios\nsystem\n."),
    "saved by torch": lambda path: torch.save({"model": Program()}, path),
    "a module": lambda path: torch.save(torch.nn.Linear(2, 2), path),
    "TorchScript": lambda path: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", PROGRAMS)
def test_code_in_a_checkpoint_is_named_and_never_run(how, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    PROGRAMS[how](tmp_path / "model.pt")
    code, stdout, stderr = run(monkeypatch, capsys, tmp_path / "model.pt", "-o", tmp_path / "out")
    assert (code, stdout) == (1, "")
    assert "Code in a checkpoint is never run" in stderr
    named = {"a module": "torch.nn.modules.linear.Linear", "TorchScript": "TorchScript"}
    if how not in ("protocol 0", "protocol 4", "an instruction"):  # which PyTorch does not read so far as to name it
        assert f"it asks for {named.get(how, f'{os.name}.system')}" in stderr
    assert "weights_only" not in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders")
def test_what_is_no_file(tmp_path, monkeypatch, capsys):
    """A pipe, and links in a circle: nobody waits for them, and nobody takes them for names on the Hub."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    for name in ("pipe", "one"):
        code, _, stderr = run(monkeypatch, capsys, tmp_path / name, "-o", tmp_path / "out")
        assert code == 1
        assert "is no file and no folder" in stderr


@pytest.mark.parametrize("name", ["model.pt", "model.npz", "best.ckpt", "model.00.safetensors"])
def test_a_pipe_in_a_folder_is_not_waited_for(name, tmp_path, monkeypatch, capsys):
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x" / name)
    code, stdout, stderr = run(monkeypatch, capsys, tmp_path / "x", "-o", tmp_path / "out")
    assert (code, stdout) == (1, "")
    assert "no checkpoint that can be read" in stderr or "its config.json is not there" in stderr


def test_an_empty_folder_says_what_is_expected(tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    code, _, stderr = run(monkeypatch, capsys, tmp_path / "empty", "-o", tmp_path / "out")
    assert code == 1
    assert "A folder with config.json" in stderr
