"""The objectives that a recipe can name, and the settings that each of them has there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_mlnmt.data.text import TextSide
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.modeling.encoder_models import EncoderWithProjection
from hf_mlnmt.recipe.building import build
from hf_mlnmt.recipe.fusion_settings import NBestSettings, NoSettings, TrellisSettings, of_fused, refuse_smoothing
from hf_mlnmt.training.fusion_objectives import FusionNBest, FusionSymbol, FusionTrellis
from hf_mlnmt.training.objectives import Objective, Translation
from hf_mlnmt.training.text_objectives import (
    DecoderLanguageModel,
    Distortion,
    DistortionSettings,
    EncoderCloze,
    EncoderLanguageModel,
    PseudoEncoder,
)


@dataclass(frozen=True)
class Ingredients:
    """What an objective is made from, beside its own settings."""

    model: PreTrainedModel
    tokenizers: Tokenizers
    languages: Mapping[str, str]
    label_smoothing: float  # the recipe's
    seed: int = 1  # the task's
    sides: frozenset[TextSide] = frozenset()  # whose vocabulary its texts have, of objectives on text


@dataclass(frozen=True)
class Entry:
    """An objective's class, the dataclass of its settings, and how it is made."""

    kind: type[Objective]
    settings: type
    make: Callable[[Any, Ingredients], Objective]


@dataclass
class TranslationSettings:
    """Settings of `translation`. label_smoothing: None takes the recipe's."""

    label_smoothing: float | None = None

    def __post_init__(self) -> None:
        if self.label_smoothing is not None and not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing must be at least 0 and below 1, not {self.label_smoothing}.")


def _translation(settings: TranslationSettings, given: Ingredients) -> Translation:
    own, config = settings.label_smoothing, given.model.config
    smoothing = given.label_smoothing if own is None else own
    if hasattr(given.model, "factors"):
        refuse_smoothing(smoothing)
    languages = {f"{side}_language": code for side, code in given.languages.items()}
    speaks_many = hasattr(config, "source_languages")
    return Translation(config.pad_token_id, smoothing, languages=languages if speaks_many else {})


@dataclass
class TextSettings(TranslationSettings):
    """label_smoothing: unless told, the recipe's; a development set's perplexity is without it."""


@dataclass
class EncoderSettings(TextSettings):
    """tie: the projection is the source embedding, and not a parameter of its own."""

    tie: bool = False


@dataclass
class PseudoEncoderSettings(DistortionSettings, TextSettings):
    """See text_objectives.py."""

    def __post_init__(self) -> None:
        DistortionSettings.__post_init__(self)
        TextSettings.__post_init__(self)


@dataclass
class ClozeSettings(PseudoEncoderSettings, EncoderSettings):
    """The settings of both."""


def _common(settings: TextSettings, given: Ingredients) -> dict[str, Any]:
    own, config = settings.label_smoothing, given.model.config
    start = getattr(config, "decoder_start_token_id", None)
    return {
        "pad_token_id": config.pad_token_id,
        "start_token_id": config.bos_token_id if start is None else start,
        "label_smoothing": given.label_smoothing if own is None else own,
    }


def _of_side(given: Ingredients, side: TextSide, name: str) -> None:
    """Refuse text of another vocabulary than the part of the model has that it trains."""
    if not given.tokenizers.joint and given.sides - {side}:
        raise UserError(
            f"{name} trains on text of the {side} side, and this text has the other side's vocabulary: give text of "
            f"the {side} language (side: {side}), or use one vocabulary for both (tokenizer.joint)."
        )


def _encoder(settings: EncoderSettings, given: Ingredients) -> dict[str, Any]:
    """With a projection of its own where the model has none."""
    config, head = given.model.config, None
    if isinstance(given.model, EncoderWithProjection):  # its config says whether it is tied
        return _common(settings, given)
    if not settings.tie:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(given.seed)
            head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            nn.init.xavier_uniform_(head.weight)
    return {**_common(settings, given), "head": head, "tie": settings.tie}


def _encoder_lm(settings: EncoderSettings, given: Ingredients) -> EncoderLanguageModel:
    _of_side(given, "source", "encoder-lm")
    return EncoderLanguageModel(**_encoder(settings, given))


def _cloze(settings: ClozeSettings, given: Ingredients) -> EncoderCloze:
    _of_side(given, "source", "encoder-cloze")
    distortion = Distortion.of(settings, given.tokenizers.source, given.seed)
    return EncoderCloze(**_encoder(settings, given), distortion=distortion)


def _decoder_lm(settings: TextSettings, given: Ingredients) -> DecoderLanguageModel:
    _of_side(given, "target", "decoder-lm")
    return DecoderLanguageModel(**_common(settings, given))


def _pseudo_encoder(settings: PseudoEncoderSettings, given: Ingredients) -> PseudoEncoder:
    if not given.tokenizers.joint:
        raise UserError(
            "pseudo-encoder reads target text as a source, so both sides need one vocabulary: set tokenizer.joint to "
            "true, or take a joint tokenizer.path."
        )
    distortion = Distortion.of(settings, given.tokenizers.source, given.seed)
    return PseudoEncoder(**_common(settings, given), distortion=distortion)


OBJECTIVES = {
    "translation": Entry(Translation, TranslationSettings, _translation),
    "encoder-lm": Entry(EncoderLanguageModel, EncoderSettings, _encoder_lm),
    "encoder-cloze": Entry(EncoderCloze, ClozeSettings, _cloze),
    "decoder-lm": Entry(DecoderLanguageModel, TextSettings, _decoder_lm),
    "pseudo-encoder": Entry(PseudoEncoder, PseudoEncoderSettings, _pseudo_encoder),
    "fusion-symbol": Entry(FusionSymbol, NoSettings, of_fused(FusionSymbol)),
    "fusion-n-best": Entry(FusionNBest, NBestSettings, of_fused(FusionNBest)),
    "fusion-trellis": Entry(FusionTrellis, TrellisSettings, of_fused(FusionTrellis)),
}


@dataclass(frozen=True)
class NamedObjective:
    """An objective as a recipe has it: its entry, and its settings."""

    entry: Entry
    settings: Any

    def make(self, given: Ingredients) -> Objective:
        """The objective itself."""
        return self.entry.make(self.settings, given)


def read_objective(value: str | dict[str, Any], file: str, at: tuple[str, ...]) -> NamedObjective:
    """What `objective:` says: a name, or a mapping with `name` and the objective's settings.

    Raises: UserError naming file and field.
    """
    settings = {"name": value} if isinstance(value, str) else dict(value)
    name, where = settings.pop("name", None), f"{file}: {'.'.join(at)}"
    if name not in OBJECTIVES:
        raise UserError(
            f"{where}: there is no objective {name!r}{suggest(str(name), OBJECTIVES)}. Give one of "
            f"{', '.join(OBJECTIVES)}; with settings of its own as {{name: ..., setting: ...}}."
        )
    entry = OBJECTIVES[name]
    try:
        return NamedObjective(entry, build(entry.settings, settings, file, at))
    except UserError as error:
        raise error if str(error).startswith(file) else UserError(f"{where}: {error}") from error
