"""Chooses the next batch by start-time fair queueing (Goyal, Vin and Cheng 1997), counted in tokens served.

A queue holds the pieces (sentences) of many requests that can be searched together. The turn of a piece is the number
of tokens that each waiting request had been served when its own request came, plus the tokens of its request's earlier
pieces. Pieces are served by ascending turn, so that a short text does not wait until a long one is done. The tokens of
a batch count as served to all requests that wait during it, in equal parts. Requests A, B and C, one piece a batch:

    served  the turns of pieces that wait              the next batch
    0       A, three pieces of 100 tokens: 0 100 200   A's first; meanwhile B comes, with a piece of 10 tokens: turn 0
    50      A 100 200; B 0                             B's: of A's 100 tokens 50 count for each
    55      A 100 200; C comes, a piece of 60: 55      C's: it does not wait for what A came with before
    85      A 100 200                                  A's second

A batch has a budget of tokens, padding included. It has only as many pieces as lower the measured cost of a token, and
of one request pieces for about half a second only, so that answers are sent and new requests served early.

Nothing here is safe for threads: batcher.py calls it with its lock held.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

_LOOKED_AT = 1024  # number of a queue's first pieces, from which a batch of similar lengths is chosen
_WEIGHT = 0.2  # weight of the newest batch in the running mean of tokens a second
_SECONDS = 0.5  # seconds that one request's pieces in a batch may take, by the mean speed of earlier batches
_LEAST_PART = 8  # one request may always have 1 / _LEAST_PART of a batch's tokens, since tiny batches would be slow
_MEASURED = 3  # number of a size's last searches; the cheapest of these is the cost of the size
_TRIED_AGAIN = 64  # number of choices after which another size is measured again
_DEARER = 1.15  # a batch size is chosen if its tokens cost at most so many times those of the cheapest size


class QueuedPiece(NamedTuple):
    """A sentence of a request in a queue; pieces sort by `turn` (see above), then by `number`, the order of making."""

    turn: float
    number: int
    request: Any  # an object with an attribute `turn`
    tokens: int
    content: Any


@dataclass
class Queue:
    """A queue: requests that are not cut into pieces yet, in the order of their turns, and a heap of pieces."""

    uncut: list[Any] = field(default_factory=list)
    pieces: list[QueuedPiece] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.uncut) + len(self.pieces)

    @property
    def turn(self) -> float:
        """Returns the smallest turn of the queue's requests and pieces; infinity for an empty queue."""
        return min(self.uncut[0].turn if self.uncut else math.inf, self.pieces[0].turn if self.pieces else math.inf)

    def requests(self, most: int) -> int:
        """Returns the number of uncut requests plus that of requests with a piece among the heap's first `most`."""
        return len(self.uncut) + len({id(piece.request) for piece in self.pieces[:most]})

    def drain(self) -> list[Any]:
        """Removes and returns all uncut requests."""
        uncut, self.uncut = self.uncut, []
        return uncut


