"""Files are whole or not there: what a failure in the middle of writing leaves behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.files import atomic_folder, atomic_path, write_json, write_text


def test_a_failed_write_keeps_the_old_file(tmp_path: Path):
    path = write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_folder_keeps_the_old_folder(tmp_path: Path):
    folder = tmp_path / "model"
    for text in ("first", "second"):
        with atomic_folder(folder) as temporary:
            (temporary / "weights").write_text(text)
    with pytest.raises(RuntimeError), atomic_folder(folder) as temporary:
        (temporary / "weights").write_text("half")
        raise RuntimeError
    assert (folder / "weights").read_text() == "second"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_full_disk_is_told_as_such(tmp_path: Path):
    with pytest.raises(UserError, match=r"a\.txt: no space left .*same command again"), atomic_path(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_json_is_readable_text(tmp_path: Path):
    assert write_json(tmp_path / "a.json", {"de": "Straße"}).read_text() == '{\n  "de": "Straße"\n}\n'


def test_suggestions_name_the_nearest_word():
    assert suggest("transfomer", ["transformer", "s-agg"]) == " (did you mean 'transformer'?)"
    assert suggest("xyz", ["transformer"]) == ""


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_of_a_folder_follow_the_umask(tmp_path: Path, umask: int, mode: int):
    """Also those that a library wrote for its user alone, as safetensors does; what may be run stays so."""
    before = os.umask(umask)
    try:
        with atomic_folder(tmp_path / "model") as new:
            (new / "inner").mkdir()
            for name, private in (("weights", 0o600), ("inner/weights", 0o600), ("script", 0o700)):
                (new / name).touch()
                (new / name).chmod(private)
    finally:
        os.umask(before)
    found = {
        name: (tmp_path / "model" / name).stat().st_mode & 0o777 for name in ("weights", "inner/weights", "script")
    }
    assert found == {"weights": mode, "inner/weights": mode, "script": 0o700 | mode}
