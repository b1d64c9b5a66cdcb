"""Joint attention and multi-level supervision over a dual-context encoder: each class combines two families.

Reference: thesis on joint attention, chapters 3 to 5; the thesis runs each family by itself and names their combination
in chapter 6.

| value | class | equation |
| --- | --- | --- |
| MS over Enc-DC | DualContextSupervision... | (4.1)-(4.3) on encoder layers of (5.4)-(5.7) |
| MLMHA over Enc-DC | DualContextMultiLayer... | (3.7)-(3.11) on the same |
| aggregation over Enc-DC | DualContextAggregation... | (3.1)-(3.5), (B) on the same |

Each class inherits from both families' classes: the first determines which layers' outputs are collected and how,
`DualContextEncoder` determines the layers.
"""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .aggregation import AggregationConfig, AggregationEncoder, AggregationForConditionalGeneration, AggregationModel
from .configuration import TransformerConfig
from .dual_context import DualContextConfig, DualContextEncoder, DualContextForConditionalGeneration
from .encoder_models import encoder_heads
from .feature_collector import FeatureCollector
from .multi_layer_attention import (
    MultiLayerAttentionConfig,
    MultiLayerAttentionForConditionalGeneration,
    MultiLayerAttentionModel,
)
from .multi_level_supervision import (
    MultiLevelEncoder,
    MultiLevelSupervisionConfig,
    MultiLevelSupervisionForConditionalGeneration,
    MultiLevelSupervisionModel,
)
from .transformer import TransformerForConditionalGeneration


@strict
class DualContextSupervisionConfig(MultiLevelSupervisionConfig, DualContextConfig):
    """The config of auxiliary decoders (with self-attention) over a dual-context encoder: the fields of both."""

    model_type = "mlnmt-dual-context-supervision"

    dual_context: Literal["Enc-DC"] = "Enc-DC"


class DualContextSupervisionEncoder(MultiLevelEncoder, DualContextEncoder):
    """An encoder whose layers have the dual contextual module, and which returns states for the auxiliary decoders."""

    config: DualContextSupervisionConfig


class DualContextSupervisionModel(MultiLevelSupervisionModel):
    """Encoder, main decoder and auxiliary decoders, without the output projection."""

    config: DualContextSupervisionConfig
    encoder_class = DualContextSupervisionEncoder


class DualContextSupervisionForConditionalGeneration(MultiLevelSupervisionForConditionalGeneration):
    """The translation model with auxiliary decoders over a dual-context encoder. A model made with one of its decoders
    is a dual-context model, or the baseline where no encoder layer left has the module."""

    config: DualContextSupervisionConfig
    model_class = DualContextSupervisionModel
    citation = "ampomah-multilevel ampomah2021dual"

    def single_class(self, encoder_layers: int) -> type[TransformerForConditionalGeneration]:
        # Below the first of `dual_layers` no encoder layer has the module: the model is the baseline.
        if self.config.dual_layers is not None and encoder_layers < self.config.dual_layers[0]:
            return TransformerForConditionalGeneration
        return DualContextForConditionalGeneration

    def single_config(self, encoder_layers: int, **fields) -> TransformerConfig:
        layers = self.config.dual_layers
        if layers is not None and layers[0] <= encoder_layers:
            fields["dual_layers"] = [layers[0], min(layers[1], encoder_layers)]
        return super().single_config(encoder_layers, **fields)


@strict
class DualContextMultiLayerConfig(MultiLayerAttentionConfig, DualContextConfig):
    """The config of MLMHA over a dual-context encoder: the fields of both; the decoder has self-attention."""

    model_type = "mlnmt-dual-context-multi-layer"

    dual_context: Literal["Enc-DC"] = "Enc-DC"


class DualContextMultiLayerEncoder(FeatureCollector, DualContextEncoder):
    """An encoder whose layers have the dual contextual module, and which returns the outputs of its top n layers."""

    config: DualContextMultiLayerConfig


class DualContextMultiLayerModel(MultiLayerAttentionModel):
    """Encoder and decoder, without the output projection."""

    config: DualContextMultiLayerConfig
    encoder_class = DualContextMultiLayerEncoder


class DualContextMultiLayerForConditionalGeneration(MultiLayerAttentionForConditionalGeneration):
    """The translation model whose decoder attends to several layers (MLMHA) of a dual-context encoder."""

    config: DualContextMultiLayerConfig
    model_class = DualContextMultiLayerModel
    citation = "ampomah2020every ampomah2021dual"


@strict
class DualContextAggregationConfig(AggregationConfig, DualContextConfig):
    """The config of layer aggregation over a dual-context encoder: the fields of both; decoders have self-attention."""

    model_type = "mlnmt-dual-context-aggregation"

    dual_context: Literal["Enc-DC"] = "Enc-DC"


class DualContextAggregationEncoder(AggregationEncoder, DualContextEncoder):
    """An encoder whose layers have the dual contextual module, and which merges their outputs (aggregation.py)."""

    config: DualContextAggregationConfig


class DualContextAggregationModel(AggregationModel):
    """Encoder and decoder, without the output projection."""

    config: DualContextAggregationConfig
    encoder_class = DualContextAggregationEncoder


class DualContextAggregationForConditionalGeneration(AggregationForConditionalGeneration):
    """The translation model whose decoder reads merged layers (aggregation.py) of a dual-context encoder."""

    config: DualContextAggregationConfig
    model_class = DualContextAggregationModel
    citation = "ampomah2020every ampomah2021dual"


DualContextSupervisionForMaskedLM, DualContextSupervisionForCausalLM = encoder_heads(DualContextSupervisionModel)
DualContextMultiLayerForMaskedLM, DualContextMultiLayerForCausalLM = encoder_heads(DualContextMultiLayerModel)
DualContextAggregationForMaskedLM, DualContextAggregationForCausalLM = encoder_heads(DualContextAggregationModel)
