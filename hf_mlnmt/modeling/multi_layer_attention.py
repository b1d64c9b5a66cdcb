"""Multi-layer multi-head attention (MLMHA): each decoder layer attends to n encoder layers, not to the last one only.

Reference: Ampomah et al. 2020, "Every Layer Counts", PBML 115, section 4; thesis on joint attention, section 3.2.2.

| value | class | equation |
| --- | --- | --- |
| M-00 | MultiLayerAttention | joint weights (3.9), contexts concatenated (3.11) |
| M-01 | MultiLayerAttention | joint weights (3.9), contexts summed (3.11) |
| M-10 | MultiLayerAttention | a layer's own weights (3.8), contexts concatenated (3.11) |
| M-11 | MultiLayerAttention | a layer's own weights (3.8), contexts summed (3.11) |

(3.7) a^i = Q^i K^iT / sqrt(d_h), Q^i = s W_q^i, K^i = f^i W_k^i, V^i = f^i W_v^i          (each head)
(3.8) U0 = 1: c^i = softmax(a^i) V^i                     (3.9) U0 = 0: c^i = softmax(sum_i a^i) V^i
(3.11) O = concat(c^1 .. c^n) W_o, W_o in R^{n d x d} (U1 = 0), or (sum_i c^i) W_o, W_o in R^{d x d} (U1 = 1)

Every member is one attention call. U0 = 1: the n layers are n H heads. U0 = 0: sum_i Q^i K^iT = [Q^1 .. Q^n]
[K^1 .. K^n]^T, so the n layers are concatenated within each head, and V is [V^1 .. V^n], or sum_i V^i if U1 = 1. Keys
and values of the source are computed once per sentence and cached. n = 1 is the baseline.

Attention weights (attn_implementation="eager") of a decoder layer: U0 = 1 (batch, n, heads, target, source), lowest
encoder layer first; U0 = 0 the joint ones, (batch, heads, target, source). Flash attention takes heads up to 256 wide,
so with U0 = 0 it needs n d_h <= 256; SDPA has no such limit.

Departs:
- Parameters: 4 d^2 L_d for each further layer, 3 d^2 L_d if U1 = 1: +31.46 and +23.59 million at the base shape, n = 6.
  All totals of table 6 (92.7 and 84.9 at n = 6, beside 61.2) hold to the last digit with biases in the projections
  (attention_bias=True, 33.4k subwords: +31.50 and +23.64); without biases, our default, M-01 and M-11 at n = 6 come to
  84.8. The papers say nothing of biases. They print W_q without i but count it n times ("n different weights").
- Each W^i is initialised as a projection of the baseline, independently of n; the papers are silent.
"""

from typing import Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from .attention import CrossAttention, cached_source
from .configuration import TransformerConfig
from .encoder_models import encoder_heads
from .feature_collector import FeatureCollector, check_feature_count
from .layers import DecoderLayer
from .linear import project
from .matrices import JointMatrices
from .transformer import Decoder, TransformerForConditionalGeneration, TransformerModel


@strict
class MultiLayerAttentionConfig(TransformerConfig):
    """The config of a model with MLMHA: the baseline's fields and those below.

    Args:
        multi_layer_attention: the member M-ij, U0 = i, U1 = j.
        attended_layers: the paper's n: the decoder attends to the top n encoder layers (None: all). 1 is the baseline.
    """

    model_type = "mlnmt-multi-layer-attention"

    multi_layer_attention: Literal["M-00", "M-01", "M-10", "M-11"] = "M-10"
    attended_layers: int | None = None

    @property
    def feature_count(self) -> int:
        """Returns the number n of encoder layers that the decoder attends to."""
        return self.attended_layers or self.encoder_layers

    def validate_attended_layers(self):
        check_feature_count("attended_layers", self.attended_layers, self.encoder_layers)


class StackedLinear(JointMatrices, nn.Linear):
    """Computes n projections [s W^1 .. s W^n] of one input s as one product; weight (n * outputs, inputs)."""

    def __init__(self, layers: int, inputs: int, outputs: int, bias: bool):
        super().__init__(inputs, layers * outputs, bias)
        self.fans = inputs + outputs  # of one W^i


