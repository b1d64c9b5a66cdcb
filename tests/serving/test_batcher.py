"""Batches across requests: what comes out, who waits for whom, and what happens when something goes wrong."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace

import pytest
from helpers.toy_translators import SENTENCES

from hf_mlnmt import UserError
from hf_mlnmt.generation import Hypothesis
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.search.rules import Rules
from hf_mlnmt.serving.batcher import Batcher, Overloaded, TimedOut
from hf_mlnmt.serving.fair_queue import Costs
from hf_mlnmt.serving.models import ServedModels


@pytest.fixture(scope="module")
def models(pair_folders):
    return ServedModels([str(pair_folders["en-de"]), str(pair_folders["de-fr"])], device="cpu")


@contextmanager
def batching(models, **settings):
    batcher = Batcher(models, **settings)
    try:
        yield batcher
    finally:
        batcher.close_now(10)


@pytest.fixture
def batcher(models):
    with batching(models) as batcher:
        yield batcher


class Gate:
    """Holds up the searches of all runs, of whole batches, until it is opened; notes their texts and lengths."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(Costs, "size", lambda costs, most: 10_000)
        self.open, search = threading.Event(), TranslationCall.search
        self.texts, self.lengths = [], []
        self.begun = threading.Event()

        def held(run, inputs, abandoned=None, beside=None):
            self.texts.append([one.text for one in inputs])
            self.lengths.append([len(one.ids) for one in inputs])
            self.begun.set()
            assert self.open.wait(30)
            return search(run, inputs, abandoned, beside)

        monkeypatch.setattr(TranslationCall, "search", held)

    @property
    def sizes(self):
        return [len(texts) for texts in self.texts]


@pytest.fixture
def gate(monkeypatch):
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def together(batcher, texts, **options):
    """Each text in a request of its own, all at once."""

    async def ask():
        requests = [batcher.translate([text], "en", "de", **options) for text in texts]
        return [answer.texts[0] for answer in await asyncio.gather(*requests)]

    return asyncio.run(ask())


@pytest.mark.parametrize("beams", [1, 3])
def test_translations_do_not_depend_on_the_batch(models, batcher, gate, beams):
    texts, pipeline = SENTENCES[:40], models.models[0].pipeline
    options = {"num_beams": beams, "num_return_sequences": 1}
    gate.open.set()
    answers = together(batcher, texts, **options)
    assert max(gate.sizes) > 10
    for text, (best,) in zip(texts, answers, strict=True):
        (alone,) = pipeline(text, **options)
        assert best.text == alone.text
        assert best.score == pytest.approx(alone.score, abs=1e-5)  # sums of some 20 logarithms in float32


def test_draws_do_not_depend_on_the_batch(models, batcher):
    options = {"do_sample": True, "seed": 3}
    alone = [models.models[0].pipeline(text, draws="text", **options) for text in SENTENCES[:10]]
    assert [best[0].text for best in together(batcher, SENTENCES[:10], **options)] == alone


def test_terms_of_requests_beside_each_other(models, batcher, caplog):
    """As of each alone; and no term is in the log."""
    terms = {"dog": ["red child", "house"], "man": ["takes", "sees"], "red": "house " * 30}
    options = {"num_beams": 4, "max_new_tokens": 12, "terms": terms}
    several = [" ".join(SENTENCES[2 * number : 2 * number + 2]) for number in range(8)]
    alone = [models.models[0].pipeline(texts, **options, split="sentences") for texts in (several, several[::-1])]

    async def ask():
        return await asyncio.gather(*(
            batcher.translate(texts, "en", "de", **options, split="sentences") for texts in (several, several[::-1])
        ))  # fmt: skip

    caplog.clear()
    answers = asyncio.run(ask())
    assert [[best[0].text for best in answer.texts] for answer in answers] == alone
    assert batcher.statistics.waiting == 0
    assert "terms that are not met: " in caplog.text
    assert "house" not in caplog.text


