"""The scans of attention_scan.py, forward and backward, as loops of PyTorch operations: for any device.

States are kept with the target position first, so that a step reads and writes whole blocks of memory, and every step
is as few operations as possible: on a CPU the call costs more than the numbers. What needs no order (the gradients of
keys, values and matrices) is one product after the loop. Shapes and names are those of attention_scan.py.
Every function is an operator there, which returns tensors only: an empty one is the gradient of what was None.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def previous_states(states: Tensor, start: Tensor | None, real: Tensor | None) -> Tensor:
    """Returns, of states (target, batch, ...), that of the last real position before each, or `start`."""
    first = torch.zeros_like(states[:1]) if start is None else start.reshape(states[:1].shape)
    if real is None:
        return torch.cat([first, states[:-1]])
    steps = torch.arange(1, len(states) + 1, device=states.device).unsqueeze(1)
    last = torch.where(real.t(), steps, 0).cummax(0).values
    last = torch.cat([torch.zeros_like(last[:1]), last[:-1]])  # 0: none before
    rows = torch.arange(states.shape[1], device=states.device)
    return torch.cat([first, states])[last, rows]


def _time_first(tensor: Tensor) -> Tensor:
    """Makes (batch, heads, target, ...) a contiguous (target, batch, heads, ...): a step's slice is one block."""
    return tensor.movedim(2, 0).contiguous()


def _per_step(real: Tensor | None, steps: int) -> Sequence[Tensor | None]:
    """Splits `real` (batch, target) into one (batch, 1, 1) mask a step."""
    return [None] * steps if real is None else real.t()[:, :, None, None].unbind(0)


def _kept(real: Tensor | None, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
    """Splits the gradient of the state after a position: to this position's own state, and past it."""
    if real is None:
        return gradient, None
    return gradient * real, gradient * ~real


def weights_forward(
    energies: Tensor, coefficient: Tensor, start: Tensor | None, real: Tensor | None, accumulate: bool
) -> Tensor:
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
    carry = torch.zeros_like(total)  # of the memory behind the position at hand
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
    energies: Tensor,
    keys: Tensor,
    values: Tensor,
    transition: Tensor | None,
    start: Tensor | None,
    real: Tensor | None,
) -> Tensor:
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
    carry = torch.zeros_like(d_queries[0])  # of the context behind the position at hand
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
    """Makes (batch, heads, target, ...) a contiguous (target, groups, batch, heads / groups, ...)."""
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
    carry = torch.zeros_like(plains[0])  # of the context behind the position at hand
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
    where a call costs more than what it computes, in log2 of their number passes over all positions."""
    if added.device.type != "cpu":
        return recur_by_doubling(added, decay)
    states, before = added.new_empty(added.shape), torch.zeros_like(added[0])
    for state, new, kept in zip(states.unbind(0), added.unbind(0), decay.unbind(0)):
        before = torch.addcmul(new, kept, before, out=state)
    return states


def recur_by_doubling(added: Tensor, decay: Tensor) -> Tensor:
    """Computes the same; after a pass with `step` each state holds what the 2 step positions up to it have added."""
    step = 1
    while step < len(added):
        added = torch.cat([added[:step], torch.addcmul(added[step:], decay[step:], added[:-step])])
        decay = torch.cat([decay[:step], decay[step:] * decay[:-step]])
        step *= 2
    return added.clone(memory_format=torch.contiguous_format) if step == 1 else added


def linear_forward(added: Tensor, decay: Tensor, start: Tensor | None, real: Tensor | None) -> Tensor:
    added, decay = added.transpose(0, 1), decay.transpose(0, 1)
    if start is not None:
        added = torch.cat([torch.addcmul(added[:1], decay[:1], start), added[1:]])
    return recur(added, decay).transpose(0, 1)


def linear_backward(
    gradient: Tensor, decay: Tensor, start: Tensor | None, real: Tensor | None, states: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gradient, decay, states = (x.transpose(0, 1) for x in (gradient, decay, states))
    following = torch.cat([decay[1:], torch.zeros_like(decay[:1])])
    d_added = recur(gradient.flip(0), following.flip(0)).flip(0)
    return (
        d_added.transpose(0, 1),
        (d_added * previous_states(states, start, None)).transpose(0, 1),
        d_added[0] * decay[0],
    )
