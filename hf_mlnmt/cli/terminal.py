"""Prints lines, tables and progress bars for verbs, and writes the files of studies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hf_mlnmt.cli.options import NamedPath, by_name

if TYPE_CHECKING:
    from rich.console import Console

    from hf_mlnmt.evaluation.figures import Study
    from hf_mlnmt.generation.synthetic.back_translation import Watcher
    from hf_mlnmt.generation.translating.loading import Parts

WIDEST = 1000  # width in characters of tables that are written to a file or pipe
EVERY = 60.0  # seconds between two lines of progress where there is no terminal


def tell(text: str) -> None:
    """Prints a line to standard error."""
    typer.echo(text, err=True)


def show(*blocks: Any) -> None:
    """Prints tables to standard output, one below the other; to a file or pipe without wrapping."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = WIDEST
    console.print(*blocks, sep="\n")


def plain_console() -> Console:
    """Returns a console on standard error that prints lines unchanged: no markup, highlighting or wrapping."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def silence() -> None:
    """Silences Transformers: only errors are logged, and no progress bars are shown."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def load_systems(models: Iterable[NamedPath], device: str | None, *files: Any) -> dict[str, Parts]:
    """Calls `check_files` for each model, then loads the models with their tokenizers, and returns {name: parts}.
    files: the other arguments of `check_files`: sources, references, (--from, --to)."""
    from hf_mlnmt.common.languages import check_files
    from hf_mlnmt.generation.translating.loading import load

    silence()
    for model in models:
        check_files(model.path, *files)
    return {name: load(path, device) for name, path in by_name(models).items()}


def finish(study: Study, output: Path, settings: dict[str, Any]) -> None:
    """Prints a study's summary, writes its files into the folder `output`, and prints their names."""
    print_rows(study.stem, study.summary)
    paths = study.write(output, settings)
    tell(f"{study.stem}: written to {output}: " + ", ".join(path.name for path in paths))


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Prints rows as a table, with numbers of four significant digits."""
    from hf_mlnmt.evaluation.figures import rows_table

    show(rows_table(title, rows))


class Progress(AbstractContextManager):
    """Shows progress bars on standard error with an estimate of the time left; without a terminal a line once a minute.

    `begin` makes a bar for a part of the work; `show` updates the bar of lines of text. goes_on: message after the
    number of lines when a command is stopped. shown: False counts the lines, but shows nothing.
    """

    def __init__(self, console: Console | None = None, goes_on: str = "", shown: bool = True) -> None:
        from rich import progress
        from rich.console import Console

        self.console, self.goes_on, self.shown = console or Console(stderr=True), goes_on, shown
        self.done: int | None = None
        columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
        times = (progress.TextColumn("{task.fields[speed]}"), progress.TimeRemainingColumn())
        # Standard output is not redirected, as translations may be written to it.
        where: dict[str, Any] = {"console": self.console, "transient": True, "redirect_stdout": False}
        self.bar = progress.Progress(*columns, *times, disable=not (shown and self.console.is_terminal), **where)
        self._lines: Any = None
        self._first: tuple[float, int] = (0.0, 0)  # time of the first `show`; lines done by then
        self._told = time.monotonic()

    def __exit__(self, kind: Any = None, *error: Any) -> None:
        self.close()
        if self.done and self.goes_on and kind in (KeyboardInterrupt, SystemExit):
            self.say(f"stopped after {self.done:,} lines; {self.goes_on}")

    def say(self, text: str, style: str | None = None) -> None:
        """Prints a line to the console unchanged, without wrapping."""
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def watcher(self) -> Watcher:
        """Returns callbacks for a back-translation or training that print messages and update the bar of lines."""
        from hf_mlnmt.generation.synthetic.back_translation import Watcher

        return Watcher(self.say, self.show)

    def begin(self, name: str, total: int) -> Callable[[int], None]:
        """Shows a bar for a part of the work; returns the function that advances the bar by a number."""
        self.bar.start()
        task = self.bar.add_task(name, total=total, speed="")

        def move(number: int) -> None:
            self.bar.advance(task, number)
            self._tell(f"{name}: {self.bar.tasks[task].completed:,.0f} of {total:,}")

        return move

    def close(self) -> None:
        """Stops the display of the bars; a later call of `show` makes a new bar of lines."""
        self.bar.stop()
        if self._lines is not None:
            self.bar.remove_task(self._lines)
            self._lines = None

    def show(self, done: int, total: int | None, counts: Any = None) -> None:
        """Updates the bar of lines to `done` of `total` lines (None: unknown); makes the bar at the first call."""
        now = time.monotonic()
        if self._lines is None:
            self.bar.start()
            self._lines, self._first, self._told = self.bar.add_task("", total=total, speed=""), (now, done), now
        self.done = done
        seconds, lines = now - self._first[0], done - self._first[1]
        speed = f"{lines / seconds:,.0f} lines/s" if lines and seconds else ""
        self.bar.update(self._lines, completed=done, total=total, speed=speed)
        if done == total:
            self.close()
        elif lines:
            left = f", {(total - done) * seconds / lines / 60:.0f} minutes left" if total else ""
            self._tell(f"{done:,}{f' of {total:,}' if total else ''} lines, {speed}{left}")

    def _tell(self, text: str) -> None:
        """Prints a line of progress if there is no terminal and the last line is older than EVERY seconds."""
        if self.shown and not self.console.is_terminal and time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            self.say(text)
