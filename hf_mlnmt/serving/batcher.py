"""Translates the texts of many requests in common batches, by one worker thread.

Requests are cut into pieces (sentences, or as much as a model reads at once). Pieces for the same model with the same
options wait in one queue; fair_queue.py chooses the next batch. Beyond that:

- An idle worker begins at once. Only if the last batch served several requests does the worker wait for as many
  requests, at most `max_wait` seconds: clients that were answered together often send the next requests together.
- Between two steps of a batch's search new requests whose turn is before the last turn in the batch are translated, by
  the same thread from inside of the search, maybe with the same model:

    _translate_batch -> _search -> call.search -> generate() -> search/loop.py: rules.between_steps(), at every step
      -> _between_steps -> _let_pass -> _translate_batch(passed=False) -> _search -> another generate()

  A search in compiled code (one sentence) or with steps of static shapes (GPU) calls `_between_steps` once, at first.
- A cancelled request leaves the queue; the search of a batch all of whose requests are cancelled ends at its next step.
- A batch that fails is halved and tried again, until the piece that cannot be translated is alone; its request fails.

A piece's translation does not depend on the batch: see tests/serving/test_batcher.py. A method whose name ends with
_locked is called with the lock held.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation import (
    OF_TEXTS,
    Abandoned,
    CutText,
    DecodingOptions,
    EncodedPiece,
    Hypothesis,
    TranslationCall,
    check_characters,
)
from hf_mlnmt.serving.fair_queue import FairQueues, Queue, QueuedPiece
from hf_mlnmt.serving.limits import check_settings
from hf_mlnmt.serving.models import Leg, ServedModels

logger = logging.getLogger(__name__)

_CLOSING, _NO_WORKER = "the server is about to end", "the server's worker has ended; it must be started again"
_CALLS = 64  # number of TranslationCalls that are cached: those used last


class Overloaded(Exception):
    """Raised for a request that is refused since too many texts wait or the server ends.

    retry_after: seconds after which the client may try again.
    """

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TimedOut(Exception):
    """Raised where a request has exceeded its time limit; its translation is stopped."""


class Translations(NamedTuple):
    """The result of a request: n hypotheses for each text, best first; `via`: the language between if two models
    translated; names of the models; `target`: the target's code if it is not the one asked for (zh-Hans for zh)."""

    texts: list[list[Hypothesis]]
    via: str | None
    models: list[str]
    target: str | None = None


@dataclass
class Statistics:
    """Counts of a Batcher: pieces (sentences) that wait; pieces, tokens and batches that were translated.

    `on_batch` is called after each batch with its number of pieces, source tokens and seconds.
    """

    waiting: int = 0
    pieces: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    batches: int = 0
    on_batch: Callable[[int, int, float], None] | None = None


