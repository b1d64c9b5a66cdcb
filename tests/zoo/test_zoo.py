"""The contract of every model, part one: what a forward call may depend on, and what it returns.

Weights are large (see helpers/contract.py): at the usual 0.02 a decoder that ignores the source mask passes.
Decoding, training and saving have their own files, test_zoo_*.py.
"""

from __future__ import annotations

import pytest
import torch
from helpers.contract import BFLOAT16, FIXED_MEMORY, PARTLY_ELSEWHERE, RECURRENT, Batch, assert_same
from transformers.modeling_outputs import BaseModelOutput


def logits_of(model, batch: Batch, **kwargs):
    with torch.no_grad():
        return model(**{**batch.inputs, **kwargs}).logits


def differs(left, right) -> bool:
    return not torch.allclose(left, right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "target mask"])
def test_decoder_is_causal(model, batch, masked):
    mask = None
    if masked:  # a hole at position 1, as without one SDPA may take its own causal path
        mask = torch.ones_like(batch.target)
        mask[1:, 1] = 0
    before = logits_of(model, batch, decoder_attention_mask=mask)
    for position in range(1, batch.target.shape[1]):
        changed = batch.target.clone()
        changed[:, position:] = (changed[:, position:] + 7) % 22
        after = logits_of(model, batch, decoder_input_ids=changed, decoder_attention_mask=mask)
        assert_same(after[:, :position], before[:, :position])
        assert differs(after[:, position], before[:, position]), "the decoder ignores its input"


def test_decoder_reads_the_whole_prefix(model, batch):
    changed = batch.target.clone()
    changed[:, 1] = (changed[:, 1] + 7) % 22
    before, after = logits_of(model, batch), logits_of(model, batch, decoder_input_ids=changed)
    assert all(differs(after[:, i], before[:, i]) for i in range(1, 5)), "an earlier word does not matter later"


def test_every_source_word_and_position_matters(model, batch):
    before = logits_of(model, batch)
    for position in range(3):
        changed = batch.source.clone()
        changed[:, position] = (changed[:, position] + 3) % 22
        after = logits_of(model, batch, input_ids=changed)
        assert all(differs(after[row], before[row]) for row in range(4))
    swapped = batch.source[:, [1, 0, *range(2, 7)]]
    assert differs(logits_of(model, batch, input_ids=swapped), before), "word order does not matter"


def test_source_padding_is_invisible(model, batch):
    before = logits_of(model, batch)
    # What stands under the mask must not matter either.
    noise = torch.randint(0, 22, (4, 6))
    source = torch.cat([batch.source.where(batch.source_mask == 1, 17), noise], 1)
    mask = torch.cat([batch.source_mask, torch.zeros_like(noise)], 1)
    assert_same(logits_of(model, batch, input_ids=source, attention_mask=mask), before)


def test_source_mask_hides(model, batch):
    mask = batch.source_mask.clone()
    mask[:, 1] = 0
    assert differs(logits_of(model, batch, attention_mask=mask), logits_of(model, batch))
    other = batch.source.clone()
    other[:, 1] = (other[:, 1] + 5) % 22
    hidden = logits_of(model, batch, attention_mask=mask)
    assert_same(logits_of(model, batch, input_ids=other, attention_mask=mask), hidden)


def test_target_padding_is_invisible(model, batch):
    before = logits_of(model, batch)
    target = torch.cat([batch.target.where(batch.target_mask == 1, 9), torch.full((4, 3), 11)], 1)
    mask = torch.cat([batch.target_mask, torch.zeros(4, 3, dtype=torch.long)], 1)
    for given in (None, mask):
        after = logits_of(model, batch, decoder_input_ids=target, decoder_attention_mask=given)
        real = batch.target_mask.bool()
        assert_same(after[:, :6][real], before[real])


def test_masked_target_word_is_hidden_from_later_ones(model, batch):
    mask = torch.ones_like(batch.target)
    mask[:, 1] = 0
    other = batch.target.clone()
    other[:, 1] = (other[:, 1] + 5) % 22
    hidden = [logits_of(model, batch, decoder_input_ids=t, decoder_attention_mask=mask) for t in (batch.target, other)]
    assert_same(hidden[0][:, 2:], hidden[1][:, 2:])
    assert differs(hidden[0][:, 2:], logits_of(model, batch)[:, 2:])


def test_batch_order_and_size_change_nothing(model, batch):
    together = logits_of(model, batch)
    order = [2, 0, 3, 1]
    assert_same(logits_of(model, batch.rows(order)), together[order])
    for row in range(4):
        alone = batch.rows([row])
        length = int(alone.source_mask.sum())
        alone.source, alone.source_mask = alone.source[:, :length], None
        assert_same(logits_of(model, alone), together[[row]])


def test_eager_attention_equals_sdpa(member, batch):
    eager, sdpa = member.model(), member.model()
    eager.set_attn_implementation("eager")
    sdpa.set_attn_implementation("sdpa")
    for mask in (batch.source_mask, None):  # without a mask SDPA decides by is_causal alone
        assert_same(logits_of(eager, batch, attention_mask=mask), logits_of(sdpa, batch, attention_mask=mask))


