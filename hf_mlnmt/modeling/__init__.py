"""Architectures. Importing this package registers every one of them with the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .aggregation import AggregationConfig, AggregationForConditionalGeneration, AggregationModel
from .combinations import (
    DualContextAggregationConfig,
    DualContextAggregationForConditionalGeneration,
    DualContextAggregationModel,
    DualContextMultiLayerConfig,
    DualContextMultiLayerForConditionalGeneration,
    DualContextMultiLayerModel,
    DualContextSupervisionConfig,
    DualContextSupervisionForConditionalGeneration,
    DualContextSupervisionModel,
)
from .configuration import TransformerConfig
from .dual_context import DualContextConfig, DualContextForConditionalGeneration, DualContextModel
from .extended_cross_attention import (
    ExtendedCrossAttentionConfig,
    ExtendedCrossAttentionForConditionalGeneration,
    ExtendedCrossAttentionModel,
)
from .multi_layer_attention import (
    MultiLayerAttentionConfig,
    MultiLayerAttentionForConditionalGeneration,
    MultiLayerAttentionModel,
)
from .multi_level_supervision import (
    MultiLevelSupervisionConfig,
    MultiLevelSupervisionForConditionalGeneration,
    MultiLevelSupervisionModel,
)
from .transformer import TransformerForConditionalGeneration, TransformerModel

__all__ = [
    "AggregationConfig",
    "AggregationForConditionalGeneration",
    "AggregationModel",
    "DualContextAggregationConfig",
    "DualContextAggregationForConditionalGeneration",
    "DualContextAggregationModel",
    "DualContextConfig",
    "DualContextForConditionalGeneration",
    "DualContextModel",
    "DualContextMultiLayerConfig",
    "DualContextMultiLayerForConditionalGeneration",
    "DualContextMultiLayerModel",
    "DualContextSupervisionConfig",
    "DualContextSupervisionForConditionalGeneration",
    "DualContextSupervisionModel",
    "ExtendedCrossAttentionConfig",
    "ExtendedCrossAttentionForConditionalGeneration",
    "ExtendedCrossAttentionModel",
    "MultiLayerAttentionConfig",
    "MultiLayerAttentionForConditionalGeneration",
    "MultiLayerAttentionModel",
    "MultiLevelSupervisionConfig",
    "MultiLevelSupervisionForConditionalGeneration",
    "MultiLevelSupervisionModel",
    "TransformerConfig",
    "TransformerForConditionalGeneration",
    "TransformerModel",
]

for _config, _base, _translation in [
    (TransformerConfig, TransformerModel, TransformerForConditionalGeneration),
    (AggregationConfig, AggregationModel, AggregationForConditionalGeneration),
    (MultiLayerAttentionConfig, MultiLayerAttentionModel, MultiLayerAttentionForConditionalGeneration),
    (MultiLevelSupervisionConfig, MultiLevelSupervisionModel, MultiLevelSupervisionForConditionalGeneration),
    (DualContextConfig, DualContextModel, DualContextForConditionalGeneration),
    (ExtendedCrossAttentionConfig, ExtendedCrossAttentionModel, ExtendedCrossAttentionForConditionalGeneration),
    (DualContextSupervisionConfig, DualContextSupervisionModel, DualContextSupervisionForConditionalGeneration),
    (DualContextMultiLayerConfig, DualContextMultiLayerModel, DualContextMultiLayerForConditionalGeneration),
    (DualContextAggregationConfig, DualContextAggregationModel, DualContextAggregationForConditionalGeneration),
]:
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _base, exist_ok=True)
    AutoModelForSeq2SeqLM.register(_config, _translation, exist_ok=True)
