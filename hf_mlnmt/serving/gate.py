"""ASGI middleware around the whole server: checks host names, limits sizes and times, answers errors, logs requests.

A request's body is read here, within its limit, before the app sees it. If the client disconnects, the work for its
request is cancelled. HEAD is answered as GET without the body. The log has a line of JSON for each request, and never a
text. Errors are answered as {"error": message}; an unexpected exception is logged by type and traceback, without its
message, which may quote a user's text.
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
_FORM = 10_000  # bytes that a form with a file may have beside the file's own
_GONE = 499  # status in the log where the client left before its answer, as in nginx
_HOST = re.compile(r"(\[[^\]]+\]|[^:\[\]]+)(:\d*)?")  # matches name and port in the header Host
logger = logging.getLogger("hf_mlnmt.serving")


@dataclass
class Record:
    """The data of a request that are logged: method, path, status, time, and what handlers add to `said`."""

    method: str
    path: str = "other"
    status: int = _GONE
    started: float = field(default_factory=time.monotonic)
    said: dict[str, Any] = field(default_factory=dict)  # more fields of the log line: texts, characters, pair, models


class LimitPassed(HTTPException):
    """Raised, with status 413, for a request above a limit; the message names size and limit."""

    def __init__(self, name: str, size: int | str, limit: int, what: str) -> None:
        super().__init__(413, f"{what}: {size}; the limit ({name}) is {limit}")


def error_response(error: Exception) -> JSONResponse:
    """Returns the response {"error": message} to an exception, with the HTTP status of its type."""
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
    """Logs each request of API and page as a line of JSON, and calls `observe` with its Record and its seconds."""

    def __init__(self, observe: Callable[[Record, float], None] | None = None) -> None:
        self.observe, self._salt = observe, secrets.token_bytes(16)

    def write(self, record: Record, client: str) -> None:
        """Writes the log line of a finished request; client: the address, logged hashed with a key of this process."""
        seconds = time.monotonic() - record.started
        if self.observe:
            self.observe(record, seconds)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "method": record.method,
            "path": record.path,
            "status": record.status,
            "seconds": round(seconds, 4),
            "client": hmac.new(self._salt, client.encode(), hashlib.sha256).hexdigest()[:12],
            **record.said,
        }
        logger.info("%s", json.dumps(line))


class Gate:
    """Wraps an ASGI app: refuses unknown Host names, enforces limits on body size and idle time, cancels the work of
    clients that leave, answers errors and logs each request.

    hosts: names that the header Host may have, also as *.example.org; none: any. ending: event that is set when the
    server ends, which then ends the heartbeat requests of open pages.
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
        """Answers a request by the wrapped app (the call of an ASGI app)."""
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
                # gradio's CORS headers, which allow all pages of localhost, are removed; `cors` adds its own later.
                kept = [
                    each for each in message.get("headers", ()) if not each[0].lower().startswith(b"access-control")
                ]
                message["headers"] = [*kept, (b"x-content-type-options", b"nosniff")]
            elif record.method == "HEAD":
                message = {**message, "body": b""}
            async with asyncio.timeout(self.limits.idle_seconds):
                await send(message)

        try:
            if scope["path"] not in PROBES:  # Host of health checks is an IP address, or missing: not checked
                self._check_host(scope)
            await self._handle(scope, receive, answer)
        except (TimeoutError, ConnectionError):  # the client has left, or does not read the answer
            record.status = _GONE
        except Exception as error:
            if begun:
                error_response(error)  # only logs the error: part of another answer is sent already
            else:
                await error_response(error)(scope, receive, answer)
        finally:
            record.path = _template(scope)
            self.log.write(record, client_of(scope))

    def _check_host(self, scope: Any) -> None:
        """Raises HTTPException if Host is none of `hosts`: another site's name may point here (DNS rebinding)."""
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
        if "/heartbeat/" in scope["path"]:  # gradio's request that stays open as long as the page
            others.add(asyncio.ensure_future(self.ending.wait()))
        try:
            await asyncio.wait({work, *others}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, *others):
                task.cancel()
            if not work.done():  # waits until the cancelled request has left the batcher
                await asyncio.wait({work})

    async def _body(self, scope: Any, receive: Receive) -> bytes | None:
        """Reads the body; None if the client has left. Raises: LimitPassed, once it is read or 20 times too large."""
        limits, is_file = self.limits, scope["path"] == FILES
        name, limit = ("file_bytes", limits.file_bytes + _FORM) if is_file else ("body_bytes", limits.body_bytes)
        size, parts = 0, []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            size += len(message.get("body", b""))
            if size <= limit:
                parts.append(message.get("body", b""))
            # Reads and discards a body that is too large: most clients read an answer only after sending all of it.
            if size > 20 * limit or (size > limit and not message.get("more_body")):
                error = LimitPassed(name, f"{size} bytes or more", limit, "the request is too large")
                error.headers = {"Connection": "close"}
                raise error
            if not message.get("more_body"):
                return b"".join(parts)


def client_of(scope: Any) -> str:
    """Returns a client's IPv4 address, or the /64 network of its IPv6 address, which usually belongs to one client."""
    address = (scope.get("client") or ("",))[0]
    try:
        return str(IPv6Network(f"{address.split('%')[0]}/64", strict=False))
    except ValueError:
        return address


def _template(scope: Any) -> str:
    """Returns the path of the matched route as written in the code, or "other": never a path that a client made up."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) and path else "other"
