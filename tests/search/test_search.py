"""The fast search on the baseline: every option against Transformers' own loop, and the parts by themselves."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.contract import TINY, redraw
from helpers.fused import translator
from helpers.releases import DECAY_KNOWS_IMPOSSIBLE_TOKENS
from helpers.searching import ENDING, assert_equal_loops, decode, sources, toy
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    TextStreamer,
)
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    TemperatureLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria

from hf_mlnmt import TransformerForConditionalGeneration, config_for, search
from hf_mlnmt.modeling.releases import CACHE
from hf_mlnmt.search.loop import SearchBatch
from hf_mlnmt.search.rules import Rules
from hf_mlnmt.search.strategies import Draws, DrawsByRow, best_continuations, continuations

OPTIONS = {
    "gnmt": {"num_beams": 4, "length_penalty": 0.6},
    "no penalty": {"num_beams": 4, "length_penalty": 0.0},
    "the longer the better": {"num_beams": 3, "length_penalty": 1.7},
    "min length": {"num_beams": 3, "min_new_tokens": 7},
    "min and max": {"num_beams": 3, "min_length": 3, "max_length": 9},
    "one token": {"num_beams": 3, "max_new_tokens": 1},
    "two max lengths": {"num_beams": 3, "stopping_criteria": StoppingCriteriaList(map(MaxLengthCriteria, (9, 6)))},
    "forced first": {"num_beams": 3, "forced_bos_token_id": 9},
    "forced last": {"num_beams": 3, "forced_eos_token_id": 1, "max_new_tokens": 6},
    "repetition": {"num_beams": 3, "repetition_penalty": 1.4},
    "source repetition": {"num_beams": 3, "encoder_repetition_penalty": 1.4},
    "source n-grams": {"num_beams": 3, "encoder_no_repeat_ngram_size": 2},
    "n-grams": {"num_beams": 3, "no_repeat_ngram_size": 2},
    "bad words": {"num_beams": 3, "bad_words_ids": [[7], [8, 9]]},
    "suppressed": {"num_beams": 3, "suppress_tokens": [5, 6], "begin_suppress_tokens": [7]},
    "decay": {"num_beams": 3, "exponential_decay_length_penalty": (3, 1.2)},
    "several ends": {"num_beams": 3, "eos_token_id": [1, 5, 6], "num_return_sequences": 3},
    "several ends, greedy": {"eos_token_id": [1, 5, 6]},
    "many beams": {"num_beams": 12, "num_return_sequences": 12},
    "renormalised": {"num_beams": 3, "repetition_penalty": 1.4, "renormalize_logits": True},
    "prefix": {"num_beams": 3, "prefix_allowed_tokens_fn": lambda row, ids: [1, 5 + row, 6 + row, 7]},
    "greedy, forced": {"forced_bos_token_id": 9, "repetition_penalty": 1.4},
    "nucleus": {"do_sample": True, "top_p": 0.8, "top_k": 0},
    "top k": {"do_sample": True, "top_k": 5, "num_return_sequences": 2},
    "typical": {"do_sample": True, "typical_p": 0.9, "epsilon_cutoff": 1e-3},
}


# What the rules for stopping depend on: scores by length, ends, the longest length, and how many hypotheses there are.
STOPPING = ("gnmt", "no penalty", "the longer the better", "min and max", "several ends", "many beams")


@pytest.mark.parametrize(
    ("name", "early"), [*((name, False) for name in OPTIONS), *itertools.product(STOPPING, (True, "never"))]
)
def test_options(name, early, monkeypatch):
    options = OPTIONS[name]
    if name == "min length" and not DECAY_KNOWS_IMPOSSIBLE_TOKENS:
        pytest.skip("the decaying length penalty of this Transformers makes NaN of impossible tokens")
    stopping = {"early_stopping": early} if "num_beams" in options else {}
    vocabulary = 40 if early else 200
    inputs = sources((6, 1, 4, 9, 3), vocabulary)
    found = assert_equal_loops(toy(vocabulary), monkeypatch, **inputs, **{**ENDING, **options}, **stopping)
    if "max" not in name and "one" not in name and "last" not in name:
        ends = torch.tensor(options.get("eos_token_id", 1))
        assert torch.isin(found.sequences[:, 1:], ends).any(), "nothing ended: the rules for ends were not tried"


@pytest.mark.parametrize("lengths", [(1,), (512, 1, 40), (17, 16, 15)])
def test_source_lengths(lengths, monkeypatch):
    model = toy(max_position_embeddings=600)
    for beams in (1, 4):
        assert_equal_loops(model, monkeypatch, **sources(lengths), **ENDING, num_beams=beams)


@pytest.mark.parametrize("vocabulary", [63, 64, 65, 200, 1024, 5000])
def test_vocabularies(vocabulary, monkeypatch):
    model = toy(vocabulary)
    for options in ({}, {"num_beams": 6, "num_return_sequences": 6}):
        assert_equal_loops(model, monkeypatch, **sources((5, 8, 2), vocabulary), **options, max_new_tokens=8)


def test_another_default_of_numbers_changes_nothing(monkeypatch):
    """Sums are float32, as Transformers' are, whatever PyTorch's default is."""
    model, inputs = toy().float(), sources((5, 8, 2))
    for options in ({"num_beams": 3, "num_return_sequences": 3}, {"do_sample": True, "top_k": 0}):
        expected = decode(model, **inputs, **options)
        torch.set_default_dtype(torch.float64)
        try:
            found = decode(model, **inputs, **options)
        finally:
            torch.set_default_dtype(torch.float32)
        assert found.sequences.tolist() == expected.sequences.tolist()
        assert found.get("sequences_scores", torch.zeros(1)).dtype == torch.float32


def test_fewer_words_than_candidates(monkeypatch):
    model = toy(13)
    assert_equal_loops(model, monkeypatch, **sources((3, 4), 13), num_beams=9, num_return_sequences=9)


def test_sentences_leave_the_batch(monkeypatch):
    """The batch of the steps shrinks, and the result is not touched by it."""
    sizes = []
    step = SearchBatch.step
    monkeypatch.setattr(SearchBatch, "step", lambda self, *a: (sizes.append(len(self.ids)), step(self, *a))[1])
    model = toy(60, seed=2)
    sampling = {"do_sample": True, "top_k": 0, "num_return_sequences": 2}
    for options in ({"num_beams": 3}, {"num_beams": 3, "early_stopping": True}, {}, sampling):
        sizes.clear()
        inputs = sources((6, 1, 4, 9, 3, 12, 30, 2), 60)
        assert_equal_loops(model, monkeypatch, **inputs, **ENDING, **options)
        assert min(sizes) < len(inputs["input_ids"])


@pytest.mark.parametrize("system", ["previous-weight", "fertility"])
def test_a_state_over_the_source_is_as_long_as_what_is_left_of_it(system, monkeypatch):
    """Sources lie in blocks of sixteen: the longest leave, and the states of the others have fewer blocks."""
    lengths: list[int] = []
    keep = SearchBatch.keep
    monkeypatch.setattr(SearchBatch, "keep", lambda self, *a: (keep(self, *a), lengths.append(self.real.shape[1])))
    model = translator(system, {"previous-weight": 1, "fertility": 2}[system], 200)
    assert_equal_loops(model, monkeypatch, **sources((40, 2, 30, 3, 18, 5)), **ENDING, num_beams=3)
    assert lengths[-1] <= 16


class Stubborn(LogitsProcessor):
    """Knows its rows by number: the search may not take any away."""

    def __call__(self, input_ids, scores):
        favoured = torch.arange(len(scores)) % (scores.shape[1] - 5) + 5
        scores[torch.arange(len(scores)), favoured] += 1.0
        return scores


def test_a_processor_of_ones_own(monkeypatch):
    for beams in (1, 3):
        inputs = sources((6, 1, 4, 9, 3, 12, 30, 2), 60)
        arguments = {**inputs, "num_beams": beams, "logits_processor": LogitsProcessorList([Stubborn()])}
        assert_equal_loops(toy(60, seed=2), monkeypatch, **arguments, **ENDING)


class Collector(LogitsProcessor):
    """Changes nothing, and keeps the scores that it sees."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(scores)
        return scores


