"""Beam search with recombination: against enumeration, with models that see k tokens and with those that see all."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
import torch
from helpers.fused import fused, translator
from helpers.searching import decode, sources
from helpers.toy_context import bigram_language_model, bigram_translator

from hf_mlnmt.search.hypotheses import IMPOSSIBLE
from hf_mlnmt.search.recombination import Recombination

VOCABULARY, LONGEST = 6, 4


def bigrams(normalization: str = "sequence", sees: int = 1):
    """A fused model of two that see one token of the target (or none)."""
    lms = [bigram_language_model(VOCABULARY, sees=sees)]
    settings = {"normalization": normalization, "alpha": 0.6, "beta": 0.4}
    return fused(bigram_translator(VOCABULARY, sees=sees), lms=lms, **settings)


@torch.no_grad()
def scores_of(model, source, rows):
    """log q of every row (behind the start token), one after the other."""
    found = {}
    for length in {len(row) for row in rows}:
        alike = torch.tensor([row for row in rows if len(row) == length])
        prompts = torch.cat([torch.full((len(alike), 1), 3), alike[:, :-1]], 1)
        repeated = {name: value.expand(len(alike), -1) for name, value in source.items()}
        logits = model(**repeated, decoder_input_ids=prompts).logits
        logits = logits if model.logits_are_scores else logits.log_softmax(-1)
        scores = logits.gather(2, alike[:, :, None])[..., 0].sum(1)
        found.update(zip(map(tuple, alike.tolist()), scores.tolist(), strict=True))
    return [found[tuple(row)] for row in rows]


def nodes(rows, scores, k, alpha):
    """Finished nodes of the whole trellis: (length, last k tokens before </s>) -> (log sum, best path).

    What is added up is q: a score (4.4) is log q / alpha.
    """
    groups = defaultdict(list)
    for row, score in zip(rows, scores):
        context = (3, *row[:-1])[-k:] if k else ()
        groups[len(row), context].append((score, row))
    return {
        key: (float((alpha * torch.tensor([score for score, _ in group])).logsumexp(0)) / alpha, max(group)[1])
        for key, group in groups.items()
    }


@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("normalization", ["symbol", "sequence"])
def test_of_a_model_that_sees_k_tokens_sums_are_those_of_all_paths(k, normalization):
    """Every finished node: the probability of all paths through it, and the best of them."""
    model, inputs = bigrams(normalization, sees=k), sources((3, 2), VOCABULARY)
    others = [token for token in range(VOCABULARY) if token != 1]
    rows = [[*body, 1] for n in range(LONGEST) for body in itertools.product(others, repeat=n)]
    # As many beams as there are nodes, and with the candidates that end.
    options = {"num_beams": 40, "num_return_sequences": 40, "early_stopping": "never", "length_penalty": 0.0}
    found = decode(model, **inputs, **options, max_new_tokens=LONGEST, recombine=k)
    for sentence in range(2):
        source = {name: value[sentence : sentence + 1] for name, value in inputs.items()}
        expected = nodes(rows, scores_of(model, source, rows), k, 0.6 if normalization == "sequence" else 1.0)
        part, ended = slice(40 * sentence, 40 * (sentence + 1)), 0
        for ids, score in zip(found.sequences[part].tolist(), found.sequences_scores[part].tolist()):
            assert score > IMPOSSIBLE / 100 or score == -torch.inf  # a beam that was joined ends nothing
            if score > IMPOSSIBLE / 100 and 1 in ids:
                row = ids[1 : ids.index(1) + 1]
                total, best = expected[len(row), (3, *row[:-1])[-k:] if k else ()]
                assert score == pytest.approx(total, abs=1e-5)
                assert row == best
                ended += 1
        assert ended == len(expected)
    scales = {name: getattr(model.config, name) for name in ("alpha", "beta")}
    model.config.alpha, model.config.beta = 1.3, 0.1
    model.generation_config.alpha, model.generation_config.beta = 0.7, 2.0
    called = decode(model, **inputs, **options, max_new_tokens=LONGEST, recombine=k, **scales)
    assert torch.equal(called.sequences_scores, found.sequences_scores)


def test_a_context_longer_than_any_translation_joins_nothing():
    model, inputs = fused(translator(vocabulary=50)), sources((4, 2, 7), 50)
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 9}
    options["exponential_decay_length_penalty"] = (2, 1.1)
    found, expected = decode(model, **inputs, **options, recombine=20), decode(model, **inputs, **options)
    assert found.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)
    assert decode(model, **inputs, **options, recombine=1).sequences.tolist() != expected.sequences.tolist()


def test_who_stands_for_whom():
    """One sentence, five beams: two groups, a beam of its own, one that is no longer there."""
    running = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -1e9]])
    joined = Recombination(2, torch.tensor([[3]]), running)
    joined.recent = torch.tensor([[[5, 6], [5, 6], [6, 6], [5, 6], [5, 6]]])
    joined.paths = torch.tensor([[-9.0, -2.0, -3.0, -4.0, 0.0]])
    total = torch.tensor([-1.0, -2.0, -4.0]).logsumexp(0)
    expected = torch.tensor([[IMPOSSIBLE, total, -3.0, IMPOSSIBLE, IMPOSSIBLE]])
    torch.testing.assert_close(joined.join(running), expected)
    joined.follow(torch.full((1, 5), -1.0), torch.tensor([[7, 8, 9, 4, 4]]), torch.tensor([[1, 1, 2, 2, 0]]))
    assert joined.recent[0].tolist() == [[6, 7], [6, 8], [6, 9], [6, 4], [6, 4]]
    assert joined.paths[0].tolist() == [-3.0, -3.0, -4.0, -4.0, -10.0]


def test_a_search_goes_on_while_joined_beams_may_beat_what_is_finished():
    """Every continuation is less likely than </s>, and all together are more: q of a node grows with its length."""
    translation = bigram_translator(VOCABULARY, sees=0)
    probabilities = torch.full((VOCABULARY,), 0.0416, dtype=torch.float64)
    probabilities[1] = 1 - 5 * 0.0416
    with torch.no_grad():
        translation.of_source.weight.zero_()
        translation.of_source.bias.copy_(probabilities.log())
    model = fused(translation, lms=[], alpha=0.5)
    options = {"num_beams": 5, "num_return_sequences": 5, "early_stopping": False, "length_penalty": 0.0}
    searched = decode(model, **sources((3,), VOCABULARY), **options, max_new_tokens=12, recombine=0)
    others, end = 5 * probabilities[0] ** 0.5, probabilities[1] ** 0.5
    assert others > 1
    expected = torch.tensor([float((others**n * end).log() / 0.5) for n in range(11, 6, -1)])
    torch.testing.assert_close(searched.sequences_scores, expected, rtol=1e-5, atol=1e-5)


def test_what_is_kept_of_sentences_that_stay():
    joined = Recombination(2, torch.tensor([[3], [4], [5]]), torch.zeros(3, 2))
    joined.paths = torch.tensor([[-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0]])
    joined.keep(torch.tensor([2, 0]))
    assert joined.paths.tolist() == [[-5.0, -6.0], [-1.0, -2.0]]
    assert joined.recent.tolist() == [[[-1, 5], [-1, 5]], [[-1, 3], [-1, 3]]]


def test_sentences_leave(monkeypatch):
    """What a sentence gives does not depend on those beside it."""
    model, inputs = translator(vocabulary=50), sources((4, 2, 12, 7, 1, 9), 50)
    options = {"num_beams": 4, "recombine": 1, "exponential_decay_length_penalty": (2, 1.1), "max_new_tokens": 20}
    found = decode(model, **inputs, **options)
    for sentence in range(6):
        alone = {name: value[sentence : sentence + 1] for name, value in inputs.items()}
        expected = decode(model, **alone, **options)
        length = expected.sequences.shape[1]
        assert found.sequences[sentence, :length].tolist() == expected.sequences[0].tolist()
        torch.testing.assert_close(found.sequences_scores[sentence], expected.sequences_scores[0])


def test_what_is_refused():
    model, inputs = translator(), sources((4, 2), 29)
    for wrong in (-1, 1.5, True, "1"):
        with pytest.raises(ValueError, match="recombine="):
            decode(model, **inputs, num_beams=2, recombine=wrong)
    with pytest.raises(ValueError, match="joins the beams of a beam search"):
        decode(model, **inputs, recombine=1)
    with pytest.raises(ValueError, match=r"recombine=.: Transformers' loop does not know it"):
        decode(model, **inputs, num_beams=2, recombine=1, output_scores=True)
    model.generation_config.recombine = 1
    with pytest.raises(ValueError, match=r"recombine=.: Transformers' loop does not know it"):
        decode(model, **inputs, num_beams=2, output_scores=True)
