"""Search of one batch of pieces: logits processors, generate(), choice among candidates, decoding of ids to text.

With `draws="text"` random draws depend on (seed, text, piece, position) alone, not on the batch that a text is in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    LogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hf_mlnmt.common.errors import OptionError, UserError
from hf_mlnmt.data.directions import is_told
from hf_mlnmt.data.tokenizer import EXPECTS, decode, own_copy
from hf_mlnmt.data.training_set import mixed
from hf_mlnmt.data.words import is_unspaced
from hf_mlnmt.generation.choosing.reranking import coverage_of
from hf_mlnmt.generation.constraints.lexical_constraints import (
    Asked,
    Demand,
    NextWords,
    PrefixProcessor,
    spelling_of,
    times_in,
)
from hf_mlnmt.generation.constraints.rules import TextConstraints
from hf_mlnmt.generation.translating.alignments import SourceAttention, word_links, words_of_source, words_of_target
from hf_mlnmt.generation.translating.batches import (
    Generated,
    arguments_of_texts,
    attention_over_source,
    generate,
    pad,
    runs_alone,
    sentences_that_fit,
    token_logs_of,
)
from hf_mlnmt.generation.translating.hypotheses import Alternative, Calibration, Hypothesis, least_by_word, mean
from hf_mlnmt.generation.translating.options import (
    FEATURES_OF_FUSED,
    DecodingOptions,
    forced_first,
    longest_translation,
)
from hf_mlnmt.generation.translating.remembered import Remembered
from hf_mlnmt.generation.translating.segments import EncodedPiece, TextEncoder, source_limit
from hf_mlnmt.modeling.releases import PREFIX_BY_ROW
from hf_mlnmt.search.hypotheses import normalized
from hf_mlnmt.search.rules import BetweenSteps, TopNSigma

if TYPE_CHECKING:
    from hf_mlnmt.generation.translating.pipeline import TranslationPipeline

logger = logging.getLogger(__name__)
LONGEST_WORD = 24  # tokens that a search for next words generates at most after the prefix
Between = Callable[[], bool] | None  # returns True where nobody waits for the batch any more: its search is Abandoned
# Arguments of generate() that a search for next words (`_next_words`) leaves out.
OF_BEAMS = ("recombine", "num_beam_groups", "diversity_penalty", "min_new_tokens", "max_length")


class TextDraws(LogitsProcessor):
    """Logits processor that draws each row's next token by the row's own random numbers and makes its score infinite,
    so that greedy search selects the drawn token.

    The token is the first one at which the cumulated probabilities pass the random number (inversion): each token
    needs one random number, not one for each entry of the vocabulary.

    places: (number of the text, number of the piece in the text) of each row.
    """

    def __init__(
        self,
        seed: int,
        places: Sequence[tuple[int, int]],
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> None:
        numbers = np.array(places, np.uint64).reshape(-1, 2)
        self.keys = mixed(mixed(mixed(np.uint64(seed)) + numbers[:, 0]) + numbers[:, 1])  # (rows,)
        self.warpers = LogitsProcessorList()
        if temperature is not None and temperature != 1:
            self.warpers.append(TemperatureLogitsWarper(temperature))
        if top_k:
            self.warpers.append(TopKLogitsWarper(top_k))
        if top_p is not None and top_p < 1:
            self.warpers.append(TopPLogitsWarper(top_p))

    def __call__(self, input_ids: Any, scores: Any) -> Tensor:
        """Returns scores (rows, vocabulary), those of the drawn tokens infinite; input_ids: (rows, length)."""
        sums = self.warpers(input_ids, scores).softmax(dim=-1).to(torch.float64).cumsum(dim=-1)  # (rows, vocabulary)
        numbers = torch.from_numpy(unit_interval(self.keys, input_ids.shape[1])).to(sums.device)  # (rows,)
        tokens = torch.searchsorted(sums, numbers.unsqueeze(-1) * sums[:, -1:], right=True)  # (rows, 1)
        return scores.scatter(1, tokens.clamp(max=scores.shape[1] - 1), torch.inf)

    def keep_rows(self, rows: Tensor) -> None:
        """Keeps the random keys of these rows alone, when the search drops sentences that have ended."""
        self.keys = self.keys[rows.cpu().numpy()]


def unit_interval(keys: np.ndarray, position: int) -> np.ndarray:
    """Returns a random number in [0, 1) for each key, which follows from key and position: float64 (keys,), 53 bits."""
    return (mixed(keys + np.uint64(position)) >> np.uint64(11)) * 2.0**-53


class Pending:
    """The result of a batch's search, parts of which another thread may still be decoding."""

    def __init__(self, *parts: Callable[[], list[list[Hypothesis]]]):
        self.parts = parts

    def result(self) -> list[list[Hypothesis]]:
        """Waits for the other thread; returns the hypotheses of each piece of the batch, best first."""
        return [ranked for wait in self.parts for ranked in wait()]


