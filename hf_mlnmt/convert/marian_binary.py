"""Reads and writes Marian's binary models (.bin), in int8 as Firefox and Bergamot run them, and lexical shortlists.

A model is a list of items, sorted by name, their bytes padded to 256, the settings last. In int8 ("intgemm8") a weight
w is q = rint(w m), followed by the multiplier m = 127 / max |w|; q is stored transposed, outputs first, but for
embeddings. An item `<weight>_QuantMultA` holds alpha, by which the weight's inputs are multiplied before they are
rounded to -127..127. The output projection's alpha has two names, for two engines: `none_QuantMultA`, and that of the
embedding it is tied to, whose item is in int8 itself because its name says embedding.
"""

import heapq
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hf_mlnmt.common.errors import UserError

STEPS = 127
# In shortlists made here: the number of first ids that are always candidates, and the most translations of an id.
LISTED = 50
SETTINGS = "special:model.yml"
ALPHA = "_QuantMultA"
_CODES = {0x101: "int8", 0x402: "float16", 0x404: "float32", 0x4101: "intgemm8"}
_ALIGNED = 256
_MAGIC = 0xF11A48D5013417F5


class Item(NamedTuple):
    """A tensor as the file stores it; type: float16, float32, intgemm8, or int8 for the text of the settings."""

    name: str
    type: str
    shape: tuple[int, ...]
    payload: bytes

    @property
    def size(self) -> int:
        """Returns how many numbers the tensor has."""
        return math.prod(self.shape)


