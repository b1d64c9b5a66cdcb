"""Fresh processes in a second instead of five: forks of one that has imported torch, and nothing that builds on it.

Importing Transformers takes most of its time in torch, SciPy and what else lies below it, which is of no matter to a
test of what a process finds that has imported neither Transformers nor this package.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

# None of them reads an environment variable of the Hub, or imports what does.
BELOW_TRANSFORMERS = ("torch", "torch._dynamo", "torch.distributed.tensor", "sklearn.metrics", "pandas")


class Server:
    """A process that has imported `modules`, and forks."""

    def __init__(self, *modules: str, **environment: str):
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", __file__, *modules]
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=inherited)

    def python(
        self, *arguments: str, env: Any = None, cwd: Any = None, seconds: int = 300
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run([sys.executable, *arguments], env=env, cwd=cwd, capture_output=True, text=True).

        Arguments of the interpreter itself may be -I, -P and -c. After so many `seconds` the process is ended.
        """
        (done,) = self.side_by_side(arguments, [os.environ if env is None else env], cwd, seconds)
        return done

    def side_by_side(
        self, arguments: Sequence[str], environments: Sequence[Mapping[str, str]], cwd: Any = None, seconds: int = 300
    ) -> list[subprocess.CompletedProcess[str]]:
        """A process in each environment, all at once; when one fails the others are ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory() as root:
            folders = [Path(tempfile.mkdtemp(dir=root)) for _ in environments]
            common = {"arguments": arguments, "cwd": str(cwd or os.getcwd()), "seconds": seconds}
            jobs = [
                {**common, "environment": dict(one), "folder": str(folder)}
                for one, folder in zip(environments, folders)
            ]
            print(json.dumps(jobs), file=self.process.stdin, flush=True)
            statuses = json.loads(self.process.stdout.readline())
            printed = [[(folder / stream).read_text("utf-8", "replace") for stream in "12"] for folder in folders]
        return [subprocess.CompletedProcess(arguments, status, *out) for status, out in zip(statuses, printed)]

    def close(self) -> None:
        self.process.communicate()  # at the end of its input it ends


@functools.cache
def _server() -> Server:
    return Server(*BELOW_TRANSFORMERS)


@functools.cache
def package_server() -> Server:
    """Has imported what a training imports."""
    return Server("transformers.trainer", "hf_mlnmt.training", PYTHONPATH=str(Path(__file__).resolve().parents[2]))


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`Server.python` of a process that has imported neither Transformers nor this package."""
    return _server().python(*arguments, **options)


class Popen:
    """What `subprocess.Popen([sys.executable, ...])` gives, of a process that has ended."""

    def __init__(self, command: list[str], env: Any = None, cwd: Any = None, **streams: Any):
        done = python(*command[1:], env=env, cwd=cwd)
        self.returncode, self.output = done.returncode, (done.stdout, done.stderr)

    def communicate(self) -> tuple[str, str]:
        return self.output

    def kill(self) -> None:
        pass

    def wait(self) -> int:
        return self.returncode


def become(arguments: list[str], environment: dict[str, str], folder: str, cwd: str, seconds: int) -> NoReturn:
    """`python arguments`, in this process; what it prints goes to the files 1 and 2 of the folder."""
    status = 0
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(os.open(f"{folder}/{stream}", os.O_CREAT | os.O_WRONLY), stream)
        signal.alarm(seconds)  # which ends the process
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        flags = {flag for flag in arguments[:2] if flag in ("-I", "-P")}
        arguments = arguments[len(flags) :]
        code = arguments.pop(1) if arguments[0] == "-c" else None
        sys.argv = arguments
        paths = [] if flags else [str(Path(arguments[0]).parent) if code is None else ""]
        paths += environment.get("PYTHONPATH", "").split(os.pathsep) if "-I" not in flags else []
        sys.path[:0] = [path for path in paths if path or code is not None]
        if code is None:
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), main.__dict__)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)  # without collecting what was imported, which takes a second


if __name__ == "__main__":
    for module in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()
    for line in sys.stdin:
        children: dict[int, int | None] = {}  # process: its status
        for job in json.loads(line):
            if not (child := os.fork()):
                become(**job)
            children[child] = None
        while running := [child for child, status in children.items() if status is None]:
            child, status = os.wait()
            children[child] = os.waitstatus_to_exitcode(status)
            if children[child]:
                for other in running:
                    if other != child:
                        os.kill(other, signal.SIGKILL)
        print(json.dumps(list(children.values())), flush=True)
