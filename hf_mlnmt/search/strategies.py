"""Search strategies: they choose the next tokens by their scores, for the one loop of loop.py.

| class | finds |
| --- | --- |
| Greedy | the best token of each hypothesis |
| Draws, DrawsByRow | a token drawn for each hypothesis |
| BeamSearch | the best hypotheses of each sentence |
| Recombined (recombination.py) | the same, where beams that share their last k tokens are joined |
| Constrained (constraints.py) | the best hypotheses that contain given phrases |
| Grouped | the best of groups that differ from each other |
| SampledBeams, WithoutReplacement | beams that are drawn; sequences drawn without replacement |

The loop's interface is `SearchStrategy`. A step of `BeamSearch` has four parts, methods that its subclasses override:

(1) `candidates`: the best of running sum + log P over the beams of a sentence, max(2, 1 + end tokens) x width of them:
    enough, since a beam can end with each end token.
(2) `finish`: of the first `width` candidates those that end are finished hypotheses, scored sum / length^penalty.
(3) `go_on`: the best `width` that do not end are the next beams; the further state of beams is reordered (`follow`).
(4) `close`: a sentence is closed when its best running sum (`highest`), divided by the present length^penalty, is not
    above the worst finished score; with early_stopping False that is a guess, since longer ones might still win.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from hf_mlnmt.search import hypotheses
from hf_mlnmt.search.cpu.native import best_continuations_natively
from hf_mlnmt.search.decoder import rows_of_sentences
from hf_mlnmt.search.hypotheses import IMPOSSIBLE, Chains, Record, is_possible, length_penalties, pad_token_of
from hf_mlnmt.search.loop import SearchBatch
from hf_mlnmt.search.rules import Rules

Candidates = tuple[Tensor, Tensor, Tensor]  # sums, beams, tokens (sentences, candidates), the best first


class SearchStrategy(Protocol):
    """The methods that the loop calls: choose the next tokens, keep some of the sentences, return what was found."""

    rules: Rules

    def __init__(self, batch: SearchBatch, prompt: Tensor, rules: Rules, config: Any):
        """Starts a search for a batch, its prompt (sentences, length), and generate()'s prepared generation config."""

    def step(self, scores: Tensor, history: Tensor, length: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Chooses the next token of each hypothesis.

        Args:
            scores: of the next token (sentences, width or, after the prompt, 1, vocabulary).
            history: the tokens so far (sentences, width, length before); without logits processors the prompt alone.
            length: of the sequences including the next token.

        Returns: the tokens and the beams that they extend, None where each extends its own, (sentences, width); which
            sentences are still open (sentences,).
        """

    def keep(self, sentences: Tensor) -> None:
        """Drops all sentences of the batch but the given ones (indices); called before `SearchBatch.keep`."""

    def result(self) -> Any:
        """Returns what was found, as generate() returns it."""


class Greedy:
    """Greedy search: the best next token of each hypothesis; the `width` hypotheses of a sentence are independent."""

    def __init__(self, batch: SearchBatch, prompt: Tensor, rules: Rules, config: Any):
        self.batch, self.rules = batch, rules
        self.chains = Chains(len(prompt), batch.width, pad_token_of(config, prompt.device), prompt.device)
        self.record = Record(prompt, batch.width, config)

    def tokens(self, scores: Tensor) -> Tensor:
        """Chooses tokens (sentences, width) by scores (sentences, width, vocabulary)."""
        return scores.argmax(-1)

    def step(self, scores: Tensor, history: Tensor, length: int) -> tuple[Tensor, Tensor | None, Tensor]:
        tokens = self.tokens(self.rules.process(history, scores.expand(-1, self.batch.width, -1)))
        tokens = self.chains.padded(tokens) if self.rules.ends else tokens
        self.record.steps.append((self.batch.ids, tokens, tokens))
        self.chains.close(self.rules.is_last(tokens, length))
        return tokens, None, self.chains.open

    def keep(self, sentences: Tensor) -> None:
        before, (_, width) = self.chains, self.chains.going.shape
        self.chains = Chains(len(sentences), width, before.pad_token, sentences.device)
        before.move_to(self.chains, sentences, len(sentences))

    def result(self) -> Any:
        return self.record.chains()


class Draws(Greedy):
    """Sampling: draws each next token from softmax(scores), for the same seed the same tokens as Transformers' loop.

    The token is argmax p / q, as in torch.multinomial, with q drawn from an exponential distribution for each token.
    """

    each_word = True

    @staticmethod
    def noise(rows: int, vocabulary: int, device: Any) -> Tensor:
        """Draws numbers (rows, vocabulary) from an exponential distribution."""
        return torch.empty(rows, vocabulary, dtype=torch.float32, device=device).exponential_(1)

    @staticmethod
    def pick(scores: Tensor, noise: Tensor) -> Tensor:
        """Returns tokens (sentences, width), drawn by scores (sentences, width, vocabulary) and noise."""
        return (scores.softmax(-1) / noise).argmax(-1)

    def tokens(self, scores: Tensor) -> Tensor:
        # Draw for all sentences that the batch began with: so a draw does not depend on which of them have left.
        noise = self.noise(self.batch.count * scores.shape[1], scores.shape[2], scores.device)
        return self.pick(scores, noise.view(self.batch.count, scores.shape[1], -1)[self.batch.ids])


class DrawsByRow(Draws):
    """Sampling with one random number a hypothesis (draws="row"): the first token whose cumulated P is above it."""

    each_word = False

    @staticmethod
    def noise(rows: int, vocabulary: int, device: Any) -> Tensor:
        """Draws uniform numbers (rows, 1)."""
        return torch.rand(rows, 1, dtype=torch.float32, device=device)

    @staticmethod
    def pick(scores: Tensor, noise: Tensor) -> Tensor:
        cumulated = scores.softmax(-1).cumsum(-1)
        total = cumulated[..., -1:]
        below = torch.minimum(noise * total, total.nextafter(torch.zeros_like(total)))  # < total
        return torch.searchsorted(cumulated, below, right=True).squeeze(-1)


class BeamSearch:
    """The best `num_return_sequences` hypotheses of each sentence, by beam search."""

    counts_impossible = True  # as in Transformers: candidates of impossible beams can be finished

    def __init__(self, batch: SearchBatch, prompt: Tensor, rules: Rules, config: Any):
        self.batch, self.rules, self.config = batch, rules, config
        self.beams = self.begin(len(prompt), prompt.device)
        self.record, self.prompt = Record(prompt, batch.width, config), prompt.shape[1]

    def begin(self, sentences: int, device: Any) -> hypotheses.Hypotheses:
        """Returns empty `Hypotheses` for a number of sentences."""
        return hypotheses.Hypotheses(sentences, self.batch.width, self.config.early_stopping is True, device)

    def candidates(self, scores: Tensor, running: Tensor, history: Tensor) -> Candidates:
        """Finds the best candidates by scores (sentences, width or 1, vocabulary) and the beams' sums, `running`."""
        count = min(self.rules.candidates(self.batch.width), self.batch.width * scores.shape[-1])
        return continuations(self.rules, history, scores, self.batch.decoder.normalized, running, count)

    def go_on(self, sums: Tensor, last: Tensor) -> Tensor:
        """Turns the best `width` candidates that do not end into the open beams; returns indices (sentences, width)."""
        return self.beams.go_on(sums, last)

    def follow(self, places: Tensor, beams: Tensor, tokens: Tensor) -> None:
        """Does nothing: beams have no further state. Subclasses reorder theirs by the chosen candidates' indices
        (`places`), parent beams and tokens, (sentences, width) each."""

    def highest(self) -> Tensor:
        """Returns an upper bound of the sum of log P of any later hypothesis, (sentences,)."""
        return self.beams.running[:, 0]

    def step(self, scores: Tensor, history: Tensor, length: int) -> tuple[Tensor, Tensor | None, Tensor]:
        self.length, self.columns = length, scores.shape[-1]
        sums, beams, tokens = self.candidates(scores, self.beams.running, history)  # (1): (sentences, candidates)
        last = self.rules.is_last(tokens, length)
        self.finish(sums, beams, tokens, last if self.counts_impossible else last & is_possible(sums))  # (2)
        places = self.go_on(sums, last)  # (3)
        beams, tokens = (part.gather(1, places).view(-1, self.batch.width) for part in (beams, tokens))
        self.record.steps.append((self.batch.ids, tokens, beams))
        self.follow(places, beams, tokens)
        return tokens, beams, self.close()  # (4)

    def finish(self, sums: Tensor, beams: Tensor, tokens: Tensor, over: Tensor) -> None:
        """Adds those of the first `width` candidates that end (`over`) to the finished hypotheses."""
        best = self.beams.best.shape[1]
        sums, beams, tokens, over = (part[:, :best] for part in (sums, beams, tokens, over))
        if over.any():
            step = len(self.record.steps) * self.batch.width
            self.beams.finish(sums, (step + beams) * self.columns + tokens, over, self.length_penalties()[0])

    def close(self) -> Tensor:
        """Closes sentences in which no open beam can become better than the finished ones; returns which stay open."""
        self.beams.close(self.highest(), self.length_penalties()[1])
        return self.beams.open

    def length_penalties(self) -> tuple[float, float]:
        """Returns the divisors for finished and for open hypotheses of the present length, the prompt not counted."""
        return length_penalties(self.config, self.length - self.prompt, self.config.max_length - self.prompt)

    def keep(self, sentences: Tensor) -> None:
        self.write()
        before, self.beams = self.beams, self.begin(len(sentences), sentences.device)
        # `Hypotheses` has a row for each sentence, in `Grouped` for each group.
        rows = rows_of_sentences(sentences, len(self.beams.open) // len(sentences))
        before.move_to(self.beams, rows, len(rows))

    def write(self) -> None:
        """Stores the finished hypotheses of the batch's sentences in the record."""
        self.record.write(self.batch.ids, self.beams.best, self.beams.last, self.columns)

    def result(self) -> Any:
        self.write()
        return self.record.beams()


class Grouped(BeamSearch):
    """Diverse beam search in `num_beam_groups` groups that choose in turn; the best of all groups are returned.

    log P of a token is lowered by `diversity_penalty` for each time that earlier groups have chosen it for the same
    sentence in this step. As in Transformers 4 the penalty stays in the scores. `Hypotheses` has a row for each group:
    (sentences x groups, beams of a group).

    Reference: Vijayakumar et al. 2018, "Diverse Beam Search for Improved Described Scene Understanding".
    """

    def begin(self, sentences: int, device: Any) -> hypotheses.Hypotheses:
        self.groups = self.config.groups
        self.size = self.batch.width // self.groups
        return hypotheses.Hypotheses(sentences * self.groups, self.size, self.config.early_stopping is True, device)

    def candidates(self, scores: Tensor, running: Tensor, history: Tensor) -> Candidates:
        log_probs = scores if self.batch.decoder.normalized else log_softmax(scores)
        if log_probs.shape[1] == 1:  # after the prompt
            log_probs = log_probs.repeat(1, self.batch.width, 1)
        count, found = min(self.rules.candidates(self.size), self.size * log_probs.shape[-1]), []
        running, open_ = (part.unflatten(0, (-1, self.groups)) for part in (running, self.beams.open))
        for group in range(self.groups):
            first = group * self.size
            processed = self.rules.process(history, log_probs) if self.rules.processors else log_probs
            own = processed[:, first : first + self.size]
            sums, beams, tokens = best_continuations(own, running[:, group], count)
            found.append((sums, beams + first, tokens))
            places = hypotheses.onward(sums, self.rules.is_end(tokens), self.size).indices
            penalties = self.config.diversity_penalty * open_[:, group].view(-1, 1, 1).to(sums.dtype)
            chosen = tokens.gather(1, places).unsqueeze(1)  # (sentences, 1, size)
            rest = log_probs[:, first + self.size :]
            shape = rest.shape[0], rest.shape[1], self.size
            rest.scatter_add_(2, chosen.expand(shape), -penalties.expand(shape))
        sums, beams, tokens = (torch.stack(parts, 1).flatten(0, 1) for parts in zip(*found, strict=True))
        return sums, beams, tokens

    def close(self) -> Tensor:
        return super().close().view(-1, self.groups).any(1)

    def write(self) -> None:
        best, order = self.beams.best.view(-1, self.batch.width).sort(dim=1, descending=True, stable=True)
        last = self.beams.last.view(-1, self.batch.width).gather(1, order)
        self.record.write(self.batch.ids, best, last, self.columns)


class SampledBeams(BeamSearch):
    """Beam search with candidates drawn without replacement from softmax(sums): for the same seed the same candidates
    as in Transformers."""

    def processed(self, scores: Tensor, history: Tensor) -> Tensor:
        """Returns log P of the next tokens after the logits processors (sentences, width, vocabulary)."""
        log_probs = scores if self.batch.decoder.normalized else log_softmax(scores)
        return self.rules.process(history, log_probs.expand(-1, self.batch.width, -1))

    def candidates(self, scores: Tensor, running: Tensor, history: Tensor) -> Candidates:
        sums = (self.processed(scores, history) + running.unsqueeze(-1)).flatten(1)
        vocabulary, count = scores.shape[-1], min(self.rules.candidates(self.batch.width), sums.shape[1])
        # Draw for all sentences that the batch began with, as in `Draws.tokens`.
        noise = Draws.noise(self.batch.count, sums.shape[1], sums.device)[self.batch.ids]
        drawn = (sums.softmax(-1) / noise).topk(count).indices
        sums, order = sums.gather(1, drawn).sort(dim=1, descending=True)
        drawn = drawn.gather(1, order)
        return sums, drawn // vocabulary, drawn % vocabulary


class WithoutReplacement(SampledBeams):
    """Draws `num_beams` sequences without replacement: a beam search by perturbed log probabilities G.

    G(y) = log P(y) + Gumbel noise; the k sequences with the largest G are k draws without replacement, in that order.
    A prefix has the largest G of its continuations: their own perturbed log probabilities g are shifted, each to
    (a) -log(exp(-G) - exp(-max g) + exp(-g)), so that the largest becomes G. So G never grows, and a beam search with G
    as its sums, without length normalisation, finds the k largest. P is the probability after the logits processors
    (temperature, top_k), normalised in every step; each beam has its log P beside G, and log P is the score returned.

    Reference: Kool, van Hoof and Welling 2019, "Stochastic Beams and Where to Find Them: The Gumbel-Top-k Trick for
    Sampling Sequences Without Replacement".
    """

    counts_impossible = False

    def __init__(self, batch: SearchBatch, prompt: Tensor, rules: Rules, config: Any):
        super().__init__(batch, prompt, rules, config)
        self.logs = torch.zeros_like(self.beams.running)  # log P of the beams
        self.finished = torch.zeros_like(self.beams.best)  # log P of the finished hypotheses
        self.all_finished = torch.zeros_like(self.beams.best)  # the same for all sentences, written when they leave

    def begin(self, sentences: int, device: Any) -> hypotheses.Hypotheses:
        return hypotheses.Hypotheses(sentences, self.batch.width, False, device)

    def candidates(self, scores: Tensor, running: Tensor, history: Tensor) -> Candidates:
        log_probs = self.logs.unsqueeze(-1) + self.processed(scores, history).log_softmax(-1)
        gumbels = log_probs - torch.rand_like(log_probs).log_().neg_().log_()  # g
        below = (gumbels - gumbels.amax(-1, keepdim=True)).exp().neg().log1p()  # log(1 - exp(g - max g))
        largest = running.unsqueeze(-1)  # G of the prefix
        beyond = largest - gumbels + below
        sums = largest - beyond.clamp(min=0) - beyond.abs().neg().exp().log1p()  # (a)
        sums = sums.masked_fill(~is_possible(largest) | (log_probs == -torch.inf), IMPOSSIBLE).flatten(1)
        vocabulary, count = scores.shape[-1], min(self.rules.candidates(self.batch.width), sums.shape[1])
        sums, chosen = sums.topk(count)
        self.following = log_probs.flatten(1).gather(1, chosen)
        return sums, chosen // vocabulary, chosen % vocabulary

    def length_penalties(self) -> tuple[float, float]:
        return 1.0, 1.0

    def finish(self, sums: Tensor, beams: Tensor, tokens: Tensor, over: Tensor) -> None:
        super().finish(sums, beams, tokens, over)
        best = self.beams.best.shape[1]
        if over[:, :best].any():
            new = torch.cat([self.finished, self.following[:, :best]], 1)
            self.finished = new.gather(1, self.beams.order)

    def follow(self, places: Tensor, beams: Tensor, tokens: Tensor) -> None:
        self.logs = self.following.gather(1, places)

    def keep(self, sentences: Tensor) -> None:
        super().keep(sentences)
        self.logs, self.finished = self.logs[sentences], self.finished[sentences]

    def write(self) -> None:
        super().write()
        self.all_finished[self.batch.ids] = self.finished

    def result(self) -> Any:
        output = super().result()
        if self.config.return_dict_in_generate:
            output.sequences_scores = self.all_finished[:, : self.config.num_return_sequences].flatten()
        return output


def continuations(
    rules: Rules, history: Tensor, scores: Tensor, normalized: bool, running: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Finds for each sentence the `count` best continuations of its beams by a token, ranked by running + log P;
    returns sums, beams and tokens (sentences, count), best first.

    Args:
        history: (sentences, width, length), for the processors of `rules`.
        scores: of the next token (sentences, width or, after the prompt, 1, vocabulary).
        normalized: whether the scores are summed up as they are; else log P is their log-softmax.
        running: sums of the beams so far (sentences, width).
    """
    width = running.shape[1]
    if rules.lengths_alone and not normalized:
        # Find as many more candidates for each beam as there are forbidden tokens: then `count` allowed ones remain.
        forbidden = rules.forbidden(history.shape[-1])
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
    """Returns the log-softmax over the last dimension; on a CPU it overwrites the scores."""
    return torch.log_softmax(scores, -1, out=scores if scores.device.type == "cpu" else None)


def best_continuations(log_probs: Tensor, running: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the `count` best continuations by running + log_probs; returns sums, beams, tokens as `continuations`."""
    best = best_continuations_natively(log_probs, running, count, normalized=True)
    if best is None:
        sums, index = (log_probs + running.unsqueeze(-1)).flatten(1).topk(count)
        return sums, index // log_probs.shape[2], index % log_probs.shape[2]
    return best
