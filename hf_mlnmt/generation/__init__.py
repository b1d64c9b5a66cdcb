"""Translation of texts: the pipeline, the steps of a call that a server runs, decoding options, language detection."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_mlnmt.generation.translating.options import OF_TEXTS, SAMPLERS, DecodingOptions, LengthPenalty, of_texts, option

if TYPE_CHECKING:
    from hf_mlnmt.data.directions import has_modules
    from hf_mlnmt.generation.constraints.linked import Linked
    from hf_mlnmt.generation.translating import detection
    from hf_mlnmt.generation.translating.call import TranslationCall
    from hf_mlnmt.generation.translating.hypotheses import Alternative, Hypothesis, Quality, quality_of
    from hf_mlnmt.generation.translating.pipeline import Translate, TranslationPipeline
    from hf_mlnmt.generation.translating.segments import CutText, EncodedPiece, check_characters, split_sentences
    from hf_mlnmt.memory.index import TranslationMemory
    from hf_mlnmt.search.rules import Abandoned

__all__ = [
    "OF_TEXTS",
    "SAMPLERS",
    "Abandoned",
    "Alternative",
    "CutText",
    "DecodingOptions",
    "EncodedPiece",
    "Hypothesis",
    "LengthPenalty",
    "Linked",
    "Quality",
    "Translate",
    "TranslationCall",
    "TranslationMemory",
    "TranslationPipeline",
    "check_characters",
    "detection",
    "has_modules",
    "of_texts",
    "option",
    "quality_of",
    "split_sentences",
]
_HOMES = {
    "data.directions": ("has_modules",),
    "memory.index": ("TranslationMemory",),
    "search.rules": ("Abandoned",),
    "generation.constraints.linked": ("Linked",),
    "generation.translating.call": ("TranslationCall",),
    "generation.translating.hypotheses": ("Alternative", "Hypothesis", "Quality", "quality_of"),
    "generation.translating.pipeline": ("Translate", "TranslationPipeline"),
    "generation.translating.segments": ("CutText", "EncodedPiece", "check_characters", "split_sentences"),
}


def __getattr__(name: str) -> Any:
    """Imports a name of `_HOMES` on its first use, so that the command line can read the options without torch."""
    if name == "detection":
        return import_module("hf_mlnmt.generation.translating.detection")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"hf_mlnmt.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
