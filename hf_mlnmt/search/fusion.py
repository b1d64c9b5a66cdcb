"""Several models searched as one (modeling/fusion.py): their states side by side, their scores as one."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from hf_mlnmt.search.decoders import decoder_of
from hf_mlnmt.search.modules import ModuleDecoder
from hf_mlnmt.search.source import Source


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
