"""Products of plain linear layers on a CPU: by PyTorch's own library (MKL on x86), or by oneDNN.

PyTorch contains both. On some processors one of the two takes half of the other's time. So a product of few rows (up to
15), one of many, and one of a training, are timed once with both, the last in bfloat16 too, in a tenth of a second, and
the result is stored in the cache folder for this processor, release of torch and number of threads.
HF_MLNMT_MATMUL=mkl or onednn overrides it, and so does `using`, for a resumed training. Gradients of weights are
PyTorch's: oneDNN computes them no faster.

Models call `project` through a slot (modeling/linear.py), the search calls `packed`. For oneDNN a weight is laid out
anew once (`kept`). Both libraries sum in different orders. For other layers than plain ones in float32, and for small
products, these functions return None: the caller uses PyTorch. The operators are those that torch.compile calls;
without them in the build of PyTorch, its own library computes all.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from timeit import timeit
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import cache_folder, read_json, write_json
from hf_mlnmt.common.keys import variable
from hf_mlnmt.common.made_from import Digest
from hf_mlnmt.modeling.matrices import is_plain

LARGEST = 2**25  # most numbers in a weight of which a copy is kept: 128 MiB in float32
KINDS, BFLOAT16 = ("few", "many", "training"), "bfloat16"
VARIABLE, LIBRARIES = "HF_MLNMT_MATMUL", ("mkl", "onednn")
FEW = 15  # most rows of a product of the kind "few"
LEAST = 2**20  # fewest multiplications of a product for which a call of oneDNN, microseconds longer, is worth its time
TIMES = 16  # as many times LEAST in a training, where the call is one of an autograd function in Python
ROWS = {"few": 5, "many": 64, "training": 256, BFLOAT16: 256}  # rows of the products that are timed
INPUTS, OUTPUTS, ROUNDS = 512, 1024, 8
GAIN = 1.03  # the ratio of speeds from which on oneDNN is chosen: smaller ones are noise of the clock
_USED: list[frozenset[str]] = []  # kinds set by `using`, the innermost last
_MEASURED: dict[int, dict[str, Any]] = {}  # results of `_measured` by number of threads
_LOCK = threading.Lock()
_OF_THREAD = threading.local()  # `padded`: see with_padded


def packed(
    module: nn.Module,
    states: Tensor,
    activation: str = "none",
    onto: Tensor | None = None,
    layouts: dict[nn.Module, Tensor] | None = None,
) -> Tensor | None:
    """Computes the product of a plain layer without gradients by oneDNN where that is faster; else returns None.

    Args:
        states: (rows, inputs). onto: (rows, outputs), added to the product; not together with an activation.
        activation: "none", "relu" or "swish", applied to the product.
        layouts: a dictionary of laid-out weights, read and filled, of a caller whose weights do not change meanwhile.
    """
    weight: Any = module.weight
    if (
        not _is_for_onednn(states, weight)
        or states.shape[0] == 1
        or ("few" if states.shape[0] <= FEW else "many") not in chosen()
        or weight.numel() > LARGEST
        or not weight.is_contiguous()
    ):
        return None
    laid_out = None if layouts is None else layouts.get(module)
    if laid_out is None:
        laid_out = kept(module, "onednn", torch.ops.mkldnn._reorder_linear_weight)
        if layouts is not None:
            layouts[module] = laid_out
    bias: Any = module.bias
    if onto is not None:
        return torch.ops.mkldnn._linear_pointwise.binary(states, onto, laid_out, bias, "add")
    return torch.ops.mkldnn._linear_pointwise(states, laid_out, bias, activation, [], "")


def takes_few(module: nn.Module) -> bool:
    """Tells whether oneDNN computes this layer for few rows."""
    return isinstance(module, nn.Linear) and module.weight.dtype == torch.float32 and "few" in chosen()


def project(module: Any, states: Tensor) -> Tensor | None:
    """Computes module(states), states (..., inputs), and its gradients; None where the caller must call the module."""
    hooks = module._backward_hooks or module._backward_pre_hooks or _has_any_global_hook()
    if hooks or not is_plain(module):
        return None
    weight, padded = getattr(_OF_THREAD, "padded", None) or (None, None)
    if padded is not None and weight is module.weight and not torch.is_autocast_enabled(states.device.type):
        outputs, bias = len(weight), module.bias
        bias = None if bias is None else nn.functional.pad(bias, (0, len(padded) - outputs))
        return nn.functional.linear(states, padded, bias)[..., :outputs]
    if not _is_for_onednn(states, module.weight):
        return None
    rows, products = states.reshape(-1, states.shape[-1]), None
    if not torch.is_grad_enabled() and not module.training:
        products = packed(module, rows)
    elif rows.numel() * len(module.weight) >= TIMES * LEAST and "training" in chosen():
        products = _Linear.apply(rows, module.weight, module.bias)
    return None if products is None else products.view(*states.shape[:-1], len(module.weight))


@contextmanager
def with_padded(weight: Tensor, padded: Tensor) -> Iterator[None]:
    """Context manager: in this thread layers with this weight multiply by `padded`, which has more rows, of zeros.

    On a GPU products with a number of outputs that is not a multiple of 8 take two to three times as long.
    """
    _OF_THREAD.padded = weight, padded
    try:
        yield
    finally:
        _OF_THREAD.padded = None


def _multiply(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """A linear layer of states (rows, inputs) by oneDNN, and the states' gradient where that is not differentiated."""

    @staticmethod
    def forward(ctx, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        return _multiply(states, weight, bias)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (states, weight), needed = ctx.saved_tensors, ctx.needs_input_grad
        by_states = None
        if needed[0]:
            by_states = gradient @ weight if torch.is_grad_enabled() else _multiply(gradient, weight.t())
        by_weight = gradient.t() @ states if needed[1] else None
        return by_states, by_weight, gradient.sum(0) if needed[2] else None


def _is_for_onednn(states: Tensor, weight: Tensor) -> bool:
    """Tells whether a product is in float32 on a CPU, large enough, and not traced, compiled or under autocast."""
    return (
        not torch.jit.is_tracing()
        and {type(states), type(weight)} <= {Tensor, nn.Parameter}
        and states.dtype == weight.dtype == torch.float32
        and states.device.type == weight.device.type == "cpu"
        and states.numel() * weight.shape[0] >= LEAST
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and _get_current_dispatch_mode() is None
    )


def chosen() -> frozenset[str]:
    """Returns the kinds of products that oneDNN computes here. Raises: UserError for a bad HF_MLNMT_MATMUL."""
    if library := variable(VARIABLE, LIBRARIES):
        return frozenset(KINDS if library == "onednn" and has_onednn() else ())
    return _USED[-1] if _USED else frozenset(measured()["onednn"])


@contextmanager
def using(kinds: frozenset[str]) -> Iterator[None]:
    """Context manager: oneDNN computes these kinds, whatever was measured, unless HF_MLNMT_MATMUL is set."""
    _USED.append(kinds if has_onednn() else frozenset())
    try:
        yield
    finally:
        _USED.pop()


def has_onednn() -> bool:
    """Tells whether this build of PyTorch has oneDNN's operators."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def measured() -> dict[str, Any]:
    """Returns the speeds measured for this number of threads, from the cache folder or measured now: processor, torch,
    threads; gigaflops: kind -> [PyTorch's, oneDNN's], and "bfloat16" -> [float32's, bfloat16's]; onednn: the kinds in
    which oneDNN is faster."""
    threads = torch.get_num_threads()
    if threads not in _MEASURED:
        with _LOCK:
            if threads not in _MEASURED:
                _MEASURED[threads] = _measured(threads)
    return _MEASURED[threads]


def _measured(threads: int) -> dict[str, Any]:
    mark = Digest("sha256").text(f"{processor()}\0{torch.__version__}\0{threads}\0{ROWS}{INPUTS}{OUTPUTS}").hex()[:16]
    path = cache_folder() / f"products_{mark}.json"
    try:
        if found := read_json(path, {"gigaflops": {...: [float, float]}, "onednn": [str]}):
            return found
    except (OSError, UserError):  # no readable file of earlier measurements: measure again below
        pass
    rates = _timed() if has_onednn() else {}
    faster = [kind for kind, (own, onednn) in rates.items() if kind in KINDS and onednn > GAIN * own]
    found = _machine() | {"gigaflops": rates, "onednn": faster}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    except (OSError, UserError):  # not stored: the next process measures again
        pass
    return found


@torch.inference_mode()
def _timed() -> dict[str, list[float]]:
    """Measures the two speeds of each kind (`measured`), in turn; returns the best of several rounds, in Gflop/s."""
    rates, weight = {}, torch.ones(OUTPUTS, INPUTS, dtype=torch.float32, device="cpu")
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight)
    for kind, rows in ROWS.items():
        states = torch.ones(rows, INPUTS, dtype=torch.float32, device="cpu")
        other = partial(_multiply, states, weight if kind == "training" else laid_out)
        if kind == BFLOAT16:
            other = partial(nn.functional.linear, states.bfloat16(), weight.bfloat16())
        both = partial(nn.functional.linear, states, weight), other
        # The time of this thread alone, so that other programs on a busy machine matter less.
        seconds = [[timeit(product, timer=time.thread_time, number=1) for product in both] for _ in range(ROUNDS + 1)]
        rates[kind] = [round(2e-9 * rows * INPUTS * OUTPUTS / min(turns), 1) for turns in zip(*seconds[1:])]
    return rates


def prefers_bfloat16() -> bool:
    """Tells whether a training's products are computed faster in bfloat16 than in float32, where that was measured."""
    rates = measured()["gigaflops"]
    return BFLOAT16 not in rates or rates[BFLOAT16][1] > max(rates["training"])


def record() -> dict[str, Any]:
    """Returns processor, torch, threads, and onednn: the kinds that oneDNN computes now, for records of runs."""
    return _machine() | {"onednn": [kind for kind in KINDS if kind in chosen()]}


def _machine() -> dict[str, Any]:
    return {"processor": processor_name(), "torch": torch.__version__, "threads": torch.get_num_threads()}


def processor_name() -> str:
    """Returns the processor's name by /proc/cpuinfo, with family and model, which tell its generation."""
    known = dict(line.split("\t", 1) for line in _cpuinfo() if "\t" in line)
    values = {name: known.get(name, "").strip(" \t:") for name in ("model name", "cpu family", "model")}
    if not values["model name"]:
        return platform.processor() or platform.machine()
    return f"{values['model name']} (family {values['cpu family']}, model {values['model']})"


def processor() -> str:
    """Returns a text on which code compiled for this processor depends: platform, name and instruction sets."""
    names = ("model name", "cpu family", "model\t", "flags", "Features", "CPU part")
    return "\n".join(
        [platform.platform(), platform.processor(), *sorted({x for x in _cpuinfo() if x.startswith(names)})]
    )


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


# The weight cache: weights in another layout, kept from one search to the next while module and weight stay the same.
# To lay out a large weight anew takes as long as some steps of a search. Every search checks whether the weight is
# unchanged: its address, its shape, PyTorch's count of in-place changes, and the numbers on its wrapped diagonal, which
# crosses every row and every column. This detects changes by an optimizer, by load_state_dict, and through `.data` of
# whole rows, columns or tensors; it may miss a change of single numbers through `.data`: call `forget()` after one.


class _Kept(NamedTuple):
    """A copy of a weight in another layout, and the marks of the weight by which a change is detected."""

    place: tuple[Any, ...]
    diagonal: Tensor
    made: Tensor

    def is_of(self, weight: Tensor) -> bool:
        """Returns whether the weight is unchanged since this copy was made."""
        place, diagonal = _marks_of(weight)
        return self.place == place and torch.equal(self.diagonal, diagonal)


_KEPT: WeakKeyDictionary[nn.Module, dict[str, _Kept]] = WeakKeyDictionary()
_FORGOTTEN = [0]  # number of calls of `forget`


def kept(module: Any, layout: str, make: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns make(module.weight), kept under the layout's name; made anew when the weight has changed. No copy is kept
    of a weight that is too large, not contiguous or no matrix."""
    weight = module.weight
    if weight.numel() > LARGEST or not weight.is_contiguous() or weight.dim() != 2:
        return make(weight)
    copy = _KEPT.get(module, {}).get(layout)
    if copy is None or not copy.is_of(weight):
        copy = _KEPT.setdefault(module, {})[layout] = _Kept(*_marks_of(weight), make(weight))
    return copy.made


def _marks_of(weight: Tensor) -> tuple[tuple[Any, ...], Tensor]:
    """Returns address, shape, dtype and count of changes of a matrix, and the numbers on its wrapped diagonal."""
    place = weight.data_ptr(), tuple(weight.shape), weight.dtype, changes_of(weight)
    return place, weight.detach().flatten()[_wrapped_diagonal(*weight.shape).to(weight.device)]


def changes_of(weight: Tensor) -> int:
    """Returns how often a weight was changed in place; -1 for an inference tensor, which has no such count."""
    return -1 if weight.is_inference() else weight._version


def kept_diagonals(modules: Iterable[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Returns for each valid copy of these modules' weights the weight, and the numbers on its wrapped diagonal.

    Copies made before a weight was changed are left out: no search uses them.
    """
    copies: list[tuple[Any, _Kept]] = [(part.weight, copy) for part in modules for copy in _KEPT.get(part, {}).values()]
    return [(weight, copy.diagonal) for weight, copy in copies if copy.is_of(weight)]


def forget() -> None:
    """Drops all kept copies of weights."""
    _KEPT.clear()
    _FORGOTTEN[0] += 1


def times_forgotten() -> int:
    """Returns the number of calls of `forget`: copies that a caller holds are invalid when it has changed."""
    return _FORGOTTEN[0]


@cache
def _wrapped_diagonal(rows: int, columns: int) -> Tensor:
    """Returns the indices, in a flattened matrix, of its wrapped diagonal, which crosses every row and column."""
    steps = torch.arange(max(rows, columns))
    return steps % rows * columns + steps % columns
