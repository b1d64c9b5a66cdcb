"""The loops of a search, beam search and greedy search or sampling, and what they keep of hypotheses.

| class or function | what it does |
| --- | --- |
| beam_search, sample | the loops of `GenerationMixin`: the same candidates, scores and draws for the same seed |
| SearchBatch | which sentences are still being translated, and what the decoder knows of them |
| best_continuations ... | the best next tokens, of one hypothesis or of all beams of a sentence together |
| FinishedHypotheses | which finished ones are kept, when a sentence is done, how they are read off |
| Recombination | joins hypotheses that share their last k tokens before they are expanded |

Beam search looks at 2 (or 1 + the number of end tokens) times the beams; those that end among the first `num_beams` go
to the finished ones, scored by log P / length^penalty, by the rules of `GenerationMixin._update_finished_beams` and
`_check_early_stop_heuristic`.

With `recombine` = k beams are joined before each step. Reference: thesis on monolingual data, section 4.1.2, "Limited
context assumption and trellis computation". For a model that sees k tokens, what follows two hypotheses with the same
last k tokens is the same: their probabilities are added up, and the better path of the two stands for both. Of any
other model that is an approximation. k = 0 joins all beams of a sentence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput

from hf_mlnmt.search.decoder import Decoder, SourceBatch, gather_beams
from hf_mlnmt.search.native import best_continuations_natively
from hf_mlnmt.search.rules import Rules

BLOCK = 64  # of the vocabulary, when the best tokens are looked for
IMPOSSIBLE = -1.0e9  # Transformers' score of what must not be chosen


class SearchBatch:
    """The sentences that are still being translated, whose numbers are `ids` (sentences,), and the decoder's state."""

    def __init__(self, decoder: Decoder[Any], source: SourceBatch, width: int):
        self.decoder, self.source, self.width = decoder, source, width
        self.scale = getattr(decoder, "scale", 1.0)  # of a fused model (decoders.py)
        self.count = len(source.real)  # at the beginning
        self.ids = torch.arange(self.count, device=source.real.device)
        self.real = source.real
        self.state: Any = None

    def begin(self, prompt: Tensor) -> Tensor:
        """Reads the prompt (sentences, length): scores (sentences, 1, vocabulary). Then there are `width` beams."""
        scores, state = self.decoder.begin(prompt, self.source)
        del self.source  # it is the state's now
        self.state = state.expand(self.width)
        return scores

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Reads tokens (sentences, width), behind beams `parents` or their own: (sentences, width, vocabulary)."""
        if parents is not None:
            self.state = self.state.reorder(parents)
        scores, self.state = self.decoder.step(tokens, self.state)
        return scores

    def keep(self, rows: Tensor) -> None:
        """Keeps these sentences (indices into those that are here), and as much of the sources as the longest needs."""
        longest = int(self.real[rows].any(dim=0).nonzero().max()) + 1  # padding may be on either side
        self.ids, self.real = self.ids[rows], self.real[rows, :longest]
        self.state = self.state.select(rows, longest)

    def spread(self, tokens: Tensor, pad_token: Tensor | int) -> Tensor:
        """Spreads tokens (sentences here, width) over the whole batch, the padding token where sentences have left."""
        if len(tokens) == self.count:
            return tokens
        column = tokens.new_zeros(self.count, self.width) + pad_token
        column[self.ids] = tokens
        return column


def first_sums(prompt: Tensor, width: int) -> Tensor:
    """Returns the sums that beams begin with (sentences, width): all are alike at first, so one stands for all."""
    running = prompt.new_full((len(prompt), width), IMPOSSIBLE, dtype=torch.float32)
    running[:, 0] = 0.0
    return running


def beam_search(batch: SearchBatch, input_ids: Tensor, rules: Rules, config: Any) -> Any:
    """Finds the best `num_return_sequences` hypotheses of every sentence.

    Args:
        batch: the sentences, with `num_beams` as their width.
        input_ids: the prompt (sentences x num_beams, length).
        config: the generation config as generate() prepares it.

    Returns: (sentences x num_return_sequences, length), or with `return_dict_in_generate` an output that has them,
        their scores and the beams that they came from.
    """
    width = batch.width
    prompt = input_ids[::width]  # (sentences, length)
    running = first_sums(prompt, width)  # sums (sentences, width)
    finished = FinishedHypotheses(prompt, config)
    k = getattr(config, "recombine", None)
    joined = None if k is None else Recombination(k, prompt, running, batch.scale)
    history = input_ids.view(-1, width, prompt.shape[1])  # (sentences, width, length)
    scores = batch.begin(prompt)  # (sentences, 1, vocabulary)
    length = prompt.shape[1]
    while True:
        length += 1
        if joined is not None:
            running = joined.join(running)
        before, count = running, rules.candidates(width)
        # (sentences, candidates) each
        sums, parents, tokens = continuations(rules, history, scores, batch.decoder.normalized, running, count)
        last = rules.is_last(tokens, length)
        running, chosen = (sums + last * IMPOSSIBLE).topk(width)  # (sentences, width)
        finished.add(batch.ids, sums, tokens, parents, last & is_possible(sums) if joined else last, length)
        tokens, parents = tokens.gather(1, chosen), parents.gather(1, chosen)  # (sentences, width)
        finished.step(batch.ids, tokens, parents)
        highest = running
        if joined is not None:
            joined.follow(running - before.gather(1, parents), tokens, parents)
            highest = joined.together(running)  # more than that no finished hypothesis will have
        ended = finished.ended(batch.ids, highest, length)  # (sentences,)
        left = len(ended) - int(ended.sum())
        if not left or last.all():
            break
        if rules.processors:
            history = torch.cat([gather_beams(history, parents), tokens.unsqueeze(-1)], dim=-1)
        if (kept := rules.sentences_to_keep(ended, left)) is not None:
            batch.keep(kept)
            rules.keep(kept, width)
            tokens, parents, running, history = tokens[kept], parents[kept], running[kept], history[kept]
            if joined is not None:
                joined.keep(kept)
        scores = batch.step(tokens, parents)  # (sentences, width, vocabulary)
    return finished.result()


def sample(batch: SearchBatch, input_ids: Tensor, rules: Rules, config: Any) -> Any:
    """Finds one hypothesis, or draws `num_return_sequences`, of every sentence.

    Args:
        batch: the sentences, with `num_return_sequences` as their width.
        input_ids: the prompt (sentences x num_return_sequences, length).
        config: the generation config as generate() prepares it.

    Returns: (sentences x num_return_sequences, length), or with `return_dict_in_generate` an output that has them.
    """
    rows, width = len(input_ids), batch.width
    prompt = input_ids[::width]  # (sentences, length)
    scores = batch.begin(prompt).expand(-1, width, -1)  # (sentences, width, vocabulary)
    history = input_ids.view(-1, width, prompt.shape[1])  # (sentences, width, length)
    done = torch.zeros(history.shape[:2], dtype=torch.bool, device=prompt.device)  # (sentences, width)
    pad_token = pad_token_of(config, prompt.device)
    columns, length = [input_ids], prompt.shape[1]
    while True:
        scores = rules.process(history, scores)  # (sentences, width, vocabulary)
        tokens = draw_tokens(scores, batch.ids, batch.count) if config.do_sample else best_tokens(scores)
        tokens = torch.where(done, pad_token, tokens) if rules.end_tokens is not None else tokens  # (sentences, width)
        columns.append(batch.spread(tokens, pad_token).view(rows, 1))  # of the whole batch
        length += 1
        done = done | rules.is_last(tokens, length)
        ended = done.squeeze(1) if width == 1 else done.all(dim=1)  # (sentences,)
        left = len(ended) - int(ended.sum())
        if not left:
            break
        if rules.processors:
            history = torch.cat([history, tokens.unsqueeze(-1)], dim=-1)  # (sentences, width, length)
        if (kept := rules.sentences_to_keep(ended, left)) is not None:
            batch.keep(kept)
            rules.keep(kept, width)
            tokens, done, history = tokens[kept], done[kept], history[kept]
        scores = batch.step(tokens, None)
    return sampled(torch.cat(columns, dim=1), config)


def pad_token_of(config: Any, device: torch.device) -> Any:
    """Returns the token that stands behind what has ended, a tensor without dimensions, or 0."""
    return 0 if config._pad_token_tensor is None else config._pad_token_tensor.to(device)


def sampled(sequences: Any, config: Any) -> Any:
    """Returns sequences (rows, length) as generate() does after a search without beams."""
    return GenerateEncoderDecoderOutput(sequences=sequences) if config.return_dict_in_generate else sequences


def best_tokens(scores: Tensor) -> Tensor:
    """Computes argmax over the last dimension: (sentences, width, vocabulary) -> (sentences, width)."""
    best = best_continuations_natively(scores.flatten(0, 1).unsqueeze(1), None, 1)
    return scores.argmax(dim=-1) if best is None else best[2].view(scores.shape[:2])


def draw_tokens(scores: Tensor, ids: Tensor, sentences: int) -> Tensor:
    """Draws a token from softmax(scores): (sentences here, width, vocabulary) -> (sentences here, width).

    As torch.multinomial does it: argmax p / q with q from an exponential distribution, drawn for all `sentences` of the
    batch, also those that have left: so the same seed gives Transformers' own draws.
    """
    noise = scores.new_empty(sentences * scores.shape[1], scores.shape[2]).exponential_(1)
    noise = noise.view(sentences, *scores.shape[1:])[ids]  # (sentences here, width, vocabulary)
    return (scores.softmax(dim=-1) / noise).argmax(dim=-1)


def continuations(
    rules: Rules, history: Tensor, scores: Tensor, normalized: bool, running: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the `count` best of running + log P: sums, beams, tokens (sentences, count) each, best first.

    Args:
        history: (sentences, width, length), for the processors of `rules`.
        scores: of the next token (sentences, width or, behind the prompt, 1, vocabulary).
        normalized: the scores are log P themselves, or what takes its place; else log P is their log-softmax.
        running: sums of the beams so far (sentences, width).
    """
    width = running.shape[1]
    if rules.lengths_alone and not normalized:
        forbidden = rules.forbidden(history.shape[-1])  # among so many candidates more, enough are allowed
        best = best_continuations_natively(scores.expand(-1, width, -1), running, count + len(forbidden) * width)
        if best is not None and forbidden:
            order = torch.isin(best[2], torch.tensor(forbidden)).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
            sums, beams, tokens = (part.gather(1, order) for part in best)
            return sums, beams, tokens
        if best is not None:
            return best
    log_probs = scores if normalized else log_softmax(scores)
    log_probs = rules.process(history, log_probs.expand(-1, width, -1))  # (sentences, width, vocabulary)
    return best_continuations(log_probs, running, count)