def test_what_a_request_keeps(models, batcher, caplog):
    texts, options = ["A dog plays.", "The man takes \u27e6x\u27e7."], {"num_beams": 4, "max_new_tokens": 12}
    answer = batcher.translate_now(texts, "en", "de", keep=["plays", "\u27e6.\u27e7", "takes"], **options)
    for word, text in zip(("plays", "takes", "\u27e6x\u27e7"), (0, 1, 1)):
        assert answer.texts[text][0].text.count(word) == 1
    assert "x\u27e7" not in caplog.text
    for keep, message in (("(a", "no regular expression"), (["a"] * 101, "at most 100")):
        with pytest.raises(UserError, match=message):
            batcher.translate_now(texts, "en", "de", keep=keep, **options)


def test_texts_without_anything_to_translate(batcher):
    assert batcher.translate_now([], "en", "de").texts == []
    assert [best[0].text for best in batcher.translate_now(["", " \n"], "en", "de").texts] == ["", ""]


def test_two_models_one_after_the_other(models, batcher):
    between = models.models[0].pipeline(SENTENCES[:3])
    answer = batcher.translate_now(SENTENCES[:3], "en", "fr", num_beams=2, num_return_sequences=2)
    assert [best[0].text for best in answer.texts] == models.models[1].pipeline(between, num_beams=2)
    assert answer[1:] == ("de", ["en-de", "de-fr"], None)
    assert {len(best) for best in answer.texts} == {2}
    between = models.models[0].pipeline(SENTENCES[:3], num_beams=4, keep=["rides"])
    terms = {SENTENCES[0].split()[1]: "house", between[0].split()[0]: "the house"}  # of the last language alone
    options = {"num_beams": 4, "terms": terms, "terms_ignore_case": True}
    answer = batcher.translate_now(SENTENCES[:3], "en", "fr", **options, keep=["rides"])
    last = models.models[1].pipeline(between, **options, keep=["rides"])
    assert [best[0].text for best in answer.texts] == last
    assert "the house" in last[0]


def test_minimum_bayes_risk_in_batches_of_several_requests(models, batcher):
    options = {"mbr": 4, "num_beams": 4, "utility": "bleu"}
    answer = batcher.translate_now(SENTENCES[:3], "en", "de", num_return_sequences=1, **options)
    assert [best[0].text for best in answer.texts] == models.models[0].pipeline(SENTENCES[:3], **options)
    assert all(len(row) == 1 for row in batcher.translate_now(SENTENCES[:3], "en", "de", mbr=4, utility="bleu").texts)


def test_sentences_of_a_text_come_together_again(models, batcher):
    text = "\n".join([" ".join(SENTENCES[:5]), "", SENTENCES[5]])
    answer = batcher.translate_now([text], "en", "de", split="sentences")
    assert answer.texts[0][0].text == models.models[0].pipeline(text, split="sentences")


SHORT = "The dog sleeps."


