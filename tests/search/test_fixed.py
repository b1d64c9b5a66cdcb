"""Steps of one shape, as on a GPU: what Transformers' loops find, without a value that is read on the way."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
import torch._dynamo
from helpers.contract import KINDS, members_once, of_each_kind
from helpers.searching import assert_equal_loops, decode, sources, toy
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode

from hf_mlnmt import search
from hf_mlnmt.search import fixed

MEMBERS = pytest.mark.parametrize("one", members_once(), ids=str)
LENGTHS = (6, 1, 4, 9, 2)
# Systems whose layers have a state of each beam beside keys and values.
STATEFUL = ("dec-dc", "full-dc", "previous-context-head", "previous-context-full", "previous-weight")
STATEFUL += ("accumulated-weight", "fertility", "key-value-head", "key-value-full", "ssru")
ENDS = [1, *range(20, 200, 7)]  # many, so that sentences of a random model end, some early and some late


@pytest.fixture
def ahead(monkeypatch):
    """Every search goes by steps of one shape; the stages that were begun."""
    stages = []
    begin = fixed.Stage.begin
    monkeypatch.setattr(search, "runs_ahead", lambda tensor: True)
    monkeypatch.setattr(fixed.Stage, "begin", lambda stage, *given: (stages.append(stage), begin(stage, *given))[1])
    return stages


def ending():
    """A model whose sentences end here and there: what it says depends on the place."""
    two = {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 200}
    model = toy(position_embedding="learned", norm_position="pre", **two)
    with torch.no_grad():
        model.get_decoder().positions.table.mul_(3)
        model.lm_head.weight.mul_(0.1)
    return model


def assert_fixed(model, monkeypatch, stages, inputs=None, **options):
    before = len(stages)
    output = assert_equal_loops(model, monkeypatch, **(inputs or sources(LENGTHS)), **options)
    assert len(stages) == before + 1
    return output


OPTIONS = {
    "greedy": {},
    "greedy, least": {"min_new_tokens": 7, "max_new_tokens": 9},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "beams, least": {"num_beams": 2, "min_length": 6, "length_penalty": 0.6},
    "early": {"num_beams": 4, "early_stopping": True},
    "never": {"num_beams": 4, "early_stopping": "never", "length_penalty": 2.0},
    "long": {"num_beams": 2, "num_return_sequences": 2, "length_penalty": -1.0},
    "one token": {"num_beams": 2, "max_new_tokens": 1},
    "forced": {"num_beams": 2, "forced_bos_token_id": 7, "forced_eos_token_id": 1, "max_new_tokens": 9},
    "forced, greedy": {"forced_bos_token_id": 7, "forced_eos_token_id": 1, "min_length": 4, "max_new_tokens": 9},
    "suppressed": {
        "num_beams": 3,
        "bad_words_ids": [[50], [60]],
        "suppress_tokens": [70],
        "begin_suppress_tokens": [80],
    },
    "bias": {"sequence_bias": [[[9], 2.0], [[11], -3.0]], "renormalize_logits": True, "num_beams": 2},
    "draws": {"do_sample": True, "top_k": 0},
    "draws of several": {"do_sample": True, "num_return_sequences": 3, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "draws, other rules": {"do_sample": True, "min_p": 0.05, "typical_p": 0.9, "epsilon_cutoff": 0.01, "top_k": 0},
}


@pytest.mark.parametrize("ends", [ENDS, 1], ids=["many ends", "one"])
@pytest.mark.parametrize("how", OPTIONS)
def test_it_finds_what_transformers_finds(how, ends, monkeypatch, ahead):
    assert_fixed(ending(), monkeypatch, ahead, **{"max_new_tokens": 50, "eos_token_id": ends, **OPTIONS[how]})


@MEMBERS
@pytest.mark.parametrize("beams", [1, 3])
def test_every_system(one, beams, monkeypatch, ahead):
    inputs = {"inputs": sources(LENGTHS, 22), "num_beams": beams, "min_new_tokens": 4, "max_new_tokens": 16}
    assert_fixed(one.model(), monkeypatch, ahead, **inputs)


def test_sizes_shrink_and_grow(monkeypatch, ahead):
    """Half of the sentences ended: a smaller size; the slots used up: a larger one. Nothing is lost on the way."""
    sizes = []
    stage_of = fixed.stage_of
    monkeypatch.setattr(fixed, "FEWEST_STEPS", 3)
    monkeypatch.setattr(fixed, "stage_of", lambda *given: (sizes.append(given[2]), stage_of(*given))[1])
    inputs = sources(tuple(range(1, 12)))
    draws = {"do_sample": True, "num_return_sequences": 2}
    for options in ({}, {"num_beams": 3}, {"num_beams": 3, "early_stopping": True}, draws):
        sizes.clear()
        assert_fixed(ending(), monkeypatch, ahead, inputs, max_new_tokens=50, eos_token_id=ENDS, **options)
        assert sizes[0].sentences == 12  # of eleven
        assert len({size.sentences for size in sizes}) > 1
        assert [size.steps for size in sizes] == sorted(size.steps for size in sizes)
        assert len({size.steps for size in sizes}) > 2


@MEMBERS
def test_every_system_in_changing_sizes(one, monkeypatch, ahead):
    monkeypatch.setattr(fixed, "FEWEST_STEPS", 2)
    monkeypatch.setattr(fixed, "LATE", 0)
    options = {"max_new_tokens": 14, "eos_token_id": [1, *range(4, 20, 3)]}
    for beams in (1, 3) if one.system in KINDS else (3,):
        assert_fixed(one.model(), monkeypatch, ahead, sources(LENGTHS, 22), num_beams=beams, **options)


def test_a_stage_is_kept_and_serves_other_batches(monkeypatch, ahead):
    model, ends = ending(), {"eos_token_id": ENDS, "num_beams": 2}
    for seed, options in enumerate([{}, {}, {"length_penalty": 0.3}, {"max_new_tokens": 18}, {"early_stopping": True}]):
        inputs = sources((5, 3, 8) if seed % 2 else (8, 2, 1), seed=seed)
        assert_fixed(model, monkeypatch, ahead, inputs, **ends, **options)
    assert [ahead.index(stage) for stage in ahead] == [0, 0, 0, 0, 4]  # stopping early is another step
    with torch.no_grad():
        model.model.decoder.layers[0].feed_forward.fc1.weight.mul_(1.5)
    assert_fixed(model, monkeypatch, ahead, sources((8, 2, 1)), **ends)
    assert ahead.index(ahead[5]) == 5


def test_few_are_kept(monkeypatch, ahead):
    model = toy()
    for length in range(1, 2 * fixed.KEPT):
        decode(model, **sources((1,) * length), max_new_tokens=2)
    assert len(fixed._STAGES[model]) == fixed.KEPT


def test_what_is_large_is_not_kept(monkeypatch, ahead):
    model = toy()
    decode(model, **sources((3, 2)), max_new_tokens=2)
    (stage,) = fixed._STAGES[model].values()
    heads = [*stage.state.tensors(), stage.sums, stage.noise]
    assert stage.bytes() == sum(tensor.nbytes for tensor in heads)
    monkeypatch.setattr(fixed, "KEPT_BYTES", stage.bytes() - 1)
    decode(model, **sources((3, 2)), max_new_tokens=2)
    assert not fixed._STAGES[model]


@pytest.mark.parametrize(
    "one", [one for one in members_once() if one.system in STATEFUL or "rnn" in one.system], ids=str
)
def test_a_step_that_could_not_be_captured_goes_on_call_by_call(one, monkeypatch, ahead):
    """What a captured step makes is not computed: it is forgotten."""
    run = fixed.Stage.run

    def failing(stage):
        if stage.runs == 1:
            kept = [tensor.clone() for tensor in tensors_of(stage)]
            stage.step()
            for tensor, before in zip(tensors_of(stage), kept, strict=True):
                tensor.copy_(before)  # as if nothing had been computed
            for layer in getattr(stage.state, "stateful", ()):
                layer.states = None  # whatever a capture that failed has left
        run(stage)

    def tensors_of(stage):
        parts = stage, stage.state, stage.clock, stage.found
        values = *(value for part in parts for value in vars(part).values()), *stage.state.tensors()
        return [value for value in values if isinstance(value, torch.Tensor)]

    monkeypatch.setattr(fixed.Stage, "run", failing)
    assert_fixed(one.model(), monkeypatch, ahead, sources(LENGTHS, 22), num_beams=3, max_new_tokens=8)


def test_threads(ahead):
    """A stage serves one search at a time."""
    model, ends = ending(), {"eos_token_id": ENDS, "num_beams": 2, "max_new_tokens": 30}
    batches = [sources((5, 3, 8), seed=seed) for seed in range(12)]
    expected = [model.generate(**batch, **ends).tolist() for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda batch: model.generate(**batch, **ends).tolist(), batches)) == expected
    assert len(set(map(id, ahead[-12:]))) > 1


@pytest.mark.parametrize("one", of_each_kind({one.system: one for one in members_once()}.values()))
def test_a_step_is_one_graph(one, monkeypatch, ahead):
    """Nothing in it depends on values: torch.compile traces it whole. A value that is read the next test sees, too."""
    model, options = one.model(), {**sources((5, 3), 22), "num_beams": 3, "max_new_tokens": 3}
    expected = decode(model, **options).sequences.tolist()
    run, traced = fixed.Stage.run, []

    def by_graph(stage):
        if not stage.runs or traced:  # what is made at the first step is there later; each trace takes a second
            return run(stage)
        traced.append(stage)
        stage.runs += 1
        return torch.compile(stage.step, fullgraph=True, backend="eager")()

    monkeypatch.setattr(fixed.Stage, "run", by_graph)
    fixed._STAGES.clear()
    with torch._dynamo.config.patch(allow_rnn=True):  # it is called cell by cell here
        assert decode(model, **options).sequences.tolist() == expected
    assert traced
    torch._dynamo.reset()


class Calls(TorchDispatchMode):
    """Counts the operations that are called; views of a tensor cost a device nothing."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.names[function._schema.name.removeprefix("aten::")] += 1
        return function(*args, **(kwargs or {}))


