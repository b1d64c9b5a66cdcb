"""The config of a fused model: those of its members, and how their probabilities are multiplied (fusion.py)."""

import copy
import math
import os
from pathlib import Path
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from .releases import CACHE_NAMES
from .saving import copy_code

Normalization = Literal["symbol", "sequence"]


def check_scales(alpha: Any, beta: Any, normalization: str = "symbol") -> tuple[float, float]:
    """Both as floats. Raises: ValueError for what is no scale: not a number, not finite, negative."""
    for name, value in (("alpha", alpha), ("beta", beta)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name}={value!r}: must be a number of at least 0")
    if normalization == "sequence" and alpha == 0:
        raise ValueError("alpha=0: sequence-level normalization divides beta by alpha; give alpha above 0")
    return float(alpha), float(beta)


@strict
class FusionConfig(PreTrainedConfig):
    """The members' configs, and how their probabilities are multiplied.

    Args:
        translation_models, language_models: configs of the members, as configs or dictionaries.
        translation_weights, language_weights: w, one for each member; None: 1 / the number of members of that kind.
        alpha, beta: scales of the translation models and of the language models, unless generation_config or a call
            of generate() says otherwise.
        normalization: "symbol", (4.2), or "sequence", (4.4).
        start_token_ids: what each member, translation models first, sees in the place of `decoder_start_token_id`.
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
        """As Transformers'; the members' own code is looked for where the config is."""
        kwargs.setdefault("name_or_path", str(pretrained_model_name_or_path))
        return super().from_pretrained(pretrained_model_name_or_path, **kwargs)

    def members(self) -> list[PreTrainedConfig]:
        """All members' configs, translation models first."""
        return [*(self.translation_models or []), *(self.language_models or [])]

    def to_dict(self) -> dict[str, Any]:
        """As Transformers', the members' configs as dictionaries too."""
        found = super().to_dict()
        for kind in ("translation_models", "language_models"):
            # What differs from the member's defaults, as in a file of its own; that leaves out where it was loaded.
            found[kind] = [member.to_diff_dict() for member in getattr(self, kind)]
        return found

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any):
        """As Transformers'; the code that `auto_map` points to goes along, that of the members too (saving.py)."""
        for config in (self, *self.members()):
            if pointers := getattr(config, "auto_map", None):
                config.auto_map = copy_code(pointers, Path(__file__).parent, Path(save_directory))
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)

    def validate_members(self):
        """At least one translation model, and of every list as many entries as there are members."""
        if self.translation_models is not None and not self.translation_models and self.language_models:
            raise ValueError("translation_models=[]: a fused model needs at least one translation model")
        lists = {"translation_weights": self.translation_models, "language_weights": self.language_models}
        for field, members in lists.items():
            weights = getattr(self, field) or []
            if len(weights) != len(members or []):
                raise ValueError(f"{field}={weights}: must have one number for each of {len(members or [])} members")
            for weight in weights:
                check_scales(weight, 0.0)
        if self.start_token_ids is not None and len(self.start_token_ids) != len(self.members()):
            raise ValueError(f"start_token_ids={self.start_token_ids}: must have one for each member")

    def validate_scales(self):
        """alpha and beta are numbers of at least 0."""
        check_scales(self.alpha, self.beta, self.normalization)


def member_config(fields: Any, origin: str = "") -> PreTrainedConfig:
    """A member's config: itself, or from its dictionary, by Transformers' table or by code that lies in `origin`."""
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
    """Whether this very file was loaded as a repository's own code, which the user then has agreed to run."""
    return __name__.startswith("transformers_modules.")
