"""The Transformer baseline; every other architecture is written as its differences to this file.

Reference: Vaswani et al. 2017, "Attention Is All You Need"; thesis on joint attention, chapters 2-3; thesis on
monolingual data, section 3.2.3 (norm_position="pre").

| symbol in the papers | here | shape |
| --- | --- | --- |
| x, y: source and target tokens | input_ids, decoder_input_ids | (batch, source), (batch, target) |
| f^0 .. f^L: embedding output and encoder layers | states | L + 1 of (batch, source, d_model) |
| encoder states that the attention over the source reads (f^L here) | memory | (batch, source, d_model) |
| further output of the encoder for the decoder (none here) | features | (batch, ...) |
| further inputs of decoder layers (none here) | extras | name -> (batch, ...) |
| s: decoder states | hidden_states | (batch, target, d_model) |
| E: embeddings and output projection | embed_tokens, lm_head | (vocabulary, d_model) |

(1) embedding = dropout(sqrt(d_model) E[x] + PE), (2) PE: stack.py    (3)-(4) the layers: layers.py
(5) p(y_t | y_<t, x) = softmax(E s_t + b), b only with output_bias

Seams (extension points), methods or class attributes that a family overrides: `EncoderLayer.attend_self`,
`Encoder.memory`, `Encoder.features` (both named in `Encoder.hands_on`), `Decoder.extend`, `DecoderLayer.attend_self`,
`DecoderLayer.attend_source`, `TransformerModel.decode`, `TransformerForConditionalGeneration.supervise`,
`TransformerConfig.cache_slots`, and `layer_class`, `encoder_class`, `decoder_class`, `model_class`. Keyword arguments
are passed from the model through encoder and decoder to every layer; a tensor that needs a gradient is passed to the
layers as one of the `extras`.
Departs: dropout on embeddings and sublayer outputs only, by default; the papers name one rate but not where it acts.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions, Seq2SeqModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention import CrossAttention, SelfAttention, causal_mask, source_mask
from .configuration import StackConfig, TransformerConfig
from .generation import TranslationGenerationMixin
from .layers import DecoderLayer, EncoderLayer, normed
from .loss import divisor, head_cross_entropy, logits_of
from .outputs import EncoderOutput, TranslationOutput
from .releases import CACHE, takes_cache
from .stack import Stack, TransformerPreTrainedModel


class Encoder(Stack):
    """The encoder: embeds the source, applies L layers and, in a pre-norm model, a last layer norm."""

    main_input_name = "input_ids"
    layer_class: type[nn.Module] = EncoderLayer
    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": SelfAttention}

    def __init__(self, config: TransformerConfig):
        super().__init__(config, config.vocab_size, config.encoder_layers)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_causal: bool = False,
        position_ids: Tensor | None = None,
        **kwargs,
    ) -> EncoderOutput:
        """Encodes input_ids and attention_mask (batch, source) as states (batch, source, d_model).

        Args:
            is_causal: no position sees later ones, as in a language model of the source (encoder_models.py).
            position_ids: (1 or batch, source); None: 0, 1, 2 and so on.
        """
        hidden_states = self.embed(self.look_up(input_ids, inputs_embeds), position_ids=position_ids)
        if is_causal:
            mask = causal_mask(self.config, hidden_states, attention_mask)
            kwargs["is_causal"] = True  # the mask is None where nothing is padding
        else:
            mask = source_mask(self.config, hidden_states, attention_mask)
        states = [hidden_states]
        for layer in self.layers:
            states.append(layer(states[-1], mask, **kwargs))
        states[-1] = normed(self.layer_norm, states[-1])
        return EncoderOutput(last_hidden_state=states[-1], memory=self.memory(states), features=self.features(states))

    @property
    def hands_on(self) -> tuple[str, ...]:
        """Returns the names of the `EncoderOutput` fields that the decoder needs beside the last state: here none."""
        return ()

    def memory(self, states: list[Tensor]) -> Tensor | None:
        """Returns None: the decoder attends to the last state. Families override this, given all L + 1 states."""
        return None

    def features(self, states: list[Tensor]) -> Tensor | None:
        """Returns None: the decoder needs no further output. Families override this, given all L + 1 states."""
        return None


class Decoder(Stack):
    """The decoder: embeds the target, applies L_d layers that attend to target and source and, in a pre-norm model, a
    last layer norm."""

    layer_class: type[nn.Module] = DecoderLayer
    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": SelfAttention,
        "cross_attentions": CrossAttention,
    }

    def __init__(self, config: StackConfig):
        super().__init__(config, config.target_vocab_size, config.decoder_layers)
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
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_features: Tensor | None = None,
        extras: dict[str, Tensor] | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decodes input_ids (batch, target) to states of the target (batch, target, d_model).

        Args:
            encoder_hidden_states, encoder_features: memory (batch, source, ...) and features of `EncoderOutput`.
            decoder_position_ids: (1 or batch, 1 or target); None: counted on from the positions in the cache.
            extras: further inputs of the layers from the model, beside those that `extend` returns.

        Raises: ValueError for a filled cache under gradient checkpointing.
        """
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            if cache is not None and cache.get_seq_length():
                raise ValueError("gradient checkpointing runs a layer twice: it cannot go on from a filled cache")
            cache = None
        elif use_cache and cache is None:
            parts = [DynamicCache(config=self.config) for _ in range(1 if encoder_hidden_states is None else 2)]
            cache = EncoderDecoderCache(*parts) if len(parts) == 2 else parts[0]
        past = cache.get_seq_length() if cache is not None else 0
        embeds = self.look_up(input_ids, inputs_embeds)
        extras = {**(extras or {}), **self.extend(embeds, past, decoder_position_ids, attention_mask, encoder_features)}
        hidden_states = self.embed(embeds, past, decoder_position_ids)
        self_cache = getattr(cache, "self_attention_cache", cache)
        mask = causal_mask(self.config, hidden_states, attention_mask, self_cache)
        over_source = None
        if encoder_hidden_states is not None:
            over_source = source_mask(self.config, hidden_states, encoder_attention_mask, encoder_hidden_states)
        kwargs |= {"names": tuple(extras), "cache": cache}
        for layer in self.layers:
            # Pass extras by position: reentrant gradient checkpointing computes no gradient for keywords and dicts.
            hidden_states = layer(hidden_states, encoder_hidden_states, mask, over_source, *extras.values(), **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=normed(self.layer_norm, hidden_states),
            **{CACHE: cache},  # type: ignore[arg-type]
        )

    def extend(
        self,
        embeds: Tensor,
        past: int | Tensor,
        position_ids: Tensor | None,
        attention_mask: Tensor | None,
        features: Tensor | None,
    ) -> dict[str, Tensor]:
        """Returns further inputs of the layers (extras) by name, each (batch, ...): none in the baseline.

        embeds: E[x] (batch, target, d_model). past, position_ids: as of `embed`. attention_mask: the argument of
        `forward`. features: of `EncoderOutput`.
        """
        return {}


