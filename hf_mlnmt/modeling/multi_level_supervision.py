"""Multi-level supervision (MS): auxiliary decoders on lower encoder layers, trained on the targets of the main one.

Reference: Ampomah, thesis on joint attention, chapter 4 (its equation numbers are used here).

| value | class | equation |
| --- | --- | --- |
| MS-l, MS-ij, MS-ijk: auxiliary_layers | MultiLevelSupervisionModel, AuxiliaryDecoder | (4.1) |
| + AIF: information_fusion | FusionDecoderLayer | (4.2), (4.3) |

(4.1) J = L_main + gamma sum_l L_l, L_l the loss of the auxiliary decoder that reads encoder layer l
(4.2) z_m = sum_i f^i W_m^i, f^i the final states of auxiliary i on the same target prefix, W_m^i in R^{d x d}, no bias
(4.3) h_m <- h_m + z_m, h_m the output of the self-attention sublayer of the main decoder's layer m

All decoders share the target embedding and the output projection. The loss in training is (4.1), its summands by name
in `output.losses`; in evaluation it is the main decoder's. Without AIF the auxiliaries run in training only; with AIF
always, with slots of their own in the cache. With W = 0 AIF is plain MS; the main decoder of MS is the baseline.

Departs:
- The text leaves open whether h is taken before or after the sublayer's norm. Here after: figure 4.4 adds z to the
  sublayer's output. With norm_position="pre" that is the sum x + f(LN(x)).
- norm_position="pre": an auxiliary reads layer l through the encoder's last layer norm, as the main decoder reads layer
  L, so that it is a baseline by itself and no parameter is added. The thesis is all post-norm.
- Parameters: an auxiliary adds 25.200 million at the base shape (AIF 26.772) and 4.206 at the small one (4.468). All of
  table 4.6 holds to the last digit (21.2k subwords). The base totals 86.5 and 88.0 beside 61.2 hold with biases in the
  projections (attention_bias=True) and 33.4k subwords; without biases 86.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.cache_utils import Cache
from transformers.modeling_outputs import Seq2SeqModelOutput

from .attention import Attention
from .configuration import TransformerConfig
from .encoder_models import encoder_heads
from .layers import DecoderLayer, normed
from .linear import project
from .loss import head_cross_entropy
from .outputs import EncoderOutput
from .releases import CACHE
from .transformer import Decoder, Encoder, TransformerForConditionalGeneration, TransformerModel


@strict
class MultiLevelSupervisionConfig(TransformerConfig):
    """The config of a model with auxiliary decoders: the baseline's fields and those below.

    Args:
        auxiliary_layers: the encoder layers, ascending and counted from 1, that have an auxiliary decoder: some of
            1 .. encoder_layers - 1.
        auxiliary_weight: gamma of (4.1).
        information_fusion: AIF: the main decoder reads the states of the auxiliaries.
    """

    model_type = "mlnmt-multi-level-supervision"

    auxiliary_layers: list[int] = field(default_factory=lambda: [1])
    auxiliary_weight: float | int = 1.0
    information_fusion: bool = False

    def cache_slots(self) -> list[str]:
        # With AIF there are cache layers for all decoders, the main decoder's first.
        return super().cache_slots() * (1 + len(self.auxiliary_layers) * self.information_fusion)

    def validate_auxiliaries(self):
        """Raises ValueError unless auxiliary_layers are one or more of 1 .. encoder_layers - 1, ascending, and for a
        negative or infinite auxiliary_weight."""
        layers, last = self.auxiliary_layers, self.encoder_layers - 1
        if not layers or layers != sorted(set(layers)) or layers[0] < 1 or layers[-1] > last:
            raise ValueError(
                f"auxiliary_layers={layers}: must be one or more encoder layers from 1 to encoder_layers - 1 = {last}, "
                "ascending" + (", also for information_fusion" if self.information_fusion else "")
            )
        if not 0 <= self.auxiliary_weight < float("inf"):
            raise ValueError(f"auxiliary_weight={self.auxiliary_weight}: must be 0 or a positive number")


@dataclass
class MultiLevelModelOutput(Seq2SeqModelOutput):
    """The output of `MultiLevelSupervisionModel`. `auxiliary_states`: the last states (batch, target, d_model) of each
    auxiliary decoder; None where they did not run."""

    auxiliary_states: tuple[Tensor, ...] | None = None


class MultiLevelEncoder(Encoder):
    """The baseline's encoder; its `features` are the states of the layers that auxiliary decoders attend to."""

    config: MultiLevelSupervisionConfig

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        auxiliary_mask: Sequence[float] | None = None,
        **kwargs,
    ) -> EncoderOutput:
        """Encodes as the baseline does; `auxiliary_mask` is ignored, and only there for generate() to accept it."""
        return super().forward(input_ids, attention_mask, inputs_embeds, **kwargs)

    @property
    def hands_on(self) -> tuple[str, ...]:
        return ("features",) if self.training or self.config.information_fusion else ()

    def features(self, states: list[Tensor]) -> Tensor | None:
        """Returns the states that each auxiliary decoder attends to, (batch, source, auxiliaries, d_model); None in
        evaluation without AIF, where none runs."""
        if not self.hands_on:
            return None
        return torch.stack([normed(self.layer_norm, states[layer]) for layer in self.config.auxiliary_layers], dim=2)


