"""Lines, tables and bars that verbs show on the terminal, and the files that a study writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hf_mlnmt.cli.options import NamedPath, by_name

if TYPE_CHECKING:
    from rich.console import Console

    from hf_mlnmt.evaluation.figures import Study
    from hf_mlnmt.generation.synthetic.back_translation import Watcher
    from hf_mlnmt.generation.translating.loading import Parts

WIDEST = 1000  # columns of what goes into a file or a pipe
EVERY = 60.0  # seconds between two lines of a progress where there is no terminal


def tell(text: str) -> None:
    """Print a line on standard error."""
    typer.echo(text, err=True)


def show(*blocks: Any) -> None:
    """Prints tables, one below the other; where no terminal is, as wide as they are."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = WIDEST
    console.print(*blocks, sep="\n")


def plain_console() -> Console:
    """Returns a console on standard error for lines that are printed as they are."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def silence() -> None:
    """Makes Transformers silent but for errors, without bars."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def load_systems(models: Iterable[NamedPath], device: str | None) -> dict[str, Parts]:
    """Loads every model with its tokenizers, by name."""
    from hf_mlnmt.generation.translating.loading import load

    silence()
    return {name: load(path, device) for name, path in by_name(models).items()}


def finish(study: Study, output: Path, settings: dict[str, Any]) -> None:
    """Write a study, print its summary and say where the files are."""
    print_rows(study.stem, study.summary)
    paths = study.write(output, settings)
    tell(f"{study.stem}: written to {output}: " + ", ".join(path.name for path in paths))


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Prints rows as a table; numbers with up to four digits behind the point."""
    from hf_mlnmt.evaluation.figures import rows_table

    show(rows_table(title, rows))


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """Shows bars on stderr that are gone afterwards, without a terminal a line once a minute: (name, total) -> what
    moves the bar by a number."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, told = Console(stderr=True), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    def begin(name: str, total: int) -> Callable[[int], None]:
        task = bar.add_task(name, total=total)

        def move(number: int) -> None:
            nonlocal told
            bar.advance(task, number)
            if not console.is_terminal and time.monotonic() - told > EVERY:
                told = time.monotonic()
                tell(f"{name}: {bar.tasks[task].completed:,.0f} of {total:,}")

        return move

    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield begin


class LinesProgress(AbstractContextManager):
    """A bar for lines of text with an estimate of the time left; without a terminal, a line once a minute.

    Use it as a context, or `close` it. `show` takes (lines done, lines in all, counts). `goes_on`: what is said when it
    is stopped, behind the number of lines. Not `shown`, it only counts.
    """

    def __init__(self, console: Console, goes_on: str = "", shown: bool = True) -> None:
        from rich import progress

        self.console, self.goes_on, self.shown = console, goes_on, shown
        self.done: int | None = None
        columns = (progress.MofNCompleteColumn(), progress.TextColumn("{task.fields[speed]}"))
        times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
        # Standard output may be where translations go.
        where: dict[str, Any] = {"console": console, "transient": True, "redirect_stdout": False}
        hidden = not (shown and console.is_terminal)
        self.bar = progress.Progress(progress.BarColumn(), *columns, *times, disable=hidden, **where)
        self._task: Any = None
        self._first: tuple[float, int] = (0.0, 0)  # when, and how many lines were done before
        self._told = 0.0

    def __exit__(self, kind: Any = None, *error: Any) -> None:
        self.close()
        if self.done and self.goes_on and kind in (KeyboardInterrupt, SystemExit):
            self.say(f"stopped after {self.done:,} lines; {self.goes_on}")

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line as it is."""
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def watcher(self) -> Watcher:
        """Returns what shows the lines, warnings (in yellow) and progress that back-translation tells."""
        from hf_mlnmt.generation.synthetic.back_translation import Watcher

        return Watcher(self.say, lambda text: self.say(f"warning: {text}", "yellow"), self.show)

    def close(self) -> None:
        """Take the bar away; `show` begins another one."""
        self.bar.stop()
        if self._task is not None:
            self.bar.remove_task(self._task)
            self._task = None

    def show(self, done: int, total: int | None, counts: Any = None) -> None:
        """Shows that so many lines are done; `total` is None where nobody knows."""
        now = time.monotonic()
        if self._task is None:
            self.bar.start()
            self._task, self._first, self._told = self.bar.add_task("", total=total, speed=""), (now, done), now
        self.done = done
        seconds, lines = now - self._first[0], done - self._first[1]
        speed = f"{lines / seconds:,.0f} lines/s" if lines and seconds else ""
        self.bar.update(self._task, completed=done, total=total, speed=speed)
        if done == total:
            self.close()
            return
        if self.shown and not self.console.is_terminal and now - self._told > EVERY and lines:
            self._told = now
            left = f", {(total - done) * seconds / lines / 60:.0f} minutes left" if total else ""
            self.say(f"{done:,}{f' of {total:,}' if total else ''} lines, {speed}{left}")
