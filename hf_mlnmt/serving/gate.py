"""The gate that every request passes: sizes and times are limited, clients that leave noticed, requests logged.

A request's body is read here, within its limit, before anything else sees it. A client that leaves while its answer is
made cancels the work. A host that is not served, and HEAD, which is GET without the body, are dealt with here. The log
has a line of JSON for each request, and never a text. What goes wrong is answered as
{"error": message}; an exception that nobody expected is logged by its type and its lines, for its message may quote.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from ipaddress import IPv6Network
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.serving.batcher import Overloaded, TimedOut, log_failure
from hf_mlnmt.serving.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
FILES = "/translate_file"
PROBES = ("/healthz", "/readyz")
_FORM = 10_000  # bytes of a form beside its file
_GONE = 499  # as nginx has it
_HOST = re.compile(r"(\[[^\]]+\]|[^:\[\]]+)(:\d*)?")  # of the header: name, port
logger = logging.getLogger("hf_mlnmt.serving")


@dataclass
class Record:
    """The fields of a request's line in the log."""

    method: str
    path: str = "other"
    status: int = _GONE
    started: float = field(default_factory=time.monotonic)
    said: dict[str, Any] = field(default_factory=dict)  # texts, characters, pair, models


class LimitPassed(HTTPException):
    """Refuses with status 413 what is larger than a limit, which the message names."""

    def __init__(self, name: str, size: int | str, limit: int, what: str) -> None:
        super().__init__(413, f"{what}: {size}; the limit ({name}) is {limit}")


def error_response(error: Exception) -> JSONResponse:
    """Returns {"error": message}, with the status that belongs to it."""
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        status, message, headers = error.status_code, str(error.detail), dict(error.headers or {})
    elif isinstance(error, UserError):
        status, message = 400, str(error)
    elif isinstance(error, Overloaded):
        status, message, headers = 503, str(error), {"Retry-After": str(math.ceil(error.retry_after))}
    elif isinstance(error, TimedOut):
        status, message = 504, str(error)
    else:
        log_failure(error)
        status, message = 500, "the server failed; its log says where"
    return JSONResponse({"error": message.encode(errors="backslashreplace").decode()}, status, headers)


class RequestLog:
    """Writes a line of JSON for each request, of the API and of the page, and calls `observe` with it and its seconds.

    addresses: the lines have clients' addresses as they are, not hashed with a key of this process.
    """

    def __init__(self, observe: Callable[[Record, float], None] | None = None, addresses: bool = False) -> None:
        self.observe, self.addresses = observe, addresses
        self._salt = secrets.token_bytes(16)

    def write(self, record: Record, client: str) -> None:
        """Writes the log line of a request that is done; client: its address."""
        seconds = time.monotonic() - record.started
        if self.observe:
            self.observe(record, seconds)
        hashed = hmac.new(self._salt, client.encode(), hashlib.sha256).hexdigest()[:12]
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "method": record.method,
            "path": record.path,
            "status": record.status,
            "seconds": round(seconds, 4),
            "client": client if self.addresses else hashed,
            **record.said,
        }
        logger.info("%s", json.dumps(line))


