"""Fused models in the search: against enumeration, Transformers' loops, and the members alone."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from helpers.contract import assert_same
from helpers.fused import exponents, fused, language_model, marian, member_logits, our_language_model, t5, translator
from helpers.searching import assert_equal_loops, decode, sources
from reference.fusion import every_sequence, sequence_scores, symbol_scores

from hf_mlnmt import search
from hf_mlnmt.generation.translating.batches import generated_lengths, log_probabilities

VOCABULARY, LONGEST = 6, 3
BEAMS = {"num_beams": 4, "num_return_sequences": 3}


@pytest.mark.parametrize("normalization", ["symbol", "sequence"])
@torch.no_grad()
def test_the_best_of_all(normalization):
    """A search as wide as there are prefixes finds every translation, with the score of the slow loops."""
    model = fused(translator(vocabulary=VOCABULARY), normalization=normalization)
    inputs, alpha, beta = sources((4, 2), VOCABULARY), 0.8, 0.5
    rows = every_sequence(VOCABULARY, 1, LONGEST)
    options = {"num_beams": 160, "num_return_sequences": 150, "early_stopping": "never", "length_penalty": 1.0}
    found = decode(model, **inputs, **options, max_new_tokens=LONGEST, alpha=alpha, beta=beta)
    powers = exponents(model, alpha, beta)
    for sentence in range(2):
        source = {name: value[sentence : sentence + 1] for name, value in inputs.items()}
        expected = {}
        for row in rows:
            parts = member_logits(model, source, torch.tensor([[3, *row[:-1]]]))
            steps = [[one[0, position] for one in parts] for position in range(len(row))]
            if normalization == "symbol":
                scores = [symbol_scores(step, powers)[token] for step, token in zip(steps, row)]
            else:
                scores = [sequence_scores(step, powers, alpha)[token] for step, token in zip(steps, row)]
            expected[tuple(row)] = float(sum(scores)) / len(row)
        part = slice(150 * sentence, 150 * (sentence + 1))
        for ids, score in zip(found.sequences[part].tolist(), found.sequences_scores[part].tolist()):
            row = tuple(ids[1 : ids.index(1) + 1]) if 1 in ids else None
            if row is not None:  # others were cut off at the length limit
                assert score == pytest.approx(expected.pop(row), abs=1e-5)
        assert len(expected) < 10
        assert max(expected.values(), default=-1e9) < float(found.sequences_scores[part][-1])


KINDS = {
    "ours": lambda: fused(translator(vocabulary=200), lms=[our_language_model(200)]),
    "ensemble": lambda: fused(translator("m-10", 1, 200), translator("dec-dc", 2, 200), translator(vocabulary=200)),
    "foreign": lambda: fused(marian(200), t5(200)),
    "mixed": lambda: fused(translator("previous-context-head", 0, 200), marian(200)),
    "no language model": lambda: fused(translator(vocabulary=200), translator("rnn", 1, 200), lms=[]),
    "two language models": lambda: fused(
        translator(vocabulary=200), lms=[our_language_model(200), language_model(200, seed=3)]
    ),
    "weights, one of them 0": lambda: fused(
        translator("m-10", 1, 200), marian(200), translator(vocabulary=200), translation_weights=[0.0, 0.9, 0.4]
    ),
}


@pytest.mark.parametrize(
    ("kind", "normalization"), [("ours", "symbol"), *zip(KINDS, itertools.cycle(["sequence", "symbol"]))]
)
def test_it_finds_what_transformers_finds(kind, normalization, monkeypatch):
    """Sentences leave and beams change places in every member; Transformers' loop adds up unnormalised scores too."""
    model, left = KINDS[kind](), []
    model.config.normalization = normalization
    keep = search.loop.SearchBatch.keep
    monkeypatch.setattr(search.loop.SearchBatch, "keep", lambda self, rows: (left.append(len(rows)), keep(self, rows)))
    inputs = sources((4, 2, 30, 7, 1, 20, 9, 11))
    ends = {"exponential_decay_length_penalty": (2, 1.1), "max_new_tokens": 20}
    assert_equal_loops(model, monkeypatch, **inputs, **BEAMS, **ends, alpha=0.9, beta=0.3)
    assert left
    assert_equal_loops(model, monkeypatch, **inputs, num_beams=1, max_new_tokens=4)


def test_sampling(monkeypatch):
    options = {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 8}
    assert_equal_loops(KINDS["ours"](), monkeypatch, **sources((4, 2, 7)), **options)


@pytest.mark.parametrize("normalization", ["symbol", "sequence"])
def test_of_no_weight(normalization):
    """beta = 0 is the translation model alone: the same tokens, the same scores, with and without its step by step."""
    model, inputs = fused(translator(vocabulary=200), normalization=normalization), sources((4, 2, 30, 7))
    alone = model.translation_models[0]
    for options in (BEAMS, {"num_beams": 1}):
        found = decode(model, **inputs, **options, beta=0)
        expected = decode(alone, **inputs, **options)
        assert found.sequences.tolist() == expected.sequences.tolist()
        if "sequences_scores" in expected:
            assert_same(found.sequences_scores, expected.sequences_scores, 1e-5)


def test_scales_of_a_call_of_a_generation_config_and_of_a_config():
    model, inputs = fused(translator(vocabulary=200), alpha=0.9, beta=0.2), sources((4, 2, 7))
    wanted = {"alpha": 0.7, "beta": 1.5}
    expected = decode(model, **inputs, **BEAMS, **wanted)
    for name, value in wanted.items():
        setattr(model.generation_config, name, value)
    for options in ({}, {"alpha": 0.9, "beta": 0.2}):
        found = decode(model, **inputs, **BEAMS, **options)
        assert torch.equal(found.sequences_scores, expected.sequences_scores) == (not options)
    given = copy.deepcopy(model.generation_config)  # which is asked before the model's own
    model.generation_config.alpha, model.generation_config.beta = 0.9, 0.2
    same = decode(model, **inputs, **BEAMS, generation_config=given)
    assert torch.equal(same.sequences_scores, expected.sequences_scores)
    del model.generation_config.alpha, model.generation_config.beta
    same = decode(model, **inputs, **BEAMS)
    assert torch.equal(same.sequences_scores, found.sequences_scores)
    model.config.alpha, model.config.beta = 0.7, 1.5
    assert torch.equal(decode(model, **inputs, **BEAMS).sequences_scores, expected.sequences_scores)
    for wrong in ({"alpha": -1}, {"beta": float("nan")}, {"alpha": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            decode(model, **inputs, **wrong)


@pytest.mark.parametrize("normalization", ["symbol", "sequence"])
def test_one_pass_over_the_translations_gives_the_scores_of_the_search(normalization):
    model, inputs = fused(translator(vocabulary=200), normalization=normalization), sources((4, 2, 7))
    scales = {"alpha": 0.8, "beta": 0.6}
    found = decode(model, **inputs, **BEAMS, **scales, length_penalty=0.0)
    lengths = generated_lengths(found.sequences, 1)
    scored = log_probabilities(model, **inputs, sequences=found.sequences, lengths=lengths, **scales).sum(1)
    assert_same(scored, found.sequences_scores, 1e-5)


def test_encoders_read_the_source_once(monkeypatch):
    """Whatever the number of beams, and so do attentions over it."""
    model, calls = fused(translator(vocabulary=200)), []
    encoder = model.translation_models[0].get_encoder()
    encoder.register_forward_pre_hook(
        lambda module, given, named: calls.append(named["input_ids"].shape), with_kwargs=True
    )
    decode(model, **sources((4, 2, 7)), **BEAMS)
    assert calls == [(3, 7)]
