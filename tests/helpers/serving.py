"""Servers as processes, each in a second: forks of one process that has imported what a server needs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx


class Server:
    """A running `hf-mlnmt serve`: its address, its process, what it has printed."""

    def __init__(self, servers: Servers, pid: int, folder: Path) -> None:
        self.servers, self.pid, self.folder, self.status = servers, pid, folder, None

    def started(self, seconds: float = 60) -> Server:
        """Wait for its line."""
        end = time.monotonic() + seconds
        while not (line := self.printed("1")).endswith("\n"):
            assert time.monotonic() < end, self.printed("2")
            time.sleep(0.02)
        self.url = line.split(" at ")[1].strip()
        self.port = int(self.url.rsplit(":", 1)[1])
        return self

    def printed(self, stream: str) -> str:
        """What it has written to 1 (standard output) or 2 (its log)."""
        path = self.folder / stream
        return path.read_text("utf-8") if path.exists() else ""

    def log(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self.printed("2").splitlines()]

    def wait_for_log(self, **said: Any) -> dict[str, Any]:
        """The first line with these in it, when it comes."""
        end = time.monotonic() + 60
        while True:
            for line in self.log():
                if said.items() <= line.items():
                    return line
            assert time.monotonic() < end, (said, self.printed("2"))
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for its end: the exit code."""
        if self.status is None:
            self.status = self.servers.ask(wait=self.pid)
        return self.status

    def translate(self, q: Any = "A man.", **more: Any) -> httpx.Response:
        """A request."""
        return httpx.post(f"{self.url}/translate", json={"q": q, "source": "en", "target": "de", **more}, timeout=60)


class Servers:
    """Starts servers."""

    def __init__(self, root: Path) -> None:
        self.root, pipe = root, subprocess.PIPE
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        self.process = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True, env=environment)
        self.running: list[Server] = []

    def start(self, *arguments: Any, port: int = 0) -> Server:
        """`hf-mlnmt serve --port 0 arguments`."""
        folder = Path(tempfile.mkdtemp(dir=self.root))
        command = ["serve", "--port", str(port), "--threads", "1", *map(str, arguments)]
        server = Server(self, self.ask(start=command, folder=str(folder)), folder)
        self.running.append(server)
        return server

    def ask(self, **what: Any) -> Any:
        """Of the process that forks."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(what), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """End all."""
        for server in self.running:
            if server.status is None:
                with contextlib.suppress(ProcessLookupError):
                    server.signal(signal.SIGKILL)
                server.end()
        self.process.kill()
        self.process.communicate()


def become(arguments: list[str], folder: str) -> None:
    """`hf-mlnmt arguments`, in this process."""
    from hf_mlnmt.cli import main

    for stream in (1, 2):
        os.dup2(os.open(f"{folder}/{stream}", os.O_CREAT | os.O_WRONLY), stream)
    sys.argv = ["hf-mlnmt", *arguments]
    status = 1
    try:
        main()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    import gc

    import torch._dynamo  # noqa: F401
    import uvicorn.main  # noqa: F401

    from hf_mlnmt.serving import api, batcher, models, server  # noqa: F401

    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), flush=True)
        elif child := os.fork():
            print(child, flush=True)
        else:
            become(asked["start"], asked["folder"])
