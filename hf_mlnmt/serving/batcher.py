"""Common batches of the texts of many requests.

Requests are cut into pieces (sentences, or what a model takes at once). Pieces that the same model translates with the
same options wait in one line, and a worker thread takes batches of a token budget from the line whose turn it is:

- An idle worker begins at once with what is there. Only where the batch before it served several requests does
  it wait for as many, at most `max_wait`: clients that were answered together ask together again.
- A batch has no more pieces than lower its cost, which is measured (`Costs`): on a CPU a small model with several beams
  searches them one after the other. Then answers go out, and turns change, as soon as they can.
- A long text does not hold up a short one. Turns are counted in tokens served (start-time fair queueing, Goyal, Vin and
  Cheng 1997): a piece's turn is the tokens that each waiting request had been served when its own came, plus the tokens
  of its request's pieces taken before it; the smallest goes first. Of one request a batch has no more than takes about
  half a second, and between two steps of it, or while it is encoded, those pass who came meanwhile and whose turn is
  before its last. Its tokens count as served to each request that waited meanwhile, in equal parts.
  On a CPU who is due is not searched beside those of others whose turn has not come.
- On a card pieces join a search that runs, in the rows of those that have ended, as long as the line's turn is first.
- What nobody waits for any more leaves the line; a batch in which nobody is left ends at its next step.
- A worker that ends is started once more; after that the batcher is not `healthy`.
- A batch that fails is halved and tried again, until the piece that cannot be translated is alone; its request fails.

A piece's translation does not depend on the batch: see tests/serving/test_batcher.py.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import math
import threading
import time
import traceback
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.generation.translating.hypotheses import Hypothesis
from hf_mlnmt.generation.translating.options import OF_TEXTS, DecodingOptions, of_texts
from hf_mlnmt.generation.translating.segments import CutText, Input, check_characters
from hf_mlnmt.search.rules import Abandoned
from hf_mlnmt.serving.limits import check_settings
from hf_mlnmt.serving.models import Leg, ServedModels

logger = logging.getLogger(__name__)

_RUNS = 64  # kept, of those that were used last
_SHORT = 20_000  # characters of a request that a worker cuts between two batches; longer ones have another thread
_LOOKED_AT = 1024  # pieces of a line from which a batch of similar lengths is chosen
_WEIGHT = 0.2  # of the newest batch, in the mean speed over batches
_SECONDS = 0.5  # that the pieces of one request may take in a batch, by the speed of the batches before;
_MEASURED = 3  # searches of a size that count, the newest ones; the first two of a run make things ready
_TRIED_AGAIN = 64  # choices after which another size is measured once more
_DEARER = 1.15  # at most: so much it is worth that answers do not wait for each other
_LEAST_PART = 8  # but they may have this part of a batch at any speed: tiny batches would take even longer in all


class Overloaded(Exception):
    """Refusal because too much waits or the batcher is closing; `retry_after` seconds from now it may be otherwise."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TimedOut(Exception):
    """Passed time limit of a request, whose work is stopped."""


class Translations(NamedTuple):
    """n hypotheses for each text, best first; the language between, if any; the names of the models; the target's code
    where it is another than was asked for, as zh-Hans for zh."""

    texts: list[list[Hypothesis]]
    via: str | None
    models: list[str]
    target: str | None = None


@dataclass
class Statistics:
    """Counts of what was done. `on_batch` is called after each batch with its pieces, source tokens and seconds."""

    waiting: int = 0
    pieces: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    batches: int = 0
    on_batch: Callable[[int, int, float], None] | None = None


