"""Steps of static shapes, as on a GPU: what Transformers' loops find, without a value that is read on the way."""

from __future__ import annotations

import copy
import gc
import random
import sys
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import accumulate
from types import SimpleNamespace

import pytest
import torch
from helpers.ahead import READS, run_ahead
from helpers.contract import KINDS, members_once, of_each_kind
from helpers.searching import assert_equal_loops, call_modules, decode, sources, toy
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode

from hf_mlnmt import search
from hf_mlnmt.generation.translating.batches import batches_by_tokens
from hf_mlnmt.search.decoder import SourceTokens
from hf_mlnmt.search.gpu import static_shapes
from hf_mlnmt.search.transformer import TransformerDecoder

# Recurrent decoders and bridges go by the loop.
STATIC = [one for one in members_once() if "rnn" not in one.system and "bridge" not in one.system]
MEMBERS = pytest.mark.parametrize("one", STATIC, ids=str)
OF_EACH_KIND = pytest.mark.parametrize("one", of_each_kind({one.system: one for one in STATIC}.values()))
LENGTHS = (6, 1, 4, 9, 2)
# Systems whose layers have a state of each beam beside keys and values.
STATEFUL = ("dec-dc", "full-dc", "previous-context-head", "previous-context-full", "previous-weight")
STATEFUL += ("accumulated-weight", "fertility", "key-value-head", "key-value-full", "ssru")
ENDS = [1, *range(20, 200, 7)]  # many, so that sentences of a random model end, some early and some late


@pytest.fixture
def ahead(monkeypatch):
    """Every search goes by steps of static shapes; the stages that were begun."""
    stages = []
    begin = static_shapes.Stage.begin
    monkeypatch.setattr(static_shapes, "is_asynchronous", lambda tensor: True)
    monkeypatch.setattr(
        static_shapes.Stage, "begin", lambda stage, *given: (stages.append(stage), begin(stage, *given))[1]
    )
    return stages


def ending():
    """A model whose sentences end here and there: what it says depends on the place."""
    two = {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 200}
    model = toy(position_embedding="learned", norm_position="pre", **two)
    with torch.no_grad():
        model.get_decoder().positions.table.mul_(3)
        model.lm_head.weight.mul_(0.1)
    return model


def assert_static(model, monkeypatch, stages, inputs=None, **options):
    before = len(stages)
    output = assert_equal_loops(model, monkeypatch, **(inputs or sources(LENGTHS)), **options)
    assert len(stages) == before + 1
    return output


def small_sizes(monkeypatch, steps):
    """A search of few sentences goes through several sizes."""
    monkeypatch.setattr(static_shapes, "first_steps", lambda source: steps)
    for name, value in {"SHORTEST": 1, "FEW_ROWS": 0, "SMALLER": 2}.items():
        monkeypatch.setattr(static_shapes, name, value)


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


@pytest.mark.parametrize("how", OPTIONS)
def test_it_finds_what_transformers_finds(how, monkeypatch, ahead):
    model = ending()
    for ends, longest in ((ENDS, 50), (1, 12)):
        options = {"max_new_tokens": longest, "eos_token_id": ends, **OPTIONS[how]}
        assert_static(model, monkeypatch, ahead, **options)


def test_sizes_shrink_and_grow(monkeypatch, ahead):
    """Half of the sentences ended: a smaller size; the slots used up: a larger one. Nothing is lost on the way."""
    sizes = []
    stage_of = static_shapes.stage_of
    small_sizes(monkeypatch, steps=3)
    monkeypatch.setattr(static_shapes, "stage_of", lambda *given: (sizes.append(given[2]), stage_of(*given))[1])
    inputs = sources(tuple(range(1, 12)))
    draws = {"do_sample": True, "num_return_sequences": 2}
    for options in ({}, {"num_beams": 3}, {"num_beams": 3, "early_stopping": True}, draws):
        sizes.clear()
        assert_static(ending(), monkeypatch, ahead, inputs, max_new_tokens=50, eos_token_id=ENDS, **options)
        assert sizes[0].sentences == 12  # of eleven
        assert len({size.sentences for size in sizes}) > 1
        assert [size.steps for size in sizes] == sorted(size.steps for size in sizes)
        assert len({size.steps for size in sizes}) > 2


