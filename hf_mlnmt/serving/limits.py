"""A server's limits on requests: sizes, times and numbers, each with its default, and requests a minute.

The command line makes its options of the fields of `Limits` (cli/options.py), so this file imports no torch.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation import option

_KNOWN_CLIENTS = 10_000
LARGEST = 10**9  # largest value of any limit; threads cannot wait for much longer than so many seconds
_limit: Any = partial(option, panel="Limits", min=1, max=LARGEST)


def check_range(name: str, value: Any, least: float, most: float = LARGEST, unit: str = "") -> None:
    """Raises UserError for a value that is not a number from `least` to `most`; name, unit: for the message."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UserError(f"{name}: {value!r} is not a number from {least:g} to {most:,g}{f' {unit}' if unit else ''}.")


def check_settings(batch_tokens: int, max_wait: float, max_queue: int) -> None:
    """Raises UserError where a setting of a Batcher is out of its range."""
    check_range("batch_tokens", batch_tokens, 1)
    check_range("max_wait", max_wait, 0, 60, "seconds")
    check_range("max_queue", max_queue, 1)


@dataclass(frozen=True)
class Limits:
    """The limits of a server; a request above a limit is refused with a message that names the limit."""

    body_bytes: int = _limit("Bytes of a request.", "--max-body", default=1_000_000)
    texts: int = _limit("Texts in a request.", "--max-texts", default=1_000)
    text_characters: int = _limit("Characters of a text.", "--max-text", default=50_000)
    characters: int = _limit("Characters of all texts in a request.", "--max-characters", default=200_000)
    beams: int = _limit("Beam size that a request may ask for.", "--max-beams", default=16)
    n_best: int = _limit("Translations of a text that a request may ask for.", "--max-n-best", default=16)
    samples: int = _limit("Candidates of minimum Bayes risk (mbr) for a text.", "--max-samples", default=64)
    new_tokens: int = _limit("Tokens of a translation that a request may ask for.", "--max-tokens", default=1_024)
    seconds: int = _limit("Seconds for a request, waiting included; then its work is stopped.", "--timeout", default=60)
    file_bytes: int = _limit("Bytes of a file.", "--max-file", default=2_000_000)
    file_seconds: int = _limit("Seconds for a file.", "--file-timeout", default=600)
    queue: int = _limit("Sentences that may wait.", "--max-queue", default=10_000)
    requests: int = _limit("Requests a minute of a key or address; 0: any number.", "--max-requests", default=0, min=0)
    connections: int = _limit("Connections at once.", "--max-connections", default=512)
    idle_seconds: int = _limit("Seconds that a client may keep a connection waiting.", "--idle-timeout", default=30)
    ending_seconds: int = _limit("Seconds in which begun requests are finished at the end.", "--grace", default=30)

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), field.metadata["min"]
            check_range(field.name, value, least)
            if not isinstance(value, int):
                raise UserError(f"{field.name}: {value!r} is not a whole number.")


class RequestsAMinute:
    """Limits each client to `limit` requests a minute by a token bucket; 0: no limit. Safe for threads."""

    def __init__(self, limit: int) -> None:
        self.limit, self._lock = limit, threading.Lock()
        self._left: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # {client: (requests left, time)}

    def wait(self, client: bytes) -> float:
        """Counts a request of a client and returns 0; above the limit returns the seconds until the next is allowed."""
        if not self.limit:
            return 0.0
        with self._lock:
            now = time.monotonic()
            left, before = self._left.pop(client, (float(self.limit), now))
            left = min(self.limit, left + (now - before) * self.limit / 60)
            self._left[client] = (max(left - 1, 0.0) if left >= 1 else left), now
            if len(self._left) > _KNOWN_CLIENTS:
                self._left.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) * 60 / self.limit
