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

from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import EncoderDecoderCache

from .attention import CrossAttention, cached_source, split_heads
from .caches import RecurrentCacheLayer, real_positions
from .configuration import TransformerConfig
from .encoder_models import encoder_heads
from .layers import DecoderLayer, normed
from .linear import project
from .recurrent_attention import KeyValueContextAttention, PreviousContextAttention, PreviousWeightAttention
from .transformer import Decoder, Encoder, TransformerForConditionalGeneration, TransformerModel

EMBEDDING = ("source-embedding", "target-embedding", "both-embeddings")
SOURCE, TARGET = (EMBEDDING[0], EMBEDDING[2]), EMBEDDING[1:]


@strict
class ExtendedCrossAttentionConfig(TransformerConfig):
    """The baseline's fields, `norm_position` "pre" by default as in the thesis, and:

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
        """Returns whether the attention at a position depends on that at the position before."""
        return self.cross_attention not in EMBEDDING

    def cache_slots(self) -> list[str]:
        slots = super().cache_slots()
        return [RecurrentCacheLayer._layer_type] * len(slots) if self.is_recurrent else slots

    def validate_extension(self):
        """Raises ValueError for fields without effect in this member, and for a fertility below 1."""
        if self.fertility_maximum < 1:
            raise ValueError(f"fertility_maximum={self.fertility_maximum}: must be at least 1")
        if self.embedding_layer_norm and self.cross_attention not in EMBEDDING:
            raise ValueError(
                f"embedding_layer_norm=True: cross_attention='{self.cross_attention}' attaches no embeddings, only "
                f"{', '.join(EMBEDDING)} do"
            )


class WordEmbeddingAttention(CrossAttention):
    """Attention over the source with word embeddings: section 5.2.1, W [h ; f~] = W^1 h + W^2 f~.

    With f~, memory is [h ; f~], (batch, source, 2 d_model).
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
        """Attends as `CrossAttention` does, with a projection of e~, `words` (batch, target, d_model), in the
        queries."""
        query = project(self.q_proj, hidden_states)
        if self.word_q_proj is not None and words is not None:
            query = query + project(self.word_q_proj, words)
        key, value = cached_source(cache, self.layer_idx, self.project_source, memory)
        output, weights = self.attend(split_heads(query, self.heads), key, value, attention_mask, **kwargs)
        return project(self.out_proj, output), weights


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
    """Computes 1 / phi of every source position, phi = phi_max sigmoid(v^T h)."""

    def __init__(self, config: ExtendedCrossAttentionConfig):
        super().__init__()
        self.maximum = config.fertility_maximum
        self.weight = nn.Parameter(torch.zeros(1, config.d_model))  # v

    def begin_weights(self, config: ExtendedCrossAttentionConfig) -> None:
        init.zeros_(self.weight)

    def forward(self, states: Tensor) -> Tensor:
        """Computes 1 / phi (batch, source, 1) from states h (batch, source, d_model)."""
        # 1 / sigmoid(x) = 1 + exp(-x), and exp(20) is far from infinity in any kind of number but float16.
        energy = nn.functional.linear(states, self.weight).clamp(min=-20.0)
        return (1 + torch.exp(-energy)) / self.maximum


class ExtendedEncoder(Encoder):
    """The baseline's encoder; its memory is [h ; f~] in members with f~, its features are 1/phi in "fertility"."""

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
        """Returns [h ; f~] (batch, source, 2 d_model); None in members without f~: the decoder reads h."""
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
        """Returns those that the member needs of `words`: e~ (batch, target, d_model); `target_real` (batch, target):
        False at padding, where a mask is given; `inverse_fertility`: 1/phi (batch, source, 1)."""
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
    """The translation model."""

    config: ExtendedCrossAttentionConfig
    model_class = ExtendedCrossAttentionModel
    citation = "rosendahl2024chapter5"


ExtendedCrossAttentionForMaskedLM, ExtendedCrossAttentionForCausalLM = encoder_heads(ExtendedCrossAttentionModel)
