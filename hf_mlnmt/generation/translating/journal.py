"""Writes output files window by window so that a stopped process can be resumed (`translate -o`, back-translation).

Unfinished files are kept in a folder as NAME.part; state.json there records the number of their bytes, their hash, and
how many lines of the text are done. At the next start bytes beyond that number are cut off. The state also records what
the files are made from: hashes of the model's files and of the text, and the settings.
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
    """Appends to output files and records the progress in `folder`; the files are open from `restore` to `close`.

    Args:
        files: {side: path of its finished file}.
        about: what the files are made from; saved in the state, for the next start.
        form: the form of `about` in JSON, by which a state that is read is checked.
    """

    def __init__(self, folder: Path, files: Mapping[str, Path], about: Mapping[str, Any], form: Form) -> None:
        self.folder, self.files, self.about, self.form = folder, files, about, form
        self._open: dict[str, BinaryIO] = {}
        self._hashes = {side: hashlib.sha256() for side in files}  # SHA-256 of all bytes written to each file
        hashes = {side: each.hexdigest() for side, each in self._hashes.items()}
        self.progress: dict[str, Any] = {"lines": 0, "bytes": dict.fromkeys(files, 0), "sha256": hashes}

    def kept(self) -> dict[str, Any] | None:
        """Returns the state that an earlier process saved; None if there is none.

        Raises: UserError for a state file that is damaged or was changed.
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
        """Opens the files, cut to the lengths that `state` records; without a state, empty.

        Raises: UserError for a file that is shorter than recorded, or was changed.
        """
        for leftover in self.folder.glob(".*.part"):  # temporary files of a process killed as it wrote the state
            leftover.unlink()
        if state is None:
            self._save()  # first, so that no file exists without a record of what it is made from
        else:
            self.progress = dict(state["progress"])
        for side, whole in self.files.items():
            part, size, digest = self.part(side), self.progress["bytes"][side], self._hashes[side]
            # An earlier process may have ended in `finish`, when this file was renamed already, and others were not.
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
        """Appends to the files, syncs them to the disk, then saves the state, with `lines` of the text done."""
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
        """Closes the files and gives them their final names; returns {side: {"file", "bytes", "sha256"}}. state.json is
        not deleted."""
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
            with explained(self.part(side)):  # closing may write buffered bytes, and fail
                file.close()
        self._open = {}

    def part(self, side: str) -> Path:
        """Returns the path of a side's unfinished file."""
        return self.folder / f"{self.files[side].name}.part"

    def _save(self) -> None:
        write_json(
            self.folder / STATE, {"about": self.about, "progress": self.progress, "digest": digest(self.progress)}
        )
