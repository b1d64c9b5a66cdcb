"""Calls of search.c: the inner loops of a search on a CPU, without PyTorch's overhead for each operation.

The system's C compiler, `cc` or the command in the variable CC, compiles search.c at its first use, in about two
seconds. The library is kept in the user's cache: `$HF_MLNMT_CACHE`, else `$XDG_CACHE_HOME/hf_mlnmt`, else
`~/.cache/hf_mlnmt`. Without a compiler, or with HF_MLNMT_NATIVE=0, a search calls PyTorch's operations, which compute
the same; where the compiler is missing or fails, this file's logger reports it.
"""

import ctypes
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from hf_mlnmt.common.files import cache_folder
from hf_mlnmt.common.keys import variable
from hf_mlnmt.common.made_from import Digest
from hf_mlnmt.common.matmul_backends import LARGEST, kept, processor

logger = logging.get_logger(__name__)

C_FILE = Path(__file__).with_name("search.c")
TYPES = {torch.float32: "float", torch.float64: "double"}
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
CHOICES = [  # the first set of options that the compiler accepts is used
    # By default GCC fuses no multiply-adds of a single row on AMD's processors: sums would differ from a batch's.
    ["-march=native", "-mprefer-vector-width=512", "-fopenmp", "--param=avoid-fma-max-bits=0"],
    ["-march=native", "-mprefer-vector-width=512", "-fopenmp"],
    ["-march=native", "-fopenmp"],
    ["-march=native"],
    ["-fopenmp"],
    [],
]
PANEL = 64  # outputs in a panel of a packed weight, as in search.c
SELF_ATTENTION, SOURCE_ATTENTION, FEED_FORWARD, SOURCE, STATE = range(5)  # kinds of sublayers, as in search.c
PACKED, TRANSPOSED, AS_IT_LIES = range(3)  # memory layouts of a weight, as in search.c
RELU, SWISH = range(2)  # activations, as in search.c
ROWS = 96  # most rows in a thread's task: their states fit into the processor's cache
LARGE_ROWS = 512  # most rows in a task where weights are large: each task reads all weights once
SMALL = 2**18  # largest weight (in numbers) that compiled code multiplies as fast as a library
FEW_ROWS = 6  # fewest rows in a task: fewer are not divided among threads