def test_attention_weights(member, model, batch):
    model.set_attn_implementation("eager")
    config = model.config
    with torch.no_grad():
        out = model(**batch.inputs, output_attentions=True)
    kinds = {
        "encoder_attentions": (config.encoder_layers, config.encoder_attention_heads, 7, 7),
        "decoder_attentions": (config.decoder_layers, config.decoder_attention_heads, 6, 6),
        "cross_attentions": (config.decoder_layers, config.decoder_attention_heads, 6, 7),
    }
    if member.system in RECURRENT:
        assert out.encoder_attentions is None
        assert out.decoder_attentions is None
        kinds = {"cross_attentions": (1, 1, 6, 7)}
    if member.system == "ssru":
        assert out.decoder_attentions == ()
        del kinds["decoder_attentions"]
    if (rows := FIXED_MEMORY.get(member.system)) is not None:
        kinds["cross_attentions"] = (*kinds["cross_attentions"][:3], rows)
    padding = batch.source_mask == 0
    for kind, (layers, heads, queries, keys) in kinds.items():
        weights = out[kind]
        assert len(weights) >= layers
        for layer in weights:
            # MLMHA with U0 = 1 has one map for each attended layer: (4, layers, heads, queries, keys).
            assert layer.shape[0] == 4
            assert layer.shape[-3:] == (heads, queries, keys)
            if kind == "cross_attentions" and member.system in PARTLY_ELSEWHERE:
                assert (layer.sum(-1) < 1 + 1e-12).all()
                assert (layer.sum(-1) < 0.99).any()
            else:
                assert_same(layer.sum(-1), torch.ones(layer.shape[:-1]))
            if kind == "decoder_attentions":
                assert not layer.triu(1).any()
            elif layer.shape[-1] == padding.shape[1]:  # it reads the source itself
                assert not layer.movedim(-1, 1)[padding].any()


def test_hidden_states(model, batch):
    with torch.no_grad():
        out = model(**batch.inputs, output_hidden_states=True)
    assert len(out.encoder_hidden_states) == model.config.encoder_layers + 1
    assert len(out.decoder_hidden_states) == model.config.decoder_layers + 1
    assert_same(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)
    assert_same(model.lm_head(out.decoder_hidden_states[-1]), out.logits)
    states = [*out.encoder_hidden_states, *out.decoder_hidden_states]
    assert all(state.shape[-1] == model.config.d_model for state in states)


def test_embeddings_in_place_of_tokens(model, batch):
    embeds = {
        "inputs_embeds": model.get_input_embeddings()(batch.source),
        "decoder_inputs_embeds": model.get_decoder().get_input_embeddings()(batch.target),
    }
    with torch.no_grad():
        actual = model(attention_mask=batch.source_mask, **embeds).logits
    assert_same(actual, logits_of(model, batch))


def test_logits_to_keep(model, batch):
    full = logits_of(model, batch)
    assert_same(logits_of(model, batch, logits_to_keep=2), full[:, -2:])
    assert_same(logits_of(model, batch, logits_to_keep=torch.tensor([0, 3])), full[:, [0, 3]])


def test_encoder_outputs_in_place_of_the_source(model, batch):
    with torch.no_grad():
        encoded = model.get_encoder()(**batch.encoder_inputs)
    expected = logits_of(model, batch)
    for outputs in (encoded, encoded.to_tuple()):
        assert_same(logits_of(model, batch, input_ids=None, encoder_outputs=outputs), expected)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("form", ["named", "tuple"])
def test_encoder_outputs_without_what_the_decoder_reads_are_refused(model, batch, form, training):
    """The last state alone is enough for some systems; for all others there is one error, never other logits."""
    encoder = model.train(training).get_encoder()
    handed_on = encoder(**batch.encoder_inputs)
    assert tuple(name for name in ("memory", "features") if name in handed_on) == encoder.hands_on
    last = handed_on.last_hidden_state
    given = BaseModelOutput(last_hidden_state=last) if form == "named" else (last,)
    inputs = {**batch.inputs, "input_ids": None, "encoder_outputs": given}
    if encoder.hands_on:
        with pytest.raises(ValueError, match=f"encoder_outputs has no {encoder.hands_on[0]}.*this model's own encoder"):
            model(**inputs)
    elif not training:
        assert_same(logits_of(model, batch, **inputs), logits_of(model, batch))


def test_tuple_and_dict_outputs_agree(model, batch):
    with torch.no_grad():
        named, plain = model(**batch.training), model(**batch.training, return_dict=False)
    assert_same(plain[0], named.loss)
    assert_same(plain[1], named.logits)


def test_too_long_input_is_an_error_that_says_so(member, model):
    limit = model.config.max_position_embeddings
    if member.system in RECURRENT:  # no table of positions ends anywhere
        ones = torch.ones(1, limit + 1, dtype=torch.long)
        assert model(ones, decoder_input_ids=ones).logits.isfinite().all()
        return
    with pytest.raises(ValueError, match="max_position_embeddings"):
        model(
            input_ids=torch.ones(1, limit + 1, dtype=torch.long), decoder_input_ids=torch.ones(1, 1, dtype=torch.long)
        )


def test_bfloat16_is_close_to_float32(member, batch):
    exact = logits_of(member.model(dtype=torch.float32), batch)
    half = logits_of(member.model(dtype=torch.bfloat16), batch)
    assert half.dtype == torch.bfloat16
    limit = BFLOAT16.get(member.system, 0.05) * exact.std()
    assert (half.float() - exact).abs().mean() < limit
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = logits_of(member.model(dtype=torch.float32), batch)
    assert (mixed.float() - exact).abs().mean() < limit
