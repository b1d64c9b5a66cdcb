"""Agreements between the processes of a training beside its steps, however long one takes and wherever they run.

The group that averages gradients gives up after 10 or 30 minutes: a process that is gone must be noticed. What is done
once, while the others wait (reading, encoding, translating), takes hours, so it has a group of its own on the CPU.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed
from accelerate import PartialState

from hf_mlnmt.errors import UserError

T = TypeVar("T")
PATIENCE = timedelta(days=30)  # a process that ends is noticed at once, by its connection


@functools.cache
def _group() -> Any:
    return torch.distributed.new_group(backend="gloo", timeout=PATIENCE)


def _several() -> bool:
    return PartialState().num_processes > 1


def meet() -> None:
    """Waits for all processes, for hours if need be; once before such work too, which makes the group."""
    if _several():
        torch.distributed.barrier(group=_group())


@contextmanager
def main_first() -> Iterator[None]:
    """Lets the main process go through the block first, then the others, all at once."""
    main = PartialState().is_main_process
    meet()
    if not main:
        meet()
    yield
    if main:
        meet()


def of_main(value: T) -> T:
    """Returns the main process's value, on all of them."""
    values = [value]
    if _several():
        torch.distributed.broadcast_object_list(values, src=0, group=_group(), device=torch.device("cpu"))
    return values[0]


def of_all(value: T) -> list[T]:
    """Returns every process's value by rank, on all of them."""
    values = [value]
    if _several():
        values = values * PartialState().num_processes
        torch.distributed.all_gather_object(values, value, group=_group())
    return values


def check_all(path: Path, problem: str | None) -> None:
    """Asks every process what is wrong with a file or folder of the run, and ends all of them if something is."""
    said = of_all((socket.gethostname(), problem))
    if bad := [f"  process {rank} on {host}: {what}" for rank, (host, what) in enumerate(said) if what]:
        raise UserError(
            f"{path}: the first process goes on with it, and not every process has it:\n" + "\n".join(bad) + "\n"
            "Put the run's folder on a disk that all machines mount, or copy it from the first machine to the others "
            "(all of it, each time that a training goes on), and run the same command again."
        )
