"""Extended cross-attention in a search; equation numbers are those of extended_cross_attention.py.

The state before every beam's one position is known, so a step needs no scan. Query (sentences, heads, beams, d_h),
`before` and the state that comes back (sentences, heads, beams, width of the state).
"""

from functools import partial
from typing import Any

from torch import Tensor

from hf_mlnmt.modeling.attention import split_heads
from hf_mlnmt.modeling.attention_scan import gate_step, weight_step
from hf_mlnmt.modeling.extended_cross_attention import ExtendedDecoder, ExtendedDecoderLayer, WordEmbeddingAttention
from hf_mlnmt.modeling.recurrent_attention import (
    KeyValueContextAttention,
    PreviousContextAttention,
    PreviousWeightAttention,
)
from hf_mlnmt.search.products import attention_contexts, attention_energies, weighted_values
from hf_mlnmt.search.steps.baseline import DecoderStep, StepContext


def step_context(
    module: PreviousContextAttention, query: Tensor, context: StepContext, before: Tensor
) -> tuple[Tensor, Tensor]:
    """Equation 5.5: contexts, which are the state."""
    source = context.cache.source_layers[module.layer_idx].matrices
    query = query + module.extend_query(before)
    contexts = attention_contexts(query, source, context.source_mask, module.scaling)
    return contexts, contexts


def step_weights(
    module: PreviousWeightAttention, query: Tensor, context: StepContext, before: Tensor
) -> tuple[Tensor, Tensor]:
    """Equations 5.6, 5.7 and fertility: contexts, and the weights or their sum."""
    source, slot = context.cache.source_layers[module.layer_idx], context.cache.target_layers[module.layer_idx]
    coefficient = slot.of_source(lambda: module.coefficient(source.keys, context.features))
    energies = attention_energies(query, source.matrices, context.source_mask, module.scaling)
    weights = weight_step(energies, coefficient, before)  # (sentences, heads, beams, source)
    return weighted_values(weights, source.matrices), before + weights if module.accumulate else weights


def step_key_value(
    module: KeyValueContextAttention, query: Tensor, context: StepContext, before: Tensor
) -> tuple[Tensor, Tensor]:
    """Equation 5.8: contexts, which are the state."""
    source, slot = context.cache.source_layers[module.layer_idx], context.cache.target_layers[module.layer_idx]
    energies = attention_energies(query, source.matrices, context.source_mask, module.scaling)
    exact = energies.dtype
    transition, bias = slot.constant(partial(module.transition, query))
    contexts = weighted_values(energies.softmax(-1), source.matrices).to(exact)  # c~
    query = (query * module.scaling).to(exact)
    contexts = gate_step(query, contexts, energies.logsumexp(-1), transition, bias, before.to(exact))[1]
    return contexts, contexts


RECURRENCES: dict[type, Any] = {
    PreviousContextAttention: step_context,
    PreviousWeightAttention: step_weights,
    KeyValueContextAttention: step_key_value,
}


class ExtendedCrossAttentionStep(DecoderStep):
    """The baseline's step with the member's attention over the source."""

    family = (ExtendedDecoder, ExtendedDecoderLayer)
    attentions = {
        **DecoderStep.attentions,
        WordEmbeddingAttention: ("q_proj", "word_q_proj", "out_proj"),
        **dict.fromkeys(RECURRENCES, ("q_proj", "out_proj")),
    }

    def begin(self, embeds: Tensor, context: StepContext) -> dict[str, Tensor]:
        if not self.decoder.reads_words:
            return {}
        return {"words": self.decoder.word_norm(embeds).unflatten(0, (-1, context.width))}

    def attend_source(self, module: Any, context: StepContext, states: Tensor, onto: Tensor) -> Tensor:
        if type(module) not in self.attentions:
            return super().attend_source(module, context, states, onto)
        query = self.linear(module.q_proj, states)
        if "words" in context.extras:
            query = self.linear(module.word_q_proj, context.extras["words"].flatten(0, 1), query)
        query = split_heads(query.unflatten(0, (-1, context.width)), module.heads)
        if type(module) not in RECURRENCES:
            source = context.cache.source_layers[module.layer_idx].matrices
            return self.attend(module, query, source, context.source_mask, onto)
        slot = context.cache.target_layers[module.layer_idx]
        before = slot.states_before(context.width)
        contexts, after = RECURRENCES[type(module)](module, query, context, before)
        slot.append_states(after.transpose(1, 2))
        return self.project(module, contexts.to(states.dtype), onto)
