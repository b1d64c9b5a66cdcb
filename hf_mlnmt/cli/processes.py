"""Start of a command as several processes on this machine: `--processes`.

torchrun would do too, but it puts a traceback of its own around every message and hides the exit code.
"""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hf_mlnmt.errors import UserError

# In the environment of each process: the reading end of a pipe whose other end the command alone holds open.
PARENT = "HF_MLNMT_PARENT_PIPE"
# Exit code of a process that lost the others. It prints nothing: the one that ended first has printed the reason.
LOST = 75
PATIENCE = 10.0  # seconds that the others have to end by themselves after one process failed
AFTER_SIGTERM = 20.0  # seconds until SIGKILL
# Windows has neither SIGHUP nor SIGUSR1.
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]

Starter = Callable[[Sequence[str], Path, Mapping[str, str]], subprocess.Popen]


def cores() -> int:
    """Counts the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_processes(count: int, option: str) -> None:
    """Raises UserError for far more processes than this machine has cores: a slip of the hand would fill its memory."""
    if count > max(16, 2 * cores()):
        raise UserError(f"{option}: {count} processes, and this machine has {cores()} cores. Give fewer.")


def lower_priority() -> None:
    """Leaves the processor to other programs that want it; the processes that this one starts do so too."""
    if hasattr(os, "nice"):
        os.nice(10)
    else:  # Windows
        import psutil

        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)


def run_in_processes(count: int, arguments: list[str]) -> int:
    """Runs `hf-mlnmt` with `arguments` in `count` processes on this machine; returns the exit code.

    Threads are divided among the processes unless OMP_NUM_THREADS says otherwise. Only the first process's messages are
    shown; another one's if that is where it failed. The processes end when this one does, however it ends.
    """
    if count == 1:
        return _code(subprocess.run([sys.executable, "-m", "hf_mlnmt", *arguments]).returncode)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {"OMP_NUM_THREADS": str(max(1, cores() // count)), **os.environ, **meeting}
    with tempfile.TemporaryDirectory() as folder, _pipe() as reading_end:
        logs = [Path(folder) / str(rank) for rank in range(count)]
        processes: list[subprocess.Popen] = []
        with _passing_signals_on(processes):
            for rank, log in enumerate(logs):
                own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                with log.open("wb") as file:
                    output = {"stdout": file, "stderr": file} if rank else {}
                    processes.append(_popen(arguments, own, reading_end, **output))
            failed = _wait(processes)
        if failed is None:
            return 0
        _explain(failed, processes, logs[failed])
        return _code(processes[failed].returncode)


def end_with_parent() -> bool:
    """Ends a process that `run_in_processes` or `starting_alone` started with its starter; returns whether it is one.

    A thread waits at the pipe, which the system closes with the command, also when that is killed.
    """
    if PARENT not in os.environ:
        return False
    reading_end = int(os.environ.pop(PARENT))

    def watch() -> None:
        os.read(reading_end, 1)  # nobody writes: it returns when the other end is closed
        os.kill(os.getpid(), signal.SIGTERM)  # the state is saved, as always
        time.sleep(PATIENCE + AFTER_SIGTERM)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    return True


def end_at_once(code: int) -> NoReturn:
    """Ends this process, which has done its work, before Python takes its modules down.

    There threads of a group of processes abort it now and then, also where the group was closed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def lost_the_others(error: BaseException) -> bool:
    """Returns whether an error says no more than that another process of the group is gone."""
    text = str(error).lower()
    signs = ["connection closed by peer", "connection reset by peer", "connection refused", "broken pipe"]
    signs += ["remote process exited", "socket timeout", "ncclremoteerror", "timed out waiting"]
    return isinstance(error, RuntimeError | OSError) and any(sign in text for sign in signs)