class Machine:
    """In place of the search: a batch takes as long as it says, on a clock of its own; in some of them others come.

    Pieces are searched together, unless it says `alone`; `passed`: those who came may pass, and the batch is over then.
    """

    passed = False

    def __init__(self, monkeypatch, seconds, alone=False):
        self.now, self.batches, self.comes, self.seconds = 0.0, [], {}, seconds
        if not alone:
            monkeypatch.setattr(Costs, "size", lambda costs, most: 10_000)
        monkeypatch.setattr("hf_mlnmt.serving.batcher.time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(TranslationCall, "search", self.search)

    def search(self, inputs, abandoned=None, beside=None):
        self.now += self.seconds(len(self.batches), inputs)
        self.batches.append([one.text for one in inputs])
        self.comes.pop(len(self.batches), lambda: None)()
        if self.passed:
            abandoned()
        return SimpleNamespace(result=lambda: [[Hypothesis(one.text, 0.0, 0.0, 1)] for one in inputs])


def test_where_a_batch_saves_nothing_pieces_are_searched_one_after_the_other(models, monkeypatch):
    """But for the searches by which that is found out: three for each size, and one in 64."""
    machine = Machine(monkeypatch, lambda number, inputs: sum(len(one.ids) for one in inputs) / 1000, alone=True)
    with batching(models) as batcher:
        for _ in range(3):
            batcher.translate_now(SENTENCES[:100] * 3, "en", "de")
        found_out = len(machine.batches)
        batcher.translate_now(SENTENCES[:100], "en", "de")
        sizes = list(map(len, machine.batches))
        assert sum(size > 1 for size in sizes) <= 3 * 9 + len(sizes) / 64
        assert sizes[found_out:].count(1) > 50
        batcher.translate_now(SENTENCES[:100], "en", "de", num_beams=3)  # which costs something else
        assert max(map(len, machine.batches[len(sizes) :])) > 1


@pytest.mark.parametrize(("dtype", "beams"), [("float32", 3), ("float32", 1), ("int8", 3)])
def test_who_comes_passes_a_long_text_between_two_steps_of_its_batch(pair_folders, monkeypatch, dtype, beams):
    """And gets, as the long text does, what it gets alone."""
    models = ServedModels([str(pair_folders["en-de"])], device="cpu", dtype=dtype)
    monkeypatch.setattr(Costs, "size", lambda costs, most: most)
    monkeypatch.setattr("hf_mlnmt.search.prepare.ENCODED", 80)  # so that the first comes while they are encoded
    at_step, steps, came = Batcher._between_steps, [], []

    def stepping(batcher, pieces, passed, active):
        if passed and len(pieces) == 30:
            steps.append(len(came))
        if passed and len(steps) in (4, 8):
            options = {"num_beams": beams + len(came)}
            ask = partial(batcher.translate_now, [SHORT], "en", "de", **options)
            thread = threading.Thread(target=lambda: came.append((options, ask())))
            thread.start()
            until(lambda: sum(len(queue.uncut) for queue in batcher._fair.queues.values()))
            ended = at_step(batcher, pieces, passed, active)
            thread.join(30)  # it is answered before the batch goes on
            return ended
        return at_step(batcher, pieces, passed, active)

    monkeypatch.setattr(Batcher, "_between_steps", stepping)
    with batching(models) as batcher:
        answer = batcher.translate_now(SENTENCES[:30], "en", "de", num_beams=beams)
    pipeline = models.models[0].pipeline
    assert [best[0].text for best in answer.texts] == [pipeline(text, num_beams=beams) for text in SENTENCES[:30]]
    assert steps[:10] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    for options, answer in came:
        assert answer.texts[0][0].text == pipeline(SHORT, **options)


def test_who_passes_and_fails_or_leaves_harms_nobody(models, monkeypatch):
    """And what is served beside a batch is neither its time nor its turn."""

    def seconds(number, inputs):
        if inputs[0].text == "This fails.":
            raise RuntimeError("a fault")
        return 1.0

    machine = Machine(monkeypatch, seconds)
    machine.passed, failed, counted = True, [], []
    with batching(models) as batcher:
        batcher.statistics.on_batch = lambda *numbers: counted.append(numbers)

        def fail():
            with pytest.raises(RuntimeError, match="a fault"):
                batcher.translate_now(["This fails."], "en", "de")
            failed.append(len(machine.batches))

        async def leave():
            task = asyncio.create_task(batcher.translate([SHORT], "en", "de", num_beams=2))
            await asyncio.to_thread(
                until, lambda: sum(len(queue.uncut) for queue in batcher._fair.queues.values()) == 2
            )
            task.cancel()

        def come():
            thread = threading.Thread(target=fail)
            thread.start()
            asyncio.run(leave())
            machine.threads = [thread]

        machine.comes[1] = come
        answer = batcher.translate_now(SENTENCES[:30], "en", "de")
        machine.threads[0].join(30)
        assert [best[0].text for best in answer.texts] == SENTENCES[:30]
        assert failed == [1]
        assert batcher.statistics.waiting == batcher._active == 0
    assert [(pieces, seconds) for pieces, _, seconds in counted] == [(1, 0.0), (30, 1.0)]


@pytest.mark.parametrize("when", [1, 3, 6])
def test_a_long_text_does_not_hold_up_a_short_one(models, monkeypatch, when):
    """However slow later batches are: the first one says that they take no time."""
    machine = Machine(monkeypatch, lambda number, inputs: 4.0 if number else 1e-4)
    with batching(models, batch_tokens=256) as batcher:
        shorts = []

        def come():
            shorts.append(threading.Thread(target=batcher.translate_now, args=([SHORT], "en", "de")))
            shorts[0].start()
            until(lambda: any(queue.uncut for queue in batcher._fair.queues.values()))

        machine.comes[when] = come
        batcher.translate_now(SENTENCES[:100] * 3, "en", "de")
        shorts[0].join()
    assert len(machine.batches) > 12
    assert [SHORT in batch for batch in machine.batches].index(True) == when  # the next one


def test_who_comes_while_a_batch_is_searched_shares_its_tokens(models, monkeypatch):
    """A long text that has had most of what was searched owes a client that asks again and again, and not it the text:
    whoever comes passes."""
    machine = Machine(monkeypatch, lambda number, inputs: 1.0)
    passed, search = [], machine.search

    def stepwise(inputs, abandoned=None, beside=None):
        if len(inputs) == 1 and inputs[0].text == SHORT:
            passed.append(machine.now)
            return search(inputs)
        for _ in range(4):  # steps, before each of which the client has asked again
            thread = threading.Thread(target=batcher.translate_now, args=([SHORT], "en", "de"))
            thread.start()
            until(lambda: any(queue.uncut for queue in batcher._fair.queues.values()))
            came.append(machine.now)
            abandoned()
            thread.join(1)
            waited.append(thread.is_alive())
        return search(inputs)

    monkeypatch.setattr(TranslationCall, "search", lambda run, *given: stepwise(*given))
    came, waited = [], []
    with batching(models, batch_tokens=1024) as batcher:
        batcher.translate_now(SENTENCES[:100], "en", "de")
    assert len(waited) > 20
    assert not any(waited)


def test_one_request_has_no_more_of_a_batch_than_half_a_second(models, monkeypatch):
    """By the speed that was seen; many requests together have all of it."""
    machine = Machine(monkeypatch, lambda number, inputs: sum(len(one.ids) for one in inputs) / 400)
    with batching(models, batch_tokens=1024) as batcher:
        batcher.translate_now(SENTENCES[:120], "en", "de")
        seconds = [0.0, *(sum(len(tokens_of(models, text)) for text in batch) / 400 for batch in machine.batches)]
        assert max(seconds) <= 0.5
        alone = max(map(len, machine.batches))
        together = [
            threading.Thread(target=batcher.translate_now, args=([text], "en", "de")) for text in SENTENCES[:60]
        ]

        def come():
            for thread in together:
                thread.start()
            until(lambda: batcher.statistics.waiting == 60)

        machine.comes[len(machine.batches) + 1] = come
        batcher.translate_now([SHORT], "en", "de")
        for thread in together:
            thread.join()
    assert max(map(len, machine.batches)) > 2 * alone


def tokens_of(models, text):
    return models.models[0].pipeline.parts.source(text)["input_ids"]


def test_only_what_has_the_same_options_is_translated_together(models, batcher, gate):
    """One at a time, requests would have 8 batches; all together, one."""
    options = [{}, {"num_beams": 3}, {"target_prefix": "a"}, {"max_new_tokens": 3}]

    async def ask():
        first = asyncio.create_task(batcher.translate(SENTENCES[:1], "en", "de"))
        await asyncio.to_thread(gate.begun.wait, 30)
        tasks = [
            asyncio.create_task(batcher.translate([text], "en", "de", **some))
            for text in SENTENCES[1:3]
            for some in options
        ]
        while batcher.statistics.waiting < len(tasks):
            await asyncio.sleep(0.001)
        gate.open.set()
        await asyncio.gather(first, *tasks)

    asyncio.run(ask())
    assert gate.texts[0] == SENTENCES[:1]
    assert [sorted(texts) for texts in gate.texts[1:]] == [sorted(SENTENCES[1:3])] * len(options)


def test_clients_that_were_answered_together_are_awaited(models, gate):
    """The worker waits for as many as the batch before served, and no longer."""
    gate.open.set()
    with batching(models, max_wait=30.0) as batcher:
        batcher._together = 3
        for _ in range(2):
            before = len(gate.sizes)
            threads = [
                threading.Thread(target=batcher.translate_now, args=([text], "en", "de")) for text in SENTENCES[:3]
            ]
            for thread in threads:
                assert len(gate.sizes) == before
                thread.start()
                time.sleep(0.02)
            for thread in threads:
                thread.join()
    assert gate.sizes == [3, 3]


def test_one_request_alone_does_not_wait(models):
    with batching(models, max_wait=5.0) as batcher:
        began = time.monotonic()
        batcher.translate_now(SENTENCES[:1], "en", "de")
        assert time.monotonic() - began < 5.0


def test_whoever_comes_later_does_not_lengthen_the_wait(models):
    """Beside an idle worker that expects many requests, new ones keep coming within max_wait of one another."""

    async def ask():
        first = asyncio.create_task(batcher.translate(SENTENCES[:1], "en", "de"))
        others = []
        while not first.done() and len(others) < 90:
            others.append(asyncio.create_task(batcher.translate(SENTENCES[1:2], "en", "de")))
            await asyncio.sleep(0.05)
        await asyncio.gather(first, *others)
        return len(others)

    with batching(models, max_wait=0.3) as batcher:
        batcher._together = 100  # as after a batch of so many
        assert asyncio.run(ask()) < 90


def test_what_is_cancelled_leaves_the_line(batcher, gate):
    async def ask():
        first = asyncio.create_task(batcher.translate(SENTENCES[:1], "en", "de"))
        await asyncio.to_thread(gate.begun.wait, 30)
        gone = asyncio.create_task(batcher.translate(SENTENCES[:50], "en", "de"))
        await asyncio.sleep(0.05)
        assert batcher.statistics.waiting == 50
        gone.cancel()
        await asyncio.sleep(0.05)
        assert batcher.statistics.waiting == 0
        gate.open.set()
        await first

    asyncio.run(ask())
    assert gate.sizes == [1]


def test_a_search_in_which_nobody_is_left_ends(batcher, gate, monkeypatch):
    """By the search's own rule, at the step at which the request was cancelled."""
    steps, is_last, asked = [], Rules.is_last, []

    def counted(rules, tokens, length):
        steps.append(length)
        if len(steps) == 2:
            loop, task = asked
            loop.call_soon_threadsafe(task.cancel)
            until(task.done)
        return is_last(rules, tokens, length)

    monkeypatch.setattr(Rules, "is_last", counted)

    async def ask():
        options = {"num_beams": 4, "min_new_tokens": 50, "max_new_tokens": 60}
        task = asyncio.create_task(batcher.translate(SENTENCES[:2], "en", "de", **options))
        asked.extend([asyncio.get_running_loop(), task])
        gate.open.set()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    until(lambda: batcher.statistics.batches)
    assert len(steps) == 2
    assert batcher.statistics.target_tokens == 0


def test_whoever_stays_is_answered_when_another_leaves(models, gate):
    """Of two requests in a batch one is cancelled before the search has made its first step."""
    gate.open.set()
    expected = models.models[0].pipeline(SENTENCES[:2])
    gate.open.clear()
    gate.begun.clear()

    async def ask():
        gone, stays = (asyncio.create_task(batcher.translate([text], "en", "de")) for text in SENTENCES[:2])
        await asyncio.to_thread(gate.begun.wait, 30)
        gone.cancel()
        await asyncio.sleep(0.01)
        gate.open.set()
        return (await asyncio.wait_for(stays, 30)).texts[0][0].text

    with batching(models, max_wait=30.0) as batcher:
        batcher._together = 2
        assert asyncio.run(ask()) == expected[1]
    assert gate.sizes[-1] == 2


def test_a_time_limit(batcher, gate):
    with pytest.raises(TimedOut, match=r"not done within 0\.05 seconds"):
        asyncio.run(batcher.translate(SENTENCES[:1], "en", "de", timeout=0.05))
    with pytest.raises(TimedOut):
        batcher.translate_now(SENTENCES[:1], "en", "de", timeout=0.05)
    assert batcher.statistics.waiting == 0


def test_a_full_queue(models, gate):
    with batching(models, max_queue=10) as batcher:

        async def ask():
            first = asyncio.create_task(batcher.translate(SENTENCES[:1], "en", "de"))
            await asyncio.to_thread(gate.begun.wait, 30)
            second = asyncio.create_task(batcher.translate(SENTENCES[:10], "en", "de"))
            await asyncio.sleep(0.01)
            with pytest.raises(
                Overloaded, match="10 sentences wait, and 1 more would be above the limit of 10"
            ) as full:
                await batcher.translate(SENTENCES[:1], "en", "de")
            assert full.value.retry_after >= 1
            gate.open.set()
            await asyncio.gather(first, second)
            assert len((await batcher.translate(SENTENCES[:10], "en", "de")).texts) == 10

        asyncio.run(ask())


def test_a_text_of_many_sentences_counts_as_many(models, gate):
    gate.open.set()
    with batching(models, max_queue=10) as batcher:
        with pytest.raises(Overloaded):
            batcher.translate_now([" ".join(SENTENCES[:20])], "en", "de", split="sentences")
        assert batcher.statistics.waiting == 0
        assert batcher.translate_now(SENTENCES[:2], "en", "de").texts


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), MemoryError(), ValueError("a fault")])
def test_only_the_request_that_cannot_be_translated_fails(models, batcher, monkeypatch, error):
    search, expected = TranslationCall.search, models.models[0].pipeline(SENTENCES[:20])

    def failing(run, inputs, abandoned=None):
        if len(inputs) > 8 or any(len(one.ids) > 40 for one in inputs):
            raise error
        return search(run, inputs, abandoned)

    monkeypatch.setattr(TranslationCall, "search", failing)
    texts = [*SENTENCES[:20], " ".join(["dog"] * 60)]

    async def ask():
        requests = [batcher.translate([text], "en", "de") for text in texts]
        return await asyncio.gather(*requests, return_exceptions=True)

    *answers, failed = asyncio.run(ask())
    assert failed is error
    assert [answer.texts[0][0].text for answer in answers] == expected
    assert batcher.statistics.waiting == 0


