"""The service behind API and web page: API keys, limits, rate limit, language detection, translation, documents."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import base_language, language_tag
from hf_mlnmt.documents import Document, Reading, read, read_bytes
from hf_mlnmt.generation import Hypothesis, Quality, detection, quality_of
from hf_mlnmt.serving.batcher import Batcher, Overloaded, TimedOut, Translations
from hf_mlnmt.serving.gate import LimitPassed, Record, RequestLog, client_of
from hf_mlnmt.serving.limits import Limits, RequestsAMinute

AUTO = "auto"
MOST_TERMS = 100
_UNPACKED = 10  # an unpacked archive may have at most so many times the bytes of the limit `file_bytes`
_TOGETHER = 500  # largest number of texts in one call of the batcher


class Downloads:
    """Keeps translated files in memory under random tokens for `seconds`; drops the oldest above `most` bytes."""

    def __init__(self, seconds: float = 600.0, most: int = 64_000_000) -> None:
        self.seconds, self.most = seconds, most
        self._files: OrderedDict[str, tuple[float, str, bytes]] = OrderedDict()  # {token: (expiry, name, content)}

    def add(self, name: str, content: bytes) -> str:
        """Stores a file, drops files that have expired or are above `most` bytes, and returns the new file's token."""
        token = secrets.token_urlsafe(24)
        self._files[token] = time.monotonic() + self.seconds, name, content
        self._forget()
        return token

    def get(self, token: str) -> tuple[str, bytes]:
        """Returns (name, content) of a file. Raises: HTTPException 404 for an unknown or expired token."""
        self._forget()
        if token not in self._files:
            raise HTTPException(404, "no such file: it is kept for a while only")
        return self._files[token][1:]

    def _forget(self) -> None:
        now, size = time.monotonic(), sum(len(content) for *_, content in self._files.values())
        while self._files:
            end, *_, content = next(iter(self._files.values()))
            if now < end and size <= self.most:
                return
            size -= len(content)
            self._files.popitem(last=False)


def hashed(key: str) -> bytes:
    """Returns the SHA-256 hash of an API key, so that keys of any length are compared in equal time."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def is_known(key: str, keys: Collection[bytes]) -> bool:
    """Returns whether an API key's hash is in `keys`; compares it with all of them, each in constant time."""
    given = hashed(key)
    return sum(hmac.compare_digest(given, known) for known in keys) > 0


