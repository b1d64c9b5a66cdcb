"""Layer aggregation in a search: the baseline's step; what differs is what a layer reads of the source."""

from typing import Any

from torch import Tensor

from hf_mlnmt.modeling.aggregation import AggregationDecoderLayer
from hf_mlnmt.search.steps.baseline import DecoderStep


class AggregationStep(DecoderStep):
    """A step of the family in modeling/aggregation.py: its decoder layers may each read a memory of their own."""

    family = (AggregationDecoderLayer,)

    @classmethod
    def sources(cls, model: Any, outputs: Any) -> list[tuple[Any, Tensor]]:
        if outputs.memory.dim() == 3:
            return super().sources(model, outputs)
        return [(layer.source_attn, layer.memory_of(outputs.memory)) for layer in model.decoder.layers]