class FusionDecoderLayer(DecoderLayer):
    """The baseline's decoder layer; with `information_fusion` it also reads the auxiliary decoders' states (AIF)."""

    def __init__(self, config: MultiLevelSupervisionConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, count = config.d_model, len(config.auxiliary_layers)
        # [W^1 ; .. ; W^n] in one matrix: one product computes the sum of (4.2).
        self.fusion = nn.Linear(count * width, width, bias=False) if config.information_fusion else None

    def attend_self(self, hidden_states, mask, cache, extras, **kwargs) -> Tensor:
        """Applies self-attention; with AIF adds z of equation 4.2, made of the `auxiliary_states` among the extras."""
        hidden_states = super().attend_self(hidden_states, mask, cache, extras, **kwargs)
        if self.fusion is None:
            return hidden_states
        return hidden_states + project(self.fusion, extras["auxiliary_states"])  # (4.2), (4.3)


class MainDecoder(Decoder):
    """The baseline's decoder with `FusionDecoderLayer`s."""

    config: MultiLevelSupervisionConfig
    layer_class = FusionDecoderLayer


class AuxiliaryDecoder(Decoder):
    """The baseline's decoder, fed with the main one's embeddings; its cache layers follow those of earlier decoders."""

    def __init__(self, config: MultiLevelSupervisionConfig, index: int):
        super().__init__(config)
        self.embed_tokens = None  # type: ignore[assignment]
        for module in self.layers.modules():
            if isinstance(module, Attention):
                module.layer_idx += (1 + index) * config.decoder_layers


class MultiLevelSupervisionModel(TransformerModel):
    """Encoder, main decoder and auxiliary decoders, without the output projection."""

    config: MultiLevelSupervisionConfig
    encoder_class = MultiLevelEncoder
    decoder_class = MainDecoder
    auxiliary_class = AuxiliaryDecoder

    def __init__(self, config: MultiLevelSupervisionConfig):
        super().__init__(config)
        auxiliaries = range(len(config.auxiliary_layers))
        self.auxiliary_decoders = nn.ModuleList([self.auxiliary_class(config, index) for index in auxiliaries])
        self.post_init()

    def decode(
        self, encoded: EncoderOutput, auxiliary_mask: Sequence[float] | None = None, **inputs: Any
    ) -> MultiLevelModelOutput:
        """Runs the auxiliary decoders if the model is in training or has AIF, then the main decoder.

        Args:
            auxiliary_mask: a factor for the states of each auxiliary in AIF: 0 replaces them by zeros (thesis, section
                4.5.5), 1 keeps them. Also an argument of the whole model's forward and of generate().

        Raises: ValueError if `auxiliary_mask` has another length, or there is no AIF.
        """
        fusion = self.config.information_fusion
        if auxiliary_mask is not None and not fusion:
            raise ValueError("auxiliary_mask: this model has no information_fusion, nothing reads its auxiliaries")
        if not (fusion or (self.training and inputs["cache"] is None)):
            return MultiLevelModelOutput(**super().decode(encoded, **inputs))
        assert encoded.features is not None
        embeds = self.decoder.look_up(inputs["input_ids"], inputs["inputs_embeds"])
        inputs |= {"input_ids": None, "inputs_embeds": embeds}
        use_cache = inputs["use_cache"] if fusion else False
        states, cache = self.run_auxiliaries(encoded.features, **{**inputs, "use_cache": use_cache})
        inputs["cache"] = cache
        if fusion:
            inputs["extras"] = {"auxiliary_states": self.join(states, auxiliary_mask)}
        return MultiLevelModelOutput(**super().decode(encoded, **inputs), auxiliary_states=states)

    def run_auxiliaries(
        self, features: Tensor, cache: Cache | None, **inputs
    ) -> tuple[tuple[Tensor, ...], Cache | None]:
        """Returns the last states of all auxiliary decoders, each over its encoder layer, and the cache or None."""
        # Run these before the main decoder: all decoders read the prefix's length from its first cache layer.
        states = []
        for decoder, layer_states in zip(self.auxiliary_decoders, features.unbind(2)):
            outputs = decoder(encoder_hidden_states=layer_states, cache=cache, **inputs)
            states.append(outputs.last_hidden_state)
            cache = outputs.get(CACHE)
        return tuple(states), cache

    def join(self, states: tuple[Tensor, ...], mask: Sequence[float] | None) -> Tensor:
        """Concatenates the states f^i, each multiplied by its factor in `mask`: (batch, target, n d_model)."""
        if mask is None:
            return torch.cat(states, dim=-1)
        if len(mask) != len(states):
            raise ValueError(
                f"auxiliary_mask has {len(mask)} entries: expected {len(states)}, one for each of "
                f"auxiliary_layers={self.config.auxiliary_layers}"
            )
        return torch.cat([state * float(kept) for state, kept in zip(states, mask)], dim=-1)


class MultiLevelSupervisionForConditionalGeneration(TransformerForConditionalGeneration):
    """The translation model with its main decoder; `auxiliary_translator` makes a model of an auxiliary one.

    With AIF, forward and generate() accept `auxiliary_mask` (see `MultiLevelSupervisionModel.decode`).
    """

    config: MultiLevelSupervisionConfig
    model_class = MultiLevelSupervisionModel
    citation = "ampomah-multilevel"

    def supervise(self, outputs: Any, logits, labels, label_smoothing, items) -> dict[str, Tensor]:
        """Returns the summands of the loss: "translation", and in training "auxiliary_<layer>", equation 4.1."""
        losses = super().supervise(outputs, logits, labels, label_smoothing, items)
        if self.training:
            for layer, states in zip(self.config.auxiliary_layers, outputs.auxiliary_states or ()):
                total = head_cross_entropy(self.lm_head, states, labels, label_smoothing)
                losses[f"auxiliary_{layer}"] = self.config.auxiliary_weight * total / items
        return losses

    def drop_auxiliaries(self) -> TransformerForConditionalGeneration:
        """Makes a model without auxiliaries: of the baseline's class, with the weights of encoder and main decoder.

        Raises: ValueError with AIF, where the main decoder needs the auxiliaries.
        """
        if self.config.information_fusion:
            raise ValueError("information_fusion: the main decoder reads its auxiliaries, they cannot be dropped")
        return self.single_model(self.config.encoder_layers, "model.decoder.")

    def auxiliary_translator(self, layer: int) -> TransformerForConditionalGeneration:
        """Makes a model of the baseline's class of the encoder up to `layer` and its auxiliary decoder (table 4.7).

        Raises: ValueError if there is no auxiliary on that layer.
        """
        if layer not in self.config.auxiliary_layers:
            raise ValueError(f"layer={layer}: there are auxiliary decoders on {self.config.auxiliary_layers}")
        return self.single_model(layer, f"model.auxiliary_decoders.{self.config.auxiliary_layers.index(layer)}.")

    def single_model(self, encoder_layers: int, decoder: str) -> TransformerForConditionalGeneration:
        """Makes a model of the first `encoder_layers` and the decoder whose weights' names begin with `decoder`."""
        config = self.single_config(encoder_layers)
        config._attn_implementation = self.config._attn_implementation
        single = self.single_class(encoder_layers)(config)
        single.to(device=self.device, dtype=self.dtype)  # type: ignore[call-arg]
        single.train(self.training)
        weights = self.state_dict()
        for name, target in single.state_dict().items():
            source = name if name.endswith("embed_tokens.weight") else name.replace("model.decoder.", decoder)
            target.copy_(weights[source])
        single.generation_config = GenerationConfig.from_dict(self.generation_config.to_dict())
        return single

    def single_class(self, encoder_layers: int) -> type[TransformerForConditionalGeneration]:
        """Returns the class of a model of the first `encoder_layers` layers and one decoder: here the baseline's."""
        return TransformerForConditionalGeneration

    def single_config(self, encoder_layers: int, **fields) -> TransformerConfig:
        """Returns the config for `single_class`: this config's values, changed by `fields`."""
        config_class: Any = self.single_class(encoder_layers).config_class
        kept = config_class.__dataclass_fields__.keys() - {"architectures", "model_type", "transformers_version"}
        own = {field: value for field, value in self.config.to_dict().items() if field in kept}
        return config_class(**{**own, **fields, "encoder_layers": encoder_layers})


MultiLevelSupervisionForMaskedLM, MultiLevelSupervisionForCausalLM = encoder_heads(MultiLevelSupervisionModel)
