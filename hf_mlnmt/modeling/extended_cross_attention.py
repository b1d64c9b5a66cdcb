"""Extended cross-attention: attention over the source that also reads word embeddings, or earlier weights or contexts.

Reference: thesis on monolingual data, chapter 5 (its equation numbers are used here), sections 5.2.1 and 5.2.2.

| value | class | equation |
| --- | --- | --- |
| source-embedding | WordEmbeddingAttention | (5.1), (5.3) with [h_j ; f~_j] in place of h_j |
| target-embedding | WordEmbeddingAttention | (5.1) with [s_i ; e~_{i-1}] in place of s_i |
| both-embeddings | WordEmbeddingAttention | (5.1), (5.3) with both |
| previous-context-head | PreviousContextAttention | (5.4), gamma_i = c_{i-1} of the same head (5.5) |
| previous-context-full | PreviousContextAttention | (5.4), gamma_i = W_att c_{i-1}, c of all heads (5.5) |
| previous-weight | PreviousWeightAttention | (5.4), gamma_ij = alpha(j|i-1) (5.6) |
| accumulated-weight | PreviousWeightAttention | (5.4), gamma_ij = sum_{i'<i} alpha(j|i') (5.7) |
| fertility | PreviousWeightAttention | (5.7) / phi_j, phi_j = phi_max sigmoid(v^T h_j), one for all layers and heads |
| key-value-head | KeyValueContextAttention | one more key-value pair, W_ctx c_{i-1} of the same head (5.8) |
| key-value-full | KeyValueContextAttention | one more key-value pair, W_ctx W_att c_{i-1}, c of all heads (5.8) |

(5.1) E_ij = (W_k h_j)^T W_q s_i / sqrt(d_h)    (5.2) alpha(.|i) = softmax(E_i)    (5.3) c_i = sum_j alpha(j|i) W_v h_j
(5.4) W_q [s_i ; gamma_ij] = W_q^1 s_i + W_q^2 gamma_ij, so E_ij gains (W_k h_j)^T W_q^2 gamma_ij / sqrt(d_h)

Only the weights are recurrent: E of all positions is one product, and attention_scan.py computes position by position:
weights      u_j = (W_k h_j)^T W_q^2 / sqrt(d_h), alpha_i = softmax(E_i + u gamma_i); 1 / phi goes into u
context      alpha_i = softmax(E_i + c_{i-1} K'^T), K' = K W_q^2
key-value    pi_i = sigmoid(q_i k'_i - lse_i), c_i = (1 - pi_i) c~_i + pi_i v'_i, c~ and lse of ordinary attention
In decoding the state (c_{i-1}, alpha_{i-1} or their sum) is in the cache; padding of the target leaves it unchanged.

Attention weights are those over the source; in the key-value members they sum to 1 - pi, pi being the new pair's
weight. With all new weights 0 a member is the baseline; not so key-value-*: a pair of zeros has the term exp(0) in
(5.8)'s softmax.

Departs:
- f~ and e~ are the inputs of the first layers: scaled, with positions (3.3) and dropout. `embedding_layer_norm` is the
  thesis's other choice; it found no difference.
- c_0 = 0 also in (5.8), where the thesis is silent: at i = 1 the new pair is zeros; with attention_bias it is
  (b_k, b_v), the biases of the keys and values, which every pair has.
- phi_max is not given: 2 here, the value of Tu et al. 2016, whom the thesis follows. v is initialised with 0, so all
  phi are 1. v^T h is clamped at -20: 1 / phi is at most (1 + e^20) / phi_max, and never infinity times a weight of 0.
  The other new weights are initialised as the baseline's projections.
- attention_dropout: on the weights that multiply the values; the recurrence uses the weights before dropout.
- Parameters: table 5.3 holds (+1.5, +0.2, +0.0, +3.1 million) with gamma of d_h numbers a head in previous-context-head
  and W_att, W_ctx (d, d) in key-value-full; W_att is not the output projection.
"""

from functools import partial
from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import EncoderDecoderCache

