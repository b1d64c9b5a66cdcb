"""What a recipe can say of the objectives of fused models (fusion_objectives.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hf_mlnmt.errors import UserError
from hf_mlnmt.training.objectives import Objective


def refuse_smoothing(smoothing: float) -> None:
    """UserError unless it is 0."""
    if smoothing:
        raise UserError(f"label_smoothing is {smoothing}: it is not defined for a fused model; set label_smoothing: 0.")


@dataclass
class NoSettings:
    """An objective without settings of its own."""


@dataclass
class NBestSettings:
    """Settings of `fusion-n-best`, see `FusionNBest`."""

    n: int = 12
    found_by: Literal["q", "translation"] = "q"
    length_penalty: float = 0.0
    max_length: int | None = None
    reuse: int = 1
    dev_sentences: int = 200

    def __post_init__(self) -> None:
        _check_counts(self, ("n", "max_length", "reuse"))
        _check_dev_sentences(self.dev_sentences)


@dataclass
class TrellisSettings:
    """Settings of `fusion-trellis`, see `FusionTrellis`."""

    beams: int = 12
    k: int = 1
    max_length: int | None = None
    tolerance: float = 1e-6
    dev_sentences: int = 200

    def __post_init__(self) -> None:
        _check_counts(self, ("beams", "max_length"))
        _check_dev_sentences(self.dev_sentences)
        if self.k < 0:
            raise UserError(f"k must be at least 0, not {self.k}.")
        if not 0 <= self.tolerance < 1:
            raise UserError(f"tolerance must be at least 0 and below 1, not {self.tolerance}.")


def _check_dev_sentences(count: int) -> None:
    if count < 0:
        raise UserError(f"dev_sentences must be at least 0, which measures none, not {count}.")


def _check_counts(settings: Any, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, not {value}.")


def of_fused(kind: type[Objective]) -> Callable[[Any, Any], Objective]:
    """How an objective of fused models is made."""

    def make(settings: Any, given: Any) -> Objective:
        refuse_smoothing(given.label_smoothing)
        return kind(pad_token_id=given.model.config.pad_token_id, **vars(settings))  # type: ignore[call-arg]

    return make
