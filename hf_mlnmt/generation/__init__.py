"""Decoding: the translation pipeline, length normalisation, sentence splitting."""

from hf_mlnmt.generation.options import DecodingOptions, LengthPenalty
from hf_mlnmt.generation.pipeline import Hypothesis, TranslationPipeline

__all__ = ["DecodingOptions", "Hypothesis", "LengthPenalty", "TranslationPipeline"]