class PerLayerLinear(JointMatrices):
    """Projects each of n layers by its own matrix, f^i W^i + b^i, as one product; weight (n, outputs, inputs)."""

    def __init__(self, layers: int, inputs: int, outputs: int, bias: bool):
        super().__init__()
        self.fans = inputs + outputs  # of one W^i
        self.weight = nn.Parameter(torch.empty(layers, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(layers, outputs)) if bias else None

    def forward(self, features: Tensor) -> Tensor:
        """Multiplies each layer i of features (batch, source, n, inputs) by its W^i and adds b^i: (..., outputs)."""
        rows, weight = features.flatten(0, 1).transpose(0, 1), self.weight.transpose(1, 2)
        if self.bias is None:
            products = torch.bmm(rows, weight)
        else:
            products = torch.baddbmm(self.bias.unsqueeze(1), rows, weight)
        return products.transpose(0, 1).unflatten(0, features.shape[:2])


class MultiLayerAttention(CrossAttention):
    """Attention over n encoder layers at once, equations 3.7 to 3.11. Memory is F, (batch, source, n, d_model)."""

    def __init__(self, config: MultiLayerAttentionConfig, heads: int, layer_idx: int = 0):
        super().__init__(config, heads, layer_idx)
        width, bias = config.d_model, config.attention_bias
        self.layers, member = config.feature_count, config.multi_layer_attention
        self.joint = member in ("M-00", "M-01")  # U0 = 0: all layers share one softmax (3.9)
        self.sums = member in ("M-01", "M-11")  # U1 = 1: the layers' contexts are summed, not concatenated (3.11)
        self.q_proj = StackedLinear(self.layers, width, width, bias)  # W_q^1 .. W_q^n
        self.kv_proj = PerLayerLinear(self.layers, width, 2 * width, bias)  # [W_k^i ; W_v^i]
        if not self.sums:
            self.out_proj = nn.Linear(self.layers * width, width, bias=bias)

    def forward(
        self,
        hidden_states: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from states (batch, target, d_model) to F, `memory`; returns their shape and, if eager, weights."""
        query = self.place_layers(project(self.q_proj, hidden_states).unflatten(-1, (self.layers, -1)))
        key, value = cached_source(cache, self.layer_idx, self.project_source, memory)
        output, weights = self.attend(query, key, value, attention_mask, **kwargs)  # (3.7), (3.8) or (3.9)
        if weights is not None and not self.joint:
            output, weights = self.in_groups(weights, value, self.layers)
        return project(self.out_proj, self.combine(output)), weights

    def project_source(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values of all n layers of the source, shaped by `place_layers`."""
        key, value = self.kv_proj(memory).chunk(2, dim=-1)
        if self.joint and self.sums:
            # The weights are the same for all i, so sum the values first: sum_i softmax(a) V^i = softmax(a) sum_i V^i.
            value = value.sum(2, keepdim=True)
        return self.place_layers(key), self.place_layers(value)

    def place_layers(self, states: Tensor) -> Tensor:
        """Splits states (batch, time, n, d_model) into heads: with joint weights the n layers are concatenated in each
        head, (batch, heads, time, n d_h), else each layer has its own heads, (batch, n heads, time, d_h)."""
        states = states.unflatten(-1, (self.heads, -1))  # (batch, time, n, heads, d_h)
        if self.joint:
            return states.permute(0, 3, 1, 2, 4).flatten(3)
        return states.permute(0, 2, 3, 1, 4).flatten(1, 2)

    def combine(self, output: Tensor) -> Tensor:
        """Concatenates the contexts of the n layers, or sums them where U1 = 1 (equation 3.11 without W_o), from the
        output of `attend`: (batch, target, n d_model or d_model)."""
        if self.joint and not self.sums:  # (heads, n layers, d_h) to (n layers, heads, d_h)
            return output.unflatten(-1, (self.heads, self.layers, -1)).transpose(2, 3).flatten(2)
        if self.sums and not self.joint:
            return output.unflatten(-1, (self.layers, -1)).sum(2)
        return output


class MultiLayerAttentionDecoderLayer(DecoderLayer):
    """The baseline's layer with MLMHA in place of the attention over the source (equation 3.6)."""

    source_attention_class = MultiLayerAttention


class MultiLayerAttentionDecoder(Decoder):
    """The baseline's decoder with `MultiLayerAttentionDecoderLayer`s; its memory is (batch, source, n, d_model)."""

    config: MultiLayerAttentionConfig
    layer_class = MultiLayerAttentionDecoderLayer


class MultiLayerAttentionModel(TransformerModel):
    """Encoder and decoder, without the output projection."""

    config: MultiLayerAttentionConfig
    encoder_class = FeatureCollector
    decoder_class = MultiLayerAttentionDecoder


class MultiLayerAttentionForConditionalGeneration(TransformerForConditionalGeneration):
    """The translation model with MLMHA. forward and generate() have an argument `layer_mask`: a factor for each
    attended layer, 0 for zeros in its place."""

    config: MultiLayerAttentionConfig
    model_class = MultiLayerAttentionModel
    citation = "ampomah2020every"


MultiLayerAttentionForMaskedLM, MultiLayerAttentionForCausalLM = encoder_heads(MultiLayerAttentionModel)
