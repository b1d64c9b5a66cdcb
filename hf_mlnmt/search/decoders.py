"""The table of decoders for each model, and those of fused models (modeling/fusion.py): states side by side.

A member that is not of this package, any encoder-decoder or causal language model of Transformers, is called as it is
(`ModuleDecoder`): with a row for every beam and Transformers' own cache, whose keys and values move when beams change
places, as in Transformers' loops. Sentences that have ended leave its batch too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from transformers import T5ForConditionalGeneration
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration
from hf_mlnmt.modeling.fusion import FusionForConditionalGeneration
from hf_mlnmt.modeling.language_model import DecoderOnlyForCausalLM
from hf_mlnmt.modeling.releases import CACHE
from hf_mlnmt.modeling.rnn import RNNForConditionalGeneration
from hf_mlnmt.modeling.transformer import TransformerForConditionalGeneration
from hf_mlnmt.search.cpu.step import entry_of_class
from hf_mlnmt.search.decoder import SourceBatch, rows_of_beams, rows_of_sentences
from hf_mlnmt.search.lstm import LSTMDecoder
from hf_mlnmt.search.strategies import log_softmax
from hf_mlnmt.search.t5 import T5Decoder
from hf_mlnmt.search.transformer import LanguageModelDecoder, TransformerDecoder


class ModuleState:
    """The cache, rows (sentences x beams, ...) beam after beam; and of an encoder-decoder what it reads."""

    def __init__(self, cache: Any, source: SourceBatch | None):
        self.cache, self.source, self.width = cache, source, 1

    def expand(self, width: int) -> ModuleState:
        self.width = width
        self.cache.batch_repeat_interleave(width)
        if self.source is not None:
            rows = torch.arange(len(self.source.real), device=self.source.real.device).repeat_interleave(width)
            self.source = self.source.select(rows)
        return self

    def reorder(self, parents: Tensor) -> ModuleState:
        # What is kept of the source is the same for all beams of a sentence.
        cache = getattr(self.cache, "self_attention_cache", self.cache)
        cache.reorder_cache(rows_of_beams(parents))
        return self

    def select(self, sentences: Tensor, source_length: int) -> ModuleState:
        rows = rows_of_sentences(sentences, self.width)
        self.cache.batch_select_indices(rows)
        if self.source is not None:
            self.source = self.source.select(rows)
        return self


class ModuleDecoder:
    """The `Decoder` of a model that this package knows nothing of."""

    normalized = False

    def __init__(self, model: Any, arguments: dict[str, Any]):
        """Takes the model, and `arguments` for the forward of every step."""
        self.model, self.arguments = model, arguments

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """Returns None: every model can be called."""
        return None

    def begin(self, prompt: Tensor, source: SourceBatch) -> tuple[Tensor, ModuleState]:
        config = self.model.config.get_text_config(decoder=True)
        state = ModuleState(DynamicCache(config=config), None)
        if self.model.config.is_encoder_decoder:
            state = ModuleState(EncoderDecoderCache(state.cache, DynamicCache(config=config)), source)
        return self.call(prompt, state)[:, -1:], state

    def step(self, tokens: Tensor, state: ModuleState) -> tuple[Tensor, ModuleState]:
        return self.call(tokens.reshape(-1, 1), state).view(*tokens.shape, -1), state

    def call(self, ids: Tensor, state: ModuleState) -> Tensor:
        """Computes the logits (rows, time, vocabulary), float32, of ids (rows, time)."""
        given: dict[str, Any] = {CACHE: state.cache, "use_cache": True, "return_dict": True}
        if state.source is None:
            given["input_ids"] = ids
        else:
            given |= {"decoder_input_ids": ids, "encoder_outputs": state.source.outputs}
            given["attention_mask"] = state.source.real.long()
        return self.model(**given, **self.arguments).logits.float()


class FusedState(tuple):
    """The members' states."""

    def expand(self, width: int) -> Self:
        return type(self)(state.expand(width) for state in self)

    def reorder(self, parents: Tensor) -> Self:
        return type(self)(state.reorder(parents) for state in self)

    def select(self, sentences: Tensor, source_length: int) -> Self:
        return type(self)(state.select(sentences, source_length) for state in self)


