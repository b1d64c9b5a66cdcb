"""Chunks of text made into ids, by this process or by several; nothing heavy is imported, for every process has it."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer as Backend

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.filters import FilterReport, PairFilter
from hf_mlnmt.data.placeholders import with_placeholders
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.words import spelt, without_invisible

MANY = 20  # chunks that are worth other processes
_IDLE = 60  # seconds, after which a process ends whose starter was killed


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


class EncodedChunk(NamedTuple):
    """The result of a chunk: what its filter dropped, which items passed, their hashes (as of `PairFilter.passing`),
    and of each side ids and lengths."""

    report: FilterReport
    passed: list[int]
    hashes: np.ndarray
    sides: list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Encoder:
    """Filters and encodes a chunk: a list of pairs, or of texts where there is one side."""

    sides: list[Side]
    pair_filter: PairFilter | None = None
    placeholders: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, chunk: Sequence[Any]) -> EncodedChunk:
        report, passed, hashes = FilterReport(), list(range(len(chunk))), np.zeros(0, np.uint64)
        if self.pair_filter is not None:
            passed, hashes = self.pair_filter.passing(chunk, report)
        items = [chunk[number] for number in passed]
        if self.placeholders and len(self.sides) > 1:
            items = list(with_placeholders(items, self.placeholders))
        texts: Any = [items] if len(self.sides) == 1 else zip(*items) if items else ((), ())
        return EncodedChunk(report, passed, hashes, [side(own) for side, own in zip(self.sides, texts)])


@contextmanager
def in_processes(encoder: Encoder, count: int) -> Iterator[Callable[[Sequence[Any]], Iterable[EncodedChunk]]]:
    """Context manager: yields a function that encodes chunks in order, in so many processes.

    Few chunks are encoded in this process, and so are those of a tokenizer that cannot be pickled. Raises: UserError
    where a process dies.
    """
    from joblib.externals.loky import ProcessPoolExecutor  # multiprocessing's would run a user's script again in each

    pool, waiting = None, list[Any]()
    try:
        job = pickle.dumps(encoder)
    except (pickle.PicklingError, TypeError, AttributeError):
        count = 1

    def encode(chunks: Sequence[Any]) -> Iterable[EncodedChunk]:
        nonlocal pool, waiting
        if count == 1 or (pool is None and len(chunks) < MANY):
            return map(encoder, chunks)
        if pool is None:
            own = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
            ignore = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}  # it is for this one
            pool = ProcessPoolExecutor(count, timeout=_IDLE, env=own, **ignore)
        waiting = [pool.submit(_encode, job, chunk) for chunk in chunks]
        return (each.result() for each in waiting)

    try:
        yield encode
    except BrokenProcessPool as error:
        raise UserError(
            "a process that encodes text was killed, as where memory is short. What was encoded is kept: run the same "
            "command again, with fewer data.processes."
        ) from error
    finally:
        for each in waiting:
            each.cancel()
        if pool is not None:
            pool.shutdown()


def _encode(job: bytes, chunk: Sequence[Any]) -> EncodedChunk:
    return _loaded(job)(chunk)


@lru_cache(1)
def _loaded(job: bytes) -> Encoder:
    """Returns the encoder, which a process unpickles once for all chunks of a corpus."""
    return pickle.loads(job)  # type: ignore[no-any-return]