from .attention import CrossAttention, cached_source, split_heads
from .attention_scan import context_scan, gate_scan, gate_step, previous_states, weight_scan, weight_step
from .caches import RecurrentCacheLayer, real_positions, slot_of
from .configuration import TransformerConfig
from .encoder_models import encoder_heads
from .layers import DecoderLayer, normed
from .linear import is_asynchronous, project
from .matrices import JointMatrices, matrix_of
from .transformer import Decoder, Encoder, TransformerForConditionalGeneration, TransformerModel

EMBEDDING = ("source-embedding", "target-embedding", "both-embeddings")
SOURCE, TARGET = (EMBEDDING[0], EMBEDDING[2]), EMBEDDING[1:]


@strict
class ExtendedCrossAttentionConfig(TransformerConfig):
    """The config of extended cross-attention: the baseline's fields (`norm_position` "pre" by default) and those below.

    Args:
        cross_attention: the kind of attention over the source, named as in the table of the family.
        embedding_layer_norm: a layer norm on the word embeddings before they are attached (the *-embedding members).
        fertility_maximum: phi_max, a whole number from 1 (member "fertility").
    """

    model_type = "mlnmt-extended-cross-attention"

    cross_attention: Literal[
        "source-embedding",
        "target-embedding",
        "both-embeddings",
        "previous-context-head",
        "previous-context-full",
        "previous-weight",
        "accumulated-weight",
        "fertility",
        "key-value-head",
        "key-value-full",
    ] = "accumulated-weight"
    embedding_layer_norm: bool = False
    fertility_maximum: int = 2
    norm_position: Literal["post", "pre"] = "pre"

    @property
    def is_recurrent(self) -> bool:
        """Returns whether the attention at a target position depends on the attention at the position before."""
        return self.cross_attention not in EMBEDDING

    def cache_slots(self) -> list[str]:
        slots = super().cache_slots()
        return [RecurrentCacheLayer._layer_type] * len(slots) if self.is_recurrent else slots

    def validate_extension(self):
        """Raises ValueError for fertility_maximum below 1 and embedding_layer_norm in a member without embeddings."""
        if self.fertility_maximum < 1:
            raise ValueError(f"fertility_maximum={self.fertility_maximum}: must be at least 1")
        if self.embedding_layer_norm and self.cross_attention not in EMBEDDING:
            raise ValueError(
                f"embedding_layer_norm=True: cross_attention='{self.cross_attention}' attaches no embeddings, only "
                f"{', '.join(EMBEDDING)} do"
            )


