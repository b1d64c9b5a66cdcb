"""Files are whole or not there: what a failure in the middle of writing leaves behind."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.files import (
    _machine,
    atomic_folder,
    atomic_path,
    check_file,
    check_folder_name,
    check_new_folder,
    file_name,
    is_full_disk,
    keeping,
    read_json,
    size_and_crc,
    write_json,
    write_text,
)
from hf_mlnmt.data.lines import read_lines

posix = pytest.mark.skipif(os.name != "posix", reason="permissions, links and pipes of POSIX")


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
    assert write_json(tmp_path / "a.json", {"de": "Straße"}).read_bytes() == '{\n  "de": "Straße"\n}\n'.encode()


def test_suggestions_name_the_nearest_word():
    assert suggest("transfomer", ["transformer", "s-agg"]) == " (did you mean 'transformer'?)"
    assert suggest("xyz", ["transformer"]) == ""


@posix
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


@posix
def test_what_a_link_points_to_is_written_and_the_link_stays(tmp_path: Path):
    kept = tmp_path / "elsewhere" / "kept.txt"
    write_text(kept, "old")
    link = tmp_path / "link"
    link.symlink_to(kept)
    write_text(link, "new")
    assert link.is_symlink()
    assert kept.read_text() == "new"
    (tmp_path / "dangling").symlink_to(tmp_path / "not" / "yet.txt")
    write_text(tmp_path / "dangling", "first")
    assert (tmp_path / "dangling").is_symlink()
    assert (tmp_path / "not" / "yet.txt").read_text() == "first"
    assert [path.name for path in kept.parent.iterdir()] == ["kept.txt"]


@posix
def test_a_linked_folder_is_replaced_where_it_lies(tmp_path: Path):
    (tmp_path / "disk" / "model").mkdir(parents=True)
    (tmp_path / "disk" / "model" / "weights").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "model")
    with atomic_folder(tmp_path / "link") as new:
        (new / "weights").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "model" / "weights").read_text() == "new"
    assert os.listdir(tmp_path / "disk") == ["model"]


@posix
@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_through_and_stays_a_pipe(tmp_path: Path, linked: bool):
    pipe, name = tmp_path / "pipe", tmp_path / ("link" if linked else "pipe")
    os.mkfifo(pipe)
    if linked:
        name.symlink_to(pipe)
    read: list[str] = []
    # A thread of its own, not waited for at the end: if the pipe were replaced, nobody would ever write to it.
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(name, "through")
    reader.join(timeout=200)
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert name.is_symlink() == linked
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", name.name}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no such names here")
def test_names_of_open_files_are_written_through(tmp_path: Path):
    """`-o /dev/stdout > file`: the link behind it is the system's own; its "target" may not be replaced."""
    opened = tmp_path / "opened"
    with opened.open("w") as stream:
        (tmp_path / "stdout").symlink_to(f"/proc/self/fd/{stream.fileno()}")
        inode = opened.stat().st_ino
        write_text(tmp_path / "stdout", "x")
        assert (tmp_path / "stdout").is_symlink()
    assert opened.stat().st_ino == inode
    assert opened.read_text() == "x"


