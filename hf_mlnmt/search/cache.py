"""The slots of a search's cache: one set of keys and values for each sentence, whatever the number of beams.

The beams of a step are neighbours on the time axis: step i of W beams holds the slots (prompt + i W) .. (prompt + i W +
W - 1), and a mask says which slots are a beam's own history. So beams move without any key or value being copied, the
source's keys and values are there once for each sentence, and a layer sees nothing but a longer sequence.

Keys lie transposed in memory, (sentences, heads, d_h, slots), which makes the product with the queries several times
faster on a CPU; and what a layer gets is padded to whole blocks of slots, because softmax is slow over fewer than 16.

State that cannot be shared that way (a convolution's window, an attention's memory) has slots of its own, with a state
for each beam. Before `expand` the positions of a call are those of the prompt, one row for each sentence; after it they
are the beams of one step, and what an attention asks of its slot (modeling/caches.py) is answered for each beam.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

from hf_mlnmt.common.memory import return_memory
from hf_mlnmt.modeling.caches import RecurrentCacheLayer, RecurrentState
from hf_mlnmt.modeling.dual_context import ConvolutionCacheLayer, windows
from hf_mlnmt.search.decoder import gather_beams

BLOCK = 16
LARGE = 2**20  # numbers in a buffer whose old place is worth handing back


def whole_blocks(length: int) -> int:
    """Returns the next multiple of BLOCK."""
    return -(-length // BLOCK) * BLOCK


def with_spare_slots(length: int) -> int:
    """Returns how many slots a buffer for `length` has: half as many more, so that most steps need no larger one."""
    return whole_blocks(length + length // 2 + BLOCK)


class SourceCacheLayer(DynamicLayer):
    """The source's keys and values of one attention, written once: (sentences, heads, source, d_h)."""

    _layer_type = None  # DynamicCache(config=...) must not choose it
    keys: Any
    values: Any

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Stores the keys, transposed in memory, and the values."""
        self.lazy_initialization(key_states, value_states)
        self.keys = key_states.transpose(2, 3).contiguous().transpose(2, 3)
        self.values = value_states.contiguous()
        return self.keys, self.values

    def select(self, sentences: Tensor, source_length: int) -> None:
        """Keeps these sentences, and the first `source_length` positions."""
        self.keys = self.keys.transpose(2, 3)[..., :source_length].index_select(0, sentences).transpose(2, 3)
        self.values = self.values[:, :, :source_length].index_select(0, sentences)


class BeamCacheLayer(DynamicLayer):
    """Keys and values of a decoder layer in buffers with room to grow: (sentences, heads, slots, d_h)."""

    _layer_type = None
    keys: Any
    values: Any

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
        """Writes the new slots behind the others; all come back, with zeros up to a whole block."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[2]
        start = self.extend(new)
        self.key_buffer.narrow(3, start, new).copy_(key_states.transpose(2, 3))
        self.value_buffer.narrow(2, start, new).copy_(value_states)
        if self.end != whole_blocks(self.size):  # else what is seen of the buffers is the same as before
            self.end = whole_blocks(self.size)
            self.keys = self.key_buffer[..., : self.end].transpose(2, 3)
            self.values = self.value_buffer[:, :, : self.end]
        return self.keys, self.values

    def extend(self, new: int) -> int:
        """Counts `new` slots more, in larger buffers if need be; returns the first of them, to write from there."""
        start, self.size = self.size, self.size + new
        capacity = self.value_buffer.shape[2]
        if self.size > capacity:
            missing = with_spare_slots(self.size) - capacity
            self.key_buffer = nn.functional.pad(self.key_buffer, (0, missing))
            self.value_buffer = nn.functional.pad(self.value_buffer, (0, 0, 0, missing))
            self.end = 0
            self.return_old_buffers()
        return start

    def return_old_buffers(self) -> None:
        """Gives the memory of buffers that were replaced back to the system."""
        if self.value_buffer.device.type == "cpu" and self.value_buffer.numel() >= LARGE:
            return_memory()

    def get_seq_length(self) -> int:
        return self.size

    def expand(self, width: int) -> None:
        """Gives each sentence `width` beams behind its prompt, one row: they share what is there."""

    def reorder(self, parents: Tensor) -> None:
        """Lets beam i go on from beam parents[:, i]: the mask says so, nothing moves."""

    def select(self, sentences: Tensor, source_length: int) -> None:
        """Keeps these sentences."""
        self.key_buffer = self.key_buffer.index_select(0, sentences)
        self.value_buffer = self.value_buffer.index_select(0, sentences)
        self.end = 0

    def select_slots(self, slots: Tensor) -> None:
        """Keeps these slots of each sentence, (sentences, kept)."""
        self.size, self.end = slots.shape[1], 0
        blank = with_spare_slots(self.size) - self.size
        heads, width = self.value_buffer.shape[1], self.value_buffer.shape[3]
        keys = self.key_buffer.gather(3, slots[:, None, None, :].expand(-1, heads, width, -1))
        values = self.value_buffer.gather(2, slots[:, None, :, None].expand(-1, heads, -1, width))
        self.key_buffer = nn.functional.pad(keys, (0, blank))
        self.value_buffer = nn.functional.pad(values, (0, 0, 0, blank))
        self.return_old_buffers()