@dataclass
class _Request:
    """Texts for one run; `future` has the result, and says when nobody waits for it any more."""

    run: TranslationCall
    texts: list[str]
    turn: float = 0.0  # tokens
    came: float = field(default_factory=time.monotonic)
    cut: list[CutText] = field(default_factory=list)
    pieces: int = 0
    rounds: Iterator[Sequence[Input]] = field(
        default_factory=partial(iter, ())
    )  # of its pieces; those of the next depend on all before
    left: int = 0  # pieces of this round that are not translated yet
    future: Future[list[list[Hypothesis]]] = field(default_factory=Future)
    results: dict[tuple[int, int], list[Hypothesis]] = field(default_factory=dict)  # by line and number of the piece

    def take(self, piece: Input, hypotheses: list[Hypothesis]) -> Sequence[Input]:
        """Takes what was found for a piece; returns the pieces that can be searched now."""
        self.results[piece.line, piece.number] = hypotheses
        self.left -= 1
        if len(self.results) == self.pieces:
            self.finish()
        return self.following()

    def following(self) -> Sequence[Input]:
        """Returns the pieces of the next round, when this one is done."""
        more = () if self.left else next(self.rounds, ())
        self.left += len(more)
        return more

    def translation_of(self, piece: Input) -> str:
        return self.results[piece.line, piece.number][0].text

    def finish(self) -> None:
        try:
            texts = [
                self.run.together(text, {piece.number: self.results[text.line, piece.number] for piece in text.inputs})
                for text in self.cut
            ]
        except Exception as error:
            self.fail(error)
        else:
            _settle(self.future, lambda: self.future.set_result(texts))

    def fail(self, error: BaseException) -> None:
        _settle(self.future, lambda: self.future.set_exception(error))


class _Piece(NamedTuple):
    """A place in a line: sorted by its turn, which comes when so many tokens have been served to each request."""

    turn: float
    number: int  # of all pieces, so that equal turns keep their order
    request: _Request
    input: Input


@dataclass
class _Queue:
    """The line of one run: requests that are not cut yet, and pieces, a heap."""

    uncut: list[_Request] = field(default_factory=list)
    pieces: list[_Piece] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.uncut) + len(self.pieces)

    @property
    def turn(self) -> float:
        """Returns the turn of the first in it."""
        return min(self.uncut[0].turn if self.uncut else math.inf, self.pieces[0].turn if self.pieces else math.inf)

    def requests(self, most: int) -> int:
        """Counts the requests in it, those of its first `most` pieces."""
        return len(self.uncut) + len({id(piece.request) for piece in self.pieces[:most]})


class Costs:
    """The seconds that a token has taken in searches of 1 piece, about 2, 4, 8 and so on, of one run."""

    def __init__(self) -> None:
        self._seen: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_MEASURED))
        self._choices = 0

    def add(self, pieces: int, tokens: int, seconds: float) -> None:
        """Notes what a search of about so many pieces took."""
        self._seen[pieces.bit_length()].append(seconds / tokens)

    def size(self, most: int) -> int:
        """Returns how many of so many pieces are to be searched together: the fewest that cost about the least."""
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