@pytest.mark.parametrize("beams", [1, 3])
def test_a_processor_may_keep_what_it_sees(beams, monkeypatch):
    """The memory of the logits is used again at every step; what processors get is not."""
    kept = []
    # Nothing ends before another, and no other processor makes a copy first.
    exactly = {"num_beams": beams, "min_new_tokens": None, "max_new_tokens": 6, "eos_token_id": None}
    for why_not in (search.why_not, lambda *a: "a test"):
        monkeypatch.setattr(search, "why_not", why_not)
        collector = Collector()
        decode(toy().float(), **sources((5, 5)), **exactly, logits_processor=LogitsProcessorList([collector]))
        kept.append(torch.stack(collector.seen))
    torch.testing.assert_close(*kept)


def test_attention_implementations(monkeypatch):
    model = toy()
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        assert_equal_loops(model, monkeypatch, **sources((6, 1, 4)), num_beams=3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"use_cache": False},
        {"cache_implementation": "static", "disable_compile": True},
        {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1000.0)])},
        {"output_attentions": True},
        {"output_hidden_states": True},
        {"output_logits": True},
        {"streamer": TextStreamer(None)},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_what_it_does_not_know_goes_to_transformers(arguments, monkeypatch):
    if "streamer" in arguments:
        monkeypatch.setattr(TextStreamer, "put", lambda *a: None)
        monkeypatch.setattr(TextStreamer, "end", lambda *a: None)
    assert_equal_loops(toy(), monkeypatch, fast=False, **sources((6, 1, 4)), **arguments)


