"""Layer aggregation: the decoder reads one joint representation of several encoder layers, not the last layer alone.

Reference: thesis on joint attention, section 3.2.1; "Every Layer Counts", PBML 115, section 5.4; Dou et al. 2018
(iterative combination); Bapna et al. 2018 (Transparent).

| value | class | equation |
| --- | --- | --- |
| S-Agg | WeightedSum | (3.1) H = sum_i f^i W^i |
| Iter-S-Agg | IterativeSum | (3.2) h_1 = f^1, h_i = f^i W_i^a + h_{i-1} W_i^b, H = h_n |
| C-Agg | Aggregate | (3.4) H = AGG([f^1 .. f^n]) |
| Iter-C-Agg | IterativeAggregate | (3.5) h_1 = f^1, h_i = AGG([f^i, h_{i-1}]), H = h_n |
| Transparent | TransparentWeights | (B) H_m = sum_{i=0..L} w_{i,m} f^i for decoder layer m, f^0 the embeddings |

(3.3) AGG(r_1 .. r_b) = LN(FFN(concat(r)) + sum_i r_i)

Added parameters at the base shape, n = 6: 1.57, 2.62, 7.34, 15.75 million and 42. With the baseline's 61.2 million the
totals are table 3.2's. The text says "about 7.41M" for C-Agg; the sizes that it gives for (3.3) make 7.34.

Departs:
- n = 1 is the baseline in every member, as the thesis says (by the equations S-Agg would still be f^L W).
- AGG has the sublayers' dropout on the FFN's output; the paper names one rate but not where it acts.
- Transparent: the weights are free, as "Every Layer Counts" describes them, so that a column can be exactly the
  baseline's. Bapna et al. pass each column through a softmax: `softmax_weights`. Both begin as the mean of the states.
"""

from typing import Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from .configuration import TransformerConfig
from .encoder_models import encoder_heads
from .feature_collector import FeatureCollector, check_feature_count
from .layers import DecoderLayer, FeedForward, normed
from .transformer import Decoder, TransformerForConditionalGeneration, TransformerModel


@strict
class AggregationConfig(TransformerConfig):
    """The config of a model with layer aggregation: the baseline's fields and those below.

    Args:
        aggregation: the kind of aggregation, named as in the thesis.
        collected_layers: the paper's n: the top n encoder layers are aggregated (None: all). 1 is the baseline.
            Transparent reads all of them and the embeddings.
        softmax_weights: Transparent only: each decoder layer's weights pass through a softmax over the states.
    """

    model_type = "mlnmt-aggregation"

    aggregation: Literal["S-Agg", "Iter-S-Agg", "C-Agg", "Iter-C-Agg", "Transparent"] = "Iter-C-Agg"
    collected_layers: int | None = None
    softmax_weights: bool = False

    @property
    def feature_count(self) -> int:
        """Returns how many states are collected: n, and for Transparent L + 1."""
        if self.aggregation == "Transparent":
            return self.encoder_layers + 1
        return self.collected_layers or self.encoder_layers

    def validate_collected_layers(self):
        """Raises ValueError for collected_layers outside 1 .. encoder_layers, and for Transparent with fewer layers."""
        check_feature_count("collected_layers", self.collected_layers, self.encoder_layers)
        if self.aggregation == "Transparent" and self.collected_layers not in (None, self.encoder_layers):
            raise ValueError(
                f"collected_layers={self.collected_layers}: Transparent reads all of the encoder's layers; "
                f"must be None or encoder_layers={self.encoder_layers}"
            )

    def validate_softmax_weights(self):
        if self.softmax_weights and self.aggregation != "Transparent":
            raise ValueError(f"softmax_weights=True: only for aggregation='Transparent', not '{self.aggregation}'")


class WeightedSum(nn.Linear):
    """Equation 3.1, the sum of r_i W^i, as one product: the concatenated inputs r_i times the stacked matrices W^i.

    All merging modules map concatenated inputs (batch, source, inputs d_model) to (batch, source, d_model).
    """

    def __init__(self, config: AggregationConfig, inputs: int):
        super().__init__(inputs * config.d_model, config.d_model, bias=False)


class Aggregate(FeedForward):
    """AGG, equation 3.3: a feed-forward network, of the inner width of the encoder's, over the concatenated inputs;
    its output is added to their sum and normed."""

    def __init__(self, config: AggregationConfig, inputs: int):
        super().__init__(config, config.encoder_ffn_dim, inputs)
        self.output_dropout = nn.Dropout(config.dropout)
        self.layer_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps)
        self.inputs = inputs

    def forward(self, features: Tensor) -> Tensor:
        merged = self.output_dropout(super().forward(features))
        return normed(self.layer_norm, merged + features.unflatten(2, (self.inputs, -1)).sum(2))


