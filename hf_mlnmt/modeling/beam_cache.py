"""The cache of search.py: one set of keys and values for each sentence, whatever the number of beams.

The beams of a step are neighbours on the time axis: step i of W beams holds the slots (prompt + i W) .. (prompt + i W +
W - 1), and a mask says which slots are a beam's own history. So beams move without any key or value being copied, the
source's keys and values are there once for each sentence, and a layer sees nothing but a longer sequence.

Keys lie transposed in memory, (sentences, heads, d_h, slots), which makes the product with the queries several times
faster on a CPU; and what a layer gets is padded to whole blocks of slots, because softmax is slow over fewer than 16.

Recurrent state (a convolution's window, an attention's memory) cannot be shared that way. A layer of the cache that
holds some names, as its class's `beam_layer`, the class that holds it as (sentences, beams, ...) and that has
`expand(width)`, `reorder(parents)` and `select(sentences, source)`.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

BLOCK = 16
LARGE = 2**20  # numbers in a buffer
KEEPS_MEMORY = False  # hf_mlnmt.memory.keep_memory says so: what is freed is wanted again


def padded(length: int) -> int:
    """The next multiple of BLOCK."""
    return -(-length // BLOCK) * BLOCK


def roomy(length: int) -> int:
    """How many slots a buffer for `length` has: half as many more, so that most steps need no larger one."""
    return padded(length + length // 2 + BLOCK)


def give_back(moved: Tensor) -> None:
    """Hand free memory back to the system, after a buffer of a search has left its old place.

    Buffers that grow by turns leave gaps in the C library's memory, up to twice what is in use.
    """
    if KEEPS_MEMORY or moved.device.type != "cpu" or moved.numel() < LARGE:
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:  # glibc
        trim(0)


def of_parents(states: Tensor, parents: Tensor) -> Tensor:
    """What each beam goes on from: states (sentences, width, ...), parents (sentences, width) -> as states.

    Whole rows are copied; `take_along_dim` would first compute the place of every number.
    """
    first = torch.arange(0, parents.numel(), parents.shape[1], device=parents.device).unsqueeze(-1)
    return states.flatten(0, 1).index_select(0, (parents + first).flatten()).view(states.shape)


class Rows(NamedTuple):
    """Keys (sentences x heads, d_h, slots) and values (sentences x heads, slots, d_h): a matrix for every head."""

    keys: Tensor
    values: Tensor

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> "Rows":
        """From (sentences, heads, slots, d_h) each."""
        return cls(keys.transpose(2, 3).flatten(0, 1), values.flatten(0, 1))


class RealPositions:
    """The positions of a batch of sources (sentences, source) that are not padding."""

    def __init__(self, real: Tensor):
        self.shape = real.shape
        self.sentences, self.places = real.nonzero(as_tuple=True)
        self.packed: tuple[Tensor, Tensor] | None = None  # the last memory, and its real positions

    def project(self, project: Callable, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (sentences, heads, source, d_h) of memory (sentences, source, ...), zeros at padding.

        `project` gets the real positions alone, as one long sentence: most of a batch can be padding.
        """
        if self.packed is None or self.packed[0] is not memory:  # most layers read the same
            self.packed = memory, memory[self.sentences, self.places].unsqueeze(0)
        key, value = project(self.packed[1])
        heads, width = key.shape[1], key.shape[3]
        keys = key.new_zeros(self.shape[0], heads, width, self.shape[1])  # as they lie in memory
        keys.permute(0, 3, 1, 2)[self.sentences, self.places] = key[0].transpose(0, 1)
        values = value.new_zeros(self.shape[0], value.shape[1], self.shape[1], value.shape[3])
        values.transpose(1, 2)[self.sentences, self.places] = value[0].transpose(0, 1)
        return keys.transpose(2, 3), values