def test_a_cache_of_ones_own_is_used():
    model = toy()
    cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    cache.self_attention_cache.update(*torch.zeros(2, 3, 2, 1, 8, dtype=torch.float64), 0)
    arguments = {"use_cache": True, CACHE: cache}
    assert search.why_not(model, [], GenerationConfig(num_beams=1), arguments) == "a cache that was given"


def test_brute_force():
    """A search wide enough finds the best of all translations, with "never" and any penalty."""
    model = TransformerForConditionalGeneration(config_for("transformer", "tiny", **{**TINY, "vocab_size": 6})).double()
    redraw(model.eval(), 5)
    inputs = sources((4, 2), 6)
    others = [token for token in range(6) if token != 1]
    rows = [[*body, 1] for length in range(3) for body in itertools.product(others, repeat=length)]
    rows += [list(body) for body in itertools.product(others, repeat=3)]
    for penalty in (0.0, 1.0, 1.7):
        arguments = {"num_beams": 160, "early_stopping": "never", "length_penalty": penalty, "max_new_tokens": 3}
        found = decode(model, **inputs, **arguments)
        for sentence in range(2):
            scores = log_probabilities(model, inputs, sentence, rows)
            score, best = max((score / len(row) ** penalty, row) for score, row in zip(scores, rows))
            assert found.sequences[sentence, 1 : 1 + len(best)].tolist() == best
            assert found.sequences_scores[sentence].item() == pytest.approx(score, abs=1e-5)


@torch.no_grad()
def log_probabilities(model, inputs, sentence: int, rows: list[list[int]]) -> list[float]:
    """ln P of every row given the sentence, by forced decoding."""
    source = {name: value[sentence].expand(len(rows), -1) for name, value in inputs.items()}
    target = torch.tensor([[3, *row[:-1], *[0] * (3 - len(row))] for row in rows])
    logits = model(**source, decoder_input_ids=target).logits.log_softmax(-1)
    return [logits[i, range(len(row)), row].sum().item() for i, row in enumerate(rows)]


def test_draws_are_those_of_multinomial():
    scores = torch.randn(3, 2, 50)
    choice = object.__new__(Draws)
    torch.manual_seed(4)
    expected = torch.multinomial(scores.flatten(0, 1).softmax(-1), 1).view(3, 2)
    for rows in ([0, 1, 2], [1, 2]):
        torch.manual_seed(4)
        choice.batch = SimpleNamespace(ids=torch.tensor(rows), count=3)
        assert choice.tokens(scores[rows]).tolist() == expected[rows].tolist()


@pytest.mark.parametrize("warped", [{}, {"top_k": 5}])
def test_cheap_draws_follow_the_distribution(warped):
    """Chi-square of 4,000 first tokens of two sentences; the same seed gives the same."""
    model, inputs = toy(40).float(), sources((6, 3), 40)
    options = {"do_sample": True, "draws": "row", "top_k": 0, "max_new_tokens": 2, "eos_token_id": None, **warped}
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=torch.full((2, 1), 3)).logits[:, -1]
    for k in warped.values():
        logits = logits.masked_fill(logits < logits.topk(k).values[:, -1:], -torch.inf)
    expected = 4000 * logits.softmax(-1)
    many = {name: value.repeat(500, 1) for name, value in inputs.items()}
    drawn = decode(model, **many, **options, num_return_sequences=8).sequences
    for sentence, tokens in enumerate(drawn[:, 1].view(500, 2, 8).unbind(1)):
        counts, possible = torch.bincount(tokens.flatten(), minlength=40), expected[sentence] > 0
        assert not counts[~possible].any()
        chi = ((counts - expected[sentence]) ** 2 / expected[sentence])[possible].sum()
        freedom = int(possible.sum()) - 1
        assert abs(float(chi) - freedom) < 4 * (2 * freedom) ** 0.5
    assert torch.equal(decode(model, **many, **options, num_return_sequences=8).sequences, drawn)