@contextlib.contextmanager
def starting_alone() -> Iterator[Starter]:
    """Yields a function that starts `hf-mlnmt` with arguments, its output going to the end of a file.

    It does not get what the terminal sends (Ctrl-C); it ends, as by SIGTERM, when this process is gone.
    """
    with _pipe() as reading_end:

        def start(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen:
            with log.open("ab") as file:
                own = {**os.environ, **environment}
                streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
                return _popen(arguments, own, reading_end, start_new_session=True, **streams)

        yield start


@contextlib.contextmanager
def _pipe() -> Iterator[int]:
    """Yields the reading end of a new pipe, for other processes; the writing end is only this one's."""
    reading_end, writing_end = os.pipe()
    try:
        yield reading_end
    finally:
        os.close(reading_end)
        os.close(writing_end)


def _popen(arguments: Sequence[str], environment: Mapping[str, str], pipe: int, **options: Any) -> subprocess.Popen:
    """Starts `hf-mlnmt`; it ends when the other end of `pipe` is closed (Windows passes no pipe on)."""
    if sys.platform != "win32":
        environment = {**environment, PARENT: str(pipe)}
        options["pass_fds"] = [pipe]
    return subprocess.Popen([sys.executable, "-m", "hf_mlnmt", *arguments], env=environment, **options)


@contextlib.contextmanager
def _passing_signals_on(processes: list[subprocess.Popen]) -> Iterator[None]:
    """Passes SIGTERM, SIGHUP and SIGUSR1 on to all of these. They get Ctrl-C from the terminal."""
    before = {signum: signal.signal(signum, lambda *_: _stop(processes)) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _wait(processes: list[subprocess.Popen]) -> int | None:
    """Waits for all; returns the rank that failed first. Others get some time, then SIGTERM, then SIGKILL."""
    failed, deadline, kill = None, float("inf"), False
    while None in [process.poll() for process in processes]:  # a list: each must be asked, also behind one that runs
        bad = [rank for rank, process in enumerate(processes) if process.returncode]
        if bad and failed is None:
            failed = _first_failed(processes)
            # Of a process that was killed the others can only learn by waiting for it.
            deadline = time.monotonic() + (0 if processes[failed].returncode < 0 else PATIENCE)
        if time.monotonic() > deadline:
            _stop(processes, kill)
            deadline, kill = time.monotonic() + AFTER_SIGTERM, True
        try:
            time.sleep(0.1)
        except KeyboardInterrupt:  # the processes got it too, and save their state
            continue
    failed = _first_failed(processes) if failed is None or processes[failed].returncode == LOST else failed
    return failed if processes[failed].returncode else None


def _first_failed(processes: list[subprocess.Popen]) -> int:
    """Returns the rank that failed: by a signal, else by an error of its own, else because another one was gone."""
    codes = [process.returncode or 0 for process in processes]
    return max(range(len(codes)), key=lambda rank: (codes[rank] < 0, codes[rank] not in (0, LOST), codes[rank] != 0))


def _explain(failed: int, processes: list[subprocess.Popen], log: Path) -> None:
    """Prints the one message about a process that could not print its own."""
    code = processes[failed].returncode
    if code < 0:
        name = signal.Signals(-code).name
        memory = " The system does that when memory runs out." if -code == signal.SIGKILL else ""
        print(
            f"error: process {failed} of {len(processes)} was ended by {name}, and the others with it.{memory} "
            "The last checkpoint is kept: the same command goes on from there.",
            file=sys.stderr,
        )
    if failed and (code > 0 or -code == signal.SIGABRT):  # a process that was told to end says nothing
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr, end="")


def _code(returncode: int) -> int:
    """Returns the exit code of a shell: 128 and the signal's number for a process that a signal ended."""
    return 128 - returncode if returncode < 0 else returncode


def _stop(processes: list[subprocess.Popen], kill: bool = False) -> None:
    """Sends SIGTERM, or SIGKILL, to those that still run."""
    for process in processes:
        process.kill() if kill else process.terminate()
