"""The recurrences of first-order attention as scans: all matrix products outside, only what depends on i - 1 inside.

Reference: thesis on monolingual data, section 5.2.2; extended_cross_attention.py says which equation is which scan.

| scan | what it computes, for i = 1 .. I |
| --- | --- |
| weight_scan | alpha_i = softmax(E_i + u * m_i), m_{i+1} = alpha_i, or m_i + alpha_i if it accumulates |
| context_scan | alpha_i = softmax(E_i + (c_{i-1} A) K^T), c_i = alpha_i V |
| gate_scan | pi_i = sigmoid(q_i k'_i - lse_i), c_i = (1 - pi_i) c~_i + pi_i v'_i, [k'_i v'_i] = c_{i-1} T + b |
| linear_scan | c_i = a_i c_{i-1} + b_i, element by element (ssru.py) |

Each is an operator with a hand-written backward: automatic differentiation would record I times as many small steps,
and torch.compile would unroll them. The loops are in attention_scan_eager.py; on a CUDA device with Triton a scan whose
heads go alone is one kernel (attention_scan_triton.py).
`real` (batch, target), where given, is False at padding of the target: the state passes such a position unchanged.
Positions whose previous state is known (a step of a search, all of its beams) need no scan: `weight_step`, `gate_step`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softmax

from .attention_scan_eager import (
    contexts_backward,
    contexts_forward,
    gates_backward,
    gates_forward,
    group,
    linear_backward,
    linear_forward,
    ungroup,
    weights_backward,
    weights_forward,
)
from .linear import faster
from .matrices import in_own_precision


def weight_step(energies: Tensor, coefficient: Tensor, memory: Tensor | None) -> Tensor:
    """Computes alpha of positions whose `memory` m (batch, heads, target, source) is known; None is zero."""
    if memory is not None:
        energies = torch.addcmul(energies, coefficient.unsqueeze(2), memory)
    return softmax(energies, dim=-1)


def weight_scan(
    energies: Tensor, coefficient: Tensor, start: Tensor | None, real: Tensor | None, accumulate: bool
) -> Tensor:
    """Computes attention whose energies depend on the earlier weights of the same source position.

    Args:
        energies: E (batch, heads, target, source), very negative where the source is masked.
        coefficient: u (batch, heads, source).
        start: m_1 (batch, heads, source); None is zero.
        accumulate: whether m sums all earlier weights, or holds the last ones.

    Returns: alpha, the shape of E.
    """
    return _SCANS["weight"](energies, coefficient, start, real, accumulate)


def context_scan(
    energies: Tensor,
    keys: Tensor,
    values: Tensor,
    transition: Tensor | None,
    start: Tensor | None,
    real: Tensor | None,
) -> Tensor:
    """Computes attention whose query depends on the previous context.

    Args:
        energies: E (batch, heads, target, source), very negative where the source is masked.
        keys, values: K and V (batch, heads, source, width).
        transition: A (heads * width, heads * width), which mixes the heads; None is the identity.
        start: c_0 (batch, heads, width); None is zero.

    Returns: alpha, the shape of E.
    """
    return _SCANS["context"](energies, keys, values, transition, start, real)


def gate_step(
    query: Tensor, plain: Tensor, log_sum: Tensor, transition: Tensor, bias: Tensor | None, context: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Computes pi (batch, heads, target, 1) and c where the previous `context`, the shape of c, is known (None: zero),
    in the precision of its inputs, as the scan."""
    if context is None:
        context = torch.zeros_like(plain)
    with in_own_precision(plain):
        mixed = context.transpose(1, 2).unflatten(2, (len(transition), -1)).flatten(3)  # (batch, target, groups, size)
        mixed = torch.einsum("btgs,gsw->btgw", mixed, transition)
        if bias is not None:
            mixed = mixed + bias
        pairs = mixed.chunk(2, dim=-1)
        key, value = (x.unflatten(-1, (-1, plain.shape[-1])).flatten(2, 3).transpose(1, 2) for x in pairs)
        gate = torch.sigmoid((query * key).sum(-1) - log_sum).unsqueeze(-1)
        return gate, torch.lerp(plain, value, gate)


def gate_scan(
    query: Tensor,
    plain: Tensor,
    log_sum: Tensor,
    transition: Tensor,
    bias: Tensor | None,
    start: Tensor | None,
    real: Tensor | None,
) -> Tensor:
    """Mixes ordinary attention's contexts with the previous context through a gate.

    Args:
        query: q (batch, heads, target, width), scaled.
        plain: c~, the contexts of ordinary attention, the shape of q.
        log_sum: lse (batch, heads, target), the logarithm of ordinary attention's normaliser.
        transition: T (groups, heads / groups * width, 2 heads / groups * width): groups = heads, where each head has
            its own context, or 1, where all heads share all contexts.
        bias: b (groups, 2 heads / groups * width).
        start: c_0 (batch, heads, width); None is zero.

    Returns: c, the shape of q.
    """
    return _SCANS["gate"](query, plain, log_sum, transition, bias, start, real)


def linear_scan(added: Tensor, decay: Tensor, start: Tensor | None) -> Tensor:
    """Computes c of b (`added`) and a (`decay`), each (batch, target, width); start: c_0 (batch, width) or None."""
    return _SCANS["linear"](added, decay, start, None)


