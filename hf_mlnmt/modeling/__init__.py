"""Architectures. Importing this package registers every one of them with the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .configuration import TransformerConfig
from .transformer import TransformerForConditionalGeneration, TransformerModel

__all__ = ["TransformerConfig", "TransformerForConditionalGeneration", "TransformerModel"]

for _config, _base, _translation in [(TransformerConfig, TransformerModel, TransformerForConditionalGeneration)]:
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _base, exist_ok=True)
    AutoModelForSeq2SeqLM.register(_config, _translation, exist_ok=True)
