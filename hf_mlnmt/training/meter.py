"""Clock and token counter of a training: what it cost so far, over all its interruptions."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_mlnmt.files import write_json

FILE = "meter.json"


class Meter:
    """Counts seconds (wall and processor time) and target tokens while it runs, evaluation and saving left out.

    `seconds` and `cpu_seconds` are of this process; `tokens` are real target tokens of all processes.
    """

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0
        self.tokens = 0
        self._pending: list[Any] = []  # counts that may still be on the device; read when asked, not at every step
        self._since: tuple[float, float] | None = None
        self._last = (0.0, 0, 0)

    def __enter__(self) -> Meter:
        self._since = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self._read()
        self._since = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A block whose time and tokens do not count."""
        running = self._since is not None
        if running:
            self.__exit__()
        try:
            yield
        finally:
            if running:
                self.__enter__()

    def add(self, tokens: Any) -> None:
        """Count target tokens: an int or a scalar tensor."""
        self._pending.append(tokens)

    def interval(self, step: int) -> dict[str, float]:
        """The speeds since the last call."""
        self._read()
        seconds, tokens, steps = (now - then for now, then in zip(self._now(step), self._last))
        self._last = self._now(step)
        if seconds <= 0:
            return {}
        return {"steps_per_second": steps / seconds, "target_tokens_per_second": tokens / seconds}

    def save(self, folder: Path, processes: int = 1) -> None:
        """Write the totals, and by how many processes, into a checkpoint folder."""
        self._read()
        totals = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "tokens": self.tokens}
        write_json(folder / FILE, {**totals, "processes": processes})

    def load(self, folder: Path, step: int) -> None:
        """Go on from the totals of a checkpoint folder, written at `step`; without them, from zero."""
        with contextlib.suppress(FileNotFoundError):
            totals = json.loads((folder / FILE).read_text(encoding="utf-8"))
            self.seconds, self.cpu_seconds = totals["seconds"], totals["cpu_seconds"]
            self.tokens = totals["tokens"]
        self._last = self._now(step)

    def _now(self, step: int) -> tuple[float, int, int]:
        return self.seconds, self.tokens, step

    def _read(self) -> None:
        self.tokens += sum(int(tokens) for tokens in self._pending)
        self._pending.clear()
        if self._since is not None:
            now = time.perf_counter(), time.process_time()
            self.seconds += now[0] - self._since[0]
            self.cpu_seconds += now[1] - self._since[1]
            self._since = now
