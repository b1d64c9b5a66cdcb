"""generate() made fast: greedy search, sampling and beam search for the models of this package.

`FastSearch` overrides the two loops that generate() calls, `_sample` and `_beam_search`; preparation, arguments,
processors and results stay Transformers'. What is asked in a way that these loops do not know goes to Transformers' own
loop, which is also the reference that the tests compare with; a debug line of this file's logger says why.

What makes it fast:
- the beams of a sentence are neighbouring positions of one sequence (beam_cache.py): no copies of the source's keys and
  values, and none of the caches when beams change places;
- sentences that have ended leave the batch, with their keys, values and padding;
- one pass over the vocabulary: log-softmax, then the maxima of blocks, then the few best blocks;
- tokens and parents are kept, not sequences; the sequences are read off at the end.

Equations and rules are those of `GenerationMixin._beam_search`: 2 (or 1 + the number of end tokens) times the beams are
looked at, those that end among the first `num_beams` go to the finished ones, scored by log P / length^penalty.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.generation import GenerateEncoderDecoderOutput
from transformers.generation import logits_process as processors
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.utils import logging

from .beam_cache import of_parents
from .search_batch import HANDLED, Sentences
from .search_native import choose
from .search_results import NEVER, Finished

# A class that has FastSearch as a base has GenerationMixin as the next one: Transformers looks for it there.
_Loops: Any = GenerationMixin if TYPE_CHECKING else object

logger = logging.get_logger(__name__)

BLOCK = 64  # of the vocabulary, when the best tokens are looked for

# Processors that look at one row at a time: with these alone, rows may leave the batch.
ROW_BY_ROW = {
    getattr(processors, name)
    for name in (
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "TemperatureLogitsWarper",
        "RepetitionPenaltyLogitsProcessor",
        "TopPLogitsWarper",
        "TopKLogitsWarper",
        "TopHLogitsWarper",
        "MinPLogitsWarper",
        "PLessLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "NoRepeatNGramLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "ExponentialDecayLengthPenalty",
        "LogitNormalization",
        "SuppressTokensLogitsProcessor",
        "SuppressTokensAtBeginLogitsProcessor",
    )
    if hasattr(processors, name)
}


class FastSearch(_Loops):
    """The two loops; and Transformers' own, made right for vocabularies of two sizes.

    A model's decoder must take beams as positions: masks and positions from outside, and recurrent state, if any, from
    the cache (`decoder_attention_mask` with four dimensions, `decoder_position_ids`).
    """

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        reason = why_not(self, stopping_criteria, generation_config, kwargs)
        if reason:
            logger.debug("generate(): Transformers' own loop, because of %s", reason)
            return super()._sample(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)
        return sample(self, input_ids, logits_processor, stopping_criteria, generation_config, kwargs)

    def _beam_search(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        reason = why_not(self, stopping_criteria, generation_config, kwargs)
        if generation_config.do_sample:
            reason = "do_sample with several beams"
        if reason:
            logger.debug("generate(): Transformers' own loop, because of %s", reason)
            with vocabulary_of_outputs(self.config):
                return super()._beam_search(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)
        return beam_search(self, input_ids, logits_processor, stopping_criteria, generation_config, kwargs)

    def compute_transition_scores(self, *args, **kwargs):
        """As GenerationMixin's, also where source and target have vocabularies of their own."""
        with vocabulary_of_outputs(self.config):
            return super().compute_transition_scores(*args, **kwargs)


@contextmanager
def vocabulary_of_outputs(config: Any) -> Iterator[None]:
    """The decoder's vocabulary size as `config.vocab_size`, where Transformers looks for the number of logits: in
    compute_transition_scores, and in 5.17's beam search. Ours is the source's size, as Marian's."""
    before, config.vocab_size = config.vocab_size, config.decoder_vocab_size
    try:
        yield
    finally:
        config.vocab_size = before


