"""The group of processes of a training: joining it, waiting for the others for hours if need be, exchanging values.

The group that averages gradients gives up after 10 or 30 minutes: a process that is gone must be noticed. Work that the
others wait for (reading, encoding, translating) takes hours: for it there is a second group, on the CPU.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import REQUIRED, variable

T = TypeVar("T")
# How long processes wait for one another. The connection of a process that ends is closed at once; that of a machine
# without power is not, and only this limit ends the waiting.
PATIENCE: dict[str, timedelta | None] = {"once": timedelta(days=30), "step": None}
LOOK_AFTER = 0.05  # seconds between two looks whether all processes have come
TOLD_AFTER = 10.0  # seconds of waiting for the group until a message says so


def join_group(seconds: float | None = None) -> PartialState:
    """Joins the processes that torchrun, accelerate, Slurm's srun or Ray started; without any, is the only one.

    seconds: how long a process waits for the others in a step (`ddp_timeout`); unless given, PyTorch's 10 or 30
        minutes.
    """
    _take_place_in_slurm()
    timeout = {} if seconds is None else {"timeout": timedelta(seconds=seconds)}
    PATIENCE["step"] = timeout.get("timeout")
    with _meeting(PATIENCE["step"]):
        return PartialState(cpu=not torch.accelerator.is_available(), **timeout)


@contextmanager
def _meeting(patience: timedelta | None) -> Iterator[None]:
    """Runs a block that joins the processes of torchrun's variables; prints if it waits for long. Raises: UserError."""
    for name in (names := ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        if variable(name, str if name == "MASTER_ADDR" else int) is None:
            os.environ.pop(name, None)  # torch and accelerate fail on an empty variable with a traceback
    if not {"RANK", "WORLD_SIZE"} & os.environ.keys():
        yield
        return
    rank, size = (variable(name, int, REQUIRED) for name in names[:2])
    if rank >= size:
        raise UserError(f"the environment variable RANK is {rank} of WORLD_SIZE {size} processes, counted from 0.")
    if size == 1:
        yield
        return
    place = variable("MASTER_ADDR", str, REQUIRED), variable("MASTER_PORT", int, REQUIRED)
    try:
        socket.getaddrinfo(place[0], place[1].to_bytes(2) and place[1])
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(
            f"MASTER_ADDR {place[0]}, MASTER_PORT {place[1]}: no such place of the first process is known here "
            f"({error}). Name a machine that this one reaches."
        ) from error
    minutes = (patience or (timedelta(minutes=10 if torch.accelerator.is_available() else 30))).total_seconds() / 60
    what = f"process {rank}: {size} processes are to meet at {place[0]}, port {place[1]}"
    said = threading.Timer(TOLD_AFTER, print, [f"{what}; waiting, for {minutes:g} minutes"], {"file": sys.stderr})
    said.daemon = True
    said.start()
    try:
        yield
    except torch.distributed.DistError as error:
        raise UserError(
            f"{what}, and did not within {minutes:g} minutes. See that each is started, with its own RANK from 0 to "
            f"{size - 1} and the same MASTER_ADDR and MASTER_PORT ({str(error).splitlines()[0][:200]})."
        ) from error
    finally:
        said.cancel()


def _take_place_in_slurm() -> None:
    """Sets torch's variables from those of srun: the number of tasks, this one's rank, the first one's address."""
    # Only where srun started this process as a step: in the batch script itself a job of two tasks has one process.
    if variable("RANK", int) is not None or (tasks := variable("SLURM_STEP_NUM_TASKS", int, 1)) < 2:
        return
    numbers = ("SLURM_LOCALID", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID")
    here, rank, job, step = (variable(name, int, REQUIRED) for name in numbers)
    hosts = variable("SLURM_STEP_NODELIST", str, REQUIRED)
    hosts = re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", hosts)  # gpu[07-09,12],login1 becomes gpu07,login1
    if not (on_first := re.match(r"\d+", each := variable("SLURM_STEP_TASKS_PER_NODE", str, REQUIRED))):
        raise UserError(
            f"the environment variable SLURM_STEP_TASKS_PER_NODE is {each!r}, and 4(x2) or 4,3 was expected."
        )
    devices = torch.accelerator.device_count()
    own = {
        "RANK": rank,
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": here % devices if devices else here,  # with --gpus-per-task=1 each task sees one GPU
        "LOCAL_WORLD_SIZE": on_first[0],
        "MASTER_ADDR": hosts.partition(",")[0],
        "MASTER_PORT": 15000 + (job + step) % 10000,
        "OMP_NUM_THREADS": variable("SLURM_CPUS_PER_TASK", int, 1),
    }
    for name, value in own.items():
        os.environ[name] = variable(name) or str(value)


@functools.cache
def _group(what: str = "once") -> Any:
    return torch.distributed.new_group(backend="gloo", timeout=PATIENCE[what])


def _several() -> bool:
    return PartialState().num_processes > 1


def meet() -> None:
    """Waits until all processes call this, for hours if need be, handling signals; the first call makes the group."""
    if _several():
        waiting = torch.distributed.barrier(group=_group(), async_op=True)
        while not waiting.is_completed():
            time.sleep(LOOK_AFTER)
        waiting.wait()  # raises if another process has ended


def of_main(value: T) -> T:
    """Returns the value of the main process, in every process."""
    return of_all(value)[0]


def of_all(value: T) -> list[T]:
    """Returns the values of all processes by rank, in every process."""
    values = [value]
    if _several():
        meet()
        values = values * PartialState().num_processes
        torch.distributed.all_gather_object(values, value, group=_group())
    return values


def largest(value: int) -> int:
    """Returns the largest value of all processes: fast enough for every step, exchanged without the accelerator."""
    if not _several():
        return value
    there = torch.tensor(value)
    torch.distributed.all_reduce(there, torch.distributed.ReduceOp.MAX, group=_group("step"))
    return int(there)


@contextmanager
def together() -> Iterator[None]:
    """Runs a block in every process; a UserError in any ends all of them, with its message."""
    problem = ""
    try:
        yield
    except UserError as error:
        if not _several():
            raise
        problem = str(error)
    for rank, (host, said) in enumerate(of_all((socket.gethostname(), problem))):
        if said:
            raise UserError(said if rank == 0 else f"process {rank} on {host}: {said}")


@contextmanager
def main_first() -> Iterator[None]:
    """Runs a block in the main process, then in the others, which find its files; errors end all, as in `together`."""
    if others := PartialState().process_index > 0:
        with together():
            pass
    with together():
        yield
    if not others:
        with together():
            pass


def common(path: Path) -> Path:
    """Returns a path that the first process has made. Raises: UserError in all processes, if one does not see it."""
    with together():
        if not path.exists():
            what = "the first process has it, this one not. Put --output on a disk that all machines mount."
            raise UserError(f"{path}: {what}")
    return path


def check_same(values: Mapping[str, str]) -> None:
    """Raises UserError in all processes if one has another value than the first. values: name -> value."""
    (_, first), *_ = said = of_all((socket.gethostname(), values))
    for rank, (host, theirs) in enumerate(said):
        for name in {**first, **theirs}:
            if (value := theirs.get(name)) != first.get(name):
                raise UserError(
                    f"the processes would not train the same model: process {rank} on {host} has {name} {value}, and "
                    f"the first one {first.get(name)}. All need the same package versions, recipe and data, and one "
                    "output folder on a disk that all machines mount."
                )
