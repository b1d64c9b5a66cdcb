"""A progress bar for lines of text with an estimate of the time left; without a terminal a line now and then."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

EVERY = 60.0  # seconds between two lines where there is no terminal


class LinesProgress:
    """Use it as a context, or `close` it. `show` takes (lines done, lines in all, counts)."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.done: int | None = None
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeElapsedColumn())
        self.bar = Progress(
            *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._task: Any = None
        self._first: tuple[float, int] = (0.0, 0)  # when, and how many lines were done before
        self._told = 0.0

    def __enter__(self) -> LinesProgress:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away; `show` begins another one."""
        self.bar.stop()
        if self._task is not None:
            self.bar.remove_task(self._task)
            self._task = None

    def show(self, done: int, total: int, counts: Any) -> None:
        """So many lines are done."""
        now = time.monotonic()
        if self._task is None:
            self.bar.start()
            self._task, self._first, self._told = self.bar.add_task("", total=total, speed=""), (now, done), now
        self.done = done
        seconds, lines = now - self._first[0], done - self._first[1]
        speed = f"{lines / seconds:,.0f} lines/s" if lines and seconds else ""
        self.bar.update(self._task, completed=done, speed=speed)
        if done == total:
            self.close()
            return
        if not self.console.is_terminal and now - self._told > EVERY and lines:
            self._told = now
            left = (total - done) * seconds / lines
            self.console.print(f"{done:,} of {total:,} lines, {speed}, {left / 60:.0f} minutes left", highlight=False)