class Iterative(nn.Module):
    """Iterative merging, equations 3.2 and 3.5: from the lowest layer on, a unit for each further layer merges its
    output with the result for the layers below."""

    unit_class: type[nn.Module]

    def __init__(self, config: AggregationConfig, inputs: int):
        super().__init__()
        self.units = nn.ModuleList([self.unit_class(config, 2) for _ in range(inputs - 1)])

    def forward(self, features: Tensor) -> Tensor:
        merged, *others = features.chunk(len(self.units) + 1, dim=2)
        for unit, feature in zip(self.units, others, strict=True):
            merged = unit(torch.cat([feature, merged], dim=2))
        return merged


class IterativeSum(Iterative):
    """Sums layers one after the other, from the lowest, with trained matrices, equation 3.2."""

    unit_class = WeightedSum


class IterativeAggregate(Iterative):
    """Merges layers one after the other, from the lowest, by feed-forward networks, equation 3.5."""

    unit_class = Aggregate


class TransparentWeights(nn.Module):
    """A weighted sum of the encoder's L + 1 states for each decoder layer, with weights of its own, equation B."""

    def __init__(self, config: AggregationConfig, inputs: int):
        super().__init__()
        self.softmax = config.softmax_weights
        self.weight = nn.Parameter(torch.empty(inputs, config.decoder_layers))  # w_{i,m}
        self.begin_weights(config)

    def begin_weights(self, config: AggregationConfig) -> None:
        """Initialises the weights so that each sum is the mean of the states, with a softmax or without."""
        init.constant_(self.weight, 0.0 if self.softmax else 1.0 / self.weight.shape[0])

    def forward(self, features: Tensor) -> Tensor:
        """Returns the weighted sums (batch, source, L_d, d_model) of concatenated states (..., (L + 1) d_model)."""
        weight = self.weight.softmax(dim=0) if self.softmax else self.weight
        return torch.matmul(weight.t(), features.unflatten(2, (len(weight), -1)))


MERGING_MODULES: dict[str, type[nn.Module]] = {
    "S-Agg": WeightedSum,
    "Iter-S-Agg": IterativeSum,
    "C-Agg": Aggregate,
    "Iter-C-Agg": IterativeAggregate,
    "Transparent": TransparentWeights,
}


class AggregationEncoder(FeatureCollector):
    """An encoder that merges collected layers as `aggregation` says; of one layer it returns what the baseline does."""

    config: AggregationConfig

    def __init__(self, config: AggregationConfig):
        super().__init__(config)
        inputs = config.feature_count
        merging = MERGING_MODULES[config.aggregation] if inputs > 1 else nn.Identity
        self.merging_module = merging(config, inputs)
        self.post_init()

    def merge(self, features: Tensor) -> Tensor:
        """Returns the joint representation: (batch, source, d_model), for Transparent (batch, source, L_d, d_model)."""
        return self.merging_module(features.flatten(2))


class AggregationDecoderLayer(DecoderLayer):
    """The baseline's decoder layer; in Transparent it attends to the weighted sum that was made for this layer."""

    def attend_source(self, hidden_states: Tensor, memory: Tensor, *args, **kwargs) -> Tensor:
        return super().attend_source(hidden_states, self.memory_of(memory), *args, **kwargs)

    def memory_of(self, memory: Tensor) -> Tensor:
        """Returns this layer's memory (batch, source, d_model), from (batch, source, L_d, d_model) in Transparent."""
        return memory if memory.dim() == 3 else memory[:, :, self.source_attn.layer_idx]


class AggregationDecoder(Decoder):
    """The baseline's decoder with `AggregationDecoderLayer`s."""

    layer_class = AggregationDecoderLayer


class AggregationModel(TransformerModel):
    """Encoder and decoder, without the output projection."""

    config: AggregationConfig
    encoder_class = AggregationEncoder
    decoder_class = AggregationDecoder


class AggregationForConditionalGeneration(TransformerForConditionalGeneration):
    """The translation model with layer aggregation. forward and generate() have an argument `layer_mask`: a factor for
    each collected layer, 0 for zeros in its place."""

    config: AggregationConfig
    model_class = AggregationModel
    citation = "ampomah2020every"


AggregationForMaskedLM, AggregationForCausalLM = encoder_heads(AggregationModel)