class Batcher:
    """Translates texts of many requests in common batches. Safe for threads and for event loops.

    batch_tokens: source tokens of a batch, padding included. max_wait: seconds that the idle worker waits at most for
    requests that will fill its batch. max_queue: pieces that may wait. Raises: UserError for a number out of its range.
    """

    def __init__(
        self,
        models: ServedModels,
        *,
        batch_tokens: int = 4096,
        max_wait: float = 0.005,
        max_queue: int = 10_000,
    ) -> None:
        check_settings(batch_tokens, max_wait, max_queue)
        self.models, self.statistics = models, Statistics()
        self.batch_tokens, self.max_wait, self.max_queue = batch_tokens, max_wait, max_queue
        self._runs: OrderedDict[Any, TranslationCall] = OrderedDict()
        self._lines: dict[TranslationCall, _Queue] = {}
        self._numbers = count()
        self._changed = threading.Condition()
        self._together = 1  # requests that the last batch served
        self._served = 0.0  # tokens that each request that waits has been served
        self._active = 0  # requests that are not answered yet
        self._aside = 0.0  # seconds that searches have waited for those who passed
        self._costs: WeakKeyDictionary[TranslationCall, Costs] = WeakKeyDictionary()
        self._tokens_a_second = 0.0  # mean
        self._closing = False
        self.healthy = True  # the worker works; it is False when it has ended though it was started once more
        self._cutter = ThreadPoolExecutor(1, thread_name_prefix="cut")  # of long texts
        self._worker = threading.Thread(target=self._work, name="translate", daemon=True)
        self._worker.start()

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
        """Translates texts between languages, by one model where it is named; cancelled, its work is taken back.

        timeout: seconds after which it is given up. options: fields of DecodingOptions, and others of generate().
        Raises: UserError for what cannot be done, Overloaded, TimedOut.
        """
        route, results = self.models.route(source, target, model), []
        try:
            async with asyncio.timeout(timeout):
                for number, leg in enumerate(route.legs, 1):
                    request = self._enter(self._run(leg, options, number == len(route.legs)), list(texts))
                    try:
                        results = await asyncio.wrap_future(request.future)
                    finally:
                        self._drop(request)
                    texts = [best[0].text if best else "" for best in results]
        except TimeoutError as error:
            raise TimedOut(f"not done within {timeout:g} seconds") from error
        return Translations(results, route.via, [leg.name for leg in route.legs], route.target)

    def translate_now(self, texts: Sequence[str], *languages: str | None, **options: Any) -> Translations:
        """Waits for what `translate` returns."""
        with ThreadPoolExecutor(1) as thread:  # the caller's may have an event loop
            return thread.submit(asyncio.run, self.translate(texts, *languages, **options)).result()

    def reload(self) -> list[str]:
        """Reads all models again, see ServedModels.reload; what has begun is finished by the old ones."""
        problems = self.models.reload()
        loaded = {id(model.pipeline) for model in self.models.models}
        with self._changed:
            for key in [key for key, run in self._runs.items() if id(run.pipeline) not in loaded]:
                del self._runs[key]
        return problems

    def close_now(self, timeout: float | None = None) -> None:
        """Takes no new work, finishes what has begun and ends the worker; after `timeout` seconds the rest fails."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._worker.join(timeout)
        self._fail_all(_closing())
        self._cutter.shutdown(wait=False, cancel_futures=True)

    def _fail_all(self, error: Exception) -> None:
        """Lets all that waits fail."""
        with self._changed:
            left = [request for line in self._lines.values() for request in line.uncut]
            left += [piece.request for line in self._lines.values() for piece in line.pieces]
            self._lines.clear()
            self.statistics.waiting = 0
        for request in left:
            request.fail(error)

    # From texts to pieces

    def _run(self, leg: Leg, options: dict[str, Any], last: bool) -> TranslationCall:
        """Returns what translates a leg with these options. Raises: UserError for options that do not exist or fit."""
        key = (*leg, last, repr(sorted(options.items())))
        with self._changed:
            if (run := self._runs.get(key)) is not None:
                self._runs.move_to_end(key)
                return run
        for name in (*OF_TEXTS, "terms"):
            for text in texts_in(options.get(name)):
                check_characters(text, name)
        run = TranslationCall(leg.pipeline, _options_of_leg(leg, options, last))
        run.quotes = False
        with self._changed:
            run = self._runs.setdefault(key, run)
            while len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
        return run

    def _enter(self, run: TranslationCall, texts: list[str]) -> _Request:
        """Puts a request for these texts into its line and returns it. Raises: UserError, Overloaded."""
        for number, text in enumerate(texts, 1):
            check_characters(text, f"text {number}")
        request = _Request(run, texts)
        if not texts:
            request.finish()
            return request
        with self._changed:
            if self._closing:
                raise _closing()
            if not self.healthy:
                raise _no_worker()
            request.turn = self._served
            self._make_room(len(texts))
            self.statistics.waiting += len(texts)
            self._active += 1
            request.future.add_done_callback(self._answered)
            if sum(map(len, texts)) <= _SHORT:
                self._lines.setdefault(run, _Queue()).uncut.append(request)
                self._changed.notify()
                return request
        self._cutter.submit(self._cut_into_line, run, [request])
        return request

    def _answered(self, future: Future[Any]) -> None:
        with self._changed:
            self._active -= 1

    def _make_room(self, pieces: int) -> None:
        """Raises Overloaded where so many more would be too many. Called with the lock."""
        waiting = self.statistics.waiting
        if waiting + pieces > self.max_queue:
            tokens = sum(len(piece.input.ids) for line in self._lines.values() for piece in line.pieces)
            raise Overloaded(
                f"{waiting} sentences wait, and {pieces} more would be above the limit of {self.max_queue}",
                max(1.0, tokens / self._tokens_a_second if self._tokens_a_second else 1.0),
            )

    def _cut_into_line(self, run: TranslationCall, requests: list[_Request]) -> None:
        """Cuts the texts of requests and puts the pieces into their line."""
        self._put(run, self._cut(run, requests))

    def _put(self, run: TranslationCall, pieces: list[_Piece]) -> None:
        with self._changed:
            line = self._lines.setdefault(run, _Queue())
            for piece in pieces:
                heapq.heappush(line.pieces, piece)
            self._changed.notify()

    def _cut(self, run: TranslationCall, requests: list[_Request]) -> list[_Piece]:
        """Cuts the texts of requests and returns the pieces, which count as waiting."""
        try:
            if len(requests) > 1 and any(not isinstance(x, str | None) for x in of_texts(run.options).values()):
                raise UserError("an option has an entry for each text of a request")  # which are counted in it
            cut = run.cut([text for request in requests for text in request.texts], 1)
            run.forget_lines()
        except Exception as error:
            if len(requests) > 1:
                return [piece for request in requests for piece in self._cut(run, [request])]
            self._left(len(requests[0].texts))
            requests[0].fail(error)
            return []
        entered, every = list[tuple[_Request, Sequence[Input]]](), iter(cut)
        for request in requests:
            # Lines are counted in each request: what a call says of line n, and a draw, belong to its own texts.
            request.cut = [next(every).on_line(line) for line in range(1, len(request.texts) + 1)]
            request.pieces = sum(len(text.inputs) for text in request.cut)
            sentences = [sentence for text in request.cut for sentence in text.inputs]
            request.rounds = run.rounds(sentences, request.translation_of, {})
            entered.append((request, request.following()))
        with self._changed:
            for request, _ in entered:
                if sum(map(len, request.texts)) > _SHORT:  # others have not kept it waiting: it was being cut
                    request.turn = self._served
            pieces = [
                piece
                for request, sentences in entered
                if self._is_accepted(request)
                for piece in self._pieces_of(request, sentences)
            ]
        for request in requests:
            if not request.pieces:
                request.finish()
        return pieces

    def _pieces_of(self, request: _Request, sentences: Sequence[Input]) -> list[_Piece]:
        """Returns pieces of a request for its line, counted as waiting. Called with the lock."""
        tokens, pieces = 0, []
        for sentence in sentences:
            pieces.append(_Piece(request.turn + tokens, next(self._numbers), request, sentence))
            tokens += len(sentence.ids)
        self.statistics.waiting += len(pieces)
        return pieces

    def _is_accepted(self, request: _Request) -> bool:
        """Returns whether the pieces of a request may wait. Called with the lock."""
        self.statistics.waiting -= len(request.texts)
        try:
            self._make_room(request.pieces)
        except Overloaded as error:
            request.fail(error)
        return not request.future.done()  # or it was cancelled meanwhile

    def _drop(self, request: _Request) -> None:
        """Takes what is left of a request out of its line: nobody waits for it any more."""
        if request.future.done() and not request.future.cancelled() and request.future.exception() is None:
            return
        request.future.cancel()
        with self._changed:
            line = self._lines.get(request.run)
            if line is None:
                return
            pieces = [piece for piece in line.pieces if piece.request is not request]
            self.statistics.waiting -= len(line.pieces) - len(pieces)
            line.pieces = pieces
            heapq.heapify(pieces)
            if any(other is request for other in line.uncut):
                line.uncut = [other for other in line.uncut if other is not request]
                self.statistics.waiting -= len(request.texts)
            self._changed.notify_all()

    def _left(self, pieces: int) -> None:
        with self._changed:
            self.statistics.waiting -= pieces
            self._changed.notify_all()

    # From pieces to batches

    def _work(self) -> None:
        for more in ("and is started once more", "for good: start the server again"):
            try:
                return self._translate_batches()
            except BaseException as error:
                log_failure(error)
                logger.error("a worker ended, %s", more)
        with self._changed:
            self.healthy = False
        self._fail_all(_no_worker())

    def _translate_batches(self) -> None:
        """Translates until the batcher is closed."""
        while (run := self._next_run()) is not None:
            with self._changed:
                line = self._lines.get(run, _Queue())
                held, line.uncut = line.uncut, []
            with self._failing(held):
                if held:
                    self._cut_into_line(run, held)
                self._translate_batch(run, line)

    @contextmanager
    def _failing(self, requests: list[_Request]) -> Iterator[None]:
        """Lets requests fail by a fault of ours inside: none shall wait for ever, and no worker be lost."""
        try:
            yield
        except BaseException as error:
            log_failure(error)
            for request in requests:
                request.fail(error)

    def _translate_batch(self, run: TranslationCall, line: _Queue, passed: bool = True) -> None:
        """Translates a batch of a line, if there are pieces in it; `passed`: newcomers may pass it."""
        with self._changed:
            (batch, wanted), active = self._take(run, line), [self._active]
        if batch:
            with self._failing([piece.request for piece in batch]):
                if run.takes_newcomers:
                    self._search_joined(run, batch)
                    return
                began, aside = time.monotonic(), self._aside
                self._search(run, batch, passed, active)
                seconds = time.monotonic() - began - (self._aside - aside)
                self._count(batch, sum(active) / len(active), seconds)
                self._costs_of(run).add(wanted, sum(len(piece.input.ids) for piece in batch), seconds)

    def _let_pass(self, last: float) -> None:
        """Translates what came while a batch was searched, of those turns before `last`."""
        with self._changed:
            due = ((run, line) for run, line in self._lines.items() if line.uncut and line.uncut[0].turn < last)
            if (found := next(due, None)) is None:
                return
            run, line = found
            held, line.uncut = line.uncut, []
        began = time.monotonic()
        with self._failing(held):
            pieces = self._cut(run, held)
            now = _Queue(pieces=[piece for piece in pieces if piece.turn < last])
            self._put(run, [piece for piece in pieces if piece.turn >= last])
            while now.pieces:
                self._translate_batch(run, now, False)
        self._aside += time.monotonic() - began

    def _next_run(self) -> TranslationCall | None:
        """Waits for work and returns the run whose turn it is; None: closed, and nothing is left."""
        with self._changed:
            while True:
                for run in [run for run, line in self._lines.items() if not line]:
                    del self._lines[run]
                if not self._lines:
                    if self._closing and not self.statistics.waiting:
                        return None
                    self._changed.wait()
                    continue
                run = min(self._lines, key=lambda run: self._lines[run].turn)
                line = self._lines[run]
                oldest = line.uncut[0].came if line.uncut else 0.0
                left = oldest + self.max_wait - time.monotonic()
                if line.pieces or left <= 0 or self._closing or line.requests(self._together) >= self._together:
                    return run
                self._changed.wait(left)  # until someone comes or leaves, or the time is over

    def _take(self, run: TranslationCall, line: _Queue, free: int | None = None) -> tuple[list[_Piece], int]:
        """Takes the first piece of a line, and those of similar length that fit beside it, `free` at most; called with
        the lock.

        Returns them, and about how many they were to be.
        """
        if not line.pieces:
            return [], 0
        size = len(line.pieces[0].input.ids)
        most = max(self.batch_tokens / _LEAST_PART, _SECONDS * self._tokens_a_second)  # tokens of a request
        parts = line.requests(_LOOKED_AT) * int(most // size)
        fit = run.most if free is None else min(run.most, free)
        wanted = max(1, min(len(line.pieces), fit, self.batch_tokens // size, parts))
        if not run.ahead:
            wanted = self._costs_of(run).size(wanted)
        if wanted == 1:
            self.statistics.waiting -= 1
            return [heapq.heappop(line.pieces)], 1
        first, *others = [heapq.heappop(line.pieces) for _ in range(min(_LOOKED_AT, len(line.pieces)))]
        # Those whose turn has come go first, then the ones that waste the least padding.
        others.sort(
            key=lambda piece: (
                piece.turn > self._served,
                abs(len(piece.input.ids) - len(first.input.ids)),
                piece.number,
            )
        )
        batch, left, longest = [first], list[_Piece](), len(first.input.ids)
        tokens = Counter({id(first.request): longest})
        for piece in others:
            size, request = len(piece.input.ids), id(piece.request)
            longest_then = max(longest, size)
            if (
                (len(batch) + 1) * longest_then <= self.batch_tokens
                and len(batch) < (fit if run.ahead else wanted)
                and (not tokens[request] or tokens[request] + size <= most)
                # Where more pieces take more time, no other request waits for those whose turn has not come.
                and (run.ahead or piece.turn <= self._served or tokens.keys() == {request})
            ):
                batch.append(piece)
                longest = longest_then
                tokens[request] += size
            else:
                left.append(piece)
        # The tokens of a request are counted in the order in which they are searched.
        turns: dict[int, float] = {}
        for piece in sorted([*batch, *left]):
            turns.setdefault(id(piece.request), piece.turn)
        for place, piece in enumerate(batch):
            batch[place] = _next_of(piece, turns)
        for piece in sorted(left):
            heapq.heappush(line.pieces, _next_of(piece, turns))
        self.statistics.waiting -= len(batch)
        return batch, wanted

    def _costs_of(self, run: TranslationCall) -> Costs:
        return self._costs.setdefault(run, Costs())

    def _search(self, run: TranslationCall, pieces: list[_Piece], passed: bool, active: list[int]) -> None:
        """Searches; `passed`: at every step newcomers may pass. Notes how many requests are `active` then."""
        pieces = [piece for piece in pieces if not piece.request.future.done()]
        if not pieces:
            return
        try:
            translations = run.search([piece.input for piece in pieces], partial(self._at_step, pieces, passed, active))
        except Abandoned:
            return
        except Exception as error:
            if len(pieces) == 1:
                pieces[0].request.fail(error)
                return
            logger.warning("a batch of %d failed (%s): each half is tried alone", len(pieces), type(error).__name__)
            half = len(pieces) // 2
            self._search(run, pieces[:half], passed, active)
            self._search(run, pieces[half:], passed, active)
            return
        self.statistics.target_tokens += sum(ranked[0].length for ranked in translations if ranked)
        for piece, hypotheses in zip(pieces, translations, strict=True):
            if more := piece.request.take(piece.input, hypotheses):
                with self._changed:
                    following = self._pieces_of(piece.request, more)
                self._put(run, following)

    def _search_joined(self, run: TranslationCall, batch: list[_Piece]) -> None:
        """Searches a batch, which others of its line join as long as no other line's turn is before theirs."""
        under_way, before = {id(piece.input): piece for piece in batch}, time.monotonic()
        room = min(run.most, self.batch_tokens // max(len(piece.input.ids) for piece in batch))

        def newcomers(free: int) -> list[Input]:
            with self._changed:
                line = self._lines.get(run, _Queue())
                if not line or any(each.turn < line.turn for each in self._lines.values()):
                    return []
                held, line.uncut = line.uncut, []
            with self._failing(held):
                self._put(run, self._cut(run, held) if held else [])
            with self._changed:
                new = self._take(run, line, free)[0]
            under_way.update((id(piece.input), piece) for piece in new)
            return [piece.input for piece in new]

        def ended(inputs: list[Input], translations: list[list[Hypothesis]]) -> None:
            nonlocal before
            pieces, now = [under_way.pop(id(each)) for each in inputs], time.monotonic()
            self.statistics.target_tokens += sum(ranked[0].length for ranked in translations)
            self._count(pieces, self._active, now - before)
            before = now
            for piece, hypotheses in zip(pieces, translations, strict=True):
                piece.request.take(piece.input, hypotheses)

        def abandoned() -> bool:
            return all(piece.request.future.done() for piece in under_way.values())

        try:
            run.search_joined([piece.input for piece in batch], max(room, len(batch)), abandoned, newcomers, ended)
        except Abandoned:
            return
        except Exception as error:
            logger.warning("a search that others joined failed (%s): its texts are tried again", type(error).__name__)
            self._search(run, [*under_way.values()], False, [])

    def _at_step(self, pieces: list[_Piece], passed: bool, active: list[int]) -> bool:
        """Lets others pass, and tells whether nobody waits for these any more."""
        active.append(self._active)
        if passed:
            self._let_pass(max(piece.turn for piece in pieces))
        return all(piece.request.future.done() for piece in pieces)

    def _count(self, pieces: list[_Piece], active: float, seconds: float) -> None:
        """Counts a batch, while which so many requests, in the mean, were not answered."""
        tokens = sum(len(piece.input.ids) for piece in pieces)
        room = self.batch_tokens // max(len(piece.input.ids) for piece in pieces)
        with self._changed:
            statistics, self._together = self.statistics, len({id(piece.request) for piece in pieces})
            statistics.pieces += len(pieces)
            statistics.source_tokens += tokens
            statistics.batches += 1
            # Each of them has been served its share; of many, each of as many as a batch has room for.
            self._served += tokens / max(1, min(active, room))
            self._tokens_a_second += _WEIGHT * (tokens / max(seconds, 1e-6) - self._tokens_a_second)
        if statistics.on_batch:
            statistics.on_batch(len(pieces), tokens, seconds)


def _next_of(piece: _Piece, turns: dict[int, float]) -> _Piece:
    """Returns a piece with the turn that its request has come to, which goes on by its tokens."""
    turn = turns[id(piece.request)]
    turns[id(piece.request)] += len(piece.input.ids)
    return piece._replace(turn=turn)


def log_failure(error: BaseException) -> None:
    """Logs an exception that nobody expected by its type and its lines, for its message may quote."""
    where = "".join(traceback.format_tb(error.__traceback__))
    logging.getLogger("hf_mlnmt.serving").error("%s", json.dumps({"failed": type(error).__name__, "where": where}))


def _options_of_leg(leg: Leg, options: dict[str, Any], last: bool) -> DecodingOptions:
    """Returns the options of a leg: of the first of two only the best translation goes on, and what is said of the
    translation's words, terms too, is not said of it: its target is another language.

    Raises: UserError for options that do not exist or do not fit together.
    """
    if named := sorted({"source_language", "target_language"} & options.keys()):
        raise UserError(f"{named[0]}: say source and target.")
    asked = {**options, "source_language": leg.source, "target_language": leg.target}
    if not last:
        terms = "terms", "terms_ignore_case", "terms_consistent"
        for name in ("num_return_sequences", "alternatives", *terms, *OF_TEXTS):
            asked.pop(name, None)
    if asked.get("do_sample") and (asked.get("num_return_sequences") or 1) == 1 and not asked.get("num_beams"):
        asked = {"seed": 1, **asked, "draws": "text"}  # so that a draw does not depend on the batch
    return DecodingOptions().with_keywords(asked)


def texts_in(value: Any) -> Iterator[str]:
    """Yields all texts in a value as JSON has them, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in [*value, *(value.values() if isinstance(value, Mapping) else ())]:
            yield from texts_in(part)


def _settle(future: Future[Any], settle: Callable[[], Any]) -> None:
    """Gives a future what it waited for, unless it was cancelled meanwhile."""
    if not future.done():
        with suppress(InvalidStateError):  # it was cancelled just now
            settle()


def _closing() -> Overloaded:
    return Overloaded("the server is about to end")


def _no_worker() -> Overloaded:
    return Overloaded("the server's worker has ended; it must be started again")
