"""The slots of a search's cache: one set of keys and values for each sentence, whatever the number of beams.

The beams of a step are neighbours on the time axis: step i of W beams holds the slots (prompt + i W) .. (prompt + i W +
W - 1), and a mask says which slots are a beam's own history. So beams move without any key or value being copied, the
source's keys and values are there once for each sentence, and a layer sees nothing but a longer sequence. State that
cannot be shared that way (a convolution's window, an attention's memory) is a row of each beam, which moves with it.

| class | what it keeps |
| --- | --- |
| BeamCacheLayer | keys and values of a decoder layer |
| BeamConvolutionCacheLayer, BeamRecurrentCacheLayer | these, and a state of each beam |
| SourceCacheLayer | the source's keys and values |
| Growing, Fixed | where layers keep it: buffers that grow, for the loop; one place, for steps of static shapes |

Before `expand` the positions of a call are those of the prompt, one row for each sentence; after it they are the beams
of one step, and what an attention asks of its slot (modeling/caches.py) is answered for each beam.
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
LARGE = 2**20  # numbers in a buffer whose old place is worth handing back


def whole_blocks(length: int) -> int:
    """Returns the next multiple of BLOCK."""
    return -(-length // BLOCK) * BLOCK


def with_spare_slots(length: int) -> int:
    """Returns how many slots a buffer for `length` has: half as many more, so that most steps need no larger one."""
    return whole_blocks(length + length // 2 + BLOCK)


def put(place: Tensor | None, tensor: Tensor) -> Tensor:
    """Returns the tensor, copied into `place` if there is one already."""
    return tensor.clone(memory_format=torch.contiguous_format) if place is None else place.copy_(tensor)


def put_rows(place: Tensor, rows: Tensor) -> Tensor:
    """Lets beam i, counted through all sentences, go on from beam rows[i]: place (sentences, beams, ...)."""
    return place.copy_(place.view(len(rows), -1).index_select(0, rows).view(place.shape))


class Growing:
    """Buffers with room to grow: keys (sentences, heads, d_h, slots) and values (sentences, heads, slots, d_h).

    Keys lie transposed, which makes the product with the queries several times faster on a CPU; and what a layer gets
    is padded to whole blocks of slots, because softmax is slow over fewer than 16.
    """

    key_buffer: Any = None
    value_buffer: Any = None

    def __init__(self) -> None:
        self.size = self.end = 0

    def begin(self, keys: Tensor, values: Tensor) -> None:
        """Makes empty buffers for keys and values of this form (sentences, heads, any, d_h)."""
        self.key_buffer = keys.new_zeros(*keys.shape[:2], keys.shape[3], 0)
        self.value_buffer = values.new_zeros(*values.shape[:2], 0, values.shape[3])

    def write(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Writes new slots behind the others; returns all, with zeros up to a whole block."""
        if self.key_buffer is None:
            self.begin(keys, values)
        new = keys.shape[2]
        start = self.extend(new)
        self.key_buffer.narrow(3, start, new).copy_(keys.transpose(2, 3))
        self.value_buffer.narrow(2, start, new).copy_(values)
        if self.end != whole_blocks(self.size):  # else what is seen of the buffers is the same as before
            self.end = whole_blocks(self.size)
            self.seen = self.key_buffer[..., : self.end].transpose(2, 3), self.value_buffer[:, :, : self.end]
        return self.seen

    def extend(self, new: int) -> int:
        """Counts `new` slots more, in larger buffers if need be; returns the first of them, to write from there."""
        start, self.size = self.size, self.size + new
        capacity = self.value_buffer.shape[2]
        if self.size > capacity:
            self._replace(self.key_buffer, self.value_buffer, with_spare_slots(self.size) - capacity)
        return start

    def _replace(self, keys: Tensor, values: Tensor, blank: int) -> None:
        """Takes buffers with so many blank slots behind; large old ones go back to the system."""
        self.key_buffer, self.end = nn.functional.pad(keys, (0, blank)), 0
        self.value_buffer = nn.functional.pad(values, (0, 0, 0, blank))
        if values.device.type == "cpu" and self.value_buffer.numel() >= LARGE:
            return_memory()

    def select(self, sentences: Tensor) -> None:
        """Keeps these sentences."""
        if self.key_buffer is not None:
            self.key_buffer = self.key_buffer.index_select(0, sentences)
            self.value_buffer = self.value_buffer.index_select(0, sentences)
            self.end = 0

    def select_slots(self, slots: Tensor) -> None:
        """Keeps these slots of each sentence, (sentences, kept)."""
        if self.key_buffer is None:
            return
        self.size = slots.shape[1]
        heads, width = self.value_buffer.shape[1], self.value_buffer.shape[3]
        keys = self.key_buffer.gather(3, slots[:, None, None, :].expand(-1, heads, width, -1))
        values = self.value_buffer.gather(2, slots[:, None, :, None].expand(-1, heads, -1, width))
        self._replace(keys, values, with_spare_slots(self.size) - self.size)

    def keep(self, states: Tensor, place: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """Returns states (sentences, beams, ...), or with `rows` for each beam the state of that row of all beams."""
        return states if rows is None else states.flatten(0, 1).index_select(0, rows).view(states.shape)


class Fixed:
    """Tensors that stay where they are: keys and values (sentences, heads, slots, d_h)."""

    size = 0

    def __init__(self, slots: int, places: list[Tensor]):
        """Takes the number of slots, and a list whose one tensor says which slots are written next, (new,)."""
        self.slots, self.places = slots, places
        self.buffers: list[Tensor] = []

    def write(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Writes new slots; returns all."""
        if not self.buffers:
            self.buffers = [x.new_zeros(*x.shape[:2], self.slots, x.shape[3]) for x in (keys, values)]
        for buffer, new in zip(self.buffers, (keys, values)):
            buffer.index_copy_(2, self.places[0], new)
        return self.buffers[0], self.buffers[1]

    def keep(self, states: Tensor, place: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """Puts what `Growing.keep` returns into `place`."""
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

    _layer_type = None  # DynamicCache(config=...) must not choose it
    keys: Any = None
    values: Any = None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Stores the keys, transposed in memory, and the values."""
        self.is_initialized = True
        self.keys = key_states.transpose(2, 3).contiguous().transpose(2, 3)
        self.values = value_states.contiguous()
        return self.keys, self.values

    def select(self, sentences: Tensor, source_length: int) -> None:
        """Keeps these sentences, and the first `source_length` positions."""
        self.keys = self.keys.transpose(2, 3)[..., :source_length].index_select(0, sentences).transpose(2, 3)
        self.values = self.values[:, :, :source_length].index_select(0, sentences)


class FixedSourceCacheLayer(SourceCacheLayer):
    """`SourceCacheLayer` in one place."""

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.is_initialized = True
        self.keys, self.values = put(self.keys, key_states), put(self.values, value_states)
        return self.keys, self.values


class BeamCacheLayer(DynamicLayer):
    """Keys and values of a decoder layer, in a storage."""

    _layer_type = None

    def __init__(self, storage: Any):
        super().__init__()
        self.storage = storage

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Writes the new slots; returns the keys and values of all."""
        self.is_initialized = True
        return self.storage.write(key_states, value_states)

    def get_seq_length(self) -> int:
        return self.storage.size

    def expand(self, width: int) -> None:
        """Gives each sentence `width` beams behind its prompt, one row: they share what is there."""

    def reorder(self, rows: Tensor) -> None:
        """Lets beam i, counted through all sentences, go on from beam rows[i]: the mask says so, nothing moves."""

    def select(self, sentences: Tensor, source_length: int) -> None:
        """Keeps these sentences."""
        self.storage.select(sentences)


class BeamStateLayer(BeamCacheLayer):
    """A slot with a state for each beam: `states` (sentences, prompt, ...), then (sentences, beams, ...)."""

    counts_positions = False
    states: Any = None
    place: Any = None  # where `storage` keeps the states of beams
    of_beams = False

    def real_positions(self, real: Tensor | None) -> Tensor | None:
        """Returns those of the prompt as the mask says; beams are all real."""
        return None if self.of_beams else real

    def keep(self, rows: Tensor | None = None) -> None:
        """Keeps the states of all beams, or for each beam that of a row."""
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
    """`ConvolutionCacheLayer` in a search; the state is the window, (sentences, prompt or beams, (f - 1) d_model)."""

    def windows(self, inputs: Tensor, kept: int) -> Tensor:
        """Joins inputs (sentences, prompt or beams, d_model) to the `kept` before each: (..., (kept + 1) d_model)."""
        if self.of_beams:
            seen = torch.cat([self.states, inputs], dim=-1)
        else:
            seen = windows(nn.functional.pad(inputs, (0, 0, kept, 0)), inputs.shape[1])
        self.states = seen[..., inputs.shape[2] :]
        return seen


class BeamRecurrentCacheLayer(BeamStateLayer, RecurrentState):
    """`RecurrentCacheLayer` in a search; the state is (sentences, prompt or beams, heads, width)."""

    over_source = False  # whether the state has a number for each position of the source

    def __init__(self, storage: Any):
        super().__init__(storage)
        self.kept_of_source: dict[str, Tensor] = {}

    def of_source(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Returns `compute()` of the source: computed at the prompt, and again when sentences have left."""
        kept = self.kept_of_source.get(name)
        if kept is None or not self.of_beams:
            kept = self.kept_of_source[name] = self.storage.keep(compute(), kept)
        return kept

    def last_state(self) -> Tensor | None:
        """Returns that behind the prompt, (sentences, heads, width). Beams have none in common."""
        return None if self.states is None or self.of_beams else self.states[:, -1]

    def states_before(self, length: int) -> Tensor | None:
        """Returns the state of every beam, (sentences, heads, beams, width)."""
        return self.states.transpose(1, 2) if self.of_beams else super().states_before(length)

    def append_states(self, states: Tensor) -> None:
        """Takes the states behind each position of the prompt or each beam: (sentences, positions, heads, width)."""
        self.states = states

    def select(self, sentences: Tensor, source_length: int) -> None:
        super().select(sentences, source_length)
        self.kept_of_source.clear()
        if self.over_source:
            self.states = self.states[..., :source_length]


# The slot of a search for each kind of slot of Transformers' cache.
BEAM_LAYERS: dict[type, type[BeamCacheLayer]] = {
    DynamicLayer: BeamCacheLayer,
    ConvolutionCacheLayer: BeamConvolutionCacheLayer,
    RecurrentCacheLayer: BeamRecurrentCacheLayer,
}


class BeamCache(EncoderDecoderCache):
    """Slots for the target, shared by the beams of a sentence; the source's keys and values once for each sentence."""

    def __init__(self, kinds: Iterable[type], storage: Callable[[], Any] = Growing, of_source: Any = SourceCacheLayer):
        """Takes the kinds of the slots of every decoder layer, classes in BEAM_LAYERS, and where layers keep what."""
        target, source = DynamicCache(), DynamicCache()
        target.layers = [BEAM_LAYERS[kind](storage()) for kind in kinds]
        source.layer_class_to_replicate = of_source
        super().__init__(target, source)
        self.target_layers: list[Any] = target.layers
        self.source_layers: list[Any] = source.layers  # filled when the source is read