class Gate:
    """An ASGI app around the app.

    hosts: names that a request may give for this server, also as *.example.org; none: any. ending: is set when the
    server ends, which ends what only keeps a page's connection open.
    """

    def __init__(
        self,
        app: Any,
        limits: Limits,
        log: RequestLog,
        hosts: Collection[str] = (),
        ending: asyncio.Event | None = None,
    ) -> None:
        self.app, self.limits, self.log = app, limits, log
        self.hosts = {host.lower().strip("[]") for host in hosts}
        self.ending = ending or asyncio.Event()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answers a request, as ASGI wants it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = Record(scope["method"])
        scope = {**scope, "record": record, "method": "GET" if record.method == "HEAD" else record.method}
        begun = False

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun, record.status = True, message["status"]
                # gradio lets every page of localhost read; whether others may is said by `cors`, outside of this.
                kept = [
                    each for each in message.get("headers", ()) if not each[0].lower().startswith(b"access-control")
                ]
                message["headers"] = [*kept, (b"x-content-type-options", b"nosniff")]
            elif record.method == "HEAD":
                message = {**message, "body": b""}
            async with asyncio.timeout(self.limits.idle_seconds):
                await send(message)

        try:
            if scope["path"] not in PROBES:  # health checks: their Host header is an IP address, or missing
                self._check_host(scope)
            await self._handle(scope, receive, answer)
        except (TimeoutError, ConnectionError):  # the client does not take its answer
            record.status = _GONE
        except Exception as error:
            if begun:
                error_response(error)  # too late to be sent, but logged
            else:
                await error_response(error)(scope, receive, answer)
        finally:
            record.path = _template(scope)
            self.log.write(record, client_of(scope))

    def _check_host(self, scope: Any) -> None:
        """Raises HTTPException for a name that is not this server's: others may have pointed theirs at it."""
        match = _HOST.fullmatch(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
        name = match[1].lower().strip("[]") if match else ""
        parents = {f"*.{name.split('.', part)[part]}" for part in range(1, name.count(".") + 1)}
        if self.hosts and not self.hosts & {name, *parents}:
            raise HTTPException(400, "Host: this name is not served here; --allow-host lets it be")

    async def _handle(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self.limits.idle_seconds):
                body = await self._body(scope, receive)
        except TimeoutError:
            late = HTTPException(408, f"the request did not arrive within {self.limits.idle_seconds} seconds")
            late.headers = {"Connection": "close"}
            raise late from None
        if body is None:
            return
        left, given = asyncio.Event(), False

        async def replay() -> Message:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        work, watcher = asyncio.ensure_future(self.app(scope, replay, send)), asyncio.ensure_future(watch())
        others: set[asyncio.Future[Any]] = {watcher}
        if "/heartbeat/" in scope["path"]:  # of an open page
            others.add(asyncio.ensure_future(self.ending.wait()))
        try:
            await asyncio.wait({work, *others}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, *others):
                task.cancel()
            if not work.done():  # what it waits for is told before the request ends
                await asyncio.wait({work})

    async def _body(self, scope: Any, receive: Receive) -> bytes | None:
        """Returns the body, None if the client has left. Raises: LimitPassed, once it is read or 20 times too large."""
        is_file = scope["path"] == FILES
        limit = self.limits.file_bytes + _FORM if is_file else self.limits.body_bytes
        headers = dict(scope["headers"])
        size, parts = 0, []
        waits = headers.get(b"expect", b"").lower() == b"100-continue"
        declared = headers.get(b"content-length", b"0")
        if waits and declared.isdigit() and int(declared) > limit:
            raise _too_large(is_file, int(declared), limit)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            size += len(message.get("body", b""))
            if size <= limit:
                parts.append(message.get("body", b""))
            # A client reads the answer when it has sent all: what is too much is thrown away, to some end.
            if size > 20 * limit or (size > limit and not message.get("more_body")):
                raise _too_large(is_file, size, limit)
            if not message.get("more_body"):
                return b"".join(parts)


def _too_large(is_file: bool, size: int, limit: int) -> LimitPassed:
    name = "file_bytes" if is_file else "body_bytes"
    error = LimitPassed(name, f"{size} bytes or more", limit, "the request is too large")
    error.headers = {"Connection": "close"}
    return error


def client_of(scope: Any) -> str:
    """Returns a client's address; of IPv6 the network of 64 bits, which one client has to itself."""
    address = (scope.get("client") or ("",))[0]
    try:
        return str(IPv6Network(f"{address.split('%')[0]}/64", strict=False))
    except ValueError:
        return address


def _template(scope: Any) -> str:
    """Returns the route's path as it was written in the code: never what a client made up."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) and path else "other"
