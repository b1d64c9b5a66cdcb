"""Multi-layer attention in a search; equation numbers are those of multi_layer_attention.py."""

from typing import Any

from torch import Tensor

from hf_mlnmt.modeling.multi_layer_attention import MultiLayerAttention, StackedLinear
from hf_mlnmt.search.products import attention_contexts
from hf_mlnmt.search.steps.baseline import DecoderStep, StepContext


class MultiLayerAttentionStep(DecoderStep):
    """The baseline's step with MLMHA in place of the attention over the source."""

    attentions = {**DecoderStep.attentions, MultiLayerAttention: ("q_proj", "out_proj")}
    linears = (*DecoderStep.linears, StackedLinear)

    def attend_source(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        if type(module) is not MultiLayerAttention:
            return super().attend_source(module, context, states, onto)
        source = context.cache.source_layers[module.layer_idx].matrices
        query = self.linear(module.q_proj, states).view(-1, context.width, module.layers, states.shape[1])
        query = module.place_layers(query)  # (sentences, heads or n heads, width, n d_h or d_h)
        contexts = attention_contexts(query, source, context.source_mask, module.scaling).transpose(1, 2)
        return self.linear(module.out_proj, module.combine(contexts.flatten(2)).flatten(0, 1), onto)  # (3.11)
