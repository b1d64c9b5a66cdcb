"""Runs the process of `hf-mlnmt serve`: socket, models, signals, log, shutdown.

SIGTERM and SIGINT: new requests are refused, begun requests are finished (within `ending_seconds`), and the process
ends with status 0; a second signal ends it at once. SIGHUP: models are loaded again while requests are served.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.serving.limits import Limits

_HEAD = 500_000  # largest head of a request in bytes, with the part of the body that was received together with it
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FULL = b'{"error":"too many connections; the limit (connections) is %d"}'
logger = logging.getLogger("hf_mlnmt.serving")


def serve(
    models: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 5000,
    hosts: Collection[str] = (),
    limits: Limits | None = None,
    batch_tokens: int = 4096,
    max_wait: float = 0.005,
    loading: Mapping[str, Any] | None = None,
    **app_options: Any,
) -> None:
    """Serves models until a signal ends the process; prints the address to standard output, the log to stderr.

    Args:
        port: 0: any free port.
        hosts: names that the header Host of requests may have, beside localhost and `host`; none: only these two if
            the server listens on loopback, else any.
        batch_tokens, max_wait: of the Batcher. loading: options of ServedModels. app_options: of make_app.

    Raises: UserError without the extra `serve`, for a number out of its range, a port that is taken, and a model that
        does not load.
    """
    limits = limits or Limits()
    with _bound(host, port) as listening:  # a taken port is reported here, before models are loaded
        try:
            import python_multipart  # noqa: F401
            import uvicorn  # noqa: F401

            from hf_mlnmt.serving.api import make_app
        except ImportError as error:
            raise UserError(f"serving needs {error.name}: pip install 'hf-mlnmt[serve]'.") from error
        from hf_mlnmt.serving.batcher import Batcher
        from hf_mlnmt.serving.models import ServedModels

        served = ServedModels(models, **(loading or {}))
        batcher = Batcher(served, batch_tokens=batch_tokens, max_wait=max_wait, max_queue=limits.queue)
        names = {*hosts, *_LOOPBACK, host} if hosts or is_loopback(host) else ()
        app = make_app(batcher, limits, hosts=names, **app_options)
        _log_as_json()
        _reload_on_hangup(batcher)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        _run(app, listening, limits, f"serving {', '.join(served.names)} at {address}")
        batcher.close_now(1.0)


def _run(app: Any, listening: socket.socket, limits: Limits, greeting: str) -> None:
    """Runs an app until a signal ends it; prints the greeting as soon as the app answers requests."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(greeting, flush=True)

        def handle_exit(self, sig: int, frame: Any) -> None:
            if self.should_exit:
                os._exit(128 + sig)
            self.should_exit = True
            app.state.end()

    quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
    config = uvicorn.Config(app, http=_protocol(limits), timeout_graceful_shutdown=limits.ending_seconds, **quiet)
    Server(config).run([listening])


def is_loopback(host: str) -> bool:
    """Returns whether an address is loopback: only programs on this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_keys(path: Path) -> list[str]:
    """Reads API keys, one a line; empty lines and lines that begin with # are ignored.

    Raises: UserError for a file that cannot be read or has no key.
    """
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text ({error}). Give a file with an API key a line.") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise UserError(f"{path}: has no API key. Write one a line.")
    return keys


def _bound(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to host and port, and does not listen yet."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        raise UserError(
            f"cannot serve at {host}, port {port}: {error.strerror}. Choose others: --host, --port."
        ) from error
    return listening


def _reload_on_hangup(batcher: Any) -> None:
    def reload() -> None:
        problems = batcher.reload()
        logger.info("%s", json.dumps({"reloaded": batcher.models.names, "problems": len(problems)}))

    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, lambda number, frame: threading.Thread(target=reload, daemon=True).start())


class _JsonLines(logging.Formatter):
    """A formatter that writes messages as lines of JSON; a message that is JSON already is written as it is."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if text.startswith("{"):
            return text
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        return json.dumps({"time": now, "level": record.levelname.lower(), "message": text})


def _log_as_json() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for name, level in (("hf_mlnmt", logging.INFO), ("uvicorn", logging.WARNING)):
        chosen = logging.getLogger(name)
        chosen.handlers, chosen.propagate = [handler], False
        chosen.setLevel(level)


def _protocol(limits: Limits) -> type[Any]:
    """Returns uvicorn's HTTP protocol class with limits on connections, their idle time, and the size of heads."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Bounded(base):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.head, self.seen, self.left, self.timer = 0, None, 0, None
            if len(self.connections) > limits.connections:
                content = _FULL % limits.connections
                head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
                transport.write(f"{head}connection: close\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
                transport.close()
            else:
                self.timer = self.loop.call_later(limits.idle_seconds, self.look)

        @property
        def waits(self) -> bool:
            """Returns whether no request of the connection is being answered."""
            return self.cycle is None or self.cycle.response_complete

        def look(self) -> None:
            """Closes the connection if since the last call no request came, or the client read nothing of the answer.
            Otherwise schedules the next call, after `idle_seconds`."""
            left = self.transport.get_write_buffer_size()
            if left and left == self.left:
                at_once = struct.pack("ii", 1, 0)  # makes abort() discard bytes that are not sent
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                self.transport.abort()
            elif self.waits and self.seen is self.cycle and not left:
                self.transport.close()
            else:
                self.seen, self.left = self.cycle, left
                self.timer = self.loop.call_later(limits.idle_seconds, self.look)

        def data_received(self, data: bytes) -> None:
            answered = self.cycle
            self.head = self.head + len(data) if self.waits else 0
            if self.head > _HEAD:
                self.transport.close()
                return
            super().data_received(data)
            if self.cycle is not answered:  # a new request's head is complete
                self.head = 0

        def connection_lost(self, exc: Exception | None) -> None:
            if self.timer is not None:
                self.timer.cancel()
            super().connection_lost(exc)

    return Bounded
