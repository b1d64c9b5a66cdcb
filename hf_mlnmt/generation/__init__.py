"""Decoding: the translation pipeline, length normalisation, sentence splitting."""

from typing import TYPE_CHECKING, Any

from hf_mlnmt.generation.translating.options import DecodingOptions, LengthPenalty

if TYPE_CHECKING:
    from hf_mlnmt.generation.translating.columns import Translate
    from hf_mlnmt.generation.translating.hypotheses import Hypothesis
    from hf_mlnmt.generation.translating.pipeline import TranslationPipeline

__all__ = ["DecodingOptions", "Hypothesis", "LengthPenalty", "Translate", "TranslationPipeline"]


def __getattr__(name: str) -> Any:
    """Imports the pipeline when it is asked for: the command line takes its options from here without torch."""
    if name in __all__:
        from hf_mlnmt.generation.translating import columns, pipeline

        return getattr(columns if name == "Translate" else pipeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
