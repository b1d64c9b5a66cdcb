"""Products of plain linear layers without gradients on a CPU: by PyTorch's own library (MKL on x86), or by oneDNN.

PyTorch carries both. On some processors one of the two takes half of the other's time. So a product of few rows (up to
15) and one of many are timed once by both, in a tenth of a second, and the result kept in the cache folder for this
processor, release of torch and number of threads. HF_MLNMT_MATMUL=mkl or onednn decides instead, and `using` for a
training that goes on. Products of a training, whose speed is the same within a tenth, are left to PyTorch.

Models come here through a slot (modeling/linear.py), the search by `packed`. For oneDNN a weight is laid out anew once
(`kept`). Both libraries compute in float32 and add in another order. What is not a plain layer in float32, or is small,
is left to PyTorch: `None` says so. The operators are those that torch.compile calls; a build of PyTorch without them
has its own library alone.
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

LARGEST = 2**25  # numbers in a weight that a copy is kept of: 128 MiB in float32
KINDS = ("few", "many")
VARIABLE, LIBRARIES = "HF_MLNMT_MATMUL", ("mkl", "onednn")
FEW = 15  # rows
LEAST = 2**20  # multiplications of a product for which oneDNN's call, some microseconds longer, is worth while
ROWS = {"few": 5, "many": 64}  # of the products that are timed
INPUTS, OUTPUTS, ROUNDS = 512, 1024, 8
GAIN = 1.03  # how much faster oneDNN has to be: less is what the clock is wrong by
_USED: list[frozenset[str]] = []  # by `using`
_MEASURED: dict[int, dict[str, Any]] = {}  # by number of threads
_LOCK = threading.Lock()
_OF_THREAD = threading.local()  # `padded`: see with_padded


def packed(
    module: nn.Module,
    states: Tensor,
    activation: str = "none",
    onto: Tensor | None = None,
    layouts: dict[nn.Module, Tensor] | None = None,
) -> Tensor | None:
    """Computes the product of a plain layer without gradients by oneDNN where that is faster; None where it is not.

    Args:
        states: (rows, inputs). onto: (rows, outputs), which is added; not with an activation.
        activation: "none", "relu" or "swish", of the product.
        layouts: the weights as they were laid out, of a caller who knows that they do not change meanwhile.
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
    """Tells whether oneDNN is the faster one for this layer and few rows."""
    return isinstance(module, nn.Linear) and module.weight.dtype == torch.float32 and "few" in chosen()


def project(module: Any, states: Tensor) -> Tensor | None:
    """Computes module(states), states (..., inputs), without gradients; None where the module is to be called."""
    hooks = module._backward_hooks or module._backward_pre_hooks or _has_any_global_hook()
    if hooks or not is_plain(module):
        return None
    weight, padded = getattr(_OF_THREAD, "padded", None) or (None, None)
    if padded is not None and weight is module.weight and not torch.is_autocast_enabled(states.device.type):
        outputs, bias = len(weight), module.bias
        bias = None if bias is None else nn.functional.pad(bias, (0, len(padded) - outputs))
        return nn.functional.linear(states, padded, bias)[..., :outputs]
    if torch.is_grad_enabled() or module.training or not _is_for_onednn(states, module.weight):
        return None
    products = packed(module, states.reshape(-1, states.shape[-1]))
    return None if products is None else products.view(*states.shape[:-1], len(module.weight))


@contextmanager
def with_padded(weight: Tensor, padded: Tensor) -> Iterator[None]:
    """Context manager: in this thread a layer with this weight multiplies by `padded`, the weight with zeros behind.

    On a card products of a number of outputs that is no multiple of 8 take two to three times as long.
    """
    _OF_THREAD.padded = weight, padded
    try:
        yield
    finally:
        _OF_THREAD.padded = None


def _is_for_onednn(states: Tensor, weight: Tensor) -> bool:
    """Tells whether the product is of float32 on a CPU, large enough, and not traced, counted or under autocast."""
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
    """Lets oneDNN compute these kinds inside, whatever is faster; HF_MLNMT_MATMUL stays stronger."""
    _USED.append(kinds if has_onednn() else frozenset())
    try:
        yield
    finally:
        _USED.pop()


