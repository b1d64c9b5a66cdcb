"""The contract of every causal language model: what a call depends on, its loss, gradients, decoding and saving."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from helpers.ahead import step_without_values
from helpers.causal_contract import TextBatch, causal_members
from helpers.contract import DECODING, assert_lively, assert_same, assert_same_decoding, gradients
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache, StaticCache

from hf_mlnmt.modeling.releases import CACHE

ALL = pytest.mark.parametrize("one", causal_members(), ids=str)
FIRST = pytest.mark.parametrize("one", [m for m in causal_members() if m.variant in ("post", "pre")], ids=str)


@pytest.fixture
def model(one):
    return one.model()


@pytest.fixture
def batch():
    return TextBatch.draw()


def logits_of(model, batch, **kwargs):
    with torch.no_grad():
        return model(**{**batch.inputs, **kwargs}).logits


def differs(left, right) -> bool:
    return not torch.allclose(left, right, rtol=1e-3, atol=1e-3)


@ALL
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_causal_and_reads_the_whole_prefix(model, batch, masked):
    mask = batch.mask if masked else None
    before = logits_of(model, batch, attention_mask=mask)
    for position in range(1, 3):
        changed = batch.tokens.clone()
        changed[:, position] = (changed[:, position] + 7) % 22
        after = logits_of(model, batch, input_ids=changed, attention_mask=mask)
        assert_same(after[:, :position], before[:, :position])
        assert all(differs(after[0, i], before[0, i]) for i in range(position, 7)), "an earlier word does not matter"


@ALL
def test_padding_is_invisible_on_either_side(model, batch):
    """Also without a mask on the right, where nothing looks; on the left positions are counted from the first token."""
    real, left = batch.mask.bool(), batch.padded_left()
    assert_same(logits_of(model, left)[left.mask.bool()], logits_of(model, batch)[real])
    assert_same(logits_of(model, batch, attention_mask=None)[real], logits_of(model, batch)[real])
    expected = model(**batch.training)
    expected.loss.backward()
    of_right = gradients(model)
    for loss_only in (False, True):
        out = model(**left.training, loss_only=loss_only)
        out.loss.backward()
        assert_same(out.loss, expected.loss)
        assert_same(gradients(model), of_right)


@ALL
def test_batch_order_and_size_change_nothing(model, batch):
    together, order = logits_of(model, batch), [2, 0, 3, 1]
    assert_same(logits_of(model, batch.rows(order)), together[order])
    for row in range(4):
        length = int(batch.mask[row].sum())
        alone = logits_of(model, TextBatch(batch.tokens[[row], :length], None))
        assert_same(alone, together[[row], :length])


@FIRST
def test_eager_attention_equals_sdpa(one, batch):
    eager, sdpa = one.model(), one.model()
    eager.set_attn_implementation("eager")
    sdpa.set_attn_implementation("sdpa")
    for mask in (batch.mask, None):
        assert_same(logits_of(eager, batch, attention_mask=mask), logits_of(sdpa, batch, attention_mask=mask))
    with torch.no_grad():
        out = eager(**batch.inputs, output_attentions=True, output_hidden_states=True)
    assert len(out.attentions) == 2
    for weights in out.attentions:
        assert weights.shape == (4, 2, 7, 7)
        assert not weights.triu(1).any()
        assert_same(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert len(out.hidden_states) == 3
    assert_same(eager.lm_head(out.hidden_states[-1]), out.logits)


@FIRST
def test_other_ways_to_call_it(model, batch):
    full = logits_of(model, batch)
    assert_same(logits_of(model, batch, input_ids=None, inputs_embeds=model.get_input_embeddings()(batch.tokens)), full)
    assert_same(logits_of(model, batch, logits_to_keep=2), full[:, -2:])
    real = batch.mask.bool()
    assert_same(logits_of(model, batch, position_ids=torch.arange(7)[None])[real], full[real])
    assert differs(logits_of(model, batch, position_ids=torch.arange(1, 8)[None])[real], full[real])
    with torch.no_grad():
        named, plain = model(**batch.training), model(**batch.training, return_dict=False)
    assert_same(plain[0], named.loss)
    assert_same(plain[1], named.logits)
    assert_same(model(**batch.training, logits_to_keep=1).loss, named.loss)
    shifted = torch.nn.functional.pad(batch.training["labels"][:, 1:], (0, 1), value=-100)
    assert_same(model(**batch.inputs, shift_labels=shifted).loss, named.loss)
    limit = model.config.max_position_embeddings
    with pytest.raises(ValueError, match="max_position_embeddings"):
        model(input_ids=torch.ones(1, limit + 1, dtype=torch.long))


@ALL
def test_bfloat16_is_close_to_float32(one, batch):
    exact = logits_of(one.model(dtype=torch.float32), batch)
    half = logits_of(one.model(dtype=torch.bfloat16), batch)
    assert half.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = logits_of(one.model(dtype=torch.float32), batch)
    for found in (half, mixed):
        assert (found.float() - exact).abs().mean() < 0.05 * exact.std()


def by_hand(logits, labels, smoothing):
    """Position by position, each from the state before it; <s> is predicted by nothing."""
    total = torch.zeros((), dtype=logits.dtype)
    for row in range(labels.shape[0]):
        for position in range(1, labels.shape[1]):
            label = int(labels[row, position])
            if label != -100:
                scores = logits[row, position - 1].log_softmax(-1)
                total = total - (1 - smoothing) * scores[label] - smoothing * scores.mean()
    return total


@ALL
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_by_hand_with_and_without_logits(model, batch, smoothing):
    for items, divisor in ((None, 18), (7, 7), (torch.tensor(31), 31)):
        out = model(**batch.training, smoothing=smoothing, num_items_in_batch=items)
        assert_same(out.loss, by_hand(out.logits, batch.training["labels"], smoothing) / divisor)
    out.loss.backward()
    expected = gradients(model)
    lean = model(**batch.training, smoothing=smoothing, num_items_in_batch=31, loss_only=True)
    lean.loss.backward()
    assert lean.logits is None
    assert_same(lean.loss, out.loss)
    assert_same(gradients(model), expected)


@ALL
def test_gradients(model, batch):
    """Every parameter has one; parts of a batch add up to the whole; a batch that predicts nothing has none but 0."""
    model.train()
    model(**batch.training, num_items_in_batch=18).loss.backward()
    assert {name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-7} == set()
    model.eval().zero_grad()
    model(**batch.training, num_items_in_batch=18).loss.backward()
    expected = gradients(model)
    for rows in ([0, 1], [2], [3]):
        model(**batch.rows(rows).training, num_items_in_batch=18).loss.backward()
    assert_same(gradients(model), expected)
    for items in (None, 0, torch.tensor(0)):
        for loss_only in (True, False):
            nothing = {**batch.training, "labels": torch.full_like(batch.tokens, -100)}
            loss = model(**nothing, num_items_in_batch=items, loss_only=loss_only, smoothing=0.1).loss
            loss.backward()
            assert loss == 0
            assert not any(gradient.count_nonzero() for gradient in gradients(model).values())


@FIRST
def test_nothing_of_a_step_is_read_from_the_device(model, batch):
    step_without_values(model, **batch.training)


@FIRST
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(one, batch, reentrant):
    rates = dict.fromkeys(["dropout", "attention_dropout", "activation_dropout"], 0.2)
    model, found = one.model(dtype=torch.float32, **rates).train(), []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(11)
        model(**batch.training).loss.backward()
        found.append(gradients(model))
    assert_same(found[1], found[0], 1e-4)


SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 3},
    "sampling": {"do_sample": True, "top_k": 8},
}


def decode(model, batch, **kwargs):
    torch.manual_seed(3)
    return model.generate(**batch.inputs, **{**DECODING, **kwargs})


@pytest.fixture
def prompts(batch):
    """Beginnings of unequal lengths, on the left."""
    return TextBatch(batch.tokens[:, :4].where(batch.tokens[:, :4] > 1, 9), TextBatch.draw(0, (4, 2, 3, 4)).mask)


@ALL
@pytest.mark.parametrize("search", SEARCHES)
def test_cached_equals_uncached(model, prompts, search):
    left = prompts.padded_left()
    cached = decode(model, left, **SEARCHES[search])
    assert_lively(cached)
    assert_same_decoding(cached, decode(model, left, use_cache=False, **SEARCHES[search]))


@FIRST
def test_a_batch_of_prompts_is_each_alone(model, prompts):
    search = {"num_beams": 3, "bad_words_ids": [[17]]}  # what stands in the padding counts as a repetition
    together = decode(model, prompts.padded_left(), **search)
    for row in range(4):
        length = int(prompts.mask[row].sum())
        alone = decode(model, TextBatch(prompts.tokens[[row], :length], prompts.mask[[row], :length]), **search)
        found = alone.sequences[0, length:].tolist()
        assert found == together.sequences[row, 4 : 4 + len(found)].tolist()
        assert_same(alone.sequences_scores[0], together.sequences_scores[row], 1e-5)


@FIRST
def test_static_cache(model, prompts):
    static = decode(model, prompts.padded_left(), cache_implementation="static", disable_compile=True)
    assert isinstance(static.get(CACHE), StaticCache)
    assert_same_decoding(static, decode(model, prompts.padded_left(), use_cache=False))


@FIRST
def test_chunks_and_reordering(model, batch):
    full, rows = logits_of(model, batch, attention_mask=None), [1, 1, 0, 0]
    cache = DynamicCache(config=model.config)
    pieces = [
        logits_of(model, batch, input_ids=piece, attention_mask=None, cache=cache, use_cache=True)
        for piece in batch.tokens[:, :4].split((2, 1, 1), 1)
    ]
    assert_same(torch.cat(pieces, 1), full[:, :4])
    cache.reorder_cache(torch.tensor(rows))
    rest = {"input_ids": batch.tokens[rows, 4:], "attention_mask": None, "cache": copy.deepcopy(cache)}
    assert_same(logits_of(model, batch, **rest), full[rows, 4:])
    left, cache = batch.padded_left(), DynamicCache(config=model.config)
    pieces = [
        logits_of(model, left, input_ids=left.tokens[:, a:b], attention_mask=left.mask[:, :b], cache=cache)
        for a, b in ((0, 4), (4, 5), (5, 7))
    ]
    assert_same(torch.cat(pieces, 1)[left.mask.bool()], logits_of(model, batch)[batch.mask.bool()])


@FIRST
def test_generation_from_nothing_begins_with_the_start_token(model):
    out = model.generate(do_sample=False, max_new_tokens=3, min_new_tokens=3)
    assert out.shape == (1, 4)
    assert int(out[0, 0]) == model.config.bos_token_id


@FIRST
def test_assisted_decoding(one, model, prompts):
    assistant = one.model(seed=0)
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter.add_(0.02)
    alone = prompts.rows([0])
    assert_same_decoding(decode(model, alone, assistant_model=assistant), decode(model, alone, use_cache=False))


@FIRST
def test_forced_scores_equal_those_of_generate(model, prompts):
    alone = prompts.rows([0])
    out = decode(model, alone, num_beams=3, length_penalty=0.0)
    with torch.no_grad():
        scores = model(out.sequences).logits[:, 3:-1].log_softmax(-1).gather(-1, out.sequences[:, 4:, None])
    ended = (out.sequences[:, 4:] == 1).cumsum(1)
    real = (ended == 0) | ((ended == 1) & (out.sequences[:, 4:] == 1))
    assert_same((scores[..., 0] * real).sum(1), out.sequences_scores, 1e-5)


@ALL
def test_round_trip_is_exact_and_ties_what_the_config_says(one, batch, tmp_path):
    model = one.model()
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(model)
    assert not any(report.values()), report
    assert torch.equal(logits_of(loaded, batch), logits_of(model, batch))
    for each in (model, loaded):
        tied = each.lm_head.weight is each.get_input_embeddings().weight
        assert tied == model.config.tie_word_embeddings
    assert sum(value.numel() for value in load_file(tmp_path / "model.safetensors").values()) == model.num_parameters()
    for name, value in model.named_buffers():
        assert torch.equal(dict(loaded.named_buffers())[name], value.to(loaded.dtype)), name
    config = json.loads((tmp_path / "config.json").read_text())
    assert not [name for name in config if name.startswith("encoder")], "a model without encoder has no such field"


@ALL
def test_missing_weights_begin_like_new_ones(one, tmp_path):
    torch.manual_seed(0)
    fresh = dict(AutoModelForCausalLM.from_config(one.config()).named_parameters())
    AutoModelForCausalLM.from_config(one.config()).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({k: v for k, v in load_file(path).items() if "layers.0" not in k}, path, metadata={"format": "pt"})
    for name, value in AutoModelForCausalLM.from_pretrained(tmp_path).named_parameters():
        assert value.isfinite().all()
        deviations = [float(one.detach().std(unbiased=False)) for one in (value, fresh[name])]
        assert deviations[0] == pytest.approx(deviations[1], rel=0.4), name


@ALL
def test_base_model_and_head_share_a_checkpoint(one, batch, tmp_path):
    model = one.model()
    model.save_pretrained(tmp_path / "head")
    base = AutoModel.from_pretrained(tmp_path / "head").eval()
    states = base(**batch.inputs).last_hidden_state
    assert_same(model.lm_head(states), logits_of(model, batch))
    base.save_pretrained(tmp_path / "base")
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path / "base").model(**batch.inputs)[0], states)


@ALL
def test_resized_vocabulary(one, batch, tmp_path):
    model = one.model()
    before = logits_of(model, batch)
    model.resize_token_embeddings(35)
    assert logits_of(model, batch).shape[-1] == model.config.vocab_size == 35
    assert_same(logits_of(model, batch)[..., :29], before)
    model.save_pretrained(tmp_path)
    assert_same(logits_of(AutoModelForCausalLM.from_pretrained(tmp_path), batch), logits_of(model, batch))