class WordEmbeddingAttention(CrossAttention):
    """Attention over the source that also reads word embeddings, of the source (f~), the target (e~) or both.

    Section 5.2.1: W [h ; f~] = W^1 h + W^2 f~. With f~, memory is [h ; f~], (batch, source, 2 d_model).
    """

    def __init__(self, config: ExtendedCrossAttentionConfig, heads: int, layer_idx: int = 0):
        super().__init__(config, heads, layer_idx)
        width = config.d_model
        if config.cross_attention in SOURCE:
            self.kv_proj = nn.Linear(2 * width, 2 * width, bias=config.attention_bias)  # [h ; f~] -> keys and values
        on_target = config.cross_attention in TARGET
        self.word_q_proj = nn.Linear(width, width, bias=False) if on_target else None

    def forward(
        self,
        hidden_states: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        words: Tensor | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends as `CrossAttention` does; adds a projection of the target's word embeddings e~, `words` (batch,
        target, d_model), to the queries."""
        query = project(self.q_proj, hidden_states)
        if self.word_q_proj is not None and words is not None:
            query = query + project(self.word_q_proj, words)
        key, value = cached_source(cache, self.layer_idx, self.project_source, memory)
        output, weights = self.attend(split_heads(query, self.heads), key, value, attention_mask, **kwargs)
        return project(self.out_proj, output), weights


class HeadProjection(JointMatrices):
    """One parameter with a matrix for every head, (heads, outputs, inputs); a call returns this parameter."""

    def __init__(self, heads: int, inputs: int, outputs: int):
        super().__init__()
        self.fans = inputs + outputs
        self.weight = nn.Parameter(torch.empty(heads, outputs, inputs))

    def forward(self) -> Tensor:
        return self.weight


class RecurrentAttention(CrossAttention):
    """The base of attentions that depend on the previous position: projects, computes energies and keeps the state in
    the cache; subclasses define `recur`."""

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
        """Attends as `CrossAttention` does; weights are returned by any implementation, in key-value-* by "eager" only.

        target_real: (batch, target), False at padding; None: no padding. inverse_fertility: 1/phi (batch, source, 1).
        """
        query = split_heads(project(self.q_proj, hidden_states), self.heads)
        key, value = cached_source(cache, self.layer_idx, self.project_source, memory)
        slot = None if cache is None else slot_of(cache, self.layer_idx, "append_states")
        start = before = None  # state before the first position; states before all positions, where known
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
        """Computes the energies E of equation 5.1, (batch, heads, target, source), in float32 or float64."""
        return self.energies_of_scaled(query * self.scaling, key, hidden)

    @staticmethod
    def energies_of_scaled(query: Tensor, key: Tensor, hidden: Tensor | None) -> Tensor:
        """Computes `energies` of queries that are already divided by sqrt(d_h)."""
        energies = torch.matmul(query, key.transpose(2, 3))
        energies = energies.to(torch.promote_types(energies.dtype, torch.float32))
        return energies if hidden is None else energies.masked_fill(hidden, torch.finfo(energies.dtype).min)

    def read(self, weights: Tensor, value: Tensor) -> Tensor:
        """Computes the contexts of equation 5.3, sums of values by the weights, with dropout on the weights."""
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
        """Computes W_q^2 gamma, an addend of queries, from previous contexts c; both (batch, heads, target, d_h)."""
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
        """Computes the weights of all positions by `context_scan`, after the products that need no earlier position."""
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
        """Returns the scaled product W_q^2 W_att in float32 or float64, and the common bias of both layers or None."""
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
        """Computes u (batch, heads, source), in float32 or float64: energies of W_q^2 as a query, divided by phi."""
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
        # Both are the softmax. On a GPU one call is cheaper; on a CPU the known log_sum saves time.
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
        # Split the context into the sum over the source and the added pair's part: dropout acts on each weight.
        of_pair = contexts - (1 - gate) * plain
        if dropped:
            of_pair = nn.functional.dropout(torch.ones_like(gate), self.config.attention_dropout) * of_pair
        if not returned:
            return (1 - gate) * self.read(weights, value) + of_pair, None, contexts
        weights = weights * (1 - gate)
        return self.read(weights, value).to(exact) + of_pair, weights, contexts

    def transition(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns T and b of `gate_scan`, which map c_{i-1} to the added key and value: T = [W_k ; W_v] W_ctx (in
        key-value-full also W_att), and the bias or None."""
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
    """Returns the matrices W_2, W_1 and the bias b or None of linear layers: second(first(x)) = x W_1^T W_2^T + b."""
    (outer, bias), (inner, offset) = matrix_of(second, like), matrix_of(first, like)
    return outer, inner, bias if offset is None else second(offset.unsqueeze(0)).squeeze(0)


def after_padding(states: Tensor, known: Tensor | None, real: Tensor | None) -> Tensor:
    """Returns for each position the state at the last real position up to it, (batch, heads, target, width), or `known`
    where there is none."""
    if real is None:
        return states
    longer, seen = torch.cat([states, states[:, :, -1:]], dim=2), torch.cat([real, real[:, -1:]], dim=1)
    return previous_states(longer.movedim(2, 0), known, seen)[1:].movedim(0, 2)


def hidden_positions(mask: Tensor | None) -> Tensor | None:
    """Converts the mask of any implementation to a boolean one (batch, 1, 1 or target, source), True where hidden."""
    if mask is None:
        return None
    if mask.dim() == 2:  # a mask for flash attention, in which 0 hides
        return mask[:, None, None, :] == 0
    return ~mask if mask.dtype == torch.bool else mask != 0


class ExtendedDecoderLayer(DecoderLayer):
    """The baseline's layer with the attention over the source that `cross_attention` names."""

    def __init__(self, config: ExtendedCrossAttentionConfig, layer_idx: int):
        kinds = {"previous-context": PreviousContextAttention, "key-value": KeyValueContextAttention}
        recurrent = kinds.get(config.cross_attention.rpartition("-")[0], PreviousWeightAttention)
        self.source_attention_class = recurrent if config.is_recurrent else WordEmbeddingAttention
        super().__init__(config, layer_idx)

    def attend_source(self, hidden_states, memory, mask, cache, extras, **kwargs) -> Tensor:
        return super().attend_source(hidden_states, memory, mask, cache, extras, **extras, **kwargs)