def log_softmax(scores: Tensor) -> Tensor:
    """Computes it over the last dimension; on a CPU in the memory of the scores."""
    return torch.log_softmax(scores, -1, out=scores if scores.device.type == "cpu" else None)


def best_continuations(log_probs: Tensor, running: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the `count` best of running + log_probs over width and vocabulary: sums, beams, tokens (sentences, count).

    The `count` best values lie in the `count` blocks with the best maxima: a pass for the maxima, and little else.
    """
    sentences, width, vocabulary = log_probs.shape
    blocks = vocabulary // BLOCK
    if width * blocks < 4 * count:
        sums, index = (log_probs + running.unsqueeze(-1)).flatten(1).topk(count)  # (sentences, count)
        return sums, index // vocabulary, index % vocabulary
    maxima = log_probs[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK)).amax(dim=-1) + running.unsqueeze(-1)
    best = maxima.flatten(1).topk(count, sorted=False).indices.unsqueeze(-1)  # (sentences, count, 1), of width x blocks
    beam = best // blocks
    token = best % blocks * BLOCK + torch.arange(BLOCK, device=best.device)  # (sentences, count, BLOCK)
    beam, token = beam.expand_as(token).flatten(1), token.flatten(1)
    if rest := vocabulary - blocks * BLOCK:  # the last, shorter block of each beam
        last = torch.arange(blocks * BLOCK, vocabulary, device=best.device)
        beams_of_last = torch.arange(width, device=best.device).repeat_interleave(rest)
        beam = torch.cat([beam, beams_of_last.expand(sentences, -1)], dim=1)
        token = torch.cat([token, last.repeat(width).expand(sentences, -1)], dim=1)
    places = beam * vocabulary + token  # (sentences, looked at)
    values = log_probs.flatten(1).gather(1, places) + running.gather(1, beam)
    sums, chosen = values.topk(count)
    return sums, beam.gather(1, chosen), token.gather(1, chosen)


def divisors(config: Any, length: int, longest: int) -> tuple[float, float]:
    """Returns that by which a sum of so many tokens is divided, and that by which the best open one could still be."""
    hopeful = config.early_stopping == "never" and config.length_penalty > 0.0
    return length**config.length_penalty, (longest if hopeful else length) ** config.length_penalty


class FinishedHypotheses:
    """The finished hypotheses of every sentence, and the steps from which all sequences can be read off."""

    def __init__(self, prompt: Tensor, config: Any):
        self.prompt, self.config = prompt, config
        shape = (len(prompt), config.num_beams)
        self.scores = prompt.new_full(shape, -torch.inf, dtype=torch.float32)
        self.filled = torch.zeros(shape, dtype=torch.bool, device=prompt.device)
        self.open = torch.ones(len(prompt), dtype=torch.bool, device=prompt.device)
        # Of each hypothesis: its last step, the token there, and the beam it came from.
        self.last = torch.stack([prompt.new_full(shape, -1), prompt.new_zeros(shape), prompt.new_zeros(shape)], dim=-1)
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []  # sentences, tokens, parents

    def add(self, ids: Tensor, sums: Tensor, tokens: Tensor, parents: Tensor, over: Tensor, length: int) -> None:
        """Takes those of the best `num_beams` candidates that are over; to be called before `step`.

        ids (sentences,); sums, tokens, parents, over (sentences, candidates), the best first.
        """
        num_beams = self.config.num_beams
        over = over[:, :num_beams]
        if not over.any():
            return
        before, filled = self.scores[ids], self.filled[ids]
        shut = ~self.open[ids]
        if self.config.early_stopping is True:
            shut = shut | filled.all(dim=1)
        allowed = over & ~shut.unsqueeze(-1)
        new = torch.where(allowed, sums[:, :num_beams] / self._divisors(length)[0], -torch.inf)
        self.scores[ids], best = torch.cat([before, new], dim=1).topk(num_beams)
        self.filled[ids] = torch.cat([filled, allowed], dim=1).gather(1, best)
        newest = torch.stack([torch.full_like(tokens, len(self.steps)), tokens, parents], dim=-1)[:, :num_beams]
        last = torch.cat([self.last[ids], newest], dim=1)
        self.last[ids] = torch.take_along_dim(last, best.unsqueeze(-1), dim=1)

    def step(self, ids: Tensor, tokens: Tensor, parents: Tensor) -> None:
        """Remembers the beams that go on: (sentences, num_beams) each."""
        self.steps.append((ids, tokens, parents))

    def ended(self, ids: Tensor, running: Tensor, length: int) -> Tensor:
        """Tells to which sentences nothing can be added any more, as early_stopping defines it: (sentences,).

        running: sums of the open beams (sentences, num_beams), the best first.
        """
        scores, filled = self.scores[ids], self.filled[ids]
        worst = torch.where(filled, scores.amin(dim=1, keepdim=True), -torch.inf)
        open_ = self.open[ids] & (running[:, :1] / self._divisors(length)[1] > worst).any(dim=1)
        self.open[ids] = open_
        return ~open_ | filled.all(dim=1) if self.config.early_stopping is True else ~open_

    def settled(self, ids: Tensor, running: Tensor, length: int) -> Tensor:
        """Tells of which sentences no beam can any more be among those that are returned, by the same measure."""
        return running[:, 0] / self._divisors(length)[1] <= self.scores[ids, self.config.num_return_sequences - 1]

    def _divisors(self, length: int) -> tuple[float, float]:
        prompt = self.prompt.shape[1]
        return divisors(self.config, length - prompt, self.config.max_length - prompt)

    def result(self) -> Any:
        """Returns the best num_return_sequences of each sentence, as generate() does."""
        config, wanted = self.config, self.config.num_return_sequences
        step, token, beam = self.last[:, :wanted].unbind(dim=-1)
        total = int(step.max()) + 1
        fill = blank_of(config)
        tokens = self.prompt.new_full((*step.shape, total), fill)
        origins = self.prompt.new_full((*step.shape, total), -1)
        first = torch.arange(len(self.prompt), device=step.device).unsqueeze(-1) * config.num_beams
        for at in range(total - 1, -1, -1):
            ids, step_tokens, step_parents = self.steps[at]
            all_tokens, all_parents = self.last.new_zeros(2, len(self.prompt), config.num_beams)
            all_tokens[ids], all_parents[ids] = step_tokens, step_parents
            here = step == at
            parent = torch.where(here, beam, all_parents.gather(1, beam))
            tokens[..., at] = torch.where(here, token, all_tokens.gather(1, beam)).where(step >= at, fill)
            origins[..., at] = (parent + first).where(step >= at, -1)
            beam = torch.where(step >= at, parent, beam)
        prompt = self.prompt.unsqueeze(1).expand(-1, wanted, -1)
        sequences = torch.cat([prompt, tokens], dim=-1).flatten(0, 1)
        return searched(sequences, self.scores[:, :wanted].flatten(), origins.flatten(0, 1), config)


def blank_of(config: Any) -> int:
    """Returns the token behind shorter hypotheses; as in Transformers, a padding token with id 0 counts as none."""
    ends = config._eos_token_tensor
    return -1 if ends is None else int(config._pad_token_tensor or ends[0])


def searched(sequences: Any, scores: Any, origins: Tensor, config: Any) -> Any:
    """Returns sequences (rows, length) as generate() does after a beam search; origins as sequences, scores (rows,)."""
    if not config.return_dict_in_generate:
        return sequences
    beams: Any = origins.int()
    return GenerateBeamEncoderDecoderOutput(sequences=sequences, sequences_scores=scores, beam_indices=beams)


def is_possible(sums: Tensor) -> Tensor:
    """Tells which sums are those of a hypothesis, and not of a beam that was joined to another or never began."""
    return sums > IMPOSSIBLE / 2


class Recombination:
    """The last k tokens of every beam, and the sum of the path that stands for it."""

    def __init__(self, k: int, prompt: Tensor, running: Tensor, scale: float = 1.0):
        """Begins with the prompt (sentences, length) of all beams and their sums `running` (sentences, beams).

        scale: what is added up is exp(scale x sum); alpha of a fused model's scores (4.4), whose q is exp(alpha x).
        """
        missing = max(k - prompt.shape[1], 0)
        # -1 stands for the tokens that there would be before the prompt.
        recent = torch.nn.functional.pad(prompt, (missing, 0), value=-1)[:, missing + prompt.shape[1] - k :]
        self.k, self.scale = k, scale
        self.recent = recent.unsqueeze(1).expand(-1, running.shape[1], -1)  # (sentences, beams, k)
        self.paths = running  # (sentences, beams): of the single path

    def groups(self, running: Tensor) -> tuple[Tensor, Tensor]:
        """Tells which beam stands for each, and which beams stand for themselves: (sentences, beams) each.

        Of those with the same last k tokens it is the one with the best path, the first of equals.
        """
        alive = is_possible(running)
        same = (self.recent.unsqueeze(2) == self.recent.unsqueeze(1)).all(-1)  # (sentences, beams, beams)
        same &= alive.unsqueeze(1) & alive.unsqueeze(2)
        paths = self.paths.unsqueeze(1).masked_fill(~same, -torch.inf)
        places = torch.arange(running.shape[1], device=running.device)
        chosen = torch.where(alive, paths.argmax(-1), places)
        return chosen, alive & (chosen == places)

    def join(self, running: Tensor) -> Tensor:
        """Adds up the sums (sentences, beams) of joined beams; a beam that another stands for becomes impossible."""
        chosen, stands = self.groups(running)
        possible = (self.scale * running).masked_fill(~is_possible(running), -torch.inf)
        members = chosen.unsqueeze(1) == torch.arange(running.shape[1], device=running.device).view(1, -1, 1)
        sums = possible.unsqueeze(1).masked_fill(~members, -torch.inf).logsumexp(-1)  # of those that each stands for
        return torch.where(stands, sums / self.scale, IMPOSSIBLE)

    def together(self, running: Tensor) -> Tensor:
        """Adds up all beams of a sentence: (sentences, beams) -> (sentences, 1)."""
        return (self.scale * running).logsumexp(1, keepdim=True) / self.scale

    def follow(self, scores: Tensor, tokens: Tensor, parents: Tensor) -> None:
        """Lets each beam go on from beam parents[b, i] with a token and its score: (sentences, beams) each."""
        self.paths = self.paths.gather(1, parents) + scores
        if self.k:
            recent = gather_beams(self.recent.contiguous(), parents)
            self.recent = torch.cat([recent, tokens.unsqueeze(-1)], dim=-1)[..., 1:]

    def keep(self, sentences: Tensor) -> None:
        """Keeps these sentences (indices)."""
        self.recent, self.paths = self.recent[sentences], self.paths[sentences]
