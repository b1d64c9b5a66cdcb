"""Fresh processes in a moment instead of five seconds: forks of processes that have imported what takes long.

There are three of them, each a fork of the one before, for all workers of a test run; each is there when it is first
asked for. They wait at a socket of their name in a folder that pytest's first process makes (`begin`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess
from typing import IO, Any, NoReturn

# What each has imported: a fresh process of `torch` has imported neither Transformers nor this package, nor read a
# variable of the Hub; one of `package` is a training that begins, one of `serving` a server.
IMPORTED: dict[str, tuple[str, ...]] = {
    "": (),
    "torch": ("torch", "torch._dynamo", "torch.distributed.tensor", "sklearn.metrics", "pandas"),
    "package": ("transformers.trainer", "hf_mlnmt.training", "hf_mlnmt.generation"),
    "serving": ("uvicorn.main", "hf_mlnmt.serving.api", "hf_mlnmt.serving.server"),
}
BEFORE = dict(zip(list(IMPORTED)[1:], IMPORTED))
FOLDER = "HF_MLNMT_TESTS_FRESH"  # in the environment: where the sockets are


def begin() -> subprocess.Popen:
    """Starts the first of them, which has imported nothing; `end` ends it and all others."""
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="fresh")  # short, as names of sockets must be
    return subprocess.Popen([sys.executable, "-P", __file__, os.environ[FOLDER]], stdin=PIPE, start_new_session=True)


def end(process: subprocess.Popen) -> None:
    process.communicate()  # at the end of its input it ends
    shutil.rmtree(os.environ.pop(FOLDER))


def connect(level: str, seconds: float = 120) -> socket.socket:
    """Returns a connection to the process that has imported this; it is made if it is not there."""
    latest, asked, connection = time.monotonic() + seconds, not level, socket.socket(socket.AF_UNIX)
    while True:
        try:
            connection.connect(f"{os.environ[FOLDER]}/{level or 'none'}")
            return connection
        except OSError:
            assert time.monotonic() < latest, f"no process with {level or 'nothing'} imported"
        if not asked:
            with connect(BEFORE[level], seconds) as before:
                before.sendall(json.dumps({"level": level}).encode() + b"\n")
            asked = True
        time.sleep(0.02)


class Popen:
    """Works as subprocess.Popen([sys.executable, ...], text=True) does, of a process that has imported `level`.

    Arguments of the interpreter itself may be -I, -P, -c and -m. After so many `seconds` the process is ended.
    """

    def __init__(
        self,
        command: Sequence[Any],
        env: Mapping[str, str] | None = None,
        cwd: Any = None,
        stdin: Any = DEVNULL,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = True,
        level: str = "torch",
        seconds: int = 0,
    ):
        assert text
        assert command[0] == sys.executable
        self.returncode: int | None = None
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        with contextlib.ExitStack() as given:
            files: list[int] = []
            for number, stream in enumerate((stdin, stdout, stderr)):
                if stream == PIPE and number < 2:
                    reading, writing = os.pipe()
                    given.callback(os.close, its := writing if number else reading)
                    if number:
                        self.stdout = os.fdopen(reading, encoding="utf-8")
                    else:
                        self.stdin = os.fdopen(writing, "w", encoding="utf-8")
                elif stream == PIPE:  # a file, so that what is not read never stops it
                    self.stderr = tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace")  # noqa: SIM115
                    its = self.stderr.fileno()
                elif stream == DEVNULL:
                    given.callback(os.close, its := os.open(os.devnull, os.O_RDWR))
                elif stream == STDOUT:
                    its = files[1]
                else:
                    its = number if stream is None else stream if isinstance(stream, int) else stream.fileno()
                files.append(its)
            asked = {
                "arguments": [str(argument) for argument in command[1:]],
                "environment": dict(os.environ if env is None else env),
                "cwd": str(cwd or os.getcwd()),
                "seconds": seconds,
            }
            self.connection = connect(level)
            message = json.dumps(asked).encode() + b"\n"
            socket.send_fds(self.connection, [message[:1]], files)
            self.connection.sendall(message[1:])
        self.answers = self.connection.makefile()
        self.pid = int(self.answers.readline())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self.connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self.connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("python", timeout or 0)
            self.returncode = int(self.answers.readline())
            self.answers.close()
            self.connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        if self.stdin:
            self.stdin.close()
        printed = self.stdout.read() if self.stdout else None
        self.wait(timeout)
        if self.stderr:
            self.stderr.seek(0)
        return printed, self.stderr.read() if self.stderr else None


def side_by_side(
    arguments: Sequence[str], environments: Sequence[Mapping[str, str]], level: str, cwd: Any = None, seconds: int = 300
) -> list[CompletedProcess[str]]:
    """Runs a process in each environment, all at once; 3 seconds after one has failed the others are ended."""
    with contextlib.ExitStack() as stack:
        outputs = [[stack.enter_context(tempfile.TemporaryFile("a+")) for _ in range(2)] for _ in environments]
        command = [sys.executable, *arguments]
        processes = [
            Popen(command, environment, cwd, DEVNULL, *streams, level=level, seconds=seconds)
            for environment, streams in zip(environments, outputs)
        ]
        running, failed = {process.connection: process for process in processes}, False
        while running:
            # Of those that a signal was meant for, who had ended is known already, and its connection closed.
            ended = [connection for connection, process in running.items() if process.returncode is not None]
            ended = ended or select.select(list(running), [], [], 3 if failed else None)[0]
            for other in running.values() if not ended else ():
                other.kill()
            for connection in ended:
                failed = bool(running.pop(connection).wait()) or failed
        printed = [[(file.seek(0), file.read())[1] for file in streams] for streams in outputs]
    return [CompletedProcess(command, process.wait(), *out) for process, out in zip(processes, printed)]


def python(
    *arguments: str, env: Any = None, cwd: Any = None, seconds: int = 300, level: str = "torch"
) -> CompletedProcess[str]:
    """Works as subprocess.run([sys.executable, *arguments], env=env, cwd=cwd, capture_output=True, text=True)."""
    (done,) = side_by_side(arguments, [os.environ if env is None else env], level, cwd, seconds)
    return done


def package(*arguments: str, **options: Any) -> CompletedProcess[str]:
    """`python`, of a process that has imported what a training imports."""
    return python(*arguments, level="package", **options)


class Command(subprocess.Popen):
    """Works as subprocess.Popen in a fresh process; one of Python is a fork of this very process."""

    def __init__(self, args: Any, *, env: Any = None, pass_fds: Sequence[int] = (), **options: Any):
        if isinstance(args, str) or args[0] != sys.executable:
            super().__init__(args, env=env, pass_fds=pass_fds, **options)
            return

        def instead() -> NoReturn:
            for number in set(range(3, 4096)) - set(pass_fds):
                with contextlib.suppress(OSError):
                    os.close(number)
            for number in signal.valid_signals():  # as in a program that begins
                if callable(signal.getsignal(number)) and number != signal.SIGINT:
                    signal.signal(number, signal.SIG_DFL)
            become([str(word) for word in args[1:]], dict(os.environ if env is None else env), os.getcwd())

        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # what waits there is not to be said twice
        super().__init__(["false"], preexec_fn=instead, pass_fds=pass_fds, **options)


# For `python -c`: a program, sys.argv[1], and its arguments, and the Python processes that it starts are forks of it.
FORKING = f"""
import runpy, subprocess, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})
from helpers import fresh
subprocess.Popen, sys.argv = fresh.Command, sys.argv[1:]
sys.path[0] = str(fresh.Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
COMMAND = str(Path(__file__).resolve().parents[2] / "hf_mlnmt" / "__main__.py")  # a program


def become(arguments: list[str], environment: Mapping[str, str], cwd: str, seconds: int = 0) -> NoReturn:
    """Runs `python arguments` in this process."""
    status = 0
    try:
        signal.alarm(seconds)  # which ends the process
        # Its own: those of before know another file, and whether that could be wound back.
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        flags = {flag for flag in arguments[:2] if flag in ("-I", "-P")}
        arguments = arguments[len(flags) :]
        how = arguments.pop(0) if arguments[0] in ("-c", "-m") else None
        sys.argv = ["-c", *arguments[1:]] if how == "-c" else list(arguments)
        paths = [] if flags else ["" if how else str(Path(arguments[0]).parent)]
        paths += environment.get("PYTHONPATH", "").split(os.pathsep) if "-I" not in flags else []
        sys.path[:0] = [path for path in paths if path or how]
        if how == "-m":
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        elif how == "-c":
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(arguments[0], "<string>", "exec"), main.__dict__)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # one that was closed, or taken away
            stream.flush()
    os._exit(status)  # without collecting what was imported, which takes a second


