"""The language model: the baseline's decoder alone, without attention over a source.

Reference: thesis on monolingual data, section 4.1 (fusion's language model) and section 4.2 (F_trg-LM, decoder-lm).

| symbol in the thesis | here | shape |
| --- | --- | --- |
| e_0 .. e_I: start token, words, </s> | input_ids | (batch, time) |
| s: decoder states | hidden_states | (batch, time, d_model) |
| E: embeddings and output projection | embed_tokens, lm_head | (vocabulary, d_model) |

(1) p(e_i | e_0^{i-1}) = softmax(E s_i + b), b only with output_bias; s_i from the layers of layers.py without their
attention over the source: the sublayer is absent, its layer norm included
(2) F_trg-LM = - sum_i log p(e_i | e_0^{i-1});  perplexity = exp(F_trg-LM / I), </s> among the I tokens

The weights have the names that they have in a translation model, `model.decoder.` and `lm_head.`, so that they can be
transferred. Labels are as in every causal model of Transformers: the input itself, -100 where nothing counts, shifted
here; e_0 is not predicted.
Padding may stand on either side. Positions are counted from the first visible token; padding predicts no label.
Departs: nothing. For transfer into a translation model both have the same sizes and norm position.
"""

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .attention import SelfAttention
from .configuration import StackConfig
from .generation import Generation
from .layers import DecoderLayer
from .loss import divisor, following_labels, head_cross_entropy, logits_of
from .releases import CACHE, takes_cache
from .stack import TransformerPreTrainedModel, shown_positions
from .transformer import Decoder


@strict
class DecoderOnlyConfig(StackConfig):
    """The config of the language model: the decoder's fields of a translation model, under the same names."""

    model_type = "mlnmt-lm"
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "decoder_layers",
        "num_attention_heads": "decoder_attention_heads",
    }


class DecoderOnlyLayer(DecoderLayer):
    """The baseline's decoder layer without attention over a source."""

    source_attention_class = None


class DecoderOnlyDecoder(Decoder):
    """The baseline's decoder with `DecoderOnlyLayer`s."""

    config: DecoderOnlyConfig  # type: ignore[assignment]
    layer_class = DecoderOnlyLayer
    _can_record_outputs = {"hidden_states": DecoderOnlyLayer, "attentions": SelfAttention}


class DecoderOnlyModel(TransformerPreTrainedModel):
    """The language model's decoder, without the output projection."""

    config: DecoderOnlyConfig  # type: ignore[assignment]
    decoder_class: type[Decoder] = DecoderOnlyDecoder

    def __init__(self, config: DecoderOnlyConfig):
        super().__init__(config)
        self.decoder = self.decoder_class(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module):
        self.decoder.embed_tokens = value  # type: ignore[assignment]

    @takes_cache
    @can_return_tuple
    def forward(  # type: ignore[misc]  # a name that is also among TransformersKwargs
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        """Reads tokens (batch, time); returns states (batch, time, d_model).

        Args:
            attention_mask: (batch, past and time), 0 at padding, or a mask of four dimensions for attention.
            position_ids: (1 or batch, time); None: counted from the first token that the mask shows.
        """
        given = input_ids if inputs_embeds is None else inputs_embeds
        if position_ids is None and given is not None:
            position_ids = shown_positions(attention_mask, given.shape[1])
        outputs = self.decoder(
            input_ids,
            attention_mask,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            decoder_position_ids=position_ids,
            **kwargs,
        )
        return BaseModelOutputWithPast(
            last_hidden_state=outputs.last_hidden_state,
            **{CACHE: outputs.get(CACHE)},
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class DecoderOnlyForCausalLM(TransformerPreTrainedModel, Generation):
    """The language model: equation 1 on top of `DecoderOnlyModel`, its loss, and `generate()`."""

    config: DecoderOnlyConfig  # type: ignore[assignment]
    computes_own_loss = True  # read by objectives: forward takes `smoothing`, `loss_only`, `num_items_in_batch`
    model_class: type[DecoderOnlyModel] = DecoderOnlyModel
    citation = "rosendahl2024chapter4"
    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}

    def __init__(self, config: DecoderOnlyConfig):
        super().__init__(config)
        self.model = self.model_class(config)
        self.lm_head = nn.Linear(config.d_model, config.target_vocab_size, bias=config.output_bias)
        self.post_init()

    @takes_cache
    @can_return_tuple
    def forward(  # type: ignore[misc]  # names that are also among TransformersKwargs
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        smoothing: float = 0.0,  # not `label_smoothing`: Trainer takes a name with "label" for a batch's labels
        loss_only: bool = False,
        num_items_in_batch: int | Tensor | None = None,
        shift_labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """Scores tokens (batch, time): returns logits (batch, time, vocabulary) and, with `labels`, the loss.

        Args:
            labels: `input_ids`, -100 where nothing counts; position i is predicted from the state of i - 1.
            logits_to_keep, smoothing, loss_only, num_items_in_batch: as in a translation model (transformer.py).
            shift_labels: labels that are shifted already, (batch, time): those that each position predicts.
        """
        following = following_labels(labels, attention_mask) if shift_labels is None else shift_labels
        if following is not None and use_cache is None:
            use_cache = False
        outputs = self.model(input_ids, attention_mask, position_ids, cache, inputs_embeds, use_cache, **kwargs)
        states = outputs.last_hidden_state
        logits = loss = None
        if not loss_only:
            logits = logits_of(self.lm_head, states, logits_to_keep)
        if following is not None:
            total = head_cross_entropy(self.lm_head, states, following, smoothing, logits)
            loss = total / divisor(following, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            **{CACHE: outputs.get(CACHE)},
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