def has_onednn() -> bool:
    """Tells whether this build of PyTorch has the operators."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def measured() -> dict[str, Any]:
    """Returns processor, torch, threads; gigaflops: of each kind PyTorch's and oneDNN's, in 10^9 operations a second;
    onednn: the kinds that oneDNN is to compute. Timed if the cache folder has none for this number of threads."""
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
    except (OSError, UserError):  # it is made again
        pass
    rates = _timed() if has_onednn() else {}
    faster = [kind for kind, (own, onednn) in rates.items() if onednn > GAIN * own]
    found = _machine() | {"gigaflops": rates, "onednn": faster}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    except (OSError, UserError):  # measured again by the next process
        pass
    return found


@torch.inference_mode()
def _timed() -> dict[str, list[float]]:
    """Measures PyTorch's and oneDNN's speed of each kind, by turns, the best of some rounds."""
    rates, weight = {}, torch.ones(OUTPUTS, INPUTS, dtype=torch.float32, device="cpu")
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight)
    for kind, rows in ROWS.items():
        states = torch.ones(rows, INPUTS, dtype=torch.float32, device="cpu")
        both = (
            partial(nn.functional.linear, states, weight),
            partial(torch.ops.mkldnn._linear_pointwise, states, laid_out, None, "none", [], ""),
        )
        # The time of this thread alone: other programs of a busy machine count less.
        seconds = [[timeit(product, timer=time.thread_time, number=1) for product in both] for _ in range(ROUNDS + 1)]
        rates[kind] = [round(2e-9 * rows * INPUTS * OUTPUTS / min(turns), 1) for turns in zip(*seconds[1:])]
    return rates


def record() -> dict[str, Any]:
    """Returns processor, torch, threads, and onednn: the kinds that oneDNN computes now, for what is written down."""
    return _machine() | {"onednn": [kind for kind in KINDS if kind in chosen()]}


def _machine() -> dict[str, Any]:
    return {"processor": processor_name(), "torch": torch.__version__, "threads": torch.get_num_threads()}


def processor_name() -> str:
    """Returns the processor's name as it says it, with what tells its generation where the name does not."""
    known = dict(line.split("\t", 1) for line in _cpuinfo() if "\t" in line)
    values = {name: known.get(name, "").strip(" \t:") for name in ("model name", "cpu family", "model")}
    if not values["model name"]:
        return platform.processor() or platform.machine()
    return f"{values['model name']} (family {values['cpu family']}, model {values['model']})"


def processor() -> str:
    """Returns what code made for this processor depends on: its name and the instructions it has."""
    names = ("model name", "cpu family", "model\t", "flags", "Features", "CPU part")
    return "\n".join(
        [platform.platform(), platform.processor(), *sorted({x for x in _cpuinfo() if x.startswith(names)})]
    )


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


# The weight cache: weights in another layout, kept from one search to the next while module and weight stay.
#
# To lay a large weight out anew takes as long as some steps of a search; kept, it is done once. Every search asks
# whether the weight is still the same: its place, its shape, PyTorch's count of changes in place, and the numbers on
# its wrapped diagonal, which meets every row and every column. This shows what an optimizer, load_state_dict or a
# change through `.data` of whole rows, columns or tensors did; it may not show a change of single numbers through
# `.data`: call `forget()` after one.


class _Kept(NamedTuple):
    """A copy of a weight, and the marks by which the weight is known to be still the same."""

    place: tuple[Any, ...]
    diagonal: Tensor
    made: Tensor

    def is_of(self, weight: Tensor) -> bool:
        """Returns whether the weight is as it was when this copy was made."""
        place, diagonal = _marks_of(weight)
        return self.place == place and torch.equal(self.diagonal, diagonal)


_KEPT: WeakKeyDictionary[nn.Module, dict[str, _Kept]] = WeakKeyDictionary()
_FORGOTTEN = [0]  # how often


def kept(module: Any, layout: str, make: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns make(module.weight), kept under the layout's name; made anew when the weight has changed.

    A weight that is too large, or does not lie in one piece, is laid out anew each time.
    """
    weight = module.weight
    if weight.numel() > LARGEST or not weight.is_contiguous() or weight.dim() != 2:
        return make(weight)
    copy = _KEPT.get(module, {}).get(layout)
    if copy is None or not copy.is_of(weight):
        copy = _KEPT.setdefault(module, {})[layout] = _Kept(*_marks_of(weight), make(weight))
    return copy.made


def _marks_of(weight: Tensor) -> tuple[tuple[Any, ...], Tensor]:
    """Returns place, shape, type and count of changes of a matrix, and the numbers on its wrapped diagonal."""
    place = weight.data_ptr(), tuple(weight.shape), weight.dtype, changes_of(weight)
    return place, weight.detach().flatten()[_wrapped_diagonal(*weight.shape).to(weight.device)]


def changes_of(weight: Tensor) -> int:
    """Counts how often a weight was changed in its place; -1 for an inference tensor, which does not count it."""
    return -1 if weight.is_inference() else weight._version


def kept_diagonals(modules: Iterable[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Returns the weights of these modules that copies are kept of, and what is on their wrapped diagonals.

    Copies of what a weight was before a change are left out: no search uses them.
    """
    copies: list[tuple[Any, _Kept]] = [(part.weight, copy) for part in modules for copy in _KEPT.get(part, {}).values()]
    return [(weight, copy.diagonal) for weight, copy in copies if copy.is_of(weight)]


def forget() -> None:
    """Forgets all copies."""
    _KEPT.clear()
    _FORGOTTEN[0] += 1


def times_forgotten() -> int:
    """Counts the calls of `forget`, after which copies that are held longer than for a search are no longer valid."""
    return _FORGOTTEN[0]


@cache
def _wrapped_diagonal(rows: int, columns: int) -> Tensor:
    """Returns places in a flat matrix that meet every row and every column."""
    steps = torch.arange(max(rows, columns))
    return steps % rows * columns + steps % columns