def test_bad_requests_are_refused_at_once(batcher):
    for options, message in [
        ({"num_beams": 0}, "num_beams: 0 is not a whole number"),
        ({"num_return_sequences": 3, "num_beams": 2}, "needs num_beams of at least 3"),
    ]:
        with pytest.raises(UserError, match=message):
            batcher.translate_now(["Hello."], "en", "de", **options)
    with pytest.raises(UserError, match=r"text 2: U\+D800"):
        batcher.translate_now(["Hello.", "\ud800"], "en", "de")
    with pytest.raises(UserError, match="not served"):
        batcher.translate_now(["Hello."], "en", "it")


@pytest.mark.parametrize(
    "settings",
    [{"max_wait": value} for value in (math.inf, math.nan, -1.0, 1e6)] + [{"batch_tokens": 0}, {"max_queue": math.inf}],
)
def test_numbers_that_are_refused(models, settings):
    with pytest.raises(UserError, match=f"{next(iter(settings))}: .* is not a number from"):
        Batcher(models, **settings)


def test_a_worker_that_ends_is_seen(models, monkeypatch, caplog):
    """And nobody waits for what cannot come."""

    def fail(batcher):
        raise RuntimeError("a" + " secret")

    monkeypatch.setattr(Batcher, "_next_call", fail)
    with batching(models) as batcher:
        until(lambda: not batcher.healthy)
        with pytest.raises(Overloaded, match="worker has ended"):
            batcher.translate_now(SENTENCES[:1], "en", "de")
    assert "the worker ended" in caplog.text
    assert "a secret" not in caplog.text


