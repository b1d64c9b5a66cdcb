"""Products of plain linear layers on a CPU: by PyTorch's own library (MKL on x86), or by oneDNN, which it carries too.

On some processors one of the two takes half of the other's time. So a product of each kind is timed once by both, in a
tenth of a second, and the result kept in the cache folder for this processor, release of torch and number of threads.
HF_MLNMT_MATMUL=mkl or onednn decides instead for all kinds, and `using` for a training that goes on.

| kind | product | by oneDNN |
| --- | --- | --- |
| few, many | x W^T + b without gradients, of up to 15 rows of x and of more | W laid out anew once (`kept`) |
| forward | the same in training | W as it lies |
| by_states, by_weight | its gradients, g W and g^T x | both factors as they lie |

Models come here through a slot (modeling/linear.py), the search by `packed`. Both libraries compute in float32 and add
in another order. What is not a plain layer in float32, or is small, is left to PyTorch: `None` says so. The operators
are those that torch.compile calls; a build of PyTorch without them has its own library alone.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
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
KINDS = ("few", "many", "forward", "by_states", "by_weight")
VARIABLE, LIBRARIES = "HF_MLNMT_MATMUL", ("mkl", "onednn")
FEW = 15  # rows
LEAST = 2**20  # multiplications of a product for which oneDNN's call, some microseconds longer, is worth while
TIMES = 16  # as many in training, where an autograd function of Python's is around it
ROWS = {"few": 5, "many": 64, "forward": 256, "by_states": 256, "by_weight": 256}  # of the products that are timed
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
    """Computes module(states), states (..., inputs), and its gradients; None where the module is to be called."""
    hooks = module._backward_hooks or module._backward_pre_hooks or _has_any_global_hook()
    if hooks or not is_plain(module):
        return None
    weight, padded = getattr(_OF_THREAD, "padded", None) or (None, None)
    if padded is not None and weight is module.weight and not torch.is_autocast_enabled(states.device.type):
        return _by_padded(module, states, padded)
    if not _is_for_onednn(states, module.weight):
        return None
    weight, bias, kinds = module.weight, module.bias, chosen()
    rows = states.reshape(-1, states.shape[-1])
    if not torch.is_grad_enabled() and not module.training:
        products = packed(module, rows)
    elif kinds.isdisjoint(KINDS[2:]) or rows.numel() * weight.shape[0] < TIMES * LEAST:
        return None
    else:
        products = _Linear.apply(rows, weight, bias, kinds)
    return None if products is None else products.view(*states.shape[:-1], len(weight))


@contextmanager
def with_padded(weight: Tensor, padded: Tensor) -> Iterator[None]:
    """Lets a layer with this weight multiply by `padded`, which has rows of zeros behind it, inside and in this thread.

    On a card products of a number of outputs that is no multiple of 8 take two to three times as long.
    """
    _OF_THREAD.padded = weight, padded
    try:
        yield
    finally:
        _OF_THREAD.padded = None


def _by_padded(module: Any, states: Tensor, padded: Tensor) -> Tensor:
    outputs = len(module.weight)
    bias = None if module.bias is None else nn.functional.pad(module.bias, (0, len(padded) - outputs))
    return nn.functional.linear(states, padded, bias)[..., :outputs]


def multiply(states: Tensor, weight: Tensor, kind: str) -> Tensor | None:
    """Multiplies states (rows, inputs) by the transpose of weight (outputs, inputs); None where torch.mm is to."""
    return _multiply(states, weight) if kind in chosen() and _is_for_onednn(states, weight) else None


def _multiply(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """states (rows, inputs) W^T + b with its gradients, each by the library that the kinds say."""

    @staticmethod
    def forward(ctx, states: Tensor, weight: Tensor, bias: Tensor | None, kinds: frozenset[str]) -> Tensor:
        ctx.save_for_backward(states, weight)
        ctx.kinds = kinds
        if "forward" in kinds:
            return _multiply(states, weight, bias)
        return nn.functional.linear(states, weight, bias)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (states, weight), needed = ctx.saved_tensors, ctx.needs_input_grad
        kinds = frozenset() if torch.is_grad_enabled() else ctx.kinds  # its own gradients are asked for
        by_states = by_weight = by_bias = None
        if needed[0]:
            by_states = _multiply(gradient, weight.t()) if "by_states" in kinds else gradient @ weight
        if needed[1]:
            by_weight = _multiply(gradient.t(), states.t()) if "by_weight" in kinds else gradient.t() @ states
        if needed[2]:
            by_bias = gradient.sum(0)
        return by_states, by_weight, by_bias, None


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
    rates = {}
    for kind, rows in ROWS.items():
        both = _by_both(kind, rows)
        seconds = [[_seconds(product) for product in both] for _ in range(ROUNDS + 1)][1:]
        rates[kind] = [round(2e-9 * rows * INPUTS * OUTPUTS / min(turns), 1) for turns in zip(*seconds)]
    return rates


def _by_both(kind: str, rows: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Returns a product of the kind by PyTorch, and by oneDNN."""
    shapes = (rows, INPUTS), (OUTPUTS, INPUTS), (rows, OUTPUTS)
    states, weight, gradient = (torch.ones(shape, dtype=torch.float32, device="cpu") for shape in shapes)
    if kind == "by_states":
        return lambda: gradient @ weight, lambda: _multiply(gradient, weight.t())
    if kind == "by_weight":
        return lambda: gradient.t() @ states, lambda: _multiply(gradient.t(), states.t())
    laid_out = weight if kind == "forward" else torch.ops.mkldnn._reorder_linear_weight(weight)
    return lambda: nn.functional.linear(states, weight), lambda: _multiply(states, laid_out)


