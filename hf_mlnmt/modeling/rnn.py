"""The recurrent baseline: a BiLSTM encoder and an LSTM decoder with Luong's attention, as in bridge.py without bridge.

Reference: Vazquez, Raganato, Creutz and Tiedemann 2020, "A Systematic Study of Inner-Attention-Based Sentence
Representations in Multilingual Neural Machine Translation", sections 2.1 and 3.1; equation numbers are the paper's.

| symbol in the paper | here | shape |
| --- | --- | --- |
| x, y | input_ids, decoder_input_ids | (batch, source), (batch, target) |
| h_1 .. h_n | last_hidden_state of the encoder | (batch, source, d_model) |
| c, equation 2: the encoder's last states | features | (batch, 2 layers, d_model) |
| s_t | states of the last decoder layer | (batch, target, d_model) |

(1) h_t = f(x_t, h_{t-1}), f a BiLSTM, and (5) s_t = phi(c, y_{t-1}, s_{t-1}): rnn_layers.py
(6), (7) the attention: rnn_layers.py        (4) p_t = softmax(E tanh(W_c [c_t ; s_t]))

Departs: the paper calls g in (7) a feedforward network and its attention Luong's: here the "general" score. The first
decoder states are the encoder's last ones, layer by layer, both directions concatenated. Dropout between layers and on
the attentional state. Embeddings and initialisation as the baseline's (transformer.py), but 1 for the forget gates'
biases. The baseline's fields of heads, feed-forward layers, norms and positions have no effect here.
"""

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import cached_source
from .caches import RecurrentCacheLayer, StaticRecurrentCacheLayer, count_positions, real_positions
from .configuration import TransformerConfig
from .outputs import EncoderOutput
from .releases import CACHE, takes_cache
from .rnn_layers import Packing, RNNDecoderLayers, RNNEncoderLayer, additive_mask
from .stack import Stack, TransformerPreTrainedModel
from .transformer import TransformerForConditionalGeneration, TransformerModel


class LSTMCacheLayer(RecurrentCacheLayer):
    """The dynamic cache layer of the LSTM decoder. `states` (batch, steps, rows, width): rows are h and c of every
    layer and, with input feeding, the attentional state."""

    _layer_type = "mlnmt_lstm"


class StaticLSTMCacheLayer(StaticRecurrentCacheLayer):
    """The static cache layer of the LSTM decoder; `reset` removes the state: the first one comes from the encoder."""

    _layer_type = "mlnmt_lstm"

    def reset(self) -> None:
        super().reset()
        self.states = None


@strict
class RNNConfig(TransformerConfig):
    """The config of the recurrent baseline.

    Args:
        d_model: width of embeddings, encoder (half of it a direction) and decoder.
        encoder_layers, decoder_layers: must be equal, as each decoder layer begins with its encoder layer's last state.
        input_feeding: concatenate the attentional state to the next word's embedding.
    """

    model_type = "mlnmt-rnn"

    encoder_layers: int = 2
    decoder_layers: int = 2
    input_feeding: bool = True

    def cache_slots(self) -> list[str]:
        return [LSTMCacheLayer._layer_type]  # one cache layer for all LSTM layers

    def validate_depth(self):
        if self.decoder_layers != self.encoder_layers:
            raise ValueError(
                f"decoder_layers={self.decoder_layers} differs from encoder_layers={self.encoder_layers}: each decoder "
                "layer of an rnn begins with the last state of its encoder layer"
            )


class RNNPreTrainedModel(TransformerPreTrainedModel):
    """The base of recurrent models; they support neither flash attention nor torch.compile with fullgraph."""

    config: RNNConfig
    _no_split_modules = ["RNNEncoderLayer", "RNNDecoderLayers"]
    _supports_flash_attn = False
    _can_compile_fullgraph = False


class RNNStack(RNNPreTrainedModel):
    """The base of recurrent encoder and decoder, which has the embeddings."""

    look_up: Any = Stack.look_up

    def __init__(self, config: RNNConfig, vocab_size: int):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        self.embed_scale = config.d_model**0.5 if config.scale_embedding else 1.0
        self.gradient_checkpointing = False


