"""Scans for first-order attention, which depends on position i - 1: loops of only the operations that need its state.

Reference: thesis on monolingual data, section 5.2.2; extended_cross_attention.py says which equation is which scan.

| scan | what it computes, for i = 1 .. I |
| --- | --- |
| weight_scan | alpha_i = softmax(E_i + u * m_i), m_{i+1} = alpha_i, or m_i + alpha_i if it accumulates |
| context_scan | alpha_i = softmax(E_i + (c_{i-1} A) K^T), c_i = alpha_i V |
| gate_scan | pi_i = sigmoid(q_i k'_i - lse_i), c_i = (1 - pi_i) c~_i + pi_i v'_i, [k'_i v'_i] = c_{i-1} T + b |
| linear_scan | c_i = a_i c_{i-1} + b_i, element by element (ssru.py) |

Each is an operator with a hand-written backward: automatic differentiation would record I times as many small steps,
and torch.compile would unroll them. Its forward and backward are loops of PyTorch operations, for any device; on a CUDA
device with Triton a scan whose heads are independent is one kernel (attention_scan_triton.py).
`real` (batch, target), where given, is False at padding of the target: such a position leaves the state unchanged.
Positions whose previous state is known (a step of a search, all of its beams) need no scan: `weight_step`, `gate_step`.

The loops store tensors with the target position first, so that a step reads and writes whole blocks of memory, and
every step is as few operations as possible: on a CPU a call costs more than its arithmetic. Gradients that need no
order (of keys, values and matrices) are one product after the loop. A loop returns tensors only: an empty one as the
gradient of an input that was None.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softmax

from .linear import faster
from .matrices import in_own_precision


def weight_step(energies: Tensor, coefficient: Tensor, memory: Tensor | None) -> Tensor:
    """Computes the weights alpha of `weight_scan` from a known m, `memory` (batch, heads, target, source); None: 0."""
    if memory is not None:
        energies = torch.addcmul(energies, coefficient.unsqueeze(2), memory)
    return softmax(energies, dim=-1)


def gate_step(
    query: Tensor, plain: Tensor, log_sum: Tensor, transition: Tensor, bias: Tensor | None, context: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Computes gate pi (batch, heads, target, 1) and context c of `gate_scan` at positions whose previous context is
    known: `context`, the shape of c, None: zeros. Autocast is off, as in the scan."""
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


# Loops


def previous_states(states: Tensor, start: Tensor | None, real: Tensor | None) -> Tensor:
    """Returns for each position the state after the last real position before it, or `start` (None: zeros) where there
    is none; states: (target, batch, ...)."""
    first = torch.zeros_like(states[:1]) if start is None else start.reshape(states[:1].shape)
    if real is None:
        return torch.cat([first, states[:-1]])
    steps = torch.arange(1, len(states) + 1, device=states.device).unsqueeze(1)
    last = torch.where(real.t(), steps, 0).cummax(0).values
    last = torch.cat([torch.zeros_like(last[:1]), last[:-1]])  # number of the real position before, from 1; 0: none
    rows = torch.arange(states.shape[1], device=states.device)
    return torch.cat([first, states])[last, rows]


def _time_first(tensor: Tensor) -> Tensor:
    """Returns (batch, heads, target, ...) as a contiguous (target, batch, heads, ...): a step's slice is one block."""
    return tensor.movedim(2, 0).contiguous()


def _per_step(real: Tensor | None, steps: int) -> Sequence[Tensor | None]:
    """Splits `real` (batch, target) into one (batch, 1, 1) mask a step."""
    return [None] * steps if real is None else real.t()[:, :, None, None].unbind(0)


