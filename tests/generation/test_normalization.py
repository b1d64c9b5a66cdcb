"""The length normalisations against exhaustive enumeration: what generate() finds with them is the true optimum."""

import copy
import itertools

import pytest
import torch
from helpers.toy_translators import our_model
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig

from hf_mlnmt.generation.translating.options import LENGTH_NORMALIZATIONS, LengthPenalty

LONGEST = 5  # generated tokens; 4 + 3*4 + ... few enough to list all
VOCABULARY = 5
EOS, START = 1, 3
FORMULAS = {
    "generate": lambda z, a: z**a,
    "length": lambda z, a: z**a,
    "length+1": lambda z, a: (1 + z) ** a,
    "gnmt": lambda z, a: ((5 + z) / 6) ** a,
}


@given(st.sampled_from(LENGTH_NORMALIZATIONS), st.integers(1, 600), st.floats(-2, 2))
def test_power_of_a_length_is_the_formula(name, length, exponent):
    penalty = LengthPenalty(exponent, name)
    assert length**penalty == pytest.approx(FORMULAS[name](length, exponent))
    assert (torch.tensor([length]) ** penalty).item() == pytest.approx(FORMULAS[name](length, exponent), 1e-5)


@pytest.mark.parametrize("exponent", [-10.0, -7.0, 10.0])
def test_the_search_goes_as_far_as_exponents_may(exponent):
    """Scores far below those of beams that never began."""
    model, source = our_model(40, seed=3), torch.arange(5, 12)[None]
    asked = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 30, "min_new_tokens": 25}
    output = model.generate(
        source, **asked, length_penalty=LengthPenalty(exponent), return_dict_in_generate=True, early_stopping="never"
    )
    assert output.sequences.shape[1] > 25
    assert output.sequences_scores.isfinite().all()
    assert (output.sequences_scores.diff() <= 0).all()


@pytest.mark.parametrize("name", ["length", "length+1", "gnmt"])
def test_a_forced_language_code_is_not_counted(name):
    assert 7 ** LengthPenalty(0.6, name, uncounted=1) == pytest.approx(FORMULAS[name](6, 0.6))
    assert 1 ** LengthPenalty(0.6, name, uncounted=1) > 0
    assert 7 ** LengthPenalty(0.6, "generate", uncounted=1) == pytest.approx(7**0.6)


def test_it_survives_what_generate_does_with_its_config():
    penalty = copy.deepcopy(LengthPenalty(0.6, "gnmt", uncounted=1))
    assert (type(penalty), penalty.normalization, penalty.uncounted) == (LengthPenalty, "gnmt", 1)
    config = GenerationConfig(length_penalty=penalty, num_beams=2)
    assert '"length_penalty": 0.6' in config.to_json_string()


def all_translations():
    """Every output of at most LONGEST tokens: ended by EOS, or cut at the limit."""
    other = [token for token in range(VOCABULARY) if token != EOS]
    for length in range(1, LONGEST + 1):
        for body in itertools.product(other, repeat=length - 1):
            for last in range(VOCABULARY) if length == LONGEST else [EOS]:
                yield (*body, last)


def optimum(model, source, exponent, name):
    """(score, tokens) of the best of all translations, by scoring each of them whole."""
    candidates = list(all_translations())
    best = (-1e9, ())
    for length, group in itertools.groupby(candidates, key=len):
        rows = torch.tensor(list(group))
        start = torch.full((len(rows), 1), START)
        with torch.no_grad():
            logits = model(
                input_ids=source.expand(len(rows), -1), decoder_input_ids=torch.cat([start, rows[:, :-1]], dim=1)
            ).logits
        logs = logits.double().log_softmax(-1).gather(2, rows[:, :, None])[:, :, 0].sum(1)
        scores = logs / FORMULAS[name](length, exponent)
        best = max(best, (scores.max().item(), tuple(rows[scores.argmax()].tolist())))
    return best


@pytest.mark.parametrize(
    ("name", "exponent"), [("generate", 0.0), *itertools.product(LENGTH_NORMALIZATIONS, [0.6, 1.1, -0.5])]
)
def test_wide_beam_search_finds_the_true_optimum(name, exponent):
    source = torch.tensor([[2, 4, 3, 1]])
    for seed in range(2):
        model = our_model(VOCABULARY, seed=seed)
        output = model.generate(
            input_ids=source, attention_mask=torch.ones_like(source), num_beams=600, max_new_tokens=LONGEST,
            early_stopping="never", length_penalty=LengthPenalty(exponent, name),
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        score, tokens = optimum(model, source, exponent, name)
        assert output.sequences_scores[0].item() == pytest.approx(score, abs=1e-4)
        assert tuple(output.sequences[0, 1 : 1 + len(tokens)].tolist()) == tokens