def test_a_fault_of_ours_fails_its_requests_and_no_more(models, batcher, monkeypatch):
    def count(*arguments):
        raise RuntimeError("a fault")

    monkeypatch.setattr("hf_mlnmt.serving.fair_queue.FairQueues.take", count)
    with pytest.raises(RuntimeError, match="a fault"):
        batcher.translate_now(SENTENCES[:1], "en", "de", timeout=30)
    monkeypatch.undo()
    assert batcher.translate_now(SENTENCES[:1], "en", "de").texts
    assert batcher.healthy


def test_what_has_begun_is_finished_at_the_end(models, gate):
    batcher = Batcher(models)

    async def ask():
        tasks = [asyncio.create_task(batcher.translate([text], "en", "de")) for text in SENTENCES[:20]]
        tasks.append(asyncio.create_task(batcher.translate([" ".join(SENTENCES)] * 3, "en", "de", split="sentences")))
        await asyncio.to_thread(gate.begun.wait, 30)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close_now))
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded, match="about to end"):
            await batcher.translate(SENTENCES[:1], "en", "de")
        gate.open.set()
        await closing
        assert all(answer.texts for answer in await asyncio.gather(*tasks))

    asyncio.run(ask())
    assert not batcher._worker.is_alive()


def test_the_end_does_not_wait_for_ever(models, gate):
    batcher = Batcher(models)

    async def ask():
        first = asyncio.create_task(batcher.translate(SENTENCES[:1], "en", "de"))
        await asyncio.to_thread(gate.begun.wait, 30)
        second = asyncio.create_task(batcher.translate(SENTENCES[:5], "en", "de"))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(batcher.close_now, 0.05)
        with pytest.raises(Overloaded, match="about to end"):
            await second
        first.cancel()

    asyncio.run(ask())


