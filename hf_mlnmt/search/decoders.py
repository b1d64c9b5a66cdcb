"""Which decoder searches with which model: the class of a model, and of those derived from it, in a table."""

from typing import Any

from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration
from hf_mlnmt.modeling.language_model import DecoderOnlyForCausalLM
from hf_mlnmt.modeling.rnn import RNNForConditionalGeneration
from hf_mlnmt.modeling.transformer import TransformerForConditionalGeneration
from hf_mlnmt.search.bridge import BridgeDecoder
from hf_mlnmt.search.language_model import LanguageModelDecoder
from hf_mlnmt.search.lstm import LSTMDecoder
from hf_mlnmt.search.steps import entry_of_class
from hf_mlnmt.search.transformer import TransformerDecoder

# Each is a `Decoder` (decoder.py), made from the model and what generate() gives its loops by keyword. Its `why_not`
# says of the same what it does not know.
DECODERS: dict[type, Any] = {
    TransformerForConditionalGeneration: TransformerDecoder,
    RNNForConditionalGeneration: LSTMDecoder,
    BridgeForConditionalGeneration: BridgeDecoder,
    DecoderOnlyForCausalLM: LanguageModelDecoder,  # as a member of a fused model
}


def decoder_of(model: Any) -> Any:
    """The entry of the model's class, or None."""
    return entry_of_class(model, DECODERS)
