"""Starting a command as several processes on this machine: what `--processes` does.

torchrun would do too, but it puts a traceback of its own around every message and hides the exit code.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_processes(count: int, arguments: list[str]) -> int:
    """Run `hf-mlnmt` with `arguments` in `count` processes on this machine; returns the exit code.

    On a CPU a small model trains faster in as many processes as there are cores than with as many threads: most of its
    operations are too small to share. Threads are divided among the processes unless OMP_NUM_THREADS says otherwise.
    Only the first process's messages are shown; another one's if that is where it failed.
    """
    if count == 1:
        return subprocess.run([sys.executable, "-m", "hf_mlnmt", *arguments]).returncode
    environment = {"OMP_NUM_THREADS": str(max(1, cores() // count)), **os.environ, **_rendezvous(count)}
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / str(rank) for rank in range(count)]
        processes = [_start(rank, arguments, environment, log) for rank, log in enumerate(logs)]
        before = signal.signal(signal.SIGTERM, lambda *_: _stop(processes))
        try:
            failed = _wait(processes)
        finally:
            signal.signal(signal.SIGTERM, before)
        if failed:
            print(logs[failed].read_text(errors="replace")[-4000:], file=sys.stderr, end="")
        return 0 if failed is None else processes[failed].returncode


def without_processes(arguments: list[str]) -> list[str]:
    """The arguments but for `--processes N`, `--processes=N`, `-p N`."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument not in ("--processes", "-p") and not argument.startswith("--processes="):
            kept.append(argument)
        skip = not skip and argument in ("--processes", "-p")
    return kept


def _rendezvous(count: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _start(rank: int, arguments: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen:
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    with log.open("wb") as file:
        output = {"stdout": file, "stderr": file} if rank else {}
        return subprocess.Popen(
            [sys.executable, "-m", "hf_mlnmt", *arguments],
            env={**environment, **ranks},
            **output,  # type: ignore[call-overload]
        )


def _wait(processes: list[subprocess.Popen]) -> int | None:
    """Wait for all; the rank that failed first, if one did. The others get some time, then SIGTERM, then SIGKILL."""
    failed, deadline, force = None, float("inf"), signal.SIGTERM
    while any(process.poll() is None for process in processes):
        bad = [rank for rank, process in enumerate(processes) if process.returncode]
        if bad and failed is None:
            failed, deadline = bad[0], time.monotonic() + 10
        if time.monotonic() > deadline:
            _stop(processes, force)
            deadline, force = time.monotonic() + 20, signal.SIGKILL
        try:
            time.sleep(0.1)
        except KeyboardInterrupt:  # the processes got it too, and save their state
            continue
    return failed if failed is not None else next((r for r, p in enumerate(processes) if p.returncode), None)


def _stop(processes: list[subprocess.Popen], signum: int = signal.SIGTERM) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signum)
