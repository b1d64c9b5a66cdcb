"""Transformers' own T5 in the fast loop: outputs are those of stock generate(), a step is that of the paper."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers
from helpers.foreign_translators import madlad, sentencepiece_model, t5
from helpers.searching import ENDING, sources
from helpers.toy_translators import SENTENCES
from reference import t5 as reference
from transformers import T5Config

from hf_mlnmt import explain, search
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.search.decoder import SourceBatch
from hf_mlnmt.search.t5 import T5Decoder, let_search

VOCABULARY, START = 97, 0
SIZES = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 3}
KINDS = {"relu, tied": ("relu", True), "gated, as MADLAD": ("gated-gelu", False)}


def toy(kind: str) -> transformers.T5ForConditionalGeneration:
    """A float64 model; few buckets, so that all of them are met."""
    feed_forward, tied = KINDS[kind]
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    ids = {"decoder_start_token_id": START, "pad_token_id": 0, "eos_token_id": 1, "vocab_size": VOCABULARY}
    config = T5Config(**SIZES, **ids, **buckets, feed_forward_proj=feed_forward, tie_word_embeddings=tied)
    model = transformers.T5ForConditionalGeneration(config).eval().double()
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    torch.manual_seed(5)
    for name, tensor in model.named_parameters():
        inner = not any(part in name for part in ("shared", "lm_head", "relative"))
        with torch.no_grad():
            tensor.normal_(float(tensor.dim() == 1), (3 if inner else 1) * tensor.shape[-1] ** -0.5)
    model.lm_head.weight.data[1] *= 2  # so that sentences end
    return model


def until_the_end(rows: torch.Tensor) -> list[list[int]]:
    """Behind the end Transformers' beam search puts </s> where the id of padding is 0."""
    return [row[1 : row.index(1, 1) if 1 in row[1:] else None] for row in rows.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_stock_generate(kind, monkeypatch):
    model, inputs = toy(kind), sources((14, 3, 9, 14, 1, 6), VOCABULARY)
    fast, calls, run, lengths = copy.copy(model), [], search.run, set()
    let_search(fast)
    monkeypatch.setattr(search, "run", lambda *a: (calls.append(run(*a)), calls[-1])[1])
    prompt = torch.tensor([[START, 9, 40]] * 6)
    asked = [{}, {"no_repeat_ngram_size": 2, "decoder_input_ids": prompt}]
    asked += [{"num_beams": 5, "num_return_sequences": 3, "length_penalty": penalty} for penalty in (0.0, 2.0)]
    asked += [{"num_beams": 2, "early_stopping": True, "decoder_input_ids": prompt}]
    for options in asked:
        found, expected = (each.generate(**inputs, **options, **ENDING) for each in (fast, model))
        assert until_the_end(found) == until_the_end(expected), options
        lengths |= {len(row) for row in until_the_end(found)}
    assert len(calls) == len(asked)
    assert all(call is not None for call in calls), "not the fast search"
    assert len(lengths) > 3


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_step_is_that_of_the_papers_equations(kind):
    """Of beams that have changed places, behind a prompt, over padded sources; float32 is in the stock norm alone."""
    model, inputs, width = toy(kind), sources((5, 2), VOCABULARY), 3
    encoded = model.encoder(**inputs)
    source = SourceBatch(encoded, inputs["attention_mask"].bool())
    generator = torch.Generator().manual_seed(2)
    drawn = [torch.randint(2, VOCABULARY, (2, width), generator=generator) for _ in range(12)]
    parents = torch.tensor([[0, 0, 2], [1, 0, 0]])
    prompt = torch.tensor([[START, 7]] * 2)
    decoder = T5Decoder(model, {})
    _, state = decoder.begin(prompt, source)
    state = state.expand(width)
    histories = [[prompt[row].tolist() for _ in range(width)] for row in range(2)]
    for number, tokens in enumerate(drawn):
        if number % 3 == 1:
            state = state.reorder(parents)
            histories = [[histories[row][beam] for beam in parents[row].tolist()] for row in range(2)]
        scores, state = decoder.step(tokens, state)
        histories = [[[*h, token] for h, token in zip(*pair)] for pair in zip(histories, tokens.tolist())]
    for row, memory in enumerate(encoded.last_hidden_state):
        real = list(memory[inputs["attention_mask"][row].bool()])
        expected = [reference.scores(parameters_of(model), real, history, 3, 12) for history in histories[row]]
        torch.testing.assert_close(scores[row].double(), torch.stack(expected), rtol=1e-5, atol=1e-5)


def parameters_of(model) -> dict:
    """The decoder's, as the reference has them."""
    layers = []
    for block in model.decoder.block:
        own, over_source, last = block.layer
        dense = last.DenseReluDense
        layer = {"self_norm": own.layer_norm.weight, "source_norm": over_source.layer_norm.weight}
        for name, module in (("self", own.SelfAttention), ("source", over_source.EncDecAttention)):
            layer[name] = {part: getattr(module, part).weight for part in "qkvo"}
        layer["ff"] = [getattr(dense, name).weight for name in ("wi", "wi_0", "wi_1", "wo") if hasattr(dense, name)]
        layers.append(layer | {"ff_norm": last.layer_norm.weight})
    return {
        "embedding": model.decoder.embed_tokens.weight,
        "projection": model.lm_head.weight,
        "bias": model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight,
        "norm": model.decoder.final_layer_norm.weight,
        "scale": model.config.d_model**-0.5 if model.config.scale_decoder_outputs else 1.0,
        "layers": layers,
    }


@pytest.mark.parametrize("make", [t5, madlad])
def test_the_pipeline_takes_it_as_it_is(make, tmp_path):
    """It stays of the stock class when saved; what the fast loop does not know goes to Transformers'."""
    tokenizer, model = make(sentencepiece_model(tmp_path)[1])
    for part in (tokenizer, model):
        part.save_pretrained(tmp_path / "model")
    texts, asked = (
        SENTENCES[:5],
        {"num_beams": 3, "max_new_tokens": 12, "source_language": "en", "target_language": "de"},
    )
    fast, stock = (TranslationPipeline.from_pretrained(str(tmp_path / "model"), fast=fast) for fast in (True, False))
    assert fast(texts, **asked) == stock(texts, **asked)
    assert type(stock.model) is transformers.T5ForConditionalGeneration
    assert explain(stock.model).startswith("Transformers' loop")
    assert explain(fast.model, num_beams=3).startswith("the loop: BeamSearch")
    assert "cache" in explain(fast.model, use_cache=False)
    assert "dropout" in explain(fast.model.train())
    fast.model.save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert saved["architectures"] == ["T5ForConditionalGeneration"]
