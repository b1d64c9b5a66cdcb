"""The loops with other decoders: an LSTM and its state, two models side by side, scores that nothing may normalise."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers.contract import TINY, redraw
from helpers.searching import assert_equal_loops, decode, sources
from helpers.toy_decoders import OnlyLSTM, TwoModels, register
from torch.nn.functional import pad

from hf_mlnmt import TransformerForConditionalGeneration, config_for, search
from hf_mlnmt.generation.translating.batches import log_probabilities
from hf_mlnmt.search.decoder import SourceBatch

VOCABULARY, LONGEST = 6, 3
EXHAUSTIVE = {"num_beams": 160, "early_stopping": "never", "max_new_tokens": LONGEST}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    register(monkeypatch)


def build(kind, vocabulary: int = VOCABULARY):
    model = kind(config_for("transformer", "tiny", **{**TINY, "vocab_size": vocabulary})).eval()
    redraw(model, 5)
    return model


def all_rows() -> list[list[int]]:
    """Every translation of at most LONGEST tokens, ending in </s> (1) unless it is as long as that."""
    others = [token for token in range(VOCABULARY) if token != 1]
    rows = [[*body, 1] for length in range(LONGEST) for body in itertools.product(others, repeat=length)]
    return rows + [list(body) for body in itertools.product(others, repeat=LONGEST)]


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of tokens behind the start token, (rows, 1 + longest), and their lengths without it."""
    longest = max(map(len, rows))
    targets = torch.tensor([[3, *row, *[0] * (longest - len(row))] for row in rows])
    return targets, torch.tensor([len(row) for row in rows])


@torch.no_grad()
def scores_of(model, inputs, sentence: int, rows: list[list[int]]) -> torch.Tensor:
    """The sum that a search must find for each row, from whole prefixes: no state, no beams."""
    source = {name: value[sentence].expand(len(rows), -1) for name, value in inputs.items()}
    targets, lengths = padded(rows)
    encoded = SourceBatch(model.get_encoder()(**source), source["attention_mask"].bool())
    steps = [model.second.begin(targets[:, :end], encoded)[0] for end in range(1, targets.shape[1])]
    logs = torch.cat(steps, dim=1).log_softmax(-1)  # (rows, longest, vocabulary)
    if type(model) is TwoModels:
        first = model(**source, decoder_input_ids=targets[:, :-1]).logits.log_softmax(-1)
        logs = first + model.weight * logs
    chosen = logs.gather(2, targets[:, 1:, None])[..., 0]
    return (chosen * (torch.arange(chosen.shape[1]) < lengths[:, None])).sum(1)


@pytest.mark.parametrize("kind", [OnlyLSTM, TwoModels])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_brute_force(kind, penalty):
    """A search wide enough finds the best of all translations, whatever the decoder and its state."""
    model, inputs, rows = build(kind), sources((4, 2), VOCABULARY), all_rows()
    found = decode(model, **inputs, **EXHAUSTIVE, length_penalty=penalty)
    for sentence in range(2):
        scores = scores_of(model, inputs, sentence, rows) / torch.tensor([len(row) ** penalty for row in rows])
        best = rows[int(scores.argmax())]
        assert found.sequences[sentence, 1 : 1 + len(best)].tolist() == best
        assert found.sequences_scores[sentence].item() == pytest.approx(float(scores.max()), abs=1e-5)


@pytest.mark.parametrize("kind", [OnlyLSTM, TwoModels])
def test_states_follow_the_beams_while_sentences_leave(kind, monkeypatch):
    """Few beams, sentences of different lengths: every hypothesis has the score of its own prefixes."""
    left = []
    keep = search.loop.SearchBatch.keep
    monkeypatch.setattr(search.loop.SearchBatch, "keep", lambda self, rows: (left.append(len(rows)), keep(self, rows)))
    model, inputs, ends = build(kind, 20), sources((4, 2, 30, 7, 1, 20), 20), [1, 5, 6, 7, 8, 9, 10]
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 12, "length_penalty": 0.0}
    found = decode(model, **inputs, **options, eos_token_id=ends)
    assert left
    for sentence in range(6):
        part = slice(4 * sentence, 4 * (sentence + 1))
        rows = [until(row[1:], ends) for row in found.sequences[part].tolist()]
        assert len(set(map(tuple, rows))) == 4
        expected = scores_of(model, inputs, sentence, rows)
        torch.testing.assert_close(found.sequences_scores[part], expected, rtol=1e-5, atol=1e-5)