class Api:
    """Serves requests by a Batcher: checks API keys and limits, detects languages, translates texts and documents."""

    def __init__(
        self, batcher: Batcher, limits: Limits | None = None, keys: Collection[str] = (), log: RequestLog | None = None
    ) -> None:
        self.batcher, self.limits, self.keys = batcher, limits or Limits(), [*map(hashed, keys)]
        self.rate, self.downloads = RequestsAMinute(self.limits.requests), Downloads()
        self.log = log or RequestLog()
        self.ending = asyncio.Event()

    def check_ending(self) -> None:
        """Raises Overloaded if the server is ending."""
        if self.ending.is_set():
            raise Overloaded("the server is about to end")

    def admit(self, request: Request, given: dict[str, Any]) -> None:
        """Counts a request and checks its key. Raises: HTTPException 403 without a known key, 429 for too many."""
        key = given.get("api_key") or given.get("apiKey") or _bearer(request)
        known = bool(key) and isinstance(key, str) and is_known(key, self.keys)
        self.count(hashed(key) if known else client_of(request.scope).encode())
        if self.keys and not known:
            message = "Invalid API key" if key else "Please contact the server operator to get an API key"
            raise HTTPException(403, message)

    def count(self, client: bytes) -> None:
        """Counts a request of a client. Raises: HTTPException 429 for too many requests a minute."""
        if wait := self.rate.wait(client):
            seconds = str(int(wait) + 1)
            message = f"too many requests; the limit (requests) is {self.limits.requests} a minute"
            raise HTTPException(429, message, {"Retry-After": seconds})

    def check(self, texts: Sequence[str], record: Record) -> None:
        """Raises LimitPassed for too many or too long texts; writes their number and characters to the record."""
        sizes = [len(text) for text in texts]
        record.said |= {"texts": len(texts), "characters": sum(sizes)}
        for name, size, what in (
            ("texts", len(texts), "texts in the request"),
            ("text_characters", max(sizes, default=0), "characters of a text"),
            ("characters", sum(sizes), "characters of all texts"),
        ):
            if size > getattr(self.limits, name):
                raise LimitPassed(name, size, getattr(self.limits, name), what)

    @asynccontextmanager
    async def within(self, limit: str) -> AsyncIterator[None]:
        """Async context manager that cancels its body after the seconds of a limit, and then raises TimedOut."""
        seconds = getattr(self.limits, limit)
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise TimedOut(f"the request took too long; the limit ({limit}) is {seconds} seconds") from error

    def detect(self, texts: Sequence[str], strict: bool = False) -> list[detection.Detected]:
        """Returns the language of each text by `detection.languages`, given the source languages that are served."""
        return detection.languages(texts, list(self.batcher.models.languages()), strict)

    async def languages_of(
        self, texts: Sequence[str], source: str | None, strict: bool = False
    ) -> tuple[list[str | None], list[detection.Detected] | None]:
        """Returns each text's source language, and the detected languages if `source` is "auto", else None."""
        if source != AUTO:
            return [source] * len(texts), None
        detected = await asyncio.to_thread(self.detect, texts, strict)
        return [found.taken_as or found.language for found in detected], detected

    async def translate(
        self, record: Record, texts: Sequence[str], sources: Sequence[str | None], target: str | None, **options: Any
    ) -> Translations:
        """Translates each text from its language; a text in the target language is returned as it is.

        Writes languages, models and, if there are any, the number of `doubtful` translations to the record.
        """
        groups: dict[str | None, list[int]] = {}
        for number, source in enumerate(sources):
            groups.setdefault(source, []).append(number)
        results: list[list[Hypothesis]] = [[] for _ in texts]
        via, models, taken = None, list[str](), None
        known = {name for code, _ in all_languages(self.batcher) for name in (code, base_language(code))}
        for source, numbers in groups.items():
            if source == target and source in known:
                for number in numbers:
                    results[number] = [Hypothesis(texts[number], 0.0, 0.0, 0)]
                continue
            for start in range(0, len(numbers), _TOGETHER):
                some = numbers[start : start + _TOGETHER]
                done = await self.batcher.translate([texts[number] for number in some], source, target, **options)
                for number, hypotheses in zip(some, done.texts, strict=True):
                    results[number] = hypotheses
                taken, via, models = done.target, via or done.via, list(dict.fromkeys([*models, *done.models]))
        # The codes are logged after the translation, which refuses unknown codes: clients cannot put text into the log.
        record.said |= {"pair": f"{'/'.join(map(str, groups))}-{target}", "models": models}
        if taken is not None:
            record.said["target"] = taken
        if doubtful := sum(bool(best.warnings) for best, *_ in filter(None, results)):
            record.said["doubtful"] = doubtful
        return Translations(results, via, models, taken)

    async def documents(
        self,
        record: Record,
        contents: Sequence[str | bytes],
        ending: str,
        source: str | None,
        target: str | None,
        strict: bool = False,
        **options: Any,
    ) -> tuple[list[list[Any]], list[detection.Detected] | None]:
        """Translates documents; returns for each its translations, best first, and the detected languages.

        Writes the number of `untranslated` messages, if there are any, and the projected `quality` of the best
        translations, of all documents together, to the record.
        """
        ended = threading.Event()  # stops the threads that read and write, which go on if the request is cancelled

        def check() -> None:
            if ended.is_set():
                raise TimedOut

        def read_all() -> list[Document]:
            most = _UNPACKED * self.limits.file_bytes
            readings = (Reading(check, target and language_tag(target), most=most) for _ in contents)
            return [
                read(content, ending, reading) if isinstance(content, str) else read_bytes(content, ending, reading)
                for content, reading in zip(contents, readings)
            ]

        def write() -> list[list[Any]]:
            rest, written = iter(done.texts), []
            for document in documents:
                some = [next(rest) for _ in document.texts]
                ranks = range(min(map(len, some), default=1))
                written.append([document.write([hypotheses[rank] for hypotheses in some]) for rank in ranks])
            if left := sum(document.left for document in documents):
                record.said["untranslated"] = left
            return written

        try:
            documents = await asyncio.to_thread(read_all)
            of_each = [document.texts for document in documents]
            texts = [text for some in of_each for text in some]
            record.said.setdefault("characters", sum(map(len, texts)))
            sources, detected = await self.languages_of(["\n".join(some) for some in of_each], source, strict)
            of_texts = [code for some, code in zip(of_each, sources) for _ in some]
            ask = partial(self.translate, record, texts, of_texts, target)
            try:
                done = await ask(**options, alignments=ending != ".txt")
            except UserError:  # tries without alignments, which some models and engines lack
                if ending == ".txt":
                    raise
                done = await ask(**options)
            if quality := self._quality(done):
                record.said["quality"] = quality.to_dict()
            return await asyncio.to_thread(write), detected
        finally:
            ended.set()

    def _quality(self, done: Translations) -> Quality | None:
        """Returns the projected quality of the best translations if one calibrated model made all of them."""
        by = [model.pipeline for model in self.batcher.models.models if done.models == [model.name]]
        return quality_of(by[0].model, [best for best, *_ in done.texts]) if by else None


def _bearer(request: Request) -> str:
    """Returns the key in the header Authorization: Bearer, or ""; its bytes, latin-1 in HTTP, are read as UTF-8."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip().encode("latin-1").decode(errors="surrogateescape") if kind.lower() == "bearer" else ""


def all_languages(batcher: Batcher) -> Iterable[tuple[str, list[str]]]:
    """Returns (language, list of its targets) for each source language, then (language, []) for languages that are only
    targets."""
    pairs = batcher.models.languages()
    others = {target: list[str]() for targets in pairs.values() for target in targets if target not in pairs}
    return {**pairs, **others}.items()
