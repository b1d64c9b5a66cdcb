"""Decoding: the translation pipeline, length normalisation, sentence splitting."""

from hf_mlnmt.generation.normalization import LengthPenalty
from hf_mlnmt.generation.options import DecodingOptions
from hf_mlnmt.generation.pipeline import Hypothesis, TranslationPipeline

__all__ = ["DecodingOptions", "Hypothesis", "LengthPenalty", "TranslationPipeline"]
