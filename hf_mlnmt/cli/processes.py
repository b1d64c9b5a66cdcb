"""Start of a command as several processes on this machine: `--processes`, which is torchrun with one message.

By itself torchrun puts a traceback of its own around every message and hides the exit code.
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

PARENT = "HF_MLNMT_PARENT"  # in the environment of a process: the one that it is to end with
LOOK_AFTER = 0.5  # seconds
# Exit code of a process that lost the others. It prints nothing: the one that ended first has printed the reason.
LOST = 76
AFTER_THE_FIRST = 3.0  # seconds until it ends, so that torchrun sees the one that ended first
PATIENCE = 30.0  # seconds that a process has to save its state when its parent is gone, and torchrun's when one failed
TO_SAVE = 86_400  # seconds after a signal until torchrun kills the processes: they may save for as long as they need
# Windows has neither SIGHUP nor SIGUSR1.
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


def check_processes(count: int, option: str) -> None:
    """Raises UserError for far more processes than this machine has cores: a slip of the hand would fill its memory.

    Also for processes in each of the several that Slurm's srun starts.
    """
    if (tasks := variable("SLURM_STEP_NUM_TASKS", int, 1)) > 1:
        raise UserError(f"{option}: srun has started {tasks} processes, which train together. Leave it out.")
    if count > max(16, 2 * cores()):
        raise UserError(f"{option}: {count} processes, and this machine has {cores()} cores. Give fewer.")


def run_in_processes(count: int, arguments: list[str]) -> int:
    """Runs `hf-mlnmt` with `arguments` in `count` processes on this machine by torchrun; returns the exit code.

    Threads are divided among the processes unless OMP_NUM_THREADS says otherwise. Only the first process's messages are
    shown; another one's if that is where it failed. Signals are passed on to all, who save their state; after one it is
    128 and its number. The processes end when this one does, however it ends.
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
    logging.disable(logging.ERROR)  # one message, not torchrun's dozens of lines
    before = {number: signal.getsignal(number) for number in SIGNALS}
    # At any free port. c10d, torchrun's own way to one, takes seconds: it reads the stack's sources for its log.
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
            # The processes that failed, the first to do so first; then those that torchrun ended for it.
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
    """Starts `hf-mlnmt`, its output going to the end of a file.

    It does not get what the terminal sends (Ctrl-C); it ends, as by SIGTERM, when this process is gone.
    """
    own = {**os.environ, **environment, PARENT: str(os.getpid())}
    with log.open("ab") as file:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        command = [sys.executable, "-m", "hf_mlnmt", *arguments]
        return subprocess.Popen(command, env=own, start_new_session=True, **streams)


def end_with_parent() -> bool:
    """Ends a process that `run_in_processes` or `start_alone` started with its starter; returns whether it is one."""
    if (parent := variable(PARENT, int)) is None:
        return False
    del os.environ[PARENT]

    def watch() -> None:
        while os.getppid() == parent:  # on Windows getppid() never changes, so this never ends the process
            time.sleep(LOOK_AFTER)
        os.kill(os.getpid(), signal.SIGTERM)  # its handler saves the state
        time.sleep(PATIENCE)
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


def end_after_the_first() -> NoReturn:
    """Ends this process, which lost the others, when torchrun has seen the one that ended first."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stderr.flush()
    time.sleep(AFTER_THE_FIRST)
    os._exit(LOST)  # closing the group would wait for the others, and ending without it may abort


def lost_the_others(error: BaseException) -> bool:
    """Returns whether an error only says that another process of the group is gone."""
    text = str(error).lower()
    signs = ["connection closed by peer", "connection reset by peer", "connection refused", "broken pipe"]
    signs += ["remote process exited", "socket timeout", "ncclremoteerror", "timed out waiting"]
    return isinstance(error, RuntimeError | OSError) and any(sign in text for sign in signs)


def _explain(rank: int, count: int, code: int, log: Path | None) -> None:
    """Prints the message for a process that failed without printing one."""
    if code < 0:
        name = signal.Signals(-code).name
        memory = " The system does that when memory runs out." if name == "SIGKILL" else ""
        print(
            f"error: process {rank} of {count} was ended by {name}, and the others with it.{memory} "
            "The last checkpoint is kept: the same command goes on from there.",
            file=sys.stderr,
        )
    if code == LOST:
        print(
            f"error: process {rank} of {count} lost the connection to the others, and none of them said why. The last "
            "checkpoint is kept: the same command goes on from there.",
            file=sys.stderr,
        )
    if log and (code > 0 or -code == signal.SIGABRT):  # a process that was told to end says nothing
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr, end="")


def _code(returncode: int) -> int:
    """Returns the exit code of a shell: 128 and the signal's number for a process that a signal ended."""
    return 128 - returncode if returncode < 0 else returncode