def until(row: list[int], ends: list[int]) -> list[int]:
    """The tokens up to the first of `ends`, or all."""
    return row[: next((i for i, token in enumerate(row) if token in ends), len(row)) + 1]


def test_a_second_model_of_no_weight_changes_nothing():
    model, inputs = build(TwoModels, 40), sources((6, 1, 4), 40)
    alone = TransformerForConditionalGeneration(model.config).eval()
    alone.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("second.")})
    model.weight = 0.0
    for options in ({}, {"num_beams": 3, "num_return_sequences": 3}, {"do_sample": True, "num_return_sequences": 2}):
        found, expected = (decode(x, **inputs, **options) for x in (model, alone))
        assert found.sequences.tolist() == expected.sequences.tolist()
        if "num_beams" in options:
            torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)


class Product(TransformerForConditionalGeneration):
    """Logits that are log P plus half the log of a bigram's probability: they are scores, not normalised anew.

    `forward` is its own, so that no step written out knows it: it is called as a module.
    """

    logits_are_scores = True

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        last = kwargs["decoder_input_ids"][:, -output.logits.shape[1] :]
        generator = torch.Generator().manual_seed(1)
        bigram = torch.randn(2 * [self.config.vocab_size], generator=generator).log_softmax(-1)
        output.logits = output.logits.log_softmax(-1) + 0.5 * bigram[last]
        return output


@torch.no_grad()
def test_scores_that_are_not_probabilities_are_added_as_they_are():
    model, inputs, rows = build(Product), sources((4, 2), VOCABULARY), all_rows()
    targets, lengths = padded(rows)
    found = decode(model, **inputs, **EXHAUSTIVE, length_penalty=0.0, num_return_sequences=100)
    for sentence in range(2):
        source = {name: value[sentence : sentence + 1] for name, value in inputs.items()}
        repeated = {name: value.expand(len(rows), -1) for name, value in source.items()}
        logits = model(**repeated, decoder_input_ids=targets[:, :-1]).logits
        expected = logits.gather(2, targets[:, 1:, None])[..., 0] * (torch.arange(LONGEST) < lengths[:, None])
        order = expected.sum(1).argsort(descending=True)[:100]
        part = slice(100 * sentence, 100 * (sentence + 1))
        torch.testing.assert_close(found.sequences_scores[part], expected.sum(1)[order], rtol=1e-5, atol=1e-5)
        sequences = pad(found.sequences[part], (0, LONGEST + 1 - found.sequences.shape[1]))
        scored = log_probabilities(model, **source, sequences=sequences, lengths=lengths[order]).sum(1)
        torch.testing.assert_close(scored, found.sequences_scores[part], rtol=1e-5, atol=1e-5)


def test_nothing_else_normalises_them(monkeypatch):
    """Neither compute_transition_scores nor Transformers' beam search, which gets back what its log-softmax takes."""
    model, inputs = build(Product), sources((4, 2), VOCABULARY)
    found = model.generate(**inputs, max_new_tokens=3, return_dict_in_generate=True, output_scores=True)
    for normalize in (False, True):
        scores = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=normalize)
        first = torch.stack(found.scores)[0].gather(1, found.sequences[:, 1:2])
        torch.testing.assert_close(scores[:, :1], first)
    assert_equal_loops(model, monkeypatch, **inputs, num_beams=3, num_return_sequences=3)
    assert not model._forward_hooks