def why_not(model: Any, criteria: Any, config: Any, kwargs: dict[str, Any]) -> str | None:
    """What the loops below do not know, or None."""
    if config.return_dict_in_generate:
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
            if getattr(config, name):
                return name
    for criterion in criteria:
        if type(criterion) not in (MaxLengthCriteria, EosTokenCriteria):
            return type(criterion).__name__
    if kwargs.get("streamer") is not None or kwargs.get("synced_gpus"):
        return "a streamer" if kwargs.get("streamer") is not None else "synced_gpus"
    if not kwargs.get("use_cache") or config.cache_implementation not in (None, "dynamic"):
        return "the cache that was asked for"
    cache = kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        return "a cache that was given"
    if config.is_assistant or config.low_memory or config.prefill_chunk_size is not None:
        return "is_assistant, low_memory or prefill_chunk_size"
    if model.config._attn_implementation not in ("sdpa", "eager"):
        return f"attn_implementation={model.config._attn_implementation}"
    if others := [name for name, value in kwargs.items() if isinstance(value, Tensor) and name not in HANDLED]:
        return f"the argument {others[0]}"
    return None


class Rules:
    """What processors and stopping criteria say, for both loops."""

    def __init__(self, logits_processor: Any, criteria: Any):
        self.processors = logits_processor
        self.may_leave = all(type(processor) in ROW_BY_ROW for processor in logits_processor)
        self.ends = next((c.eos_token_id for c in criteria if isinstance(c, EosTokenCriteria)), None)
        limits = [c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)]
        self.max_length = min(limits) if limits else None

    def over(self, tokens: Tensor, length: int) -> Tensor:
        """Which tokens end their sequence, which is then `length` long."""
        if self.max_length is not None and length >= self.max_length:
            return torch.ones_like(tokens, dtype=torch.bool)
        if self.ends is None:
            return torch.zeros_like(tokens, dtype=torch.bool)
        ends = self.ends.to(tokens.device)
        return tokens == ends if ends.numel() == 1 else torch.isin(tokens, ends)

    def process(self, history: Tensor, scores: Tensor) -> Tensor:
        """history (sentences, width, length), scores (sentences, width, vocabulary)."""
        if not self.processors:
            return scores
        # A copy, because a processor may keep what it sees, and the next step writes into the same memory.
        return self.processors(history.flatten(0, 1), scores.flatten(0, 1).clone()).view(scores.shape)

    def leave(self, done: Tensor, left: int) -> Tensor | None:
        """The rows to keep when enough sentences are done to be worth a copy of the others' caches; else None."""
        return (~done).nonzero()[:, 0] if self.may_leave and left <= 0.75 * len(done) else None


