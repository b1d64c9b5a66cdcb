"""What the recurrent members of extended_cross_attention.py share: all energies at once, and the state in the cache.

Reference: thesis on monolingual data, chapter 5; equation numbers are its own.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from .attention import CrossAttention, cached_source, split_heads
from .attention_scan_eager import previous_states


class HeadProjection(nn.Module):
    """A matrix (outputs, inputs) of its own for every head, in one parameter (heads, outputs, inputs)."""

    def __init__(self, heads: int, inputs: int, outputs: int):
        super().__init__()
        self.fans = inputs + outputs
        self.weight = nn.Parameter(torch.empty(heads, outputs, inputs))


class RecurrentAttention(CrossAttention):
    """What the recurrent members share: the state in the cache, energies of all positions, contexts of all weights."""

    def forward(
        self,
        hidden_states: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        words: Tensor | None = None,
        target_real: Tensor | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """As the baseline's; `target_real` (batch, target): False at padding, None: none. The weights
        come with every implementation, those of key-value-* with eager only."""
        query = split_heads(self.q_proj(hidden_states), self.heads)
        key, value = cached_source(past_key_values, self.layer_idx, lambda: self.project_source(memory))
        slot: Any = None if past_key_values is None else self.slot(past_key_values)
        start: Tensor | None = None if slot is None else slot.last_state()
        before = None  # the state before each position, where it is known
        if start is not None and (slot.at_beams or query.shape[2] == 1):
            before = start.transpose(1, 2) if slot.at_beams else start.unsqueeze(2)
        if slot is not None and slot.at_beams:
            target_real = None
        hidden = hidden_positions(attention_mask)
        context, weights, states = self.recur(query, key, value, memory, hidden, start, before, target_real, slot)
        if slot is not None:
            slot.append_states(after_padding(states, start, target_real).transpose(1, 2))
        return self.out_proj(context.transpose(1, 2).flatten(2).to(hidden_states.dtype)), weights

    def recur(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        memory: Tensor,
        hidden: Tensor | None,
        start: Tensor | None,
        before: Tensor | None,
        real: Tensor | None,
        slot: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Contexts (batch, heads, target, d_h), weights (batch, heads, target, source) and the state behind each
        position (batch, heads, target, width).

        `hidden` is True at masked places of the weights. `before` (batch, heads, target, width) are the states before
        all positions, if they are known (a step of a search); if not, `start` (batch, heads, width) is that before the
        first one, None where the sentence begins.
        """
        raise NotImplementedError

    def slot(self, past_key_values: EncoderDecoderCache) -> Any:
        """This layer's slot. Raises: ValueError for a cache that cannot hold the state."""
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        layer = cache.layers[self.layer_idx] if self.layer_idx < len(cache.layers) else None
        if not hasattr(layer, "append_states"):
            raise ValueError(
                f"slot {self.layer_idx} of the cache is {layer}: build the cache from the model's config, as in "
                "EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))"
            )
        return layer

    def energies(self, query: Tensor, key: Tensor, hidden: Tensor | None) -> Tensor:
        """Equation 5.1, (batch, heads, target, source), in float32 at least."""
        energies = torch.matmul(query * self.scaling, key.transpose(2, 3))
        energies = energies.to(torch.promote_types(energies.dtype, torch.float32))
        return energies if hidden is None else energies.masked_fill(hidden, torch.finfo(energies.dtype).min)

    def read(self, weights: Tensor, value: Tensor) -> Tensor:
        """Equation 5.3, with dropout on the weights."""
        weights = nn.functional.dropout(weights.to(value.dtype), self.config.attention_dropout, self.training)
        return torch.matmul(weights, value)


def after_padding(states: Tensor, known: Tensor | None, real: Tensor | None) -> Tensor:
    """The state behind each position (batch, heads, target, width): that of the last real one, `known` before them."""
    if real is None:
        return states
    longer, seen = torch.cat([states, states[:, :, -1:]], dim=2), torch.cat([real, real[:, -1:]], dim=1)
    return previous_states(longer.movedim(2, 0), known, seen)[1:].movedim(0, 2)


def hidden_positions(mask: Tensor | None) -> Tensor | None:
    """True where the source may not be read, (batch, 1, 1 or target, source), from the mask of any implementation."""
    if mask is None:
        return None
    if mask.dim() == 2:  # flash attention's: True is visible
        return mask[:, None, None, :] == 0
    return ~mask if mask.dtype == torch.bool else mask != 0
