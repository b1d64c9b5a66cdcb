"""What the caller gives to generate(): it stays as it was, and every mask is served as by Transformers' loop."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers.contract import TINY, Batch, Member
from helpers.searching import ENDING, assert_equal_loops, decode, sources, toy
from transformers.generation import utils
from transformers.modeling_outputs import BaseModelOutput

from hf_mlnmt import search

OPTIONS = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "draws": {"do_sample": True, "num_return_sequences": 3},
}


@pytest.mark.parametrize("how", OPTIONS)
@pytest.mark.parametrize("fast", [True, False])
def test_encoder_outputs_stay_the_callers(how, fast, monkeypatch):
    """They can be used again: neither padded, nor cut, nor repeated for the beams, in either loop."""
    model, inputs = toy(), sources((6, 1, 4, 9))
    if not fast:
        monkeypatch.setattr(search, "why_not", lambda *a: "a test")
    outputs = model.get_encoder()(**inputs)
    outputs.memory = outputs.last_hidden_state + 0.0
    before = {name: (value, value.clone()) for name, value in outputs.items()}
    arguments = {**ENDING, **OPTIONS[how]}
    expected = decode(model, **inputs, **arguments).sequences.tolist()
    for _ in range(2):
        mask = inputs["attention_mask"].clone()
        found = decode(model, encoder_outputs=outputs, attention_mask=mask, **arguments)
        assert found.sequences.tolist() == expected
        assert torch.equal(mask, inputs["attention_mask"])
        assert outputs.keys() == before.keys()
        for name, value in outputs.items():
            assert value is before[name][0]
            assert torch.equal(value, before[name][1])


@pytest.mark.parametrize("masked", [(0,), (2,), (0, 1, 2, 3)])
def test_a_source_of_which_nothing_is_unmasked(masked, monkeypatch, caplog):
    """What attention over nothing gives depends on its implementation: Transformers' loop does it, of every system."""
    model = toy(29)
    inputs = Batch.draw().encoder_inputs
    inputs["attention_mask"] = inputs["attention_mask"].clone()
    inputs["attention_mask"][list(masked)] = 0
    with caplog.at_level(logging.DEBUG, logger=search.__name__):
        for beams in (1, 3):
            assert_equal_loops(model, monkeypatch, fast=False, **inputs, num_beams=beams, **ENDING)
    assert "a source that is masked altogether" in caplog.text


@pytest.mark.parametrize(
    ("system", "side"),
    [
        *(("transformer", side) for side in ("left", "right")),
        *((system, "both") for system in ("transformer", "transparent", "m-00", "previous-weight", "fertility")),
    ],
)
def test_short_sentences_that_outlive_a_long_one(side, system, monkeypatch):
    """Sources are cut behind the last position that a remaining sentence has, wherever its padding is."""
    kept = []
    keep = search.loop.SearchBatch.keep
    monkeypatch.setattr(
        search.loop.SearchBatch, "keep", lambda self, rows: (kept.append(rows.tolist()), keep(self, rows))
    )
    model = Member(system, "post", {**TINY, "norm_position": "post"}).model()
    lengths = (40, 3, 20, 2)
    inputs = sources(lengths, 29)
    shifts = {"left": [40 - n for n in lengths], "right": [0] * 4, "both": [0, 18, 2, 30]}[side]
    for row, shift in enumerate(shifts):
        for value in inputs.values():
            value[row] = value[row].roll(shift)
    # The long sentence ends at once: behind its prompt </s> comes first or second, and nobody else has that prompt.
    prompt = torch.tensor([[3, 7], [3, 8], [3, 8], [3, 9]])
    bias = {(7, 1): 100.0, (1,): -3.0, **{(7, token, 1): 100.0 for token in range(29)}}
    for beams in (1, 3):
        kept.clear()
        arguments = {"decoder_input_ids": prompt, "sequence_bias": bias, "num_beams": beams, "max_new_tokens": 6}
        assert_equal_loops(model, monkeypatch, **inputs, **arguments)
        assert kept[0] == [1, 2, 3]


@pytest.mark.parametrize("form", ["tuple", "another class"])
def test_encoder_outputs_in_another_form(form):
    """Transformers takes them, a tuple only where nothing is repeated, and so do we."""
    model, inputs = toy(), sources((6, 1, 4))
    outputs = model.get_encoder()(**inputs)
    given = outputs.to_tuple() if form == "tuple" else BaseModelOutput(outputs.last_hidden_state)
    options = {"decoder_input_ids": torch.full((3, 1), 3), "max_new_tokens": 20, "do_sample": False}
    expected = model.generate(**inputs, **options)
    found = model.generate(encoder_outputs=given, attention_mask=inputs["attention_mask"], **options)
    assert found.tolist() == expected.tolist()


def test_copies_of_the_source_are_let_go(monkeypatch):
    """generate() holds the encoder's output, repeated for every beam, as long as its loop runs: it is emptied."""
    held, seen = [], []
    run, step = search.run, search.loop.SearchBatch.step
    monkeypatch.setattr(search, "run", lambda *a: (held.append(a[-1]["encoder_outputs"]), run(*a))[1])
    look = lambda: seen.append(any(isinstance(x, torch.Tensor) for x in held[0].values()))  # noqa: E731
    monkeypatch.setattr(search.loop.SearchBatch, "step", lambda self, *a: (look(), step(self, *a))[1])
    given = dict(zip(("inputs", "attention_mask"), sources((6, 1, 4)).values()))  # by a name that is not prepared
    decode(toy(), **given, num_beams=3, max_new_tokens=3)
    assert seen == [False, False]


@pytest.mark.parametrize("how", OPTIONS)
@pytest.mark.parametrize("fast", [True, False])
def test_padding_without_a_mask_is_no_text(how, fast, monkeypatch):
    model, inputs = toy(), sources((6, 1, 4, 9))
    if not fast:
        monkeypatch.setattr(search, "why_not", lambda *a: "a test")
    expected = decode(model, **inputs, **ENDING, **OPTIONS[how]).sequences.tolist()
    ids = inputs["input_ids"]
    outputs = model.get_encoder()(**inputs)
    for given in ({"input_ids": ids}, {"inputs": ids}, {"input_ids": ids, "encoder_outputs": outputs}):
        assert decode(model, **given, **ENDING, **OPTIONS[how]).sequences.tolist() == expected
    left = {name: value[1:2].roll(3, 1) for name, value in inputs.items()}
    expected = decode(model, **left, **ENDING).sequences.tolist()
    assert decode(model, input_ids=left["input_ids"], **ENDING).sequences.tolist() == expected


def test_padding_that_is_the_end_of_a_sentence_is_warned_of(monkeypatch):
    """Stock's warning, once: which of the ends are padding cannot be told."""
    model = toy()
    model.config.pad_token_id = model.generation_config.pad_token_id = model.config.eos_token_id
    said = []
    monkeypatch.setattr(utils.logger, "warning_once", said.append)
    ids = sources((6, 1, 4, 9))["input_ids"]
    decode(model, input_ids=ids.masked_fill(ids == 0, model.config.eos_token_id))
    assert "attention mask is not set with a batched input" in "".join(said)
