"""Fusion: a log-linear model of translation models and language models over one target vocabulary.

Reference: thesis on monolingual data, section 4.1, equations (4.1)-(4.5).

| symbol in the thesis | here | shape |
| --- | --- | --- |
| alpha, beta | alpha, beta: of the config, of generation_config, or of one call | numbers |
| gamma | beta / alpha | number |
| p_TM, p_LM | members: `translation_models`, `language_models`, each with a weight w within its kind | |
| q(e_i; e_0^{i-1}, f) | prod_m p_m^(alpha w_m) prod_n p_n^(beta w_n) | (batch, target, vocabulary) |

| normalization | score of a token that a search sums up | equation |
| --- | --- | --- |
| symbol | log q(e_i) / sum_v q(v) = log_softmax(sum_m alpha w_m z_m + sum_n beta w_n z_n), z: their logits | (4.2) |
| sequence | sum_m w_m log p_m + (beta / alpha) sum_n w_n log p_n: nothing normalises them | (4.4) |

(4.1) loss = - sum_i log q(e_i) / sum_v q(v), with either `normalization`. The sum over all translations of (4.5) cannot
be computed in one forward pass: it is an objective of the training.

Members are any models with one target vocabulary; language models are frozen, and always in evaluation mode. The fused
model has one set of weights, one config with the members' configs, and one cache with the members' caches.
Departs: several members of a kind have weights, by default 1 / their number, so that a scale means the same for one
member and for an ensemble.
"""

import copy
import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .generation import TranslationGenerationMixin
from .loss import cross_entropy, divisor
from .outputs import EncoderOutput, TranslationOutput
from .releases import CACHE, CACHE_NAMES, takes_cache
from .upkeep import asked_for, copy_code

Normalization = Literal["symbol", "sequence"]
SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e4  # sums of scaled log P stay above -1e9, a search's "impossible"


def check_scales(alpha: Any, beta: Any, normalization: str = "symbol") -> tuple[float, float]:
    """Returns alpha and beta as floats. Raises: ValueError where `check_scale` refuses alpha, beta or, for "sequence",
    gamma = beta / alpha, and there for alpha = 0."""
    check_scale("alpha", alpha)
    check_scale("beta", beta)
    if normalization == "sequence":
        if alpha == 0:
            raise ValueError("alpha=0: sequence-level normalization divides beta by alpha; give alpha above 0")
        check_scale(f"beta={beta!r} / alpha={alpha!r}, gamma", beta / alpha)
    return float(alpha), float(beta)