def declared() -> tuple[dict[str, Any], dict[str, tuple[Any, list[Any]]]]:
    """Reads search.c's text; returns its structures as ctypes classes, and each function's types of result and
    arguments."""
    text = re.sub(r"/\*.*?\*/", "", C_FILE.read_text(encoding="utf-8"), flags=re.DOTALL)
    kinds: dict[str, Any] = {"long": ctypes.c_long, "double": ctypes.c_double}
    for body, name in re.findall(r"typedef struct \{([^}]*)\} (Rounded|Unit|Stack|Search);", text):
        fields = []
        for line in body.split(";")[:-1]:
            kind, names = re.sub(r"\b(const|signed|unsigned) ", "", line).split(maxsplit=1)
            for field in names.split(","):
                fields.append((field.strip(" *"), ctypes.c_void_p if "*" in field else kinds[kind]))
        kinds[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    types = {}
    for result, name, arguments in re.findall(r"^(long|void) (\w+)\(([^)]*)\)", text, re.MULTILINE):
        of_arguments = [ctypes.c_void_p if "*" in part else ctypes.c_long for part in arguments.split(",")]
        types[name] = kinds.get(result), [] if arguments == "void" else of_arguments
    return kinds, types


STRUCTURES, FUNCTIONS = declared()
Rounded, Unit = STRUCTURES["Rounded"], STRUCTURES["Unit"]


class NativeUnits:
    """A sequence of sublayers (units), all computed in one call of search.c's `run`."""

    def __init__(self, functions: Any, large: int = TRANSPOSED):
        """Starts an empty sequence; `large`: the memory layout of large weights. PACKED is fastest for few rows."""
        self.functions, self.large = functions, large
        self.units: list[Any] = []
        self.reads_much = False  # whether some weight is large
        self.slots: list[int] = []  # for each unit the index of its cache layer
        self.held: list[Any] = []  # tensors to whose memory the units point, kept alive
        self.scratch = torch.empty(0)  # working memory of `run`
        self.array: Any = None

    def add(
        self, sublayer: Any, kind: int, into: Any, out: Any, heads: int, scaling: float, slot: int, activation: int
    ) -> None:
        """Appends a sublayer to the units: `kind`, its norm, its first (`into`) and last (`out`) linear layer; `slot`:
        the index of its cache layer."""
        norm = sublayer.layer_norm
        inner = into.out_features + (out.out_features if kind == STATE else 0)
        unit = Unit(kind=kind, pre=bool(sublayer.pre), eps=norm.eps, inner=inner)
        unit.heads, unit.scaling, unit.activation = heads, scaling, activation
        unit.norm_weight, unit.norm_bias = self.hold(norm.weight), self.hold(norm.bias)
        unit.bias_in, unit.bias_out = self.hold(into.bias), self.hold(out.bias)
        unit.weight_in, unit.rounded_in, unit.plain_in = self.packed(into)
        unit.weight_out, unit.rounded_out, unit.plain_out = self.packed(out)
        self.units.append(unit)
        self.slots.append(slot)

    def packed(self, module: Any) -> tuple[int | None, Any, int]:
        """Returns a weight as search.c reads it: address (None in int8), int8 weight (else empty), memory layout."""
        rounded = hasattr(module, "rounded")  # an Int8Linear, which int8.py makes
        size = (module.rounded if rounded else module.weight).numel()
        self.reads_much = self.reads_much or size > SMALL
        if rounded:
            numbers, sums = module.pack()
            return None, Rounded(self.hold(numbers), self.hold(module.scales), self.hold(sums)), PACKED
        if size > (LARGEST if self.large == PACKED else SMALL) and self.functions.gemm:
            if self.large != TRANSPOSED:
                return self.hold(module.weight.contiguous()), Rounded(), AS_IT_LIES
            return self.hold(kept(module, "transposed", transposed)), Rounded(), TRANSPOSED
        return self.hold(kept(module, "panels", self.pack)), Rounded(), PACKED

    def pack(self, weight: Tensor) -> Tensor:
        """Packs a weight (outputs, inputs) into panels (outputs / PANEL rounded up, inputs, PANEL)."""
        outputs, inputs = weight.shape
        panels = weight.new_zeros(-(-outputs // PANEL), inputs, PANEL)
        rows = weight.contiguous()  # kept in a variable until `pack` has read it: it may be a copy
        self.functions.pack(outputs, inputs, rows.data_ptr(), panels.data_ptr())
        return panels

    def hold(self, tensor: Tensor | None) -> int | None:
        """Keeps a tensor alive, and returns the address of its first number (None for None)."""
        self.held.append(tensor)
        return pointer(tensor)

    def __call__(self, states: Tensor, width: int, cache: Any, history_mask: Tensor, source_mask: Tensor) -> Tensor:
        """Applies all units to the states (sentences x width, d_model), in place, and returns them."""
        if self.array is None:
            self.array = (Unit * len(self.units))(*self.units)
        for unit, slot in zip(self.array, self.slots):
            if unit.kind == SELF_ATTENTION:
                storage, mask = cache.target_layers[slot].storage, history_mask
                unit.start = storage.extend(width)
                keys, values = storage.key_buffer, storage.value_buffer
            elif unit.kind == SOURCE_ATTENTION:
                layer, mask = cache.source_layers[slot], source_mask
                keys, values = layer.keys, layer.values
            elif unit.kind == STATE:
                layer = cache.target_layers[slot]
                layer.states = keys = values = mask = layer.states.contiguous()
            else:
                continue
            if not keys.dtype == values.dtype == mask.dtype == states.dtype:  # else compiled code would overrun them
                types = ", ".join(str(tensor.dtype) for tensor in (keys, values, mask))
                raise TypeError(f"compiled code wants {states.dtype}, not keys, values and mask of {types}")
            unit.keys, unit.values, unit.capacity = keys.data_ptr(), values.data_ptr(), values.shape[2]
            unit.mask, unit.mask_rows, unit.slots = mask.data_ptr(), mask.shape[2], mask.shape[3]
        sentences, threads = len(states) // width, torch.get_num_threads()
        rows = max(FEW_ROWS, min(LARGE_ROWS if self.reads_much else ROWS, -(-len(states) // threads)))
        sizes = len(self.units), sentences, width, states.shape[1]
        arguments = self.array, *sizes, states.data_ptr(), rows, threads
        while missing := self.functions.run(*arguments, self.scratch.data_ptr(), self.scratch.numel()):
            self.scratch = states.new_empty(missing)
        return states


def best_continuations_natively(
    logits: Tensor, running: Tensor, count: int, normalized: bool = False
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Finds for each sentence the `count` best continuations of its beams by a token, ranked by running +
    log_softmax(logits); returns scores, beams and tokens (sentences, count), best first.

    Args:
        logits: (sentences, beams, vocabulary), float32; normalized: they are log P already.
        running: (sentences, beams), float32.

    Returns None where compiled code is missing, or does not support the tensors' type, device or layout.
    """
    functions = library(logits.dtype) if logits.dtype == torch.float32 and logits.device.type == "cpu" else None
    sentences, width, vocabulary = logits.shape
    if functions is None or logits.stride(2) != 1 or count > width * vocabulary:
        return None
    scores = logits.new_empty(sentences, count)
    beams, tokens = torch.empty(2, sentences, count, dtype=torch.long).unbind()
    where = logits.data_ptr(), logits.stride(0), logits.stride(1), sentences, width, vocabulary
    running = running.contiguous()
    best = scores.data_ptr(), beams.data_ptr(), tokens.data_ptr()
    functions.choose(*where, running.data_ptr(), normalized, count, *best, torch.get_num_threads())
    return scores, beams, tokens


def transposed(weight: Tensor) -> Tensor:
    """Returns a contiguous transposed copy of a weight (outputs, inputs): (inputs, outputs)."""
    return weight.t().contiguous()


def library(dtype: torch.dtype) -> Any:
    """Returns search.c's functions for a dtype; None for other than float32 and float64, or without a compiler."""
    if not variable("HF_MLNMT_NATIVE", bool, True) or dtype not in TYPES:
        return None
    return _library(TYPES[dtype])


@cache
def _library(number: str) -> Any:
    command = variable("CC", list) or ["cc"]
    if (compiler := shutil.which(command[0])) is None:
        logger.info("decoding: no C compiler, so PyTorch's operations are called one by one")
        return None
    try:
        functions: Any = ctypes.CDLL(str(_compiled([compiler, *command[1:]], number)))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("decoding: no compiled search, PyTorch's operations are slower: %s", error)
        return None
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(functions, name)
        function.argtypes, function.restype = arguments, result
    functions.gemm = _gemm(number)
    functions.use_gemm(functions.gemm)
    return functions


def _gemm(number: str) -> int | None:
    """Returns the address of the matrix product in PyTorch's library (MKL or another BLAS); None if it has none."""
    name = {"float": "sgemm_", "double": "dgemm_"}[number]
    for file in sorted(Path(torch.__file__).with_name("lib").glob("*torch_cpu.*")):
        try:
            return ctypes.cast(getattr(ctypes.CDLL(str(file)), name), ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def _compiled(compiler: list[str], number: str) -> Path:
    """Returns the library's file in the cache, compiled first if there is none for this source, compiler and processor.

    The file's name ends with the hash of its content, which is checked: loading a damaged library would crash.
    """
    made_from = Digest("sha256").file(C_FILE)
    for part in (*compiler, str(Path(compiler[0]).stat().st_mtime_ns), number, *FLAGS, str(CHOICES), processor()):
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
            command = [*compiler, *FLAGS, *choice, f"-DREAL={number}", "-o", str(made), str(C_FILE), "-lm"]
            outcome = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if outcome.returncode == 0:
                return made.replace(folder / (stem + _hash(made)))
    said = outcome.stderr.strip()[-500:] or "without a word"
    raise OSError(f"{' '.join(compiler)} ended with {outcome.returncode}, {said}")


def _hash(path: Path) -> str:
    return f"{Digest('sha256').file(path).hex()[:16]}.so"


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Returns the address of a tensor's first number; None for None."""
    return None if tensor is None else tensor.data_ptr()
