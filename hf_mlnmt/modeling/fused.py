"""Parts of a training step on a GPU, each in one kernel forward and one backward (training_triton.py).

Each function returns None where something else must do: on a CPU, without Triton, in float64, without gradients, in a
graph of torch.compile, for modules that are more than their class says, or for sizes that no kernel is made for. The
caller then computes what it always did. States may be in half precision; what is added up or squared is so in float32.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .linear import is_plain, product_dtype

LONGEST = 64  # positions of a sentence, on either side, whose attention is one program: measured, benchmarks/gpu.py
HALVES = (torch.bfloat16, torch.float16)


def kernels_for(tensor: Tensor) -> Any:
    """Returns the kernels by name, where a step of training on the tensor's device is computed by them; else None."""
    known = tensor.is_cuda and tensor.dtype != torch.float64 and torch.is_grad_enabled()
    if not known or torch.compiler.is_compiling():
        return None
    from .training_triton import KERNELS

    return KERNELS


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
        seed = kernels["draw"](states.device) if rate else None
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
    if kernels is None or not alike or states.shape[-1] > 2048 or rate >= 1 or not states.numel():
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
        seed = kernels["draw"](roots[0].device) if settings[1] else None
        output = kernels["attention_forward"](*views, mask, seed, *settings)
        ctx.save_for_backward(*views, mask, seed)
        ctx.kernels, ctx.settings, ctx.of = kernels, settings, of
        ctx.roots = [(root.shape, root.stride(), root.storage_offset()) for root in roots]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        *views, mask, seed = ctx.saved_tensors
        by_roots, by_views = [], []
        for number, (shape, stride, _) in enumerate(ctx.roots):
            covered = sum(view.numel() for view, of in zip(views, ctx.of) if of == number) == shape.numel()
            by_root = gradient.new_empty_strided(shape, stride)
            by_roots.append(by_root if covered else by_root.zero_())
        for view, of in zip(views, ctx.of):
            start = view.storage_offset() - ctx.roots[of][2]
            by_views.append(by_roots[of].as_strided(view.shape, view.stride(), start))
        ctx.kernels["attention_backward"](gradient, *views, mask, seed, *ctx.settings, *by_views)
        return None, None, None, None, None, *by_roots


def short_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, rate: float, causal: bool
) -> Tensor | None:
    """Returns equation 1 of attention.py for short sentences, (batch, target, heads * d_h).

    Shapes: query (batch, heads, target, d_h); key, value (batch, heads, source, d_h); mask, added or boolean, of a
    shape that expands to (batch, heads, target, source). A query that may see nothing reads 0.
    """
    views, (batch, heads, target, width), source = [query, key, value], query.shape, key.shape[2]
    kernels = kernels_for(query)
    if kernels is None or max(target, source) > LONGEST or width > 128 or rate >= 1 or not query.numel():
        return None
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
        root = view._base if view.requires_grad and view._base is not None else view
        if root is view or not root.is_contiguous() or root.dtype != view.dtype:
            dense = view.is_contiguous() or view.transpose(1, 2).is_contiguous()
            root = views[place] = view if dense else view.contiguous()
        known = [number for number, other in enumerate(roots) if other is root]
        of.append(known[0] if known else len(roots))
        roots += [] if known else [root]
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
