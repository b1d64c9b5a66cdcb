"""Functions that compute parts of a training step faster than PyTorch's; `linear.kernels` is set to this module.

| function | replaces | where |
| --- | --- | --- |
| residual | a sublayer's dropout, sum and norm | GPU; CPU, dropout in float32 |
| short_attention, relu_of | attention, a linear layer and its relu | GPU |
| prepared_attention | the kernel that PyTorch chooses for attention | GPU; CPU under autocast |
| linear_scan | the loop over positions of ssru.py | anywhere |
| head_cross_entropy | logits of all positions and equation 1 of loss.py | anywhere |

Each returns None where the caller must compute the result itself: in a graph of torch.compile, for modules with hooks,
adapters or a replaced forward, or for tensors that are not supported. On a GPU each is one kernel forward and one
backward (training_triton.py); states may be in half precision, sums and squares are in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from .attention_scan import linear_scan as linear_scan
from .linear import is_asynchronous
from .loss import cross_entropy
from .matrices import is_plain, matrix_of, product_dtype

LONGEST = 64  # most positions of source and target for `short_attention`: a program holds a whole head
WIDEST = 2048  # largest d_model for `residual`
HALVES = (torch.bfloat16, torch.float16)
ROWS = 256  # target positions projected at once on a CPU: their logits fit into its cache
LOGITS = 1 << 29  # most bytes of logits computed at once on a GPU: large, for few kernel launches


def kernels_for(tensor: Tensor) -> Any:
    """Returns the kernels of training_triton.py by name where they can run on the tensor's device and dtype; else None.

    They run without gradients too: gradient checkpointing runs a layer first without, then with gradients.
    """
    if not tensor.is_cuda or tensor.dtype == torch.float64 or torch.compiler.is_compiling():
        return None
    from .training_triton import KERNELS, works

    here = tensor.device.index == torch.cuda.current_device()  # Triton launches on the current device only
    return KERNELS if KERNELS and here and works(tensor.device) else None


def scan_kernels(tensor: Tensor) -> Any:
    """Returns the kernels of attention_scan.py's scans by name; None on a CPU, without Triton, and for float64."""
    if tensor.device.type != "cuda" or tensor.dtype == torch.float64:
        return None
    from .attention_scan_triton import KERNELS

    return KERNELS


_drawn: list[Tensor] = []  # inside `one_draw`: random bits for later dropouts


@contextmanager
def one_draw(device: torch.device) -> Iterator[None]:
    """Draws the random bits of all dropouts in a with block at once; not for blocks with gradient checkpointing."""
    _drawn[:] = torch.empty(128, 2, dtype=torch.int64, device=device).random_().unbind()
    try:
        yield
    finally:
        _drawn.clear()


def _draw(device: torch.device) -> Tensor:
    """Returns 64 random bits for a dropout, drawn by the device's generator, so that a graph draws anew in each run."""
    if _drawn and _drawn[-1].device == device:
        return _drawn.pop()
    return torch.empty(1, dtype=torch.int64, device=device).random_()


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        kernels: Any,
        states: Tensor,
        computed: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        rate: float,
        eps: float,
    ) -> Tensor:
        seed = _draw(states.device) if rate else None
        output, *statistics = kernels["residual_forward"](states, computed, seed, weight, bias, rate, eps)
        kept = (None, None) if weight is None else (states, computed)
        ctx.save_for_backward(*kept, seed, weight, *statistics)
        ctx.kernels, ctx.rate = kernels, rate
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        states, computed, *others = ctx.saved_tensors
        if states is None:  # a sum without norm: the gradient needs no summands, any tensor will do
            states, computed = gradient, gradient
        return None, *ctx.kernels["residual_backward"](gradient, states, computed, *others, ctx.rate), None, None


def residual(states: Tensor, computed: Tensor | None, rate: float, norm: nn.Module | None) -> Tensor | None:
    """Returns LN(states + dropout(computed)) in the dtype of `states` (..., d_model); without LN if `norm` is None.
    Returns None where neither a kernel nor the dropout for CPUs supports the arguments."""
    kernels = kernels_for(states)
    alike = computed is None or computed.shape == states.shape
    here = kernels is None and states.device.type == "cpu" and not torch.compiler.is_compiling()
    if here and computed is not None and states.dtype == torch.float32 and 0 < rate < 1:
        states = _add_dropped(states, computed, rate)
        return states if norm is None else norm(states)
    if kernels is None or not alike or states.shape[-1] > WIDEST or rate >= 1 or not states.numel():
        return None
    weight = bias = None
    if norm is not None:
        if not is_plain(norm, nn.LayerNorm) or norm.bias is None:
            return None
        weight, bias = norm.weight, norm.bias
    computed = None if computed is None else computed.contiguous()
    eps: Any = 0.0 if norm is None else norm.eps
    return _Residual.apply(kernels, states.contiguous(), computed, weight, bias, rate, eps)


