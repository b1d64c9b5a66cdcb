"""Writing files so that a reader never sees half of one: write under a temporary name, then rename."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_mlnmt.errors import UserError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it replaces `path`, on failure `path` is as it was."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise _explain(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`; on success it takes the place of `path` (an old one is removed)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    # mkdtemp makes it private; a published or shared folder follows the user's umask like any other.
    temporary.chmod(0o777 & ~_umask())
    try:
        yield temporary
        follow_umask(temporary)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
            os.replace(path, old / path.name)
            os.replace(temporary, path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, path)
    except OSError as error:
        raise _explain(error, path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def follow_umask(folder: Path) -> None:
    """Give the files of a folder the mode that the user's umask says: some libraries write private ones (safetensors).

    Only modes that forbid more than the umask does are changed.
    """
    mode = 0o666 & ~_umask()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & mode != mode:
            path.chmod(path.stat().st_mode | mode)


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def write_text(path: str | Path, text: str) -> Path:
    """Write UTF-8 text atomically; returns the path."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_json(path: str | Path, value: Any) -> Path:
    """Write indented JSON atomically, keys in the given order; returns the path."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _explain(error: OSError, path: Path) -> Exception:
    if error.errno == errno.ENOSPC:
        return UserError(
            f"{path}: no space left on the device; what was there before is untouched. "
            "Free some space and run the same command again."
        )
    if error.errno in (errno.EACCES, errno.EROFS):
        return UserError(f"{path}: cannot be written ({error.strerror}). Choose another folder.")
    return error