def _kept(real: Tensor | None, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
    """Splits the gradient of the state after a position into that of this position's own state (where it is real) and
    that of the state before (at padding)."""
    if real is None:
        return gradient, None
    return gradient * real, gradient * ~real


def weights_forward(
    energies: Tensor, coefficient: Tensor, start: Tensor | None, real: Tensor | None, accumulate: bool
) -> Tensor:
    """Computes the weights of attention whose energies depend on the earlier weights of the same source position.

    Args:
        energies: E (batch, heads, target, source), very negative where the source is masked.
        coefficient: u (batch, heads, source).
        start: m_1 (batch, heads, source); None is zero.
        accumulate: whether m sums all earlier weights, or holds the last ones.

    Returns: alpha, the shape of E.
    """
    rows = _time_first(energies)
    weights, total = torch.empty_like(rows), torch.empty_like(rows[0])
    memory = torch.zeros_like(total) if start is None else start.clone()
    for row, weight, visible in zip(rows.unbind(0), weights.unbind(0), _per_step(real, len(rows))):
        torch.addcmul(row, coefficient, memory, out=total)
        torch.softmax(total, -1, out=weight)
        if visible is not None:
            memory = memory + weight * visible if accumulate else torch.where(visible, weight, memory)
        elif accumulate:
            memory += weight
        else:
            memory = weight
    return weights.movedim(0, 2)


def weights_backward(
    gradient: Tensor, coefficient: Tensor, start: Tensor | None, real: Tensor | None, weights: Tensor, accumulate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    gradients, weights = _time_first(gradient), weights.movedim(2, 0)
    result, total = torch.empty_like(gradients), torch.empty_like(gradients[0])
    carry = torch.zeros_like(total)  # gradient of the memory after the present position
    steps = zip(gradients.unbind(0), weights.unbind(0), result.unbind(0), _per_step(real, len(gradients)))
    for row, weight, out, visible in reversed(list(steps)):
        own, past = _kept(visible, carry)
        torch.add(row, own, out=total)
        torch._softmax_backward_data(total, weight, -1, total.dtype, grad_input=out)
        if accumulate:
            carry.addcmul_(coefficient, out)
        elif past is None:
            torch.mul(coefficient, out, out=carry)
        else:
            carry = torch.addcmul(past, coefficient, out)
    if accumulate:
        counted = weights if real is None else weights * real.t()[:, :, None, None]
        memory = counted.cumsum(0) - counted + (0 if start is None else start)
    else:
        memory = previous_states(weights, start, real)
    return result.movedim(0, 2), (result * memory).sum(0), carry


def contexts_forward(
    energies: Tensor, keys: Tensor, values: Tensor, transition: Tensor | None, start: Tensor | None, real: Tensor | None
) -> Tensor:
    """Computes the weights of attention whose query depends on the previous position's context.

    Args:
        energies: E (batch, heads, target, source), very negative where the source is masked.
        keys, values: K and V (batch, heads, source, width).
        transition: A (heads * width, heads * width), which mixes the heads; None is the identity.
        start: c_0 (batch, heads, width); None is zero.

    Returns: alpha, the shape of E.
    """
    rows = _time_first(energies)
    batch, heads, length = rows.shape[1:]
    weights, total = torch.empty_like(rows), rows.new_empty(batch * heads, 1, length)
    flat_keys = keys.flatten(0, 1).transpose(1, 2)
    flat_values = values.flatten(0, 1)
    context = rows.new_zeros(batch, heads, keys.shape[3]) if start is None else start
    for row, weight, visible in zip(rows.unbind(0), weights.unbind(0), _per_step(real, len(rows))):
        query = context if transition is None else (context.reshape(batch, -1) @ transition).view_as(context)
        flat = query.reshape(batch * heads, 1, -1)
        torch.baddbmm(row.view_as(total), flat, flat_keys, out=total)
        torch.softmax(total.view_as(row), -1, out=weight)
        new = torch.bmm(weight.view_as(total), flat_values).view_as(context)
        context = new if visible is None else torch.where(visible, new, context)
    return weights.movedim(0, 2)


def contexts_backward(
    gradient: Tensor,
    keys: Tensor,
    values: Tensor,
    transition: Tensor | None,
    start: Tensor | None,
    real: Tensor | None,
    weights: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    gradients, weights = _time_first(gradient), weights.movedim(2, 0).contiguous()
    target, batch, heads, length = gradients.shape
    width = keys.shape[3]
    flat_keys = keys.reshape(batch * heads, length, width)
    flat_values = values.reshape(batch * heads, length, width).transpose(1, 2)
    d_energies, total = torch.empty_like(gradients), gradients.new_empty(batch * heads, 1, length)
    d_queries = gradients.new_empty(target, batch, heads, width)
    d_contexts = torch.empty_like(d_queries)
    carry = torch.zeros_like(d_queries[0])  # gradient of the context after the present position
    for i, visible in reversed(list(enumerate(_per_step(real, len(gradients))))):
        own, past = _kept(visible, carry)
        d_contexts[i] = own
        torch.baddbmm(gradients[i].view_as(total), own.reshape(-1, 1, width), flat_values, out=total)
        row = total.view_as(weights[i])
        torch._softmax_backward_data(row, weights[i], -1, row.dtype, grad_input=d_energies[i])
        torch.bmm(d_energies[i].view_as(total), flat_keys, out=d_queries[i].view(-1, 1, width))
        carry = d_queries[i] if transition is None else (d_queries[i].flatten(1) @ transition.t()).view_as(own)
        if past is not None:
            carry = carry + past
    by_head = weights.movedim(0, 2).reshape(batch * heads, target, length)
    contexts = torch.bmm(by_head, flat_values.transpose(1, 2)).view(batch, heads, target, width).movedim(2, 0)
    before = previous_states(contexts, start, real)
    queries = before if transition is None else (before.flatten(2) @ transition).view_as(before)
    d_rows = d_energies.movedim(0, 2)
    d_keys = torch.matmul(d_rows.transpose(2, 3), queries.movedim(0, 2))
    d_values = torch.bmm(by_head.transpose(1, 2), d_contexts.movedim(0, 2).flatten(0, 1)).view_as(values)
    d_transition = d_rows.new_empty(0)
    if transition is not None:
        d_transition = before.flatten(2).flatten(0, 1).t() @ d_queries.flatten(2).flatten(0, 1)
    return d_rows, d_keys, d_values, d_transition, carry.clone()


def group(tensor: Tensor, groups: int) -> Tensor:
    """Rearranges (batch, heads, target, ...) to a contiguous (target, groups, batch, heads / groups, ...)."""
    return tensor.unflatten(1, (groups, -1)).movedim(3, 0).transpose(1, 2).contiguous()


def ungroup(tensor: Tensor) -> Tensor:
    """Undoes `group`."""
    return tensor.transpose(1, 2).movedim(0, 3).flatten(1, 2)


def gates_forward(
    query: Tensor,
    plain: Tensor,
    log_sum: Tensor,
    transition: Tensor,
    bias: Tensor | None,
    start: Tensor | None,
    real: Tensor | None,
) -> Tensor:
    """Computes contexts, each a mixture by a gate of ordinary attention's and a value made of the previous context.

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
    groups, size = transition.shape[:2]
    queries, plains, sums = (group(x, groups) for x in (query, plain, log_sum))
    contexts = torch.empty_like(plains)
    context = torch.zeros_like(plains[0]) if start is None else group(start.unsqueeze(2), groups)[0]
    wide = None if bias is None else bias.unsqueeze(1)
    for i, visible in enumerate(_per_step(real, len(plains))):
        flat = context.flatten(2)
        mixed = torch.bmm(flat, transition) if wide is None else torch.baddbmm(wide, flat, transition)
        key, value = (x.view_as(context) for x in mixed.unflatten(-1, (2, size)).unbind(2))
        gate = torch.sub((queries[i] * key).sum(-1), sums[i]).sigmoid_().unsqueeze(-1)
        torch.lerp(plains[i], value, gate, out=contexts[i])
        context = contexts[i] if visible is None else torch.where(visible, contexts[i], context)
    return ungroup(contexts)


def gates_backward(
    gradient: Tensor,
    query: Tensor,
    plain: Tensor,
    log_sum: Tensor,
    transition: Tensor,
    bias: Tensor | None,
    start: Tensor | None,
    real: Tensor | None,
    contexts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    groups, size = transition.shape[:2]
    gradients, queries, plains, sums, states = (group(x, groups) for x in (gradient, query, plain, log_sum, contexts))
    first = None if start is None else group(start.unsqueeze(2), groups)[0].transpose(0, 1)
    before = previous_states(states.transpose(1, 2), first, real).transpose(1, 2).flatten(3)
    mixed = torch.matmul(before, transition)
    if bias is not None:
        mixed = mixed + bias.unsqueeze(1)
    keys, values = (x.reshape(queries.shape) for x in mixed.unflatten(-1, (2, size)).unbind(3))
    gates = torch.sigmoid((queries * keys).sum(-1) - sums)
    slopes, apart = (gates * (1 - gates)).unbind(0), (values - plains).unbind(0)
    d_plain, d_mixed = torch.empty_like(plains), torch.empty_like(mixed)
    d_key, d_value = (x.unflatten(-1, queries.shape[3:]) for x in d_mixed.unflatten(-1, (2, size)).unbind(3))
    d_sums = torch.empty_like(sums)
    carry = torch.zeros_like(plains[0])  # gradient of the context after the present position
    back = transition.transpose(1, 2)
    for i, visible in reversed(list(enumerate(_per_step(real, len(plains))))):
        own, past = _kept(visible, carry)
        own = own + gradients[i]
        d_plain[i] = own
        torch.mul(own, gates[i].unsqueeze(-1), out=d_value[i])
        torch.mul((own * apart[i]).sum(-1), slopes[i], out=d_sums[i])
        torch.mul(queries[i], d_sums[i].unsqueeze(-1), out=d_key[i])
        carry = torch.bmm(d_mixed[i], back).view_as(own)
        if past is not None:
            carry = carry + past
    d_query = keys * d_sums.unsqueeze(-1)
    d_plain = d_plain - d_value
    d_transition = torch.matmul(
        before.transpose(0, 1).flatten(1, 2).transpose(1, 2), d_mixed.transpose(0, 1).flatten(1, 2)
    )
    d_bias = d_mixed.new_empty(0) if bias is None else d_mixed.sum((0, 2))
    d_start = ungroup(carry.unsqueeze(0)).squeeze(2)
    return ungroup(d_query), ungroup(d_plain), ungroup(-d_sums), d_transition, d_bias, d_start


def recur(added: Tensor, decay: Tensor) -> Tensor:
    """Computes c_t = a_t c_{t-1} + b_t, c_0 = 0, along the first dimension: position by position on a CPU; elsewhere,
    where a call costs more than its arithmetic, by `recur_by_doubling`."""
    if added.device.type != "cpu":
        return recur_by_doubling(added, decay)
    states, before = added.new_empty(added.shape), torch.zeros_like(added[0])
    for state, new, kept in zip(states.unbind(0), added.unbind(0), decay.unbind(0)):
        before = torch.addcmul(new, kept, before, out=state)
    return states


def recur_by_doubling(added: Tensor, decay: Tensor) -> Tensor:
    """Computes `recur` in log2(positions) passes: each pass doubles the number of positions that a state sums over."""
    step = 1
    while step < len(added):
        added = torch.cat([added[:step], torch.addcmul(added[step:], decay[step:], added[:-step])])
        decay = torch.cat([decay[:step], decay[step:] * decay[:-step]])
        step *= 2
    return added.clone(memory_format=torch.contiguous_format) if step == 1 else added


def linear_forward(added: Tensor, decay: Tensor, start: Tensor | None) -> Tensor:
    """Computes c_t = a_t c_{t-1} + b_t; b `added`, a `decay` (batch, target, width), c_0 `start` or 0."""
    added, decay = added.transpose(0, 1), decay.transpose(0, 1)
    if start is not None:
        added = torch.cat([torch.addcmul(added[:1], decay[:1], start), added[1:]])
    return recur(added, decay).transpose(0, 1)


def linear_backward(
    gradient: Tensor, decay: Tensor, start: Tensor | None, states: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gradient, decay, states = (x.transpose(0, 1) for x in (gradient, decay, states))
    following = torch.cat([decay[1:], torch.zeros_like(decay[:1])])
    d_added = recur(gradient.flip(0), following.flip(0)).flip(0)
    return (
        d_added.transpose(0, 1),
        (d_added * previous_states(states, start, None)).transpose(0, 1),
        d_added[0] * decay[0],
    )


# Operators


def _fake_weights(energies: Tensor, *others) -> Tensor:
    # Laid out as the loops' results: the target position is the first dimension in memory.
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


def _heads_alone(given: dict[str, Any]) -> bool:
    """Returns whether no head depends on another one: only then are there kernels."""
    if "keys" in given:
        return given["transition"] is None
    return "query" not in given or len(given["transition"]) == given["query"].shape[1]


def _define(name: str, loop: Callable, fake: Callable) -> Any:
    """Defines the operator hf_mlnmt::<name>: it calls the loop, or the kernel of the loop's name, without autocast."""
    names = list(inspect.signature(loop).parameters)

    def run(*args):
        given = dict(zip(names, args))
        # No kernel supports padding.
        kernels = None if given.get("real") is not None else faster("scan_kernels", args[0])
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
    """Defines `forward` as an operator, differentiated by the operator `backward`: this gets the gradient, the inputs
    from number `kept` on, the output and flags, and returns the gradients of the first inputs, in order."""
    # Copies of this file (the package's, the Hub's) share an operator's name: a changed operator needs a new number.
    name = f"{name}_3"
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


weight_scan = _scan("weight_scan", weights_forward, _fake_weights, weights_backward, _fake_weights_backward, 1)
context_scan = _scan("context_scan", contexts_forward, _fake_weights, contexts_backward, _fake_contexts_backward, 1)
gate_scan = _scan("gate_scan", gates_forward, _fake_gates, gates_backward, _fake_gates_backward, 0)
linear_scan = _scan("linear_scan", linear_forward, _fake_linear, linear_backward, _fake_linear_backward, 1)
