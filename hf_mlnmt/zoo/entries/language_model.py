"""The language model of the thesis on monolingual data, chapter 4."""

from hf_mlnmt.zoo.entry import Architecture, System

LANGUAGE_MODEL = Architecture("mlnmt-lm", "language_model", "DecoderOnly", kind="language-model")

SYSTEMS = (System("lm", LANGUAGE_MODEL, {}, "The language model", "the baseline's decoder alone"),)
