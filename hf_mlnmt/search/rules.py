"""Logits processors and stopping criteria, for all loops of a search."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as processors
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.search.decoder import rows_of_sentences

# Processors that treat each row by itself: where a call has no other processors, rows may leave the batch.
NAMES = (
    "MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "TemperatureLogitsWarper", "TopPLogitsWarper",
    "RepetitionPenaltyLogitsProcessor", "TopKLogitsWarper", "TopHLogitsWarper", "MinPLogitsWarper", "PLessLogitsWarper",
    "TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper", "NoRepeatNGramLogitsProcessor",
    "SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor", "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor", "InfNanRemoveLogitsProcessor", "ExponentialDecayLengthPenalty",
    "LogitNormalization", "SuppressTokensLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor",
)  # fmt: skip
ROW_BY_ROW = {getattr(processors, name) for name in NAMES if hasattr(processors, name)}

# Processors of ROW_BY_ROW that read the scores alone, not length or earlier tokens, and do not wait for the device.
NAMES_OF_SCORES = (
    "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper",
    "EpsilonLogitsWarper", "InfNanRemoveLogitsProcessor", "LogitNormalization",
)  # fmt: skip
OF_SCORES = {getattr(processors, name) for name in NAMES_OF_SCORES if hasattr(processors, name)}


class TopNSigma(LogitsProcessor):
    """Allows for sampling only tokens with logits at most n standard deviations below the largest (Tang et al. 2024).

    The deviation is that of all finite logits, so the temperature does not change which tokens are allowed.
    """

    def __init__(self, n: float):
        self.n = n

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns scores (rows, vocabulary), minus infinity for all other tokens."""
        allowed = scores.isfinite()
        count = allowed.sum(-1, keepdim=True)
        mean = scores.masked_fill(~allowed, 0.0).sum(-1, keepdim=True) / count
        squares = (scores - mean).masked_fill(~allowed, 0.0).square().sum(-1, keepdim=True)
        least = scores.amax(-1, keepdim=True) - self.n * (squares / count).sqrt()
        return scores.masked_fill(scores < least, -torch.inf)


ROW_BY_ROW.add(TopNSigma)
OF_SCORES.add(TopNSigma)
OF_LEAST_LENGTHS = (processors.MinLengthLogitsProcessor, processors.MinNewTokensLengthLogitsProcessor)


class Change(NamedTuple):
    """The change that a processor which depends on the length alone makes: it adds `added` to the scores of `tokens`.

    `forced`: the tokens' scores become 0 instead, all others minus infinity. `at`: tells whether the processor acts
    after a sequence of a given length.
    """

    tokens: list[int]
    added: list[float]
    forced: bool
    at: Callable[[int], bool]

    @classmethod
    def of(cls, processor: Any) -> "Change | None":
        """Returns the `Change` that a processor makes; None if this depends on more than the length."""

        def change(tokens: Any, at: Callable[[int], bool], added: float = -math.inf, forced: bool = False) -> Change:
            tokens = tokens.flatten().tolist() if isinstance(tokens, Tensor) else [tokens]
            return cls(tokens, [added] * len(tokens), forced, at)

        kind = type(processor)
        if kind is processors.MinLengthLogitsProcessor:
            return change(processor.eos_token_id, lambda length: length < processor.min_length)
        if kind is processors.MinNewTokensLengthLogitsProcessor:
            least = processor.prompt_length_to_skip + processor.min_new_tokens
            return change(processor.eos_token_id, lambda length: length < least)
        if kind is processors.ForcedBOSTokenLogitsProcessor:
            return change(processor.bos_token_id, lambda length: length == 1, 0.0, True)
        if kind is processors.ForcedEOSTokenLogitsProcessor:
            return change(processor.eos_token_id, lambda length: length == processor.max_length - 1, 0.0, True)
        if kind is processors.SuppressTokensLogitsProcessor:
            return change(processor.suppress_tokens, lambda length: True)
        if kind is processors.SuppressTokensAtBeginLogitsProcessor:
            return change(processor.begin_suppress_tokens, lambda length: length == processor.begin_index)
        if kind in (processors.SequenceBiasLogitsProcessor, processors.NoBadWordsLogitsProcessor):
            words = processor.sequence_bias
            if all(len(word) == 1 for word in words):
                return cls([word[0] for word in words], [float(x) for x in words.values()], False, lambda length: True)
        return None


class Abandoned(Exception):
    """Ends a search whose result nobody waits for any more."""


