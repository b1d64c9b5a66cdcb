"""Measures the machine's memory and cores; sets the C library to keep freed memory, or to return it to the system."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

from hf_mlnmt.common.keys import variable

GIB = 2**30

_kept = False  # whether keep_memory() has succeeded


def cores() -> int:
    """Counts the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory() -> bool:
    """Sets glibc to keep freed memory, up to 2 GiB, instead of returning it to the system; returns whether it did.

    glibc returns large blocks when they are freed; the next step of a training then waits until the system has zeroed
    the same pages: a seventh of the processor time with three auxiliary decoders. The price: with batches of twelve
    lengths peak memory was a quarter higher. Done on Linux with glibc, unless MALLOC_* or GLIBC_TUNABLES are set.
    """
    global _kept
    if platform.libc_ver()[0] != "glibc":
        return False
    if any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in variable("GLIBC_TUNABLES", str, ""):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {-3: 2**28, -1: 2**31 - 1, -2: 2**26}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of malloc.h
    accepted = [mallopt(name, value) == 1 for name, value in settings.items()]
    _kept |= all(accepted)
    return all(accepted)


def return_memory() -> None:
    """Returns freed memory from glibc to the system; does nothing without glibc, or after `keep_memory` has succeeded.

    To be called after a large buffer was replaced by a larger one: buffers that grow in turn leave gaps in the C
    library's memory, up to twice the memory in use.
    """
    if _kept or os.name != "posix":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def peak_memory() -> int:
    """Returns the most bytes of memory that this process has held at once."""
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return psutil.Process().memory_info().peak_wset
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 2**10


def memory_of_machine(on_cpu: bool) -> float:
    """Returns the bytes of memory of the GPU or, `on_cpu` or without one, of the machine or its container's limit."""
    import psutil
    import torch

    if not on_cpu and torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory
    total = psutil.virtual_memory().total
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = Path("/sys/fs/cgroup") / name
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            total = min(total, int(text))
    return total