class Loop:
    """The kernels' file, as its reference computes them."""

    def choose_beams(self, stage, scores):
        stage.choose_beams(self.read(stage, scores))

    def read(self, stage, scores):
        assert scores.dtype == torch.float64
        assert scores.stride(-2) % 64 == 0
        return scores.float().expand(-1, stage.size.width, -1)


@OF_EACH_KIND
def test_kernels_are_given_what_the_model_computes(one, monkeypatch, ahead):
    """In its own precision, in rows that begin at multiples of 64 numbers; with the changes that they are to make."""
    monkeypatch.setattr(static_shapes, "kernels_for", lambda *given: Loop())
    inputs = {"inputs": sources(LENGTHS, 22), "num_beams": 3, "min_new_tokens": 4, "max_new_tokens": 7}
    assert_static(one.model(), monkeypatch, ahead, **inputs)
    (table,) = ahead[-1].processors
    assert table.rows.nonzero().tolist() == [[0, 1]]  # the end, where it is not allowed
    assert isinstance(ahead[-1].kernels, Loop)


@MEMBERS
def test_every_system_in_changing_sizes(one, monkeypatch, ahead):
    small_sizes(monkeypatch, steps=2)
    monkeypatch.setattr(static_shapes, "LATE", 0)
    options = {"max_new_tokens": 10, "eos_token_id": [1, *range(4, 20, 3)]}
    for beams in (1, 3) if one.system in KINDS else (3,):
        assert_static(one.model(), monkeypatch, ahead, sources(LENGTHS, 22), num_beams=beams, **options)


def test_a_stage_is_kept_and_serves_other_batches(monkeypatch, ahead):
    model, ends = ending(), {"eos_token_id": ENDS, "num_beams": 2}
    for seed, options in enumerate([{}, {}, {"length_penalty": 0.3}, {"max_new_tokens": 18}, {"early_stopping": True}]):
        inputs = sources((5, 3, 8) if seed % 2 else (8, 2, 1), seed=seed)
        assert_static(model, monkeypatch, ahead, inputs, **ends, **options)
    assert [ahead.index(stage) for stage in ahead] == [0, 0, 0, 0, 4]  # stopping early is another step
    with torch.no_grad():
        model.model.decoder.layers[0].feed_forward.fc1.weight.mul_(1.5)
    assert_static(model, monkeypatch, ahead, sources((8, 2, 1)), **ends)
    assert ahead.index(ahead[5]) == 5


def test_as_many_are_kept_as_the_memory_has_room_for(monkeypatch, ahead):
    """The oldest go; what alone takes more than its share is not kept."""
    model = toy()
    for length in range(1, 10):
        decode(model, **sources((1,) * length), max_new_tokens=2)
    kept = static_shapes._STAGES[model]
    assert [key[0].sentences for key in kept] == [1, 2, 3, 4, 6, 8, 12]
    first = next(iter(kept.values()))
    assert first.nbytes == sum(x.nbytes for x in [*first.state.tensors(), first.noise])
    taken = sum(stage.nbytes for stage in kept.values())
    monkeypatch.setattr(static_shapes, "free_bytes", lambda device: taken / static_shapes.KEPT_SHARE - taken - 1)
    decode(model, **sources((1,) * 9), max_new_tokens=2)  # one that is there
    assert len(kept) == 7
    decode(model, **sources((1,) * 13), max_new_tokens=2)
    assert [key[0].sentences for key in kept][-1] == 16
    assert 1 not in [key[0].sentences for key in kept]
    monkeypatch.setattr(static_shapes, "free_bytes", lambda device: 0)
    decode(model, **sources((1,) * 17), max_new_tokens=2)
    assert not kept


