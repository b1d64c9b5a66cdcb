"""Translation: the pipeline, its calls cut into steps for a server, options, detection of languages."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_mlnmt.generation.translating.options import OF_TEXTS, SAMPLERS, DecodingOptions, LengthPenalty, option

if TYPE_CHECKING:
    from hf_mlnmt.generation import detection
    from hf_mlnmt.generation.constraints.linked import Linked
    from hf_mlnmt.generation.translating.columns import Translate
    from hf_mlnmt.generation.translating.languages import has_modules
    from hf_mlnmt.generation.translating.pipeline import (
        Alternative,
        CutText,
        Hypothesis,
        Input,
        TranslationCall,
        TranslationPipeline,
    )
    from hf_mlnmt.generation.translating.segments import check_characters, split_sentences
    from hf_mlnmt.search.rules import Abandoned

__all__ = [
    "OF_TEXTS",
    "SAMPLERS",
    "Abandoned",
    "Alternative",
    "CutText",
    "DecodingOptions",
    "Hypothesis",
    "Input",
    "LengthPenalty",
    "Linked",
    "Translate",
    "TranslationCall",
    "TranslationPipeline",
    "check_characters",
    "detection",
    "has_modules",
    "option",
    "split_sentences",
]
_HOMES = {
    "Abandoned": "search.rules",
    "Linked": "generation.constraints.linked",
    "Translate": "generation.translating.columns",
    "check_characters": "generation.translating.segments",
    "has_modules": "generation.translating.languages",
    "split_sentences": "generation.translating.segments",
}


def __getattr__(name: str) -> Any:
    """Imports a name when it is asked for: the command line takes its options from here without torch."""
    if name == "detection":
        return import_module("hf_mlnmt.generation.detection")
    if name in __all__:
        home = _HOMES.get(name, "generation.translating.pipeline")
        return getattr(import_module(f"hf_mlnmt.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