READS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "masked_select", "unique", "_unique2", "equal"}


@MEMBERS
@pytest.mark.parametrize("beams", [1, 3])
def test_a_step_reads_nothing_and_has_few_operations(one, beams, monkeypatch, ahead):
    model, counts = one.model(), []
    run = fixed.Stage.run

    def counted(stage):
        with Calls() as calls:
            run(stage)
        counts.append(calls.names)

    monkeypatch.setattr(fixed.Stage, "run", counted)
    decode(model, **sources((5, 3), 22), num_beams=beams, min_new_tokens=4, max_new_tokens=6)
    assert counts
    layers = model.config.decoder_layers * (4 if "aif" in one.system else 1)
    for names in counts:
        assert not READS & names.keys()
        assert names.total() <= (40 if one.system in STATEFUL else 25) * layers + 40


def test_beams_over_a_large_vocabulary_have_few_operations(monkeypatch, ahead):
    """As the page counts: at most 25 a layer and 40; views launch nothing."""
    model, counts, run = toy(3000), [], fixed.Stage.run

    def counted(stage):
        with Calls() as calls:
            run(stage)
        counts.append(calls.names.total())

    with monkeypatch.context() as patch:
        patch.setattr(fixed.Stage, "run", counted)
        decode(model, **sources((5, 3), 3000), num_beams=4, max_new_tokens=5)
    assert max(counts) <= 25 * model.config.decoder_layers + 40
    assert_fixed(model, monkeypatch, ahead, sources((5, 3), 3000), num_beams=4)