class Recorded:
    """In the place of a CUDA graph: calls what was recorded, which no profile of Python sees."""

    def __init__(self, function):
        self.function = function

    def replay(self):
        profile = sys.getprofile()
        sys.setprofile(None)
        self.function()
        sys.setprofile(profile)


@pytest.fixture
def captures(monkeypatch):
    """Steps and beginnings are recorded as on a card; what was recorded, and the size."""
    seen = []

    def capture(stage, function):
        seen.append((function.__name__, stage.size))
        return Recorded(function)

    monkeypatch.setattr(static_shapes, "has_graphs", lambda tensor: True)
    monkeypatch.setattr(static_shapes.Stage, "capture", capture)
    return seen


class Pretended:
    """A stage that computes nothing: the first token of a source says how long its translation is."""

    graph = opening = None
    nbytes = runs = num_beams = 0
    vocabulary = 1

    def __init__(self, decoder, choice, size, rules, config, key):
        self.size, self.key, self.device = size, key, torch.device("cpu")
        self.tokens = torch.zeros(size.sentences, size.width)
        self.table = torch.zeros(size.steps + 1, size.sentences, size.width, dtype=torch.long)
        self.sources = ()

    def limit(self, rules, config):
        pass

    def begin(self, prompt, source, real):
        self.sources, self.step_number = source, 1
        self.lengths = source.ids[:, 0].masked_fill(torch.arange(self.size.sentences) >= real, 0)

    def open(self):
        pass

    def step(self):
        pass

    def run(self):
        if self.runs == 1:
            self.graph = self.capture(self.step)
        self.runs += 1
        self.step_number += 1

    @property
    def found(self):
        return SimpleNamespace(open=self.lengths > self.step_number)

    def how_many_are_left(self):
        left = int(self.found.open.sum())
        return lambda: left

    def move_to(self, other, rows, real):
        other.lengths, other.step_number = self.lengths[rows], self.step_number
        other.lengths[real:] = 0

    def bytes(self):
        return 1


@pytest.mark.parametrize("beams", [1, 4, 5])
def test_a_file_is_captured_once(beams, monkeypatch, captures):
    """Of 5,000 lines as long as captions; the second time nothing is captured."""
    draw = random.Random(1)
    windows = [64, 128, 256, 512, 1088, 2048, 904]  # as of a file
    lines = [round(draw.triangular(5, 44, 11)) for _ in range(sum(windows))]
    targets = [max(4, round(length * draw.uniform(0.6, 1.4))) for length in lines]
    Pretended.capture = static_shapes.Stage.capture  # the one of `captures`
    monkeypatch.setattr(static_shapes, "Stage", Pretended)
    monkeypatch.setattr(static_shapes, "asked_of", lambda *given: ("asked", 0, 0))
    decoder = SimpleNamespace(model=torch.nn.Identity())
    decoder.model.config = SimpleNamespace(max_position_embeddings=1024)
    rules, config = SimpleNamespace(max_length=257), SimpleNamespace(num_beams=1)
    seen = []
    for _ in range(2):
        for end, size in zip(accumulate(windows), windows, strict=True):
            of_window = range(end - size, end)
            for batch in batches_by_tokens([lines[i] for i in of_window], 4096, powers=True):
                copies = (1 << (len(batch) - 1).bit_length()) - len(batch)  # up to a power of 2
                chosen = [of_window[i] for i in [*batch, *[batch[-1]] * copies]]
                ids = torch.zeros(len(chosen), lines[chosen[0]], dtype=torch.long)
                ids[:, 0] = torch.tensor([targets[i] for i in chosen])
                record = SimpleNamespace(steps=[], width=beams, config=config)
                given = decoder, None, SourceTokens(ids, ids), torch.zeros(len(chosen), 1), rules
                lefts = static_shapes._run(*given, record, None)
                assert next(i for i, left in enumerate(lefts, 1) if not left) == ids[:, 0].max()
                assert sum(len(step[0]) for step in record.steps) >= ids[:, 0].sum()
        seen.append(len(captures))
    assert seen[0] == seen[1] <= 12, sorted(captures)


