"""The recurrent members of extended_cross_attention.py: energies of all positions in one product, weights by a scan.

Reference: thesis on monolingual data, chapter 5; its equation numbers are used, see extended_cross_attention.py.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from .attention import CrossAttention, cached_source, split_heads
from .attention_scan import context_scan, gate_scan, gate_step, previous_states, weight_scan, weight_step
from .caches import slot_of
from .linear import is_asynchronous, project
from .matrices import JointMatrices, matrix_of


class HeadProjection(JointMatrices):
    """A parameter with a matrix for every head; a call returns it, (heads, outputs, inputs)."""

    def __init__(self, heads: int, inputs: int, outputs: int):
        super().__init__()
        self.fans = inputs + outputs
        self.weight = nn.Parameter(torch.empty(heads, outputs, inputs))

    def forward(self) -> Tensor:
        return self.weight


class RecurrentAttention(CrossAttention):
    """The base of the recurrent members: projections, energies, the state in the cache; subclasses define `recur`."""

    def forward(
        self,
        hidden_states: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        target_real: Tensor | None = None,
        inverse_fertility: Tensor | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends as `CrossAttention` does; the weights are returned by every implementation, of key-value-* by eager.

        target_real: (batch, target), False at padding; None: no padding. inverse_fertility: 1/phi (batch, source, 1).
        """
        query = split_heads(project(self.q_proj, hidden_states), self.heads)
        key, value = cached_source(cache, self.layer_idx, self.project_source, memory)
        slot = None if cache is None else slot_of(cache, self.layer_idx, "append_states")
        start = before = None  # the state before the first position, and the states before all, where they are known
        if slot is not None:
            start, before = slot.last_state(), slot.states_before(query.shape[2])
            target_real = slot.real_positions(target_real)
        find = partial(hidden_positions, attention_mask)
        hidden = find() if slot is None or self.training else slot.of_source("hidden", find)
        source = query, key, value, hidden, inverse_fertility
        context, weights, states = self.recur(*source, start, before, target_real, slot)
        if slot is not None:
            slot.append_states(after_padding(states, start, target_real).transpose(1, 2))
        return project(self.out_proj, context.transpose(1, 2).flatten(2).to(hidden_states.dtype)), weights

    def recur(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        hidden: Tensor | None,
        inverse_fertility: Tensor | None,
        start: Tensor | None,
        before: Tensor | None,
        real: Tensor | None,
        slot: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Returns contexts (batch, heads, target, d_h), weights (batch, heads, target, source) and the state after each
        position (batch, heads, target, width).

        `hidden` is True where the source is masked. `before` (batch, heads, target, width): the states before all
        positions, where they are known (a step of a search); else `start` (batch, heads, width): the state before the
        first position, None where the sentence begins. `real`: `target_real`.
        """
        raise NotImplementedError

    def energies(self, query: Tensor, key: Tensor, hidden: Tensor | None) -> Tensor:
        """Computes equation 5.1, (batch, heads, target, source), in float32 at least."""
        return self.energies_of_scaled(query * self.scaling, key, hidden)

    @staticmethod
    def energies_of_scaled(query: Tensor, key: Tensor, hidden: Tensor | None) -> Tensor:
        """Computes `energies` of queries that are already divided by sqrt(d_h)."""
        energies = torch.matmul(query, key.transpose(2, 3))
        energies = energies.to(torch.promote_types(energies.dtype, torch.float32))
        return energies if hidden is None else energies.masked_fill(hidden, torch.finfo(energies.dtype).min)

    def read(self, weights: Tensor, value: Tensor) -> Tensor:
        """Computes equation 5.3, with dropout on the weights."""
        weights = nn.functional.dropout(weights.to(value.dtype), self.config.attention_dropout, self.training)
        return torch.matmul(weights, value)


class PreviousContextAttention(RecurrentAttention):
    """Attention whose query also depends on the previous context vector c, which is the state: equation 5.5."""

    def __init__(self, config: Any, heads: int, layer_idx: int = 0):
        super().__init__(config, heads, layer_idx)
        width, self.full = config.d_model, config.cross_attention.endswith("full")
        if self.full:
            self.context_proj = nn.Linear(width, width, bias=False)  # W_att
            self.context_q_proj: Any = nn.Linear(width, width, bias=False)  # W_q^2
        else:
            self.context_q_proj = HeadProjection(heads, width // heads, width // heads)  # W_q^2

    def recur(self, query, key, value, hidden, inverse_fertility, start, before, real, slot):
        if before is None and start is None and query.shape[2] == 1:
            before = torch.zeros_like(query)  # c_0
        if before is not None:
            query = query + self.extend_query(before.to(query.dtype))
            weights = nn.functional.softmax(self.energies(query, key, hidden), dim=-1)
        else:
            weights = self.scan(query, key, value, hidden, start, real)
        context = self.read(weights, value)
        dropped = self.training and self.config.attention_dropout > 0
        states = torch.matmul(weights.to(value.dtype), value) if dropped and slot is not None else context
        return context, weights, states

    def extend_query(self, context: Tensor) -> Tensor:
        """Computes W_q^2 gamma from c, both (batch, heads, target, d_h)."""
        if self.full:
            joined = self.context_q_proj(self.context_proj(context.transpose(1, 2).flatten(2)))
            return split_heads(joined, self.heads)
        return torch.einsum("bhti,hoi->bhto", context, self.context_q_proj())

    def scan(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        hidden: Tensor | None,
        start: Tensor | None,
        real: Tensor | None,
    ) -> Tensor:
        """Computes all weights by `context_scan`; products that need no earlier position are computed before."""
        transition, shift = self.transition(key) if self.full else (None, None)
        energies = self.energies(query if shift is None else query + shift, key, hidden)
        exact = energies.dtype
        if transition is not None:
            transition = transition.t().to(exact)
        else:
            key = torch.einsum("bhjo,hoi->bhji", key, self.context_q_proj() * self.scaling)  # K'
        start = None if start is None else start.to(exact)
        return context_scan(energies, key.to(exact), value.to(exact), transition, start, real)

    def transition(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns W_q^2 W_att, in float32 at least and scaled; and the two layers' common bias, if they have one."""
        outer, inner, shift = chained(self.context_q_proj, self.context_proj, like)
        exact = torch.promote_types(outer.dtype, torch.float32)
        shift = None if shift is None else shift.view(self.heads, 1, -1)
        return (outer.to(exact) * self.scaling) @ inner.to(exact), shift


class PreviousWeightAttention(RecurrentAttention):
    """Attention whose energies also depend on the last weights alpha, or their sum (the state): equations 5.6, 5.7."""

    def __init__(self, config: Any, heads: int, layer_idx: int = 0):
        super().__init__(config, heads, layer_idx)
        self.accumulate = config.cross_attention != "previous-weight"
        self.weight_q_proj = HeadProjection(heads, 1, config.d_model // heads)  # W_q^2

    def recur(self, query, key, value, hidden, inverse_fertility, start, before, real, slot):
        energies, product = self.energies(query, key, hidden), partial(self.coefficient, key, inverse_fertility)
        coefficient = product() if slot is None or self.training else slot.of_source("coefficient", product)
        start, before = (None if x is None else x.to(energies.dtype) for x in (start, before))
        if before is not None:
            weights = weight_step(energies, coefficient, before)
            return self.read(weights, value), weights, before + weights if self.accumulate else weights
        weights = weight_scan(energies, coefficient, start, real, self.accumulate)
        states = weights
        if self.accumulate and slot is not None:
            counted = weights if real is None else weights * real[:, None, :, None]
            states = counted.cumsum(2) if start is None else counted.cumsum(2) + start.unsqueeze(2)
        return self.read(weights, value), weights, states

    def coefficient(self, key: Tensor, inverse_fertility: Tensor | None) -> Tensor:
        """Computes u (batch, heads, source), in float32 at least: the energies of the query W_q^2, divided by phi."""
        direction = self.weight_q_proj().transpose(1, 2).to(key.dtype)
        coefficient = self.energies(direction, key, None).squeeze(2)
        return coefficient if inverse_fertility is None else coefficient * inverse_fertility[:, None, :, 0]


class KeyValueContextAttention(RecurrentAttention):
    """Attention with one more key-value pair, made of the previous context vector c, the state: equation 5.8."""

    def __init__(self, config: Any, heads: int, layer_idx: int = 0):
        super().__init__(config, heads, layer_idx)
        width, self.full = config.d_model, config.cross_attention.endswith("full")
        if self.full:
            self.context_proj = nn.Linear(width, width, bias=False)  # W_att
            self.context_kv_proj: Any = nn.Linear(width, width, bias=False)  # W_ctx
        else:
            self.context_kv_proj = HeadProjection(heads, width // heads, width)  # W_ctx

    def recur(self, query, key, value, hidden, inverse_fertility, start, before, real, slot):
        query = query * self.scaling
        energies = self.energies_of_scaled(query, key, hidden)
        exact = energies.dtype
        log_sum = energies.logsumexp(-1)
        # On a GPU, where each operation costs time, one less for the same result.
        weights = energies.softmax(-1) if is_asynchronous(energies) else torch.exp(energies - log_sum.unsqueeze(-1))
        plain = torch.matmul(weights.to(value.dtype), value).to(exact)  # c~
        product = partial(self.transition, key)
        transition, bias = product() if slot is None or self.training else slot.constant(product)
        transition, bias = transition.to(exact), None if bias is None else bias.to(exact)
        query = query.to(exact)
        start, before = (None if x is None else x.to(exact) for x in (start, before))
        gate = None
        if before is not None:
            gate, contexts = gate_step(query, plain, log_sum, transition, bias, before)
        else:
            contexts = gate_scan(query, plain, log_sum, transition, bias, start, real)
        dropped = self.training and self.config.attention_dropout > 0
        returned = self.config._attn_implementation == "eager"
        if not dropped and not returned:
            return contexts, None, contexts
        if gate is None:
            before = previous_states(contexts.movedim(2, 0), start, real).movedim(0, 2)
            gate, _ = gate_step(query, plain, log_sum, transition, bias, before)
        # The context as the sum over the source and the pair's part, with dropout on all J + 1 weights.
        of_pair = contexts - (1 - gate) * plain
        if dropped:
            of_pair = nn.functional.dropout(torch.ones_like(gate), self.config.attention_dropout) * of_pair
        if not returned:
            return (1 - gate) * self.read(weights, value) + of_pair, None, contexts
        weights = weights * (1 - gate)
        return self.read(weights, value).to(exact) + of_pair, weights, contexts

    def transition(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns T and b of `gate_scan`: [W_k ; W_v] W_ctx (W_att), which maps c_{i-1} to key and value; biases."""
        weight, bias = matrix_of(self.kv_proj, like)
        exact = torch.promote_types(weight.dtype, torch.float32)
        width, groups = self.config.d_model, 1 if self.full else self.heads
        if self.full:
            outer, inner, shift = chained(self.context_kv_proj, self.context_proj, like)
            matrix = outer.to(exact) @ inner.to(exact)
            bias = bias if shift is None else self.kv_proj(shift.unsqueeze(0)).squeeze(0)
        else:
            matrix = self.context_kv_proj().to(exact)
        pairs = weight.to(exact).view(2, groups, width // groups, width).transpose(0, 1).flatten(1, 2)
        if bias is not None:
            bias = bias.view(2, groups, -1).transpose(0, 1).flatten(1)
        return torch.matmul(pairs, matrix).transpose(1, 2), bias


def chained(second: nn.Module, first: nn.Module, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns W_2, W_1 and b, or None for no bias, of second(first(x)) = x W_1^T W_2^T + b."""
    (outer, bias), (inner, offset) = matrix_of(second, like), matrix_of(first, like)
    return outer, inner, bias if offset is None else second(offset.unsqueeze(0)).squeeze(0)


def after_padding(states: Tensor, known: Tensor | None, real: Tensor | None) -> Tensor:
    """Returns the last real position's state at each position (batch, heads, target, width), at first `known`."""
    if real is None:
        return states
    longer, seen = torch.cat([states, states[:, :, -1:]], dim=2), torch.cat([real, real[:, -1:]], dim=1)
    return previous_states(longer.movedim(2, 0), known, seen)[1:].movedim(0, 2)


def hidden_positions(mask: Tensor | None) -> Tensor | None:
    """Converts the mask of any implementation to a boolean one (batch, 1, 1 or target, source), True where hidden."""
    if mask is None:
        return None
    if mask.dim() == 2:  # flash attention's: True is visible
        return mask[:, None, None, :] == 0
    return ~mask if mask.dtype == torch.bool else mask != 0