@posix
def test_a_folder_is_no_file_and_a_file_no_folder(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name in ("folder", "link"):
        with pytest.raises(UserError, match=rf"{name}: is a folder.*Give the name of a file"):
            write_text(tmp_path / name, "x")
    write_text(tmp_path / "file", "kept")
    with (
        pytest.raises(UserError, match=r"file: is a file\. Choose the name of a folder"),
        atomic_folder(tmp_path / "file"),
    ):
        pass
    for check in (check_file, check_folder_name):
        with pytest.raises(UserError, match=r"new: .*file is not a folder"):
            check(tmp_path / "file" / "new")
    assert (tmp_path / "file").read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "link", "file"}


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kind", [atomic_path, atomic_folder])
def test_where_nothing_can_be_written_one_message_says_so(tmp_path: Path, monkeypatch, kind, code):
    def refuse(path, *arguments, **options):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with (
        pytest.raises(UserError, match=r"new.name: (cannot be written|no space left)"),
        kind(tmp_path / "new" / "name"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_library_in_rust_that_may_write_no_more_is_one_message_too(tmp_path: Path):
    """safetensors raises an error of its own, with the system's number in its text."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (
        pytest.raises(UserError, match=r"model: cannot be written \(File too large\)"),
        atomic_folder(tmp_path / "model") as new,
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            save_file({"weight": torch.zeros(1000)}, new / "model.safetensors")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_place_without_permission_is_refused_before_the_work(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for check in (check_file, check_folder_name):
        with pytest.raises(UserError, match=rf"{re.escape(str(tmp_path))} gives no permission"):
            check(tmp_path / "new")


def test_errors_of_other_files_keep_their_own_words(tmp_path: Path):
    with pytest.raises(PermissionError, match="unrelated"), atomic_path(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "Permission denied", "/somewhere/unrelated")
    assert list(tmp_path.iterdir()) == []


@posix
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path):
    path = write_text(tmp_path / "a", "x")
    path.chmod(0o600)
    write_text(path, "y")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_full_disks_by_all_their_words(tmp_path: Path):
    for error in (
        OSError(errno.ENOSPC, "Auf dem Gerät ist kein Speicherplatz mehr verfügbar"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ):
        assert is_full_disk(error, tmp_path)
        with pytest.raises(UserError, match="no space left"), atomic_folder(tmp_path / "a"):
            raise error
    with (
        pytest.raises(UserError, match=rf"^{re.escape(str(tmp_path / 'a'))}: no space left"),
        atomic_folder(tmp_path / "a") as folder,
        atomic_path(folder / "b"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not is_full_disk(RuntimeError("another"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_exchange_of_folders_puts_the_old_one_back(tmp_path: Path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("")
    replace = os.replace

    def interrupted(source, target):
        if str(source).endswith(".part"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "model"):
        pass
    assert os.listdir(tmp_path) == ["model"]
    assert os.listdir(tmp_path / "model") == ["old"]


def test_a_changed_byte_changes_the_checksum(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(bytes(100))
    before = size_and_crc(path)
    path.write_bytes(bytes(99) + b"\x01")
    assert before[0] == size_and_crc(path)[0] == 100
    assert before != size_and_crc(path)


def test_force_replaces_only_what_is_of_the_kind(tmp_path: Path):
    check_new_folder(tmp_path / "new", False, "config.json")
    (tmp_path / "empty").mkdir()
    check_new_folder(tmp_path / "empty", True, "config.json")
    (tmp_path / "home" / "letters").mkdir(parents=True)
    for force, message in ((False, "is there already"), (True, "has no config.json, so --force does not")):
        with pytest.raises(UserError, match=message):
            check_new_folder(tmp_path / "home", force, "config.json")
    write_text(tmp_path / "home" / "config.json", "{}")
    check_new_folder(tmp_path / "home", True, "config.json")
    with pytest.raises(UserError, match="is a file"):
        check_new_folder(tmp_path / "home" / "config.json", True, "config.json")


@pytest.mark.parametrize("name", ["../../../x", "/tmp/x", "..", ".", "", "a\0b", "<b>`", "ä" * 300, "a\nb", "\ud800"])
def test_a_name_from_a_file_is_part_of_a_file_name_and_never_a_path(tmp_path: Path, name: str):
    assert file_name("m-10.multi30k-ende@2+x_y") == "m-10.multi30k-ende@2+x_y"
    made = file_name(name)
    assert (tmp_path / made).parent == tmp_path
    assert made not in ("", ".", "..")
    write_text(tmp_path / f"{made}.seed1.counts.gz", "x")
    assert len(list(tmp_path.iterdir())) == 1


def test_long_names_stay_apart():
    assert file_name("a" * 400 + "b") != file_name("a" * 400 + "c")


@posix
def test_nothing_takes_the_place_of_an_input(tmp_path: Path):
    text, model = write_text(tmp_path / "text.de", "text"), tmp_path / "model"
    write_text(model / "config.json", "{}")
    (tmp_path / "link.de").symlink_to(text)
    with keeping([text, model / "config.json"]):
        for path in (text, tmp_path / "link.de", tmp_path / "model" / ".." / "text.de"):
            with pytest.raises(UserError, match="is one of the inputs"):
                write_text(path, "new")
        for path in (model, tmp_path):
            with pytest.raises(UserError, match="is or holds an input"), atomic_folder(path):
                pass
        with pytest.raises(UserError, match="is or holds an input"):
            check_new_folder(model, True, "config.json")
        write_text(tmp_path / "other.de", "new")
    assert text.read_text() == "text"
    write_text(text, "new")


def test_what_a_killed_process_left_is_cleared_and_what_a_running_one_writes_is_not(tmp_path: Path):
    killed = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    here, elsewhere = _machine(), "0" * 8  # a disk may be shared by several machines
    owners = [(here, int(killed.stdout)), (here, os.getppid()), (elsewhere, int(killed.stdout))]
    gone, *kept = (tmp_path / f".out.{machine}.{number}.ab.part" for machine, number in owners)
    kept.append(tmp_path / ".out.x")
    for path in (gone, *kept):
        path.mkdir()
    with atomic_folder(tmp_path / "out"):
        assert not gone.exists()
    assert all(path.exists() for path in kept)


@pytest.mark.skipif(sys.platform != "linux", reason="names of other systems are text")
def test_names_that_are_not_utf_8_are_written_as_json_has_them(tmp_path):
    name = os.fsdecode(b"lat\xe4")
    folder = tmp_path / name
    folder.mkdir()
    path = write_json(folder / "a.json", {"name": name})
    assert path.read_bytes() == b'{\n  "name": "lat\\udce4"\n}\n'
    assert read_json(path) == {"name": name}
    with pytest.raises(UserError, match=r"not UTF-8.*Rename it"):
        check_folder_name(folder / "model")


@pytest.mark.parametrize("name", ["a.json.gz", "a.json.bz2", "a.json.xz", "a.json.zst", "a.XZ"])
def test_text_is_packed_as_its_name_says(tmp_path: Path, name: str):
    if name.endswith("zst"):
        pytest.importorskip("zstandard")
    path = write_json(tmp_path / name, {"a": "ä"})
    packed = path.read_bytes()
    assert not packed.startswith(b"{")
    assert "".join(read_lines(path, form="any")) == '{  "a": "ä"}'
    assert read_json(path) == {"a": "ä"}
    assert write_json(path, {"a": "ä"}).read_bytes() == packed, "no time and no name is in it"
    path.write_bytes(packed[:-9])
    with pytest.raises(UserError, match="not valid JSON"):
        read_json(path)


def test_endings_of_other_packers_are_refused_before_work_begins(tmp_path: Path, monkeypatch):
    for name in ("a.zip", "a.tsv.7z", "a.tar"):
        with pytest.raises(UserError, match="nothing is packed as"):
            check_file(tmp_path / name)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UserError, match="pip install zstandard"):
        check_file(tmp_path / "a.zst")
    assert not list(tmp_path.iterdir())
