"""Parts of a training step on a GPU, each in one kernel forward and one backward (training_triton.py).

Each function returns None where something else must do: on a CPU, without Triton, in float64, in a graph of
torch.compile, for modules that are more than their class says, or for sizes that no kernel is made for. The
caller then computes what it always did. States may be in half precision; what is added up or squared is so in float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .linear import is_plain, product_dtype

LONGEST = 64  # positions of a sentence, on either side, whose attention is one program for each head
WIDEST = 2048  # entries of a state whose residual sum and norm are one kernel
HALVES = (torch.bfloat16, torch.float16)


def kernels_for(tensor: Tensor) -> Any:
    """Returns the kernels by name, where a step of training on the tensor's device is computed by them; else None.

    Whether gradients flow is not asked: gradient checkpointing runs a layer without them first, then with them.
    """
    if not tensor.is_cuda or tensor.dtype == torch.float64 or torch.compiler.is_compiling():
        return None
    from .training_triton import KERNELS, works

    here = tensor.device.index == torch.cuda.current_device()  # Triton knows no other
    return KERNELS if KERNELS and here and works(tensor.device) else None


_drawn: list[Tensor] = []  # inside `one_draw`, the bits of dropouts to come


@contextmanager
def one_draw(device: torch.device) -> Iterator[None]:
    """Draws the bits of all dropouts of a block together; it must not be computed again (gradient checkpointing)."""
    _drawn[:] = torch.empty(128, 2, dtype=torch.int64, device=device).random_().unbind()
    try:
        yield
    finally:
        _drawn.clear()


def _draw(device: torch.device) -> Tensor:
    """Draws the 64 bits of a dropout on the device, by its generator: a graph draws anew whenever it runs."""
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
        if states is None:  # a sum: its gradient does not depend on what was added
            states, computed = gradient, gradient
        return None, *ctx.kernels["residual_backward"](gradient, states, computed, *others, ctx.rate), None, None


def residual(states: Tensor, computed: Tensor | None, rate: float, norm: nn.Module | None) -> Tensor | None:
    """Returns LN(states + dropout(computed)), in the type of `states` (..., d_model); without `norm` the sum alone."""
    kernels = kernels_for(states)
    alike = computed is None or computed.shape == states.shape
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


def normed(norm: nn.Module, states: Tensor) -> Tensor:
    """Calls a layer norm, or what is in its place; in training the states come back in their own type."""
    found = residual(states, None, 0.0, norm) if norm.training else None
    return norm(states) if found is None else found


class _ShortAttention(torch.autograd.Function):
    """The gradients of query, key and value lie where these do in the `roots` that they are views of."""

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
    """Returns whether views (batch, heads, time, d_h) lie side by side in rows that are nothing else, as a projection's
    parts do: then their gradients make up that of the rows."""
    (_, heads, time, width), number = views[0].shape, len(views)
    strides = (time * number * heads * width, width, number * heads * width, 1)
    places = sorted(view.storage_offset() - base.storage_offset() for view in views)
    alike = all(view.shape == views[0].shape and view.stride() == strides for view in views)
    whole = base.is_contiguous() and base.numel() == number * views[0].numel()
    return alike and whole and places == [heads * width * part for part in range(number)]


def short_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, rate: float, causal: bool
) -> Tensor | None:
    """Returns equation 1 of attention.py for short sentences, (batch, target, heads * d_h).

    Shapes: query (batch, heads, target, d_h); key, value (batch, heads, source, d_h); mask, added or boolean, of a
    shape that expands to (batch, heads, target, source). A query that may see nothing reads 0.
    """
    views, (batch, heads, target, width), source = [query, key, value], query.shape, key.shape[2]
    kernels, longest = kernels_for(query), max(target, source)
    if kernels is None or longest > LONGEST or longest * width > LONGEST * 64 or rate >= 1 or not query.numel():
        return None  # a program holds all of a head's sentence, for which an older card has 64 KiB
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
    """Returns relu(module(states)) of a linear layer; states (..., inputs) -> (..., outputs)."""
    kernels = kernels_for(states)
    if kernels is None or not is_plain(module) or not states.numel():
        return None
    weight, bias = module.weight, module.bias
    if bias is None or not weight.dtype == states.dtype == product_dtype(states):
        return None
    hidden = _Activated.apply(kernels, states.flatten(0, -2), weight, bias)
    return hidden.unflatten(0, states.shape[:-1])