class TransformerModel(TransformerPreTrainedModel):
    """Encoder and decoder, without the output projection."""

    encoder_class: type[Encoder] = Encoder
    decoder_class: type[Decoder] = Decoder
    _tied_weights_keys = {"encoder.embed_tokens.weight": "decoder.embed_tokens.weight"}

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.encoder = self.encoder_class(config)
        self.decoder = self.decoder_class(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module):
        self.encoder.embed_tokens = value  # type: ignore[assignment]
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value  # type: ignore[assignment]

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encodes input_ids, decodes decoder_input_ids; returns the decoder's states (batch, target, d_model)."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        return self.decode(
            EncoderOutput.of(encoder_outputs, self.encoder.hands_on),
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )

    def decode(self, encoded: EncoderOutput, **inputs: Any) -> Seq2SeqModelOutput:
        """Runs the decoder, with the keyword arguments `inputs`, over the encoder's memory and features."""
        outputs = self.decoder(
            encoder_hidden_states=encoded.last_hidden_state if encoded.memory is None else encoded.memory,
            encoder_features=encoded.features,
            **inputs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            **{CACHE: outputs.get(CACHE)},
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


class TransformerForConditionalGeneration(TransformerPreTrainedModel, TranslationGenerationMixin):  # type: ignore[misc]
    """The translation model: equation 5 on top of `TransformerModel`, the loss, and `generate()`."""

    computes_own_loss = True  # read by objectives: forward takes `smoothing`, `loss_only` ..., returns `losses`
    model_class: type[TransformerModel] = TransformerModel
    citation = "vaswani2017attention"
    _tied_weights_keys = {
        "lm_head.weight": "model.decoder.embed_tokens.weight",
        "model.encoder.embed_tokens.weight": "model.decoder.embed_tokens.weight",
    }

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.model = self.model_class(config)
        self.lm_head = nn.Linear(config.d_model, config.target_vocab_size, bias=config.output_bias)
        self.post_init()

    @takes_cache
    @can_return_tuple
    def forward(  # type: ignore[misc]  # num_items_in_batch is also among TransformersKwargs
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        smoothing: float = 0.0,  # not `label_smoothing`: Trainer takes a name with "label" for a batch's labels
        loss_only: bool = False,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TranslationOutput:
        """Scores target tokens: returns logits (batch, target, vocabulary) and, with `labels`, the loss.

        Args:
            labels: target tokens ending in </s>, -100 where nothing counts; shifted, they are the decoder's input.
            logits_to_keep: how many last positions to return logits of (0: all).
            smoothing: eps of the label-smoothed loss (see loss.py).
            loss_only: return no logits, and keep none in memory, as in training.
            num_items_in_batch: target tokens the loss is divided by (None: those of this batch). Where there are none,
                the loss is 0, and so are its gradients.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if labels is not None and use_cache is None:
            use_cache = False
        tokens = input_ids, attention_mask, decoder_input_ids, decoder_attention_mask
        embeds = inputs_embeds, decoder_inputs_embeds
        outputs = self.model(*tokens, encoder_outputs, cache, *embeds, use_cache, **kwargs)
        logits = loss = losses = None
        if not loss_only:
            logits = logits_of(self.lm_head, outputs.last_hidden_state, logits_to_keep)
        if labels is not None:
            losses = self.supervise(outputs, logits, labels, smoothing, divisor(labels, num_items_in_batch))
            loss = torch.stack(list(losses.values())).sum()
        several = losses if losses and len(losses) > 1 else None
        return TranslationOutput(loss=loss, losses=several, logits=logits, **TranslationOutput.passed_on(outputs))

    def supervise(
        self,
        outputs: Seq2SeqModelOutput,
        logits: Tensor | None,
        labels: Tensor,
        label_smoothing: float,
        items: int | Tensor,
    ) -> dict[str, Tensor]:
        """Returns the summands of the training loss by name: here one, the cross-entropy of the target tokens.

        Each summand is a sum over target tokens, or over sentences, divided by `items`, the step's target tokens.
        """
        assert outputs.last_hidden_state is not None
        total = head_cross_entropy(self.lm_head, outputs.last_hidden_state, labels, label_smoothing, logits)
        return {"translation": total / items}

    def embed(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        pooling: str | int = "mean",
        **inputs,
    ) -> Tensor:
        """Returns sentence embeddings (batch, d_model): the mean of the encoder's last states over real positions.

        Other values of `pooling` than "mean" are for models with an attention bridge (bridge.py).
        """
        encoded = self.get_encoder()(input_ids, attention_mask, **inputs)
        return pooled_states(encoded.last_hidden_state, attention_mask, pooling)


def pooled_states(states: Tensor, mask: Tensor | None, pooling: str | int) -> Tensor:
    """Returns the mean (batch, d) of states (batch, source, d) over positions where `mask` is 1 (None: over all).

    Raises: ValueError for another pooling than "mean".
    """
    if pooling != "mean":
        raise ValueError(f"pooling={pooling!r}: a model without an attention bridge has the mean of its states alone")
    if mask is None:
        return states.mean(1)
    real = mask.unsqueeze(-1).to(states.dtype)
    return torch.where(real > 0, states, 0.0).sum(1) / real.sum(1).clamp(min=1)