class BeamStateLayer(BeamCacheLayer):
    """A slot with a state for each beam: `states` (sentences, prompt, ...), then (sentences, beams, ...)."""

    states: Any = None
    of_beams = False

    def real_positions(self, real: Tensor | None) -> Tensor | None:
        """Returns those of the prompt as the mask says; beams are all real."""
        return None if self.of_beams else real

    def expand(self, width: int) -> None:
        self.states, self.of_beams = self.states[:, -1:].expand(-1, width, *self.states.shape[2:]), True

    def reorder(self, parents: Tensor) -> None:
        self.states = gather_beams(self.states, parents)

    def select(self, sentences: Tensor, source_length: int) -> None:
        super().select(sentences, source_length)
        self.states = self.states.index_select(0, sentences)


class BeamConvolutionCacheLayer(BeamStateLayer):
    """`ConvolutionCacheLayer` in a search; the state is the window, (sentences, prompt or beams, (f - 1) d_model)."""

    def windows(self, inputs: Tensor, kept: int) -> Tensor:
        """Joins inputs (sentences, prompt or beams, d_model) to the `kept` before each: (..., (kept + 1) d_model)."""
        if self.of_beams:
            seen = torch.cat([self.states, inputs], dim=-1)
            self.states = seen[..., inputs.shape[2] :]
        else:
            seen = windows(nn.functional.pad(inputs, (0, 0, kept, 0)), inputs.shape[1])
            self.states = seen[..., inputs.shape[2] :]
        return seen


class BeamRecurrentCacheLayer(BeamStateLayer, RecurrentState):
    """`RecurrentCacheLayer` in a search; the state is (sentences, prompt or beams, heads, width)."""

    over_source = False  # whether the state has a number for each position of the source

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.kept_of_source: dict[str, Any] = {}

    def of_source(self, name: str, compute: Callable[[], Any]) -> Any:
        """Returns `compute()`, something of the source: computed again only when sentences have left."""
        if name not in self.kept_of_source:
            self.kept_of_source[name] = compute()
        return self.kept_of_source[name]

    def last_state(self) -> Tensor | None:
        """Returns that behind the prompt, (sentences, heads, width). Beams have none in common."""
        return None if self.states is None or self.of_beams else self.states[:, -1]

    def states_before(self, length: int) -> Tensor | None:
        """Returns the state of every beam, (sentences, heads, beams, width)."""
        return self.states.transpose(1, 2) if self.of_beams else super().states_before(length)

    def append_states(self, states: Tensor) -> None:
        """Takes the states behind each position of the prompt or each beam: (sentences, positions, heads, width)."""
        self.states = states

    def count(self, new: int) -> Tensor:
        """Counts `new` slots more, of one position for each beam; returns the states, to be written over in place."""
        self.extend(new)
        self.states = self.states.contiguous()
        return self.states

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

    def __init__(self, kinds: Iterable[type]):
        """Takes the kinds of the slots of every decoder layer, classes in BEAM_LAYERS."""
        target, source = DynamicCache(), DynamicCache()
        target.layers = [BEAM_LAYERS[kind]() for kind in kinds]
        source.layer_class_to_replicate = SourceCacheLayer
        super().__init__(target, source)
        self.target_layers: list[Any] = target.layers
        self.source_layers: list[Any] = source.layers  # filled when the source is read

    @property
    def slots(self) -> int:
        """Returns how many slots of the target are in use."""
        return self.self_attention_cache.get_seq_length()
