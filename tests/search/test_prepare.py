"""Calls with the same options begin at the encoder, one sentence is translated in compiled code: as by the loops."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest
import torch
from helpers.contract import members_once, of_each_kind, redraw
from helpers.searching import sources, toy
from torch import Tensor, nn
from transformers import GenerationConfig

from hf_mlnmt.common.matmul_backends import forget
from hf_mlnmt.modeling import generation
from hf_mlnmt.search import explain, prepare
from hf_mlnmt.search.cpu import one_sentence
from hf_mlnmt.search.cpu.int8 import compiled, in_int8
from hf_mlnmt.search.cpu.native import library
from hf_mlnmt.search.rules import BetweenSteps

needs_compiler = pytest.mark.skipif(library(torch.float32) is None, reason="there is no C compiler here")
OPTIONS = {"do_sample": False, "max_new_tokens": 24, "num_beams": 3, "return_dict_in_generate": True}


@pytest.fixture
def alone(monkeypatch):
    """How many sentences compiled code has translated as a whole."""
    translated, call = [], one_sentence.OneSentence.__call__

    def spy(self, *arguments):
        output = call(self, *arguments)
        translated.append(output is not None)
        return output

    monkeypatch.setattr(one_sentence.OneSentence, "__call__", spy)
    return translated


def by_loops(model, batch, **options):
    """What generate() returns without anything that was prepared."""
    kept, generation.generate_again = generation.generate_again, None
    try:
        return model.generate(**batch, **OPTIONS | options)
    finally:
        generation.generate_again = kept


def assert_as_by_loops(model, batch, **options):
    """The first call, the second, which is prepared, and the loops; returns what they give."""
    expected = by_loops(model, batch, **options)
    for _ in range(2):
        output = model.generate(**batch, **OPTIONS | options)
        assert type(output) is type(expected)
        if isinstance(output, Tensor):
            assert output.tolist() == expected.tolist()
            continue
        assert output.sequences.tolist() == expected.sequences.tolist()
        if "sequences_scores" in expected:
            # A score is the mean of at most 24 log probabilities, each some hundreds of roundings of numbers below 16.
            torch.testing.assert_close(output.sequences_scores, expected.sequences_scores, rtol=0, atol=1e-4)
            assert output.beam_indices.tolist() == expected.beam_indices.tolist()
    return expected


@pytest.fixture(scope="module")
def model():
    return toy().float()


SHAPES = {
    "pre": {"norm_position": "pre", "normalize_embedding": True, "layer_norm_eps": 0.3},
    "opus": {"attention_bias": True, "output_bias": True, "activation_function": "swish", "d_model": 20},
    "large": {"d_model": 300, "vocabulary": 900, "encoder_layers": 1, "decoder_layers": 1},
    "learned": {"position_embedding": "learned", "scale_embedding": False},
    "ssru": {"system": "ssru", "d_model": 36},
    "ssru, pre": {"system": "ssru", "norm_position": "pre"},
}


@needs_compiler
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_sentence(shape, beams, alone):
    model = toy(**SHAPES[shape]).float()
    for length in (1, 18):
        assert_as_by_loops(model, sources((length,), model.config.vocab_size), num_beams=beams)
    assert alone == [True] * 4


ENDS = {"eos_token_id": [0, *range(60, 140)]}  # so that random weights end sentences
OPEN = {"length_penalty": 1.2, "num_beams": 2, **ENDS}  # for which the three rules of stopping give different outputs
ASKED = {
    "draws in order": {"num_return_sequences": 3},
    "early": {"early_stopping": True, **OPEN},
    "never": {"early_stopping": "never", **OPEN},
    "as ever": OPEN,
    "least length": {"min_new_tokens": 9, "num_beams": 1, **ENDS},
    "forbidden": {"bad_words_ids": [[token] for token in range(20, 120)], "num_beams": 1},
    "forced": {"forced_bos_token_id": 11, "forced_eos_token_id": 0},
    "several ends": {"num_beams": 1, **ENDS},
    "long": {"max_new_tokens": 60, "min_new_tokens": 50, "num_beams": 7},
    "tokens alone": {"return_dict_in_generate": False},
}


@needs_compiler
@pytest.mark.parametrize("asked", ASKED)
def test_what_is_asked_for(asked, model, alone):
    for length in (3, 8, 19):
        assert_as_by_loops(model, sources((length,), seed=length), **ASKED[asked])
    assert alone == [True] * 6


LEFT = {
    "recombination": {"recombine": 2},
    "sampling": {"do_sample": True, "num_beams": 1},
    "a history": {"no_repeat_ngram_size": 2},
    "a bias": {"sequence_bias": [[[7], 3.0]]},
}


@pytest.mark.parametrize("asked", LEFT)
def test_what_is_left_to_the_loops(asked, model, alone):
    outputs = []
    for run in (by_loops, model.generate, model.generate):
        torch.manual_seed(1)
        batch = sources((5,))
        outputs.append(run(model, batch, **LEFT[asked]) if run is by_loops else run(**batch, **OPTIONS | LEFT[asked]))
    assert len({str(output.sequences.tolist()) for output in outputs}) == 1
    assert not alone


@pytest.mark.parametrize("one", of_each_kind({one.system: one for one in members_once()}.values()), ids=str)
def test_sentences_that_others_may_pass_are_encoded_some_at_a_time(one, monkeypatch):
    model, asked, encoded = one.model(), [], []
    encoder = type(model.get_encoder())
    forward = encoder.forward

    def noted(self, input_ids, *given, **named):
        encoded.append((len(input_ids), len(asked)))
        return forward(self, input_ids, *given, **named)

    monkeypatch.setattr(encoder, "forward", noted)
    monkeypatch.setattr(prepare, "ENCODED", 20)
    batch, options = sources((9, 4, 7, 9, 2), model.config.vocab_size), OPTIONS | {"max_new_tokens": 8}
    expected = model.generate(**batch, **options)
    assert encoded == [(5, 0)]
    encoded.clear()
    found = model.generate(**batch, **options, stopping_criteria=[BetweenSteps(lambda: asked.append(True))])
    if one.system in ("rnn", "bridge-transformer"):  # such calls are not prepared: Transformers encodes for them
        assert encoded == [(5, 0)]
    else:
        assert encoded == [(2, 1), (2, 2), (1, 3)]  # twenty tokens are two sentences of nine; asked before each
    assert found.sequences.tolist() == expected.sequences.tolist()
    # Sums of 8 logarithms of probabilities, each of some hundred numbers of float64 that are below 100.
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=0, atol=1e-10)


FLOORS = [
    (1, {"num_beams": 5}, "one sentence in compiled code"),
    (1, {}, "one sentence in compiled code"),
    (4, {"num_beams": 5}, "the loop: BeamSearch, steps by compiled code"),
    (1, {"num_beams": 4, "recombine": 2}, "the loop: Recombined"),
    (2, {"do_sample": True}, "the loop: Draws"),
    (2, {"do_sample": True, "draws": "row", "num_return_sequences": 3}, "the loop: DrawsByRow"),
    (1, {"use_cache": False}, "Transformers' loop: because of the cache that was asked for"),
    (1, {"output_scores": True, "return_dict_in_generate": True}, "Transformers' loop: because of output_scores"),
]


@needs_compiler
@pytest.mark.parametrize(("sentences", "options", "floor"), FLOORS)
def test_the_floor_that_explain_names_is_the_one_that_searches(sentences, options, floor, caplog):
    """Before a call with these options and after it, and of the first call itself."""
    model, options = toy().float(), {"num_beams": 1, "do_sample": False, "max_new_tokens": 9, **options}
    said = []
    for again in (False, True):
        with caplog.at_level(logging.DEBUG, logger="hf_mlnmt.search"):
            caplog.clear()
            model.generate(**sources((7,) * sentences, seed=int(again)), **options)
            said.append(caplog.messages[-1].removeprefix("generate(): "))
        said.append(explain(model, sentences, **options))
    assert explain(toy().float(), sentences, **options) == said[0]
    assert said == said[:1] * 4
    assert said[0].startswith(floor)


def test_batches_and_padding(model, alone):
    assert_as_by_loops(model, sources((5, 3, 9)))
    padded = sources((6, 8))
    assert_as_by_loops(model, {name: rows[:1] for name, rows in padded.items()})
    assert not alone


def change_weight(model):
    with torch.no_grad():
        model.model.decoder.layers[0].feed_forward.fc1.weight.mul_(-8)


def replace_data(model):
    model.lm_head.weight.data = model.lm_head.weight.data.flip(0).contiguous()


def write_into_data(model):
    model.model.decoder.layers[1].feed_forward.fc2.weight.data[3] += 5


def change_a_number_and_forget(model):
    model.model.decoder.layers[1].feed_forward.fc2.weight.data[3, 4:8] += 9
    forget()


def hook(model):
    model.model.encoder.layers[0].register_forward_hook(lambda module, inputs, output: -output)


def replace_module(model):
    layer = model.model.encoder.layers[1].feed_forward
    layer.fc1 = nn.Linear(*layer.fc1.weight.shape[::-1])


CHANGES = {
    "a weight in place": change_weight,
    "data of another tensor": replace_data,
    "a row of data in place": write_into_data,
    "numbers of data, and forget()": change_a_number_and_forget,
    "a hook of the encoder": hook,
    "another module": replace_module,
    "an attribute": lambda model: setattr(model.model.decoder, "embed_scale", 0.5),
    "type": lambda model: model.double(),
    "the generation config": lambda model: setattr(model.generation_config, "forced_bos_token_id", 9),
}


@needs_compiler
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_counts_at_the_next_call(change, alone):
    model = toy(seed=4).float()
    redraw(model)
    batch = sources((9,))
    before = assert_as_by_loops(model, batch)
    CHANGES[change](model)
    after = assert_as_by_loops(model, batch)
    assert change == "type" or not torch.allclose(before.sequences_scores, after.sequences_scores, atol=1e-3)


@needs_compiler
def test_what_is_ready_stays_ready(monkeypatch):
    """Also where a copy of a weight as it was before a change is still kept, in the layout of batches."""
    made, of = [], one_sentence.OneSentence.of
    monkeypatch.setattr(one_sentence.OneSentence, "of", lambda *arguments: (made.append(1), of(*arguments))[1])
    model = toy().float()
    for _ in range(3):
        for lengths in ((5, 3), (5,), (9,)):
            model.generate(**sources(lengths), **OPTIONS)
    assert len(made) == 1
    model.lm_head.weight.data.add_(1)
    for length in (5, 9, 7):
        model.generate(**sources((length,)), **OPTIONS)
    assert len(made) == 2


@needs_compiler
def test_options_of_another_value_or_object(model):
    config = GenerationConfig(**OPTIONS, decoder_start_token_id=3)
    batch = sources((9,))
    for beams in (1, 4, 1):
        config.num_beams = beams
        arguments = {"generation_config": config}
        kept, generation.generate_again = generation.generate_again, None
        expected = model.generate(**batch, **arguments).sequences.tolist()
        generation.generate_again = kept
        assert [model.generate(**batch, **arguments).sequences.tolist() for _ in range(2)] == [expected] * 2


@needs_compiler
def test_ids_that_the_vocabulary_lacks(model):
    batch = sources((5,))
    model.generate(**batch, **OPTIONS)
    with pytest.raises(IndexError):
        model.generate(**batch | {"input_ids": batch["input_ids"] + 10_000}, **OPTIONS)


@needs_compiler
@pytest.mark.parametrize(("system", "norm"), [("transformer", "post"), ("transformer", "pre"), ("ssru", "post")])
def test_in_int8_a_sentence_alone_is_that_of_a_batch(system, norm, alone):
    model = in_int8(toy(system=system, norm_position=norm, d_model=64).float())
    batch = sources((6, 1, 4, 17, 3))
    together = model.generate(**batch, **OPTIONS).sequences
    for row, length in enumerate((6, 1, 4, 17, 3)):
        own = {name: rows[row : row + 1, :length] for name, rows in batch.items()}
        tokens = model.generate(**own, **OPTIONS).sequences[0].tolist()
        assert together[row].tolist()[: len(tokens)] == tokens
    assert bool(alone) == (norm == "post" and compiled(model.lm_head) is not None)


@needs_compiler
def test_threads_share_a_model(model):
    batches = [sources((length,), seed=length) for length in (3, 6, 9, 12)]
    expected = [by_loops(model, batch).sequences.tolist() for batch in batches]
    outputs: list[list] = [[] for _ in batches]

    def run(number):
        for _ in range(4):
            outputs[number].append(model.generate(**batches[number], **OPTIONS).sequences.tolist())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == [[one] * 4 for one in expected]


@needs_compiler
def test_a_model_is_freed():
    model = toy().float()
    assert_as_by_loops(model, sources((5,)))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
