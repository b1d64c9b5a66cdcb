"""A data set that is trained on while it is still read and encoded: block by block, as it comes.

An epoch is a block of `BLOCK` items. Which items an epoch shows follows from its number, and, behind the last item,
from their number: so a training that goes on sees what it would have seen. The place in the data set is that of the
encoding (encoding.py), which notes it beside what it has written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
from filelock import Timeout

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.encoded import META, Encoded, Examples, Lengths
from hf_mlnmt.data.training_set import TrainingSet

BLOCK = 100_000
_LOOK_AFTER = 0.1  # seconds


class _Stopped(Exception):
    """Nobody waits for more."""


class Streamed(TrainingSet):
    """The items of `folder`, which `encode` fills in a thread, unless another process does.

    encode: called with what hears of every chunk. longest: the most subwords of a side. It waits where more items are
    asked for than there are. Raises: UserError then for what is wrong with the data set.
    """

    def __init__(self, folder: Path, encode: Callable[[Callable[[int, int | None], Any]], Any], longest: int) -> None:
        self.folder, self.part = folder.absolute(), folder.absolute().with_name(f"{folder.name}.part")
        self._begun, self._stop = Event(), Event()
        self._problem: BaseException | None = None
        self._grows = False  # what has the name is not what is encoded here
        self._thread: Thread | None = Thread(target=self._run, args=(encode,), daemon=True)
        self._thread.start()
        self.encoded: Encoded | None = None
        self._begun.wait()  # what lay there may have been of another text
        self.size = min(BLOCK, len(self.reaching(BLOCK)))
        self.source_lengths: Any = Lengths(self, 0, longest)
        self.target_lengths: Any = Lengths(self, -1, longest)

    def _run(self, encode: Callable[..., Any]) -> None:
        def hear(done: int, total: int | None) -> None:
            self._grows = True
            self._begun.set()
            if self._stop.is_set():
                raise _Stopped

        try:
            encode(hear)
        except _Stopped:
            pass
        except BaseException as error:
            if not isinstance(error.__cause__, Timeout):  # else another process encodes
                self._problem = error
        finally:
            self._grows = False
            self._begun.set()

    def reaching(self, count: int) -> Encoded:
        """Returns the encoded items when there are so many, or all."""
        while self.encoded is None or (self.encoded.folder != self.folder and len(self.encoded) < count):
            if self._problem is not None:
                raise self._problem
            with suppress(FileNotFoundError, UserError):  # the folder has just got its name
                if (self.part / META).is_file():
                    self.encoded = Encoded(self.part)
                elif not self._grows:
                    self.encoded = Encoded(self.folder)
            if self.encoded is None or len(self.encoded) < count:
                time.sleep(_LOOK_AFTER)
        return self.encoded

    def close(self) -> None:
        """Ends the encoding; another start goes on from what it has noted."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __getstate__(self) -> dict[str, Any]:
        gone = {"_thread": None, "_begun": None, "_stop": None, "encoded": None}
        return {**self.__dict__, **gone}

    @property
    def parts(self) -> list[Encoded]:
        """Returns what is there, as the one part."""
        return [self.reaching(0)]

    def __len__(self) -> int:
        return len(self.reaching(0))

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.reaching(index + 1)[index]

    def lengths(self, number: int, indices: Any) -> np.ndarray:
        """Returns the subwords of items (indices) on the side of a number, int32."""
        indices = np.asarray(indices)
        return self.reaching(int(indices.max()) + 1).lengths(number, indices)

    def gather(self, indices: np.ndarray) -> Examples:
        return self.reaching(int(indices.max()) + 1).gather(indices)

    def choose(self, epoch: int) -> np.ndarray:
        """Returns the indices of an epoch's block: int64. The last block is filled up with items from the start."""
        there = len(self.reaching((epoch + 1) * self.size))
        blocks = epoch + 1 if there >= (epoch + 1) * self.size else -(-there // self.size)
        first = epoch % blocks * self.size
        return np.arange(first, first + self.size) % there

    def describe(self) -> str:
        """Describes how many items an epoch shows, and how many are there."""
        encoded = self.reaching(0)
        return f"a data set that is streamed, {self.size:,} {encoded.unit} an epoch; {len(encoded):,} are there"
