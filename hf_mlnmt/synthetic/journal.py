"""Output that grows and survives any end of the process: text files, and how much of them counts.

While it is made, a corpus lies in source.txt.part and target.txt.part, and state.json says how many bytes of them and
how many lines of the text are done. What was written beyond that when a process ended is cut off at the next start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hf_mlnmt.data.synthetic import FILES, MANIFEST, sha256
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import write_json

STATE = "state.json"


class Journal:
    """The two files of a corpus and their state, in `folder`. Use it as a context: the files are then open.

    Args:
        about: what the corpus is made from; kept in the state, for the next start.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.progress: dict[str, Any] = {"lines": 0, "bytes": dict.fromkeys(FILES, 0)}
        self._files: dict[str, BinaryIO] = {}

    @staticmethod
    def kept(folder: Path) -> dict[str, Any] | None:
        """The state that an earlier start left; None without one.

        Raises: UserError for a file that is no state.
        """
        path = folder / STATE
        if not path.is_file():
            return None
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            return {"about": state["about"], "progress": state["progress"]}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: broken. Delete the folder {folder} and begin again.") from error

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Open the files where that state left them; without one, empty."""
        for leftover in self.folder.glob(".*.part"):  # of a process that was killed as it wrote the state
            leftover.unlink()
        if state is None:
            self._save()  # before the files: it says whose they are
        else:
            self.progress = dict(state["progress"])
        for side in FILES:
            part, whole, size = self._part(side), self.folder / FILES[side], self.progress["bytes"][side]
            if not part.exists() and whole.exists():  # it ended between the last renaming and the manifest
                os.replace(whole, part)
            file = part.open("r+b" if part.exists() else "w+b")
            if os.fstat(file.fileno()).st_size < size:
                file.close()
                raise UserError(f"{part}: shorter than it was. Delete the folder {self.folder} and begin again.")
            file.truncate(size)
            file.seek(size)
            self._files[side] = file

    def append(self, pairs: Sequence[tuple[str, str]], lines: int, **progress: Any) -> None:
        """Add pairs; `lines` of the text are done now. The state is written when the pairs are on the disk."""
        for side, texts in zip(FILES, zip(*pairs)):
            self._files[side].write("".join(text + "\n" for text in texts).encode())
        for side, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            self.progress["bytes"][side] = file.tell()
        self.progress |= {"lines": lines, **progress}
        self._save()

    def finish(self, manifest: dict[str, Any], pairs: int) -> None:
        """Give the files their names and write the manifest, with their sizes and hashes."""
        self.close()
        found: dict[str, Any] = {"lines": pairs}
        for side, name in FILES.items():
            os.replace(self._part(side), self.folder / name)
            path = self.folder / name
            found[side] = {"file": name, "bytes": path.stat().st_size, "sha256": sha256(path)}
        write_json(self.folder / MANIFEST, {**manifest, "pairs": found})
        (self.folder / STATE).unlink()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def written(self, side: str) -> Path:
        """The file that a side is in as long as the corpus is not finished."""
        return self._part(side)

    def _part(self, side: str) -> Path:
        return self.folder / f"{FILES[side]}.part"

    def _save(self) -> None:
        write_json(self.folder / STATE, {"about": self.about, "progress": self.progress})
