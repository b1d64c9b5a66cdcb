"""Layers of a decoder's cache that hold a state beside keys and values.

| layer type | state | in |
| --- | --- | --- |
| mlnmt_recurrence | the state of a recurrent attention over the source, of an SSRU | here |
| mlnmt_convolution | the last inputs of a causal convolution | dual_context.py |
| mlnmt_lstm | h and c of every LSTM layer | rnn.py |

Defining a class registers it with Transformers' caches: `DynamicCache(config=...)` and `StaticCache(config=...)` make
such a cache layer, here called slot, for every decoder layer of its type. It reorders its state with the beams and, if
dynamic, crops it in assisted decoding. A slot without keys and values stores one number for each position instead, so
that Transformers' code for lengths, static sizes and cropping works.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, StaticLayer


def real_positions(mask: Tensor | None, past: int | Tensor, length: int) -> Tensor | None:
    """Returns (batch, length), True where a position from `past` on is not padding; None where `mask` is None.

    mask: an attention's, (batch, 1, queries, keys), additive or boolean, or (batch, keys).
    """
    if mask is None:
        return None
    if mask.dim() == 4:
        mask = mask[:, 0, -1]  # the last query sees every real position up to itself
        mask = mask if mask.dtype == torch.bool else mask == 0
    if isinstance(past, Tensor):  # a static cache returns its length as a tensor
        return mask.index_select(1, torch.arange(length, device=mask.device) + past).bool()
    return mask[:, past : past + length].bool()


class KeptStates(DynamicLayer):
    """A dynamic cache layer that also keeps states, (batch, steps, ...), the last step at the end.

    It keeps the last `kept` steps, or all of them after `activate_past_recording` (assisted decoding), so that `crop`
    can drop some. `what` names the states in an error.
    """

    kept = 1
    what = "states"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.states: Tensor | None = None
        self.record_past = False

    def activate_past_recording(self):
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        if self.states is None or (tokens_to_remove == 0 and not self.record_past):
            return
        end = self.states.shape[1] + tokens_to_remove
        if self.get_seq_length() == 0:
            self.states = None
        elif end < self.kept:
            raise RuntimeError(
                f"crop({tokens_to_remove}): the {self.what} before that are no longer there; "
                "call activate_past_recording() on the cache before the steps that may be taken back"
            )
        else:
            self.states = self.states[:, end - self.kept : end]

    def reset(self) -> None:
        super().reset()
        self.states = None

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        if self.states is not None:
            self.states = self.states.index_select(0, beam_idx.to(self.states.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        if self.states is not None:
            self.states = self.states.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        if self.states is not None:
            self.states = self.states[indices]


class StaticStates(StaticLayer):
    """A static cache layer (of fixed size, for torch.compile) that also keeps a state, which is changed in place."""

    is_croppable = False  # each new state overwrites the last

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.states: Tensor | None = None

    def begin(self, states: Tensor) -> Tensor:
        """Stores the tensor into which all later states will be written, and returns it."""
        self.states = states
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(states)
        return states

    def reset(self) -> None:
        super().reset()
        if self.states is not None:
            self.states.zero_()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        if self.states is not None:
            self.states = self.states.index_select(0, beam_idx.to(self.states.device))


def slot_of(cache: Any, index: int, method: str) -> Any:
    """Returns cache layer number `index` of the target's cache. Raises: ValueError if it lacks the given `method`."""
    layers = getattr(cache, "self_attention_cache", cache).layers
    slot = layers[index] if index < len(layers) else None
    if not hasattr(slot, method):
        raise ValueError(
            f"slot {index} of the cache is {slot}: build the cache from the model's config, as in "
            "EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))"
        )
    return slot


class SlotState:
    """The base of all cache layers with a state; those of a search (search/cache.py) override its methods."""

    counts_positions = True  # False: `count_positions` does nothing

    def real_positions(self, real: Tensor | None) -> Tensor | None:
        """Returns `real` as given: (batch, time), True where a new position is not padding; None: no padding."""
        return real


class RecurrentState(SlotState):
    """The interface of a cache layer to a recurrent attention: its states, and values kept between calls."""

    constants: Any = None

    def of_source(self, name: str, compute: Callable[[], Any]) -> Any:
        """Returns `compute()`, which depends on the source alone. The cache layers of a search override this: they call
        it once and keep the result under `name`."""
        return compute()

    def constant(self, compute: Callable[[], Any]) -> Any:
        """Returns the result of `compute()`, a product of weights, which is called only the first time."""
        if self.constants is None:
            self.constants = compute()
        return self.constants

    def last_state(self) -> Tensor | None:
        """Returns the state after the last position (batch, heads, width), or None where the sentence begins."""
        raise NotImplementedError

    def states_before(self, length: int) -> Tensor | None:
        """Returns the state before one new position, (batch, heads, 1, width). Returns None where the sentence begins,
        and for a `length` of several new positions, as later ones depend on states that are not computed yet."""
        last = self.last_state()
        return None if last is None or length > 1 else last.unsqueeze(2)


class RecurrentCacheLayer(RecurrentState, KeptStates):
    """The dynamic cache layer of a recurrence: keys and values, and the states (batch, steps, heads, width)."""

    _layer_type = "mlnmt_recurrence"
    what = "states of the attention"

    def last_state(self) -> Tensor | None:
        return None if self.states is None else self.states[:, -1]

    def append_states(self, states: Tensor):
        """Stores the states after each of the new positions: (batch, steps, heads, width)."""
        if self.record_past and self.states is not None:
            states = torch.cat([self.states, states], dim=1)
        self.states = states if self.record_past else states[:, -1:]


class StaticRecurrentCacheLayer(RecurrentState, StaticStates):
    """The static cache layer of a recurrence: keys, values, and the last state (batch, heads, width) alone."""

    _layer_type = "mlnmt_recurrence"

    def last_state(self) -> Tensor | None:
        # Not None after `reset()`, but zeros, with which every recurrence begins.
        return None if self.states is None else self.states.clone()

    def append_states(self, states: Tensor):
        kept, last = self.states, states[:, -1]
        if kept is None:
            kept = self.begin(torch.empty_like(last, memory_format=torch.contiguous_format))
        kept.copy_(last)


def count_positions(slot: RecurrentCacheLayer | StaticRecurrentCacheLayer, like: Tensor) -> None:
    """Adds the number of positions of `like` (batch, time, ...) to a cache layer's length: appends a key and a value of
    one zero for each; does nothing in a search, which counts by itself."""
    if slot.counts_positions:
        nothing = like.new_zeros(like.shape[0], 1, like.shape[1], 1)
        slot.update(nothing, nothing)
