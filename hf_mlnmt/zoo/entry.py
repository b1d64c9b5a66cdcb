"""What the zoo keeps of a system. Classes are named, not imported: reading an entry needs neither torch nor models."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["translation", "language-model"]
# Of a translation system, the encoder with a projection of its own (encoder-cloze, encoder-lm).
ENCODER_HEADS = {"AutoModelForMaskedLM": "ForMaskedLM", "AutoModelForCausalLM": "ForCausalLM"}
# The Auto class that loads a model of each kind, and what its class is called behind the architecture's prefix.
HEADS: dict[Kind, tuple[str, str]] = {
    "translation": ("AutoModelForSeq2SeqLM", "ForConditionalGeneration"),
    "language-model": ("AutoModelForCausalLM", "ForCausalLM"),
}


@dataclass(frozen=True)
class Architecture:
    """The classes of a file of hf_mlnmt/modeling: <prefix>Config, <prefix>Model, and the one that its kind says:
    <prefix>ForConditionalGeneration, <prefix>ForCausalLM. With `encoder_heads` also <prefix>ForMaskedLM and
    <prefix>ForCausalLM, the encoder alone; the baseline's are in encoder_models.py.

    `beyond`: what they have that the baseline lacks, as a noun. `over_dual_context`: the same with an encoder of the
    dual contextual module, what `<system>+enc-dc` stands for; None where the two cannot be combined.
    """

    model_type: str
    module: str
    prefix: str
    beyond: str = ""
    over_dual_context: Architecture | None = None
    kind: Kind = "translation"
    encoder_heads: bool = False

    @property
    def config_class(self) -> Any:
        """Its config; imports the models."""
        return self._class("Config")

    @property
    def base_class(self) -> Any:
        """The model without output projection, for AutoModel; the whole model, of what has none."""
        try:
            return self._class("Model")
        except AttributeError:
            return self.head_class

    @property
    def head_class(self) -> Any:
        """The model with output projection, for `auto_class`."""
        return self._class(HEADS[self.kind][1])

    @property
    def auto_class(self) -> str:
        """The name of the Auto class that loads the whole model."""
        return HEADS[self.kind][0]

    @property
    def heads(self) -> dict[str, Any]:
        """The models that it has, by the names of their Auto classes, the whole one first; imports them."""
        suffixes = {self.auto_class: HEADS[self.kind][1], **(ENCODER_HEADS if self.encoder_heads else {})}
        return {auto_class: self._class(suffix) for auto_class, suffix in suffixes.items()}

    def classes_of(self, model_class: Any) -> dict[str, Any]:
        """What a folder of a model of that class needs, by the names of the Auto classes; imports the models."""
        name = next(name for name, cls in self.heads.items() if cls.__name__ == model_class.__name__)
        found = {"AutoConfig": self.config_class, name: self.heads[name]}
        return found if name != self.auto_class else {**found, "AutoModel": self.base_class}

    def _class(self, suffix: str) -> Any:
        of_encoder = self.encoder_heads and suffix in ENCODER_HEADS.values() and self.module == "transformer"
        module = "encoder_models" if of_encoder else self.module
        return getattr(importlib.import_module(f"hf_mlnmt.modeling.{module}"), self.prefix + suffix)


@dataclass(frozen=True)
class System:
    """One entry of the zoo. The citation is its class's."""

    name: str
    architecture: Architecture
    fields: Mapping[str, Any]
    """Config fields that make it what it is."""
    title: str
    """What the paper calls it."""
    clause: str
    """What it is."""
    setup_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Config fields that it has in some of this project's setups only, by their names."""
