"""search.c compiled and called: the inner loops of a search on a CPU without PyTorch's price for every operation.

Compiled by the system's C compiler (`cc`, or what the variable CC names) the first time that it is wanted, which takes
about two seconds, and kept in the user's cache: `$HF_MLNMT_CACHE`, else `$XDG_CACHE_HOME/hf_mlnmt`, else
`~/.cache/hf_mlnmt`. Without a compiler, or with HF_MLNMT_NATIVE=0, search_step.py and search.py
call PyTorch's operations, which compute the same; a line of this file's logger says so.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

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
OWN, CROSS, FEED_FORWARD = range(3)
PANEL = 64  # outputs of a weight that lie together, as in search.c
ROWS = 96  # of a task: what they need stays in the processor's cache
FEW_ROWS = 6  # too few to share out among threads


class Unit(ctypes.Structure):
    """`Unit` of search.c."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("kind", "pre")),
        *((name, ctypes.c_double) for name in ("eps", "scaling")),
        *((x, ctypes.c_void_p) for x in ("norm_weight", "norm_bias", "weight_in", "bias_in", "weight_out", "bias_out")),
        *((name, ctypes.c_long) for name in ("inner", "heads")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_long) for name in ("room", "slots", "start")),
        ("mask", ctypes.c_void_p),
        ("mask_rows", ctypes.c_long),
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
        functions = ctypes.CDLL(str(_compiled(compiler, number)))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("decoding: search.c could not be compiled, PyTorch's operations are slower: %s", error)
        return None
    pointer, number_of = ctypes.c_void_p, ctypes.c_long
    functions.run.argtypes = [pointer, *[number_of] * 4, pointer, number_of, number_of, pointer, number_of]
    functions.run.restype = number_of
    functions.pack.argtypes = [number_of, number_of, pointer, pointer]
    functions.pack.restype = None
    functions.choose.argtypes = [pointer, *[number_of] * 5, pointer, number_of, pointer, pointer, pointer, number_of]
    functions.choose.restype = None
    return functions


def _compiled(compiler: str, number: str) -> Path:
    """The library in the cache; compiled now if it is not there for this source, compiler and processor."""
    key = hashlib.sha256(SOURCE.read_bytes())
    for part in (compiler, str(Path(compiler).stat().st_mtime_ns), number, *FLAGS, str(CHOICES), processor()):
        key.update(part.encode() + b"\0")
    folder = cache_folder()
    target = folder / f"search_{number}_{key.hexdigest()[:16]}.so"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "made.so"
        for choice in CHOICES:
            command = [compiler, *FLAGS, *choice, f"-DREAL={number}", "-o", str(made), str(SOURCE), "-lm"]
            outcome = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if outcome.returncode == 0:
                made.replace(target)
                return target
    raise OSError(outcome.stderr.strip()[-500:])


def cache_folder() -> Path:
    """Where compiled code is kept."""
    own = os.environ.get("HF_MLNMT_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(own) if own else base / "hf_mlnmt"


def processor() -> str:
    """What code made for this processor depends on: its name and the instructions it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    known = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join([platform.platform(), platform.processor(), *sorted(known)])


class NativeUnits:
    """Sublayers that follow each other and are computed by one call of `run`."""

    def __init__(self, functions: Any):
        self.functions = functions
        self.units: list[Unit] = []
        self.slots: list[int] = []  # of each unit, where its keys and values lie in the cache
        self.kept: list[Any] = []  # what the units point to
        self.room = torch.empty(0)  # for the functions to compute in
        self.array: Any = None

    def add(
        self, sublayer: Any, kind: int, into: Any, out: Any, heads: int = 1, scaling: float = 1.0, slot: int = 0
    ) -> None:
        """A sublayer with its first and its last product."""
        norm = sublayer.layer_norm
        unit = Unit(kind=kind, pre=bool(sublayer.pre), eps=norm.eps, inner=into.out_features)
        unit.heads, unit.scaling = heads, scaling
        unit.norm_weight, unit.norm_bias = self.keep(norm.weight), self.keep(norm.bias)
        unit.weight_in, unit.bias_in = self.packed(into.weight), self.keep(into.bias)
        unit.weight_out, unit.bias_out = self.packed(out.weight), self.keep(out.bias)
        self.units.append(unit)
        self.slots.append(slot)

    def packed(self, weight: Tensor) -> int | None:
        """A weight (outputs, inputs) as search.c reads it: panels (outputs / PANEL rounded up, inputs, PANEL)."""
        outputs, inputs = weight.shape
        panels = weight.new_zeros(-(-outputs // PANEL), inputs, PANEL)
        self.functions.pack(outputs, inputs, weight.contiguous().data_ptr(), panels.data_ptr())
        return self.keep(panels)

    def keep(self, tensor: Tensor | None) -> int | None:
        """Where the numbers are; they stay there."""
        self.kept.append(tensor)
        return pointer(tensor)

    def __call__(self, states: Tensor, place: Any) -> Tensor:
        """states (sentences x width, d_model) -> the same, in the same memory."""
        if self.array is None:
            self.array = (Unit * len(self.units))(*self.units)
        for unit, slot in zip(self.array, self.slots):
            if unit.kind == OWN:
                cache, mask = place.cache.own[slot], place.visible.tensor
                unit.start = cache.extend(place.width)
                keys, values, unit.slots = cache.key_buffer, cache.value_buffer, mask.shape[-1]
            elif unit.kind == CROSS:
                cache, mask = place.cache.source[slot], place.source_mask.tensor
                keys, values, unit.slots = cache.keys, cache.values, mask.shape[-1]
            else:
                continue
            unit.keys, unit.values, unit.room = keys.data_ptr(), values.data_ptr(), values.shape[2]
            unit.mask, unit.mask_rows = mask.data_ptr(), mask.shape[2]
        sentences, threads = len(states) // place.width, torch.get_num_threads()
        rows = max(FEW_ROWS, min(ROWS, -(-len(states) // threads)))
        sizes = len(self.units), sentences, place.width, states.shape[1]
        arguments = self.array, *sizes, states.data_ptr(), rows, threads
        while missing := self.functions.run(*arguments, self.room.data_ptr(), self.room.numel()):
            self.room = states.new_empty(missing)
        return states


def choose(logits: Tensor, running: Tensor | None, count: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """The `count` best of running + log_softmax(logits): scores, beams, tokens, each (sentences, count), best first.

    Args:
        logits: (sentences, beams, vocabulary), float32.
        running: (sentences, beams), float32; None: the largest logits are wanted, and the scores mean nothing.

    Returns None where there is no compiled code for it.
    """
    functions = library(logits.dtype) if logits.dtype == torch.float32 and logits.device.type == "cpu" else None
    sentences, width, vocabulary = logits.shape
    if functions is None or logits.stride(2) != 1 or count > width * vocabulary:
        return None
    scores = logits.new_empty(sentences, count)
    beams, tokens = torch.empty(2, sentences, count, dtype=torch.long).unbind()
    where = logits.data_ptr(), logits.stride(0), logits.stride(1), sentences, width, vocabulary
    running = None if running is None else running.contiguous()
    found = scores.data_ptr(), beams.data_ptr(), tokens.data_ptr()
    functions.choose(*where, pointer(running), count, *found, torch.get_num_threads())
    return scores, beams, tokens


def pointer(tensor: Tensor | None) -> int | None:
    """Where the numbers are."""
    return None if tensor is None else tensor.data_ptr()