def check_scale(name: str, value: Any) -> None:
    """Raises ValueError unless value is 0 or a number from SMALLEST_SCALE to LARGEST_SCALE."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= LARGEST_SCALE:
        raise ValueError(f"{name}={value!r}: must be a number of at least 0 and at most {LARGEST_SCALE:,.0f}")
    if 0 < value < SMALLEST_SCALE:
        raise ValueError(f"{name}={value!r}: float32 does not hold it; give 0, or at least {SMALLEST_SCALE:g}")


@strict
class FusionConfig(PreTrainedConfig):
    """The config of a fused model: the configs of its members, and how their probabilities are multiplied.

    Args:
        translation_models, language_models: configs of the members, as configs or dictionaries.
        translation_weights, language_weights: w, one for each member; None: 1 / the number of members of that kind.
        alpha, beta: scales of the translation models and of the language models, unless generation_config or a call
            of generate() has others.
        normalization: "symbol", (4.2), or "sequence", (4.4).
        start_token_ids: each member's start token, which replaces `decoder_start_token_id`; translation models first.
        vocab_size, decoder_vocab_size: of the source, and of the target, which all members have in common.
        max_position_embeddings: of the member with the fewest.
    """

    model_type = "mlnmt-fusion"
    keys_to_ignore_at_inference = [*CACHE_NAMES]

    translation_models: list[Any] | None = None
    language_models: list[Any] | None = None
    translation_weights: list[float | int] | None = None
    language_weights: list[float | int] | None = None
    alpha: float | int = 1.0
    beta: float | int = 0.1
    normalization: Normalization = "sequence"
    start_token_ids: list[int] | None = None
    vocab_size: int = 32768
    decoder_vocab_size: int | None = None
    max_position_embeddings: int | None = None
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = None
    decoder_start_token_id: int = 3
    tie_word_embeddings: bool = False
    use_cache: bool = True
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs):
        origin = str(kwargs.get("name_or_path", "") or kwargs.get("_name_or_path", ""))
        for kind in ("translation", "language"):
            members = [member_config(fields, origin) for fields in getattr(self, f"{kind}_models") or []]
            setattr(self, f"{kind}_models", members)
            if getattr(self, f"{kind}_weights") is None:
                setattr(self, f"{kind}_weights", [1.0 / max(len(members), 1)] * len(members))
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        super().__post_init__(**kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kwargs):  # type: ignore[override]
        """Loads the config; code of the members' own config classes is loaded from the same folder or repository."""
        kwargs.setdefault("name_or_path", str(pretrained_model_name_or_path))
        return super().from_pretrained(pretrained_model_name_or_path, **kwargs)

    def members(self) -> list[PreTrainedConfig]:
        """Returns all members' configs, translation models first."""
        return [*(self.translation_models or []), *(self.language_models or [])]

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, with the members' configs as dictionaries."""
        fields = super().to_dict()
        for kind in ("translation_models", "language_models"):
            # Fields that differ from the defaults, as in a config file; the folder that a member came from is not kept.
            fields[kind] = [member.to_diff_dict() for member in getattr(self, kind)]
        return fields

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any):
        """Saves the config, and the code that its `auto_map` and those of the members point to."""
        here = Path(__file__).parent
        for config in (self, *self.members()):
            if pointers := getattr(config, "auto_map", None):
                # Transformers caches only imported code of a repository, not the members': copy that from their origin.
                origin = Path(str(config.name_or_path)) if trusted() and config is not self else here
                config.auto_map = copy_code(pointers, origin if origin.is_dir() else here, Path(save_directory))
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)

    def validate_members(self):
        """Raises ValueError for language models alone, for weights or start tokens that are not one a member, and for a
        weight that `check_scale` refuses."""
        if self.translation_models is not None and not self.translation_models and self.language_models:
            raise ValueError("translation_models=[]: a fused model needs at least one translation model")
        lists = {"translation_weights": self.translation_models, "language_weights": self.language_models}
        for field, members in lists.items():
            weights = getattr(self, field) or []
            if len(weights) != len(members or []):
                raise ValueError(f"{field}={weights}: must have one number for each of {len(members or [])} members")
            for weight in weights:
                check_scale(field, weight)
        if self.start_token_ids is not None and len(self.start_token_ids) != len(self.members()):
            raise ValueError(f"start_token_ids={self.start_token_ids}: must have one for each member")

    def validate_scales(self):
        check_scales(self.alpha, self.beta, self.normalization)


def member_config(fields: Any, origin: str = "") -> PreTrainedConfig:
    """Returns a member's config: `fields` if they are a config, else one made of the dictionary, by Transformers' class
    or the code in `origin`. Raises: ValueError for an unknown model_type without trusted code."""
    if isinstance(fields, PreTrainedConfig):
        return fields
    fields = copy.deepcopy(dict(fields))
    model_type = fields.get("model_type", "")
    if model_type in CONFIG_MAPPING:
        return AutoConfig.for_model(**fields)
    pointer = fields.get("auto_map", {}).get("AutoConfig")
    if pointer is None or not trusted():
        raise ValueError(
            f"a member has model_type='{model_type}', which is unknown here: install or import the package that it "
            "comes from, or load the fused model with trust_remote_code=True if its folder has the code"
        )
    config = get_class_from_dynamic_module(pointer, origin)(**fields)
    config.name_or_path = origin
    return config


def trusted() -> bool:
    """Returns whether this file is code of a Hub repository, which is loaded only with trust_remote_code."""
    return __name__.startswith("transformers_modules.")


def names_of_member(number: int) -> dict[str, str]:
    """Returns the field names of member `number`'s `EncoderOutput`, mapped to their names in `FusedEncoderOutput`."""
    prefix = f"member{number}_" if number else ""
    return {name: prefix + name for name in ("last_hidden_state", "memory", "features")}