def test_draws_leave_the_generator_where_transformers_leave_it(monkeypatch, ahead):
    states = []
    for patched in (True, False):
        with monkeypatch.context() as patch:
            if not patched:
                patch.setattr(search, "why_not", lambda *given: "a test")
            decode(ending(), **sources(LENGTHS), do_sample=True, eos_token_id=ENDS, max_new_tokens=50)
        states.append(torch.get_rng_state())
    assert len(ahead) >= 1
    assert torch.equal(*states)


def test_cheap_draws_are_those_of_the_plain_loop(monkeypatch, ahead):
    """And leave the generator where that leaves it."""
    options = {"do_sample": True, "draws": "row", "num_return_sequences": 2, "eos_token_id": ENDS, "max_new_tokens": 50}
    found, states = [], []
    for runs_ahead in (True, False):
        monkeypatch.setattr(search, "runs_ahead", lambda tensor, ahead=runs_ahead: ahead)
        found.append(decode(ending(), **sources(LENGTHS), **options).sequences.tolist())
        states.append(torch.get_rng_state())
    assert found[0] == found[1]
    assert torch.equal(*states)
    assert len({stage.noise.shape[2] for stage in ahead}) == 1 == ahead[0].noise.shape[2]


def test_stages_keep_no_model_alive(ahead):
    model = toy()
    decode(model, **sources((3, 2)), max_new_tokens=4)
    alive = weakref.ref(model)
    ahead.clear()
    del model
    gc.collect()
    assert alive() is None


def test_autocast_is_another_stage(ahead):
    model = toy().float()
    for on in (False, True, False):
        with torch.autocast("cpu", enabled=on):
            decode(model, **sources((3, 2)), max_new_tokens=4)
    assert ahead[0] is ahead[2]
    assert ahead[0] is not ahead[1]


def test_another_token_of_padding_is_another_stage(monkeypatch, ahead):
    model = ending()
    for token in (0, 7):
        options = {"eos_token_id": ENDS, "max_new_tokens": 50, "pad_token_id": token}
        for several in ({}, {"num_beams": 3}):
            assert_fixed(model, monkeypatch, ahead, sources(LENGTHS), **options, **several)


def test_an_adapter_that_is_switched_off_is_another_stage(ahead):
    model = get_peft_model(toy(), LoraConfig(r=2, target_modules=["out_proj"], init_lora_weights=False))
    for context in (nullcontext(), model.disable_adapter(), nullcontext()):
        with context:
            decode(model.get_base_model(), **sources((3, 2)), max_new_tokens=4)
    assert ahead[0] is ahead[2]
    assert ahead[0] is not ahead[1]


def test_sizes():
    assert [fixed.rounded(n) for n in range(1, 14)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]
    assert [fixed.rounded(n, 8) for n in (1, 8, 9, 13, 100)] == [8, 8, 12, 16, 128]


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.2},
        {"bad_words_ids": [[5, 6]]},
        {"num_beams": 2, "recombine": 1},
        {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1.0},
        {"num_beams": 2, "no_repeat_ngram_size": 2},
    ],
)
def test_what_is_left_to_the_other_loops(options, monkeypatch, ahead):
    decode(toy(), **sources((3, 2)), **options)
    assert not ahead