class SourceCacheLayer(DynamicLayer):
    """The source's keys and values of one attention, written once: (sentences, heads, source, d_h)."""

    _layer_type = None  # not for DynamicCache(config=...) to choose
    keys: Any
    values: Any
    rows: Rows

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Keep them, the keys transposed in memory."""
        self.lazy_initialization(key_states, value_states)
        self.keys = key_states.transpose(2, 3).contiguous().transpose(2, 3)
        self.values = value_states.contiguous()
        self.rows = Rows.of(self.keys, self.values)
        return self.keys, self.values

    def select(self, sentences: Tensor, source: int) -> None:
        """Keep these sentences, and the first `source` positions."""
        self.keys = self.keys.transpose(2, 3)[..., :source].index_select(0, sentences).transpose(2, 3)
        self.values = self.values[:, :, :source].index_select(0, sentences)
        self.rows = Rows.of(self.keys, self.values)


class BeamCacheLayer(DynamicLayer):
    """Keys and values of a decoder layer in buffers with room to grow: (sentences, heads, slots, d_h)."""

    _layer_type = None
    keys: Any
    values: Any
    rows: Rows

    def __init__(self, **kwargs):
        super().__init__()
        self.size = self.end = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        sentences, heads, _, width = key_states.shape
        # As they lie in memory.
        self.key_buffer = key_states.new_zeros(sentences, heads, width, 0)
        self.value_buffer = value_states.new_zeros(*value_states.shape[:2], 0, value_states.shape[3])

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write the new slots behind the others; all come back, with zeros up to a whole block."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[2]
        start = self.extend(new)
        self.key_buffer.narrow(3, start, new).copy_(key_states.transpose(2, 3))
        self.value_buffer.narrow(2, start, new).copy_(value_states)
        if self.end != padded(self.size):  # else what is seen of the buffers is the same as before
            self.end = padded(self.size)
            self.keys = self.key_buffer[..., : self.end].transpose(2, 3)
            self.values = self.value_buffer[:, :, : self.end]
            self.rows = Rows.of(self.keys, self.values)
        return self.keys, self.values

    def extend(self, new: int) -> int:
        """Make room for `new` slots, and count them: the first of them, for the caller to write from there."""
        start, self.size = self.size, self.size + new
        room = self.value_buffer.shape[2]
        if self.size > room:
            missing = roomy(self.size) - room
            self.key_buffer = nn.functional.pad(self.key_buffer, (0, missing))
            self.value_buffer = nn.functional.pad(self.value_buffer, (0, 0, 0, missing))
            self.end = 0
            give_back(self.value_buffer)
        return start

    def get_seq_length(self) -> int:
        return self.size

    def expand(self, width: int) -> None:
        """From one row for each sentence (the prompt) to `width` beams: they share what is there."""

    def reorder(self, parents: Tensor) -> None:
        """Beam i goes on from beam parents[:, i]: the mask says so, nothing moves."""

    def select(self, sentences: Tensor, source: int) -> None:
        """Keep these sentences; of state that has a place for each source position, the first `source` places."""
        self.key_buffer = self.key_buffer.index_select(0, sentences)
        self.value_buffer = self.value_buffer.index_select(0, sentences)
        self.end = 0

    def select_slots(self, slots: Tensor) -> None:
        """Keep these slots of each sentence, (sentences, kept)."""
        self.size, self.end = slots.shape[1], 0
        blank = roomy(self.size) - self.size
        heads, width = self.value_buffer.shape[1], self.value_buffer.shape[3]
        keys = self.key_buffer.gather(3, slots[:, None, None, :].expand(-1, heads, width, -1))
        values = self.value_buffer.gather(2, slots[:, None, :, None].expand(-1, heads, -1, width))
        self.key_buffer = nn.functional.pad(keys, (0, blank))
        self.value_buffer = nn.functional.pad(values, (0, 0, 0, blank))
        give_back(self.value_buffer)


class BeamCache(EncoderDecoderCache):
    """Self-attention slots as above; the source's keys and values once for each sentence."""

    def __init__(self, config, real: Tensor):
        """`real` (sentences, source): False at padding."""
        own, source = DynamicCache(config=config), DynamicCache()
        own.layers = [getattr(type(layer), "beam_layer", BeamCacheLayer)() for layer in own.layers]
        source.layer_class_to_replicate = SourceCacheLayer
        super().__init__(own, source)

        self.real: RealPositions | None = RealPositions(real)
        self.own: list[Any] = own.layers
        self.source: list[Any] = source.layers  # filled by the prompt

    @property
    def slots(self) -> int:
        return self.self_attention_cache.get_seq_length()

    def expand(self, width: int) -> None:
        """From one row for each sentence to `width` beams; the source has been read."""
        self.real = None
        for layer in self.own:
            layer.expand(width)

    def reorder(self, parents: Tensor) -> None:
        """Beam i of each sentence goes on from its beam parents[:, i]; parents (sentences, width)."""
        for layer in self.own:
            layer.reorder(parents)

    def select(self, sentences: Tensor, source: int) -> None:
        """Keep these sentences, and the first `source` positions of their sources."""
        for layer in self.own:
            layer.select(sentences, source)
        for layer in self.source:
            layer.select(sentences, source)

    def select_slots(self, slots: Tensor) -> None:
        """Keep these slots of the self-attention, (sentences, kept)."""
        for layer in self.own:
            layer.select_slots(slots)