class Costs:
    """Records the seconds per token of a queue's searches by batch size (1, about 2, 4, 8...); chooses batch sizes."""

    def __init__(self) -> None:
        self._seen: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_MEASURED))
        self._choices = 0

    def add(self, pieces: int, tokens: int, seconds: float) -> None:
        """Records the seconds of a search. pieces: the planned batch size; tokens: the source tokens of the batch."""
        self._seen[pieces.bit_length()].append(seconds / tokens)

    def size(self, most: int) -> int:
        """Returns how many of `most` pieces to search together: a size to be measured, else the smallest whose cost per
        token is at most _DEARER times the least."""
        sizes = [*(1 << bit for bit in range(most.bit_length() - 1)), most]
        self._choices += 1
        seen = [self._seen[size.bit_length()] for size in sizes]
        # Size 1 is measured first, since that costs little; then the largest sizes, which are most often the best.
        if unknown := [size for size, each in zip(sizes, seen) if len(each) < _MEASURED]:
            return unknown[0] if unknown[0] == 1 else unknown[-1]
        if self._choices % _TRIED_AGAIN == 0:
            return sizes[self._choices // _TRIED_AGAIN % len(sizes)]
        costs = [min(each) for each in seen]
        return next(size for size, cost in zip(sizes, costs) if cost <= _DEARER * min(costs))


class FairQueues:
    """All queues by key; chooses the next queue and batch. `served`: tokens served to each waiting request so far."""

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens, self.served = batch_tokens, 0.0
        self.queues: dict[Hashable, Queue] = {}
        self._costs: WeakKeyDictionary[Any, Costs] = WeakKeyDictionary()
        self._tokens_a_second = 0.0  # source tokens translated a second: a running mean over batches
        self._numbers = count()

    def queue(self, key: Hashable) -> Queue:
        """Returns the queue of a key; makes it if there is none."""
        return self.queues.setdefault(key, Queue())

    def first(self) -> Any:
        """Returns the key of the queue with the smallest turn, None if nothing waits; drops empty queues."""
        self.queues = {key: queue for key, queue in self.queues.items() if queue}
        return min(self.queues, key=lambda key: self.queues[key].turn, default=None)

    def before(self, turn: float) -> Any:
        """Returns the key of a queue with an uncut request whose turn is smaller than `turn`; None if there is none."""
        due = (key for key, queue in self.queues.items() if queue.uncut and queue.uncut[0].turn < turn)
        return next(due, None)

    def pieces_of(self, request: Any, contents: Iterable[tuple[int, Any]]) -> list[QueuedPiece]:
        """Returns the pieces of a request, with their turns. contents: (number of tokens, content) of each piece."""
        tokens, pieces = 0, []
        for size, content in contents:
            pieces.append(QueuedPiece(request.turn + tokens, next(self._numbers), request, size, content))
            tokens += size
        return pieces

    def put(self, key: Hashable, pieces: Iterable[QueuedPiece]) -> None:
        """Adds pieces to the queue of a key."""
        queue = self.queue(key)
        for piece in pieces:
            heapq.heappush(queue.pieces, piece)

    def remove(self, key: Hashable, request: Any) -> tuple[int, bool]:
        """Removes a request from its queue; returns the number of its pieces there, and whether it was still uncut."""
        queue = self.queues.get(key, Queue())
        pieces = [piece for piece in queue.pieces if piece.request is not request]
        uncut = [other for other in queue.uncut if other is not request]
        removed = len(queue.pieces) - len(pieces), len(queue.uncut) > len(uncut)
        heapq.heapify(pieces)
        queue.pieces, queue.uncut = pieces, uncut
        return removed

    def seconds_left(self) -> float:
        """Estimates how many seconds the waiting pieces will take, by the mean speed; 0 before the first batch."""
        tokens = sum(piece.tokens for queue in self.queues.values() for piece in queue.pieces)
        return tokens / self._tokens_a_second if self._tokens_a_second else 0.0

    def take(self, key: Any, queue: Queue, most: int, ahead: bool) -> tuple[list[QueuedPiece], int]:
        """Removes the next batch from a queue: the piece with the smallest turn, and pieces of similar length.

        Args:
            most: number of pieces that fit into a search.
            ahead: for a GPU, where a larger batch always costs less a token: measured costs are ignored. Without it a
                request whose turn has come is not searched together with pieces whose turn has not.

        Returns the batch, and its planned number of pieces, the size under which `Costs.add` records it.
        """
        if not queue.pieces:
            return [], 0
        size = queue.pieces[0].tokens
        # Most tokens that one request may have in the batch.
        most_tokens = max(self.batch_tokens / _LEAST_PART, _SECONDS * self._tokens_a_second)
        parts = queue.requests(_LOOKED_AT) * int(most_tokens // size)
        wanted = max(1, min(len(queue.pieces), most, self.batch_tokens // size, parts))
        if not ahead:
            wanted = self.costs(key).size(wanted)
        if wanted == 1:
            return [heapq.heappop(queue.pieces)], 1
        first, *others = [heapq.heappop(queue.pieces) for _ in range(min(_LOOKED_AT, len(queue.pieces)))]
        # Pieces whose turn is not above `served` come first; then by difference in length, which causes padding.
        others.sort(key=lambda piece: (piece.turn > self.served, abs(piece.tokens - first.tokens), piece.number))
        batch, left, longest = [first], list[QueuedPiece](), first.tokens
        tokens = Counter({id(first.request): longest})
        for piece in others:
            request = id(piece.request)
            if (
                (len(batch) + 1) * max(longest, piece.tokens) <= self.batch_tokens
                and len(batch) < (most if ahead else wanted)
                and (not tokens[request] or tokens[request] + piece.tokens <= most_tokens)
                and (ahead or piece.turn <= self.served or tokens.keys() == {request})
            ):
                batch.append(piece)
                longest = max(longest, piece.tokens)
                tokens[request] += piece.tokens
            else:
                left.append(piece)
        # Pieces of a request may be searched out of order: assigns their turns anew, in the order of searching.
        turns: dict[int, float] = {}
        for piece in sorted([*batch, *left]):
            turns.setdefault(id(piece.request), piece.turn)
        batch = [_at_next_turn(piece, turns) for piece in batch]
        for piece in sorted(left):
            heapq.heappush(queue.pieces, _at_next_turn(piece, turns))
        return batch, wanted

    def count(self, batch: list[QueuedPiece], sharers: float, seconds: float) -> int:
        """Counts the tokens of a batch as served to `sharers` requests in equal parts, and returns their number."""
        tokens = sum(piece.tokens for piece in batch)
        room = self.batch_tokens // max(piece.tokens for piece in batch)
        # The tokens are divided by the number of requests, but at most by the number of pieces that a batch can hold.
        self.served += tokens / max(1, min(sharers, room))
        self._tokens_a_second += _WEIGHT * (tokens / max(seconds, 1e-6) - self._tokens_a_second)
        return tokens

    def costs(self, key: Any) -> Costs:
        """Returns the Costs of the queue of a key; makes them at the first call."""
        return self._costs.setdefault(key, Costs())


def _at_next_turn(piece: QueuedPiece, turns: dict[int, float]) -> QueuedPiece:
    """Returns a piece with its request's next turn in `turns`, and adds the piece's tokens to that turn."""
    turn = turns[id(piece.request)]
    turns[id(piece.request)] += piece.tokens
    return piece._replace(turn=turn)
