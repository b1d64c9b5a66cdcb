"""The encoder of a translation model with an output projection of its own, for pre-training on source-language text.

Reference: thesis on monolingual data, section 4.2 (its equation numbers are used here).

| objective | class | equation |
| --- | --- | --- |
| encoder-cloze | EncoderForMaskedLM | (4.9) p(f_j | tau(f)) = softmax(W_proj h_j), j in D, the distorted positions |
| encoder-lm | EncoderForCausalLM | (4.7) p(f_j | f_0^{j-1}) = softmax(W_proj h_{j-1}), causal self-attention |

h is the last state of the encoder, (batch, source, d_model). The config is the translation model's, and the weights
have their names there, `model.encoder.`; W_proj, `projection.`, is not transferred. `encoder_heads` makes both classes
of a family; the baseline's are here.

An encoder's further output for a decoder (a merged memory, features) is not trained so.
Departs: nothing; config.tie_projection ties W_proj to the source embedding, which the thesis does not.
"""

import copy
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration import TransformerConfig
from .generation import Generation
from .linear import project
from .loss import divisor, following_labels, head_cross_entropy
from .stack import TransformerPreTrainedModel, shown_positions
from .transformer import Encoder, TransformerModel

HUB = ("revision", "token", "cache_dir", "subfolder", "local_files_only")
SHARED = r"^model\.decoder\.embed_tokens\."


class EncoderModel(TransformerPreTrainedModel):
    """Wraps an encoder so that its weights are named `model.encoder.*`, as in a translation model."""

    def __init__(self, config: TransformerConfig, encoder_class: type[Encoder]):
        super().__init__(config)
        self.encoder = encoder_class(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module):
        self.encoder.embed_tokens = value  # type: ignore[assignment]


class EncoderWithProjection(TransformerPreTrainedModel):
    """The base of both pre-training models: encoder, output projection W_proj, and loss over predicted positions."""

    model_class: type[TransformerModel] = TransformerModel
    causal = False
    output_class: type[ModelOutput] = MaskedLMOutput
    computes_own_loss = True  # read by objectives: forward takes `smoothing`, `loss_only`, `num_items_in_batch`
    citation = "rosendahl2024chapter4"
    _keys_to_ignore_on_load_unexpected = [r"^model\.decoder\.", r"^lm_head\.", r"^model\.auxiliary_"]

    def __init__(self, config: TransformerConfig):
        config = copy.deepcopy(config)
        config.is_encoder_decoder = False
        super().__init__(config)
        self.model = EncoderModel(config, self.model_class.encoder_class)
        self.projection = nn.Linear(config.d_model, config.vocab_size, bias=False)
        tied = getattr(config, "tie_projection", False)
        self._tied_weights_keys = {"projection.weight": "model.encoder.embed_tokens.weight"} if tied else {}
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, config=None, key_mapping=None, **kwargs):  # type: ignore[override]
        """Loads the model, also from a translation model, whose shared embeddings have the decoder's name."""
        stored, kind = config, cast(Any, cls.config_class)
        if not isinstance(config, PreTrainedConfig):
            told = {key: kwargs[key] for key in HUB if key in kwargs}
            stored = kind.from_pretrained(config or pretrained_model_name_or_path, **told)
        if stored.is_encoder_decoder and getattr(stored, "share_encoder_decoder_embeddings", False):
            key_mapping = {SHARED: "model.encoder.embed_tokens.", **(key_mapping or {})}
        given = {"config": config, "key_mapping": key_mapping, **kwargs}
        return super().from_pretrained(pretrained_model_name_or_path, *args, **given)

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.model.encoder

    def get_output_embeddings(self) -> nn.Module:
        return self.projection

    def set_output_embeddings(self, value: nn.Module):
        self.projection = value  # type: ignore[assignment]

    @can_return_tuple
    def forward(  # type: ignore[misc]  # names that are also among TransformersKwargs
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        smoothing: float = 0.0,
        loss_only: bool = False,
        num_items_in_batch: int | Tensor | None = None,
        shift_labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ModelOutput:
        """Scores tokens (batch, source): returns logits (batch, source, vocabulary) and, with `labels`, the loss.

        Args:
            labels: (batch, source). Of encoder-cloze the tokens at the positions that count, -100 elsewhere; of
                encoder-lm `input_ids` from f_0 on, -100 where nothing counts, shifted here.
            shift_labels: labels that are shifted already, (batch, source): those that each position predicts.
            smoothing, loss_only, num_items_in_batch: as in a translation model.
        """
        if self.causal:
            given = input_ids if inputs_embeds is None else inputs_embeds
            kwargs["is_causal"] = True
            kwargs["position_ids"] = None if given is None else shown_positions(attention_mask, given.shape[1])
        outputs = self.model.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        states, loss = outputs.last_hidden_state, None
        logits = None if loss_only else project(self.projection, states)
        if shift_labels is None:
            shift_labels = following_labels(labels, attention_mask) if self.causal else labels
        if shift_labels is not None:
            total = head_cross_entropy(self.projection, states, shift_labels, smoothing, logits)
            loss = total / divisor(shift_labels, num_items_in_batch)
        return self.output_class(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class EncoderForMaskedLM(EncoderWithProjection):
    """Encoder-cloze: the encoder predicts the words at distorted positions from both sides, equation 4.9."""


class EncoderForCausalLM(EncoderWithProjection, Generation):
    """Encoder-lm: the encoder predicts each word from those before it, equation 4.7.

    The model has no cache of keys and values: generate() reads all tokens again in each step.
    Padding may stand on either side, in prompts for generate() on the left: positions are counted from the first token
    that the mask shows.
    """

    causal = True
    output_class = CausalLMOutput
    _can_compile_fullgraph = False  # the input grows at every step, while a compiled graph has fixed shapes

    def _prepare_generation_config(self, generation_config, *args, **kwargs):
        if kwargs.get("inputs_embeds") is not None:  # Transformers needs a cache for these
            raise ValueError("inputs_embeds: this model has no cache, so generate() needs input_ids")
        # With use_cache Transformers would pass only the last token to forward.
        prepared, model_kwargs = super()._prepare_generation_config(generation_config, *args, **kwargs)
        prepared.use_cache = False
        return prepared, model_kwargs


def encoder_heads(
    model_class: type[TransformerModel], module: str | None = None
) -> tuple[type[EncoderForMaskedLM], type[EncoderForCausalLM]]:
    """Makes the classes <Family>ForMaskedLM and <Family>ForCausalLM for the encoder in <Family>Model.

    module: the module that defines them, where published code looks for them; None: that of <Family>Model.
    """

    def of_family(base: type[EncoderWithProjection]) -> Any:
        own = {"model_class": model_class, "config_class": model_class.config_class}
        name = model_class.__name__.removesuffix("Model") + base.__name__.removeprefix("Encoder")
        return type(name, (base,), {**own, "__module__": module or model_class.__module__, "__doc__": base.__doc__})

    return of_family(EncoderForMaskedLM), of_family(EncoderForCausalLM)


TransformerForMaskedLM, TransformerForCausalLM = encoder_heads(TransformerModel, __name__)