def _fake_weights(energies: Tensor, *others) -> Tensor:
    # The loops keep the target position first in memory.
    return torch.empty_like(energies.movedim(2, 0), memory_format=torch.contiguous_format).movedim(0, 2)


def _fake_weights_backward(gradient: Tensor, coefficient: Tensor, *others) -> tuple[Tensor, ...]:
    return _fake_weights(gradient), coefficient.new_empty(coefficient.shape), coefficient.new_empty(coefficient.shape)


def _fake_contexts_backward(
    gradient: Tensor, keys: Tensor, values: Tensor, transition: Tensor | None, *others
) -> tuple[Tensor, ...]:
    matrices = [keys.new_empty(0 if x is None else x.shape) for x in (keys, values, transition)]
    return _fake_weights(gradient), *matrices, keys.new_empty(*keys.shape[:2], keys.shape[3])


def _fake_gates(query: Tensor, plain: Tensor, log_sum: Tensor, transition: Tensor, *others) -> Tensor:
    return ungroup(torch.empty_like(group(query, transition.shape[0])))


def _fake_gates_backward(
    gradient: Tensor, query: Tensor, plain: Tensor, log_sum: Tensor, transition: Tensor, bias: Tensor | None, *others
) -> tuple[Tensor, ...]:
    groups = transition.shape[0]
    *states, start = (ungroup(torch.empty_like(group(x, groups))) for x in (query, plain, log_sum, query[:, :, :1]))
    matrices = [query.new_empty(0 if x is None else x.shape) for x in (transition, bias)]
    return *states, *matrices, start.squeeze(2)


def _fake_linear(added: Tensor, *others) -> Tensor:
    return torch.empty_like(added.transpose(0, 1), memory_format=torch.contiguous_format).transpose(0, 1)


def _fake_linear_backward(gradient: Tensor, *others) -> tuple[Tensor, ...]:
    return _fake_linear(gradient), _fake_linear(gradient), gradient.new_empty(len(gradient), gradient.shape[2])


def _kernels(tensor: Tensor, real: Tensor | None) -> Any:
    """Returns the Triton kernels by name, or None where loops must do, as with padding of the target."""
    return None if real is not None else faster("scan_kernels", tensor)


def _heads_alone(given: dict[str, Any]) -> bool:
    """Returns whether every head goes by itself, and on its context if it has one: all that the kernels can."""
    if "keys" in given:
        return given["transition"] is None
    return "query" not in given or len(given["transition"]) == given["query"].shape[1]


def _define(name: str, loop: Callable, fake: Callable) -> Any:
    """Defines the operator hf_mlnmt::<name>: the loop, or the kernel of its name, in the precision of its inputs."""
    names = list(inspect.signature(loop).parameters)

    def run(*args):
        given = dict(zip(names, args))
        kernels = _kernels(args[0], given["real"])
        with in_own_precision(args[0]):
            if kernels is None or loop.__name__ not in kernels or not _heads_alone(given):
                return loop(*args)
            kernel = kernels[loop.__name__]
            return kernel(*[given[name] for name in inspect.signature(kernel).parameters])

    schema = torch.library.infer_schema(loop, mutates_args=())
    operator = torch.library.custom_op(f"hf_mlnmt::{name}", run, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    return operator


def _scan(name: str, forward: Callable, fake: Callable, backward: Callable, fake_backward: Callable, kept: int) -> Any:
    """Defines `forward` as an operator, differentiated by `backward`, an operator too, of the gradient, the inputs from
    number `kept` on, and the output (flags last); it returns the gradients of the first inputs, in order."""
    # The package and a copy of it from the Hub may be in one process; change the number when an operator changes.
    name = f"{name}_2"
    if hasattr(torch.ops.hf_mlnmt, name):
        return getattr(torch.ops.hf_mlnmt, name)
    operator, gradients = _define(name, forward, fake), _define(f"{name}_backward", backward, fake_backward)

    def setup_context(ctx, inputs, output):
        ctx.flags = [x for x in inputs if isinstance(x, bool)]
        ctx.present = [x is not None for x in inputs]
        ctx.save_for_backward(*[x for x in inputs[kept:] if not isinstance(x, bool)], output)

    def differentiate(ctx, gradient):
        by_inputs = gradients(gradient, *ctx.saved_tensors, *ctx.flags)
        rest = [None] * (len(ctx.present) - len(by_inputs))
        return tuple(x if there else None for x, there in zip([*by_inputs, *rest], ctx.present))

    operator.register_autograd(differentiate, setup_context=setup_context)
    return operator


_SCANS = {
    "weight": _scan("weight_scan", weights_forward, _fake_weights, weights_backward, _fake_weights_backward, 1),
    "context": _scan("context_scan", contexts_forward, _fake_weights, contexts_backward, _fake_contexts_backward, 1),
    "gate": _scan("gate_scan", gates_forward, _fake_gates, gates_backward, _fake_gates_backward, 0),
    "linear": _scan("linear_scan", linear_forward, _fake_linear, linear_backward, _fake_linear_backward, 1),
}
