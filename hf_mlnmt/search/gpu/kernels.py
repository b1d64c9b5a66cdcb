"""The choice of beams in a step (static_shapes.py) as Triton kernels: logits are read once, in their own dtype.

The reference, `Stage.choose_beams` of static_shapes.py, computes the same. The kernels make a beam search's step on a
GPU a sixth to a third faster; a kernel for greedy search gained a twentieth, so there is none.

| kernel | one program for | writes |
| --- | --- | --- |
| _read_kernel | a part of a row of logits | its maximum and sum of exponentials, its `count` best values and tokens |
| _beams_kernel | a sentence | all that `Stage.choose_beams` does, from the `beams x parts x count` best |

A value and its token are packed into a 64-bit integer, a key: the value's bits in the upper half, so that keys are
ordered as values are, the token in the lower, so that of equal values the lowest token is first (of equal candidates
the lowest beam, then the lowest token; topk leaves that open). NaN is above all, as for topk. All is in float32.
Triton is optional: without it this file still imports, and `AVAILABLE` is False.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from hf_mlnmt.modeling.attention_scan_triton import AVAILABLE, tl

logger = logging.get_logger(__name__)

TILE = 2048  # tokens of the vocabulary that a program reads at once
MOST_PARTS = 64  # most parts of a row of logits, each read by one program; a power of 2
PROGRAMS = 1024  # number of programs that keep a GPU busy
ENTRIES, WARPS = 512, 2  # candidates of a sentence that `_beams_kernel` compares at once, and its number of warps
MOST_CANDIDATES, MOST_BEAMS = 64, 32
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
COUNTS = ("tiles", "chunk", "parts", "distinct", "width")  # names of arguments whose values change no compiled code
ALIGNED = ("logits", "stride", "room")  # names of arguments whose alignment changes the compiled code
# Constants for the kernels.
PARTS = tl.constexpr(MOST_PARTS)
LOWEST = tl.constexpr(-(2**63) + 1)  # below all keys; so is LOWEST + i, which marks an empty slot i
LOW = tl.constexpr(2**31 - 1)


def kernel(function: Any) -> Any:
    """Compiles a function by `triton.jit`; without Triton returns the function unchanged."""
    if not AVAILABLE:
        return function
    import triton

    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    names = [name for name in names if name not in function.__annotations__]  # annotated ones are constants
    others = [name for name in names if name not in ALIGNED]
    counts = [name for name in names if name in COUNTS]
    return triton.jit(function, do_not_specialize=counts, do_not_specialize_on_alignment=others)


@kernel
def _first_kernel(place):
    tl.store(place, 1)


@kernel
def _key(value, number):
    """Packs values, float32, and numbers below 2^31 into keys (see the file's docstring)."""
    value = tl.where(value == 0, 0.0, value)  # -0 becomes 0, as they are equal
    value = tl.where(value == value, value, float("nan"))
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ LOW, bits)
    return bits.to(tl.int64) * 4294967296 + (number ^ LOW).to(tl.int64)


@kernel
def _value(key):
    bits = (key >> 32).to(tl.int32)
    return tl.where(bits < 0, bits ^ LOW, bits).to(tl.float32, bitcast=True)


@kernel
def _number(key):
    return (key & LOW) ^ LOW


@kernel
def _empty(slots, count: tl.constexpr):
    """Returns empty slots for the `count` best keys; slots from `count` on hold the greatest key, never replaced."""
    return tl.where(slots < count, slots.to(tl.int64) + LOWEST, -LOWEST)


@kernel
def _raw(logits, start, token, room):
    """Reads a row's logits at `token`, minus infinity from `room` on, as float32.

    Where `room` is a multiple of 16, several numbers are read at once; from the vocabulary to `room` they mean nothing.
    """
    return tl.load(logits + start + token, mask=token < room, other=float("-inf")).to(tl.float32)


@kernel
def _changed(raw, token, rows, row_of, forced, step, vocabulary):
    """Returns a tile of logits after the table of changes (`LengthTable`) of this step."""
    now = tl.load(step)
    added = tl.load(rows + tl.load(row_of + now) * vocabulary + token, mask=token < vocabulary, other=0.0)
    return tl.where(tl.load(forced + now), added, raw + added)