def sample(model, input_ids: Tensor, logits_processor, criteria, config, kwargs: dict[str, Any]):
    """Greedy search, or sampling: `GenerationMixin._sample`, the same draws for the same seed included."""
    rules = Rules(logits_processor, criteria)
    rows, width = len(input_ids), max(1, config.num_return_sequences)
    sentences = Sentences(model, width, rows, kwargs)
    prompt = input_ids[::width]
    logits = sentences.begin(prompt).expand(-1, width, -1)
    history = input_ids.view(-1, width, prompt.shape[1])
    done = torch.zeros(history.shape[:2], dtype=torch.bool, device=prompt.device)
    pad = 0 if config._pad_token_tensor is None else config._pad_token_tensor.to(prompt.device)
    columns, length = [input_ids], prompt.shape[1]
    while True:
        scores = rules.process(history, logits)
        tokens = draw(scores, sentences.ids, rows // width) if config.do_sample else best_token(scores)
        tokens = torch.where(done, pad, tokens) if rules.ends is not None else tokens
        columns.append(sentences.spread(tokens, pad).view(rows, 1))
        length += 1
        done = done | rules.over(tokens, length)
        ended = done.squeeze(1) if width == 1 else done.all(dim=1)
        left = len(ended) - int(ended.sum())
        if not left:
            break
        if rules.processors:
            history = torch.cat([history, tokens.unsqueeze(-1)], dim=-1)
        if (kept := rules.leave(ended, left)) is not None:
            sentences.keep(kept)
            tokens, done, history = tokens[kept], done[kept], history[kept]
        logits = sentences.step(tokens, None)
    sequences = torch.cat(columns, dim=1)
    if not config.return_dict_in_generate:
        return sequences
    return GenerateEncoderDecoderOutput(sequences=sequences)  # type: ignore[arg-type]


def draw(scores: Tensor, ids: Tensor, sentences: int) -> Tensor:
    """One token a row from softmax(scores), (sentences here, width, vocabulary).

    As torch.multinomial does it, argmax p / q with q from an exponential distribution, drawn for every sentence of the
    batch, those that have left included: so the same seed gives Transformers' own draws.
    """
    noise = scores.new_empty(sentences * scores.shape[1], scores.shape[2]).exponential_(1)
    noise = noise.view(sentences, *scores.shape[1:])[ids]
    return (scores.softmax(dim=-1) / noise).argmax(dim=-1)


def beam_search(model, input_ids: Tensor, logits_processor, criteria, config, kwargs: dict[str, Any]):
    """`GenerationMixin._beam_search`: same candidates, same scores, same rules for stopping."""
    rules = Rules(logits_processor, criteria)
    beams, rows = config.num_beams, len(input_ids)
    sentences = Sentences(model, beams, rows, kwargs)
    prompt = input_ids[::beams]
    looked_at = max(2, 1 + (0 if rules.ends is None else rules.ends.numel())) * beams
    running = prompt.new_full((len(prompt), beams), NEVER, dtype=torch.float32)
    running[:, 0] = 0.0  # the beams are one at first
    finished = Finished(prompt, config)
    history = input_ids.view(-1, beams, prompt.shape[1])
    logits = sentences.begin(prompt)
    length = prompt.shape[1]
    while True:
        length += 1
        scores, parents, tokens = continuations(rules, history, logits, running, looked_at)
        over = rules.over(tokens, length)
        running, chosen = (scores + over * NEVER).topk(beams)
        finished.add(sentences.ids, scores, tokens, parents, over, length)
        tokens, parents = tokens.gather(1, chosen), parents.gather(1, chosen)
        finished.step(sentences.ids, tokens, parents)
        ended = finished.ended(sentences.ids, running, length)
        left = len(ended) - int(ended.sum())
        if not left or over.all():
            break
        if rules.processors:
            history = torch.cat([of_parents(history, parents), tokens.unsqueeze(-1)], dim=-1)
        if (kept := rules.leave(ended, left)) is not None:
            sentences.keep(kept)
            tokens, parents, running, history = tokens[kept], parents[kept], running[kept], history[kept]
        logits = sentences.step(tokens, parents)
    return finished.result()


def log_softmax(logits: Tensor) -> Tensor:
    """Over the last dimension; on a CPU in the place of the logits, which takes no new memory."""
    return torch.log_softmax(logits, -1, out=logits if logits.device.type == "cpu" else None)


def best_token(scores: Tensor) -> Tensor:
    """argmax over the last dimension."""
    found = choose(scores.flatten(0, 1).unsqueeze(1), None, 1)
    return scores.argmax(dim=-1) if found is None else found[2].view(scores.shape[:2])


def continuations(
    rules: Rules, history: Tensor, logits: Tensor, running: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` best of running + log softmax(logits): scores, beams, tokens (sentences, count), best first.

    logits (sentences, beams or, behind the prompt, 1, vocabulary), running (sentences, beams).
    """
    if not rules.processors:
        found = choose(logits.expand(-1, running.shape[1], -1), running, count)
        if found is not None:
            return found
    log_probs = log_softmax(logits).expand(-1, running.shape[1], -1)
    return best_continuations(rules.process(history, log_probs), running, count)


def best_continuations(log_probs: Tensor, running: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` best of running + log_probs over beams and vocabulary: scores, beams, tokens (sentences, count).

    The `count` best values lie in the `count` blocks with the best maxima: a pass for the maxima, and little else.
    """
    sentences, beams, vocabulary = log_probs.shape
    blocks = vocabulary // BLOCK
    if beams * blocks < 4 * count:
        scores, index = (log_probs + running.unsqueeze(-1)).flatten(1).topk(count)
        return scores, index // vocabulary, index % vocabulary
    maxima = log_probs[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK)).amax(dim=-1) + running.unsqueeze(-1)
    best = maxima.flatten(1).topk(count, sorted=False).indices.unsqueeze(-1)  # of beams x blocks
    beam = best // blocks
    token = best % blocks * BLOCK + torch.arange(BLOCK, device=best.device)
    beam, token = beam.expand_as(token).flatten(1), token.flatten(1)
    if rest := vocabulary - blocks * BLOCK:  # the last, shorter block of each beam
        last = torch.arange(blocks * BLOCK, vocabulary, device=best.device)
        places = torch.arange(beams, device=best.device).repeat_interleave(rest)
        beam = torch.cat([beam, places.expand(sentences, -1)], dim=1)
        token = torch.cat([token, last.repeat(beams).expand(sentences, -1)], dim=1)
    values = log_probs.flatten(1).gather(1, beam * vocabulary + token) + running.gather(1, beam)
    scores, chosen = values.topk(count)
    return scores, beam.gather(1, chosen), token.gather(1, chosen)
