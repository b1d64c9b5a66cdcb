"""A search's cache, and the slots of decoder layers that have state beside keys and values: one state for each beam.

Before `expand` the positions of a call are those of the prompt, one row for each sentence; after it they are the beams
of one step, and what an attention asks of its slot (caches.py, caches.py) is answered for each.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

from hf_mlnmt.modeling.caches import ConvolutionCacheLayer, RecurrentCacheLayer, RecurrentState, windows
from hf_mlnmt.search.cache import BeamCacheLayer, SourceCacheLayer
from hf_mlnmt.search.decoder import gather_beams


class BeamConvolutionCacheLayer(BeamCacheLayer):
    """The window of every beam: `ConvolutionCacheLayer` in a search."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.window: Tensor | None = None  # (sentences, (f - 1) d_model), then (sentences, beams, (f - 1) d_model)

    def windows(self, inputs: Tensor, kept: int) -> Tensor:
        """Inputs (sentences, prompt or beams, d_model), each behind the `kept` before it: (..., (kept + 1) d_model)."""
        if self.window is None:
            found = windows(torch.nn.functional.pad(inputs, (0, 0, kept, 0)), inputs.shape[1])
            self.window = found[:, -1, inputs.shape[2] :]
        else:
            found = torch.cat([self.window, inputs], dim=-1)
            self.window = found[..., inputs.shape[2] :]
        return found

    def real_positions(self, real: Tensor | None) -> Tensor | None:
        """Those of the prompt as the mask says; beams are all real."""
        return real if self.window is None else None

    def expand(self, width: int) -> None:
        assert self.window is not None
        self.window = self.window.unsqueeze(1).expand(-1, width, -1)

    def reorder(self, parents: Tensor) -> None:
        assert self.window is not None
        self.window = gather_beams(self.window, parents)

    def select(self, sentences: Tensor, source_length: int) -> None:
        super().select(sentences, source_length)
        assert self.window is not None
        self.window = self.window.index_select(0, sentences)


class BeamRecurrentCacheLayer(RecurrentState, BeamCacheLayer):
    """The state of every beam: `RecurrentCacheLayer` in a search."""

    over_source = False  # whether the state has a number for each position of the source

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.states: Tensor | None = None  # (sentences, 1, heads, width), then (sentences, beams, heads, width)
        self.of_beams = False
        self.source_product: Any = None

    def of_source(self, compute: Callable[[], Any]) -> Any:
        """`compute()`, a product of the source's keys: computed again only when sentences have left."""
        if self.source_product is None:
            self.source_product = compute()
        return self.source_product

    def last_state(self) -> Tensor | None:
        """(sentences, heads, width): behind the prompt. Beams have none in common."""
        return None if self.states is None or self.of_beams else self.states[:, -1]

    def states_before(self, length: int) -> Tensor | None:
        """The state of every beam, (sentences, heads, beams, width)."""
        if not self.of_beams:
            return super().states_before(length)
        assert self.states is not None
        return self.states.transpose(1, 2)

    def real_positions(self, real: Tensor | None) -> Tensor | None:
        """Those of the prompt as the mask says; beams are all real."""
        return None if self.of_beams else real

    def append_states(self, states: Tensor) -> None:
        """The states behind each position of the prompt, or of each beam: (sentences, positions, heads, width)."""
        self.states = states if self.of_beams else states[:, -1:]

    def expand(self, width: int) -> None:
        assert self.states is not None
        self.states, self.of_beams = self.states.expand(-1, width, -1, -1), True

    def reorder(self, parents: Tensor) -> None:
        assert self.states is not None
        self.states = gather_beams(self.states, parents)

    def select(self, sentences: Tensor, source_length: int) -> None:
        super().select(sentences, source_length)
        assert self.states is not None
        kept = self.states.index_select(0, sentences)
        self.states, self.source_product = kept[..., :source_length] if self.over_source else kept, None


# The slot of a search for each kind of slot of Transformers' cache.
BEAM_LAYERS: dict[type, type[BeamCacheLayer]] = {
    DynamicLayer: BeamCacheLayer,
    ConvolutionCacheLayer: BeamConvolutionCacheLayer,
    RecurrentCacheLayer: BeamRecurrentCacheLayer,
}


class BeamCache(EncoderDecoderCache):
    """Slots for the target, shared by the beams of a sentence; the source's keys and values once for each sentence."""

    def __init__(self, kinds: Iterable[type]):
        """`kinds`: of the slots of every decoder layer, classes in BEAM_LAYERS."""
        target, source = DynamicCache(), DynamicCache()
        target.layers = [BEAM_LAYERS[kind]() for kind in kinds]
        source.layer_class_to_replicate = SourceCacheLayer
        super().__init__(target, source)
        self.target_layers: list[Any] = target.layers
        self.source_layers: list[Any] = source.layers  # filled when the source is read

    @property
    def slots(self) -> int:
        """How many slots of the target are in use."""
        return self.self_attention_cache.get_seq_length()

    def expand(self, width: int) -> None:
        """From one row for each sentence to `width` beams."""
        for layer in self.target_layers:
            layer.expand(width)

    def reorder(self, parents: Tensor) -> None:
        """Beam i of each sentence goes on from its beam parents[:, i]; parents (sentences, width)."""
        for layer in self.target_layers:
            layer.reorder(parents)

    def select(self, sentences: Tensor, source_length: int) -> None:
        """Keep these sentences, and the first `source_length` positions of their sources."""
        for layer in (*self.target_layers, *self.source_layers):
            layer.select(sentences, source_length)

    def select_slots(self, slots: Tensor) -> None:
        """Keep these slots of the target, (sentences, kept)."""
        for layer in self.target_layers:
            layer.select_slots(slots)
