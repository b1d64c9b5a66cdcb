"""Beams that are drawn, sequences drawn without replacement, top-n-sigma: against their definitions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from helpers.searching import assert_equal_loops, decode, sources, tiny, toy

from hf_mlnmt.search.rules import TopNSigma
from hf_mlnmt.search.strategies import SampledBeams

VOCABULARY, END, START, LONGEST = 5, 1, 3, 5
DRAWS = 4000


@torch.no_grad()
def every_sequence(model, source, temperature: float) -> dict[tuple[int, ...], float]:
    """Sequence -> P, of all that can be generated within the limit."""
    others, found = [token for token in range(VOCABULARY) if token != END], {}
    for length in range(LONGEST + 1):
        bodies = torch.tensor(list(itertools.product(others, repeat=length))).view(len(others) ** length, length).long()
        inputs = torch.cat([torch.full((len(bodies), 1), START), bodies], 1)[:, :LONGEST]
        rows = bodies if length == LONGEST else torch.cat([bodies, torch.full((len(bodies), 1), END)], 1)
        repeated = {name: value.expand(len(bodies), -1) for name, value in source.items()}
        logs = (model(**repeated, decoder_input_ids=inputs).logits / temperature).log_softmax(-1)
        sums = logs.gather(2, rows.unsqueeze(-1)).sum((1, 2)).exp().tolist()
        found |= dict(zip(map(tuple, rows.tolist()), sums))
    assert sum(found.values()) == pytest.approx(1)
    return found


def assert_fits(drawn, expected) -> None:
    """Chi-square of counts against probabilities; what is expected fewer than 5 times counts together."""
    often = [row for row, share in expected.items() if share * len(drawn) >= 5]
    pairs = [(drawn.count(row), expected[row] * len(drawn)) for row in often]
    pairs.append((len(drawn) - sum(count for count, _ in pairs), len(drawn) - sum(mean for _, mean in pairs)))
    square, free = sum((count - mean) ** 2 / mean for count, mean in pairs), len(pairs) - 1
    assert free > 5
    assert square < free + 5 * math.sqrt(2 * free)


@pytest.mark.parametrize(("system", "temperature"), [("transformer", 1.5), ("rnn", 1.0)])
def test_draws_without_replacement(system, temperature):
    """The first of two is a draw, the second one of what is left; the scores are log P, by the rules."""
    model, source = tiny(system, VOCABULARY, seed=4), sources((3,), VOCABULARY)
    shares = every_sequence(model, source, temperature)
    many = {name: value.expand(DRAWS, -1) for name, value in source.items()}
    options = {"do_sample": True, "num_beams": 2, "num_return_sequences": 2, "top_k": 0, "max_new_tokens": LONGEST}
    options["temperature"] = temperature
    output = decode(model, **many, **options, without_replacement=True)
    rows = [tuple(row[1 : row.index(END) + 1] if END in row else row[1:]) for row in output.sequences.tolist()]
    first, second = rows[::2], rows[1::2]
    assert all(map(tuple.__ne__, first, second))
    logs = [math.log(shares[row]) for row in rows]
    assert output.sequences_scores.tolist() == pytest.approx(logs, abs=1e-4)
    assert_fits(first, shares)
    left = sum(share / (1 - share) for share in shares.values())
    assert_fits(second, {row: p * (left - p / (1 - p)) for row, p in shares.items()})


def test_in_a_batch_with_sentences_that_leave():
    model, inputs = toy(), sources((6, 1, 4, 9, 3))
    ends = {"exponential_decay_length_penalty": (2, 1.2), "max_new_tokens": 30, "temperature": 0.7}
    output = decode(
        model, **inputs, do_sample=True, num_beams=6, num_return_sequences=6, without_replacement=True, **ends
    )
    for rows in output.sequences.split(6):
        assert len(set(map(tuple, rows.tolist()))) == 6


@pytest.mark.parametrize("options", [{"num_return_sequences": 2}, {"num_return_sequences": 4, "top_k": 9}], ids=str)
def test_drawn_beams_are_those_of_transformers(options, monkeypatch):
    ends = {"exponential_decay_length_penalty": (2, 1.2), "max_new_tokens": 20, "temperature": 1.3}
    options = {"top_k": 0, **ends, **options}
    inputs, counts = sources((6, 1, 4, 9, 2, 7)), []
    step = SampledBeams.step
    monkeypatch.setattr(
        SampledBeams, "step", lambda self, *given: (counts.append(len(self.batch.ids)), step(self, *given))[1]
    )
    found = assert_equal_loops(toy(), monkeypatch, **inputs, num_beams=4, do_sample=True, **options)
    assert counts[0] == len(inputs["input_ids"]) > counts[-1]  # sentences have left
    best = decode(toy(), **inputs, num_beams=4, **ends, num_return_sequences=options["num_return_sequences"])
    assert found.sequences.tolist() != best.sequences.tolist()


def test_top_n_sigma():
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    scores[1, 7:] = -torch.inf
    kept = TopNSigma(1.2)(torch.zeros(3, 1), scores)
    for row, found in zip(scores, kept, strict=True):
        there = row[row.isfinite()]
        least = there.max() - 1.2 * there.std(correction=0)
        assert found.isfinite().tolist() == (row >= least).tolist()
    assert (TopNSigma(1.2)(torch.zeros(3, 1), scores / 0.3).isfinite() == kept.isfinite()).all()


@pytest.mark.parametrize(
    "options", [{"num_beams": 2}, {"do_sample": True}, {"do_sample": True, "num_beams": 2, "recombine": 1}], ids=str
)
def test_what_is_refused(options):
    with pytest.raises(ValueError, match=r"without_replacement=True: needs|recombine=1: joins"):
        decode(toy(), **sources((3, 2)), without_replacement=True, **options)
    with pytest.raises(ValueError, match="Transformers' loop does not know it"):
        given = {"without_replacement": True, "do_sample": True, "num_beams": 2, "output_scores": True}
        decode(toy(), **sources((3, 2)), **given)
