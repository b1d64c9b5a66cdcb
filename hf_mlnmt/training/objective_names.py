"""The objectives that a recipe can name, and the settings that each of them has there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.training.objectives import Objective, Translation
from hf_mlnmt.training.reading import build


@dataclass(frozen=True)
class Ingredients:
    """What an objective is made from, beside its own settings."""

    model: PreTrainedModel
    tokenizers: Tokenizers
    languages: Mapping[str, str]
    label_smoothing: float  # the recipe's


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
    own = settings.label_smoothing
    return Translation(given.model.config.pad_token_id, given.label_smoothing if own is None else own)


OBJECTIVES = {"translation": Entry(Translation, TranslationSettings, _translation)}


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
