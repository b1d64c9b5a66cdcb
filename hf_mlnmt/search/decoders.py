"""Which decoder searches with which model (a table of classes, for the derived ones too), and the small decoders.

`BridgeDecoder` takes the decoders of the attention bridge: recurrent ones, or the baseline's. `LanguageModelDecoder`
calls a language model beside translation models as `TransformerDecoder` calls a translation model (transformer.py),
with the same cache and the same masks, and without a source.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration
from hf_mlnmt.modeling.language_model import DecoderOnlyForCausalLM
from hf_mlnmt.modeling.rnn import RNNForConditionalGeneration
from hf_mlnmt.modeling.transformer import TransformerForConditionalGeneration
from hf_mlnmt.search.cache import BEAM_LAYERS, BeamCache
from hf_mlnmt.search.lstm import LSTMDecoder
from hf_mlnmt.search.products import attend
from hf_mlnmt.search.source import Source
from hf_mlnmt.search.steps import entry_of_class
from hf_mlnmt.search.transformer import TransformerDecoder, TransformerState, kinds_of_layers


class BridgeDecoder:
    """`LSTMDecoder` or `TransformerDecoder`, as the model's decoders are."""

    def __new__(cls, model: Any, arguments: dict[str, Any]) -> Any:
        return _kind(model)(model, arguments)

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """What of the model its decoder cannot compute, or None."""
        return _kind(model).why_not(model, arguments)


def _kind(model: Any) -> Any:
    return LSTMDecoder if model.config.coders == "rnn" else TransformerDecoder


class LanguageModelDecoder:
    """`Decoder` of decoder.py for `DecoderOnlyForCausalLM`; a member of a fused model."""

    normalized = False

    def __init__(self, model: Any, arguments: dict[str, Any]):
        """`arguments`: for the forward of every step."""
        self.model, self.kinds = model, kinds_of_layers(model, {})
        self.arguments = dict(arguments)
        if model.device.type == "cpu":
            self.arguments["attention_function"] = attend

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """What of the model this decoder cannot compute, or None."""
        unknown = set(kinds_of_layers(model, {})) - BEAM_LAYERS.keys()
        return f"cache slots of the kind {next(iter(unknown)).__name__}" if unknown else None

    def begin(self, prompt: Tensor, source: Source) -> tuple[Tensor, TransformerState]:
        sentences, length = prompt.shape
        blank = torch.zeros(sentences, 1, 1, dtype=self.model.dtype, device=prompt.device)  # there is no source
        nothing = Source(BaseModelOutput(last_hidden_state=blank), blank[..., 0] == 0)
        state = TransformerState(self.model, BeamCache(self.kinds), nothing, None)
        state.add_prompt(sentences, length)
        return self.call(prompt, state, logits_to_keep=1), state

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        state.add_step(tokens.shape[1])
        positions = torch.full((1, 1), state.length - 1, device=tokens.device)
        return self.call(tokens, state, position_ids=positions), state

    def call(self, tokens: Tensor, state: TransformerState, **inputs: Any) -> Tensor:
        """tokens (sentences, prompt or width) -> logits (sentences, 1 or width, vocabulary), float32."""
        outputs = self.model(
            input_ids=tokens,
            attention_mask=state.history_mask,
            cache=state.cache,
            use_cache=True,
            return_dict=True,
            **inputs,
            **self.arguments,
        )
        return outputs.logits.float()


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
