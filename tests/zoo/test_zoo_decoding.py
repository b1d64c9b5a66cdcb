"""The contract of every model, part two: a cache changes nothing, whatever the search does with it.

Compared are tokens, final scores and the scores of every step over the whole vocabulary; `assert_lively` makes sure
that sentences differ and beams cross, so that a state which does not reorder with the beams cannot pass.
"""

from __future__ import annotations

import functools

import pytest
import torch
from helpers.contract import (
    DECODING,
    FIXED_MEMORY,
    KINDS,
    Batch,
    assert_lively,
    assert_same,
    assert_same_decoding,
    lent,
    members,
    members_once,
)
from helpers.releases import needs_reset
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from hf_mlnmt.modeling.releases import CACHE

BEAMS = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 7}

# Of each family one system: what a loop of Transformers does with a cache; every part of it is tried below on all.
LAST = {member.system: member for member in members_once()}
IN_TRANSFORMERS_LOOP = pytest.mark.parametrize("system", KINDS)


def decode(model, batch, **kwargs):
    return model.generate(**batch.encoder_inputs, **{**DECODING, **kwargs})


def new_cache(model) -> EncoderDecoderCache:
    return EncoderDecoderCache(*(DynamicCache(config=model.config.get_text_config(decoder=True)) for _ in range(2)))


class Stepper:
    """Feeds a decoder piece by piece through one cache."""

    def __init__(self, model, batch, cache=None):
        self.model, self.cache = model, cache or new_cache(model)
        self.mask = batch.source_mask
        with torch.no_grad():
            self.encoded = model.get_encoder()(**batch.encoder_inputs)

    def __call__(self, tokens, visible=None):
        with torch.no_grad():
            return self.model(
                encoder_outputs=self.encoded,
                attention_mask=self.mask,
                decoder_input_ids=tokens,
                decoder_attention_mask=visible,
                cache=self.cache,
                use_cache=True,
            ).logits

    def pick(self, rows):
        """The sentences `rows`, in the encoder's output as `generate()` does it: every tensor, along the batch."""
        self.mask = self.mask[rows]
        for name, value in self.encoded.items():
            self.encoded[name] = value[rows]


@functools.cache
def uncached(member):
    with lent(member) as model:
        return decode(model, Batch.draw(), use_cache=False, **BEAMS)


def test_cached_equals_uncached(member, model, batch):
    """With beams; greedily the scores of a search are those of forced decoding, below."""
    cached = decode(model, batch, **BEAMS)
    assert_lively(cached)
    assert_same_decoding(cached, uncached(member))


@IN_TRANSFORMERS_LOOP
def test_static_cache(system, batch):
    member, model = LAST[system], LAST[system].model()
    # generate() would compile the step; it is the cache that is tested here.
    static = decode(model, batch, cache_implementation="static", disable_compile=True, **BEAMS)
    assert isinstance(static.get(CACHE).self_attention_cache, StaticCache)
    assert_same_decoding(static, uncached(member))


def test_chunks(model, batch, full):
    step = Stepper(model, batch)
    pieces = [step(piece) for piece in batch.target.split((2, 1, 3), 1)]
    assert_same(torch.cat(pieces, 1), full)
    assert step.cache.get_seq_length() == 6


def test_chunks_with_a_static_cache(member, model, batch, full):
    config, source = model.config.get_text_config(decoder=True), FIXED_MEMORY.get(member.system, 7)
    parts = [StaticCache(config=config, max_cache_len=size) for size in (9, source)]
    step = Stepper(model, batch, EncoderDecoderCache(*parts))
    assert_same(torch.cat([step(piece) for piece in batch.target.split((2, 1, 3), 1)], 1), full)


def test_sentences_that_change_places(model, batch, full):
    """All that a cache can be told to do with its rows, one after the other."""
    step = Stepper(model, batch)
    rows, position = [0, 1, 2, 3], 1
    step(batch.target[:, :1])
    for change, indices in (
        (lambda: step.cache.reorder_cache(torch.tensor([2, 0, 0, 1])), [2, 0, 0, 1]),
        (lambda: step.cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2, 3, 3]),
        (lambda: step.cache.batch_select_indices(torch.tensor([7, 0, 3])), [7, 0, 3]),
    ):
        change()
        step.pick(indices)
        rows = [rows[index] for index in indices]
        end = position + 1 if len(rows) > 3 else 6
        assert_same(step(batch.target[rows, position:end]), full[rows, position:end])
        position = end


def test_crop(model, batch, full):
    for kept in (3, 0):
        step = Stepper(model, batch)
        step.cache.self_attention_cache.activate_past_recording()
        drafted = batch.target.roll(1, 0)
        drafted[:, :kept] = batch.target[:, :kept]
        step(drafted[:, :2])
        step(drafted[:, 2:5])
        step.cache.crop(kept - 5)
        assert step.cache.get_seq_length() == kept
        assert_same(step(batch.target[:, kept:]), full[:, kept:])