def _add_dropped(states: Tensor, computed: Tensor, rate: float) -> Tensor:
    """Returns states + dropout(computed), on a CPU in half of the time that nn.Dropout takes, which draws a number for
    each element. Here a number of 64 bits is drawn for four elements: 16 bits each, a rate exact to 1/65536."""
    draws = states.new_empty((computed.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    noise = draws.view(torch.int16)[: computed.numel()].view(computed.shape).to(torch.float32)
    # The gradient of a threshold: the scale where the noise is above, else 0, in one pass over memory.
    scale = states.new_tensor(1 / (1 - rate)).expand(computed.shape)
    return states + computed * torch.ops.aten.threshold_backward(scale, noise, round(rate * 65536) - 32769)


class _ShortAttention(torch.autograd.Function):
    """Attention of short sentences, and gradients written into one tensor for each root that views come from."""

    @staticmethod
    def forward(
        ctx, kernels: Any, views: list[Tensor], mask: Tensor | None, settings: tuple, of: list[int], *roots: Tensor
    ) -> Tensor:
        seed = _draw(roots[0].device) if settings[1] else None
        output = kernels["attention_forward"](*views, mask, seed, *settings)
        ctx.save_for_backward(*views, mask, seed)
        ctx.kernels, ctx.settings, ctx.of = kernels, settings, of
        ctx.roots = [(root.shape, root.stride(), root.storage_offset()) for root in roots]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        *views, mask, seed = ctx.saved_tensors
        by_roots = [gradient.new_empty_strided(shape, stride) for shape, stride, _ in ctx.roots]
        starts = [view.storage_offset() - ctx.roots[of][2] for view, of in zip(views, ctx.of)]
        parts = zip(views, ctx.of, starts)
        by_views = [by_roots[of].as_strided(view.shape, view.stride(), start) for view, of, start in parts]
        ctx.kernels["attention_backward"](gradient, *views, mask, seed, *ctx.settings, *by_views)
        return None, None, None, None, None, *by_roots


def _fill(base: Tensor, views: list[Tensor]) -> bool:
    """Returns whether views (batch, heads, time, d_h) cover the whole base, each a part of its rows, as those of a
    joint projection: then their gradients together are the base's."""
    (_, heads, time, width), number = views[0].shape, len(views)
    strides = (time * number * heads * width, width, number * heads * width, 1)
    places = sorted(view.storage_offset() - base.storage_offset() for view in views)
    alike = all(view.shape == views[0].shape and view.stride() == strides for view in views)
    whole = base.is_contiguous() and base.numel() == number * views[0].numel()
    return alike and whole and places == [heads * width * part for part in range(number)]


def short_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, rate: float, causal: bool
) -> Tensor | None:
    """Computes attention, equation 1 of attention.py, for short sentences: (batch, target, heads * d_h). Returns None
    where no kernel supports the arguments.

    Shapes: query (batch, heads, target, d_h); key, value (batch, heads, source, d_h); mask, additive or boolean, of a
    shape that expands to (batch, heads, target, source). A query whose keys are all masked gets 0.
    """
    views, (batch, heads, target, width), source = [query, key, value], query.shape, key.shape[2]
    kernels, longest = kernels_for(query), max(target, source)
    if kernels is None or longest > LONGEST or longest * width > LONGEST * 64 or rate >= 1 or not query.numel():
        return None  # a program holds a whole sentence of a head in shared memory, 64 KiB on older GPUs
    if query.dtype not in HALVES or any(view.dtype != query.dtype or view.stride(3) != 1 for view in views):
        return None
    if key.shape != value.shape or key.shape != (batch, heads, source, width):
        return None
    told = mask is None or mask.dtype == torch.bool or mask.is_floating_point()
    if not told or (mask is not None and (mask.dim() != 4 or mask.requires_grad)):
        return None
    roots: list[Tensor] = []
    of = []
    for place, view in enumerate(views):
        base = view._base if view.requires_grad else None
        beside = [] if base is None else [other for other in (query, key, value) if other._base is base]
        if base is not None and _fill(base, beside):
            known = [number for number, root in enumerate(roots) if root is base]
            of.append(known[0] if known else len(roots))
            roots += [] if known else [base]
        else:
            dense = view.is_contiguous() or view.transpose(1, 2).is_contiguous()
            views[place] = view if dense else view.contiguous()
            of.append(len(roots))
            roots.append(views[place])
    settings = scaling, rate, causal
    output = _ShortAttention.apply(kernels, [view.detach() for view in views], mask, settings, of, *roots)
    return output.flatten(2)


class _Activated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        hidden = torch._addmm_activation(bias, states, weight.t())
        ctx.save_for_backward(states, weight, hidden)
        ctx.kernels = kernels
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        states, weight, hidden = ctx.saved_tensors
        slope, by_bias = ctx.kernels["activation_backward"](gradient, hidden)
        by_states = slope @ weight if ctx.needs_input_grad[1] else None
        by_weight = slope.t() @ states if ctx.needs_input_grad[2] else None
        return None, by_states, by_weight, by_bias


def relu_of(module: nn.Module, states: Tensor) -> Tensor | None:
    """Returns relu(module(states)) of a linear layer, states (..., inputs) -> (..., outputs); None without a kernel."""
    kernels = kernels_for(states)
    if kernels is None or not is_plain(module) or not states.numel():
        return None
    weight, bias = module.weight, module.bias
    if bias is None or not weight.dtype == states.dtype == product_dtype(states):
        return None
    hidden = _Activated.apply(kernels, states.flatten(0, -2), weight, bias)
    return hidden.unflatten(0, states.shape[:-1])


def trains_mixed_on_cpu(states: Tensor) -> bool:
    """Returns whether gradients will flow under autocast on a CPU, where PyTorch's attention is ten times as slow
    backwards in bfloat16 as in float32."""
    return torch.is_grad_enabled() and states.device.type == "cpu" and torch.is_autocast_enabled("cpu")


def kernels_without_plans(device: torch.device) -> AbstractContextManager:
    """Returns a context in which attention on an NVIDIA GPU does not use cuDNN's kernels, which need a third of a
    second or more to plan for every new shape of a batch; with a mask PyTorch prefers them on newer GPUs."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def prepared_attention(function: Callable, query: Tensor) -> Callable | None:
    """Returns the attention `function` in a wrapper: where `trains_mixed_on_cpu` it computes in float32, on a GPU
    inside `kernels_without_plans`. Returns None where no wrapper is needed."""
    mixed = trains_mixed_on_cpu(query)
    if not mixed and query.device.type != "cuda":
        return None

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *given: Any, **named: Any) -> Any:
        if mixed:
            query, key, value = (x.float() if x.dtype.itemsize == 2 else x for x in (query, key, value))
        # Autocast is off, or it would cast query, key and value to 16 bits again.
        own = torch.autocast("cpu", enabled=False) if mixed else nullcontext()
        with own, kernels_without_plans(query.device):
            return function(module, query, key, value, *given, **named)

    return attend


def head_cross_entropy(head: nn.Module, states: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Computes the loss, equation 1 of loss.py, from states and the output projection `head`."""
    weight, bias = matrix_of(head, states)
    return projected_cross_entropy(states, weight, labels, label_smoothing, bias)


def projected_cross_entropy(
    states: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """Computes the loss, equation 1 of loss.py, summed over positions whose label is not -100. Logits are computed for
    some positions at a time, so that no (positions, vocabulary) tensor is kept.

    Identities used: mean_v z_v = h . mean_v E_v needs no pass over the vocabulary; the gradient of (1) by z is
    softmax(z) - (1 - eps) 1_y - eps / V, whose last term gives rank-one gradients.

    Args:
        states: (..., d_model), what the output projection reads.
        weight: (vocabulary, d_model), the output projection.
        labels: (...), int64; -100 marks positions that count nothing.
        label_smoothing: eps in [0, 1).
        bias: (vocabulary,), of the output projection, or None.

    Returns: a float32 (float64 for float64 states) scalar.
    """
    states, labels = states.flatten(0, -2), labels.flatten()
    if torch.compiler.is_compiling():  # shapes are fixed: padding is computed too, with loss 0
        return cross_entropy(nn.functional.linear(states, weight, bias), labels, label_smoothing)
    dtype, kernels = product_dtype(states), kernels_for(states) if torch.is_grad_enabled() else None
    if is_asynchronous(states):  # selecting real positions would wait for the GPU: padding gets loss 0
        each = dtype.itemsize / 2 if kernels else torch.promote_types(states.dtype, torch.float32).itemsize
        rows = max(1, int(LOGITS / (weight.shape[0] * each)))
    else:
        real, rows = labels != -100, ROWS
        states, labels = states[real], labels[real]
    states, weight, bias = states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if kernels:
        return _InKernels.apply(kernels, states.contiguous(), weight, bias, labels, label_smoothing, rows)
    return _ProjectedCrossEntropy.apply(states, weight, bias, labels, label_smoothing, rows)


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Equation 1 of loss.py, with gradients computed already in forward, for `rows` positions at a time."""

    @staticmethod
    def forward(
        ctx, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, rows: int
    ) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad[:3])
        exact = torch.promote_types(states.dtype, torch.float32)
        gradient = torch.zeros_like(states), torch.zeros_like(weight, dtype=exact)
        by_bias = None if bias is None else torch.zeros_like(bias, dtype=exact)
        total = torch.zeros((), dtype=exact, device=states.device)
        counts = (labels != -100).unsqueeze(1) if is_asynchronous(states) else None  # None: no label is -100
        buffer: Any = None  # memory for logits, used for every chunk
        for start in range(0, states.shape[0], rows):
            inside = slice(start, start + rows)
            chunk, target = states[inside], labels[inside].clamp(min=0).unsqueeze(1)
            buffer = states.new_empty(min(rows, states.shape[0]), weight.shape[0]) if buffer is None else buffer
            logits = torch.mm(chunk, weight.t(), out=buffer[: chunk.shape[0]]).to(exact)
            if bias is not None:
                logits += bias
            chosen = logits.gather(1, target)
            largest = logits.amax(1, keepdim=True)
            probabilities = torch.softmax(logits, 1, out=logits)
            # The log of the largest probability, at least 1 / V, is finite; the log of the target's may not be.
            lse = largest - probabilities.amax(1, keepdim=True).log()
            losses = lse - (1.0 - label_smoothing) * chosen
            total += (losses if counts is None else torch.where(counts[inside], losses, 0.0)).sum()
            if needs_gradient:
                probabilities.scatter_add_(1, target, probabilities.new_full(target.shape, label_smoothing - 1.0))
                if counts is not None:
                    probabilities.masked_fill_(~counts[inside], 0.0)
                if by_bias is not None:
                    by_bias += probabilities.sum(0)
                by_logits = probabilities.to(weight.dtype)
                torch.mm(by_logits, weight, out=gradient[0][inside])
                if weight.dtype == exact:
                    gradient[1].addmm_(by_logits.t(), chunk)
                else:  # products in half precision, summed over the chunks in float32
                    gradient[1].add_(by_logits.t() @ chunk)
                del by_logits
            del logits, probabilities  # free memory for the next chunk
        if label_smoothing:  # the term eps mean_v z_v = eps h . mean_v E_v and its gradients
            mean_weight, read = weight.to(exact).mean(0), states.to(exact)
            sum_states = (read if counts is None else torch.where(counts, read, 0.0)).sum(0)
            by_state = (label_smoothing * mean_weight).to(states.dtype)
            total -= label_smoothing * (mean_weight @ sum_states)
            gradient[0].sub_(by_state if counts is None else by_state * counts)
            gradient[1].sub_(label_smoothing / weight.shape[0] * sum_states)
            if bias is not None and by_bias is not None:
                items = states.shape[0] if counts is None else counts.sum().to(exact)
                total -= label_smoothing * items * bias.to(exact).mean()
                by_bias.sub_(label_smoothing * items / weight.shape[0])
        if needs_gradient:
            ctx.save_for_backward(*gradient, by_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        by_states, by_weight, by_bias = ctx.saved_tensors
        by_bias = None if by_bias is None else by_bias * gradient
        return by_states * gradient.to(by_states.dtype), by_weight * gradient, by_bias, None, None, None


class _InKernels(torch.autograd.Function):
    """Equation 1 of loss.py by a kernel of training_triton.py, which reads the logits of `rows` positions in their own
    dtype and overwrites them with their gradient. The weight is padded with rows of zeros to a multiple of 64, as
    cuBLAS has kernels for other sizes that take three times as long."""

    @staticmethod
    def forward(
        ctx,
        kernels: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        rows: int,
    ) -> Tensor:
        vocabulary, needed = weight.shape[0], any(ctx.needs_input_grad[1:4])
        weight = nn.functional.pad(weight, (0, 0, 0, -vocabulary % 64))
        losses = torch.empty(len(states), dtype=torch.float32, device=states.device)
        buffer = states.new_empty(min(rows, len(states)), len(weight))
        by_states, by_weight, by_bias = torch.empty_like(states), None, None
        for start in range(0, len(states), rows):
            inside = slice(start, start + rows)
            logits = torch.mm(states[inside], weight.t(), out=buffer[: len(states) - start])
            kernels["loss_in_place"](logits[:, :vocabulary], bias, labels[inside], losses[inside], smoothing, needed)
            if needed:  # products in half precision, summed over the chunks in float32
                torch.mm(logits, weight, out=by_states[inside])
                product = logits.t() @ states[inside]
                by_weight = product if by_weight is None else by_weight.float().add_(product)
                if bias is not None:
                    added = logits[:, :vocabulary].sum(0, dtype=torch.float32)
                    by_bias = added if by_bias is None else by_bias.add_(added)
        if needed:
            assert by_weight is not None
            ctx.save_for_backward(by_states, by_weight[:vocabulary], by_bias)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        return None, *[None if x is None else x * gradient.to(x.dtype) for x in ctx.saved_tensors], None, None, None
