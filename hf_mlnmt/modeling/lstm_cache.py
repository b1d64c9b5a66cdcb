"""The slot of a decoder's cache that holds the state of LSTM layers.

Importing this file registers it with Transformers' caches: `DynamicCache(config=...)` and `StaticCache(config=...)`
make one where the config names the type "mlnmt_lstm". The state follows the beams and, the dynamic one, the drafts of
assisted decoding, as that of a recurrent attention does (recurrent_cache.py). Keys and values of one number a position
count the positions, so that lengths, fixed sizes and cropping are Transformers' own.
"""

from torch import Tensor

from .recurrent_cache import RecurrentCacheLayer, StaticRecurrentCacheLayer


def count_positions(slot: RecurrentCacheLayer | StaticRecurrentCacheLayer, like: Tensor) -> None:
    """Tell the slot of as many new positions as `like` (batch, time, ...) has."""
    nothing = like.new_zeros(like.shape[0], 1, like.shape[1], 1)
    slot.update(nothing, nothing)


class LSTMCacheLayer(RecurrentCacheLayer):
    """`states` (batch, steps, rows, width): h and c of every layer, and with input feeding the attentional state."""

    _layer_type = "mlnmt_lstm"


class StaticLSTMCacheLayer(StaticRecurrentCacheLayer):
    """The same for a fixed number of positions; an LSTM begins with what the encoder says, not with zeros."""

    _layer_type = "mlnmt_lstm"

    def reset(self) -> None:
        super().reset()
        self.states = None
