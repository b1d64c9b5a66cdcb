"""Reading the source once for a search: keys and values of every attention over it, of real positions alone."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


class RealPositions:
    """The positions of a batch of sources (sentences, source) that are not padding."""

    def __init__(self, real: Tensor):
        self.shape = real.shape
        self.sentences, self.positions = real.nonzero(as_tuple=True)

    def pack(self, memory: Tensor) -> Tensor:
        """Memory (sentences, source, ...) -> its real positions as one long sentence, (1, real, ...)."""
        return memory[self.sentences, self.positions].unsqueeze(0)

    def project(self, project: Callable, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (sentences, heads, source, d_h) of a packed memory, zeros at padding.

        Most of a batch can be padding, and `project` sees none of it. Keys lie transposed in memory.
        """
        key, value = project(packed)
        heads, width = key.shape[1], key.shape[3]
        keys = key.new_zeros(self.shape[0], heads, width, self.shape[1])
        keys.permute(0, 3, 1, 2)[self.sentences, self.positions] = key[0].transpose(0, 1)
        values = value.new_zeros(self.shape[0], value.shape[1], self.shape[1], value.shape[3])
        values.transpose(1, 2)[self.sentences, self.positions] = value[0].transpose(0, 1)
        return keys.transpose(2, 3), values


def read_source(attentions: list[tuple[Any, Tensor]], real: Tensor, cache: Any) -> None:
    """Fill the cache: of every attention over the source and the memory (sentences, source, ...) that it reads."""
    positions, memory, packed = RealPositions(real), None, None
    for attention, read in attentions:
        if packed is None or read is not memory:  # most layers read the same
            memory, packed = read, positions.pack(read)
        cache.cross_attention_cache.update(*positions.project(attention.project_source, packed), attention.layer_idx)
        cache.is_updated[attention.layer_idx] = True