class Fertility(nn.Module):
    """A module that computes 1 / phi of every source position, phi = phi_max sigmoid(v^T h) its fertility."""

    def __init__(self, config: ExtendedCrossAttentionConfig):
        super().__init__()
        self.maximum = config.fertility_maximum
        self.weight = nn.Parameter(torch.zeros(1, config.d_model))  # v

    def begin_weights(self, config: ExtendedCrossAttentionConfig) -> None:
        init.zeros_(self.weight)

    def forward(self, states: Tensor) -> Tensor:
        """Computes 1 / phi (batch, source, 1) from states h (batch, source, d_model)."""
        # 1 / sigmoid(x) = 1 + exp(-x); the clamp keeps exp(-x) finite in every dtype but float16.
        energy = nn.functional.linear(states, self.weight).clamp(min=-20.0)
        return (1 + torch.exp(-energy)) / self.maximum


class ExtendedEncoder(Encoder):
    """The baseline's encoder, which also hands word embeddings f~ to the decoder, as memory [h ; f~], or in the member
    "fertility" 1 / phi as features."""

    config: ExtendedCrossAttentionConfig

    def __init__(self, config: ExtendedCrossAttentionConfig):
        super().__init__(config)
        attaches = config.cross_attention in SOURCE
        self.word_norm = self._norm() if attaches and config.embedding_layer_norm else nn.Identity()
        self.fertility = Fertility(config) if config.cross_attention == "fertility" else None
        self.post_init()

    @property
    def hands_on(self) -> tuple[str, ...]:
        if self.fertility is not None:
            return ("features",)
        return ("memory",) if self.config.cross_attention in SOURCE else ()

    def memory(self, states: list[Tensor]) -> Tensor | None:
        """Returns states and embeddings [h ; f~] (batch, source, 2 d_model); None where the member reads h alone."""
        if self.config.cross_attention not in SOURCE:
            return None
        return torch.cat([states[-1], normed(self.word_norm, states[0])], dim=-1)

    def features(self, states: list[Tensor]) -> Tensor | None:
        """Returns 1/phi (batch, source, 1) in the member "fertility", else None."""
        return None if self.fertility is None else self.fertility(states[-1])


class ExtendedDecoder(Decoder):
    """The baseline's decoder with `ExtendedDecoderLayer`s."""

    config: ExtendedCrossAttentionConfig
    layer_class = ExtendedDecoderLayer

    def __init__(self, config: ExtendedCrossAttentionConfig):
        super().__init__(config)
        self.reads_words = config.cross_attention in TARGET
        normalized = self.reads_words and config.embedding_layer_norm
        self.word_norm = self._norm() if normalized else nn.Identity()
        self.post_init()

    def extend(self, embeds, past, position_ids, attention_mask, features) -> dict[str, Tensor]:
        """Returns by name the inputs that the member needs: `words`, e~ (batch, target, d_model); `target_real` (batch,
        target), False at padding, if there is a mask; `inverse_fertility`, 1/phi (batch, source, 1)."""
        extras: dict[str, Any] = {}
        if self.reads_words:
            extras["words"] = normed(self.word_norm, self.embed(embeds, past, position_ids))
        elif attention_mask is not None and self.config.is_recurrent:
            extras["target_real"] = real_positions(attention_mask, past, embeds.shape[1])
        if features is not None:
            extras["inverse_fertility"] = features
        return extras


class ExtendedCrossAttentionModel(TransformerModel):
    """Encoder and decoder, without the output projection."""

    config: ExtendedCrossAttentionConfig
    encoder_class = ExtendedEncoder
    decoder_class = ExtendedDecoder


class ExtendedCrossAttentionForConditionalGeneration(TransformerForConditionalGeneration):
    """The translation model with extended cross-attention."""

    config: ExtendedCrossAttentionConfig
    model_class = ExtendedCrossAttentionModel
    citation = "rosendahl2024chapter5"


ExtendedCrossAttentionForMaskedLM, ExtendedCrossAttentionForCausalLM = encoder_heads(ExtendedCrossAttentionModel)
