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
        return model(**{**batch.inputs, "use_cache": False, **kwargs}).logits


def logits_of_each(model, batch: Batch, **kwargs):
    """The logits of the batch with each of several changes, all of them in one pass: what is given is a list."""
    (number,) = {len(value) for value in kwargs.values()}
    together = {name: torch.cat(value) for name, value in kwargs.items()}
    return logits_of(model, batch.rows([*range(4)] * number), **together).split(4)


def differs(left, right) -> bool:
    return not torch.allclose(left, right, rtol=1e-3, atol=1e-3)


def test_decoder_is_causal(model, batch):
    """And reads every word that it is given: one that changes matters to all behind it, and to none before it."""
    hole = torch.ones_like(batch.target)
    hole[1:, 1] = 0  # as without one SDPA may take its own causal path
    positions = range(1, batch.target.shape[1])
    texts = [batch.target] + [batch.target.clone() for _ in positions]
    for position in positions:
        texts[position][:, position:] = (batch.target[:, position:] + 7) % 22
    texts.append(batch.target.clone())
    texts[-1][:, 1] = (batch.target[:, 1] + 7) % 22
    for masks in ({}, {"decoder_attention_mask": [hole] * len(texts)}):
        before, *found, one_word = logits_of_each(model, batch, decoder_input_ids=texts, **masks)
        for position, after in zip(positions, found, strict=True):
            assert_same(after[:, :position], before[:, :position])
            assert differs(after[:, position], before[:, position]), "the decoder ignores its input"
        if not masks:
            assert all(differs(one_word[:, i], before[:, i]) for i in range(1, 5)), (
                "an earlier word has no effect later"
            )


def test_every_source_word_and_position_matters(model, batch, full):
    texts = [batch.source.clone() for _ in range(3)]
    for position, text in enumerate(texts):
        text[:, position] = (text[:, position] + 3) % 22
    texts.append(batch.source[:, [1, 0, *range(2, 7)]])
    *found, swapped = logits_of_each(model, batch, input_ids=texts)
    assert all(differs(after[row], full[row]) for after in found for row in range(4))
    assert differs(swapped, full), "word order does not matter"


def test_source_padding_is_invisible(model, batch, full):
    # What stands under the mask must not matter either.
    noise = torch.randint(0, 22, (4, 6))
    source = torch.cat([batch.source.where(batch.source_mask == 1, 17), noise], 1)
    mask = torch.cat([batch.source_mask, torch.zeros_like(noise)], 1)
    assert_same(logits_of(model, batch, input_ids=source, attention_mask=mask), full)


def test_source_mask_hides(model, batch, full):
    mask = batch.source_mask.clone()
    mask[:, 1] = 0
    other = batch.source.clone()
    other[:, 1] = (other[:, 1] + 5) % 22
    hidden, same = logits_of_each(model, batch, input_ids=[batch.source, other], attention_mask=[mask, mask])
    assert differs(hidden, full)
    assert_same(same, hidden)


def test_target_padding_is_invisible(model, batch, full):
    target = torch.cat([batch.target.where(batch.target_mask == 1, 9), torch.full((4, 3), 11)], 1)
    mask = torch.cat([batch.target_mask, torch.zeros(4, 3, dtype=torch.long)], 1)
    for given in (None, mask):
        after = logits_of(model, batch, decoder_input_ids=target, decoder_attention_mask=given)
        real = batch.target_mask.bool()
        assert_same(after[:, :6][real], full[real])


def test_masked_target_word_is_hidden_from_later_ones(model, batch, full):
    mask = torch.ones_like(batch.target)
    mask[:, 1] = 0
    other = batch.target.clone()
    other[:, 1] = (other[:, 1] + 5) % 22
    texts, masks = [batch.target, other], [mask, mask]
    hidden, same = logits_of_each(model, batch, decoder_input_ids=texts, decoder_attention_mask=masks)
    assert_same(hidden[:, 2:], same[:, 2:])
    assert differs(hidden[:, 2:], full[:, 2:])


def test_batch_order_and_size_change_nothing(model, batch, full):
    order = [2, 0, 3, 1]
    assert_same(logits_of(model, batch.rows(order)), full[order])
    for row in (1, 2):
        alone = batch.rows([row])
        length = int(alone.source_mask.sum())
        alone.source, alone.source_mask = alone.source[:, :length], None
        assert_same(logits_of(model, alone), full[[row]])


def test_attention_weights(member, model, batch, full):
    """Their shapes, sums and zeros; and eager attention, which has them, equals SDPA."""
    assert model.config._attn_implementation == "sdpa"
    sdpa = logits_of(model, batch, attention_mask=None)  # without a mask SDPA decides by is_causal alone
    model.set_attn_implementation("eager")
    assert_same(logits_of(model, batch, attention_mask=None), sdpa)
    config = model.config
    with torch.no_grad():
        out = model(**batch.inputs, output_attentions=True)
    assert_same(out.logits, full)
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


def test_other_outputs_and_inputs(model, batch, full):
    with torch.no_grad():
        out = model(**batch.training, output_hidden_states=True)
        plain = model(**batch.training, return_dict=False)
    assert len(out.encoder_hidden_states) == model.config.encoder_layers + 1
    assert len(out.decoder_hidden_states) == model.config.decoder_layers + 1
    assert_same(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)
    assert_same(model.lm_head(out.decoder_hidden_states[-1]), out.logits)
    states = [*out.encoder_hidden_states, *out.decoder_hidden_states]
    assert all(state.shape[-1] == model.config.d_model for state in states)
    assert_same(plain[0], out.loss)
    assert_same(plain[1], full)
    embeds = {
        "input_ids": None,
        "decoder_input_ids": None,
        "inputs_embeds": model.get_input_embeddings()(batch.source),
        "decoder_inputs_embeds": model.get_decoder().get_input_embeddings()(batch.target),
    }
    assert_same(logits_of(model, batch, **embeds, logits_to_keep=2), full[:, -2:])
    assert_same(logits_of(model, batch, logits_to_keep=torch.tensor([0, 3])), full[:, [0, 3]])


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_encoder_outputs_in_place_of_the_source(model, batch, full, training):
    """The last state alone is enough for some systems; for all others there is one error, never other logits."""
    encoder = model.train(training).get_encoder()
    encoded = encoder(**batch.encoder_inputs)
    assert tuple(name for name in ("memory", "features") if name in encoded) == encoder.hands_on
    last, complete = encoded.last_hidden_state, [] if training else [encoded, encoded.to_tuple()]
    for lacking in (BaseModelOutput(last_hidden_state=last), (last,)):
        if encoder.hands_on:
            text = f"encoder_outputs has no {encoder.hands_on[0]}.*this model's own encoder"
            with pytest.raises(ValueError, match=text):
                logits_of(model, batch, input_ids=None, encoder_outputs=lacking)
        elif not training:
            complete.append(lacking)
    for outputs in complete:
        assert_same(logits_of(model, batch, input_ids=None, encoder_outputs=outputs), full)


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
    model = member.model().float()
    exact = logits_of(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = logits_of(model, batch)
    half = logits_of(model.bfloat16(), batch)
    assert half.dtype == torch.bfloat16
    limit = BFLOAT16.get(member.system, 0.05) * exact.std()
    for found in (half, mixed):
        assert (found.float() - exact).abs().mean() < limit
