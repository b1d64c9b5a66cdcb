"""The cache of a search: one row of keys and values for each sentence, whatever the number of beams.

The beams of a step are neighbours on the time axis: step i of W beams holds the slots (prompt + i W) .. (prompt + i W +
W - 1), and a mask marks which slots are a beam's own history. So beams are reordered without copying keys or values,
the source's keys and values are stored once for each sentence, and a layer sees only a longer sequence. State that
cannot be shared that way (a convolution's window, an attention's memory) has a row for each beam, which is reordered.

| class | what it keeps |
| --- | --- |
| BeamCacheLayer | keys and values of a decoder layer |
| BeamConvolutionCacheLayer, BeamRecurrentCacheLayer | the same, and a state of each beam |
| SourceCacheLayer | the source's keys and values |
| Growing, Fixed | the storage of layers: buffers that grow, for the loop; of fixed size, for steps of static shapes |

Before `expand` the positions of a call are those of the prompt, one row for each sentence; after it they are the beams
of one step, and the methods that an attention calls (modeling/caches.py) return the state of each beam.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

from hf_mlnmt.common.memory import return_memory
from hf_mlnmt.modeling.caches import RecurrentCacheLayer, RecurrentState
from hf_mlnmt.modeling.dual_context import ConvolutionCacheLayer, windows

BLOCK = 16
LARGE = 2**20  # from this size (in numbers) of a new buffer on, the old one's memory is returned to the system


def whole_blocks(length: int) -> int:
    """Returns the smallest multiple of BLOCK that is at least `length`."""
    return -(-length // BLOCK) * BLOCK


def put(place: Tensor | None, tensor: Tensor) -> Tensor:
    """Copies the tensor into `place`, or, where that is None, into new memory; returns the copy."""
    return tensor.clone(memory_format=torch.contiguous_format) if place is None else place.copy_(tensor)


def put_rows(place: Tensor, rows: Tensor) -> Tensor:
    """Reorders `place` (sentences, beams, ...) in place: counted over all sentences, beam i gets the row of beam
    rows[i]. Returns `place`."""
    return place.copy_(place.view(len(rows), -1).index_select(0, rows).view(place.shape))


class Growing:
    """Buffers that grow: keys (sentences, heads, d_h, slots) and values (sentences, heads, slots, d_h).

    Keys are stored transposed, which makes the product with the queries several times faster on a CPU; returned keys
    and values are padded to whole blocks of slots, because softmax is slow over fewer than 16.
    """

    key_buffer: Any = None
    value_buffer: Any = None

    def __init__(self) -> None:
        self.size = self.end = 0

    def begin(self, keys: Tensor, values: Tensor) -> None:
        """Makes empty buffers for keys and values like the given tensors, (sentences, heads, any, d_h)."""
        self.key_buffer = keys.new_zeros(*keys.shape[:2], keys.shape[3], 0)
        self.value_buffer = values.new_zeros(*values.shape[:2], 0, values.shape[3])

    def write(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Appends keys and values (sentences, heads, new, d_h); returns those of all slots, padded to whole blocks."""
        if self.key_buffer is None:
            self.begin(keys, values)
        new = keys.shape[2]
        start = self.extend(new)
        self.key_buffer.narrow(3, start, new).copy_(keys.transpose(2, 3))
        self.value_buffer.narrow(2, start, new).copy_(values)
        if self.end != whole_blocks(self.size):  # else the views in `seen` cover all slots
            self.end = whole_blocks(self.size)
            self.seen = self.key_buffer[..., : self.end].transpose(2, 3), self.value_buffer[:, :, : self.end]
        return self.seen

    def extend(self, new: int) -> int:
        """Reserves `new` slots more, in larger buffers if need be; returns the index of the first."""
        start, self.size = self.size, self.size + new
        capacity = self.value_buffer.shape[2]
        if self.size > capacity:
            # Allocate half as many more than are needed now, so that few steps need a larger buffer.
            blank = whole_blocks(self.size + self.size // 2 + BLOCK) - capacity
            self.key_buffer, self.end = nn.functional.pad(self.key_buffer, (0, blank)), 0
            self.value_buffer = nn.functional.pad(self.value_buffer, (0, 0, 0, blank))
            if self.value_buffer.device.type == "cpu" and self.value_buffer.numel() >= LARGE:
                return_memory()
        return start

    def select(self, sentences: Tensor) -> None:
        """Drops all sentences but the given ones (indices)."""
        if self.key_buffer is not None:
            self.key_buffer = self.key_buffer.index_select(0, sentences)
            self.value_buffer = self.value_buffer.index_select(0, sentences)
            self.end = 0

    def keep(self, states: Tensor, place: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """Returns states (sentences, beams, ...), with `rows` reordered: counted over all sentences, beam i gets the
        row of beam rows[i]."""
        return states if rows is None else states.flatten(0, 1).index_select(0, rows).view(states.shape)


class Fixed:
    """Keys and values (sentences, heads, slots, d_h) in tensors of fixed size, which CUDA graphs need."""

    size = 0

    def __init__(self, slots: int, places: list[Tensor]):
        """Stores the number of slots, and a list with one tensor: the indices of the slots to write next, (new,)."""
        self.slots, self.places = slots, places
        self.buffers: list[Tensor] = []

    def write(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Writes keys and values to the slots `places[0]`; returns those of all slots."""
        if not self.buffers:
            self.buffers = [x.new_zeros(*x.shape[:2], self.slots, x.shape[3]) for x in (keys, values)]
        for buffer, new in zip(self.buffers, (keys, values)):
            buffer.index_copy_(2, self.places[0], new)
        return self.buffers[0], self.buffers[1]

    def keep(self, states: Tensor, place: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """Reorders states as `Growing.keep` does and copies them into `place`, or into new memory if that is None;
        returns the copy."""
        if place is None:
            return put(None, states)
        if rows is None:
            return place if states is place else place.copy_(states)
        if states is place:
            return put_rows(place, rows)
        new = states.to(place.dtype).reshape(len(rows), -1)
        torch.index_select(new, 0, rows, out=place.view(len(rows), -1))
        return place


class SourceCacheLayer(DynamicLayer):
    """The source's keys and values of one attention, written once: (sentences, heads, source, d_h)."""

    _layer_type = None  # DynamicCache(config=...) must not choose this class
    keys: Any = None
    values: Any = None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Stores the keys, transposed in memory, and the values."""
        self.is_initialized = True
        self.keys = key_states.transpose(2, 3).contiguous().transpose(2, 3)
        self.values = value_states.contiguous()
        return self.keys, self.values

    def select(self, sentences: Tensor, source_length: int) -> None:
        """Drops all sentences but the given ones (indices), and the positions from `source_length` on."""
        self.keys = self.keys.transpose(2, 3)[..., :source_length].index_select(0, sentences).transpose(2, 3)
        self.values = self.values[:, :, :source_length].index_select(0, sentences)


class FixedSourceCacheLayer(SourceCacheLayer):
    """A `SourceCacheLayer` whose tensors stay at their addresses: later sources are copied into them."""

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.is_initialized = True
        self.keys, self.values = put(self.keys, key_states), put(self.values, value_states)
        return self.keys, self.values


class BeamCacheLayer(DynamicLayer):
    """Keys and values of a decoder layer, stored in a `Growing` or a `Fixed`."""

    _layer_type = None

    def __init__(self, storage: Any):
        super().__init__()
        self.storage = storage

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Writes keys and values of the new positions; returns those of all slots."""
        self.is_initialized = True
        return self.storage.write(key_states, value_states)

    def get_seq_length(self) -> int:
        return self.storage.size

    def expand(self, width: int) -> None:
        """Does nothing: the `width` beams of a sentence all read its one row of keys and values."""

    def reorder(self, rows: Tensor) -> None:
        """Does nothing: keys and values stay in their slots, and the reordered mask marks each beam's history."""

    def select(self, sentences: Tensor, source_length: int) -> None:
        """Drops all sentences but the given ones (indices)."""
        self.storage.select(sentences)


class BeamStateLayer(BeamCacheLayer):
    """A cache layer with a state for each beam: `states` (sentences, prompt, ...), later (sentences, beams, ...)."""

    counts_positions = False
    states: Any = None
    place: Any = None  # the memory in which `storage` keeps the states of beams
    of_beams = False  # whether `expand` was called

    def real_positions(self, real: Tensor | None) -> Tensor | None:
        """Returns `real`, the prompt's mask; after `expand` None, as no new position of a beam is padding."""
        return None if self.of_beams else real

    def keep(self, rows: Tensor | None = None) -> None:
        """Stores the states of all beams; with `rows` beam i gets the state of beam rows[i]."""
        self.states = self.place = self.storage.keep(self.states, self.place, rows)

    def expand(self, width: int) -> None:
        self.states = self.states[:, -1:].expand(-1, width, *self.states.shape[2:])
        self.keep()
        self.of_beams = True

    def reorder(self, rows: Tensor) -> None:
        self.keep(rows)

    def select(self, sentences: Tensor, source_length: int) -> None:
        super().select(sentences, source_length)
        self.states = self.states.index_select(0, sentences)


class BeamConvolutionCacheLayer(BeamStateLayer):
    """The search's `ConvolutionCacheLayer`; the state is the window, (sentences, prompt or beams, (f - 1) d_model)."""

    def windows(self, inputs: Tensor, kept: int) -> Tensor:
        """Concatenates each input (sentences, prompt or beams, d_model) with its beam's `kept` inputs before it."""
        if self.of_beams:
            seen = torch.cat([self.states, inputs], dim=-1)
        else:
            seen = windows(nn.functional.pad(inputs, (0, 0, kept, 0)), inputs.shape[1])
        self.states = seen[..., inputs.shape[2] :]
        return seen


class BeamRecurrentCacheLayer(BeamStateLayer, RecurrentState):
    """The search's `RecurrentCacheLayer`; the state is (sentences, prompt or beams, heads, width)."""

    over_source = False  # whether the state has a number for each position of the source

    def __init__(self, storage: Any):
        super().__init__(storage)
        self.kept_of_source: dict[str, Tensor] = {}

    def of_source(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Returns the result of `compute()`, which depends on the source alone. After `expand` it is called only once,
        and again after sentences have left the batch."""
        kept = self.kept_of_source.get(name)
        if kept is None or not self.of_beams:
            kept = self.kept_of_source[name] = self.storage.keep(compute(), kept)
        return kept

    def last_state(self) -> Tensor | None:
        """Returns the prompt's last state (sentences, heads, width); None before the prompt and after `expand`."""
        return None if self.states is None or self.of_beams else self.states[:, -1]

    def states_before(self, length: int) -> Tensor | None:
        """Returns each beam's last state (sentences, heads, beams, width); before `expand` as `RecurrentState` does."""
        return self.states.transpose(1, 2) if self.of_beams else super().states_before(length)

    def append_states(self, states: Tensor) -> None:
        """Stores the states after each position of the prompt or each beam: (sentences, positions, heads, width)."""
        self.states = states

    def select(self, sentences: Tensor, source_length: int) -> None:
        super().select(sentences, source_length)
        self.kept_of_source.clear()
        if self.over_source:
            self.states = self.states[..., :source_length]


# Class of a cache layer in Transformers' cache -> class of the search's cache layer.
BEAM_LAYERS: dict[type, type[BeamCacheLayer]] = {
    DynamicLayer: BeamCacheLayer,
    ConvolutionCacheLayer: BeamConvolutionCacheLayer,
    RecurrentCacheLayer: BeamRecurrentCacheLayer,
}


class BeamCache(EncoderDecoderCache):
    """The cache of all decoder layers: target slots that a sentence's beams share, and the source's keys and values."""

    def __init__(self, kinds: Iterable[type], storage: Callable[[], Any] = Growing, of_source: Any = SourceCacheLayer):
        """Makes a layer for each class in `kinds` (keys of BEAM_LAYERS), and later of `of_source` for the source."""
        target, source = DynamicCache(), DynamicCache()
        target.layers = [BEAM_LAYERS[kind](storage()) for kind in kinds]
        source.layer_class_to_replicate = of_source
        super().__init__(target, source)
        self.target_layers: list[Any] = target.layers
        self.source_layers: list[Any] = source.layers