# Systems whose decoder layers have a state beside keys and values.
STATES = {"mlnmt_convolution", "mlnmt_recurrence"}
STATEFUL = pytest.mark.parametrize("one", [x for x in LAST.values() if STATES & {*x.config().cache_slots()}], ids=str)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
@STATEFUL
def test_padding_of_a_prefix_leaves_no_trace(one, kind, implementation):
    """Padded on the left and inside: what the padding holds changes nothing, with any cache."""
    model, batch = one.model(**({"kernel_size": 4} if "-dc" in one.system else {})), Batch.draw().rows([0, 3])
    model.set_attn_implementation(implementation)
    visible = torch.ones_like(batch.target)
    visible[1, :2] = visible[0, 2] = visible[1, 4] = 0
    real, config = visible == 1, model.config.get_text_config(decoder=True)
    sizes = [{} if kind is DynamicCache else {"max_cache_len": size} for size in (8, batch.source.shape[1])]
    step, other = Stepper(model, batch, EncoderDecoderCache(*(kind(config=config, **size) for size in sizes))), []
    with torch.no_grad():
        for target in (batch.target, batch.target.where(real, 9)):
            inputs = {**batch.encoder_inputs, "decoder_input_ids": target, "decoder_attention_mask": visible}
            other.append(model(**inputs, use_cache=False).logits)
    assert_same(other[1][real], other[0][real])
    pieces = [step(target[:, :3], visible[:, :3]), *(step(target[:, [i]], visible[:, : i + 1]) for i in (3, 4, 5))]
    assert_same(torch.cat(pieces, 1)[real], other[0][real])


@STATEFUL
def test_a_cache_without_states_is_refused(one, batch):
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with pytest.raises(ValueError, match="build the cache from the model's config"):
        one.model()(**batch.inputs, cache=cache, use_cache=True)


@needs_reset
def test_reset(model, batch, full):
    step = Stepper(model, batch)
    step(batch.target.flip(0)[:, :4])
    step.cache.reset()
    assert step.cache.get_seq_length() == 0
    order = [1, 0, 3, 2]
    step.pick(order)
    assert_same(step(batch.target[order]), full[order])


@IN_TRANSFORMERS_LOOP
def test_forced_prefix(system, batch):
    model = LAST[system].model()
    prefix = torch.tensor([[3, 9, 6]] * 4)
    cached, plain = (
        decode(model, batch, decoder_input_ids=prefix, num_beams=3, max_new_tokens=4, use_cache=c)
        for c in (True, False)
    )
    assert (cached.sequences[:, :3] == prefix).all()
    assert_same_decoding(cached, plain)


@IN_TRANSFORMERS_LOOP
def test_assisted_decoding(system, batch):
    model, assistant = (LAST[system].model() for _ in range(2))
    # The assistant is nearly the model: some of its drafts are taken, some cropped away again.
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=noise, dtype=parameter.dtype))
    assistant.generation_config.num_assistant_tokens = 4
    alone = batch.rows([1])
    expected = decode(model, alone, use_cache=False)
    assert_same_decoding(decode(model, alone, assistant_model=assistant), expected)


@IN_TRANSFORMERS_LOOP
def test_batch_order_and_size_change_nothing(system, batch):
    model = LAST[system].model()
    together = decode(model, batch, num_beams=3, max_new_tokens=5)
    alone = decode(model, batch.rows([2]), num_beams=3, max_new_tokens=5)
    length = alone.sequences.shape[1]
    assert alone.sequences[0].tolist() == together.sequences[2, :length].tolist()
    assert_same(alone.sequences_scores[0], together.sequences_scores[2], 1e-5)


@pytest.mark.parametrize("one", [one for one in members() if (one.variant, one.system in KINDS) == ("separate", True)])
def test_transition_scores(one, batch):
    """Transformers reads the number of logits from config.vocab_size, which is the source's."""
    model = one.model()
    out = decode(model, batch, num_beams=3, length_penalty=1.0, output_scores=True)
    sizes = model.config.vocab_size, model.config.decoder_vocab_size
    steps = model.compute_transition_scores(out.sequences, out.scores, out.beam_indices)
    real = real_tokens(out.sequences, model.config.eos_token_id)
    assert_same(torch.where(real, steps, 0.0).sum(1) / real.sum(1), out.sequences_scores, 1e-5)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == sizes


def real_tokens(sequences, eos: int):
    """True from the first generated token up to and with </s>."""
    generated = sequences[:, 1:]
    ended = (generated == eos).cumsum(1)
    return (ended == 0) | ((generated == eos) & (ended == 1))


def test_forced_scores_equal_those_of_generate(model, batch):
    """Greedily; with beams `test_transition_scores` adds up the same to the hypotheses' scores."""
    out = decode(model, batch, max_new_tokens=7)
    with torch.no_grad():
        logits = model(**batch.encoder_inputs, decoder_input_ids=out.sequences[:, :-1]).logits
    scores = logits.log_softmax(-1).gather(-1, out.sequences[:, 1:, None]).squeeze(-1)
    real = real_tokens(out.sequences, model.config.eos_token_id)
    total = torch.where(real, scores, 0.0).sum(1)
    own = torch.stack(out.logits, 1).double().log_softmax(-1).gather(-1, out.sequences[:, 1:, None]).squeeze(-1)
    assert_same(torch.where(real, own, 0.0).sum(1), total, 1e-5)
    # ... and the loss is the same number once more.
    labels = out.sequences[:, 1:].where(real, -100)
    loss = model(**batch.encoder_inputs, labels=labels, num_items_in_batch=1).loss
    assert_same(-loss, total.sum(), 1e-5)