def test_of_two_models_the_second_is_told_how_the_translation_begins(models, batcher):
    first, second = (model.pipeline for model in models.models)
    between = first(SENTENCES[0])
    done = batcher.translate_now(SENTENCES[:1], "en", "fr", target_prefix="The ", bad_phrases="house")
    assert done.texts[0][0].text == second(between, target_prefix="The ", bad_phrases="house")
    done = batcher.translate_now(SENTENCES[:1], "en", "fr", target_prefix="The ", alternatives=2)
    assert done.texts[0] == second(between, target_prefix="The ", alternatives=2)


def test_models_are_read_again_under_load(pair_folders, tmp_path):
    folder = shutil.copytree(pair_folders["en-de"], tmp_path / "m")
    models = ServedModels([str(folder)], device="cpu")
    with batching(models) as batcher:
        expected = models.models[0].pipeline(SENTENCES[:30])

        async def ask():
            async def client(number):
                return (await batcher.translate([SENTENCES[number]], "en", "de")).texts[0][0].text

            tasks = [asyncio.create_task(client(number)) for number in range(30)]
            problems = await asyncio.to_thread(batcher.reload)
            return problems, await asyncio.gather(*tasks)

        old = models.models[0].pipeline
        assert asyncio.run(ask()) == ([], expected)
        assert models.models[0].pipeline is not old
        assert not [run for run in batcher._calls.values() if run.pipeline is old]
        shutil.rmtree(folder)
        assert len(batcher.reload()) == 1
        assert batcher.translate_now(SENTENCES[:1], "en", "de").texts[0][0].text == expected[0]
