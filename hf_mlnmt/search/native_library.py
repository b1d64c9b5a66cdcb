"""search.c is compiled by the system's C compiler the first time that it is needed, and kept.

The compiler is `cc`, or what the variable CC names; it takes about two seconds. The library is kept in the user's
cache: `$HF_MLNMT_CACHE`, else `$XDG_CACHE_HOME/hf_mlnmt`, else `~/.cache/hf_mlnmt`. Without a compiler, or with
HF_MLNMT_NATIVE=0, a search calls PyTorch's operations, which compute the same; where the compiler is missing or fails,
a line of this file's logger says so.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from hf_mlnmt.files import cache_folder
from hf_mlnmt.made_from import Digest
from hf_mlnmt.products import processor

logger = logging.get_logger(__name__)

SOURCE = Path(__file__).with_name("search.c")
TYPES = {torch.float32: "float", torch.float64: "double"}
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
CHOICES = [  # the first that the compiler takes
    ["-march=native", "-mprefer-vector-width=512", "-fopenmp"],
    ["-march=native", "-fopenmp"],
    ["-march=native"],
    ["-fopenmp"],
    [],
]


def library(dtype: torch.dtype) -> Any:
    """The compiled functions for numbers of this type, or None."""
    if os.environ.get("HF_MLNMT_NATIVE", "1") == "0" or dtype not in TYPES:
        return None
    return _library(TYPES[dtype])


@cache
def _library(number: str) -> Any:
    compiler = shutil.which(shlex.split(os.environ.get("CC") or "cc")[0])
    if compiler is None or not SOURCE.is_file():
        logger.info("decoding: no C compiler, so PyTorch's operations are called one by one")
        return None
    try:
        functions: Any = ctypes.CDLL(str(_compiled(compiler, number)))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("decoding: search.c could not be compiled, PyTorch's operations are slower: %s", error)
        return None
    address, integer = ctypes.c_void_p, ctypes.c_long
    for name, result, arguments in (
        ("run", integer, [address, *[integer] * 4, address, integer, integer, address, integer]),
        ("pack", None, [integer, integer, address, address]),
        ("choose", None, [address, *[integer] * 5, address, integer, address, address, address, integer]),
        ("use_gemm", None, [address]),
        ("linear", integer, [*[integer] * 3, *[address] * 7, integer, integer]),
        ("int8_kind", integer, []),
        ("memory_for", integer, [integer] * 4),
        (
            "encode",
            None,
            [address, address, integer, integer, *[address] * 4, integer, address, integer, address, integer],
        ),
        ("search", integer, [address]),
        ("unchanged", integer, [integer, *[address] * 3]),
    ):
        function = getattr(functions, name)
        function.argtypes, function.restype = arguments, result
    functions.gemm = _gemm(number)
    functions.use_gemm(functions.gemm)
    return functions


def _gemm(number: str) -> int | None:
    """The address of the matrix product in PyTorch's own library (MKL or another BLAS); None where it exports none."""
    name = {"float": "sgemm_", "double": "dgemm_"}[number]
    for file in sorted(Path(torch.__file__).with_name("lib").glob("*torch_cpu.*")):
        try:
            return ctypes.cast(getattr(ctypes.CDLL(str(file)), name), ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def _compiled(compiler: str, number: str) -> Path:
    """The library in the cache; compiled now if it is not there for this source, compiler and processor.

    Its name ends with the hash of its content: a file that was cut off or damaged would end the process that loads it.
    """
    made_from = Digest("sha256").file(SOURCE)
    for part in (compiler, str(Path(compiler).stat().st_mtime_ns), number, *FLAGS, str(CHOICES), processor()):
        made_from.text(f"{part}\0")
    folder, stem = cache_folder(), f"search_{number}_{made_from.hex()[:16]}_"
    for there in folder.glob(f"{stem}*.so"):
        if there.name == stem + _hash(there):
            return there
        there.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "made.so"
        for choice in CHOICES:
            command = [compiler, *FLAGS, *choice, f"-DREAL={number}", "-o", str(made), str(SOURCE), "-lm"]
            outcome = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if outcome.returncode == 0:
                return made.replace(folder / (stem + _hash(made)))
    raise OSError(outcome.stderr.strip()[-500:])


def _hash(path: Path) -> str:
    return f"{Digest('sha256').file(path).hex()[:16]}.so"


def pointer(tensor: torch.Tensor | None) -> int | None:
    """The address of a tensor's first number, or None."""
    return None if tensor is None else tensor.data_ptr()
