"""Makes the objectives that a recipe names (OBJECTIVES in recipe/schema.py, with their settings)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_mlnmt.data.text import TextSide
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.modeling.encoder_models import EncoderWithProjection
from hf_mlnmt.recipe.schema import (
    ClozeSettings,
    EncoderSettings,
    NamedObjective,
    ObjectiveSettings,
    PseudoEncoderSettings,
    SmoothedSettings,
)
from hf_mlnmt.training.fusion_objectives import FusionNBest, FusionSymbol, FusionTrellis
from hf_mlnmt.training.objectives import (
    DecoderLanguageModel,
    Distortion,
    EncoderCloze,
    EncoderLanguageModel,
    Objective,
    PseudoEncoder,
    Translation,
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


def make_objective(objective: NamedObjective, given: Ingredients) -> Objective:
    """The objective itself. Raises: UserError where it does not go with the model or the tokenizers."""
    return MAKERS[objective.name][1](objective.settings, given)


def class_of(objective: NamedObjective) -> type[Objective]:
    """The class of an objective before it is made."""
    return MAKERS[objective.name][0]


def _smoothing(settings: SmoothedSettings, given: Ingredients) -> float:
    return given.label_smoothing if settings.label_smoothing is None else settings.label_smoothing


def _refuse_smoothing(smoothing: float) -> None:
    if smoothing:
        raise UserError(f"label_smoothing is {smoothing}: it is not defined for a fused model; set label_smoothing: 0.")


def _translation(settings: SmoothedSettings, given: Ingredients) -> Translation:
    config, smoothing = given.model.config, _smoothing(settings, given)
    if hasattr(given.model, "factors"):
        _refuse_smoothing(smoothing)
    languages = {f"{side}_language": code for side, code in given.languages.items()}
    speaks_many = hasattr(config, "source_languages")
    return Translation(config.pad_token_id, smoothing, languages=languages if speaks_many else {})


def _of_fused(kind: type[Objective]) -> Callable[[ObjectiveSettings, Ingredients], Objective]:
    """How an objective of fused models is made."""

    def make(settings: ObjectiveSettings, given: Ingredients) -> Objective:
        _refuse_smoothing(given.label_smoothing)
        return kind(pad_token_id=given.model.config.pad_token_id, **vars(settings))  # type: ignore[call-arg]

    return make


def _common(settings: SmoothedSettings, given: Ingredients) -> dict[str, Any]:
    config = given.model.config
    start = getattr(config, "decoder_start_token_id", None)
    return {
        "pad_token_id": config.pad_token_id,
        "start_token_id": config.bos_token_id if start is None else start,
        "label_smoothing": _smoothing(settings, given),
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


def _decoder_lm(settings: SmoothedSettings, given: Ingredients) -> DecoderLanguageModel:
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


MAKERS: dict[str, tuple[type[Objective], Callable[[Any, Ingredients], Objective]]] = {
    "translation": (Translation, _translation),
    "encoder-lm": (EncoderLanguageModel, _encoder_lm),
    "encoder-cloze": (EncoderCloze, _cloze),
    "decoder-lm": (DecoderLanguageModel, _decoder_lm),
    "pseudo-encoder": (PseudoEncoder, _pseudo_encoder),
    "fusion-symbol": (FusionSymbol, _of_fused(FusionSymbol)),
    "fusion-n-best": (FusionNBest, _of_fused(FusionNBest)),
    "fusion-trellis": (FusionTrellis, _of_fused(FusionTrellis)),
}