@dataclass
class _Request:
    """The texts of a request for one TranslationCall; `future`: the result; cancelled if nobody waits for it."""

    call: TranslationCall
    texts: list[str]
    turn: float = 0.0  # tokens served to each waiting request when this one came (fair_queue.py)
    came: float = field(default_factory=time.monotonic)
    cut: list[CutText] = field(default_factory=list)
    pieces: int = 0
    future: Future[list[list[Hypothesis]]] = field(default_factory=Future)
    # {(line, number) of a piece: hypotheses of the piece}
    results: dict[tuple[int, int], list[Hypothesis]] = field(default_factory=dict)

    def take(self, piece: EncodedPiece, hypotheses: list[Hypothesis]) -> None:
        """Stores the hypotheses of a piece (sentence); after the last piece of the request calls `finish`."""
        self.results[piece.line, piece.number] = hypotheses
        if len(self.results) == self.pieces:
            self.finish()

    def finish(self) -> None:
        try:
            texts = [
                self.call.together(text, {piece.number: self.results[text.line, piece.number] for piece in text.inputs})
                for text in self.cut
            ]
        except Exception as error:
            self.fail(error)
        else:
            with suppress(InvalidStateError):  # raised if the request was cancelled
                self.future.set_result(texts)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class Batcher:
    """Translates texts of many requests in common batches. Safe for threads and for event loops.

    Args:
        batch_tokens: source tokens of a batch, padding included.
        max_wait: seconds that an idle worker waits at most for further requests for its batch.
        max_queue: the largest number of pieces that wait; above it requests are refused.

    Raises: UserError for a number out of its range.
    """

    def __init__(
        self, models: ServedModels, *, batch_tokens: int = 4096, max_wait: float = 0.005, max_queue: int = 10_000
    ) -> None:
        check_settings(batch_tokens, max_wait, max_queue)
        self.models, self.statistics = models, Statistics()
        self.batch_tokens, self.max_wait, self.max_queue = batch_tokens, max_wait, max_queue
        self._calls: OrderedDict[Any, TranslationCall] = OrderedDict()
        self._fair = FairQueues(batch_tokens)
        self._changed = threading.Condition()
        self._together = 1  # number of requests in the last batch; an idle worker waits for as many requests
        self._active = 0  # number of requests that are not answered yet
        self._aside = 0.0  # seconds spent on other requests during searches, not counted as time of these searches
        self._closing = False
        self._worker = threading.Thread(target=self._work, name="translate", daemon=True)
        self._worker.start()

    @property
    def healthy(self) -> bool:
        """Returns whether the worker runs; False once an error has ended it."""
        return self._worker.is_alive()

    async def translate(
        self,
        texts: Sequence[str],
        source: str | None = None,
        target: str | None = None,
        *,
        model: str | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Translations:
        """Translates texts by one model or two in turn; a call that is cancelled removes its pieces from the queue.

        Args:
            model: the name of the model to use; None: any that translates the pair.
            timeout: seconds after which TimedOut is raised.
            options: fields of DecodingOptions, and other arguments of generate().

        Raises: UserError for unknown languages, models or options, Overloaded, TimedOut.
        """
        route, results = self.models.route(source, target, model), list[list[Hypothesis]]()
        try:
            async with asyncio.timeout(timeout):
                for number, leg in enumerate(route.legs, 1):
                    request = self._enter(self._call_of(leg, options, number == len(route.legs)), list(texts))
                    try:
                        before, results = results, await asyncio.wrap_future(request.future)
                    finally:
                        self._drop(request)
                    texts = [best[0].text for best in results]
                    if before:  # keeps the warnings of the first of two translations
                        results = [_warned(ranked, first[0].warnings) for ranked, first in zip(results, before)]
        except TimeoutError as error:
            raise TimedOut(f"not done within {timeout:g} seconds") from error
        return Translations(results, route.via, [leg.name for leg in route.legs], route.target)

    def translate_now(self, texts: Sequence[str], *languages: str | None, **options: Any) -> Translations:
        """Calls `translate` and waits for its result."""
        with ThreadPoolExecutor(1) as thread:  # asyncio.run fails in a thread with a running loop
            return thread.submit(asyncio.run, self.translate(texts, *languages, **options)).result()

    def reload(self) -> list[str]:
        """Loads all models again by ServedModels.reload, and returns a message for each model that failed to load.

        Begun requests are finished by the old models.
        """
        problems = self.models.reload()
        loaded = {id(model.pipeline) for model in self.models.models}
        with self._changed:
            for key in [key for key, call in self._calls.items() if id(call.pipeline) not in loaded]:
                del self._calls[key]
        return problems

    def close_now(self, timeout: float | None = None) -> None:
        """Refuses new requests, finishes accepted ones and ends the worker; after `timeout` seconds the others fail."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._worker.join(timeout)
        self._fail_all(Overloaded(_CLOSING))

    def _fail_all(self, error: Exception) -> None:
        """Empties all queues and fails the requests that waited in them."""
        with self._changed:
            queues = self._fair.queues.values()
            left = [request for queue in queues for request in [*queue.uncut, *(p.request for p in queue.pieces)]]
            self._fair.queues = {}
            self.statistics.waiting = 0
        for request in left:
            request.fail(error)

    # Methods that cut the texts of requests into pieces.

    def _call_of(self, leg: Leg, options: dict[str, Any], last: bool) -> TranslationCall:
        """Returns the TranslationCall of a leg, cached. Raises: UserError for options that do not exist or fit."""
        key = (*leg, last, repr(sorted(options.items())))
        with self._changed:
            if (call := self._calls.get(key)) is not None:
                self._calls.move_to_end(key)
                return call
        for name in (*OF_TEXTS, "terms"):
            for text in texts_in(options.get(name)):
                check_characters(text, name)
        call = TranslationCall(leg.pipeline, _options_of_leg(leg, options, last))
        call.quotes = False
        with self._changed:
            call = self._calls.setdefault(key, call)
            while len(self._calls) > _CALLS:
                self._calls.popitem(last=False)
        return call

    def _enter(self, call: TranslationCall, texts: list[str]) -> _Request:
        """Puts a request for these texts into its queue and returns it. Raises: UserError, Overloaded."""
        for number, text in enumerate(texts, 1):
            check_characters(text, f"text {number}")
        request = _Request(call, texts)
        if not texts:
            request.finish()
            return request
        with self._changed:
            if self._closing or not self.healthy:
                raise Overloaded(_CLOSING if self.healthy else _NO_WORKER)
            request.turn = self._fair.served
            self._make_room_locked(len(texts))
            self.statistics.waiting += len(texts)
            self._active += 1
            request.future.add_done_callback(self._answered)
            self._fair.queue(call).uncut.append(request)
            self._changed.notify()
        return request

    def _answered(self, future: Future[Any]) -> None:
        with self._changed:
            self._active -= 1

    def _make_room_locked(self, pieces: int) -> None:
        """Raises Overloaded if with so many more pieces more than `max_queue` would wait."""
        waiting = self.statistics.waiting
        if waiting + pieces > self.max_queue:
            message = f"{waiting} sentences wait, and {pieces} more would be above the limit of {self.max_queue}"
            raise Overloaded(message, max(1.0, self._fair.seconds_left()))

    def _put(self, call: TranslationCall, pieces: list[QueuedPiece]) -> None:
        """Puts pieces into the queue of their call."""
        with self._changed:
            self._fair.put(call, pieces)
            self._changed.notify()

    def _cut(self, call: TranslationCall, requests: list[_Request]) -> list[QueuedPiece]:
        """Cuts the texts of requests into pieces; counts these as waiting, and returns them."""
        try:
            if len(requests) > 1 and any(not isinstance(getattr(call.options, x), str | None) for x in OF_TEXTS):
                # Requests with such options are cut one by one, in the `except` clause.
                raise UserError("an option has an entry for each text of a request")
            cut = call.cut([text for request in requests for text in request.texts], 1)
            call.forget_lines()
        except Exception as error:
            if len(requests) > 1:
                return [piece for request in requests for piece in self._cut(call, [request])]
            with self._changed:
                self.statistics.waiting -= len(requests[0].texts)
                self._changed.notify_all()
            requests[0].fail(error)
            return []
        every, pieces = iter(cut), list[QueuedPiece]()
        for request in requests:
            # Numbers the lines of each request from 1: messages, options and random draws depend on the line's number.
            request.cut = [next(every).on_line(line) for line in range(1, len(request.texts) + 1)]
            inputs = [sentence for text in request.cut for sentence in text.inputs]
            request.pieces = len(inputs)
            with self._changed:
                self.statistics.waiting -= len(request.texts)
                try:
                    self._make_room_locked(len(inputs))
                except Overloaded as error:
                    request.fail(error)
                if not request.future.done():  # the request was neither refused nor cancelled
                    self.statistics.waiting += len(inputs)
                    pieces += self._fair.pieces_of(request, ((len(each.ids), each) for each in inputs))
            if not inputs:
                request.finish()
        return pieces

    def _drop(self, request: _Request) -> None:
        """Cancels a request that nobody waits for any more, and removes it from its queue."""
        if request.future.done() and not request.future.cancelled() and request.future.exception() is None:
            return
        request.future.cancel()
        with self._changed:
            pieces, was_uncut = self._fair.remove(request.call, request)
            self.statistics.waiting -= pieces + (len(request.texts) if was_uncut else 0)
            self._changed.notify_all()

    # Methods that translate pieces in batches.

    def _work(self) -> None:
        """Translates batch after batch until the batcher is closed: the worker thread's function."""
        try:
            while (call := self._next_call()) is not None:
                with self._changed:
                    queue = self._fair.queue(call)
                    held = queue.drain()
                with self._failing(held):
                    if held:
                        self._put(call, self._cut(call, held))
                    self._translate_batch(call, queue)
        except BaseException as error:
            log_failure(error)
            logger.error("the worker ended: start the server again")
            self._closing = True
            self._fail_all(Overloaded(_NO_WORKER))

    @contextmanager
    def _failing(self, requests: list[_Request]) -> Iterator[None]:
        """Context manager: an exception inside fails these requests, and does not end the worker."""
        try:
            yield
        except BaseException as error:
            log_failure(error)
            for request in requests:
                request.fail(error)

    def _next_call(self) -> TranslationCall | None:
        """Waits for work and returns the call whose turn it is; None once the batcher is closed and nothing waits."""
        with self._changed:
            while True:
                call = self._fair.first()
                if call is None:
                    if self._closing and not self.statistics.waiting:
                        return None
                    self._changed.wait()
                    continue
                queue = self._fair.queue(call)
                oldest = queue.uncut[0].came if queue.uncut else 0.0
                left = oldest + self.max_wait - time.monotonic()
                if queue.pieces or left <= 0 or self._closing or queue.requests(self._together) >= self._together:
                    return call
                self._changed.wait(left)  # ends when a request comes or is cancelled, or after `left` seconds

    def _translate_batch(self, call: TranslationCall, queue: Queue, passed: bool = True) -> None:
        """Translates a batch of a queue, if it has pieces; passed: new requests may be translated between its steps."""
        with self._changed:
            batch, wanted = self._fair.take(call, queue, call.most, call.ahead)
            self.statistics.waiting -= len(batch)
            active = [self._active]  # `_between_steps` appends the number of unanswered requests at each step
        if not batch:
            return
        with self._failing([piece.request for piece in batch]):
            began, aside = time.monotonic(), self._aside
            self._search(call, batch, passed, active)
            seconds = time.monotonic() - began - (self._aside - aside)
            self._count(call, batch, wanted, sum(active) / len(active), seconds)

    def _let_pass(self, last: float) -> None:
        """Translates, during the search of a batch, new requests whose turn is before `last`."""
        with self._changed:
            if (call := self._fair.before(last)) is None:
                return
            held = self._fair.queue(call).drain()
        began = time.monotonic()
        with self._failing(held):
            pieces = self._cut(call, held)
            now = Queue(pieces=[piece for piece in pieces if piece.turn < last])
            self._put(call, [piece for piece in pieces if piece.turn >= last])
            while now.pieces:
                self._translate_batch(call, now, passed=False)
        self._aside += time.monotonic() - began

    def _search(self, call: TranslationCall, pieces: list[QueuedPiece], passed: bool, active: list[int]) -> None:
        """Searches pieces and sets their results; passed, active: as in `_translate_batch`, `active` is appended to."""
        pieces = [piece for piece in pieces if not piece.request.future.done()]
        if not pieces:
            return
        try:
            between_steps = partial(self._between_steps, pieces, passed, active)
            found = call.search([piece.content for piece in pieces], between_steps).result()
        except Abandoned:
            return
        except Exception as error:
            if len(pieces) == 1:
                pieces[0].request.fail(error)
                return
            logger.warning("a batch of %d failed (%s): each half is tried alone", len(pieces), type(error).__name__)
            half = len(pieces) // 2
            self._search(call, pieces[:half], passed, active)
            self._search(call, pieces[half:], passed, active)
            return
        self.statistics.target_tokens += sum(ranked[0].length for ranked in found if ranked)
        for piece, hypotheses in zip(pieces, found, strict=True):
            piece.request.take(piece.content, hypotheses)

    def _between_steps(self, pieces: list[QueuedPiece], passed: bool, active: list[int]) -> bool:
        """Translates new requests with an earlier turn; returns whether nobody waits for these pieces any more."""
        active.append(self._active)
        if passed:
            self._let_pass(max(piece.turn for piece in pieces))
        return all(piece.request.future.done() for piece in pieces)

    def _count(self, call: Any, pieces: list[QueuedPiece], wanted: int, active: float, seconds: float) -> None:
        """Adds a batch to the statistics. wanted: its planned number of pieces; active: mean of unanswered requests."""
        with self._changed:
            statistics, self._together = self.statistics, len({id(piece.request) for piece in pieces})
            tokens = self._fair.count(pieces, active, seconds)
            self._fair.costs(call).add(wanted, tokens, seconds)
            statistics.pieces += len(pieces)
            statistics.source_tokens += tokens
            statistics.batches += 1
        if statistics.on_batch:
            statistics.on_batch(len(pieces), tokens, seconds)


def log_failure(error: BaseException) -> None:
    """Logs an unexpected exception by type and traceback, without its message, which may quote a user's text."""
    where = "".join(traceback.format_tb(error.__traceback__))
    logging.getLogger("hf_mlnmt.serving").error("%s", json.dumps({"failed": type(error).__name__, "where": where}))


def _options_of_leg(leg: Leg, options: dict[str, Any], last: bool) -> DecodingOptions:
    """Returns the decoding options of a leg. The first of two legs has no n-best list, since only its best translation
    is translated further, and no terms or phrases, which are for the target language.

    Raises: UserError for options that do not exist or do not fit together.
    """
    asked = {**options, "source_language": leg.source, "target_language": leg.target}
    if not last:
        terms = "terms", "terms_ignore_case"
        for name in ("num_return_sequences", "alternatives", *terms, *OF_TEXTS):
            asked.pop(name, None)
    if asked.get("do_sample") and (asked.get("num_return_sequences") or 1) == 1 and not asked.get("num_beams"):
        asked = {"seed": 1, **asked, "draws": "text"}  # random draws depend on the text, not the batch
    return DecodingOptions().with_keywords(asked)


def _warned(ranked: list[Hypothesis], warnings: Sequence[str]) -> list[Hypothesis]:
    """Returns hypotheses with these warnings in front of their own."""
    return [replace(each, warnings=tuple(dict.fromkeys([*warnings, *each.warnings]))) for each in ranked]


def texts_in(value: Any) -> Iterator[str]:
    """Yields all strings in a JSON value, keys of objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in [*value, *(value.values() if isinstance(value, Mapping) else ())]:
            yield from texts_in(part)