@dataclass(init=False)
class FusedEncoderOutput(ModelOutput):
    """The tensors of all members' encoder outputs, each (batch, ...), so that they can be repeated for beams.

    The first member's tensors keep their names, those of member i have a prefix "member<i>_".
    """

    last_hidden_state: Tensor | None = None

    def __init__(self, **tensors: Tensor | None):
        for name, value in tensors.items():
            if value is not None:
                self[name] = value

    def __post_init__(self):
        pass  # ModelOutput.__post_init__ would reject an output without dataclass fields

    def __reduce__(self):
        return partial(FusedEncoderOutput, **self), ()  # ModelOutput.__reduce__ pickles dataclass fields only

    @classmethod
    def of(cls, outputs: Sequence[Any]) -> "FusedEncoderOutput":
        """Joins the encoder outputs of the translation models, which are in the config's order."""
        tensors: dict[str, Tensor | None] = {}
        for number, output in enumerate(outputs):
            tensors |= {stored: getattr(output, name, None) for name, stored in names_of_member(number).items()}
        return cls(**tensors)

    def member(self, number: int) -> EncoderOutput:
        """Returns the `EncoderOutput` of translation model number `number`."""
        names = names_of_member(number)
        return EncoderOutput(**{name: self[stored] for name, stored in names.items() if stored in self})


class FusedEncoder(nn.Module):
    """The encoders of all translation models in one module, made for one call: they are not registered in it."""

    main_input_name = "input_ids"

    def __init__(self, encoders: Sequence[Any]):
        super().__init__()
        self.encoders = tuple(encoders)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs) -> "FusedEncoderOutput":
        """Encodes input_ids and attention_mask (batch, source) by the encoder of every translation model."""
        kwargs["return_dict"] = True
        outputs = [encoder(input_ids=input_ids, attention_mask=attention_mask, **kwargs) for encoder in self.encoders]
        return FusedEncoderOutput.of(outputs)


def _of_members(name: str) -> Any:
    """Makes a method that calls the method `name` of all members that are not empty (one whose scale is 0 is)."""

    def call(self: "FusedCache", *arguments: Any) -> None:
        for member in self.members:
            if member.get_seq_length():
                getattr(member, name)(*arguments)

    return call


class FusedCache(Cache):
    """The cache of a fused model: a list of the members' caches, translation models first."""

    def __init__(self, members: Sequence[Cache]):
        super().__init__(layers=[])
        self.members = list(members)

    def __len__(self) -> int:
        return len(self.members[0])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the greatest length of a member's cache; that of a member with scale 0 stays empty."""
        return max(int(member.get_seq_length(layer_idx)) for member in self.members)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    reorder_cache = _of_members("reorder_cache")
    batch_repeat_interleave = _of_members("batch_repeat_interleave")
    batch_select_indices = _of_members("batch_select_indices")
    crop = _of_members("crop")
    reset = _of_members("reset")

    @property
    def is_linear(self) -> list[bool]:
        # Transformers reads this from 5.24 on. No member is linear: each stores keys and values of every position.
        return [False] * len(self.members)

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return all(getattr(member, "is_croppable", True) for member in self.members)

    def activate_past_recording(self) -> None:
        for member in self.members:
            member.activate_past_recording()


def part_of(encoded: Any, number: int) -> EncoderOutput:
    """Returns the encoder output of translation model `number`: its part of a `FusedEncoderOutput`, or `encoded` itself
    if that is a single encoder's output.

    Raises: ValueError for a single encoder's output where the model has several.
    """
    if hasattr(encoded, "member"):
        return encoded.member(number)
    if number:
        raise ValueError(
            f"encoder_outputs is a {type(encoded).__name__} of one encoder, and this model has several: give what "
            "model.get_encoder()(input_ids, attention_mask) returns"
        )
    return encoded


