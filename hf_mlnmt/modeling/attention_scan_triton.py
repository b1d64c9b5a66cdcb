"""The scans of attention_scan.py as Triton kernels: each program loops over one head of one sentence.

The recurrent state stays in registers, in float32; a program reads its keys and values again at every step (they fit
into the L2 cache). The loops of attention_scan.py are the reference; as there, operations that need no order run
outside, in parallel. Left to the loops are padding of the target, and states that mix the heads (previous-context-full,
key-value-full), where a step is a product with a matrix of all heads that one program should not do alone.
Triton is optional: without it this file still imports, and `KERNELS` is None.
"""

import torch
from torch import Tensor

from .attention_scan import previous_states
from .training_triton import AVAILABLE, kernel, tl, triton


@kernel()
def _weights_kernel(
    energies, coefficient, start, weights, length, places, programs, started: tl.constexpr, sums: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    j = tl.arange(0, block)
    inside = j < places
    u = tl.load(coefficient + program * places + j, mask=inside, other=0.0).to(tl.float32)
    memory = tl.zeros([block], tl.float32)
    if started:
        memory = tl.load(start + program * places + j, mask=inside, other=0.0).to(tl.float32)
    for i in range(length):
        row = tl.load(energies + (program * length + i) * places + j, mask=inside, other=0.0).to(tl.float32)
        total = tl.where(inside, row + u * memory, float("-inf"))
        power = tl.exp(total - tl.max(total, 0))
        alpha = power / tl.sum(power, 0)
        tl.store(weights + (i * programs + program) * places + j, alpha, mask=inside)
        if sums:
            memory += alpha
        else:
            memory = alpha


@kernel()
def _weights_backward_kernel(
    gradient, coefficient, start, weights, d_energies, d_coefficient, d_start, length, places, programs,
    started: tl.constexpr, sums: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    j = tl.arange(0, block)
    inside = j < places
    u = tl.load(coefficient + program * places + j, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros([block], tl.float32)
    if started:
        first = tl.load(start + program * places + j, mask=inside, other=0.0).to(tl.float32)
    memory = first
    if sums:  # the sum of all weights, from which the loop below subtracts each position's
        for i in range(length):
            memory += tl.load(weights + (i * programs + program) * places + j, mask=inside, other=0.0)
    carry = tl.zeros([block], tl.float32)
    d_u = tl.zeros([block], tl.float32)
    for step in range(length):
        i = length - 1 - step
        here = (i * programs + program) * places + j
        alpha = tl.load(weights + here, mask=inside, other=0.0)
        if sums:
            memory -= alpha
        elif i > 0:
            memory = tl.load(weights + here - programs * places, mask=inside, other=0.0)
        else:
            memory = first
        total = tl.load(gradient + (program * length + i) * places + j, mask=inside, other=0.0).to(tl.float32) + carry
        d_row = alpha * (total - tl.sum(alpha * total, 0))
        tl.store(d_energies + here, d_row, mask=inside)
        d_u += d_row * memory
        if sums:
            carry += u * d_row
        else:
            carry = u * d_row
    tl.store(d_coefficient + program * places + j, d_u, mask=inside)
    tl.store(d_start + program * places + j, carry, mask=inside)


@kernel()
def _contexts_kernel(
    energies, keys, values, start, weights, highest, sums, contexts, length, places, width, programs,
    started: tl.constexpr, block: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    d = tl.arange(0, wide)
    real = d < width
    context = tl.zeros([wide], tl.float32)
    if started:
        context = tl.load(start + program * width + d, mask=real, other=0.0).to(tl.float32)
    for i in range(length):
        top = tl.full([1], float("-inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        read = tl.zeros([wide], tl.float32)
        for begin in range(0, places, block):
            j = begin + tl.arange(0, block)
            inside = j < places
            tile = (program * places + j[:, None]) * width + d[None, :]
            both = inside[:, None] & real[None, :]
            key = tl.load(keys + tile, mask=both, other=0.0).to(tl.float32)
            value = tl.load(values + tile, mask=both, other=0.0).to(tl.float32)
            row = tl.load(energies + (program * length + i) * places + j, mask=inside, other=0.0).to(tl.float32)
            row = tl.where(inside, row + tl.sum(key * context[None, :], 1), float("-inf"))
            tl.store(weights + (i * programs + program) * places + j, row, mask=inside)
            higher = tl.maximum(top, tl.max(row, 0))
            shrink = tl.exp(top - higher)
            power = tl.exp(row - higher)
            total = total * shrink + tl.sum(power, 0)
            read = read * shrink + tl.sum(power[:, None] * value, 0)
            top = higher
        context = read / total
        one = tl.arange(0, 1)
        tl.store(highest + i * programs + program + one, top)
        tl.store(sums + i * programs + program + one, total)
        tl.store(contexts + (i * programs + program) * width + d, context, mask=real)


@kernel()
def _contexts_backward_kernel(
    gradient, keys, values, weights, d_energies, deltas, d_queries, d_contexts, length, places, width, programs,
    block: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    d = tl.arange(0, wide)
    real = d < width
    carry = tl.zeros([wide], tl.float32)
    for step in range(length):
        i = length - 1 - step
        delta = tl.zeros([1], tl.float32)
        steep = tl.zeros([wide], tl.float32)
        mean = tl.zeros([wide], tl.float32)
        for begin in range(0, places, block):
            j = begin + tl.arange(0, block)
            inside = j < places
            tile = (program * places + j[:, None]) * width + d[None, :]
            both = inside[:, None] & real[None, :]
            key = tl.load(keys + tile, mask=both, other=0.0).to(tl.float32)
            value = tl.load(values + tile, mask=both, other=0.0).to(tl.float32)
            alpha = tl.load(weights + (i * programs + program) * places + j, mask=inside, other=0.0)
            total = tl.load(gradient + (program * length + i) * places + j, mask=inside, other=0.0).to(tl.float32)
            total += tl.sum(value * carry[None, :], 1)
            tl.store(d_energies + (i * programs + program) * places + j, total, mask=inside)
            delta += tl.sum(alpha * total, 0)
            steep += tl.sum((alpha * total)[:, None] * key, 0)
            mean += tl.sum(alpha[:, None] * key, 0)
        here = (i * programs + program) * width + d
        tl.store(d_contexts + here, carry, mask=real)
        carry = steep - delta * mean
        tl.store(d_queries + here, carry, mask=real)
        tl.store(deltas + i * programs + program + tl.arange(0, 1), delta)


@kernel()
def _gates_kernel(
    queries, plains, log_sums, transition, bias, start, contexts, length, width, heads, programs,
    started: tl.constexpr, biased: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    head = program % heads
    rows, d = tl.arange(0, wide), tl.arange(0, wide)
    real = d < width
    both = (rows < width)[:, None] & real[None, :]
    tile = (head * width + rows[:, None]) * 2 * width + d[None, :]
    to_key = tl.load(transition + tile, mask=both, other=0.0).to(tl.float32)
    to_value = tl.load(transition + tile + width, mask=both, other=0.0).to(tl.float32)
    key_bias = tl.zeros([wide], tl.float32)
    value_bias = tl.zeros([wide], tl.float32)
    if biased:
        key_bias = tl.load(bias + head * 2 * width + d, mask=real, other=0.0).to(tl.float32)
        value_bias = tl.load(bias + head * 2 * width + width + d, mask=real, other=0.0).to(tl.float32)
    context = tl.zeros([wide], tl.float32)
    if started:
        context = tl.load(start + program * width + d, mask=real, other=0.0).to(tl.float32)
    for i in range(length):
        # The context as a vector over rows instead of columns, by a sum, which needs no detour through memory.
        column = tl.sum(tl.where(rows[:, None] == d[None, :], context[None, :], 0.0), 1)
        key = tl.sum(column[:, None] * to_key, 0) + key_bias
        value = tl.sum(column[:, None] * to_value, 0) + value_bias
        here = (program * length + i) * width + d
        query = tl.load(queries + here, mask=real, other=0.0).to(tl.float32)
        plain = tl.load(plains + here, mask=real, other=0.0).to(tl.float32)
        log_sum = tl.load(log_sums + program * length + i).to(tl.float32)
        gate = 1 / (1 + tl.exp(log_sum - tl.sum(query * key, 0)))
        context = plain + gate * (value - plain)
        tl.store(contexts + here, context, mask=real)


@kernel()
def _gates_backward_kernel(
    gradient, queries, gates, slopes, apart, transition, d_plain, d_mixed, d_start, length, width, heads,
    wide: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    head = program % heads
    rows, d = tl.arange(0, wide), tl.arange(0, wide)
    real = d < width
    both = (rows < width)[:, None] & real[None, :]
    tile = (head * width + rows[:, None]) * 2 * width + d[None, :]
    to_key = tl.load(transition + tile, mask=both, other=0.0).to(tl.float32)
    to_value = tl.load(transition + tile + width, mask=both, other=0.0).to(tl.float32)
    carry = tl.zeros([wide], tl.float32)
    for step in range(length):
        i = length - 1 - step
        here = (program * length + i) * width + d
        own = carry + tl.load(gradient + here, mask=real, other=0.0).to(tl.float32)
        tl.store(d_plain + here, own, mask=real)
        gate = tl.load(gates + program * length + i)
        slope = tl.load(slopes + program * length + i)
        d_score = slope * tl.sum(own * tl.load(apart + here, mask=real, other=0.0), 0)
        d_key = d_score * tl.load(queries + here, mask=real, other=0.0).to(tl.float32)
        d_value = gate * own
        mixed = (program * length + i) * 2 * width + d
        tl.store(d_mixed + mixed, d_key, mask=real)
        tl.store(d_mixed + mixed + width, d_value, mask=real)
        column = tl.sum(to_key * d_key[None, :] + to_value * d_value[None, :], 1)
        carry = tl.sum(tl.where(rows[:, None] == d[None, :], column[:, None], 0.0), 0)
    tl.store(d_start + program * width + d, carry, mask=real)


def _time_first(like: Tensor) -> Tensor:
    """Returns an empty float32 tensor (target, batch, heads, ...) for `like` (batch, heads, target, ...)."""
    return torch.empty_like(like.movedim(2, 0), dtype=torch.float32, memory_format=torch.contiguous_format)


def _given(tensor: Tensor | None, otherwise: Tensor) -> Tensor:
    """Returns the tensor, contiguous, or for None another one as a pointer that the kernel does not read."""
    return otherwise if tensor is None else tensor.contiguous()


def weights_forward(energies: Tensor, coefficient: Tensor, start: Tensor | None, accumulate: bool) -> Tensor:
    batch, heads, length, places = energies.shape
    energies, coefficient = energies.contiguous(), coefficient.contiguous()
    weights, programs = _time_first(energies), batch * heads
    _weights_kernel[(programs,)](
        energies, coefficient, _given(start, coefficient), weights, length, places, programs, start is not None,
        accumulate, triton.next_power_of_2(places),
    )  # fmt: skip
    return weights.movedim(0, 2)


def weights_backward(
    gradient: Tensor, coefficient: Tensor, start: Tensor | None, weights: Tensor, accumulate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, length, places = gradient.shape
    gradient, coefficient = gradient.contiguous(), coefficient.contiguous()
    d_energies, programs = _time_first(gradient), batch * heads
    d_coefficient, d_start = (torch.empty(coefficient.shape, device=gradient.device) for _ in range(2))
    _weights_backward_kernel[(programs,)](
        gradient, coefficient, _given(start, coefficient), weights.movedim(2, 0).contiguous(), d_energies,
        d_coefficient, d_start, length, places, programs, start is not None, accumulate,
        triton.next_power_of_2(places),
    )  # fmt: skip
    return d_energies.movedim(0, 2), d_coefficient, d_start


def _tiles(places: int, width: int) -> tuple[int, int]:
    """Returns the number of source positions of a tile, and the width rounded up to a power of 2."""
    wide = triton.next_power_of_2(width)
    return min(triton.next_power_of_2(places), max(16, 4096 // wide)), wide


def contexts_forward(energies: Tensor, keys: Tensor, values: Tensor, start: Tensor | None) -> Tensor:
    """Computes `attention_scan.contexts_forward` for heads that do not depend on one another (no `transition`)."""
    batch, heads, length, places = energies.shape
    width, programs = keys.shape[3], batch * heads
    energies, keys, values = energies.contiguous(), keys.contiguous(), values.contiguous()
    weights = _time_first(energies)
    highest, sums = (torch.empty(length, batch, heads, 1, device=keys.device) for _ in range(2))
    contexts = torch.empty(length, batch, heads, width, device=keys.device)
    block, wide = _tiles(places, width)
    _contexts_kernel[(programs,)](
        energies, keys, values, _given(start, keys), weights, highest, sums, contexts, length, places, width, programs,
        start is not None, block, wide,
    )  # fmt: skip
    return weights.sub_(highest).exp_().div_(sums).movedim(0, 2)


def contexts_backward(
    gradient: Tensor, keys: Tensor, values: Tensor, start: Tensor | None, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Computes `attention_scan.contexts_backward` for heads that do not depend on one another (no `transition`)."""
    batch, heads, length, places = gradient.shape
    width, programs = keys.shape[3], batch * heads
    gradient, keys, values = gradient.contiguous(), keys.contiguous(), values.contiguous()
    ordered = weights.movedim(2, 0).contiguous()
    d_energies, deltas = torch.empty_like(ordered), torch.empty(length, batch, heads, 1, device=keys.device)
    d_queries, d_contexts = (torch.empty(length, batch, heads, width, device=keys.device) for _ in range(2))
    _contexts_backward_kernel[(programs,)](
        gradient, keys, values, ordered, d_energies, deltas, d_queries, d_contexts, length, places, width, programs,
        *_tiles(places, width),
    )  # fmt: skip
    d_rows = d_energies.sub_(deltas).mul_(ordered).movedim(0, 2)
    contexts = torch.matmul(weights, values.to(weights.dtype)).movedim(2, 0)
    before = previous_states(contexts, start, None).movedim(0, 2)
    d_keys = torch.matmul(d_rows.transpose(2, 3), before.to(d_rows.dtype))
    d_values = torch.matmul(weights.transpose(2, 3), d_contexts.movedim(0, 2))
    return d_rows, d_keys, d_values, d_rows.new_empty(0), d_queries[0].clone()


def gates_forward(
    query: Tensor, plain: Tensor, log_sum: Tensor, transition: Tensor, bias: Tensor | None, start: Tensor | None
) -> Tensor:
    """Computes `attention_scan.gates_forward` for heads that do not depend on one another (groups = heads)."""
    batch, heads, length, width = query.shape
    query, plain, log_sum, transition = (x.contiguous() for x in (query, plain, log_sum, transition))
    contexts = torch.empty(query.shape, device=query.device)
    _gates_kernel[(batch * heads,)](
        query, plain, log_sum, transition, _given(bias, query), _given(start, query), contexts, length, width, heads,
        batch * heads, start is not None, bias is not None, triton.next_power_of_2(width),
    )  # fmt: skip
    return contexts


def gates_backward(
    gradient: Tensor,
    query: Tensor,
    plain: Tensor,
    log_sum: Tensor,
    transition: Tensor,
    bias: Tensor | None,
    start: Tensor | None,
    contexts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Computes `attention_scan.gates_backward` for heads that do not depend on one another (groups = heads)."""
    batch, heads, length, width = query.shape
    before = previous_states(contexts.movedim(2, 0), start, None).movedim(0, 2)
    mixed = torch.matmul(before, transition)
    if bias is not None:
        mixed = mixed + bias.unsqueeze(1)
    keys, values = mixed.chunk(2, dim=-1)
    gates = torch.sigmoid((query * keys).sum(-1) - log_sum)
    apart, slopes = (values - plain).contiguous(), gates * (1 - gates)
    d_plain, d_mixed = (torch.empty(x.shape, device=x.device) for x in (query, mixed))
    d_start = torch.empty(batch, heads, width, device=query.device)
    gradient, query, transition = gradient.contiguous(), query.contiguous(), transition.contiguous()
    _gates_backward_kernel[(batch * heads,)](
        gradient, query, gates.contiguous(), slopes.contiguous(), apart, transition, d_plain, d_mixed, d_start, length,
        width, heads, triton.next_power_of_2(width),
    )  # fmt: skip
    d_sums = -slopes * (d_plain * apart).sum(-1)
    d_query = keys * -d_sums.unsqueeze(-1)
    d_transition = torch.einsum("bhtw,bhtv->hwv", before, d_mixed)
    d_bias = d_mixed.new_empty(0) if bias is None else d_mixed.sum((0, 2))
    return d_query, d_plain * (1 - gates.unsqueeze(-1)), d_sums, d_transition, d_bias, d_start


# The kernels by name, for attention_scan.py; None where Triton is missing.
_KERNELS = (weights_forward, weights_backward, contexts_forward, contexts_backward, gates_forward, gates_backward)
KERNELS = {function.__name__: function for function in _KERNELS} if AVAILABLE else None
