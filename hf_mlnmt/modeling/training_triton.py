"""Triton kernels for a training step's operations other than linear layers: each reads and writes its tensors once.

| kernel | computes | reference |
| --- | --- | --- |
| residual | z = x + dropout(f); LN(z), LN(x) or z, and their gradients | `Sublayer` in layers.py |
| attention | equation 1 of attention.py for a short sentence and a head | PyTorch's attention |
| activation | the gradient through relu, and that of the bias before it | autograd |
| loss | equation 1 of loss.py from logits, which become its gradient | `_ProjectedCrossEntropy` |

All arithmetic is in float32, but products of matrices have factors in the tensors' dtype. Dropout keeps an element if a
hash of its index and 64 random bits is at least the rate: backward computes the hash again, and no mask is stored.
Triton is optional: without it this file still imports, and `AVAILABLE` is False.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

try:
    import triton
    import triton.language as tl

    AVAILABLE = True
except ImportError:  # Triton is optional
    AVAILABLE, triton = False, None  # type: ignore[assignment]

    class tl:  # type: ignore[no-redef]
        """A stand-in for triton.language in the kernels' signatures."""

        constexpr = int


logger = logging.get_logger(__name__)

PROGRAMS = 264  # programs among which rows are divided where sums over all rows are computed: 2 a processor of an H100


# Arguments that Triton must not compile for by alignment: in a CUDA graph their alignment may be another.
_ANYWHERE = ("seed", "mask", "labels", "losses")


def kernel(*varying: str) -> Any:
    """Returns `triton.jit` as a decorator that compiles once for all values of `varying`; without Triton: no effect."""
    if not AVAILABLE:
        return lambda function: function
    return triton.jit(do_not_specialize=varying, do_not_specialize_on_alignment=_ANYWHERE)


@kernel()
def _kept(seed, place, rate):
    """Returns which elements dropout keeps, by Wellons' hash triple32 of `place` and both halves of the seed."""
    bits = place.to(tl.uint32) + seed.to(tl.uint32)
    bits = (bits ^ (bits >> 17)) * 0xED5AD4BB
    bits = (bits ^ (bits >> 11) ^ (seed >> 32).to(tl.uint32)) * 0xAC4C1B51
    bits = (bits ^ (bits >> 15)) * 0x31848BAB
    bits = bits ^ (bits >> 14)
    return (bits >> 8).to(tl.float32) * (1.0 / 16777216.0) >= rate


