"""Chunks of text made into ids by several processes, or in this one. Nothing heavy is imported: a process takes 40 MB.

The processes are of our own program, not of `multiprocessing`, which would run a user's script once more in each of
them. They end when their input does, also where the one that started them was killed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, NamedTuple, Self

import numpy as np
from tokenizers import Tokenizer as Backend

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.filters import FilterReport, PairFilter
from hf_mlnmt.data.placeholders import with_placeholders
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.words import spelt, without_invisible

ALONE = 5  # chunks that this process makes before it starts others


def cut(backend: Backend, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of texts without invisible characters; a "</s>" or "<2de>" in them is text, not the token. What
    the vocabulary lacks is spelt otherwise where it can be, but for one of bytes, which lacks nothing."""
    backend.encode_special_tokens = True
    if backend.token_to_id("\u0120") is None:
        texts = [spelt(text, lambda sign: backend.token_to_id(sign) is not None) for text in texts]
    return [encoding.ids for encoding in backend.encode_batch_fast(texts)]


@dataclass(frozen=True)
class Side:
    """The way from a side's raw text to ids: its processing, its tokenizer, and the ids in front of every text."""

    processing: TextProcessing
    cut: Callable[[Sequence[str]], Sequence[Any]]
    front: tuple[int, ...] = ()

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all texts, one after the other, int32, and how many each has, int32 (texts,)."""
        texts = [without_invisible(self.processing.apply(text)) for text in texts]
        rows = self.cut(texts)
        if self.front:
            rows = [[*self.front, *row] for row in rows]
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths


class Piece(NamedTuple):
    """The result of a chunk: what its filter dropped, which items passed, their hashes (as of `PairFilter.passing`),
    and of each side ids and lengths."""

    report: FilterReport
    passed: list[int]
    hashes: np.ndarray
    sides: list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Encoder:
    """The way from a chunk of pairs, or of texts where there is one side, to its `Piece`."""

    sides: list[Side]
    pair_filter: PairFilter | None = None
    placeholders: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, chunk: Sequence[Any]) -> Piece:
        report, passed, hashes = FilterReport(), list(range(len(chunk))), np.zeros(0, np.uint64)
        if self.pair_filter is not None:
            passed, hashes = self.pair_filter.passing(chunk, report)
        items = [chunk[number] for number in passed]
        if self.placeholders and len(self.sides) > 1:
            items = list(with_placeholders(items, self.placeholders))
        texts: Any = [items] if len(self.sides) == 1 else zip(*items) if items else ((), ())
        return Piece(report, passed, hashes, [side(own) for side, own in zip(self.sides, texts)])

    def pieces(self, chunks: Iterable[Sequence[Any]], processes: int) -> Iterator[tuple[Sequence[Any], Piece]]:
        """Yields every chunk and its piece in order, the same ones for any number of processes.

        Text of few chunks is not worth other processes, and a tokenizer that cannot be sent stays in this one. Raises:
        UserError where a process dies.
        """
        iterator = iter(chunks)
        for chunk in islice(iterator, None if processes == 1 else ALONE):
            yield chunk, self(chunk)
        first = next(iterator, None)
        if first is None:
            return
        try:
            job = pickle.dumps(self)
        except (pickle.PicklingError, TypeError, AttributeError):
            yield from ((chunk, self(chunk)) for chunk in chain([first], iterator))
            return
        with Workers(job, processes) as workers:
            waiting = deque[tuple[Sequence[Any], Future]]()
            for chunk in chain([first], iterator):
                waiting.append((chunk, workers.submit(chunk)))
                if len(waiting) > 2 * processes:
                    done, piece = waiting.popleft()
                    yield done, piece.result()
            while waiting:
                done, piece = waiting.popleft()
                yield done, piece.result()


class Workers:
    """Processes that encode chunks; `job` is the pickled Encoder. Use it as a context: its end ends them all."""

    def __init__(self, job: bytes, count: int) -> None:
        paths = os.pathsep.join(filter(None, sys.path))
        own = {"PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", "from hf_mlnmt.data.workers import serve; serve()"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, **own}}
        # A session of their own: Ctrl-C is for the process that reads, which ends them.
        self._all = [subprocess.Popen(command, start_new_session=True, **pipes) for _ in range(count)]
        self._free = SimpleQueue[subprocess.Popen]()
        self._threads = ThreadPoolExecutor(count, "encoding")
        for process in self._all:
            self._threads.submit(self._begin, process, job)

    def _begin(self, process: subprocess.Popen, job: bytes) -> None:
        try:
            self._send(process, job)
        finally:
            self._free.put(process)

    @staticmethod
    def _send(process: subprocess.Popen, data: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(len(data).to_bytes(8, "little") + data)
        process.stdin.flush()

    def submit(self, chunk: Sequence[Any]) -> Future[Piece]:
        """Lets the next free process make a chunk."""
        return self._threads.submit(self._make, chunk)

    def _make(self, chunk: Sequence[Any]) -> Piece:
        process = self._free.get()
        try:
            self._send(process, pickle.dumps(chunk))
            assert process.stdout is not None
            made = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise UserError(
                f"a process that encodes text ended with code {process.wait()} (-9: killed, as where memory is short). "
                "What was encoded is kept: run the same command again, with fewer data.processes."
            ) from error
        finally:
            self._free.put(process)
        if isinstance(made, BaseException):
            raise made
        return made  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._all:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            process.communicate()


def serve() -> None:
    """Makes pieces of the chunks that come in until none comes, in a process of `Workers`."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    encoder = pickle.loads(_received())
    while data := _received():
        try:
            made: Any = encoder(pickle.loads(data))
        except Exception as error:
            made = error
        pickle.dump(made, answers)
        answers.flush()


def _received() -> bytes:
    size = sys.stdin.buffer.read(8)
    return sys.stdin.buffer.read(int.from_bytes(size, "little"))
