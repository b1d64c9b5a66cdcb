"""Runs a command in several processes on this machine (`--processes`), by torchrun with a single error message.

torchrun alone prints a traceback of its own around each message and hides the exit code.
"""

import atexit
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import variable
from hf_mlnmt.common.memory import cores

PARENT = "HF_MLNMT_PARENT"  # environment variable with the id of the parent: the process ends when its parent has ended
LOOK_AFTER = 0.5  # seconds between two checks whether the parent still runs
# Exit code of a process that lost its connection to the others. The process that failed first prints the message.
LOST = 76
AFTER_THE_FIRST = 3.0  # seconds before a process ends with LOST, so that torchrun first sees the process that failed
PATIENCE = 30.0  # seconds that a process may use to save its state after its parent ended
TO_SAVE = 86_400  # seconds after a signal until torchrun kills the processes, so that they can save their state
# Signals that torchrun passes on to the processes; Windows has neither SIGHUP nor SIGUSR1.
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


def check_processes(count: int, option: str) -> None:
    """Raises UserError for more than twice as many processes as cores (16 are always allowed), which by a typing error
    would fill the memory, and for `option` in a process of several that Slurm's srun started.
    """
    if (tasks := variable("SLURM_STEP_NUM_TASKS", int, 1)) > 1:
        raise UserError(f"{option}: srun has started {tasks} processes, which train together. Leave it out.")
    if count > max(16, 2 * cores()):
        raise UserError(f"{option}: {count} processes, and this machine has {cores()} cores. Give fewer.")


def run_in_processes(count: int, arguments: list[str]) -> int:
    """Runs `hf-mlnmt` with `arguments` in `count` processes on this machine by torchrun; returns the exit code.

    Threads are divided among the processes unless OMP_NUM_THREADS is set. Only the messages of the first process are
    shown, and of another process if it failed first. Signals are passed on to all processes, which save their state;
    the exit code is then 128 plus the signal's number. The processes end when this process ends, however it does.
    """
    command = ["-m", "hf_mlnmt", *arguments]
    if count == 1:
        return _code(subprocess.run([sys.executable, *command]).returncode)
    from torch.distributed import TCPStore
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name, usual in (("OMP_NUM_THREADS", max(1, cores() // count)), ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", TO_SAVE)):
        os.environ[name] = str(variable(name, int, usual))
    os.environ[PARENT] = str(os.getpid())
    logging.disable(logging.ERROR)  # hides torchrun's dozens of lines; `_explain` prints one message
    before = {number: signal.getsignal(number) for number in SIGNALS}
    # The processes connect by a TCPStore on a free port: c10d, torchrun's default, takes seconds to read source files.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    with tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            logs_specs=DefaultLogsSpecs(folder, redirects=dict.fromkeys(range(1, count), Std.ALL)),
            run_id="hf-mlnmt",
            rdzv_backend="static",
            rdzv_endpoint=f"127.0.0.1:{store.port}",
            rdzv_configs={"rank": 0},
            local_addr="127.0.0.1",
            max_restarts=0,
            signals_to_handle=",".join(number.name for number in SIGNALS),
        )
        try:
            elastic_launch(config, sys.executable)(*command)
        except SignalException as ended:
            return 128 + ended.sigval
        except ChildFailedError as error:
            # Prefers the exit code of a process that failed by itself to LOST, and LOST to the code after a SIGTERM.
            codes = {failure.local_rank: failure.exitcode for failure in error.failures.values()}
            told_to_end = (-signal.SIGTERM, 128 + signal.SIGTERM)
            code = min(codes.values(), key=lambda code: (code in told_to_end, code == LOST))
            failed = min(rank for rank, its_own in codes.items() if its_own == code)
            _explain(failed, count, code, next(Path(folder).glob(f"*/*/{failed}/stderr.log"), None))
            return _code(code)
        finally:
            logging.disable(logging.NOTSET)
            for number, handler in before.items():
                signal.signal(number, handler)
    return 0


def start_alone(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen:
    """Starts `hf-mlnmt` as a process of its own, with its output appended to the file `log`; returns the process.

    The process gets no signals of the terminal (Ctrl-C); it ends, as after SIGTERM, when this process has ended.
    """
    own = {**os.environ, **environment, PARENT: str(os.getpid())}
    with log.open("ab") as file:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        command = [sys.executable, "-m", "hf_mlnmt", *arguments]
        return subprocess.Popen(command, env=own, start_new_session=True, **streams)


def end_with_parent() -> bool:
    """Starts a thread that ends this process when its parent has ended, if `run_in_processes` or `start_alone` started
    it; returns whether it did."""
    if (parent := variable(PARENT, int)) is None:
        return False
    del os.environ[PARENT]

    def watch() -> None:
        while os.getppid() == parent:  # endless on Windows, where getppid() never changes
            time.sleep(LOOK_AFTER)
        os.kill(os.getpid(), signal.SIGTERM)  # the trainer's handler of SIGTERM saves the state
        time.sleep(PATIENCE)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    return True


def end_at_once(code: int) -> NoReturn:
    """Ends this process after its work with exit code `code`. Leaves out Python's finalization, during which threads
    of a process group sometimes abort the process, even if the group was closed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_after_the_first() -> NoReturn:
    """Waits AFTER_THE_FIRST seconds and ends this process, which lost its connection to the others, with code LOST."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stderr.flush()
    time.sleep(AFTER_THE_FIRST)
    # Ends without closing the process group, which would wait for other processes; sys.exit could abort the process.
    os._exit(LOST)


def lost_the_others(error: BaseException) -> bool:
    """Returns whether an error means only that another process of the group has ended."""
    text = str(error).lower()
    signs = ["connection closed by peer", "connection reset by peer", "connection refused", "broken pipe"]
    signs += ["remote process exited", "socket timeout", "ncclremoteerror", "timed out waiting"]
    return isinstance(error, RuntimeError | OSError) and any(sign in text for sign in signs)


def _explain(rank: int, count: int, code: int, log: Path | None) -> None:
    """Prints a message for a process that a signal ended or that lost the others, and the log of one that failed."""
    said = "lost the connection to the others, and none of them said why."
    if code < 0:
        name = signal.Signals(-code).name
        memory = " The system does that when memory runs out." if name == "SIGKILL" else ""
        said = f"was ended by {name}, and the others with it.{memory}"
    if code < 0 or code == LOST:
        again = "The last checkpoint is kept: the same command goes on from there."
        print(f"error: process {rank} of {count} {said} {again}", file=sys.stderr)
    # Prints the log of a process that ended by itself or aborted, not of one that another signal ended.
    if log and (code > 0 or -code == signal.SIGABRT):
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr, end="")


def _code(returncode: int) -> int:
    """Returns a return code as shells do: 128 plus the signal's number for a process that a signal ended."""
    return 128 - returncode if returncode < 0 else returncode