class RNNEncoder(RNNStack):
    """The recurrent encoder: L bidirectional LSTM layers over the source."""

    main_input_name = "input_ids"
    _can_record_outputs = {"hidden_states": RNNEncoderLayer}

    def __init__(self, config: RNNConfig):
        super().__init__(config, config.vocab_size)
        self.layers = nn.ModuleList([RNNEncoderLayer(config, index) for index in range(config.encoder_layers)])
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs,
    ) -> EncoderOutput:
        """Encodes input_ids and attention_mask (batch, source) as states (batch, source, d_model), and as `features`
        the last h and c of every layer, (batch, 2 layers, d_model)."""
        states = self.look_up(input_ids, inputs_embeds) * self.embed_scale
        packing = Packing.of(None if attention_mask is None else attention_mask.bool())
        ends: list[Tensor] = []
        for layer in self.layers:
            states, hidden, cell = layer(states, packing)
            ends += [hidden, cell]
        return EncoderOutput(last_hidden_state=states, features=torch.stack(ends, dim=1))

    @property
    def hands_on(self) -> tuple[str, ...]:
        return ("features",)


class LayerStates(nn.Module):
    """Returns its second argument, a decoder layer's outputs: called so that Transformers' hook for
    `output_hidden_states` records both arguments."""

    def forward(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        return outputs


class AttentionWeights(nn.Module):
    """Returns attention weights in a tuple: called so that Transformers' hook for `output_attentions` records them."""

    def forward(self, weights: Tensor) -> tuple[Tensor]:
        return (weights,)


class RNNDecoder(RNNStack):
    """The recurrent decoder: L_d LSTM layers over the target, with attention over the source."""

    _can_record_outputs = {"hidden_states": LayerStates, "cross_attentions": OutputRecorder(AttentionWeights, index=0)}

    def __init__(self, config: RNNConfig):
        super().__init__(config, config.decoder_vocab_size or config.vocab_size)
        self.recurrence = RNNDecoderLayers(config)
        self.layer_states = nn.ModuleList([LayerStates() for _ in range(config.decoder_layers)])
        self.attention_weights = AttentionWeights()
        self.post_init()

    @takes_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        encoder_features: Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decodes input_ids (batch, target) to attentional states (batch, target, d_model).

        Args:
            encoder_hidden_states: (batch, source, d_model), keys and values of the attention.
            encoder_attention_mask: (batch, source), 0 at padding; None: no padding.
            encoder_features: (batch, 2 layers, d_model), the first h and c of every layer; None: all are the mean of
                `encoder_hidden_states`, which then must have no padding.
        """
        if encoder_hidden_states is None:
            raise ValueError("encoder_hidden_states: the decoder of an rnn begins with what the encoder says")
        if use_cache and cache is None and not (self.gradient_checkpointing and self.training):
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        past = cache.get_seq_length() if cache is not None else 0
        past = past if torch.compiler.is_exporting() else int(past)
        embeds = self.look_up(input_ids, inputs_embeds) * self.embed_scale
        keys, values = cached_source(cache, 0, self.recurrence.attention.project_source, encoder_hidden_states)
        slot: Any = None if cache is None else cache.self_attention_cache.layers[0]
        start = self.start(slot, past, encoder_hidden_states, encoder_features)
        attentional, weights, ends, *outputs = self.recurrence(
            embeds,
            start,
            keys,
            values,
            additive_mask(encoder_attention_mask, embeds),
            real_positions(attention_mask, past, embeds.shape[1]),
            bool(getattr(slot, "record_past", False)),
        )
        if slot is not None:
            count_positions(slot, embeds)
            slot.append_states(ends)
        self.attention_weights(weights)
        for place, inputs, states in zip(self.layer_states, [embeds, *outputs], outputs):
            place(inputs, states)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=attentional, **{CACHE: cache})

    def start(self, slot: Any, past: Any, memory: Tensor, features: Tensor | None) -> Tensor:
        """Returns the decoder's state before new positions: the last in the cache, or `begin`'s where `past` is 0."""
        if torch.compiler.is_exporting() and slot is not None:  # one exported graph computes both cases
            first = torch.arange(1, device=memory.device) == past
            return torch.where(first[:, None, None], self.begin(memory, features), slot.last_state())
        return slot.last_state() if past else self.begin(memory, features)

    def begin(self, memory: Tensor, features: Tensor | None) -> Tensor:
        """Returns the decoder's state before the first word, (batch, rows, d_model): h and c from the encoder and, with
        input feeding, an attentional state of zeros."""
        if features is None:
            features = memory.mean(1, keepdim=True).expand(-1, 2 * self.config.decoder_layers, -1)
        return nn.functional.pad(features, (0, 0, 0, 1)) if self.config.input_feeding else features


class RNNModel(RNNPreTrainedModel, TransformerModel):
    """Encoder and decoder, without the output projection."""

    encoder_class: Any = RNNEncoder
    decoder_class: Any = RNNDecoder


class RNNForConditionalGeneration(RNNPreTrainedModel, TransformerForConditionalGeneration):
    """The translation model: equation 4 on top of `RNNModel`, the loss, and `generate()`."""

    model_class = RNNModel
    citation = "vazquez2020systematic"
