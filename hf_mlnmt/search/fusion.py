"""Several models searched as one (modeling/fusion.py): their states side by side, their scores as one.

Members that are not of this package, any encoder-decoder and any causal language model of Transformers, are called as
they are (`ModuleDecoder`): a row for every beam, Transformers' own cache, its keys and values moved when beams change
places, as in Transformers' loops. Sentences leave as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from hf_mlnmt.modeling.releases import CACHE
from hf_mlnmt.search.decoders import decoder_of
from hf_mlnmt.search.source import Source


class ModuleState:
    """The cache, rows (sentences x beams, ...) beam after beam; and of an encoder-decoder what it reads."""

    def __init__(self, cache: Any, source: Source | None):
        self.cache, self.source, self.width = cache, source, 1

    def expand(self, width: int) -> ModuleState:
        self.width = width
        self.cache.batch_repeat_interleave(width)
        if self.source is not None:
            rows = torch.arange(len(self.source.real), device=self.source.real.device).repeat_interleave(width)
            self.source = self.source.select(rows)
        return self

    def reorder(self, parents: Tensor) -> ModuleState:
        first = torch.arange(0, parents.numel(), self.width, device=parents.device).unsqueeze(-1)
        # What is kept of the source is the same for all beams of a sentence.
        cache = getattr(self.cache, "self_attention_cache", self.cache)
        cache.reorder_cache((parents + first).flatten())
        return self

    def select(self, sentences: Tensor, source_length: int) -> ModuleState:
        beams = torch.arange(self.width, device=sentences.device)
        rows = (sentences.unsqueeze(-1) * self.width + beams).flatten()
        self.cache.batch_select_indices(rows)
        if self.source is not None:
            self.source = self.source.select(rows)
        return self


class ModuleDecoder:
    """`Decoder` of decoder.py for a model that this package knows nothing of."""

    normalized = False

    def __init__(self, model: Any, arguments: dict[str, Any]):
        """`arguments`: for the forward of every step."""
        self.model, self.arguments = model, arguments

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """None: every model can be called."""
        return None

    def begin(self, prompt: Tensor, source: Source) -> tuple[Tensor, ModuleState]:
        config = self.model.config.get_text_config(decoder=True)
        cache: Any = DynamicCache(config=config)
        if self.model.config.is_encoder_decoder:
            cache = EncoderDecoderCache(cache, DynamicCache(config=config))
            state = ModuleState(cache, source)
        else:
            state = ModuleState(cache, None)
        return self.call(prompt, state)[:, -1:], state

    def step(self, tokens: Tensor, state: ModuleState) -> tuple[Tensor, ModuleState]:
        return self.call(tokens.reshape(-1, 1), state).view(*tokens.shape, -1), state

    def call(self, ids: Tensor, state: ModuleState) -> Tensor:
        """ids (rows, time) -> logits (rows, time, vocabulary), float32."""
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


class Member(NamedTuple):
    """A model whose factor is not 0."""

    number: int  # translation models first
    factor: float
    decoder: Any


class FusedDecoder:
    """`Decoder` of decoder.py for `FusionForConditionalGeneration`."""

    def __init__(self, model: Any, arguments: dict[str, Any]):
        """`arguments`: what generate() gives its loops by keyword, alpha and beta among them."""
        self.model, self.normalized = model, model.logits_are_scores
        alpha = arguments.get("alpha")
        factors = model.factors(alpha, arguments.get("beta"))
        # Of probabilities that are added up: (4.4) is log q / alpha.
        self.scale = float(model.config.alpha if alpha is None else alpha) if self.normalized else 1.0
        models = [*model.translation_models, *model.language_models]
        self.members = [
            Member(number, factor, decoder_of_member(one)(one, {}))
            for number, (factor, one) in enumerate(zip(factors, models))
            if factor
        ]
        self.translation_models = len(model.translation_models)
        if not self.members:
            raise ValueError("all scales and weights are 0: nothing is left of the model")

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """What of a member cannot be computed, or None."""
        reasons = (
            decoder_of_member(one).why_not(one, {}) for one in (*model.translation_models, *model.language_models)
        )
        return next(filter(None, reasons), None)

    def begin(self, prompt: Tensor, source: Source) -> tuple[Tensor, FusedState]:
        scores, states = [], []
        for number, _, decoder in self.members:
            found, state = decoder.begin(self.model.start_as(number, prompt), self.source_of(number, source))
            scores.append(found)
            states.append(state)
        return self.combine(scores), FusedState(states)

    def step(self, tokens: Tensor, state: FusedState) -> tuple[Tensor, FusedState]:
        found = [member.decoder.step(tokens, part) for member, part in zip(self.members, state)]
        return self.combine([scores for scores, _ in found]), FusedState(part for _, part in found)

    def source_of(self, number: int, source: Source) -> Source:
        """What a member reads of the source; a language model nothing."""
        if number >= self.translation_models:
            return source
        outputs = source.outputs
        return source._replace(outputs=outputs.member(number) if hasattr(outputs, "member") else outputs)

    def combine(self, scores: Sequence[Tensor]) -> Tensor:
        """(4.2) without its log-softmax, or (4.4), of the members' logits (sentences, width, vocabulary), as
        `combine` of the model; on a CPU in the memory of the first."""
        total: Tensor | None = None
        for (_, factor, _), one in zip(self.members, scores):
            if self.normalized:
                one = torch.log_softmax(one, -1, out=one if one.device.type == "cpu" else None)
            if total is None:
                total = one if factor == 1.0 else one.mul_(factor)
            else:
                total = total.add_(one, alpha=factor)
        assert total is not None
        return total


def decoder_of_member(model: Any) -> Any:
    """What searches with a member: its own decoder, or one for models that this package knows nothing of."""
    return decoder_of(model) or ModuleDecoder