class FusedDecoder:
    """The `Decoder` of `FusionForConditionalGeneration`."""

    def __init__(self, model: Any, arguments: dict[str, Any]):
        """Takes the model, and what generate() gives its loops by keyword, alpha and beta among it."""
        self.model, self.normalized = model, model.logits_are_scores
        alpha = arguments.get("alpha")
        factors = model.factors(alpha, arguments.get("beta"))
        # Of probabilities that are added up: (4.4) is log q / alpha.
        self.scale = float(model.config.alpha if alpha is None else alpha) if self.normalized else 1.0
        # (number, translation models first; factor; decoder) of each member whose factor is not 0.
        self.members = [
            (number, factor, decoder_of_member(member)(member, {}))
            for number, (factor, member) in enumerate(zip(factors, members_of(model)))
            if factor
        ]

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """Names something of a member that cannot be computed, or returns None."""
        reasons = (decoder_of_member(member).why_not(member, {}) for member in members_of(model))
        return next(filter(None, reasons), None)

    def begin(self, prompt: Tensor, source: SourceBatch) -> tuple[Tensor, FusedState]:
        steps = [
            decoder.begin(self.model.start_as(number, prompt), self.source_of(number, source))
            for number, _, decoder in self.members
        ]
        return self.combine(steps)

    def step(self, tokens: Tensor, state: FusedState) -> tuple[Tensor, FusedState]:
        return self.combine([decoder.step(tokens, part) for (_, _, decoder), part in zip(self.members, state)])

    def source_of(self, number: int, source: SourceBatch) -> SourceBatch:
        """Returns what a member reads of the source; a language model reads nothing of it."""
        if number >= len(self.model.translation_models) or not hasattr(source.outputs, "member"):
            return source
        return source._replace(outputs=source.outputs.member(number))

    def combine(self, steps: Sequence[tuple[Tensor, Any]]) -> tuple[Tensor, FusedState]:
        """Computes (4.2) without its log-softmax, or (4.4), of the members' logits (sentences, width, vocabulary), as
        `combine` of the model; on a CPU in the memory of the first. And returns the members' states as one."""
        total: Any = None
        for (_, factor, _), (scores, _) in zip(self.members, steps):
            scores = log_softmax(scores) if self.normalized else scores
            if total is None:
                total = scores if factor == 1.0 else scores.mul_(factor)
            else:
                total.add_(scores, alpha=factor)
        return total, FusedState(state for _, state in steps)


def members_of(model: Any) -> list[Any]:
    """Returns the models that are fused, translation models first."""
    return [*model.translation_models, *model.language_models]


# For these classes and those derived from them; each is made from the model and what generate() gives its loops by
# keyword, and its `why_not` names what of these it cannot compute.
DECODERS: dict[type, Any] = {
    TransformerForConditionalGeneration: TransformerDecoder,
    RNNForConditionalGeneration: LSTMDecoder,
    DecoderOnlyForCausalLM: LanguageModelDecoder,
    FusionForConditionalGeneration: FusedDecoder,
    T5ForConditionalGeneration: T5Decoder,
}


def decoder_of(model: Any) -> Any:
    """Returns the class of the decoder that searches with a model, or None."""
    if isinstance(model, BridgeForConditionalGeneration):
        return LSTMDecoder if model.config.coders == "rnn" else TransformerDecoder
    return entry_of_class(model, DECODERS)


def decoder_of_member(model: Any) -> Any:
    """Returns the class of a member's decoder: its own, or one for models that this package knows nothing of."""
    return decoder_of(model) or ModuleDecoder
