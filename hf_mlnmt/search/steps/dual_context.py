"""The dual contextual module in a search; equation numbers are those of dual_context.py."""

from typing import Any

import torch
from torch import Tensor, nn

from hf_mlnmt.modeling.attention import split_heads
from hf_mlnmt.modeling.dual_context import DualContextAttention
from hf_mlnmt.search.steps.baseline import DecoderStep, StepContext


class DualContextStep(DecoderStep):
    """The baseline's step with the module in place of self-attention."""

    attentions = {
        **DecoderStep.attentions,
        DualContextAttention: ("convolution", "global_proj", "local_proj", "out_proj"),
    }

    def attend_self(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        if type(module) is not DualContextAttention:
            return super().attend_self(module, context, states, onto)
        slot, size = context.cache.target_layers[module.layer_idx], module.width
        window = slot.windows(states.unflatten(0, (-1, context.width)), module.before).flatten(0, 1)
        convolved = nn.functional.glu(self.linear(module.convolution, window))  # (sentences x width, d_model)
        local = self.linear(module.local_proj, module.convolution_norm(convolved + states))  # of (5.4)
        whole = self.linear(module.global_proj, states)
        local_key, local_value = local.unflatten(0, (-1, context.width)).chunk(2, dim=-1)
        query, key, value = whole.unflatten(0, (-1, context.width)).split((2 * size, size, size), -1)
        key, value = torch.cat([local_key, key], dim=-1), torch.cat([local_value, value], dim=-1)
        # (sentences, 2 heads, width, d_h) each
        query, key, value = (split_heads(x, 2 * module.heads) for x in (query, key, value))
        slot.update(key, value)
        return self.attend(module, query, slot.matrices, context.history_mask, onto)  # (5.5), (5.6)