def _seconds(product: Callable[[], Any]) -> float:
    """Measures the time of this thread alone: other programs of a busy machine count less."""
    start = time.thread_time()
    product()
    return time.thread_time() - start


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


class Fingerprint(NamedTuple):
    """The marks of a weight by which it is known to be still the same."""

    place: tuple[Any, ...]
    diagonal: Tensor

    def equals(self, other: Fingerprint) -> bool:
        return self.place == other.place and torch.equal(self.diagonal, other.diagonal)


class _Kept(NamedTuple):
    fingerprint: Fingerprint
    made: Tensor


_KEPT: WeakKeyDictionary[nn.Module, dict[str, _Kept]] = WeakKeyDictionary()
_FORGOTTEN = [0]  # how often


def kept(module: Any, layout: str, make: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns make(module.weight), kept under the layout's name; made anew when the weight has changed.

    A weight that is too large, or does not lie in one piece, is laid out anew each time.
    """
    weight = module.weight
    if weight.numel() > LARGEST or not weight.is_contiguous() or weight.dim() != 2:
        return make(weight)
    fingerprint = fingerprint_of(weight)
    copy = _KEPT.get(module, {}).get(layout)
    if copy is None or not copy.fingerprint.equals(fingerprint):
        copy = _KEPT.setdefault(module, {})[layout] = _Kept(fingerprint, make(weight))
    return copy.made


def fingerprint_of(weight: Tensor) -> Fingerprint:
    """Takes that of a weight that has one dimension or more."""
    place = weight.data_ptr(), tuple(weight.shape), weight.dtype, changes_of(weight)
    columns = weight.shape[-1]
    diagonal = _wrapped_diagonal(weight.numel() // max(columns, 1), columns).to(weight.device)
    return Fingerprint(place, weight.detach().flatten()[diagonal])


def changes_of(weight: Tensor) -> int:
    """Counts how often a weight was changed in its place; -1 for an inference tensor, which does not count it."""
    return -1 if weight.is_inference() else weight._version


def kept_diagonals(modules: Iterable[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Returns the weights of these modules that copies are kept of, and what is on their wrapped diagonals.

    Copies of what a weight was before a change are left out: no search uses them.
    """
    copies: list[tuple[Any, _Kept]] = [(part.weight, copy) for part in modules for copy in _KEPT.get(part, {}).values()]
    return [(w, copy.fingerprint.diagonal) for w, copy in copies if copy.fingerprint.equals(fingerprint_of(w))]


def forget() -> None:
    """Forgets all copies."""
    _KEPT.clear()
    _FORGOTTEN[0] += 1


def times_forgotten() -> int:
    """Counts the calls of `forget`: who holds a copy longer than for a search asks whether it still counts."""
    return _FORGOTTEN[0]


@cache
def _wrapped_diagonal(rows: int, columns: int) -> Tensor:
    """Returns places in a flat matrix that meet every row and every column."""
    steps = torch.arange(max(rows, columns))
    return steps % rows * columns + steps % columns