@kernel
def _read_kernel(
    logits, stride, room, rows, row_of, forced, step, highest, totals, keys, vocabulary, tiles, chunk,
    changed: tl.constexpr, summed: tl.constexpr, count: tl.constexpr, wide: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * stride
    part = tl.program_id(1)
    here = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + part
    slots = tl.arange(0, wide)
    best = _empty(slots, count)
    worst = tl.min(best, 0)
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for tile in range(part * chunk, tl.minimum((part + 1) * chunk, tiles)):
        token = tile * block + tl.arange(0, block)
        raw = _raw(logits, start, token, room)
        value = _changed(raw, token, rows, row_of, forced, step, vocabulary) if changed else raw
        if summed:
            summand = tl.where(token < vocabulary, raw, float("-inf"))
            higher = tl.maximum(top, tl.max(summand, 0))
            zero = tl.where(higher == float("-inf"), 0.0, higher)
            total = total * tl.exp(top - zero) + tl.sum(tl.exp(summand - zero), 0)
            top = higher
        key = tl.where(token < vocabulary, _key(value, token), LOWEST)
        found = tl.max(key, 0)
        while found > worst:
            best = tl.where(best == worst, found, best)
            worst = tl.min(best, 0)
            key = tl.where(key == found, LOWEST, key)
            found = tl.max(key, 0)
    if summed:
        tl.store(highest + here, top)
        tl.store(totals + here, total)
    tl.store(keys + here * count + slots, best, mask=slots < count)


@kernel
def _above(ours, theirs):
    """Counts for each key of `ours` how many keys of `theirs` are greater."""
    return tl.sum((theirs[None, :] > ours[:, None]).to(tl.int32), 1)


@kernel
def _ordered(values, ranks, places):
    """Returns for each of `places` the value whose rank it is, 0 where no value has that rank."""
    return tl.sum(tl.where(ranks[:, None] == places[None, :], values[:, None], 0), 0)


@kernel
def _beams_kernel(
    keys, highest, totals, forced, running, best, last, open_, is_end, final, length_penalties, step, first_candidate,
    table, tokens, origins, vocabulary, parts, distinct,
    width: tl.constexpr, count: tl.constexpr, lanes: tl.constexpr, wide: tl.constexpr, entries: tl.constexpr,
    changed: tl.constexpr, normalized: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    sentence = tl.program_id(0).to(tl.int64)
    now = tl.load(step)
    beam = tl.arange(0, lanes)
    real = beam < width
    row = sentence * distinct + tl.minimum(beam, distinct - 1)
    mine = sentence * width + beam
    so_far = tl.load(running + mine, mask=real, other=float("-inf"))
    log_sum = tl.zeros([lanes], tl.float32)
    if not normalized:
        part = row[:, None] * parts + tl.arange(0, PARTS)[None, :]
        is_part = real[:, None] & (tl.arange(0, PARTS) < parts)[None, :]
        tops = tl.load(highest + part, mask=is_part, other=float("-inf"))
        top = tl.max(tops, 1)
        zero = tl.where(top == float("-inf"), 0.0, top)
        total = tl.sum(tl.load(totals + part, mask=is_part, other=0.0) * tl.exp(tops - zero[:, None]), 1)
        log_sum = zero + tl.log(tl.where(total > 0, total, 1.0))  # 0 for a row of -inf, which would make NaN
        if changed:
            log_sum = tl.where(tl.load(forced + now), 0.0, log_sum)  # the table's row replaces log P

    # (1) The best candidates, in the order of `Stage.choose_beams`.
    slots = tl.arange(0, wide)
    found = _empty(slots, count)
    worst = tl.min(found, 0)
    for begin in range(0, parts * count, entries):
        place = begin + tl.arange(0, entries)
        there = real[:, None] & (place < parts * count)[None, :]
        key = tl.load(keys + row[:, None] * parts * count + place[None, :], mask=there, other=LOWEST)
        sums = _value(key) - log_sum[:, None] + so_far[:, None]
        new = _key(sums, beam[:, None].to(tl.int64) * vocabulary + _number(key))
        new = tl.where(key >> 32 > LOWEST >> 32, new, LOWEST)  # an empty slot's key stays LOWEST
        highest_new = tl.max(tl.max(new, 1), 0)
        while highest_new > worst:
            found = tl.where(found == worst, highest_new, found)
            worst = tl.min(found, 0)
            new = tl.where(new == highest_new, LOWEST, new)
            highest_new = tl.max(tl.max(new, 1), 0)
    is_candidate = slots < count
    found = tl.where(is_candidate, found, LOWEST)
    found = _ordered(found, _above(found, found), slots)
    sums = tl.where(is_candidate, _value(found), float("-inf"))
    number = tl.where(is_candidate, _number(found), 0)
    over = (tl.load(is_end + number % vocabulary, mask=is_candidate, other=0) != 0) | (now >= tl.load(final))

    # (2) `Hypotheses.finish`
    is_open = tl.load(open_ + sentence) != 0
    old = tl.load(best + mine, mask=real, other=float("-inf"))
    old_last = tl.load(last + mine, mask=real, other=-1)
    ended = tl.where(over & is_open, tl.div_rn(sums, tl.load(length_penalties + 2 * now)), float("-inf"))
    old_key = tl.where(real, _key(old, beam), LOWEST)
    new_key = tl.where(slots < width, _key(ended, width + slots), LOWEST)
    # Slots without a hypothesis get rank -1, which no lane has.
    old_rank = tl.where(real, _above(old_key, old_key) + _above(old_key, new_key), -1)
    new_rank = tl.where(slots < width, _above(new_key, new_key) + _above(new_key, old_key), -1)
    kept = _ordered(old, old_rank, beam) + _ordered(ended, new_rank, beam)
    kept_last = _ordered(old_last, old_rank, beam) + _ordered(number + tl.load(first_candidate), new_rank, beam)

    # (3) `Hypotheses.go_on`, (4) `Hypotheses.close`
    onward = sums + tl.where(over, -1.0e9, 0.0)
    rank = tl.where(is_candidate, _key(onward, slots), LOWEST)
    rank = tl.where(is_candidate, _above(rank, rank), -1)
    goes_on = _ordered(onward, rank, beam)
    chosen = _ordered(number, rank, beam)
    first = tl.sum(tl.where(beam == 0, goes_on, 0.0), 0)
    worst_kept = tl.sum(tl.where(beam == width - 1, kept, 0.0), 0)
    is_open = is_open & (tl.div_rn(first, tl.load(length_penalties + 2 * now + 1)) > worst_kept)
    if early:
        is_open = is_open & (worst_kept == float("-inf"))

    tl.store(running + mine, goes_on, mask=real)
    tl.store(best + mine, kept, mask=real)
    tl.store(last + mine, kept_last, mask=real)
    tl.store(open_ + sentence, is_open)
    tl.store(table + now * tl.num_programs(0) * width + mine, chosen, mask=real)
    tl.store(tokens + mine, chosen % vocabulary, mask=real)
    tl.store(origins + mine, sentence * width + chosen // vocabulary, mask=real)


def choose_beams(stage: Any, scores: Tensor) -> None:
    """Computes what `Stage.choose_beams` does for scores (sentences, 1 or width, vocabulary) by the two kernels."""
    (sentences, width), count, found, logits = stage.tokens.shape, stage.count, stage.found, scores.flatten(0, 1)
    rows, vocabulary = logits.shape
    stride = logits.stride(0) if rows > 1 else scores.stride(0)  # with one row `flatten` may change the stride
    tiles = -(-vocabulary // TILE)
    chunk = -(-tiles // min(tiles, MOST_PARTS, max(1, PROGRAMS // rows)))
    parts = -(-tiles // chunk)
    highest, totals = logits.new_empty(2, rows, parts, dtype=torch.float32).unbind()
    keys = stage.tokens.new_empty(rows, parts, count)
    changes = [stage.tokens] * 3
    for table in stage.processors:  # at most one table
        changes = [table.rows, table.row_of, table.forced]
    _read_kernel[(rows, parts)](
        logits, stride, readable(logits, stride), *changes, stage.clock.step, highest, totals, keys, vocabulary, tiles,
        chunk, bool(stage.processors), not stage.normalized, count, power_of_2(count), TILE,
    )  # fmt: skip
    lanes = power_of_2(width)
    _beams_kernel[(sentences,)](
        keys, highest, totals, changes[2], found.running, found.best, found.last, found.open, stage.is_end,
        stage.final, stage.length_penalties, stage.clock.step, stage.clock.first_candidate, stage.table, stage.tokens,
        stage.origins, stage.vocabulary, parts, scores.shape[1], width, count, lanes, power_of_2(count),
        ENTRIES // lanes, bool(stage.processors), stage.normalized, found.early, num_warps=WARPS,
    )  # fmt: skip


def readable(logits: Tensor, stride: int) -> int:
    """Returns how many numbers of each row to read: the vocabulary, rounded up to a multiple of 16 if memory allows."""
    rows, vocabulary = logits.shape
    room = -(-vocabulary // 16) * 16
    end = (logits.storage_offset() + (rows - 1) * stride + room) * logits.element_size()
    return room if room <= stride and end <= logits.untyped_storage().nbytes() else vocabulary


def power_of_2(number: int) -> int:
    """Returns the smallest power of 2 that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


@cache
def works(device: Any) -> bool:
    """Tells whether Triton can run a kernel on the device: it needs a C compiler and a GPU that is not too old."""
    place = torch.zeros(1, dtype=torch.long, device=device)
    try:
        _first_kernel[(1,)](place)
        return int(place) == 1
    except Exception as error:  # compilers and drivers can raise any exception
        logger.warning("generate(): Triton does not work here, which costs time: %s", error)
        return False


def knows(model: Any, beams: int, count: int) -> bool:
    """Tells whether the kernels can choose `count` candidates for so many beams from this model's logits."""
    numbers = beams * model.config.target_vocab_size
    fits = beams <= MOST_BEAMS and count <= min(MOST_CANDIDATES, numbers) and numbers < 2**31
    return AVAILABLE and fits and model.dtype in DTYPES and works(model.device)
