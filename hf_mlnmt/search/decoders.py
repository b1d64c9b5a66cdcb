"""The table of decoders for each model class, and the decoder of fused models (modeling/fusion.py).

A fused model's member that is not of this package, any encoder-decoder or causal language model of Transformers, is
called through its forward (`ModuleDecoder`): with a row for every beam and Transformers' own cache, whose keys and
values are copied when beams are reordered, as in Transformers' loops. Sentences that have ended leave its batch too.
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
    """The state of a `ModuleDecoder`: Transformers' cache with a row for every beam, and the encoded source if any."""

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
        # The source's keys and values are the same for all beams of a sentence: they need no reordering.
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
    """The `Decoder` of a model from outside this package: calls the model's forward in each step."""

    normalized = False

    def __init__(self, model: Any, arguments: dict[str, Any]):
        """Stores the model, and `arguments`, which every call of its forward gets."""
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
    """The states of a fused model's members; `expand`, `reorder` and `select` are applied to each."""

    def expand(self, width: int) -> Self:
        return type(self)(state.expand(width) for state in self)

    def reorder(self, parents: Tensor) -> Self:
        return type(self)(state.reorder(parents) for state in self)

    def select(self, sentences: Tensor, source_length: int) -> Self:
        return type(self)(state.select(sentences, source_length) for state in self)


class FusedDecoder:
    """The `Decoder` of `FusionForConditionalGeneration`."""

    def __init__(self, model: Any, arguments: dict[str, Any]):
        """Makes the members' decoders; `arguments`: generate()'s keyword arguments, with alpha and beta or not."""
        self.model, self.normalized = model, model.logits_are_scores
        alpha = arguments.get("alpha")
        factors = model.factors(alpha, arguments.get("beta"))
        # The factor by which recombination turns scores into log-probabilities: (4.4) is log q / alpha.
        self.scale = float(model.config.alpha if alpha is None else alpha) if self.normalized else 1.0
        # Of each member whose factor is not 0: its number (translation models first), factor and decoder.
        self.members = [
            (number, factor, decoder_of_member(member)(member, {}))
            for number, (factor, member) in enumerate(zip(factors, members_of(model)))
            if factor
        ]

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """Names a property of a member that the member's decoder does not support, or returns None."""
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
        """Returns the source with the own encoder output of member `number`; unchanged for a language model, and where
        there is only one encoder's output."""
        if number >= len(self.model.translation_models) or not hasattr(source.outputs, "member"):
            return source
        return source._replace(outputs=source.outputs.member(number))

    def combine(self, steps: Sequence[tuple[Tensor, Any]]) -> tuple[Tensor, FusedState]:
        """Combines the members' logits (sentences, width, vocabulary) by (4.2) without its log-softmax or by (4.4), as
        the model's `combine`, but overwrites the first; returns the combined scores and the members' states."""
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


# Class of models, with its subclasses -> decoder class. A decoder is made from a model and the keyword arguments of
# generate()'s loops; its `why_not` names a property of the model or an argument that it does not support.
DECODERS: dict[type, Any] = {
    TransformerForConditionalGeneration: TransformerDecoder,
    RNNForConditionalGeneration: LSTMDecoder,
    DecoderOnlyForCausalLM: LanguageModelDecoder,
    FusionForConditionalGeneration: FusedDecoder,
    T5ForConditionalGeneration: T5Decoder,
}


def decoder_of(model: Any) -> Any:
    """Returns the decoder class for a model of this package, or None for any other model."""
    if isinstance(model, BridgeForConditionalGeneration):
        return LSTMDecoder if model.config.coders == "rnn" else TransformerDecoder
    return entry_of_class(model, DECODERS)


def decoder_of_member(model: Any) -> Any:
    """Returns the decoder class for a member of a fused model: `ModuleDecoder` for models from outside this package."""
    return decoder_of(model) or ModuleDecoder