def read_items(file: Path) -> list[Item]:
    """Reads all items of a model. Raises: UserError for another file, an incomplete one, and unknown types."""
    content = file.read_bytes()
    whole = f"{file}: not a whole model in Marian's binary form"
    try:
        version, count = struct.unpack_from("<2Q", content)
        if version != 1:
            raise UserError(f"{whole}: it begins with {version:#x}, version 1 is expected. Is it packed (gunzip)?")
        heads = list(struct.iter_unpack("<4Q", content[16 : 16 + 32 * count]))
        at, names, shapes = 16 + 32 * count, [], []
        for length, _, _, _ in heads:
            names.append(content[at : at + length].rstrip(b"\0").decode())
            at += length
        for _, _, rank, _ in heads:
            shapes.append(struct.unpack_from(f"<{rank}i", content, at))
            at += 4 * rank
        at += 8 + struct.unpack_from("<Q", content, at)[0]
    except (struct.error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise UserError(f"{whole} ({error}). Copy it again.") from error
    items = []
    for (_, code, _, size), name, shape in zip(heads, names, shapes, strict=True):
        if code not in _CODES or (_CODES[code] == "int8" and name != SETTINGS):
            raise UserError(
                f"{file}: {name} is of type {code:#x}, which is not read here: float32, or int8 as Firefox has it "
                "(0x4101), is expected. Marian writes float32 unless it is told to round."
            )
        item = Item(name, _CODES[code], shape, content[at : at + size])
        least = {"float16": 2 * item.size, "float32": 4 * item.size, "int8": item.size, "intgemm8": item.size + 4}
        if len(item.payload) < max(size, least[item.type]) or min(shape, default=1) < 0:
            raise UserError(f"{whole}: {len(content):,} bytes end before {name} does. Copy it again.")
        items.append(item)
        at += size
    return items


def to_bytes(items: Iterable[Item]) -> bytes:
    """Returns the bytes of a model's file: items sorted by name, padded, the settings last."""
    items = [
        each if each.name == SETTINGS else each._replace(payload=each.payload + bytes(-len(each.payload) % _ALIGNED))
        for each in sorted(items, key=lambda each: (each.name == SETTINGS, each.name))
    ]
    codes = {kind: code for code, kind in _CODES.items()}
    heads = [(len(x.name.encode()) + 1, codes[x.type], len(x.shape), len(x.payload)) for x in items]
    begin = struct.pack("<2Q", 1, len(items)) + b"".join(struct.pack("<4Q", *head) for head in heads)
    begin += b"".join(each.name.encode() + b"\0" for each in items)
    begin += b"".join(struct.pack(f"<{len(each.shape)}i", *each.shape) for each in items)
    blank = _ALIGNED - (len(begin) + 8) % _ALIGNED  # 1 to 256
    return begin + struct.pack("<Q", blank) + bytes(blank) + b"".join(each.payload for each in items)


def is_in_int8(name: str, shape: Sequence[int]) -> bool:
    """Returns whether Marian keeps a tensor of this name in int8: embeddings, and matrices W, Wq, W1 ..."""
    return shape[0] > 1 and ("Wemb" in name or name[-2:] == "_W" or name[-3:-1] == "_W")


def values_of(item: Item) -> tuple[np.ndarray, np.float32 | None]:
    """Returns the numbers of an item as float32, and the multiplier of an int8 item, else None."""
    if item.type != "intgemm8":
        kind = {"float16": "<f2", "float32": "<f4"}[item.type]
        return np.frombuffer(item.payload, kind, item.size).reshape(item.shape).astype(np.float32), None
    rounded = np.frombuffer(item.payload, "i1", item.size)
    multiplier = np.frombuffer(item.payload, "<f4", 1, item.size)[0]
    matrix = rounded.reshape(item.shape) if "Wemb" in item.name else rounded.reshape(item.shape[::-1]).T
    with np.errstate(divide="ignore", invalid="ignore"):  # nan and infinity are refused later, as in all tensors
        return matrix.astype(np.float32) / multiplier, multiplier


def rounded(name: str, values: np.ndarray, multiplier: float | None = None) -> Item:
    """Rounds a matrix [inputs, outputs] or embedding [rows, d] to an int8 Item; multiplier None: 127 / max |w|."""
    largest = np.abs(values).max()
    scale = np.float32(STEPS) / (largest or np.float32(1)) if multiplier is None else np.float32(multiplier)
    steps = np.rint(values * scale).clip(-STEPS, STEPS).astype(np.int8)
    laid = steps if "Wemb" in name else steps.T
    return Item(name, "intgemm8", values.shape, laid.tobytes() + struct.pack("<f", scale))


def plain(name: str, values: np.ndarray) -> Item:
    """Returns an array as a float32 Item with this name."""
    return Item(name, "float32", values.shape, values.astype("<f4").tobytes())


class Shortlist(NamedTuple):
    """A lexical shortlist. translations: for each source id its translations' ids, ascending. first: so many ids from 0
    are candidates in every sentence too. best: the most translations of one id."""

    first: int
    best: int
    translations: list[list[int]]


def read_shortlist(file: Path, sizes: Sequence[int]) -> Shortlist:
    """Reads a binary shortlist for vocabularies of `sizes`: the source's and the target's.

    Raises: UserError for another or incomplete file, and for a shortlist of other vocabularies.
    """
    content = file.read_bytes()
    numbers = struct.unpack_from("<6Q", content) if len(content) >= 48 else (0,) * 6
    magic, checksum, first, best, rows, count = numbers
    if magic != _MAGIC or len(content) != 48 + 8 * rows + 4 * count or checksum != _checksum(content[16:]):
        raise UserError(f"{file}: not a whole shortlist in Marian's binary form. Unpack it (gunzip), or copy it again.")
    ends = np.frombuffer(content, "<u8", rows, 48).tolist()
    ids = np.frombuffer(content, "<u4", count, 48 + 8 * rows)
    if rows != sizes[0] + 1 or (count and ids.max() >= sizes[1]) or ends != sorted(ends) or ends[-1] != count:
        raise UserError(
            f"{file}: a shortlist of other subwords: it has {rows - 1} of the source, and targets up to "
            f"{ids.max(initial=0)}; the vocabularies have {sizes[0]} and {sizes[1]}. Take both from one model."
        )
    return Shortlist(first, best, [ids[begin:end].tolist() for begin, end in pairwise(ends)])


def shortlist_of(scores: Mapping[int, Mapping[int, float]], rows: int) -> Shortlist:
    """Returns a Shortlist of the LISTED best translations of each source id below `rows`.

    scores: source id -> target id -> score.
    """
    each = (scores.get(row, {}) for row in range(rows))
    return Shortlist(LISTED, LISTED, [sorted(heapq.nlargest(LISTED, found, key=found.__getitem__)) for found in each])


def shortlist_bytes(shortlist: Shortlist) -> bytes:
    """Returns the bytes of a shortlist's file."""
    ends = np.cumsum([0, *map(len, shortlist.translations)])
    ids = np.array([each for ids in shortlist.translations for each in ids], "<u4")
    body = struct.pack("<4Q", shortlist.first, shortlist.best, len(ends), len(ids))
    body += ends.astype("<u8").tobytes() + ids.tobytes()
    return struct.pack("<2Q", _MAGIC, _checksum(body)) + body


def _checksum(body: bytes) -> int:
    """Returns Marian's hash over the whole 8-byte words of `body`."""
    seed, most = 0, (1 << 64) - 1
    for value in np.frombuffer(body, "<u8", len(body) // 8).tolist():
        seed ^= (value + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & most
    return seed
