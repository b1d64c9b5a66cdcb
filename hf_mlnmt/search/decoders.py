"""Which decoder searches with which model: a table of classes, for the classes derived from them too."""

from __future__ import annotations

from typing import Any

from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration
from hf_mlnmt.modeling.language_model import DecoderOnlyForCausalLM
from hf_mlnmt.modeling.rnn import RNNForConditionalGeneration
from hf_mlnmt.modeling.transformer import TransformerForConditionalGeneration
from hf_mlnmt.search.lstm import LSTMDecoder
from hf_mlnmt.search.steps import entry_of_class
from hf_mlnmt.search.transformer import LanguageModelDecoder, TransformerDecoder

# Each is a `Decoder` (decoder.py), made from the model and what generate() gives its loops by keyword. Its `why_not`
# says what of these it cannot compute.
DECODERS: dict[type, Any] = {
    TransformerForConditionalGeneration: TransformerDecoder,
    RNNForConditionalGeneration: LSTMDecoder,
    DecoderOnlyForCausalLM: LanguageModelDecoder,
}


def decoder_of(model: Any) -> Any:
    """The decoder for the model's class, or None."""
    if isinstance(model, BridgeForConditionalGeneration):
        return LSTMDecoder if model.config.coders == "rnn" else TransformerDecoder
    return entry_of_class(model, DECODERS)
