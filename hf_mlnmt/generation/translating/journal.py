"""Files that grow window by window and go on where they were stopped: of `translate -o` and of back-translation.

While they are made, the files lie in a folder as NAME.part, and state.json says how many bytes of them, with which
hash, and how many lines of the text are done. What was written beyond that when a process ended is cut off at the next
start. What they are made from is known by its content: the model's files, the text's, and the settings.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import Form, explained, read_json, take_name, write_json
from hf_mlnmt.common.made_from import digest
from hf_mlnmt.data.corpus import COUNTS

STATE = "state.json"
_BLOCK = 1 << 22


class Journal:
    """Writes files that grow, and in `folder` how far they are; the files are open from `restore` to `close`.

    Args:
        files: {side: where its file is when all is done}.
        about: what they are made from; kept in the state, for the next start.
        form: of `about`, in JSON.
    """

    def __init__(self, folder: Path, files: Mapping[str, Path], about: Mapping[str, Any], form: Form) -> None:
        self.folder, self.files, self.about, self.form = folder, files, about, form
        self._open: dict[str, BinaryIO] = {}
        self._hashes = {side: hashlib.sha256() for side in files}  # of what is written
        hashes = {side: each.hexdigest() for side, each in self._hashes.items()}
        self.progress: dict[str, Any] = {"lines": 0, "bytes": dict.fromkeys(files, 0), "sha256": hashes}

    def kept(self) -> dict[str, Any] | None:
        """Returns the state that an earlier start left; None without one.

        Raises: UserError for a file that is no state.
        """
        path = self.folder / STATE
        if not path.is_file():
            return None
        progress: Form = {
            "lines": int,
            "bytes": dict.fromkeys(self.files, int),
            "sha256": dict.fromkeys(self.files, str),
        }
        progress["counts?"] = COUNTS
        try:
            state = read_json(path, {"about": self.form, "progress": progress, "digest?": str})
            if state.get("digest", now := digest(state["progress"])) != now:
                raise UserError(f"{path}: what it says is done changed since it was written. Put back what was there.")
            return state
        except UserError as error:
            raise UserError(f"{error} Or delete the folder {self.folder} and begin again.") from error

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Opens the files at the ends that a state says; without a state, empty."""
        for leftover in self.folder.glob(".*.part"):  # of a process that was killed as it wrote the state
            leftover.unlink()
        if state is None:
            self._save()  # before the files: it says whose they are
        else:
            self.progress = dict(state["progress"])
        for side, whole in self.files.items():
            part, size, digest = self.part(side), self.progress["bytes"][side], self._hashes[side]
            # The process may have ended when this file had its last name already, and not all files.
            there = whole if size and not part.exists() and whole.exists() else part
            there.touch()
            with there.open("rb") as file:
                for _ in range(0, size, _BLOCK):
                    digest.update(file.read(min(_BLOCK, size - file.tell())))
                again = f"Put back what was there, or delete the folder {self.folder} and begin again."
                if file.tell() < size:
                    raise UserError(f"{there}: shorter than it was. {again}")
            if self.progress["sha256"][side] != digest.hexdigest():
                raise UserError(f"{there}: changed since it was written. {again}")
            if there != part:
                os.replace(whole, part)
            self._open[side] = part.open("r+b")
            self._open[side].truncate(size)
            self._open[side].seek(size)

    def append(self, parts: Mapping[str, bytes], lines: int, **progress: Any) -> None:
        """Appends to the files, waits for the disk, then writes the state: `lines` of the text are done."""
        for side, part in parts.items():
            with explained(self.part(side)):
                self._open[side].write(part)
            self._hashes[side].update(part)
        for side, file in self._open.items():
            with explained(self.part(side)):
                file.flush()
                os.fsync(file.fileno())
            self.progress["bytes"][side] = file.tell()
        hashes = {side: each.hexdigest() for side, each in self._hashes.items()}
        self.progress |= {"lines": lines, "sha256": hashes, **progress}
        self._save()

    def finish(self) -> dict[str, dict[str, Any]]:
        """Renames the finished files; returns {side: name, bytes and SHA-256 of its file}. The state stays."""
        self.close()
        about = {}
        for side, whole in self.files.items():
            take_name(self.part(side), whole)
            size, digest = self.progress["bytes"][side], self._hashes[side].hexdigest()
            about[side] = {"file": whole.name, "bytes": size, "sha256": digest}
        return about

    def close(self) -> None:
        """Closes the files."""
        for side, file in self._open.items():
            with explained(self.part(side)):  # what is still to be written is written now
                file.close()
        self._open = {}

    def part(self, side: str) -> Path:
        """Returns the unfinished file of a side."""
        return self.folder / f"{self.files[side].name}.part"

    def _save(self) -> None:
        write_json(
            self.folder / STATE, {"about": self.about, "progress": self.progress, "digest": digest(self.progress)}
        )
