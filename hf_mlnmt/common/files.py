"""Writes files so that a reader never sees half of one: under a temporary name, which is then renamed.

How a path is written depends on what is there:

a regular file, or nothing       | written under a temporary name, then renamed
a link                           | the file that it points to is written, the link stays
a device, a pipe                 | written directly, not replaced
a folder where a file is wanted, | refused
or a file where a folder is      |

Text is compressed by the ending of its file's name: .gz, .bz2, .xz, .zst; endings of other packers are refused.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import variable

_FULL = (errno.ENOSPC, errno.EDQUOT)
# Numbers of system errors whose cause is the path that the user chose, not the program.
_UNWRITABLE = {errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
_UNWRITABLE |= {errno.ENXIO, errno.EBUSY, errno.EIO, errno.EFBIG}
_SMALL_DISK = 64 * 2**20  # bytes
_PACKERS = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "zstandard"}
_NO_PACKERS = (".zip", ".7z", ".rar", ".tar", ".tgz", ".lz4", ".lzma")
_LONGEST = 200  # bytes of a name made by `file_name`, which leaves room for a suffix and for temporary names
_inputs: tuple[Path, ...] = ()


def file_name(text: str) -> str:
    """Converts any text to a part of a file's name: letters, digits and . + @ - _ stay.

    Any other character, and a dot in front, becomes a hyphen; a long name is cut, and a hash of the whole text added.
    """
    name, whole = re.sub(r"^\.|[^\w.+@-]", "-", text), text.encode(errors="surrogatepass")
    if len(name.encode()) > _LONGEST:
        name = f"{name.encode()[:_LONGEST].decode(errors='ignore')}-{hashlib.sha256(whole).hexdigest()[:8]}"
    return name or "-"


@contextmanager
def keeping(inputs: Iterable[str | Path]) -> Iterator[None]:
    """Context manager that protects input files: inside, overwriting one or replacing its folder raises UserError."""
    global _inputs
    before, _inputs = _inputs, tuple(Path(os.path.realpath(path)) for path in inputs)
    try:
        yield
    finally:
        _inputs = before


def _check_replaces_none(target: Path) -> None:
    """Raises UserError if a folder to be replaced is, or contains, a protected input (`keeping`)."""
    if kept := next((path for path in _inputs if target == path or target in path.parents), None):
        raise UserError(f"{target}: is or holds an input, {kept}, which would be deleted. Choose another --output.")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`; on success renames that file to `path`, on failure `path` is unchanged.

    For a device or a pipe, yields `path` itself. Raises UserError for a folder, a full disk, and an unwritable path.
    """
    path = Path(path)
    with explained(path):
        target = check_file(path)
        if is_special(path):
            yield path
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            yield temporary
            take_name(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def take_name(temporary: Path, target: Path) -> None:
    """Renames a temporary file to `target`, with the permissions of a file that it replaces."""
    if target.exists():
        temporary.chmod(stat.S_IMODE(target.stat().st_mode))
    os.replace(temporary, target)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yields an empty temporary folder beside `path`; on success it replaces `path` (an old one is deleted).

    Raises UserError for a file, a full disk, and a path that cannot be written.
    """
    path = Path(path)
    with explained(path):
        target = check_folder_name(path)
        _check_replaces_none(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(target)
        mine = f".{target.name}.{_machine()}.{os.getpid()}."
        temporary = Path(tempfile.mkdtemp(prefix=mine, suffix=".part", dir=target.parent))
        try:
            # mkdtemp makes a private folder: it gets the permissions of the user's umask, as a shared one needs.
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            follow_umask(temporary)
            take_place(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _machine() -> str:
    """Returns a hash of the machine's name for temporary names, whose process numbers hold for one machine only."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _clear_leftovers(target: Path) -> None:
    """Deletes temporary folders beside `target` that ended processes of this machine have left."""
    import psutil

    prefix = f".{target.name}.{_machine()}."
    pattern = re.compile(rf"{re.escape(prefix)}(\d+)\..*part")
    for name in os.listdir(target.parent):  # glob would be slower, with thousands of folders
        if name.startswith(prefix) and (found := pattern.fullmatch(name)) and not psutil.pid_exists(int(found[1])):
            shutil.rmtree(target.parent / name, ignore_errors=True)


def take_place(new: Path, target: Path) -> None:
    """Renames the folder `new` to `target`; a folder that it replaces is deleted afterwards."""
    if not target.exists():
        os.replace(new, target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    os.replace(target, old / target.name)
    try:
        os.replace(new, target)
    except BaseException:  # KeyboardInterrupt and SystemExit also put the old folder back
        os.replace(old / target.name, target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def follow_umask(folder: Path) -> None:
    """Adds the permissions that the user's umask allows to all files of a folder: safetensors writes private files."""
    mode = 0o666 & ~_umask()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & mode != mode:
            path.chmod(path.stat().st_mode | mode)


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def write_text(path: str | Path, text: str) -> Path:
    """Writes UTF-8 text atomically, compressed by the ending of its name; returns the path.

    Characters that are not UTF-8, as in some files' names, become \\udc.., as in JSON.
    """
    packed = packing(path)(text.encode("utf-8", "backslashreplace"))
    with atomic_path(path) as temporary:
        temporary.write_bytes(packed)
    return Path(path)


def packing(path: str | Path) -> Callable[[bytes], bytes]:
    """Returns the function that compresses bytes for a file of this name; compressed parts may be concatenated.

    Raises: UserError for endings of packers that are not supported or not installed.
    """
    suffix = Path(path).suffix.lower()
    if suffix in _NO_PACKERS:
        raise UserError(f"{path}: nothing is packed as {suffix} here. Choose {', '.join(_PACKERS)} or a plain name.")
    if suffix not in _PACKERS:
        return bytes
    try:
        compress = import_module(_PACKERS[suffix]).compress
    except ImportError:
        raise UserError(f"{path}: is packed by the package zstandard: pip install zstandard, or choose .xz.") from None
    return partial(compress, mtime=0) if suffix == ".gz" else compress


def write_json(path: str | Path, value: Any) -> Path:
    """Writes indented JSON atomically, keys in the given order; returns the path."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, form: Form = dict) -> dict[str, Any]:
    """Reads a JSON object from a file; {} if there is none. Raises UserError if it is broken or does not fit `form`."""
    if not path.exists():
        return {}
    try:
        content = json.loads(_unpacked(path).decode("utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Copy or make the file again.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error}). Copy or make the file again.") from error
    if problem := misfit(content, form):
        raise UserError(f"{path}: {problem} Copy or make the file again.")
    return content


def _unpacked(path: Path) -> bytes:
    content, packer = path.read_bytes(), _PACKERS.get(path.suffix.lower())
    try:
        return import_module(packer).decompress(content) if packer else content
    except Exception as error:  # each compression module raises other exceptions
        raise ValueError(f"broken {path.suffix} file: {error}") from error


Form = Any
"""The form of a JSON value: a type (float: any finite number, int: a whole one), None, False, or a tuple of forms of
which one must fit; [form] for a list, [form, form] for a list of two; for an object {"key": form, "key?": form of an
optional key, ...: form of all others}."""
_WORDS: dict[Any, str] = {dict: "a JSON object", list: "a list", str: "a text", int: "a whole number"}
_WORDS |= {float: "a number", bool: "true or false", None: "null", False: "false"}


def misfit(value: Any, form: Form, place: str = "") -> str | None:
    """Returns how a JSON value differs from a form, as "pairs.lines: expected a number, not null."; None if it fits."""
    if isinstance(form, tuple):
        problems = list(takewhile(bool, (misfit(value, each, place) for each in form)))
        return problems[-1] if len(problems) == len(form) else None
    kind = dict if isinstance(form, dict) else list if isinstance(form, list) else form
    if kind in (int, float):
        fits = isinstance(value, (int, kind)) and not isinstance(value, bool) and math.isfinite(value)
    else:
        fits = value is kind if kind in (None, False) else isinstance(value, kind)
    if not fits or (isinstance(form, list) and len(form) > 1 and len(value) != len(form)):
        expected = f"a list of {len(form)}" if fits else _WORDS.get(kind, "another value")
        return f"{place}: expected {expected}, not {json.dumps(value)[:60]}.".removeprefix(": ")
    inner: list[tuple[Any, Form]] = []
    if isinstance(form, list):
        inner = [(number, form[min(number, len(form) - 1)]) for number in range(len(value))]
    elif isinstance(form, dict):
        known = {key.removesuffix("?"): each for key, each in form.items() if key is not ...}
        if (lacking := next((key for key in known if key in form and key not in value), None)) is not None:
            return f"{place}.{lacking}: is not there.".removeprefix(".")
        inner = [(key, known.get(key, form.get(..., object))) for key in value]
    places = (misfit(value[key], each, f"{place}.{key}".removeprefix(".")) for key, each in inner)
    return next(filter(None, places), None)


def check_file(path: str | Path) -> Path:
    """Returns the path that will be written, links followed. Raises UserError for a folder, or an unwritable path.

    Commands call it before hours of work.
    """
    path = Path(path)
    packing(path)
    with explained(path):
        # stat() follows every link, also those of /dev/stdout, whose targets are not paths of files.
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise UserError(f"{path}: is a folder. Give the name of a file in it, such as {path / 'output'}.")
        if is_special(path):
            return path
        target = Path(os.path.realpath(path))
        if mode is not None and any(each.is_file() and target.samefile(each) for each in _inputs):
            raise UserError(f"{path}: is one of the inputs, which would be overwritten. Choose another name.")
        _check_parent(target)
    return target


def check_folder_name(path: str | Path) -> Path:
    """Returns the path of a folder to be made, links followed. Raises UserError for a file, or an unwritable path."""
    path = Path(path)
    with explained(path):
        mode = _mode(path)
        if mode is not None and not stat.S_ISDIR(mode):
            raise UserError(f"{path}: is a file. Choose the name of a folder.")
        target = Path(os.path.realpath(path))
        if re.search("[\ud800-\udfff]", str(target)):
            raise UserError(f"{target}: its name is not UTF-8, and libraries that read models need that. Rename it.")
        _check_parent(target)
    return target


def check_new_folder(path: str | Path, force: bool, mark: str) -> None:
    """Raises UserError if the folder exists; with `force`, only if it is not empty and has no file `mark`."""
    target = check_folder_name(path)
    if not target.is_dir():
        return
    if not force:
        raise UserError(f"{path}: is there already. Choose another --output, or replace it with --force.")
    _check_replaces_none(target)
    if any(target.iterdir()) and not (target / mark).is_file():
        raise UserError(f"{path}: has no {mark}, so --force does not replace (delete) it. Choose another --output.")


@contextmanager
def only_one(folder: Path, message: str) -> Iterator[None]:
    """Makes the folder and holds its lock in the with block. Raises UserError(`message`) if another process has it."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise UserError(message) from error
    try:
        yield
    finally:
        lock.release()


def cache_folder() -> Path:
    """Returns the folder of caches: $HF_MLNMT_CACHE, else $XDG_CACHE_HOME/hf_mlnmt, else ~/.cache/hf_mlnmt."""
    own = variable("HF_MLNMT_CACHE")
    base = Path(variable("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(own) if own else base / "hf_mlnmt"


def check_made_before(output: Path, record: str, schema: str, what: str) -> None:
    """Raises UserError for a folder that is not empty, unless its JSON file `record` names the `schema`.

    what: what a folder with that schema is, for the message.
    """
    _check_replaces_none(check_folder_name(output))
    if not output.is_dir() or not any(output.iterdir()):
        return
    try:
        made_by = read_json(output / record).get("schema")
    except (OSError, ValueError):
        made_by = None
    if not str(made_by).startswith(schema):
        raise UserError(f"{output}: is not empty and holds no earlier {what}. Choose a new folder for --output.")


def size_and_crc(path: Path) -> list[int]:
    """Returns [bytes, CRC-32] of a file, by which damage is noticed; takes about a second for a gigabyte."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return [path.stat().st_size, checksum]


def is_full_disk(error: BaseException, folder: Path) -> bool:
    """Returns whether an exception, raised while writing into `folder`, was caused by a full disk."""
    if getattr(error, "errno", None) in _FULL:
        return True
    text = str(error).lower()
    if "no space left" in text or "os error 28" in text or "quota" in text:
        return True
    # torch's zip writer reports only that writing failed.
    writing = "pytorchstreamwriter" in text or "unexpected pos" in text or "inline_container" in text
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    return writing and shutil.disk_usage(existing).free < _SMALL_DISK


def _mode(path: Path) -> int | None:
    """Returns the mode of the file at a path, links followed; None where there is no file."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_special(path: Path) -> bool:
    """Returns whether a path is a device, a pipe, or an open file in /proc (as /dev/stdout): not to be replaced."""
    mode = _mode(path)
    if mode is None or stat.S_ISDIR(mode):
        return False
    return not stat.S_ISREG(mode) or _in_proc(path)


def _in_proc(path: Path) -> bool:
    """Returns whether the path's chain of links passes through /proc, where links are open files."""
    for _ in range(40):  # Linux follows at most 40 links
        if Path(os.path.realpath(path.parent)).parts[:2] == ("/", "proc"):
            return True
        if not path.is_symlink():
            return False
        path = path.parent / os.readlink(path)
    return False


def _check_parent(target: Path) -> None:
    above = next((folder for folder in target.parents if folder.exists() or folder.is_symlink()), target)
    if not above.is_dir():
        raise UserError(f"{target}: {above} is not a folder. Choose another place.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(
            f"{target}: cannot be written ({above} gives no permission, or is read-only). Choose another place."
        )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Context manager: converts the system's errors in writing `path`, or into a folder `path`, to UserErrors."""
    try:
        yield
    except Exception as error:
        # A UserError about a file in the folder names a temporary path, so its cause is explained, for `path`.
        cause = error.__cause__ if isinstance(error, UserError) else error
        if cause is not None and is_full_disk(cause, path):
            raise UserError(
                f"{path}: no space left on the device; what was there before is untouched. "
                "Free some space and run the same command again."
            ) from cause
        if isinstance(error, UserError):
            raise
        code = _system_code(error)
        if code in _UNWRITABLE and _concerns(error, code, path):
            raise UserError(f"{path}: cannot be written ({os.strerror(code)}). Choose another place.") from error
        raise


def _system_code(error: Exception) -> int:
    """Returns the system's error number, also of Rust libraries' errors, from their text; 0 if there is none."""
    told = re.search(r"\(os error (\d+)\)", str(error))
    return getattr(error, "errno", None) or int(told[1] if told else 0)


def _concerns(error: Exception, code: int, path: Path) -> bool:
    """Returns whether an error is about `path`, its temporary name, or a path in or above it; for errors without a file
    name whether `code` is one of a device."""
    name = getattr(error, "filename", None)
    if not isinstance(name, (str, os.PathLike)):
        return code in (errno.EROFS, errno.EIO, errno.EFBIG)
    theirs, target = os.path.realpath(name), Path(os.path.realpath(path))
    own = (str(target), str(target.with_name(f".{target.name}.")))
    return theirs.startswith(own) or Path(theirs) in target.parents