@kernel("rows")
def _residual_kernel(
    states, computed, seed, weight, bias, output, means, scales, rate, eps, rows, width,
    summed: tl.constexpr, dropped: tl.constexpr, normed: tl.constexpr, tile: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    d = tl.arange(0, wide)
    inside = (row < rows)[:, None] & (d < width)[None, :]
    place = row[:, None] * width + d[None, :]
    total = tl.load(states + place, mask=inside, other=0.0).to(tl.float32)
    if summed:
        added = tl.load(computed + place, mask=inside, other=0.0).to(tl.float32)
        if dropped:
            added = tl.where(_kept(tl.load(seed), place, rate), added / (1.0 - rate), 0.0)
        total += added
    if normed:
        mean = tl.sum(total, 1) / width
        apart = tl.where(inside, total - mean[:, None], 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(apart * apart, 1) / width + eps)
        tl.store(means + row, mean, mask=row < rows)
        tl.store(scales + row, scale, mask=row < rows)
        factor = tl.load(weight + d, mask=d < width, other=0.0).to(tl.float32)
        offset = tl.load(bias + d, mask=d < width, other=0.0).to(tl.float32)
        total = apart * scale[:, None] * factor[None, :] + offset[None, :]
    tl.store(output + place, total.to(output.dtype.element_ty), mask=inside)


@kernel("rows")
def _residual_backward_kernel(
    gradient, states, computed, seed, weight, means, scales, by_states, by_computed, by_norm, rate, rows, width,
    summed: tl.constexpr, dropped: tl.constexpr, normed: tl.constexpr, tile: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, wide)
    factor = tl.zeros([wide], tl.float32)
    if normed:
        factor = tl.load(weight + d, mask=d < width, other=0.0).to(tl.float32)
    by_weight = tl.zeros([wide], tl.float32)
    by_bias = tl.zeros([wide], tl.float32)
    for first in range(tl.program_id(0) * tile, rows, tl.num_programs(0) * tile):
        row = first + tl.arange(0, tile).to(tl.int64)
        inside = (row < rows)[:, None] & (d < width)[None, :]
        place = row[:, None] * width + d[None, :]
        slope = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        if dropped:
            kept = _kept(tl.load(seed), place, rate)
        if normed:
            total = tl.load(states + place, mask=inside, other=0.0).to(tl.float32)
            if summed:
                added = tl.load(computed + place, mask=inside, other=0.0).to(tl.float32)
                if dropped:
                    added = tl.where(kept, added / (1.0 - rate), 0.0)
                total += added
            mean = tl.load(means + row, mask=row < rows, other=0.0)
            scale = tl.load(scales + row, mask=row < rows, other=0.0)
            normal = tl.where(inside, (total - mean[:, None]) * scale[:, None], 0.0)
            by_weight += tl.sum(slope * normal, 0)
            by_bias += tl.sum(slope, 0)
            slope = slope * factor[None, :]
            along = tl.sum(slope * normal, 1) / width
            level = tl.sum(slope, 1) / width
            slope = (slope - level[:, None] - normal * along[:, None]) * scale[:, None]
            tl.store(by_states + place, slope.to(by_states.dtype.element_ty), mask=inside)
        if dropped:
            slope = tl.where(kept, slope / (1.0 - rate), 0.0)
            tl.store(by_computed + place, slope.to(by_computed.dtype.element_ty), mask=inside)
    if normed:
        here = by_norm + tl.program_id(0) * 2 * width + d
        tl.store(here, by_weight, mask=d < width)
        tl.store(here + width, by_bias, mask=d < width)


@kernel()
def _weights(
    q, k, mask, seed, sentence, head, heads, i, j, target, source, mask_batch, mask_head, mask_query, mask_key, scale,
    rate, masked: tl.constexpr, causal: tl.constexpr, dropped: tl.constexpr,
):  # fmt: skip
    """Returns attention weights, 0 in a row that is all masked, and dropout's factors, 1 / (1 - rate) or 0."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = (i < target)[:, None] & (j < source)[None, :]
    if causal:
        seen = seen & (j[None, :] <= i[:, None])
    if masked:
        at = mask + sentence * mask_batch + head * mask_head + i[:, None] * mask_query + j[None, :] * mask_key
        told = tl.load(at, mask=seen, other=0)
        if mask.dtype.element_ty.is_floating():
            scores += told.to(tl.float32)
        else:
            seen = seen & (told != 0)
    scores = tl.where(seen, scores, float("-inf"))
    top = tl.max(scores, 1)
    power = tl.exp(scores - tl.where(top == float("-inf"), 0.0, top)[:, None])
    total = tl.sum(power, 1)
    weights = power / tl.where(total == 0.0, 1.0, total)[:, None]
    factor = weights * 0.0 + 1.0
    if dropped:
        place = ((sentence * heads + head) * target + i[:, None]) * source + j[None, :]
        factor = tl.where(_kept(tl.load(seed), place, rate), 1.0 / (1.0 - rate), 0.0)
    return weights, factor


@kernel("heads", "target", "source", "mask_batch", "mask_head", "mask_query", "mask_key")
def _attention_kernel(
    query, key, value, mask, seed, output, query_batch, query_time, query_head, key_batch, key_time, key_head,
    value_batch, value_time, value_head, mask_batch, mask_head, mask_query, mask_key, heads, target, source, width,
    scale, rate, masked: tl.constexpr, causal: tl.constexpr, dropped: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    sentence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    i, j, d = tl.arange(0, rows), tl.arange(0, columns), tl.arange(0, wide)
    reads = (i < target)[:, None] & (d < width)[None, :]
    read = (j < source)[:, None] & (d < width)[None, :]
    at = query + sentence * query_batch + head * query_head + i[:, None] * query_time + d[None, :]
    q = tl.load(at, mask=reads, other=0.0)
    at = key + sentence * key_batch + head * key_head + j[:, None] * key_time + d[None, :]
    k = tl.load(at, mask=read, other=0.0)
    at = value + sentence * value_batch + head * value_head + j[:, None] * value_time + d[None, :]
    v = tl.load(at, mask=read, other=0.0)
    weights, factor = _weights(
        q, k, mask, seed, sentence, head, heads, i, j, target, source, mask_batch, mask_head, mask_query, mask_key,
        scale, rate, masked, causal, dropped,
    )  # fmt: skip
    mixed = tl.dot((weights * factor).to(v.dtype), v, input_precision="ieee")
    place = ((sentence * target + i[:, None]) * heads + head) * width + d[None, :]
    tl.store(output + place, mixed.to(output.dtype.element_ty), mask=reads)


@kernel("heads", "target", "source", "mask_batch", "mask_head", "mask_query", "mask_key")
def _attention_backward_kernel(
    gradient, query, key, value, mask, seed, by_query, by_key, by_value, query_batch, query_time, query_head,
    key_batch, key_time, key_head, value_batch, value_time, value_head, mask_batch, mask_head, mask_query, mask_key,
    heads, target, source, width, scale, rate, masked: tl.constexpr, causal: tl.constexpr, dropped: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    sentence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    i, j, d = tl.arange(0, rows), tl.arange(0, columns), tl.arange(0, wide)
    reads = (i < target)[:, None] & (d < width)[None, :]
    read = (j < source)[:, None] & (d < width)[None, :]
    query_at = sentence * query_batch + head * query_head + i[:, None] * query_time + d[None, :]
    key_at = sentence * key_batch + head * key_head + j[:, None] * key_time + d[None, :]
    value_at = sentence * value_batch + head * value_head + j[:, None] * value_time + d[None, :]
    place = ((sentence * target + i[:, None]) * heads + head) * width + d[None, :]
    q = tl.load(query + query_at, mask=reads, other=0.0)
    k = tl.load(key + key_at, mask=read, other=0.0)
    v = tl.load(value + value_at, mask=read, other=0.0)
    slope = tl.load(gradient + place, mask=reads, other=0.0)
    weights, factor = _weights(
        q, k, mask, seed, sentence, head, heads, i, j, target, source, mask_batch, mask_head, mask_query, mask_key,
        scale, rate, masked, causal, dropped,
    )  # fmt: skip
    summed = tl.dot(tl.trans((weights * factor).to(slope.dtype)), slope, input_precision="ieee")
    tl.store(by_value + value_at, summed.to(by_value.dtype.element_ty), mask=read)
    by_weights = tl.dot(slope, tl.trans(v), input_precision="ieee") * factor
    by_scores = weights * (by_weights - tl.sum(weights * by_weights, 1)[:, None]) * scale
    by_scores = by_scores.to(q.dtype)
    summed = tl.dot(by_scores, k, input_precision="ieee")
    tl.store(by_query + query_at, summed.to(by_query.dtype.element_ty), mask=reads)
    summed = tl.dot(tl.trans(by_scores), q, input_precision="ieee")
    tl.store(by_key + key_at, summed.to(by_key.dtype.element_ty), mask=read)


@kernel("rows")
def _activation_backward_kernel(
    gradient, hidden, output, by_bias, rows, width, tile: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for first in range(tl.program_id(0) * tile, rows, tl.num_programs(0) * tile):
        row = first + tl.arange(0, tile).to(tl.int64)
        inside = (row < rows)[:, None] & (d < width)[None, :]
        place = row[:, None] * width + d[None, :]
        open_here = tl.load(hidden + place, mask=inside, other=0.0) > 0
        slope = tl.where(open_here, tl.load(gradient + place, mask=inside, other=0.0), 0.0)
        tl.store(output + place, slope, mask=inside)
        total += tl.sum(slope.to(tl.float32), 0)
    tl.store(by_bias + tl.program_id(0) * width + d, total, mask=d < width)


@kernel()
def _loss_kernel(
    logits, bias, labels, losses, stride, width, smoothing,
    biased: tl.constexpr, differentiated: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * stride
    label = tl.load(labels + row)
    counts = label >= 0
    place = tl.where(counts & (label < width), label, 0)
    chosen = tl.load(here + place).to(tl.float32)  # read before the gradient overwrites it
    if biased:
        chosen += tl.load(bias + place).to(tl.float32)
    top = float("-inf")
    total = 0.0
    level = 0.0
    for begin in range(0, width, block):
        j = begin + tl.arange(0, block)
        z = tl.load(here + j, mask=j < stride, other=0.0).to(tl.float32)
        if biased:
            z += tl.load(bias + j, mask=j < width, other=0.0).to(tl.float32)
        level += tl.sum(tl.where(j < width, z, 0.0), 0)
        z = tl.where(j < width, z, float("-inf"))
        higher = tl.maximum(top, tl.max(z, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(z - higher), 0)
        top = higher
    lse = top + tl.log(total)
    loss = lse - (1.0 - smoothing) * chosen - smoothing * (level / width)
    tl.store(losses + row, tl.where(counts, loss, 0.0))
    if differentiated:
        for begin in range(0, width, block):
            j = begin + tl.arange(0, block)
            z = tl.load(here + j, mask=j < stride, other=0.0).to(tl.float32)
            if biased:
                z += tl.load(bias + j, mask=j < width, other=0.0).to(tl.float32)
            slope = tl.exp(z - lse) - smoothing / width - tl.where(j == label, 1.0 - smoothing, 0.0)
            slope = tl.where(counts & (j < width), slope, 0.0)
            tl.store(here + j, slope.to(logits.dtype.element_ty), mask=j < stride)


def _tiles(width: int) -> tuple[int, int]:
    """Returns how many rows a program holds at once, and the width rounded up to a power of 2."""
    wide = triton.next_power_of_2(width)
    return max(1, 4096 // wide), wide


def residual_forward(
    states: Tensor, computed: Tensor | None, seed: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    rate: float, eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Computes LN(states + dropout(computed)) of contiguous tensors; without the sum where `computed` is None, without
    dropout where `seed` is, without LN where `weight` is.

    Returns the result, and for backward mean and 1 / deviation of every row, (rows,).
    """
    width = states.shape[-1]
    rows, output = states.numel() // width, torch.empty_like(states)
    means = scales = None
    if weight is not None:
        means, scales = torch.empty(2, rows, dtype=torch.float32, device=states.device).unbind()
    tile, wide = _tiles(width)
    _residual_kernel[(triton.cdiv(rows, tile),)](
        states, _or(computed, states), _or(seed, states), _or(weight, states), _or(bias, states), output,
        _or(means, states), _or(scales, states), rate, eps, rows, width, computed is not None, seed is not None,
        weight is not None, tile, wide,
    )  # fmt: skip
    return output, means, scales


def residual_backward(
    gradient: Tensor, states: Tensor, computed: Tensor | None, seed: Tensor | None, weight: Tensor | None,
    means: Tensor | None, scales: Tensor | None, rate: float,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Returns the gradients of states and computed and, in float32, of weight and bias in `residual_forward`."""
    width = states.shape[-1]
    rows = states.numel() // width
    gradient = gradient.contiguous()
    by_states = gradient if weight is None else torch.empty_like(gradient)
    by_computed = None if computed is None else by_states if seed is None else torch.empty_like(computed)
    tile, wide = _tiles(width)
    programs = min(triton.cdiv(rows, tile), PROGRAMS)
    partial = None
    if weight is not None:
        partial = torch.empty(programs, 2, width, dtype=torch.float32, device=states.device)
    if weight is not None or seed is not None:
        _residual_backward_kernel[(programs,)](
            gradient, states, _or(computed, states), _or(seed, states), _or(weight, states), _or(means, states),
            _or(scales, states), by_states, _or(by_computed, states), _or(partial, states), rate, rows, width,
            computed is not None, seed is not None, weight is not None, tile, wide,
        )  # fmt: skip
    by_weight, by_bias = (None, None) if partial is None else partial.sum(0).unbind()
    return by_states, by_computed, by_weight, by_bias


def _or(tensor: Tensor | None, otherwise: Tensor) -> Tensor:
    """Returns the tensor or, for None, another one as a pointer that the kernel does not read."""
    return otherwise if tensor is None else tensor


def _of_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[list[int], list[int], int]:
    """Returns the strides of all four tensors, the sizes of the tiles, and the number of warps of a program."""
    batch, heads, target, width = query.shape
    strides = [x.stride(axis) for x in (query, key, value) for axis in (0, 2, 1)]
    strides += [0] * 4 if mask is None else mask.expand(batch, heads, target, key.shape[2]).stride()
    tiles = [max(16, triton.next_power_of_2(size)) for size in (target, key.shape[2], width)]
    return strides, tiles, WARPS.get(tiles[0] * tiles[1]) or (2 if tiles[0] * tiles[1] < 1024 else 8)


WARPS = {32 * 32: 2, 32 * 64: 4, 64 * 64: 4}  # scores that a program holds -> its number of warps


def attention_forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor | None, scale: float, rate: float,
    causal: bool,
) -> Tensor:  # fmt: skip
    """Computes attention of query (batch, heads, target, d_h) over key and value (batch, heads, source, d_h), which
    have stride 1 in d_h; the mask is that of PyTorch's attention. Returns (batch, target, heads, d_h)."""
    batch, heads, target, width = query.shape
    output = query.new_empty(batch, target, heads, width)
    strides, tiles, warps = _of_attention(query, key, value, mask)
    _attention_kernel[(batch * heads,)](
        query, key, value, _or(mask, query), _or(seed, query), output, *strides, heads, target, key.shape[2], width,
        scale, rate, mask is not None, causal, seed is not None, *tiles, num_warps=warps,
    )  # fmt: skip
    return output


def attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor | None,
    scale: float, rate: float, causal: bool, by_query: Tensor, by_key: Tensor, by_value: Tensor,
) -> None:  # fmt: skip
    """Writes the gradients of query, key, value into `by_query`, `by_key`, `by_value`, which have the same strides."""
    strides, tiles, warps = _of_attention(query, key, value, mask)
    batch, heads, target, width = query.shape
    _attention_backward_kernel[(batch * heads,)](
        gradient.contiguous(), query, key, value, _or(mask, query), _or(seed, query), by_query, by_key, by_value,
        *strides, heads, target, key.shape[2], width, scale, rate, mask is not None, causal, seed is not None,
        *tiles, num_warps=warps,
    )  # fmt: skip


def activation_backward(gradient: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradient of relu's input, from its output `hidden`, and in float32 that of a bias added before."""
    width = hidden.shape[-1]
    rows, gradient, tile, block = hidden.numel() // width, gradient.contiguous(), 32, 128
    programs = min(triton.cdiv(rows, tile), 64)
    output = torch.empty_like(gradient)
    partial = torch.empty(programs, width, dtype=torch.float32, device=hidden.device)
    _activation_backward_kernel[(programs, triton.cdiv(width, block))](
        gradient, hidden, output, partial, rows, width, tile, block
    )
    return output, partial.sum(0)


def loss_in_place(
    logits: Tensor, bias: Tensor | None, labels: Tensor, losses: Tensor, smoothing: float, differentiated: bool
) -> None:
    """Writes the loss, equation 1 of loss.py, of every row of logits (rows, vocabulary) into losses (rows,), 0 where
    the label is negative; if `differentiated`, also overwrites the logits with their gradient."""
    rows, width = logits.shape
    block = min(8192, triton.next_power_of_2(width))
    _loss_kernel[(rows,)](
        logits, _or(bias, logits), labels, losses, logits.stride(0), width, float(smoothing), bias is not None,
        differentiated, block, num_warps=max(4, block // 1024),
    )  # fmt: skip


@cache
def works(device: torch.device) -> bool:
    """Returns whether Triton can run a kernel on the device: it needs a C compiler, and a GPU that is not too old."""
    try:
        activation_backward(*torch.zeros(2, 1, 1, device=device))
        return True
    except Exception as error:  # compilers and drivers can raise any exception
        logger.warning("training: Triton does not work here, which costs time: %s", error)
        return False


# The kernels by name, for fused.py; None where Triton is missing.
_FUNCTIONS = (
    residual_forward, residual_backward, attention_forward, attention_backward, activation_backward,
    loss_in_place,
)  # fmt: skip
KERNELS: Any = {function.__name__: function for function in _FUNCTIONS} if AVAILABLE else None
