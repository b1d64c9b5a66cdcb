"""The `Decoder` (decoder.py) of Transformers' own T5 (T5, MADLAD), so that its generate() uses this package's search.

Reference: Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer; the
gated feed-forward: Shazeer 2020, GLU Variants Improve Transformer.

A position has no vector of its own. A head's bias b(p - q), in all layers the same, is added to the energy of the
query at p and the key at q; the attention over the source has none. Energies are not scaled; norms are x / rms(x) by a
gain, in front of each sublayer. So a step needs to know where each slot's token stands (`T5State.places`): the beams of
a step are neighbouring slots of one place.
"""

import copy
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer

from hf_mlnmt.modeling import generation
from hf_mlnmt.modeling.linear import project
from hf_mlnmt.search.cache import BeamCache
from hf_mlnmt.search.decoder import SourceBatch
from hf_mlnmt.search.transformer import TransformerState, attend


class T5ForConditionalGeneration(transformers.T5ForConditionalGeneration):
    """Transformers' class, of the same name and weights, whose generate() first tries this package's search."""

    def _sample(  # type: ignore[override]
        self, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **others: Any
    ) -> Any:
        given = input_ids, logits_processor, stopping_criteria, generation_config
        found = self._searched(given, others)
        return super()._sample(*given, **others) if found is None else found  # type: ignore[misc]

    def _beam_search(  # type: ignore[override]
        self, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **others: Any
    ) -> Any:
        given = input_ids, logits_processor, stopping_criteria, generation_config
        found = self._searched(given, others)
        return super()._beam_search(*given, **others) if found is None else found  # type: ignore[misc]

    def _searched(self, given: Any, others: dict[str, Any]) -> Any:
        own = {**others, "encoder_outputs": copy.copy(others.get("encoder_outputs"))}  # the search empties it
        return None if generation.faster_search is None else generation.faster_search(self, *given, own)


def let_search(model: Any) -> None:
    """Makes generate() of a model try this package's search, by changing its class, if this is Transformers' T5."""
    if type(model) is transformers.T5ForConditionalGeneration:
        model.__class__ = T5ForConditionalGeneration


class T5State(TransformerState):
    """The state of a T5's search; `places` (slots,) has the position in the target of the token in each slot."""

    places: Tensor

    def add_prompt(self, sentences: int, length: int) -> None:
        super().add_prompt(sentences, length)
        self.places = torch.arange(length, device=self.source.real.device)

    def add_step(self, width: int) -> None:
        super().add_step(width)
        self.places = nn.functional.pad(self.places, (0, width), value=self.length - 1)


class T5Decoder:
    """The `Decoder` of `T5ForConditionalGeneration`; its linear layers and norms are called as modules."""

    normalized = False

    def __init__(self, model: Any, arguments: dict[str, Any]):
        """Takes the model; nothing that generate() gives its loops is for a step."""
        self.model, self.stack = model, model.decoder

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """Names a property of the model that this decoder does not support, or returns None."""
        if model.training:
            return "dropout"
        return "float16, in which T5 cuts what becomes infinite" if model.dtype == torch.float16 else None

    def begin(self, prompt: Tensor, source: SourceBatch) -> tuple[Tensor, T5State]:
        state = T5State(BeamCache([DynamicLayer] * len(self.stack.block)), source, True)
        state.add_prompt(*prompt.shape)
        read = state.source.outputs.last_hidden_state
        for number, block in enumerate(self.stack.block):
            attention = block.layer[1].EncDecAttention
            keys, values = (heads_of(attention, layer, read) for layer in (attention.k, attention.v))
            state.cache.cross_attention_cache.update(keys, values, number)
        return self.compute(prompt, state.places, state)[:, -1:], state

    def step(self, tokens: Tensor, state: T5State) -> tuple[Tensor, T5State]:
        state.add_step(tokens.shape[1])
        return self.compute(tokens, state.places[-1:], state), state

    def compute(self, tokens: Tensor, places: Tensor, state: T5State) -> Tensor:
        """Computes the logits (sentences, prompt or width, vocabulary) of tokens at the target positions `places` (1 or
        prompt,)."""
        biases, states = self.biases(places, state), self.stack.embed_tokens(tokens)
        for block, target, source in zip(self.stack.block, state.cache.target_layers, state.cache.source_layers):
            own, over_source, feed_forward = block.layer
            attention, normed = own.SelfAttention, own.layer_norm(states)
            keys, values = (heads_of(attention, layer, normed) for layer in (attention.k, attention.v))
            keys, values = target.update(keys, values)
            states = states + attended(attention, normed, keys, values, biases)
            attention, normed = over_source.EncDecAttention, over_source.layer_norm(states)
            states = states + attended(attention, normed, source.keys, source.values, state.source_mask)
            states = fed_forward(feed_forward, states)
        states = self.stack.final_layer_norm(states)
        if self.model.config.scale_decoder_outputs:
            states = states * self.model.model_dim**-0.5
        return project(self.model.lm_head, states).float()

    def biases(self, places: Tensor, state: T5State) -> Tensor:
        """Computes the position biases plus the mask of what each beam sees, for queries at target positions `places`:
        (sentences, heads, prompt or width, slots in whole blocks)."""
        first, blank = self.stack.block[0].layer[0].SelfAttention, state.history_mask.shape[-1] - state.slots
        distances = nn.functional.pad(state.places, (0, blank)) - places[:, None]
        sizes = first.relative_attention_num_buckets, first.relative_attention_max_distance
        buckets = first._relative_position_bucket(distances, False, *sizes)
        return first.relative_attention_bias(buckets).permute(2, 0, 1) + state.history_mask


def heads_of(attention: Any, layer: nn.Module, states: Tensor) -> Tensor:
    """Projects states (sentences, positions, d_model) to (sentences, heads, positions, d_kv)."""
    return project(layer, states).unflatten(-1, (attention.n_heads, -1)).transpose(1, 2)


def attended(attention: Any, states: Tensor, keys: Tensor, values: Tensor, biases: Tensor) -> Tensor:
    """Computes attention of normed states over keys and values by `attend`, and projects query and output."""
    query = heads_of(attention, attention.q, states)
    return project(attention.o, attend(attention, query, keys, values, biases, 1.0)[0].flatten(2))


def fed_forward(sublayer: Any, states: Tensor) -> Tensor:
    """Computes the feed-forward sublayer with its norm and residual; in float32 by `project`, which is faster."""
    dense, normed = sublayer.DenseReluDense, sublayer.layer_norm(states)
    if states.dtype != torch.float32 or type(dense.wo) is not nn.Linear:
        return states + dense(normed)
    if hasattr(dense, "wi"):
        return states + project(dense.wo, dense.act(project(dense.wi, normed)))
    return states + project(dense.wo, dense.act(project(dense.wi_0, normed)) * project(dense.wi_1, normed))