def serve(level: str, folder: str, lifeline: int) -> NoReturn:
    """Forks for whoever asks, until the other end of the lifeline is closed."""
    if level == "package":
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    gc.disable()
    for module in IMPORTED[level]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.enable()
    gc.freeze()
    bell, rope = os.pipe()
    os.set_blocking(rope, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(rope)
    waiting: dict[int, socket.socket] = {}  # process: where its end is to be told
    further: dict[str, int] = {}  # level: its lifeline
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/{level or 'none'}")
        listener.listen()
        while True:
            ready = select.select([listener, bell, lifeline], [], [])[0]
            if bell in ready:
                os.read(bell, 4096)
                for child in list(waiting):
                    ended, status = os.waitpid(child, os.WNOHANG)
                    if ended:
                        with contextlib.suppress(OSError), waiting.pop(child) as connection:
                            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            elif lifeline in ready:
                break
            else:
                connection, _ = listener.accept()
                first, streams, *_ = socket.recv_fds(connection, 1, 3)
                with connection.makefile() as rest:
                    asked = json.loads(first.decode() + rest.readline())
                if "level" in asked:
                    _further(asked["level"], folder, further)
                    connection.close()
                elif child := os.fork():
                    connection.sendall(f"{child}\n".encode())
                    waiting[child] = connection
                else:
                    _alone(streams)
                    become(**asked)
                for stream in streams:
                    os.close(stream)
    for end in further.values():
        os.close(end)
    for child in waiting:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    os._exit(0)


def _further(level: str, folder: str, further: dict[str, int]) -> None:
    """Forks the process of the next level, if it is not there."""
    if level not in further:
        lifeline, further[level] = os.pipe()
        if not os.fork():
            _alone([lifeline])
            serve(level, folder, 0)
        os.close(lifeline)


def _alone(streams: Sequence[int]) -> None:
    """Lets go of what a forked process has of the one that it was, and takes these standard streams."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 4096)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve("", sys.argv[1], 0)
    else:  # python fresh.py LEVEL ARGUMENTS: what Popen does, for a shell
        sys.exit(Popen([sys.executable, *sys.argv[2:]], stdin=0, level=sys.argv[1]).wait())
