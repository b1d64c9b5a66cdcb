"""Scores lines by a command of another program: a metric in an environment of its own (COMET), any reranking feature.

A command reads lines whose parts have tabs between them, and writes a number for each line, in order. The process is
started once and kept; where it ends by itself, it is restarted for the next lines, and once for the same lines.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import subprocess
import threading
from collections.abc import Sequence
from queue import Empty, Queue
from typing import Any

from hf_mlnmt.common.errors import UserError

SECONDS = 600.0  # a command that writes no line for so long counts as hanging


class LineScorer:
    """Runs a command that scores lines; `scorer([("Hello.", "Hallo."), ...])` returns the numbers that it writes.

    Args:
        command: as in a shell, without pipes. what: the option's name, for messages.
    """

    def __init__(self, command: str, what: str, seconds: float = SECONDS):
        self.command, self.what, self.seconds = command, what, seconds
        self.process: Any = None
        self.answers: Queue[str | None] = Queue()
        self.lock = threading.Lock()

    def __call__(self, rows: Sequence[Sequence[str]]) -> list[float]:
        """Returns the command's number for each row.

        Raises: UserError where the command cannot be started, ends twice, writes a line that is no number or more lines
            than it read, or writes nothing for `seconds`.
        """
        lines = "".join("\t".join(" ".join(part.split()) for part in row) + "\n" for row in rows)
        for _ in (1, 2):
            with self.lock:
                answers = self._ask(lines, len(rows))
                if len(answers) < len(rows):
                    self.close()
            if len(answers) == len(rows):
                return [self._number(answer, number) for number, answer in enumerate(answers, start=1)]
        raise UserError(
            f"{self.what}: the command {self.command!r} ended after {len(answers)} of {len(rows)} lines, twice. It "
            "must read lines from standard input and write a number for each, without holding them back (python -u)."
        )

    def _ask(self, lines: str, count: int) -> list[str]:
        if self.process is None or self.process.poll() is not None:
            self._start()
        elif not self.answers.empty():
            raise UserError(
                f"{self.what}: the command {self.command!r} wrote {self.answers.get()!r}, for which there is no line. "
                "It must write a number for each line and nothing else to standard output."
            )
        writer = threading.Thread(target=self._write, args=(self.process, lines), daemon=True)
        writer.start()  # a thread writes while this one reads: a full pipe would block both processes
        answers: list[str] = []
        while len(answers) < count:
            try:
                answer = self.answers.get(timeout=self.seconds)
            except Empty:
                self.close()
                raise UserError(
                    f"{self.what}: the command {self.command!r} wrote nothing for {self.seconds:g} s after "
                    f"{len(answers)} of {count} lines. It must write a number for each line as it comes."
                ) from None
            if answer is None:
                break
            answers.append(answer)
        return answers

    def _start(self) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        try:
            self.process = subprocess.Popen(shlex.split(self.command), **pipes)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.what}: the command {self.command!r} cannot be started: {error}.") from error
        self.answers = Queue()
        threading.Thread(target=self._read, args=(self.process, self.answers), daemon=True).start()

    @staticmethod
    def _write(process: Any, lines: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the process has ended: `_ask` sees the end of its output
            process.stdin.write(lines)
            process.stdin.flush()

    @staticmethod
    def _read(process: Any, answers: Queue[str | None]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in process.stdout:
                answers.put(line)
        answers.put(None)

    def _number(self, answer: str, line: int) -> float:
        try:
            number = float(answer)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UserError(
                f"{self.what}: the command {self.command!r} wrote {answer.strip()!r} for line {line}, not a number."
            )
        return number

    def close(self) -> None:
        """Ends the command's process."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
            try:
                self.process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
            self.process = None
