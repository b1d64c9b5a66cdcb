"""Who is served next: start-time fair queueing (Goyal, Vin and Cheng 1997), counted in tokens served.

A queue holds the pieces (sentences) of many requests that can be searched together. The turn of a piece is the number
of tokens that each waiting request had been served when its own request came, plus the tokens of its request's pieces
before it. The smallest turn goes first, so a short text does not wait until a long one is done. The tokens of a batch
count as served to the requests that waited meanwhile, in equal parts. A, B and C come, with a piece a batch:

    served  the turns of pieces that wait              the next batch
    0       A, three pieces of 100 tokens: 0 100 200   A's first; meanwhile B comes, with a piece of 10 tokens: turn 0
    50      A 100 200; B 0                             B's: of A's 100 tokens 50 count for each
    55      A 100 200; C comes, a piece of 60: 55      C's: it has not to wait for what A had before
    85      A 100 200                                  A's second

A batch has a budget of tokens, padding included. It has no more pieces than lower its cost, which is measured, and no
more of one request than about half a second's worth: then answers go out, and turns change, as soon as they can.

Knows no thread, model or HTTP: batcher.py calls it with its lock held.
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

_LOOKED_AT = 1024  # pieces of a queue from which a batch of similar lengths is chosen
_WEIGHT = 0.2  # of the newest batch, in the mean speed over batches
_SECONDS = 0.5  # that the pieces of one request may take in a batch, by the speed of the batches before;
_LEAST_PART = 8  # but they may have this part of a batch at any speed: tiny batches would take even longer in all
_MEASURED = 3  # newest searches of a size that count; the first two of a queue also warm up
_TRIED_AGAIN = 64  # choices after which another size is measured once more
_DEARER = 1.15  # how much more a token may cost in a smaller batch, whose answers go out earlier


class QueuedPiece(NamedTuple):
    """A piece of a request; pieces are sorted by their turns, and equal turns by their numbers."""

    turn: float
    number: int
    request: Any  # with a `turn`
    tokens: int
    content: Any


@dataclass
class Queue:
    """Requests that are not cut into pieces yet, in the order of their turns, and a heap of pieces."""

    uncut: list[Any] = field(default_factory=list)
    pieces: list[QueuedPiece] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.uncut) + len(self.pieces)

    @property
    def turn(self) -> float:
        """Returns the smallest turn, infinity for an empty queue."""
        return min(self.uncut[0].turn if self.uncut else math.inf, self.pieces[0].turn if self.pieces else math.inf)

    def requests(self, most: int) -> int:
        """Counts the requests: uncut ones, and those of the first `most` pieces."""
        return len(self.uncut) + len({id(piece.request) for piece in self.pieces[:most]})

    def drain(self) -> list[Any]:
        """Takes the uncut requests out and returns them."""
        uncut, self.uncut = self.uncut, []
        return uncut


class Costs:
    """Seconds per token of a queue's searches, by batch size: 1, about 2, 4, 8 and so on."""

    def __init__(self) -> None:
        self._seen: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_MEASURED))
        self._choices = 0

    def add(self, pieces: int, tokens: int, seconds: float) -> None:
        """Records what a search of about so many pieces took."""
        self._seen[pieces.bit_length()].append(seconds / tokens)

    def size(self, most: int) -> int:
        """Returns how many of `most` pieces to search together: the fewest that cost about the least."""
        sizes = [*(1 << bit for bit in range(most.bit_length() - 1)), most]
        self._choices += 1
        seen = [self._seen[size.bit_length()] for size in sizes]
        # One piece costs little to try; of the others the larger ones are the likelier.
        if unknown := [size for size, each in zip(sizes, seen) if len(each) < _MEASURED]:
            return unknown[0] if unknown[0] == 1 else unknown[-1]
        if self._choices % _TRIED_AGAIN == 0:
            return sizes[self._choices // _TRIED_AGAIN % len(sizes)]
        costs = [min(each) for each in seen]
        return next(size for size, cost in zip(sizes, costs) if cost <= _DEARER * min(costs))


class FairQueues:
    """Queues by key, their turns, and the choice of the next batch. `served`: tokens served to each waiting request."""

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens, self.served = batch_tokens, 0.0
        self.queues: dict[Hashable, Queue] = {}
        self._costs: WeakKeyDictionary[Any, Costs] = WeakKeyDictionary()
        self._tokens_a_second = 0.0  # mean
        self._numbers = count()

    def queue(self, key: Hashable) -> Queue:
        """Returns the queue of a key, a new one if need be."""
        return self.queues.setdefault(key, Queue())

    def first(self) -> Any:
        """Returns the key of the queue whose turn it is, None if nothing waits; empty queues are dropped."""
        self.queues = {key: queue for key, queue in self.queues.items() if queue}
        return min(self.queues, key=lambda key: self.queues[key].turn, default=None)

    def before(self, turn: float) -> Any:
        """Returns the key of a queue in which an uncut request has a turn before this one, or None."""
        due = (key for key, queue in self.queues.items() if queue.uncut and queue.uncut[0].turn < turn)
        return next(due, None)

    def pieces_of(self, request: Any, contents: Iterable[tuple[int, Any]]) -> list[QueuedPiece]:
        """Returns pieces of a request, of (tokens, content), with their turns."""
        tokens, pieces = 0, []
        for size, content in contents:
            pieces.append(QueuedPiece(request.turn + tokens, next(self._numbers), request, size, content))
            tokens += size
        return pieces

    def put(self, key: Hashable, pieces: Iterable[QueuedPiece]) -> None:
        """Adds pieces to a queue."""
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
        """Estimates how long the pieces that wait will take."""
        tokens = sum(piece.tokens for queue in self.queues.values() for piece in queue.pieces)
        return tokens / self._tokens_a_second if self._tokens_a_second else 0.0

    def take(self, key: Any, queue: Queue, most: int, ahead: bool) -> tuple[list[QueuedPiece], int]:
        """Takes the next batch out of a queue: its first piece, and pieces of similar length beside it.

        Args:
            most: pieces that fit into a search.
            ahead: the device computes alone, and a larger batch always costs less a token: costs are not asked. Without
                it, a request whose turn has come is not searched beside pieces whose turn has not.

        Returns the batch, and about how many pieces it was to have: `Costs.add` counts it as one of that size.
        """
        if not queue.pieces:
            return [], 0
        size = queue.pieces[0].tokens
        most_tokens = max(self.batch_tokens / _LEAST_PART, _SECONDS * self._tokens_a_second)  # of one request
        parts = queue.requests(_LOOKED_AT) * int(most_tokens // size)
        wanted = max(1, min(len(queue.pieces), most, self.batch_tokens // size, parts))
        if not ahead:
            wanted = self.costs(key).size(wanted)
        if wanted == 1:
            return [heapq.heappop(queue.pieces)], 1
        first, *others = [heapq.heappop(queue.pieces) for _ in range(min(_LOOKED_AT, len(queue.pieces)))]
        # Pieces whose turn has come go first, then those that waste the least padding.
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
        # The tokens of a request are counted in the order in which its pieces are searched.
        turns: dict[int, float] = {}
        for piece in sorted([*batch, *left]):
            turns.setdefault(id(piece.request), piece.turn)
        batch = [_at_next_turn(piece, turns) for piece in batch]
        for piece in sorted(left):
            heapq.heappush(queue.pieces, _at_next_turn(piece, turns))
        return batch, wanted

    def count(self, batch: list[QueuedPiece], sharers: float, seconds: float) -> int:
        """Counts a batch as served to `sharers` requests in equal parts; returns its tokens."""
        tokens = sum(piece.tokens for piece in batch)
        room = self.batch_tokens // max(piece.tokens for piece in batch)
        # Of very many requests, each of as many as a batch has room for has been served its share.
        self.served += tokens / max(1, min(sharers, room))
        self._tokens_a_second += _WEIGHT * (tokens / max(seconds, 1e-6) - self._tokens_a_second)
        return tokens

    def costs(self, key: Any) -> Costs:
        """Returns the measured costs of a key."""
        return self._costs.setdefault(key, Costs())


def _at_next_turn(piece: QueuedPiece, turns: dict[int, float]) -> QueuedPiece:
    """Returns a piece with the turn that its request has come to, and moves that on by the piece's tokens."""
    turn = turns[id(piece.request)]
    turns[id(piece.request)] += piece.tokens
    return piece._replace(turn=turn)