class BetweenSteps(StoppingCriteria):
    """A stopping criterion that calls `nobody_waits` between steps of generate(); raises Abandoned where it is true.

    The function may call generate() of the same model on the same thread: a server translates newly arrived texts so.
    """

    def __init__(self, nobody_waits: Callable[[], bool]):
        self.nobody_waits = nobody_waits

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Returns False for each row (rows,): this criterion ends none. Raises: Abandoned."""
        if self.nobody_waits():
            raise Abandoned
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


Phrase = Sequence[int]


class Constraints(LogitsProcessor):
    """The phrases that each sentence's hypotheses must contain, passed to generate() as a logits processor.

    Where no hypothesis contains them all within the length limit, the sequence that generate() returns is empty.
    """

    def __init__(self, sentences: Sequence[Sequence[Sequence[Phrase]]]):
        """Stores the constraints of each sentence, each a list of alternative phrases (token ids), none empty."""
        self.sentences = sentences

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Raises UserError: only Transformers' own loops call this processor, and they cannot enforce constraints."""
        raise UserError(
            "terms, or constraints: only this package's beam search knows them. Use a model of this package, or of a "
            "kind that it imports (Marian, M2M100, NLLB, BART, mBART), and nothing that needs Transformers' own loop."
        )


class Rules:
    """The logits processors and stopping criteria of a call.

    A processor with state for each row has a method `keep_rows(rows)`, which is called when rows leave the batch.
    """

    def __init__(self, logits_processor: Any, criteria: Any):
        constraints = [processor for processor in logits_processor if isinstance(processor, Constraints)]
        self.constraints = constraints[0].sentences if constraints else None
        if constraints:
            logits_processor = LogitsProcessorList(part for part in logits_processor if part not in constraints)
        self.processors = logits_processor
        self.followers = [processor for processor in logits_processor if hasattr(processor, "keep_rows")]
        others = [processor for processor in logits_processor if not hasattr(processor, "keep_rows")]
        self.rows_may_leave = all(type(processor) in ROW_BY_ROW for processor in others)
        ends = [criterion.eos_token_id for criterion in criteria if isinstance(criterion, EosTokenCriteria)]
        self.end_tokens = ends[0] if ends else None
        self.ends: list[int] = ends[0].flatten().tolist() if ends else []
        limits = [criterion.max_length for criterion in criteria if isinstance(criterion, MaxLengthCriteria)]
        self.max_length: Any = min(limits, default=None)
        self.callbacks = [criterion for criterion in criteria if isinstance(criterion, BetweenSteps)]
        self.lengths_alone = all(type(processor) in OF_LEAST_LENGTHS for processor in logits_processor)

    @cached_property
    def by_length(self) -> Any:
        """Returns for each processor its `Change`, or itself if its class is in `OF_SCORES`; None if one is neither."""
        parts = [processor if type(processor) in OF_SCORES else Change.of(processor) for processor in self.processors]
        return None if None in parts else parts

    def between_steps(self) -> None:
        """Calls the callbacks of `BetweenSteps`, which may call generate() of this model. Raises: Abandoned."""
        if any(criterion.nobody_waits() for criterion in self.callbacks):
            raise Abandoned

    def candidates(self, width: int) -> int:
        """Returns how many candidates `width` beams need: enough even if each beam's end tokens are among them."""
        return max(2, 1 + len(self.ends)) * width

    def is_longest(self, length: int) -> bool:
        """Tells whether a sequence of this length has reached the length limit."""
        return self.max_length is not None and length >= self.max_length

    def is_last(self, tokens: Tensor, length: int) -> Tensor:
        """Tells which tokens (sentences, any) end a sequence that is `length` long with them."""
        if self.is_longest(length):
            return torch.ones_like(tokens, dtype=torch.bool)
        return self.is_end(tokens)

    def is_end(self, tokens: Tensor) -> Tensor:
        """Tells which tokens are end tokens."""
        if self.end_tokens is None:
            return torch.zeros_like(tokens, dtype=torch.bool)
        ends = self.end_tokens.to(tokens.device)
        return tokens == ends if ends.numel() == 1 else torch.isin(tokens, ends)

    def forbidden(self, length: int) -> list[int]:
        """Returns the tokens that may not follow a sequence of this length, by processors that only set a least
        length."""
        return sorted({token for change in self.by_length or () if change.at(length) for token in change.tokens})

    def process(self, history: Tensor, scores: Tensor) -> Tensor:
        """Applies the processors to scores (sentences, width, vocabulary), in place or not; history: tokens so far."""
        if self.lengths_alone:
            if not (tokens := self.forbidden(history.shape[-1])):
                return scores
            scores = scores.clone() if scores.stride(1) == 0 else scores
            return scores.index_fill_(-1, torch.tensor(tokens, device=scores.device), -torch.inf)
        # A copy, because a processor may keep the scores, and the next step overwrites their memory.
        return self.processors(history.flatten(0, 1), scores.flatten(0, 1).clone()).view(scores.shape)

    def sentences_to_keep(self, open_: Tensor, left: int) -> Tensor | None:
        """Returns the indices of the `left` open sentences (of `open_`) if rows may leave the batch and at least an
        eighth has ended, which is worth a copy of the state; else None."""
        return open_.nonzero()[:, 0] if self.rows_may_leave and left <= 0.875 * len(open_) else None

    def keep(self, sentences: Tensor, width: int) -> None:
        """Tells processors with a state for each row which sentences (indices) stay, `width` rows each."""
        for processor in self.followers:
            processor.keep_rows(rows_of_sentences(sentences, width))