def test_cheap_draws_where_sentences_leave_and_at_the_ends_of_the_numbers(monkeypatch):
    model, inputs = toy(60, seed=2), sources((6, 1, 4, 9, 3, 12, 30, 2), 60)
    options = {**ENDING, "do_sample": True, "draws": "row", "top_k": 0, "num_return_sequences": 2}
    left, found = [], decode(model, **inputs, **options).sequences
    monkeypatch.setattr(Rules, "sentences_to_keep", lambda *given: left.append(given))
    assert decode(model, **inputs, **options).sequences.tolist() == found.tolist()
    assert left
    for number, token in ((0.0, 1), (1.0, 3)):  # the first and the last that is possible, also where 1 - 2^-24 is 1
        monkeypatch.setattr(torch, "rand", lambda *shape, number=number, **given: torch.full(shape, number))
        rows = torch.tensor([[-torch.inf, 1.0, 0.3, 2.0, -torch.inf]]).view(1, 1, 5)
        assert DrawsByRow.pick(rows, DrawsByRow.noise(1, 5, None).view(1, 1, 1)).item() == token


@pytest.mark.parametrize(
    "options", [{"draws": "each"}, {"draws": "row", "do_sample": False}, {"draws": "row", "num_beams": 2}]
)
def test_draws_that_are_refused(options):
    with pytest.raises(ValueError, match="draws="):
        decode(toy(), **sources((3, 2)), **{"do_sample": True, **options})
    with pytest.raises(ValueError, match="draws=row: Transformers' loop does not know it"):
        decode(toy(), **sources((3, 2)), do_sample=True, draws="row", output_scores=True)


@pytest.mark.parametrize("vocabulary", [30, 64, 1000, 1025, 5003])
def test_best_continuations_are_topk(vocabulary):
    log_probs, running = torch.randn(3, 4, vocabulary).log_softmax(-1), torch.randn(3, 4)
    scores, beams, tokens = best_continuations(log_probs, running, 8)
    expected, index = (log_probs + running.unsqueeze(-1)).flatten(1).topk(8)
    assert scores.tolist() == expected.tolist()
    assert (beams * vocabulary + tokens).tolist() == index.tolist()


ENDS = [2, 7]


def rules_of(*more):
    found = [MinLengthLogitsProcessor(4, ENDS), MinNewTokensLengthLogitsProcessor(1, 5, ENDS), *more]
    return Rules(LogitsProcessorList(found), [EosTokenCriteria(ENDS)])


def likely_ends(beams: int):
    scores = torch.randn(3, beams, 100, generator=torch.Generator().manual_seed(1))
    scores[..., ENDS] += 4
    return scores


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("length", [1, 3, 5, 6, 7])
@pytest.mark.parametrize("beams", [1, 3])
def test_least_lengths_without_a_pass_over_the_logits(beams, length, native, monkeypatch):
    monkeypatch.setenv("HF_MLNMT_NATIVE", native)
    rules, scores, history = rules_of(), likely_ends(beams), torch.zeros(3, beams, length, dtype=torch.long)
    running, count = torch.randn(3, beams), 3 * beams
    log_probs = rules.processors(history.flatten(0, 1), scores.log_softmax(-1).flatten(0, 1)).view(scores.shape)
    expected, places = (log_probs + running[..., None]).flatten(1).topk(count)
    sums, parents, tokens = continuations(rules, history, scores.clone(), False, running, count)
    torch.testing.assert_close(sums, expected)
    assert torch.equal(parents * 100 + tokens, places)
    assert bool(torch.isin(tokens, torch.tensor(ENDS)).any()) == (length >= 6)


@pytest.mark.parametrize("length", [3, 5, 6])
def test_scores_of_least_lengths(length):
    """Of one row for all draws of a sentence, too."""
    rules, scores, history = rules_of(), likely_ends(1), torch.zeros(3, 2, length, dtype=torch.long)
    scores = scores.expand(-1, 2, -1)
    expected = rules.processors(history.flatten(0, 1), scores.flatten(0, 1)).view(scores.shape)
    assert torch.equal(rules.process(history, scores), expected)


def test_least_lengths_beside_other_processors():
    rules, scores, history = rules_of(TemperatureLogitsWarper(0.5)), likely_ends(2), torch.zeros(3, 2, 3).long()
    assert not rules.lengths_alone
    expected = rules.processors(history.flatten(0, 1), scores.flatten(0, 1).clone()).view(scores.shape)
    assert torch.equal(rules.process(history, scores), expected)


def test_the_table_of_steps_names_what_there_is():
    """The names in search/__init__.py's table of a beam step's four parts are there; the files bear the numbers."""
    lines = [line.strip("| ").split(" | ") for line in search.__doc__.splitlines()]
    files, *rows = (row[1:] for row in lines if len(row) == 5 and "---" not in row[0])
    for number, cells in enumerate(rows, start=1):
        for file, cell in zip(files, cells, strict=True):
            text = (Path(search.__file__).parent / file).read_text("utf-8")
            assert f"({number})" in text, file
            for name in re.findall(r"(\w+)`", cell):
                assert re.search(rf"^ *(def|long|static \w+) {name}\(", text, re.MULTILINE), f"{file}: {name}"
            assert max(map(len, text.splitlines())) <= 120
    assert number == 4
