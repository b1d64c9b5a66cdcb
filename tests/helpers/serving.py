"""Servers as processes: forks of one that has imported what a server needs."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from helpers import fresh

MAIN = "from hf_mlnmt.cli import main; main()"


class Server(fresh.Popen):
    """A running `hf-mlnmt serve`: its address, its process, what it has printed."""

    def __init__(self, folder: Path, *arguments: Any, port: int = 0) -> None:
        command = [sys.executable, "-c", MAIN, "serve", "--port", port, "--threads", 1, *arguments]
        self.folder = folder
        with (folder / "1").open("w") as output, (folder / "2").open("w") as log:
            super().__init__(command, stdout=output, stderr=log, level="serving")

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
        return (self.folder / stream).read_text("utf-8")

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

    def translate(self, q: Any = "A man.", **more: Any) -> httpx.Response:
        """A request."""
        return httpx.post(f"{self.url}/translate", json={"q": q, "source": "en", "target": "de", **more}, timeout=60)


class Servers:
    """Starts servers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.running: list[Server] = []

    def start(self, *arguments: Any, port: int = 0) -> Server:
        """`hf-mlnmt serve --port 0 arguments`."""
        self.running.append(Server(Path(tempfile.mkdtemp(dir=self.root)), *arguments, port=port))
        return self.running[-1]

    def close(self) -> None:
        """End all."""
        for server in self.running:
            server.kill()
            server.wait()