@pytest.mark.parametrize("beams", [1, 5])
def test_a_call_asks_little_of_a_model(beams, monkeypatch, ahead, captures):
    """Options, model and sizes are known: two thirds of a hundred calls are those of Python's own for each part."""
    call_modules(monkeypatch)  # as on a card
    monkeypatch.setattr("hf_mlnmt.search.prepare.UnencodedSources.ready", lambda *given: None)
    model, calls = toy(encoder_layers=6, decoder_layers=6), 0
    options = {**sources((25,)), "num_beams": beams, "min_new_tokens": 25, "max_new_tokens": 25, "do_sample": False}
    expected = [model.generate(**options).tolist() for _ in range(3)]
    assert [name for name, _ in captures] == ["step", "open"]

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = model.generate(**options)
    finally:
        sys.setprofile(None)
    assert calls <= 3400  # a tenth of what it was
    assert [*expected, found.tolist()] == 4 * [expected[0]]
    assert len(captures) == 2


@MEMBERS
def test_a_beginning_is_recorded_with_the_encoder(one, monkeypatch, ahead, captures):
    """And finds the same when it is repeated, with other sources, and with fewer of them."""
    model, options = one.model(), {"num_beams": 2, "max_new_tokens": 4, "do_sample": False}
    for lengths, times in (((6, 1, 4), 3), ((3, 5), 1), ((2, 7, 7), 1)):
        inputs = sources(lengths, 22, seed=len(lengths))
        found = [model.generate(**inputs, **options).tolist() for _ in range(times)]
        with monkeypatch.context() as patch:
            patch.setattr(static_shapes, "is_asynchronous", lambda tensor: False)
            assert found == [model.generate(**inputs, **options).tolist()] * times
    assert [name for name, _ in captures].count("open") == 2


@pytest.mark.parametrize("one", [one for one in STATIC if one.system in STATEFUL], ids=str)
def test_a_step_that_could_not_be_captured_goes_on_call_by_call(one, monkeypatch, ahead):
    """What a captured step makes is not computed: it is forgotten."""
    run = static_shapes.Stage.run

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

    monkeypatch.setattr(static_shapes.Stage, "run", failing)
    assert_static(one.model(), monkeypatch, ahead, sources(LENGTHS, 22), num_beams=3, max_new_tokens=8)


def test_threads(ahead):
    """A stage serves one search at a time."""
    model, ends = ending(), {"eos_token_id": ENDS, "num_beams": 2, "max_new_tokens": 30}
    batches = [sources((5, 3, 8), seed=seed) for seed in range(12)]
    expected = [model.generate(**batch, **ends).tolist() for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda batch: model.generate(**batch, **ends).tolist(), batches)) == expected
    assert len(set(map(id, ahead[-12:]))) > 1


