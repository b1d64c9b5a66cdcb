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
        with tempfile.TemporaryDirectory() as folder:
            job = {"arguments": arguments, "environment": dict(os.environ if env is None else env), "folder": folder}
            job |= {"cwd": str(cwd or os.getcwd()), "seconds": seconds}
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            print(json.dumps(job), file=self.process.stdin, flush=True)
            status = int(self.process.stdout.readline())
            printed, errors = ((Path(folder) / stream).read_text("utf-8", "replace") for stream in "12")
        return subprocess.CompletedProcess(arguments, status, printed, errors)

    def close(self) -> None:
        self.process.communicate()  # at the end of its input it ends


@functools.cache
def _server() -> Server:
    return Server(*BELOW_TRANSFORMERS)


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
        if not (child := os.fork()):
            become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