class FusionForConditionalGeneration(PreTrainedModel, TranslationGenerationMixin):  # type: ignore[misc]
    """The fused model: translation models and language models with the interface of one translation model."""

    config: FusionConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    computes_own_loss = True  # read by objectives: forward takes `smoothing`, `loss_only`, `num_items_in_batch`
    citation = "rosendahl2024chapter4"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = False

    def __init__(self, config: FusionConfig):
        # Read the setting before Transformers fills in its default, which a member may not support.
        asked = getattr(config, "_attn_implementation_internal", None)
        super().__init__(config)
        kinds = {"translation": AutoModelForSeq2SeqLM, "language": AutoModelForCausalLM}
        for kind, auto_class in kinds.items():
            members = getattr(config, f"{kind}_models")
            for number, member in enumerate(members):
                options: dict[str, Any] = {"trust_remote_code": True} if trusted() else {}
                options |= {"attn_implementation": asked} if asked not in (None, "sdpa") else {}
                model = auto_class.from_config(member, dtype=torch.get_default_dtype(), **options)
                self.add_module(f"{kind}_{number}", model)
                members[number] = model.config
        self.post_init()
        self._freeze()

    # Members

    @property
    def translation_models(self) -> list[Any]:
        """Returns the translation models, in the config's order."""
        return [getattr(self, f"translation_{number}") for number in range(len(self.config.translation_models or []))]

    @property
    def language_models(self) -> list[Any]:
        """Returns the language models, in the config's order."""
        return [getattr(self, f"language_{number}") for number in range(len(self.config.language_models or []))]

    def _freeze(self) -> None:
        for model in self.language_models:
            model.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "FusionForConditionalGeneration":
        """Sets the translation models to training or evaluation mode; language models are set to evaluation mode and
        frozen again, as loading by Transformers makes every parameter trainable."""
        super().train(mode)
        self._freeze()
        return self

    def get_input_embeddings(self) -> nn.Module:
        return self.translation_models[0].get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        return self.translation_models[0].get_output_embeddings()

    def set_input_embeddings(self, value: nn.Module):
        raise ValueError("a fused model has the vocabulary of its members: change it there, and fuse them again")

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:  # type: ignore[override]
        raise ValueError("a fused model has the vocabulary of its members: resize it there, and fuse them again")

    def get_encoder(self, modality: str | None = None) -> FusedEncoder:  # type: ignore[override]
        """Returns the encoders of all translation models as one module."""
        return FusedEncoder([model.get_encoder() for model in self.translation_models])

    # Scales

    @property
    def logits_are_scores(self) -> bool:  # type: ignore[override]
        """Returns whether a search sums up the logits of `forward` without a log-softmax: for "sequence", (4.4)."""
        return self.config.normalization == "sequence"

    def factors(self, alpha: float | None = None, beta: float | None = None) -> list[float]:
        """Returns the factor of each member's logits (4.2) or log probabilities (4.4), translation models first.

        Raises: ValueError where `check_scales` does, and where all factors are 0.
        """
        config = self.config
        alpha = config.alpha if alpha is None else alpha
        beta = config.beta if beta is None else beta
        alpha, beta = check_scales(alpha, beta, config.normalization)
        if self.logits_are_scores:
            alpha, beta = 1.0, beta / alpha  # gamma
        translation, language = config.translation_weights or [], config.language_weights or []
        factors = [alpha * weight for weight in translation] + [beta * weight for weight in language]
        if not any(factors):
            raise ValueError("all scales and weights are 0: nothing is left of the model")
        return factors

    def combine(self, logits: Sequence[Tensor | None], factors: Sequence[float]) -> Tensor:
        """Combines the members' logits (..., vocabulary): (4.2) without its log-softmax or, for "sequence", (4.4).

        A member of factor 0 may be None.
        """
        total: Tensor | None = None
        for member, factor in zip(logits, factors):
            if factor and member is not None:
                member = member.to(torch.promote_types(member.dtype, torch.float32))
                member = factor * (member.log_softmax(-1) if self.logits_are_scores else member)
                total = member if total is None else total + member
        assert total is not None
        return total

    # Computation

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | ModelOutput | None = None,
        cache: FusedCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        alpha: float | None = None,
        beta: float | None = None,
        smoothing: float = 0.0,
        loss_only: bool = False,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> TranslationOutput:
        """Scores target tokens: returns combined logits (batch, target, vocabulary) and, with `labels`, the loss (4.1).

        Args:
            labels: (batch, target), ending in </s>, -100 where nothing counts; shifted, they are the decoder's input.
            logits_to_keep: how many last positions to return logits of (0: all).
            alpha, beta: scales for this call; None: the config's.
            smoothing: must be 0: label smoothing is not defined for a product of models.
            num_items_in_batch: target tokens the loss is divided by (None: those of this batch).
        """
        if smoothing:
            raise ValueError(f"smoothing={smoothing}: label smoothing is not defined for a fused model; set it to 0")
        if decoder_input_ids is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        use_cache = self.config.use_cache and labels is None if use_cache is None else use_cache
        if use_cache and cache is None:
            cache = self.make_cache()
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        factors, caches = self.factors(alpha, beta), getattr(cache, "members", None)
        recording = {name: value for name, value in kwargs.items() if name.startswith("output_") and value}
        outputs: list[Any] = []
        for number, (factor, model) in enumerate(zip(factors, [*self.translation_models, *self.language_models])):
            if not factor:
                outputs.append(None)
                continue
            given = self.inputs_of(number, attention_mask, decoder_input_ids, decoder_attention_mask, encoder_outputs)
            given |= {CACHE: caches[number] if caches else None, "use_cache": use_cache}
            given |= {"return_dict": True, **(recording if number == 0 else {})}
            if logits_to_keep and "logits_to_keep" in inspect.signature(model.forward).parameters:
                given["logits_to_keep"] = logits_to_keep
            outputs.append(model(**given))
        logits = self.combine([x if x is None else x.logits[:, -logits_to_keep:] for x in outputs], factors)
        first = outputs[0]
        return TranslationOutput(
            loss=self.loss_of(logits, labels, num_items_in_batch, alpha) if labels is not None else None,
            logits=None if loss_only else logits,
            **{CACHE: cache},  # type: ignore[arg-type]  # a cache of caches
            decoder_hidden_states=getattr(first, "decoder_hidden_states", None),
            decoder_attentions=getattr(first, "decoder_attentions", None),
            cross_attentions=getattr(first, "cross_attentions", None),
            encoder_last_hidden_state=encoder_outputs[0],
        )

    def inputs_of(self, number: int, source_mask: Any, ids: Tensor, mask: Any, encoded: Any) -> dict[str, Any]:
        """Returns the arguments of a member's forward: target `ids` and `mask` (batch, time), for a translation model
        also the encoded source and its mask."""
        ids = self.start_as(number, ids)
        if number >= len(self.translation_models):
            return {"input_ids": ids, "attention_mask": mask}
        masks = {"attention_mask": source_mask} | ({} if mask is None else {"decoder_attention_mask": mask})
        return {"decoder_input_ids": ids, "encoder_outputs": part_of(encoded, number), **masks}

    def loss_of(self, logits: Tensor, labels: Tensor, items: int | Tensor | None, alpha: float | None) -> Tensor:
        """Computes the loss (4.1) from the logits of `combine`: the sum over target tokens divided by their number."""
        if self.logits_are_scores:  # log q is alpha times (4.4)
            logits = (self.config.alpha if alpha is None else alpha) * logits
        return cross_entropy(logits, labels) / divisor(labels, items)

    def start_as(self, number: int, ids: Tensor) -> Tensor:
        """Returns ids (batch, time) with the fused model's start token replaced by the member's own."""
        starts = self.config.start_token_ids
        if starts is None or starts[number] == self.config.decoder_start_token_id:
            return ids
        first = ids[:, :1]
        first = torch.where(first == self.config.decoder_start_token_id, starts[number], first)
        return torch.cat([first, ids[:, 1:]], dim=1)

    # generate()

    def make_cache(self) -> FusedCache:
        """Returns a `FusedCache` with an empty cache for every member."""
        configs = [member.get_text_config(decoder=True) for member in self.config.members()]
        count = len(self.translation_models)
        translation = [EncoderDecoderCache(DynamicCache(config=c), DynamicCache(config=c)) for c in configs[:count]]
        return FusedCache([*translation, *(DynamicCache(config=c) for c in configs[count:])])

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        if model_kwargs.get(CACHE) is not None or generation_config.use_cache is False:
            return
        if generation_config.cache_implementation not in (None, "dynamic"):
            raise ValueError(f"cache_implementation={generation_config.cache_implementation!r}: only 'dynamic' here")
        model_kwargs[CACHE] = self.make_cache()

    def _prepare_generation_config(self, generation_config, *args, **kwargs):
        configs = generation_config, self.generation_config, self.config
        scales = {name: asked_for(name, kwargs, *configs) for name in ("alpha", "beta")}
        check_scales(**scales, normalization=self.config.normalization)
        prepared, model_kwargs = super()._prepare_generation_config(generation_config, *args, **kwargs)
        for name, value in scales.items():
            setattr(prepared, name, value)
        return prepared, {**model_kwargs, **scales}


def check_vocabulary(model: Any, expected: int | None) -> int:
    """Returns the size of a member's target vocabulary. Raises: ValueError unless it is `expected` (None: any)."""
    head = model.get_output_embeddings()
    size = model.config.get_text_config(decoder=True).vocab_size if head is None else head.weight.shape[0]
    if expected is not None and size != expected:
        raise ValueError(
            f"{type(model).__name__} predicts {size} tokens, the translation model {expected}: members of a fused "
            "model have one target vocabulary"
        )
    return size


def start_token(config: Any, fused: Any) -> int:
    """Returns a member's start token: the config's, if the target vocabulary has it, else the fused model's."""
    own = getattr(config, "decoder_start_token_id", None) if config.is_encoder_decoder else None
    own = getattr(config, "bos_token_id", None) if own is None else own
    known = isinstance(own, int) and 0 <= own < (fused.decoder_vocab_size or fused.vocab_size)
    return own if own is not None and known else fused.decoder_start_token_id