class Calls(TorchDispatchMode):
    """Counts the operations that are called; views of a tensor cost a device nothing."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.names[function._schema.name.removeprefix("aten::")] += 1
        return function(*args, **(kwargs or {}))


KERNELS = 3  # that choose candidates on a card (kernels.py), in the place of Stage.choose_beams
LAUNCH_NOTHING = {"promote_types", "dropout"}  # outside of training


@pytest.mark.parametrize(
    ("one", "beams"), [(one, beams) for one in STATIC for beams in ((1, 3) if one.system in KINDS else (3,))], ids=str
)
def test_a_step_reads_nothing_and_has_few_operations(one, beams, monkeypatch, ahead):
    """As a card counts: at most 25 a layer and 40, of six layers where they have a state; attention is an operation."""
    deep = {"decoder_layers": 6} if one.system in STATEFUL else {}
    model, counts, chosen = one.model(**deep), [], []
    run_ahead(monkeypatch)
    run, prepare = static_shapes.Stage.run, TransformerDecoder.__init__

    def counted(stage):
        with Calls() as calls:
            run(stage)
        counts.append((calls.names, chosen[-1]))

    def counted_apart(choose, stage, scores):
        with Calls() as calls:
            choose(stage, scores)
        chosen.append(calls.names.total())

    def prepared(decoder, *given):
        prepare(decoder, *given)
        decoder.arguments.pop("attention_function", None)  # which is for a CPU

    monkeypatch.setattr(static_shapes.Stage, "run", counted)
    monkeypatch.setattr(TransformerDecoder, "__init__", prepared)
    for name in ("choose_beams", "choose_tokens"):
        choose = getattr(static_shapes.Stage, name)
        monkeypatch.setattr(
            static_shapes.Stage, name, lambda stage, scores, choose=choose: counted_apart(choose, stage, scores)
        )
    decode(model, **sources((5, 3), 22), num_beams=beams, min_new_tokens=4, max_new_tokens=6)
    assert counts
    layers = model.config.decoder_layers * (4 if "aif" in one.system else 1)
    for names, of_choice in counts:
        assert not READS & names.keys()
        launched = sum(count for name, count in names.items() if name not in LAUNCH_NOTHING)
        assert launched - of_choice + KERNELS <= 25 * layers + 40


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
    for yes in (True, False):
        monkeypatch.setattr(static_shapes, "is_asynchronous", lambda tensor, yes=yes: yes)
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
            assert_static(model, monkeypatch, ahead, sources(LENGTHS), **options, **several)


def test_an_adapter_that_is_switched_off_is_another_stage(ahead):
    model = get_peft_model(toy(), LoraConfig(r=2, target_modules=["out_proj"], init_lora_weights=False))
    for context in (nullcontext(), model.disable_adapter(), nullcontext()):
        with context:
            decode(model.get_base_model(), **sources((3, 2)), max_new_tokens=4)
    assert ahead[0] is ahead[2]
    assert ahead[0] is not ahead[1]


def another_module(model):
    layer = model.model.decoder.layers[1]
    layer.feed_forward.fc2 = copy.deepcopy(layer.feed_forward.fc2)


def changed_in_place(model):
    with torch.no_grad():
        model.model.encoder.layers[1].self_attn.out_proj.weight[0, 0] += 1.0


@pytest.mark.parametrize("change", [another_module, changed_in_place])
def test_a_changed_model_is_another_stage(change, ahead):
    model = toy()
    for _ in range(3):
        decode(model, **sources((3, 2)), max_new_tokens=4)
    assert len(set(map(id, ahead))) == 1
    change(model)
    for _ in range(2):
        decode(model, **sources((3, 2)), max_new_tokens=4)
    assert ahead[3] is ahead[4] is not ahead[0]


def test_a_merged_adapter_is_another_stage(ahead):
    model = get_peft_model(toy(), LoraConfig(r=2, target_modules=["out_proj"], init_lora_weights=False))
    for change in (lambda: None, lambda: None, model.merge_adapter, model.unmerge_adapter):
        change()
        decode(model.get_base_model(), **sources((3, 2)), max_new_tokens=4)
    assert ahead[0] is ahead[1] is not ahead[2]
    assert ahead[3] is not ahead[2]


@pytest.mark.parametrize("place", ["forward", "hook"])
def test_what_python_does_in_an_encoder_is_done_at_every_call(place, ahead):
    model, seen = toy(), []
    layer = model.model.encoder.layers[0]
    if place == "hook":
        layer.register_forward_hook(lambda *given: seen.append(1) and None)
    else:
        forward = layer.forward
        layer.forward = lambda *given, **named: (seen.append(1), forward(*given, **named))[1]
    for number in range(1, 5):
        decode(model, **sources((3, 2)), max_new_tokens=4)
        assert len(seen) == number
    assert not ahead


def test_sizes():
    assert [static_shapes.size_for(n) for n in range(1, 14)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]


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