class BatchSearch:
    """Derives the settings of a translation call once, then searches batches of pieces: source ids to hypotheses.

    Raises: UserError for options that the model does not allow, as `confidence` of a model that is not calibrated.
    """

    def __init__(self, pipeline: TranslationPipeline, options: DecodingOptions, first_line: int = 1):
        options = options.with_languages_of(pipeline.name)
        self.pipeline, self.first_line, self.options, self.name = pipeline, first_line, options, pipeline.name
        # A prefix of the caller's own tells the model the languages: the options of languages are then ignored.
        languages = (None, None) if options.prefix else (options.source_language, options.target_language)
        memory, told = pipeline.memory_of(options), is_told(pipeline.model, pipeline.parts.source)
        if memory is not None and not told:
            languages = None, None  # of a model of one pair: they are those of the memory
        parts, way = pipeline.parts.between(*languages, self.name)
        self.parts = parts
        settings = parts.model.generation_config
        trained = getattr(settings, "max_source_tokens", None) if options.split_long else None
        limit = source_limit(parts.model, parts.source, options.max_source_tokens or trained)
        self.encoder = TextEncoder(parts.tokenizers, way, options.prefix, limit)
        self.arguments = options.generation_arguments(parts.model, way)
        self.longest = longest_translation(parts.model, self.arguments)
        self.searched = self.arguments["num_return_sequences"]  # candidates of each sentence, before the choice
        self.chooser = pipeline.chooser(options)
        self.count = options.num_return_sequences or 1 if self.chooser else self.searched
        width = max(self.arguments["num_beams"], self.searched, 2) * (options.alternatives or 1)
        self.most = sentences_that_fit(width, parts.model)
        self.penalty = options.penalty(parts.model, way)
        self.skipped = int(forced_first(parts.model, way))
        ends = settings.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])
        # A thread that decodes during the search needs a tokenizer which no other thread calls.
        self.target = own_copy(parts.target) if self.ahead else parts.target
        self.processing = parts.target_processing
        self.calibration = Calibration.of(settings)
        if options.confidence and self.calibration is None:
            raise OptionError(f"confidence: {self.name or 'the model'} is not calibrated: hf-mlnmt model calibrate.")
        first = [self.arguments.get("forced_bos_token_id", settings.forced_bos_token_id)] if self.skipped else []
        self.constraints = TextConstraints(options, parts, self.encoder, first_line, first, self.ends, self.longest)
        ends = [*filter(None, self.ends)]
        self.memory = None if memory is None else Remembered(memory, options, parts, ends, self.encoder.limit)
        self.quotes = True  # whether warnings quote unmet terms; a server, whose log quotes no user, sets False
        if (said := parts.source.init_kwargs.get(EXPECTS)) is not None:
            logger.warning("%s expects text that is cut: %s", self.name or "the model", said)
        if settings.do_sample and not options.do_sample:
            logger.warning(
                "the model's generation_config.json says do_sample, which is not done unless a call says so too: "
                "do_sample=True (--sample)"
            )
        asked = options.length_penalty is not None or options.length_normalization is not None
        if asked and self.arguments["num_beams"] == 1 and not options.in_lists:
            logger.warning("length_penalty and length_normalization do nothing with one beam: say num_beams too")

    @cached_property
    def ahead(self) -> bool:
        """Returns whether another thread encodes texts and decodes results during a search: True on a GPU."""
        return runs_alone(self.parts.model)

    def search(self, inputs: Sequence[EncodedPiece], between: Between = None, beside: Any = None) -> Pending:
        """Searches a batch of pieces; where memory does not suffice, one half after the other.

        Args:
            between: called between steps of generate(); on a GPU, or for one sentence in C, once before all steps.
            beside: an executor of one thread that decodes the results, where decoding is all that is left to do.
        Raises: UserError where memory does not suffice for one piece.
        """
        if any(piece.known is not None for piece in inputs):
            return self._with_known(inputs, between, beside)
        try:
            if self.options.alternatives:
                return Pending(partial(list, self._alternatives(inputs, between)))
            return self._found(inputs, between, beside)
        except torch.OutOfMemoryError as error:
            if len(inputs) == 1:
                raise UserError(
                    f"out of memory with one input of {len(inputs[0].ids)} tokens: use fewer beams, "
                    "a smaller max_source_tokens, or the CPU."
                ) from error
        logger.warning("out of memory with a batch of %d: going on with half; lower batch_tokens", len(inputs))
        half = len(inputs) // 2
        return Pending(
            *(BatchSearch.search(self, part, between, beside).result for part in (inputs[:half], inputs[half:]))
        )

    def _with_known(self, inputs: Sequence[EncodedPiece], between: Between, beside: Any) -> Pending:
        """Searches the pieces of a batch that the memory does not have; the others' translations are put in."""
        searched = [piece for piece in inputs if piece.known is None]
        pending = self.search(searched, between, beside) if searched else Pending()
        links, sure = (() if self.options.alignments else None), (1.0 if self.options.confidence else None)

        def put_in(text: str) -> list[Hypothesis]:
            words = None if sure is None else (sure,) * len(text.split())
            return [Hypothesis(text, 0.0, 0.0, 0, True, links, sure, words)] * self.count

        def read() -> list[list[Hypothesis]]:
            found = iter(pending.result())
            return [next(found) if piece.known is None else put_in(piece.known) for piece in inputs]

        return Pending(read)

    def _found(self, inputs: Sequence[EncodedPiece], between: Between, beside: Any = None) -> Pending:
        """Searches a batch under its constraints, and pieces for which that finds nothing once more without demands;
        returns hypotheses with all that the options ask for."""
        options, asked = self.options, [self.constraints.demands(piece) for piece in inputs]
        rows, arguments = self._rows(inputs, asked if any(asked) else None, between)
        if failed := [i for i, row in enumerate(rows) if not row]:
            others, _ = self._rows([inputs[i] for i in failed], None, between)
            for i, row in zip(failed, others, strict=True):
                rows[i] = row
        alone = not (any(asked) or options.alignments or self.chooser or options.keep)  # only decoding is left to do
        if alone and beside is not None:
            return Pending(beside.submit(self._decode, rows).result)
        hypotheses = self._decode(rows)
        if self.chooser:
            rows, hypotheses = self._chosen(inputs, rows, hypotheses, arguments)
        if options.alignments:
            hypotheses = self._aligned(inputs, rows, hypotheses, arguments)
        if options.keep:
            hypotheses = self._restored(inputs, rows, hypotheses)
        self._note_unmet(inputs, asked, hypotheses)
        return Pending(partial(list, hypotheses))

    def _note_unmet(
        self, inputs: Sequence[EncodedPiece], asked: list[list[Demand]], hypotheses: list[list[Hypothesis]]
    ) -> None:
        unmet = [
            each
            for piece, demands, ranked in zip(inputs, asked, hypotheses, strict=True)
            for each in self.constraints.unmet_of(piece, demands, ranked[0].text)
        ]
        if self.quotes:
            self.constraints.unmet += unmet
        elif unmet:
            logger.warning("terms that are not met: %d", len(unmet))

    def _rows(
        self, inputs: Sequence[EncodedPiece], asked: list[list[Demand]] | None, between: Between
    ) -> tuple[list[list[Generated]], dict[str, Any]]:
        """Searches a batch; returns each piece's translations that meet its demands, and generate()'s arguments."""
        options, numbers = self.options, [piece.line - self.first_line for piece in inputs]
        draws = self.searched if PREFIX_BY_ROW and self.arguments["num_beams"] == 1 else 1
        arguments = arguments_of_texts(self.arguments, numbers, draws)
        rules = self.constraints.rules(inputs, asked) + (self.memory.rules(inputs) if self.memory else [])
        if options.top_n_sigma is not None:
            rules.append(TopNSigma(options.top_n_sigma))
        if options.draws_by_text:
            places = [(piece.line, piece.number) for piece in inputs]
            rules.append(TextDraws(options.seed or 0, places, options.temperature, options.top_k, options.top_p))
        if rules:
            others = options.generate.get("logits_processor", [])
            arguments["logits_processor"] = LogitsProcessorList([*others, *rules])
        if between is not None:
            arguments["stopping_criteria"] = [*options.generate.get("stopping_criteria", []), BetweenSteps(between)]
        scored = options.in_lists or bool(options.rerank)
        rows = generate(self.parts, [piece.ids for piece in inputs], arguments, self.skipped, scored)
        for row, demands in zip(rows, asked or [], strict=asked is not None):
            met = [each for each in row if all(times_in(each.ids, demand.ids) >= demand.times for demand in demands)]
            row[:] = met + met[-1:] * (len(row) - len(met))  # repeats the last translation in place of those that fail
        return rows, arguments

    def _restored(
        self, inputs: Sequence[EncodedPiece], rows: list[list[Generated]], hypotheses: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Puts the source's kept parts into the hypotheses, at places found by alignment where these are unclear."""
        unclear = [i for i, piece in enumerate(inputs) if self.constraints.is_unclear(piece, hypotheses[i])]
        if unclear and not self.options.alignments:
            some, numbers = [inputs[i] for i in unclear], [inputs[i].line - self.first_line for i in unclear]
            arguments = arguments_of_texts(self.arguments, numbers)
            with suppress(UserError):  # without attention weights `with_parts` goes by relative positions
                aligned = self._aligned(some, [rows[i] for i in unclear], [hypotheses[i] for i in unclear], arguments)
                hypotheses = [*hypotheses]
                for i, of_input in zip(unclear, aligned, strict=True):
                    hypotheses[i] = of_input
        return [
            [self.constraints.with_parts(piece, each) for each in ranked]
            for piece, ranked in zip(inputs, hypotheses, strict=True)
        ]

    def _chosen(
        self,
        inputs: Sequence[EncodedPiece],
        rows: list[list[Generated]],
        hypotheses: list[list[Hypothesis]],
        arguments: dict[str, Any],
    ) -> tuple[list[list[Generated]], list[list[Hypothesis]]]:
        """Returns the ids of the best candidates of each input, and their hypotheses with the chooser's scores."""
        assert self.chooser is not None
        own = self._own_features(self.chooser.names, [piece.ids for piece in inputs], rows, arguments)
        chosen = self.chooser.choose([piece.text for piece in inputs], hypotheses, self.count, own)
        kept = [[row[place] for place, _ in order] for row, order in zip(rows, chosen, strict=True)]
        return kept, [[best for _, best in order] for order in chosen]

    def _own_features(
        self, names: Sequence[str], ids: list[list[int]], rows: list[list[Generated]], arguments: dict[str, Any]
    ) -> dict[str, list[float]]:
        """Computes the features that need one more forward pass over each candidate; returns for each name a list of
        values, the candidates of all inputs one after the other."""
        own: dict[str, list[float]] = {}
        if "coverage" in names:
            weights = attention_over_source(self.attention, self.parts, ids, rows, arguments)
            own["coverage"] = [coverage_of(each) for of_input in weights for each in of_input]
        if not {*FEATURES_OF_FUSED} & {*names}:
            return own
        if getattr(self.parts.model.config, "normalization", None) != "sequence":
            named = " and ".join(FEATURES_OF_FUSED)
            raise UserError(f"{named}: of a fused model of sequence-level normalization alone.")
        flat = [each for row in rows for each in row]
        of_flat = [sequence for sequence, row in zip(ids, rows, strict=True) for _ in row]
        alone, both = (
            token_logs_of(self.parts, of_flat, flat, {**arguments, "alpha": 1.0, "beta": beta}, self.skipped).sum(1)
            for beta in (0.0, 1.0)
        )
        return own | dict(zip(FEATURES_OF_FUSED, (alone.tolist(), (both - alone).tolist())))

    @cached_property
    def attention(self) -> SourceAttention:
        """Returns the module that computes attention over the source, made at its first use, for alignments."""
        return SourceAttention(self.parts.model, self.name)

    def _aligned(
        self,
        inputs: Sequence[EncodedPiece],
        rows: list[list[Generated]],
        hypotheses: list[list[Hypothesis]],
        arguments: dict[str, Any],
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses with alignments, by one more forward pass over each translation."""
        parts = self.parts
        all_weights = attention_over_source(self.attention, parts, [piece.ids for piece in inputs], rows, arguments)
        aligned = []
        for piece, generated, ranked, of_input in zip(inputs, rows, hypotheses, all_weights, strict=True):
            processed = self.encoder.processing.apply(piece.text)
            source = words_of_source(self.encoder.tokenizer, piece.ids, self.encoder.prefix, processed, piece.text)
            new = []
            for each, hypothesis, weights in zip(generated, ranked, of_input, strict=True):
                ids = [i for i in each.ids[self.skipped :] if i not in self.ends]
                target = words_of_target(parts.target, ids, hypothesis.text)
                links = word_links(weights[self.skipped : self.skipped + len(ids)], source, target)
                new.append(replace(hypothesis, alignment=links))
            aligned.append(new)
        return aligned

    def _decode(self, rows: Sequence[Sequence[Generated]]) -> list[list[Hypothesis]]:
        """Decodes the generated ids of each piece to hypotheses."""
        ids = [generated.ids[self.skipped :] for row in rows for generated in row]
        texts = iter(decode(self.target, [[i for i in each if i not in self.ends] for each in ids]))
        return [[self._hypothesis_of(generated, next(texts)) for generated in row] for row in rows]

    def _hypothesis_of(self, generated: Generated, text: str) -> Hypothesis:
        ids = generated.ids[self.skipped :]
        finished = bool(ids) and ids[-1] in self.ends
        text = self.processing.undo(text).strip()
        found = self._hypothesis(text, generated.log_probability, len(ids), finished)
        if not self.options.confidence or self.calibration is None:
            return found
        kept = [i for i in ids if i not in self.ends]
        least = least_by_word(self.target, kept, generated.of_ids[self.skipped :], text)
        words = tuple(self.calibration.of_word(value) for value in least)
        return replace(found, confidence=self.calibration.of_translation(mean(found)), word_confidences=words)

    def _hypothesis(self, text: str, log_probability: float, length: int, finished: bool) -> Hypothesis:
        score = normalized(log_probability, self.penalty, length + self.skipped) if length else 0.0
        return Hypothesis(text, score, log_probability, length, finished)

    def _alternatives(self, inputs: Sequence[EncodedPiece], between: Between) -> list[list[Hypothesis]]:
        """Searches for the likeliest next words of each piece, then for the best translation with each such word."""
        found = self._next_words(inputs, between)
        with_word = [piece._replace(begins=asked) for piece, words in zip(inputs, found) for _, _, asked in words]
        best = iter(self._found(with_word, between).result() if with_word else [])
        return [
            [Alternative(**vars(next(best)[0]), word=word, probability=share) for word, share, _ in words]
            for words in found
        ]

    @torch.inference_mode()
    def _next_words(self, inputs: Sequence[EncodedPiece], between: Between) -> list[list[tuple[str, float, Asked]]]:
        """Returns for each piece its likeliest next words: (word, probability, prefix with the word appended).

        They come from a beam search over subwords with twice as many beams as words are wanted, whose hypotheses end
        where their word ends. Probabilities of hypotheses that spell the same word are added.
        """
        model, spelling, wanted = self.parts.model, spelling_of(self.parts.target), self.options.alternatives or 0
        asked, width = [self.constraints.beginning(piece) for piece in inputs], max(2 * wanted, 4)
        given, ends = (asked, self.skipped), [token for token in self.ends if token is not None]
        rules = [PrefixProcessor(spelling, *given, ends), NextWords(spelling, *given, ends)]
        rules[:0] = [*self.options.generate.get("logits_processor", []), *self.constraints.forbidden(inputs)]
        numbers = [piece.line - self.first_line for piece in inputs]
        arguments = {
            **{name: value for name, value in self.arguments.items() if name not in OF_BEAMS},
            **{"num_beams": width, "num_return_sequences": width, "length_penalty": 0.0, "early_stopping": "never"},
            "max_new_tokens": min(self.longest, self.skipped + max(len(each.ids) for each in asked) + LONGEST_WORD),
            "logits_processor": LogitsProcessorList(rules),
            "return_dict_in_generate": True,
        }
        if not hasattr(model, "logits_are_scores"):
            arguments["output_scores"] = True  # else Transformers' loop returns no sequences_scores
        arguments = arguments_of_texts(arguments, numbers)
        if between is not None:
            others = self.options.generate.get("stopping_criteria", [])
            arguments["stopping_criteria"] = [*others, BetweenSteps(between)]
        ids, mask = pad([piece.ids for piece in inputs], self.parts.source.pad_token_id or 0, model.device)
        output = model.generate(input_ids=ids, attention_mask=mask, **arguments)
        rows = output.sequences[:, 1 + self.skipped :].tolist()
        scores = output.sequences_scores.view(len(inputs), width).double().exp().tolist()
        return [
            self._words(each, rows[first * width : (first + 1) * width], scores[first])[:wanted]
            for first, each in enumerate(asked)
        ]

    def _words(
        self, asked: Asked, rows: Sequence[Sequence[int]], shares: Sequence[float]
    ) -> list[tuple[str, float, Asked]]:
        """Returns (word, probability, prefix with the word), the likeliest first, of hypotheses of a search for words.

        rows, shares: token ids of each hypothesis (prefix, next word, end of the word), and its probability.
        """
        spelling, words = spelling_of(self.parts.target), dict[str, tuple[float, Asked]]()
        reader = NextWords(spelling, [asked], self.skipped, [])
        for ids, share in zip(rows, shares, strict=True):
            length = next((place for place, token in enumerate(ids) if token in self.ends), None)
            if length is None or length < len(asked.ids) or not share:
                continue  # the row has no whole word yet
            tokens = list(ids[:length])
            spelt = reader.word(asked, spelling.spelt(tokens[len(asked.ids) :])) or ""
            usual = spelling.ids(spelling.spelt(tokens).decode(errors="replace").strip())
            if spelling.spelt(usual).strip() == spelling.spelt(tokens).strip():
                tokens = usual  # the ids into which the tokenizer cuts the same text
            word, unspaced = self.processing.undo(spelt), is_unspaced(spelt)
            begins = Asked(tokens, b"" if unspaced else b" ") if spelt else Asked([*tokens, ids[length]], b"")
            before = words.get(word, (0.0, begins))
            words[word] = before[0] + share, before[1]
        total = sum(share for share, _ in words.values()) if asked.rest.strip() else 1.0
        ranked = [(word, share / total, begins) for word, (share, begins) in words.items()]
        return sorted(ranked, key=lambda each: -each[1])
